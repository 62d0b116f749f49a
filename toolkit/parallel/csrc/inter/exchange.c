/* Between nodes: small blocks of every node to every node.
 *
 * Few nodes or much data: everybody sends to everybody, one way long. Many nodes and little data: in
 * epochs that double what each has, so that a rank sends log2(nodes) messages and not nodes - 1. Either
 * way all end with the same blocks and sum them in the same order. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define MESH_NODES 4u
#define DOUBLING_BYTES 32768u

static int mesh(struct mc_comm *c, uint32_t local, uint8_t *all, const size_t *offsets) {
  uint32_t self = c->node;
  for (uint32_t distance = 1; distance < c->nodes; distance++) {
    uint32_t to = mc_inter_node(c, distance), from = mc_inter_node(c, c->nodes - distance);
    int code = mc_inter_recv(c, 0, mc_inter_owner(c, from, local), all + offsets[from], offsets[from + 1] - offsets[from]);
    if (!code) code = mc_inter_send(c, 0, mc_inter_owner(c, to, local), all + offsets[self], offsets[self + 1] - offsets[self]);
    if (code) return code;
    MC_FAULT_POINT(mesh_posted);
  }
  int code = mc_inter_await_received(c, 0, MC_INTER_ALL);
  MC_FAULT_POINT(mesh_received);
  return code ? code : mc_inter_await_sent(c, 0, MC_INTER_ALL);
}

/* Blocks `first` to `first` + count - 1, round the end of the row, as one message or two. */
static void cut(const struct mc_comm *c, const size_t *offsets, uint32_t first, uint32_t count, struct mc_span pieces[2]) {
  uint32_t straight = first + count > c->nodes ? c->nodes - first : count, rest = count - straight;
  pieces[0] = (struct mc_span){offsets[first], offsets[first + straight] - offsets[first]};
  pieces[1] = (struct mc_span){offsets[0], offsets[rest] - offsets[0]};
}

static int doubling(struct mc_comm *c, uint32_t local, uint8_t *all, const size_t *offsets) {
  for (uint32_t have = 1; have < c->nodes; have *= 2) {
    uint32_t count = have < c->nodes - have ? have : c->nodes - have;
    uint32_t from = mc_inter_node(c, have), to = mc_inter_node(c, c->nodes - have);
    struct mc_span mine[2], theirs[2];
    cut(c, offsets, c->node, count, mine);
    cut(c, offsets, from, count, theirs);
    for (unsigned i = 0; i < 2; i++) {
      int code = mc_inter_recv(c, 0, mc_inter_owner(c, from, local), all + theirs[i].begin, theirs[i].count);
      if (!code) code = mc_inter_send(c, 0, mc_inter_owner(c, to, local), all + mine[i].begin, mine[i].count);
      if (code) return code;
    }
    MC_FAULT_POINT(doubling_posted);
    int code = mc_inter_await_received(c, 0, MC_INTER_ALL);
    if (code) return code;
    MC_FAULT_POINT(doubling_received);
  }
  return mc_inter_await_sent(c, 0, MC_INTER_ALL);
}

int mc_phase_exchange(struct mc_comm *c, uint32_t local, void *all, const size_t *offsets) {
  bool doubles = c->nodes > MESH_NODES && offsets[c->nodes] <= DOUBLING_BYTES;
  return doubles ? doubling(c, local, all, offsets) : mesh(c, local, all, offsets);
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
