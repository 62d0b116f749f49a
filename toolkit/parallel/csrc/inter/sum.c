/* Between nodes: the sum of what nodes have sent, in the order of the nodes. */
#include "inter/phases.h"

#define ROUNDS_NODES 16u /* more sum in rounds whatever the size; more than MC_MESH_NODES do up to: */
#define ROUNDS_SUM_BYTES (1u << 20)
#define BLOCK 2048u /* values unpacked at once; a multiple of MC_I8_BLOCK */

/* 16-bit floats are rounded once in all, and compressed sums once in each phase: not in every round. */
static bool in_rounds(const struct mc_comm *c, uint32_t wire) {
  const uint32_t dtype = c->call.dtype;
  if (wire != MC_WIRE_SAME || dtype == MC_F16 || dtype == MC_BF16) return false;
  return c->nodes > ROUNDS_NODES || (c->nodes > MC_MESH_NODES && c->call.count * mc_dtype_bytes(dtype) <= ROUNDS_SUM_BYTES);
}

struct mc_rail_plan mc_rail_plan_of(const struct mc_comm *c, int root) {
  const struct mc_call *call = &c->call;
  bool packs = call->dtype == MC_F32 && mc_phase_op(call->op) == MC_SUM;
  uint32_t wire = packs ? c->tuning.wire : MC_WIRE_SAME;
  return (struct mc_rail_plan){.dtype = call->dtype, .op = call->op, .wire = wire, .local = c->local,
                               .root = root < 0 ? -1 : (int)c->node_of[root], .rounds = in_rounds(c, wire)};
}

size_t mc_rail_longest(size_t count, size_t element_bytes, uint32_t parts) {
  size_t grain = element_bytes < 64 ? 64 / element_bytes : 1; /* of mc_part: all but the last are rounded up to it */
  return mc_less(count / parts + (grain > parts ? grain : parts), count);
}

size_t mc_rail_bytes(const struct mc_rail_plan *plan, size_t count) {
  return plan->wire == MC_WIRE_SAME ? count * mc_dtype_bytes(plan->dtype) : mc_packed_bytes(plan->wire, count);
}

static int sum_same(struct mc_comm *c, const struct mc_rail_plan *plan, void *out, const void *own, const uint8_t *received,
                    size_t step, size_t count) {
  const void **sources = mc_inter_scratch(c, MC_SCRATCH_SOURCES, c->nodes * sizeof *sources);
  if (!sources) return mc_check(c);
  for (uint32_t node = 0; node < c->nodes; node++) sources[node] = received + node * step;
  sources[c->node] = own;
  mc_reducer(plan->dtype, plan->op)(out, NULL, sources, c->nodes, count, mc_divisor(c));
  return MC_OK;
}

/* A block of all nodes is unpacked at a time, so that it is summed while it is in the cache. */
static int sum_packed(struct mc_comm *c, const struct mc_rail_plan *plan, float *out, const float *own,
                      const uint8_t *received, size_t step, size_t count) {
  const void **sources = mc_inter_scratch(c, MC_SCRATCH_SOURCES, c->nodes * sizeof *sources);
  float *values = mc_inter_scratch(c, MC_SCRATCH_WIRE, (size_t)c->nodes * BLOCK * sizeof *values);
  if (!sources || !values) return mc_check(c);
  mc_reduce_fn *reduce = mc_reducer(MC_F32, plan->op);
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t now = mc_less(count - done, BLOCK);
    for (uint32_t node = 0; node < c->nodes; node++) {
      if (node == c->node) continue;
      float *unpacked = values + (size_t)node * BLOCK;
      mc_unpack(plan->wire, unpacked, received + node * step + mc_packed_bytes(plan->wire, done), now);
      sources[node] = unpacked;
    }
    sources[c->node] = own + done;
    reduce(out + done, NULL, sources, c->nodes, now, mc_divisor(c));
  }
  return MC_OK;
}

int mc_rail_sum(struct mc_comm *c, const struct mc_rail_plan *plan, void *out, const void *own, const uint8_t *received,
                size_t step, size_t count) {
  if (!count) return MC_OK;
  return plan->wire == MC_WIRE_SAME ? sum_same(c, plan, out, own, received, step, count)
                                    : sum_packed(c, plan, out, own, received, step, count);
}
