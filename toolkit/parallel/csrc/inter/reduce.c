/* Between nodes: all-reduce and reduce of large vectors, over all rails, in pieces.
 *
 * A piece is summed within the node (local rank i has part i), over nodes by the rails in steps, and handed
 * out in the node. These three overlap: while the wire has one piece, the node works on the next. Every rank
 * posts the messages of all pieces in the same order: in each turn a new piece begins, if less than
 * MC_INTER_SLOTS are under way, and then each of the others makes a step, the newest first. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define LEAST_MESSAGE 65536u

struct job {
  struct mc_rail_plan plan;
  const uint8_t *in;
  uint8_t *out, *scratch; /* out: where this rank takes the result, else pieces are summed in scratch */
  size_t size, piece;
  uint32_t pieces;
  bool on_rail;
  bool sends_input; /* a rank alone in its node whose result is another's: pieces are not copied to be summed */
  struct mc_rail rails[MC_INTER_SLOTS];
};

struct strided {
  struct mc_span spans[MC_LOCALS];
  struct mc_strided of[MC_LOCALS];
};

/* Of piece k; the last is shorter. */
static void fill_streams(const struct mc_comm *c, const struct job *job, uint32_t k, struct strided *strided) {
  size_t count = mc_less(c->call.count - k * job->piece, job->piece);
  for (uint32_t local = 0; local < c->locals; local++) {
    struct mc_span part = {0, 0};
    if (local < c->inter->rails) part = mc_part(count, job->size, c->inter->rails, local);
    strided->spans[local] = (struct mc_span){part.begin * job->size, part.count * job->size};
    strided->of[local] = (struct mc_strided){&strided->spans[local], 1};
  }
}

static uint8_t *base_of(const struct job *job, uint32_t k) {
  if (job->out) return job->out + k * job->piece * job->size;
  return job->scratch + k % MC_INTER_SLOTS * job->piece * job->size;
}

/* Ranks without a rail count with the others. */
static int step(struct mc_comm *c, struct job *job, uint32_t k) {
  struct mc_rail *rail = &job->rails[k % MC_INTER_SLOTS];
  if (job->on_rail) return mc_rail_step(c, &job->plan, rail);
  rail->step++;
  return MC_OK;
}

static int begin(struct mc_comm *c, struct job *job, uint32_t k) {
  struct strided strided;
  fill_streams(c, job, k, &strided);
  struct mc_span mine = strided.spans[c->local];
  const uint8_t *in = job->in + k * job->piece * job->size;
  uint8_t *data = job->sends_input ? (uint8_t *)(uintptr_t)in : base_of(job, k) + mine.begin;
  /* in the scratch lies the piece before this one in the slot, of which messages may wait still */
  int code = job->on_rail && !job->out ? mc_inter_await_sent(c, k % MC_INTER_SLOTS, MC_INTER_ALL) : MC_OK;
  if (code) return code;
  code = mc_local_reduce_streams(c, mc_inter_epoch, in, data, strided.of, job->plan.dtype, mc_phase_op(job->plan.op));
  MC_FAULT_POINT(segment_reduced);
  if (code) return code;
  struct mc_rail *rail = &job->rails[k % MC_INTER_SLOTS];
  *rail = (struct mc_rail){.data = data, .count = mine.count / job->size, .slot = k % MC_INTER_SLOTS};
  if (job->sends_input) rail->sum = base_of(job, k);
  return step(c, job, k);
}

static int end(struct mc_comm *c, struct job *job, uint32_t k) {
  MC_FAULT_POINT(segment_arrived);
  bool rooted = job->plan.root >= 0;
  if (rooted && job->plan.root != (int)c->node) return MC_OK;
  struct strided strided;
  fill_streams(c, job, k, &strided);
  return mc_local_gather_streams(c, mc_inter_epoch, base_of(job, k), strided.of, rooted ? (int)c->local_of[c->call.root] : -1);
}

static int over_rails(struct mc_comm *c, struct job *job) {
  const uint32_t steps = mc_rail_steps(c, &job->plan);
  int code = MC_OK;
  for (uint32_t begun = 0, ended = 0; ended < job->pieces && !code;) {
    uint32_t others = begun;
    if (begun < job->pieces && begun - ended < MC_INTER_SLOTS) code = begin(c, job, begun++);
    for (uint32_t k = others; k > ended && !code; k--) code = step(c, job, k - 1);
    if (!code && job->rails[ended % MC_INTER_SLOTS].step == steps) code = end(c, job, ended++);
  }
  return code;
}

static int large(struct mc_comm *c, int root) {
  const struct mc_call *call = &c->call;
  bool is_receiver = root < 0 || root == (int)c->rank;
  struct job job = {
      .plan = mc_rail_plan_of(c, root), .in = call->in, .out = is_receiver ? call->out : NULL, .size = mc_dtype_bytes(call->dtype),
      .on_rail = c->local < c->inter->rails};
  job.sends_input = !is_receiver && c->locals == 1 && !job.plan.rounds; /* which sum in place */
  /* Four pieces at least where that leaves messages of some size; a piece is at most the tuning's. */
  size_t bytes = call->count * job.size;
  size_t messages = job.plan.rounds ? (MC_RADIX - 1) * mc_inter_rounds(c) : c->nodes; /* that carry the piece once */
  size_t least = mc_less((size_t)LEAST_MESSAGE * c->inter->rails * messages, 8 * mc_inter_segment(c));
  job.piece = mc_inter_piece(c, bytes, bytes / 4, least) / job.size;
  job.pieces = (uint32_t)((call->count + job.piece - 1) / job.piece);
  if (!is_receiver) job.scratch = mc_inter_scratch(c, MC_SCRATCH_SUM, MC_INTER_SLOTS * job.piece * job.size);
  if (!is_receiver && !job.scratch) return mc_check(c);
  int code = job.on_rail ? mc_rail_room(c, &job.plan, mc_rail_longest(job.piece, job.size, c->inter->rails)) : MC_OK;
  return code ? code : over_rails(c, &job);
}

int mc_nodes_reduce(struct mc_comm *c, int root) {
  size_t bytes = c->call.count * mc_dtype_bytes(c->call.dtype);
  return mc_nodes_small(c, bytes) ? mc_leaders_reduce(c, root) : large(c, root);
}
