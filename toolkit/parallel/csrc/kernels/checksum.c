/* A 64-bit checksum against damage on the way (not against an attacker), made for speed: 64 bytes a step.
 * The four products of a step do not wait for the step before, so they overlap; only one rotation,
 * addition and multiplication are in the chain. Every step is a bijection of the state, so a
 * difference once found is never lost. Multiplying words by each other, not by constants, keeps two
 * flipped sign bits from cancelling. The state between steps is the 64 bits alone, which is why
 * feeding in pieces of multiples of 64 bytes is the same as feeding at once. Plain C: the same
 * number on every processor. */
#include <string.h>
#include "kernels/kernels.h"

#define STEP_BYTES 64u
#define ODD 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */

static const uint64_t key[8] = {
  /* the fraction bits of the square roots of the first eight primes: no hidden choice */
  0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull, 0x3c6ef372fe94f82bull, 0xa54ff53a5f1d36f1ull,
  0x510e527fade682d1ull, 0x9b05688c2b3e6c1full, 0x1f83d9abfb41bd6bull, 0x5be0cd19137e2179ull,
};

static inline uint64_t word(const unsigned char *at) {
  uint64_t v;
  memcpy(&v, at, sizeof v); /* little-endian processors only (kernels/isa_kernels.h refuses others) */
  return v;
}

/* The halves of the 128-bit product folded, and the factors again: a factor of 0 hides nothing of the other. */
static inline uint64_t product(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
  __extension__ typedef unsigned __int128 wide;
  wide p = (wide)a * b;
  uint64_t low = (uint64_t)p, high = (uint64_t)(p >> 64);
#else
  uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
  uint64_t mid = ah * bl + (al * bl >> 32), more = al * bh + (uint32_t)mid;
  uint64_t low = a * b, high = ah * bh + (mid >> 32) + (more >> 32);
#endif
  return (low ^ high) + (a ^ (b << 32 | b >> 32));
}

static inline uint64_t step(uint64_t state, const unsigned char *p) {
  uint64_t sum = 0;
  for (int i = 0; i < 8; i += 2) sum += product(word(p + 8 * i) ^ key[i], word(p + 8 * i + 8) ^ key[i + 1]);
  return (((state << 23) | (state >> 41)) + sum) * ODD;
}

uint64_t mc_checksum(uint64_t seed, const void *data, size_t bytes) {
  const unsigned char *p = data;
  for (; bytes >= STEP_BYTES; bytes -= STEP_BYTES, p += STEP_BYTES) {
    __builtin_prefetch((const void *)((uintptr_t)p + 2048));
    seed = step(seed, p);
  }
  if (bytes) { /* filled up with zeros; the length keeps "a" and "a\0" apart */
    unsigned char last[STEP_BYTES] = {0};
    memcpy(last, p, bytes);
    seed = step(seed ^ bytes, last);
  }
  return seed;
}
