/* Between nodes: an epoch of the node while messages are under way.
 *
 * A rank that only waited for its node would not move its messages meanwhile, and so could wait for
 * itself: for a rank that waits for a rank of another node that waits for this one's message. So the
 * wait for the node is cut in slices, and between them the net is moved on. */
#include <sched.h>
#include "inter/phases.h"

#define SLICE_NS 200000u  /* what the sockets' buffers bridge */
#define LOOK_NS 50000000u /* deaths, errors, deadlines */
#define YIELDS 20u

static bool under_way(const struct mc_comm *c) {
  for (uint32_t slot = 0; slot < MC_INTER_SLOTS; slot++) {
    const struct mc_posts *sends = &c->inter->sends[slot], *receives = &c->inter->receives[slot];
    if (sends->first < sends->count || receives->first < receives->count) return true;
  }
  return false;
}

/* The next rank, after `local` round the node, that has not come; this rank itself: all have. */
static uint32_t next_missing(const struct mc_comm *c, uint32_t local) {
  for (; local != c->local; local = (local + 1) % c->locals)
    if (!mc_has_come(c, local)) break;
  return local;
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
    else mc_sleep_until_come(c, local, SLICE_NS);
    if (mc_now_ns() - looked < LOOK_NS) continue;
    looked = mc_now_ns();
    code = mc_look(c);
  }
  uint64_t took = mc_now_ns() - began;
  c->waited_ns += took;
  c->peer_wait_ns[mc_rank_of(c, last)] += took;
  return code;
}

int mc_inter_epoch(struct mc_comm *c) {
  int code = mc_inter_progress(c);
  if (code) return code;
  if (c->locals == 1 || !under_way(c)) return mc_epoch(c);
  mc_publish(c);
  uint32_t first = next_missing(c, (c->local + 1) % c->locals);
  if (first != c->local) code = wait_for_all(c, first);
  return code ? code : mc_await(c);
}
