#define _GNU_SOURCE
#include "group/hash.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t word_at(const uint8_t *at) {
  uint64_t word;
  memcpy(&word, at, sizeof word); /* both ends are little-endian: the hello's magic says so */
  return word;
}

static inline uint64_t turn(uint64_t x, unsigned by) { return x << by | x >> (64 - by); }

static void stir(uint64_t v[4], unsigned times) {
  while (times--) {
    v[0] += v[1], v[1] = turn(v[1], 13) ^ v[0], v[0] = turn(v[0], 32);
    v[2] += v[3], v[3] = turn(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = turn(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = turn(v[1], 17) ^ v[2], v[2] = turn(v[2], 32);
  }
}

static void take_in(uint64_t v[4], const uint8_t key[16], const uint8_t *data, size_t bytes) {
  const uint64_t k0 = word_at(key), k1 = word_at(key + 8);
  v[0] = k0 ^ 0x736f6d6570736575u, v[1] = k1 ^ 0x646f72616e646f6du ^ 0xeeu;
  v[2] = k0 ^ 0x6c7967656e657261u, v[3] = k1 ^ 0x7465646279746573u;
  const size_t whole = bytes & ~(size_t)7;
  for (size_t at = 0; at < whole; at += 8) {
    const uint64_t word = word_at(data + at);
    v[3] ^= word, stir(v, 2), v[0] ^= word;
  }
  uint64_t last = (uint64_t)bytes << 56;
  for (size_t i = 0; i < bytes - whole; i++) last |= (uint64_t)data[whole + i] << (8 * i);
  v[3] ^= last, stir(v, 2), v[0] ^= last;
}

static void siphash128(const uint8_t key[16], const void *data, size_t bytes, uint8_t out[MC_PROOF]) {
  uint64_t v[4], half;
  take_in(v, key, data, bytes);
  v[2] ^= 0xee, stir(v, 4);
  half = v[0] ^ v[1] ^ v[2] ^ v[3], memcpy(out, &half, 8);
  v[1] ^= 0xdd, stir(v, 4);
  half = v[0] ^ v[1] ^ v[2] ^ v[3], memcpy(out + 8, &half, 8);
}

void mc_prove(const uint8_t key[32], uint64_t label, const void *data, size_t bytes, uint8_t out[MC_PROOF]) {
  uint8_t inner[24];
  siphash128(key, data, bytes, inner);
  memcpy(inner + 16, &label, 8);
  siphash128(key + 16, inner, sizeof inner, out);
}

bool mc_proves(const uint8_t a[MC_PROOF], const uint8_t b[MC_PROOF]) {
  volatile uint8_t differs = 0;
  for (unsigned i = 0; i < MC_PROOF; i++) differs = (uint8_t)(differs | (a[i] ^ b[i]));
  return differs == 0;
}

bool mc_random(void *data, size_t bytes) {
  uint8_t *at = data;
#ifdef SYS_getrandom
  while (bytes) {
    const long got = syscall(SYS_getrandom, at, bytes, 0u);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += got, bytes -= (size_t)got;
  }
#endif
  if (!bytes) return true;
  const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  while (bytes) {
    const ssize_t got = read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += got, bytes -= (size_t)got;
  }
  close(fd);
  return bytes == 0;
}
