/* Waiting for other nodes: moves messages, and makes what the transport finds wrong the group's failure. */
#include "inter/phases.h"

#define SLICE_NS 50000000u        /* no wait sleeps longer than this without looking up */
#define UNASKED_NS 1000000000u    /* time for another rank to report why a rank of this node died */
#define GRACE_NS 1000000000u      /* beyond the deadline: time for the late node to report */

static int step(struct mc_comm *c, uint64_t wait_ns, bool *moved) {
  struct mc_failure loss;
  int code = mc_check(c);
  if (code == MC_OK && mc_net_step(c, wait_ns, moved, &loss)) code = mc_fail_loss(c, &loss);
  return code;
}

int mc_inter_progress(struct mc_comm *c) {
  bool moved;
  if (mc_net_idle(c)) return mc_check(c); /* asked often: control messages are read by mc_net_look */
  return step(c, 0, &moved);
}

/* Ranks of this node have their part in the call as well. One that has ended without a goodbye may have done
 * it: that becomes a failure only if no other one is reported within a second. */
static int check_locals(struct mc_comm *c, uint64_t now) {
  struct mc_inter *inter = c->inter;
  if (now - inter->alive_ns < SLICE_NS) return MC_OK;
  inter->alive_ns = now;
  for (uint32_t i = 0; i < c->locals; i++) {
    if (i == c->local || atomic_load(&mc_block(c, i)->state) == 2 || mc_local_alive(c, i)) continue;
    if (!inter->dead_ns) inter->dead_ns = now;
    if (now - inter->dead_ns < UNASKED_NS) return MC_OK;
    return mc_fail(c, MC_EPEER, 0, (int)mc_rank_of(c, i), NULL, NULL);
  }
  return MC_OK;
}

static bool is_done(struct mc_comm *c, uint64_t ticket) { return ticket ? mc_net_done(c, ticket) : mc_net_idle(c); }

/* Signals, deaths, control messages and the deadline are looked at also while data moves: a slow link moves it for long. */
int mc_inter_wait(struct mc_comm *c, uint64_t ticket) {
  const uint64_t start = mc_now_ns();
  const uint64_t spin = c->tuning.spin_s > 0 ? (uint64_t)(c->tuning.spin_s * 1e9) : 0;
  uint64_t last = start, now = start;
  int code = MC_OK;
  while (code == MC_OK && !is_done(c, ticket)) {
    bool moved = false;
    code = step(c, now - last < spin ? 0 : SLICE_NS, &moved);
    now = mc_now_ns();
    if (moved) last = now;
    if (code == MC_OK) code = mc_check_signals(c);
    if (code == MC_OK) code = check_locals(c, now);
    if (code == MC_OK) mc_net_heartbeat(c, NULL);
    if (code == MC_OK && c->deadline_ns && now > c->deadline_ns + GRACE_NS && !is_done(c, ticket)) {
      struct mc_failure loss;
      mc_net_late(c, &loss);
      code = mc_fail_loss(c, &loss);
    }
  }
  const uint64_t took = mc_now_ns() - start;
  c->waited_ns += took;
  c->remote_wait_ns += took;
  return code;
}
