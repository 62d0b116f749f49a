/* Between nodes: the parts of a piece are summed in rounds.
 *
 * They are the rounds of an exchange (inter/exchange.c) backwards: where a node would get the parts of some nodes from
 * another one, it sends that one its sums of them. Any number of nodes M takes log4(M) rounds, rounded up, and M - 1
 * parts leave each node: no part twice. Each part is summed by one node, in a tree that only M shapes, so all have
 * the same bits; they may differ from those of a sum in the order of the nodes. */
#include "inter/phases.h"
#include "group/fault_point.h"

static uint32_t have_in(const struct mc_comm *c, uint32_t round) { return mc_inter_have(mc_inter_rounds(c) - 1 - round); }

/* The parts that the i-th node of a round sends this one, and how many bytes they are. */
static size_t cut_mine(const struct mc_comm *c, const struct mc_rail *rail, uint32_t have, uint32_t i, struct mc_span mine[2]) {
  mc_inter_cut(c, rail->borders, c->node, mc_inter_blocks(c, have, i), mine);
  return mine[0].count + mine[1].count;
}

/* What nodes have sent lies in their order in the room for it. The last one may have sent less than the others. */
static void sum(const struct mc_comm *c, const struct mc_rail_plan *plan, const struct mc_rail *rail, uint32_t round) {
  const uint32_t have = have_in(c, round);
  const uint8_t *received = rail->received;
  for (uint32_t i = 1; i < MC_RADIX && i * have < c->nodes; i++) {
    const bool ends = have == 1 && (i + 1 == MC_RADIX || i + 1 == c->nodes); /* an average is divided in the last sum */
    mc_reduce_fn *reduce = mc_reducer(plan->dtype, ends ? plan->op : mc_phase_op(plan->op));
    struct mc_span mine[2];
    cut_mine(c, rail, have, i, mine);
    for (unsigned k = 0; k < 2; received += mine[k++].count) {
      uint8_t *to = rail->data + mine[k].begin;
      if (mine[k].count) reduce(to, NULL, (const void *[]){to, received}, 2, mine[k].count / mc_dtype_bytes(plan->dtype), mc_divisor(c));
    }
  }
}

int mc_rail_round(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail, uint32_t round) {
  int code = mc_inter_await_received(c, rail->slot, MC_INTER_ALL);
  if (code) return code;
  if (round) sum(c, plan, rail, round - 1);
  MC_FAULT_POINT(round_summed);
  if (round == mc_inter_rounds(c)) return MC_OK;
  const uint32_t have = have_in(c, round);
  uint8_t *received = rail->received;
  for (uint32_t i = 1; i < MC_RADIX && i * have < c->nodes; i++) {
    const uint32_t to = mc_inter_node(c, i * have), from = mc_inter_node(c, c->nodes - i * have);
    struct mc_span mine[2], theirs[2];
    cut_mine(c, rail, have, i, mine);
    mc_inter_cut(c, rail->borders, to, mc_inter_blocks(c, have, i), theirs);
    for (unsigned k = 0; k < 2 && !code; received += mine[k++].count) {
      code = mc_inter_recv(c, rail->slot, mc_inter_owner(c, from, plan->local), received, mine[k].count);
      if (!code) code = mc_inter_send(c, rail->slot, mc_inter_owner(c, to, plan->local), rail->data + theirs[k].begin, theirs[k].count);
    }
    if (code) return code;
    MC_FAULT_POINT(round_posted);
  }
  return mc_inter_progress(c);
}
