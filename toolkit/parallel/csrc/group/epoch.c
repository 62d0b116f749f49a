/* Epochs: raising the own flag, waiting for those of others. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "group/comm.h"
#include "group/fault_point.h"

#define LOOK_NS 50000000u /* how long a sleep may overlook a death, an error, an abort */
#define PAUSE_NS 3000u    /* then others may have the processor: two ranks may share it */
#define DESCRIBED_TRIES 1000u
#define YIELDS 20u        /* at least, before the first sleep */

static inline void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

void mc_futex_wake(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void mc_futex_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t for_ns) {
  struct timespec limit = {(time_t)(for_ns / 1000000000u), (long)(for_ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static inline bool reached(struct mc_rank_block *block, uint32_t epoch) {
  return (int32_t)(atomic_load_explicit(&block->flag, memory_order_acquire) - epoch) >= 0;
}

static void copy(struct mc_desc *to, const struct mc_desc *from) {
  __atomic_store_n(&to->seq, __atomic_load_n(&from->seq, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  __atomic_store_n(&to->count, __atomic_load_n(&from->count, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  __atomic_store_n(&to->verb, __atomic_load_n(&from->verb, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  __atomic_store_n(&to->dtype, __atomic_load_n(&from->dtype, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  __atomic_store_n(&to->op, __atomic_load_n(&from->op, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  __atomic_store_n(&to->root, __atomic_load_n(&from->root, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* A rank that differs is described before it has come to this epoch, as it may begin its next call: a sequence
 * lock says whether what was read is of one call. */
static void describe(struct mc_rank_block *mine, uint32_t parity, const struct mc_desc *desc) {
  _Atomic uint32_t *edits = &mine->edits[parity];
  uint32_t before = atomic_load_explicit(edits, memory_order_relaxed);
  atomic_store_explicit(edits, before + 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  copy(&mine->desc[parity], desc);
  atomic_store_explicit(edits, before + 2, memory_order_release);
}

/* Its owner may have died as it wrote: then what is there has to do. */
static struct mc_desc described(struct mc_rank_block *block, uint32_t parity) {
  struct mc_desc found;
  for (unsigned tries = 0; tries < DESCRIBED_TRIES; tries++) {
    uint32_t before = atomic_load_explicit(&block->edits[parity], memory_order_acquire);
    copy(&found, &block->desc[parity]);
    atomic_thread_fence(memory_order_acquire);
    uint32_t after = atomic_load_explicit(&block->edits[parity], memory_order_relaxed);
    if (before == after && !(before & 1)) break;
    sched_yield();
  }
  return found;
}

void mc_publish(struct mc_comm *c) {
  uint32_t epoch = ++c->epoch, parity = epoch & 1;
  struct mc_rank_block *mine = mc_block(c, c->local);
  mine->fingerprint[parity] = c->fingerprint;
  mine->rkey[parity] = c->rkey;
  mine->remote_wait_ns[parity] = c->remote_wait_ns;
  c->remote_wait_ns = 0;
  if (c->fingerprint) describe(mine, parity, &c->desc);
  MC_FAULT_POINT(epoch_described);
  /* The store and the load must not pass each other (and those of a waiter neither), else a waiter
   * that goes to sleep at this moment would be missed: sequential consistency on all four. */
  atomic_store_explicit(&mine->flag, epoch, memory_order_seq_cst);
  MC_FAULT_POINT(epoch_raised);
  if (atomic_load_explicit(&mine->sleepers, memory_order_seq_cst)) mc_futex_wake(&mine->flag);
}

static bool spin(struct mc_comm *c, struct mc_rank_block *block, uint32_t epoch, uint64_t began) {
  uint64_t limit = (uint64_t)(c->tuning.spin_s * 1e9);
  uint64_t pause = limit < PAUSE_NS ? limit : PAUSE_NS;
  while (mc_now_ns() - began < pause)
    for (unsigned i = 0; i < 16; i++) {
      if (reached(block, epoch)) return true;
      pause_a_little();
    }
  for (unsigned yields = 0; yields < YIELDS || mc_now_ns() - began < limit; yields++) {
    if (reached(block, epoch)) return true;
    sched_yield();
  }
  return false;
}

static void list_missing(struct mc_comm *c, uint32_t epoch, uint8_t *missing) {
  for (uint32_t local = 0; local < c->locals; local++) missing[local] = !reached(mc_block(c, local), epoch);
}

static int sleep_for(struct mc_comm *c, struct mc_rank_block *block, uint32_t epoch) {
  for (;;) {
    __atomic_fetch_add(&c->stats.sleeps, 1, __ATOMIC_RELAXED);
    atomic_fetch_add_explicit(&block->sleepers, 1, memory_order_seq_cst);
    MC_FAULT_POINT(wait_counted);
    uint32_t seen = atomic_load_explicit(&block->flag, memory_order_seq_cst);
    if ((int32_t)(seen - epoch) < 0) {
      uint64_t now = mc_now_ns();
      uint64_t left = c->deadline_ns > now ? c->deadline_ns - now : 1000;
      mc_futex_sleep(&block->flag, seen, left < LOOK_NS ? left : LOOK_NS);
    }
    atomic_fetch_sub_explicit(&block->sleepers, 1, memory_order_seq_cst);
    if (reached(block, epoch)) return MC_OK;
    uint8_t missing[MC_LOCALS];
    list_missing(c, epoch, missing);
    int code = mc_look(c, missing);
    if (code) return code;
  }
}

/* The slow half of a wait: returns the code; how long it took is the straggler's. */
static int wait_for(struct mc_comm *c, uint32_t local, uint32_t epoch) {
  struct mc_rank_block *block = mc_block(c, local);
  uint64_t began = mc_now_ns();
  int code = spin(c, block, epoch, began) ? MC_OK : sleep_for(c, block, epoch);
  c->waited_ns += mc_now_ns() - began;
  return code;
}

static int differs(struct mc_comm *c, uint32_t local, uint32_t parity) {
  struct mc_rank_block *block = mc_block(c, local);
  /* A rank in the middle of another call has signed no new one: then the later of its two counts. */
  struct mc_desc first = described(block, 0), second = described(block, 1);
  bool later = block->fingerprint[parity] ? parity : first.seq < second.seq;
  struct mc_desc other = later ? second : first;
  return mc_fail(c, MC_EMISMATCH, 0, (int)mc_rank_of(c, local), NULL, &other);
}

int mc_await(struct mc_comm *c) {
  uint32_t epoch = c->epoch, parity = epoch & 1;
  uint64_t mine = mc_block(c, c->local)->fingerprint[parity], waited = c->waited_ns;
  uint32_t last = c->local;
  for (uint32_t step = 1; step < c->locals; step++) {
    uint32_t local = c->local + step < c->locals ? c->local + step : c->local + step - c->locals;
    struct mc_rank_block *block = mc_block(c, local);
    if (!reached(block, epoch)) {
      int code = wait_for(c, local, epoch);
      if (code) return code;
      last = local;
    }
    if (block->fingerprint[parity] != mine) return differs(c, local, parity);
  }
  MC_FAULT_POINT(epoch_reached);
  /* The rank that was waited for last came last; but what it waited for another node is not its own delay. */
  if (last != c->local) {
    uint64_t away = mc_block(c, last)->remote_wait_ns[parity], delay = c->waited_ns - waited;
    c->peer_wait_ns[mc_rank_of(c, last)] += delay > away ? delay - away : 0;
  }
  c->fingerprint = c->rkey = 0;
  return MC_OK;
}

int mc_epoch(struct mc_comm *c) {
  mc_publish(c);
  return mc_await(c);
}
