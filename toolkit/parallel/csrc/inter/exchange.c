/* Between nodes: small blocks of every node to every node.
 *
 * In rounds that multiply what each has by a radix: from that many nodes at equal distances a node gets what each
 * has by then. Few nodes or much data: the radix is the number of nodes, and everybody sends to everybody,
 * one way long. Many nodes and little data: MC_RADIX, so that a rank has few messages to send and
 * few ways to wait for. All end with the same blocks and sum them in the same order. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define ROUNDS_BYTES 32768u

int mc_phase_round(struct mc_comm *c, uint32_t slot, uint32_t local, void *all, const size_t *offsets, uint32_t have, uint32_t radix) {
  uint8_t *blocks = all;
  for (uint32_t i = 1; i < radix && i * have < c->nodes; i++) {
    const uint32_t from = mc_inter_node(c, i * have), to = mc_inter_node(c, c->nodes - i * have);
    const uint32_t count = mc_inter_blocks(c, have, i);
    struct mc_span mine[2], theirs[2];
    mc_inter_cut(c, offsets, c->node, count, mine);
    mc_inter_cut(c, offsets, from, count, theirs);
    for (unsigned k = 0; k < 2; k++) {
      int code = mc_inter_recv(c, slot, mc_inter_owner(c, from, local), blocks + theirs[k].begin, theirs[k].count);
      if (!code) code = mc_inter_send(c, slot, mc_inter_owner(c, to, local), blocks + mine[k].begin, mine[k].count);
      if (code) return code;
    }
    MC_FAULT_POINT(exchange_posted);
  }
  return MC_OK;
}

int mc_phase_exchange(struct mc_comm *c, uint32_t local, void *all, const size_t *offsets) {
  const bool many = c->nodes > MC_MESH_NODES && offsets[c->nodes] <= ROUNDS_BYTES;
  const uint32_t radix = many ? MC_RADIX : c->nodes;
  for (uint32_t have = 1; have < c->nodes; have *= radix) {
    int code = mc_phase_round(c, 0, local, all, offsets, have, radix);
    if (!code) code = mc_inter_await_received(c, 0, MC_INTER_ALL);
    MC_FAULT_POINT(exchange_received);
    if (code) return code;
  }
  return mc_inter_await_sent(c, 0, MC_INTER_ALL);
}

int mc_phase_collect(struct mc_comm *c, uint32_t local, void *all, const size_t *offsets) {
  uint8_t *blocks = all;
  size_t own = offsets[c->node];
  if (c->node_of[c->call.root] != c->node) return mc_inter_send(c, 0, c->call.root, blocks + own, offsets[c->node + 1] - own);
  for (uint32_t distance = 1; distance < c->nodes; distance++) {
    uint32_t node = mc_inter_node(c, distance);
    int code = mc_inter_recv(c, 0, mc_inter_owner(c, node, local), blocks + offsets[node], offsets[node + 1] - offsets[node]);
    if (code) return code;
  }
  return mc_inter_await_received(c, 0, MC_INTER_ALL);
}

size_t *mc_phase_borders(struct mc_comm *c, size_t bytes, bool by_ranks) {
  size_t *borders = mc_inter_scratch(c, MC_SCRATCH_LISTS, (c->nodes + 1) * sizeof *borders);
  for (uint32_t node = 0; borders && node <= c->nodes; node++) borders[node] = (by_ranks ? c->first_of[node] : node) * bytes;
  return borders;
}
