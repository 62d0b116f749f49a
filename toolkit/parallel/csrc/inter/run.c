/* Between nodes: which verb, and the barrier. */
#include "inter/phases.h"
#include "group/fault_point.h"

bool mc_nodes_small(const struct mc_comm *c, size_t bytes) { return bytes <= c->tuning.leader_bytes; }

/* All of a node have come before its leader says so to others, and go when it has heard from all. */
static int barrier(struct mc_comm *c) {
  uint8_t *words = mc_inter_scratch(c, MC_SCRATCH_SUM, c->nodes);
  size_t *borders = mc_phase_borders(c, 1, false);
  if (!words || !borders) return mc_check(c);
  words[c->node] = 0;
  c->path = MC_PATH_LEADERS;
  int code = mc_epoch(c);
  MC_FAULT_POINT(barrier_node_in);
  if (!code && c->local == 0) code = mc_phase_exchange(c, 0, words, borders);
  MC_FAULT_POINT(barrier_nodes_in);
  return code ? code : mc_epoch(c);
}

int mc_nodes_run(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  int code = mc_inter_open(c);
  if (code) return code;
  c->path = MC_PATH_RAILS;
  if (!call->count && !call->in_counts && call->verb != MC_BARRIER) return mc_epoch(c);
  switch (call->verb) {
    case MC_BARRIER: code = barrier(c); break;
    case MC_ALL_REDUCE: code = mc_nodes_reduce(c, -1); break;
    case MC_REDUCE: code = mc_nodes_reduce(c, (int)call->root); break;
    case MC_BROADCAST: code = mc_nodes_broadcast(c); break;
    case MC_ALL_GATHER: code = mc_nodes_all_gather(c); break;
    case MC_REDUCE_SCATTER: code = mc_nodes_reduce_scatter(c); break;
    case MC_GATHER: code = mc_nodes_gather(c); break;
    case MC_SCATTER: code = mc_nodes_scatter(c); break;
    default: code = mc_nodes_all_to_all(c); /* MC_ALL_TO_ALL: there is no other */
  }
  return code ? code : mc_inter_wait(c, 0); /* what was sent may still be in the caller's memory */
}
