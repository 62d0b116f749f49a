/* Between nodes: an epoch of the node while messages are under way.
 *
 * A rank that only waited for its node would not move its messages meanwhile, and so could wait for
 * itself: for a rank that waits for a rank of another node that waits for this one's message. So the
 * wait for the node is cut in slices, and between them the net is moved on. */
#include <sched.h>
#include "inter/phases.h"
#include "group/fault_point.h"

#define SLICE_NS 200000u  /* what the sockets' buffers bridge */
#define LOOK_NS 50000000u /* deaths, errors, deadlines */
#define YIELDS 20u

static bool under_way(const struct mc_comm *c) {
  for (uint32_t slot = 0; slot < MC_INTER_SLOTS; slot++) {
    const struct mc_posts *sends = &c->inter->slots[slot].sends, *receives = &c->inter->slots[slot].receives;
    if (sends->first < sends->count || receives->first < receives->count) return true;
  }
  return false;
}

static bool has_come(const struct mc_comm *c, uint32_t local) {
  return (int32_t)(atomic_load_explicit(&mc_block(c, local)->flag, memory_order_acquire) - c->epoch) >= 0;
}

/* The next rank, after `local` round the node, that has not come; this rank itself: all have. */
static uint32_t next_missing(const struct mc_comm *c, uint32_t local) {
  for (; local != c->local; local = (local + 1) % c->locals)
    if (!has_come(c, local)) break;
  return local;
}

/* As group/epoch.c: the count of sleepers and the flag are read and written in one order by all. */
static void sleep_a_slice(struct mc_comm *c, uint32_t local) {
  struct mc_rank_block *block = mc_block(c, local);
  __atomic_fetch_add(&c->stats.sleeps, 1, __ATOMIC_RELAXED);
  atomic_fetch_add_explicit(&block->sleepers, 1, memory_order_seq_cst);
  MC_FAULT_POINT(phase_slept);
  uint32_t seen = atomic_load_explicit(&block->flag, memory_order_seq_cst);
  if ((int32_t)(seen - c->epoch) < 0) mc_futex_sleep(&block->flag, seen, SLICE_NS);
  atomic_fetch_sub_explicit(&block->sleepers, 1, memory_order_seq_cst);
}

static int look(struct mc_comm *c) {
  uint8_t missing[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) missing[local] = !has_come(c, local);
  return mc_look(c, missing);
}

static int wait_for_all(struct mc_comm *c, uint32_t first) {
  uint64_t began = mc_now_ns(), looked = began;
  uint32_t last = first, turns = 0;
  int code = MC_OK;
  for (uint32_t local = first; local != c->local && !code; local = next_missing(c, local)) {
    last = local;
    code = mc_inter_progress(c);
    if (code) break;
    if (turns++ < YIELDS) sched_yield();
    else sleep_a_slice(c, local);
    if (mc_now_ns() - looked < LOOK_NS) continue;
    looked = mc_now_ns();
    code = look(c);
  }
  uint64_t took = mc_now_ns() - began;
  c->waited_ns += took;
  c->peer_wait_ns[mc_rank_of(c, last)] += took;
  return code;
}

int mc_inter_epoch(struct mc_comm *c) {
  if (c->locals == 1 || !under_way(c)) return mc_epoch(c);
  mc_publish(c);
  uint32_t first = next_missing(c, (c->local + 1) % c->locals);
  int code = first != c->local ? wait_for_all(c, first) : MC_OK;
  return code ? code : mc_await(c);
}
