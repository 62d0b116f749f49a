/* Between nodes: a piece is summed in two phases. Its vector has a part for every node. First every node
 * gets the sum of its own part, then all get it from there. That is 2 (M - 1) / M of the piece in and out of
 * a node, the least there is.
 *
 * Few nodes send each other node that one's part at once, and their sums: two messages' time, 2 (M - 1)
 * messages. Many do it in rounds (inter/rounds.c): 2 log4(M) messages' time, and three times as many messages.
 *
 * Compressed (fp32 sums only): one rounding in each phase. The owner of a part keeps the rounded sum that
 * it sends, so that all ranks have the same bits. */
#include "inter/phases.h"
#include "group/fault_point.h"

static size_t slots_bytes(const struct mc_comm *c, const struct mc_rail_plan *plan) { return MC_INTER_SLOTS * (size_t)c->nodes * plan->step; }

static size_t slots_borders(const struct mc_comm *c) { return MC_INTER_SLOTS * ((size_t)c->nodes + 1); }

int mc_rail_room(struct mc_comm *c, struct mc_rail_plan *plan, size_t count) {
  plan->step = mc_rail_bytes(plan, mc_rail_longest(count, mc_dtype_bytes(plan->dtype), c->nodes)) / 64 * 64 + 64;
  if (!mc_inter_scratch(c, MC_SCRATCH_RECEIVED, slots_bytes(c, plan))) return mc_check(c);
  if (plan->rounds && !mc_inter_scratch(c, MC_SCRATCH_LISTS, slots_borders(c) * sizeof(size_t))) return mc_check(c);
  if (plan->wire != MC_WIRE_SAME && !mc_inter_scratch(c, MC_SCRATCH_SENT, slots_bytes(c, plan))) return mc_check(c);
  return MC_OK;
}

/* The room of a piece's slot. */
static uint8_t *room_of(struct mc_comm *c, const struct mc_rail_plan *plan, const struct mc_rail *rail, enum mc_scratch which) {
  return (uint8_t *)c->inter->scratch[which].at + rail->slot * (size_t)c->nodes * plan->step;
}

static struct mc_span part_of(const struct mc_comm *c, const struct mc_rail_plan *plan, const struct mc_rail *rail, uint32_t node) {
  return mc_part(rail->count, mc_dtype_bytes(plan->dtype), c->nodes, node);
}

static uint8_t *at(const struct mc_rail_plan *plan, const struct mc_rail *rail, size_t element) {
  return rail->data + element * mc_dtype_bytes(plan->dtype);
}

static uint8_t *sum_of(struct mc_comm *c, const struct mc_rail_plan *plan, const struct mc_rail *rail) {
  return rail->sum ? rail->sum : at(plan, rail, part_of(c, plan, rail, c->node).begin);
}

/* A node's part, which is at `from`, as it goes over the wire; packed ones lie at the place of their node. */
static const uint8_t *wire_form(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail, uint32_t node,
                                const uint8_t *from) {
  if (plan->wire == MC_WIRE_SAME) return from;
  uint8_t *packed = rail->sent + node * plan->step;
  mc_pack(plan->wire, packed, (const float *)(const void *)from, part_of(c, plan, rail, node).count);
  return packed;
}

static int rs_start(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail) {
  size_t own = mc_rail_bytes(plan, part_of(c, plan, rail, c->node).count);
  int code = MC_OK;
  for (uint32_t distance = 1; distance < c->nodes && !code; distance++) {
    uint32_t to = mc_inter_node(c, distance), from = mc_inter_node(c, c->nodes - distance);
    code = mc_inter_recv(c, rail->slot, mc_inter_owner(c, from, plan->local), rail->received + from * plan->step, own);
    if (code) return code;
    struct mc_span part = part_of(c, plan, rail, to);
    code = mc_inter_send(c, rail->slot, mc_inter_owner(c, to, plan->local),
                         wire_form(c, plan, rail, to, at(plan, rail, part.begin)), mc_rail_bytes(plan, part.count));
  }
  MC_FAULT_POINT(rail_rs_started);
  return code ? code : mc_inter_progress(c);
}

/* Where the sum of another node's part is received. */
static uint8_t *arrival(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail, uint32_t node) {
  if (plan->wire != MC_WIRE_SAME) return rail->received + node * plan->step;
  return at(plan, rail, part_of(c, plan, rail, node).begin);
}

/* The sum of the own part to all, or to the root. */
static int ag_start(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail) {
  struct mc_span own = part_of(c, plan, rail, c->node);
  uint8_t *sum = sum_of(c, plan, rail);
  const uint8_t *form = wire_form(c, plan, rail, c->node, sum);
  if (plan->wire != MC_WIRE_SAME) mc_unpack(plan->wire, (float *)(void *)sum, form, own.count);
  int code = MC_OK;
  for (uint32_t distance = 1; distance < c->nodes && !code; distance++) {
    uint32_t to = mc_inter_node(c, distance), from = mc_inter_node(c, c->nodes - distance);
    if (plan->root < 0 || plan->root == (int)c->node)
      code = mc_inter_recv(c, rail->slot, mc_inter_owner(c, from, plan->local), arrival(c, plan, rail, from),
                         mc_rail_bytes(plan, part_of(c, plan, rail, from).count));
    if (!code && (plan->root < 0 || plan->root == (int)to))
      code = mc_inter_send(c, rail->slot, mc_inter_owner(c, to, plan->local), form, mc_rail_bytes(plan, own.count));
  }
  MC_FAULT_POINT(rail_ag_started);
  return code ? code : mc_inter_progress(c);
}

static int sum_own(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail) {
  struct mc_span own = part_of(c, plan, rail, c->node);
  int code = mc_inter_await_received(c, rail->slot, MC_INTER_ALL);
  if (!code)
    code = mc_rail_sum(c, plan, sum_of(c, plan, rail), at(plan, rail, own.begin), rail->received, plan->step, own.count);
  MC_FAULT_POINT(rail_summed);
  return code;
}

static int finish(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail) {
  int code = mc_inter_await_received(c, rail->slot, MC_INTER_ALL);
  MC_FAULT_POINT(rail_finished);
  if (code || plan->wire == MC_WIRE_SAME || (plan->root >= 0 && plan->root != (int)c->node)) return code;
  for (uint32_t node = 0; node < c->nodes; node++) {
    struct mc_span part = part_of(c, plan, rail, node);
    if (node != c->node)
      mc_unpack(plan->wire, (float *)(void *)at(plan, rail, part.begin), arrival(c, plan, rail, node), part.count);
  }
  return MC_OK;
}

static int start(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail) {
  rail->received = room_of(c, plan, rail, MC_SCRATCH_RECEIVED);
  rail->sent = plan->wire == MC_WIRE_SAME ? NULL : room_of(c, plan, rail, MC_SCRATCH_SENT);
  if (plan->rounds) {
    const size_t size = mc_dtype_bytes(plan->dtype);
    rail->borders = (size_t *)c->inter->scratch[MC_SCRATCH_LISTS].at + rail->slot * ((size_t)c->nodes + 1);
    for (uint32_t node = 0; node < c->nodes; node++) rail->borders[node] = part_of(c, plan, rail, node).begin * size;
    rail->borders[c->nodes] = rail->count * size;
  }
  return mc_inter_await_sent(c, rail->slot, MC_INTER_ALL); /* the piece before this one in the slot */
}

uint32_t mc_rail_steps(const struct mc_comm *c, const struct mc_rail_plan *plan) {
  const uint32_t rounds = plan->rounds ? mc_inter_rounds(c) : 1;
  return rounds + (plan->root < 0 ? rounds : 1) + 1;
}

int mc_rail_step(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail) {
  const uint32_t step = rail->step++, rounds = plan->rounds ? mc_inter_rounds(c) : 1;
  int code = step ? MC_OK : start(c, plan, rail);
  if (code) return code;
  if (step <= rounds && plan->rounds) code = mc_rail_round(c, plan, rail, step);
  else if (step <= rounds) code = step ? sum_own(c, plan, rail) : rs_start(c, plan, rail);
  if (code || step < rounds) return code;
  if (step + 1 == mc_rail_steps(c, plan)) return finish(c, plan, rail);
  if (!plan->rounds || plan->root >= 0) return ag_start(c, plan, rail);
  code = mc_inter_await_received(c, rail->slot, MC_INTER_ALL);
  if (!code) code = mc_phase_round(c, rail->slot, plan->local, rail->data, rail->borders, mc_inter_have(step - rounds), MC_RADIX);
  return code ? code : mc_inter_progress(c);
}
