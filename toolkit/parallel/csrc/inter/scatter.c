/* Between nodes: reduce-scatter and scatter.
 *
 * Reduce-scatter: the node sums every rank's block (local rank i those it speaks for), sends it to its
 * rank, and that one sums what the nodes have sent it. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define LEAST_MESSAGE 65536u
#define TOGETHER_BYTES 4096u /* scatter: blocks up to this go through the leaders */

struct job {
  struct mc_rail_plan plan; /* its step: room for a piece as it travels */
  size_t size, bytes, piece; /* of a block */
  uint32_t pieces, blocks, *ranks;
  uint8_t *sums, *received, *packed;
};

static size_t length_of(const struct job *job, uint32_t k) { return mc_less(job->bytes - k * job->piece, job->piece); }
static uint8_t *sums_of(const struct job *job, uint32_t k) { return job->sums + (k & 1) * (size_t)job->blocks * job->piece; }

/* The sum of block `which`, as it travels. */
static const uint8_t *wire_form(const struct job *job, uint32_t k, uint32_t which) {
  size_t length = length_of(job, k);
  uint8_t *sum = sums_of(job, k) + which * length;
  if (job->plan.wire == MC_WIRE_SAME) return sum;
  uint8_t *packed = job->packed + ((k & 1) * (size_t)job->blocks + which) * job->plan.step;
  mc_pack(job->plan.wire, packed, (const float *)(const void *)sum, length / job->size);
  return packed;
}

static int begin(struct mc_comm *c, const struct job *job, uint32_t k) {
  size_t length = length_of(job, k), travels = mc_rail_bytes(&job->plan, length / job->size);
  int code = mc_inter_await_sent(c, k & 1, MC_INTER_ALL);
  if (code) return code;
  const struct mc_strided *strided = mc_inter_strided(c, 1, c->nodes + 1, job->bytes, k * job->piece, length);
  if (!strided) return mc_check(c);
  code = mc_local_reduce_streams(c, mc_inter_epoch, c->call.in, sums_of(job, k), strided, job->plan.dtype,
                                 mc_phase_op(job->plan.op));
  for (uint32_t distance = 1; distance < c->nodes && !code; distance++) {
    uint32_t node = mc_inter_node(c, distance);
    uint8_t *place = job->received + ((k & 1) * (size_t)c->nodes + node) * job->plan.step;
    code = mc_inter_recv(c, k & 1, mc_inter_owner(c, node, c->local), place, travels);
  }
  for (uint32_t i = 0; i + 1 < job->blocks && !code; i++) /* the last is this rank's own */
    code = mc_inter_send(c, k & 1, job->ranks[i], wire_form(job, k, i), travels);
  if (!code) code = mc_inter_progress(c);
  MC_FAULT_POINT(sums_sent);
  return code;
}

static int end(struct mc_comm *c, const struct job *job, uint32_t k) {
  size_t length = length_of(job, k);
  int code = mc_inter_await_received(c, k & 1, MC_INTER_ALL);
  MC_FAULT_POINT(sums_arrived);
  const uint8_t *own = sums_of(job, k) + (job->blocks - 1) * length;
  const uint8_t *received = job->received + (k & 1) * (size_t)c->nodes * job->plan.step;
  uint8_t *out = (uint8_t *)c->call.out + k * job->piece;
  return code ? code : mc_rail_sum(c, &job->plan, out, own, received, job->plan.step, length / job->size);
}

static int make_room(struct mc_comm *c, struct job *job) {
  bool packs = job->plan.wire != MC_WIRE_SAME;
  job->ranks = mc_inter_scratch(c, MC_SCRATCH_LISTS, c->size * sizeof *job->ranks);
  if (!job->ranks) return mc_check(c);
  job->blocks = mc_inter_owned(c, c->local, 1, c->nodes + 1, job->ranks);
  job->plan.step = mc_rail_bytes(&job->plan, job->piece / job->size) / 64 * 64 + 64;
  job->sums = mc_inter_scratch(c, MC_SCRATCH_SUM, 2 * (size_t)job->blocks * job->piece);
  job->received = mc_inter_scratch(c, MC_SCRATCH_RECEIVED, 2 * (size_t)c->nodes * job->plan.step);
  if (!job->sums || !job->received) return mc_check(c);
  if (!packs) return MC_OK;
  job->packed = mc_inter_scratch(c, MC_SCRATCH_SENT, 2 * (size_t)job->blocks * job->plan.step);
  return job->packed ? MC_OK : mc_check(c);
}

int mc_nodes_reduce_scatter(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  struct job job = {.size = mc_dtype_bytes(call->dtype), .plan = mc_rail_plan_of(c, -1)};
  job.bytes = call->count * job.size;
  if (mc_nodes_small(c, job.bytes * c->size)) return mc_leaders_reduce_scatter(c);
  job.piece = mc_inter_piece(c, job.bytes, mc_inter_segment(c) / c->size, mc_less(mc_inter_segment(c), LEAST_MESSAGE));
  job.pieces = (uint32_t)((job.bytes + job.piece - 1) / job.piece);
  int code = make_room(c, &job);
  for (uint32_t step = 0; step <= job.pieces && !code; step++) { /* the node sums a piece while the last one travels */
    if (step < job.pieces) code = begin(c, &job, step);
    if (!code && step) code = end(c, &job, step - 1);
  }
  return code;
}

/* --- scatter: the way of gather, backwards */

static int scatter_together(struct mc_comm *c, size_t bytes) {
  const struct mc_call *call = &c->call;
  uint32_t speaker = c->local_of[call->root] % c->locals;
  bool root = call->root == c->rank;
  uint8_t *ordered = mc_inter_scratch(c, MC_SCRATCH_SUM, c->size * bytes), *mine = ordered + c->first_of[c->node] * bytes;
  if (!ordered) return mc_check(c);
  int code = MC_OK;
  for (uint32_t i = 0; root && i < c->size; i++) mc_copy(ordered + i * bytes, mc_call_block(c, call->in, c->members[i], bytes), bytes);
  for (uint32_t distance = 1; root && distance < c->nodes && !code; distance++) {
    uint32_t node = mc_inter_node(c, distance);
    code = mc_inter_send(c, 0, mc_inter_owner(c, node, c->local), ordered + c->first_of[node] * bytes,
                       mc_inter_locals(c, node) * bytes);
  }
  if (!code) code = mc_inter_progress(c);
  MC_FAULT_POINT(scatter_nodes_sent);
  if (!code && c->node_of[call->root] != c->node && c->local == speaker) {
    code = mc_inter_recv(c, 0, call->root, mine, c->locals * bytes);
    if (!code) code = mc_inter_await_received(c, 0, MC_INTER_ALL);
    MC_FAULT_POINT(scatter_node_arrived);
  }
  if (!code) code = mc_local_scatter(c, mine, NULL, call->out, bytes, speaker);
  c->path = MC_PATH_LEADERS;
  return code;
}

int mc_nodes_scatter(struct mc_comm *c) {
  size_t bytes = c->call.count * mc_dtype_bytes(c->call.dtype);
  return bytes <= TOGETHER_BYTES ? scatter_together(c, bytes) : mc_nodes_apart(c, bytes, false);
}
