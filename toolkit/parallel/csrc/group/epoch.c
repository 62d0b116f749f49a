/* Epochs: raising the own flag, waiting for those of others. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
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
  const struct timespec limit = mc_timespec(for_ns);
  syscall(SYS_futex, word, FUTEX_WAIT, seen, for_ns ? &limit : NULL, NULL, 0); /* shared: other processes wake it */
}

bool mc_has_come(const struct mc_comm *c, uint32_t local) {
  return (int32_t)(atomic_load_explicit(&mc_block(c, local)->flag, memory_order_acquire) - c->epoch) >= 0;
}

/* A rank that differs is described before it has come to this epoch, as it may begin its next call: a sequence
 * lock says whether what was read is of one call. */
static void describe(struct mc_rank_block *mine, uint32_t parity, const struct mc_desc *desc) {
  _Atomic uint32_t *edits = &mine->edits[parity];
  uint32_t before = atomic_load_explicit(edits, memory_order_relaxed);
  atomic_store_explicit(edits, before + 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  mc_copy_words(&mine->desc[parity], desc, sizeof *desc);
  atomic_store_explicit(edits, before + 2, memory_order_release);
}

/* Its owner may have died as it wrote: then what is there has to do. */
static struct mc_desc described(struct mc_rank_block *block, uint32_t parity) {
  struct mc_desc found;
  for (unsigned tries = 0; tries < DESCRIBED_TRIES; tries++) {
    uint32_t before = atomic_load_explicit(&block->edits[parity], memory_order_acquire);
    mc_copy_words(&found, &block->desc[parity], sizeof found);
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

static bool spin(struct mc_comm *c, uint32_t local, uint64_t began) {
  uint64_t limit = (uint64_t)(c->tuning.spin_s * 1e9);
  uint64_t pause = limit < PAUSE_NS ? limit : PAUSE_NS;
  while (mc_now_ns() - began < pause)
    for (unsigned i = 0; i < 16; i++) {
      if (mc_has_come(c, local)) return true;
      pause_a_little();
    }
  for (unsigned yields = 0; yields < YIELDS || mc_now_ns() - began < limit; yields++) {
    if (mc_has_come(c, local)) return true;
    sched_yield();
  }
  return false;
}

/* The count of sleepers and the flag are read and written in one order by all: see mc_publish. */
void mc_sleep_until_come(struct mc_comm *c, uint32_t local, uint64_t for_ns) {
  struct mc_rank_block *block = mc_block(c, local);
  __atomic_fetch_add(&c->stats.sleeps, 1, __ATOMIC_RELAXED);
  atomic_fetch_add_explicit(&block->sleepers, 1, memory_order_seq_cst);
  MC_FAULT_POINT(wait_counted);
  uint32_t seen = atomic_load_explicit(&block->flag, memory_order_seq_cst);
  if ((int32_t)(seen - c->epoch) < 0) mc_futex_sleep(&block->flag, seen, for_ns);
  atomic_fetch_sub_explicit(&block->sleepers, 1, memory_order_seq_cst);
}

/* The slow half of a wait: returns the code; how long it took is the straggler's. */
static int wait_for(struct mc_comm *c, uint32_t local) {
  uint64_t began = mc_now_ns();
  int code = MC_OK;
  bool has_come = spin(c, local, began);
  while (!has_come && !code) {
    uint64_t now = mc_now_ns(), left = c->deadline_ns > now ? c->deadline_ns - now : 1000;
    mc_sleep_until_come(c, local, left < LOOK_NS ? left : LOOK_NS);
    has_come = mc_has_come(c, local);
    if (!has_come) code = mc_look(c);
  }
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
  uint32_t parity = c->epoch & 1;
  uint64_t mine = mc_block(c, c->local)->fingerprint[parity], waited = c->waited_ns;
  uint32_t last = c->local;
  for (uint32_t step = 1; step < c->locals; step++) {
    uint32_t local = c->local + step < c->locals ? c->local + step : c->local + step - c->locals;
    struct mc_rank_block *block = mc_block(c, local);
    if (!mc_has_come(c, local)) {
      int code = wait_for(c, local);
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
