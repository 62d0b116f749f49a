/* Plays of large messages within a node, which are read where they lie (csrc/p2p/offer.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include "driver.h"

#define EAGER 1000u
#define AT_ONCE 5u
#define REGION ((size_t)4 << 20)

void tune_offers(struct mc_tuning *tuning) { tuning->eager_bytes = EAGER; }

/* All is compiled with -Dprocess_vm_readv=driver_readv: a copy that a sanitizer sees; at times of the half only, at
 * times refused, as of memory that belongs to a device. */
static _Atomic uint32_t calls, forbidden;

ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long tos, const struct iovec *from, unsigned long froms, unsigned long flags) {
  const uint32_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
  if (pid <= 0 || tos != 1 || froms != 1 || flags || to->iov_len != from->iov_len) abort();
  if (atomic_load_explicit(&forbidden, memory_order_relaxed) || call % 7 == 6) {
    errno = call % 7 == 6 ? EFAULT : EPERM;
    return -1;
  }
  const size_t bytes = call % 3 == 2 && to->iov_len > 1 ? to->iov_len / 2 : to->iov_len;
  memcpy(to->iov_base, from->iov_base, bytes);
  return (ssize_t)bytes;
}

static uint8_t byte_of(uint32_t round, uint32_t from, uint32_t to, uint32_t tag, uint64_t i) {
  return (uint8_t)(round * 7 + from * 31 + to * 17 + tag * 3 + i % 251);
}

struct both { /* one each way between two ranks, or one to oneself */
  uint64_t requests[2], bytes, room;
  uint32_t peer, tag;
  uint8_t *out, *in;
};

static bool post(struct rank *self, struct both *both, uint32_t round, bool from_any) {
  for (uint64_t i = 0; i < both->bytes; i++) both->out[i] = byte_of(round, self->rank, both->peer, both->tag, i);
  memset(both->in, 0x5a, both->bytes + 1);
  const int32_t peer = (int32_t)both->peer;
  return mc_post(self->comm, MC_SEND, peer, both->tag, both->out, both->bytes, WAIT_S, &both->requests[0]) == MC_OK &&
         mc_post(self->comm, MC_RECV, from_any ? -1 : peer, both->tag, both->in, both->room, WAIT_S, &both->requests[1]) == MC_OK;
}

static bool settle(struct rank *self, const struct both *both, uint32_t round) {
  struct mc_status in = {0}, out = {0};
  const bool fits = both->room >= both->bytes;
  self->failure = (struct mc_failure){.rank_status = self->rank_status};
  int code = mc_wait(self->comm, both->requests[1], WAIT_S, &in, &self->failure);
  bool good = code == (fits ? MC_OK : MC_EMISMATCH) && in.done && in.peer == (int32_t)both->peer;
  for (uint64_t i = 0; good && i < both->bytes; i++)
    good = both->in[i] == (fits ? byte_of(round, both->peer, self->rank, both->tag, i) : 0x5a);
  good = good && both->in[both->bytes] == 0x5a;
  self->failure = (struct mc_failure){.rank_status = self->rank_status};
  return mc_wait(self->comm, both->requests[0], WAIT_S, &out, &self->failure) == MC_OK && good;
}

/* Several each way at once with a rank that both know, at times this one itself. What they are both draw alike. */
void play_offers(struct rank *self) {
  static const uint64_t sizes[] = {0, 1, EAGER - 1, EAGER, EAGER + 1, 70001, 300000, (1 << 20) + 5};
  uint32_t region;
  uint8_t *mine = region_of(self, 1, REGION, &region);
  CHECK(self, mine);
  for (uint32_t round = 0; round < self->scene->rounds && !self->wrong; round++) {
    const uint32_t sum = draw(self, self->size), peer = (sum + self->size - self->rank) % self->size;
    struct both all[AT_ONCE];
    bool good = true;
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      const uint64_t bytes = sizes[draw(self, 8)];
      const bool cut = bytes && !draw(self, 5), registered = i == 0 && draw(self, 2);
      all[i] = (struct both){.bytes = bytes, .room = cut ? bytes - 1 : bytes, .peer = peer, .tag = round * AT_ONCE + i,
                             .out = registered ? mine : malloc(bytes + 1), .in = malloc(bytes + 1)};
      good = post(self, &all[i], round, draw(self, 2)) && good;
    }
    for (uint32_t i = AT_ONCE; i-- > 0;) {
      good = good && settle(self, &all[i], round);
      if (all[i].out != mine) free(all[i].out);
      free(all[i].in);
    }
    CHECK(self, good);
  }
  CHECK(self, mc_region_drop(self->comm, region) == MC_OK);
}

void play_unreadable(struct rank *self) {
  atomic_store_explicit(&forbidden, 1, memory_order_relaxed);
  play_offers(self);
}

/* Sends that give up while their receives come and give up: what is received is whole, and its memory is free for other
 * use once it has ended. Nobody says who is faster. */
void play_withdraw(struct rank *self) {
  const int32_t next = (int32_t)((self->rank + 1) % self->size), before = (int32_t)((self->rank + self->size - 1) % self->size);
  for (uint32_t round = 0; round < self->scene->rounds && !self->wrong; round++) {
    const uint64_t bytes = EAGER + 1 + draw(self, 200000);
    uint8_t *out = malloc(bytes), *in = malloc(bytes);
    memset(out, (int)(round & 0x7f), bytes);
    uint64_t requests[2];
    struct mc_status status = {0};
    int codes[2];
    const double out_s = draw(self, 3) * 1e-4, in_s = draw(self, 3) * 1e-4;
    CHECK(self, mc_post(self->comm, MC_SEND, next, round, out, bytes, out_s, &requests[0]) == MC_OK);
    CHECK(self, mc_post(self->comm, MC_RECV, before, round, in, bytes, in_s, &requests[1]) == MC_OK);
    for (uint32_t i = 2; i-- > 0;) {
      self->failure = (struct mc_failure){.rank_status = self->rank_status};
      codes[i] = mc_wait(self->comm, requests[i], WAIT_S, &status, &self->failure);
      CHECK(self, codes[i] == MC_OK || codes[i] == MC_ETIMEOUT);
      if (i == 0) memset(out, 0xff, bytes);
      for (uint64_t at = 0; i == 1 && codes[1] == MC_OK && at < bytes; at++) CHECK(self, in[at] == (round & 0x7f));
    }
    free(out);
    free(in);
  }
  CHECK(self, run(self, MC_BARRIER, MC_U8, MC_SUM, 0, NULL, NULL, 0, WAIT_S) == MC_OK);
}
