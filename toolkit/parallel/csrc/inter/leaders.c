/* Between nodes, small: the node sums to its leader, leaders talk, the leader tells the node. Few messages. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define ONE_PHASE_BYTES 32768u /* more than the least bytes, if that saves a message's time */

struct job {
  size_t size, bytes;
  uint32_t op, leader;
  bool leads;
  struct mc_rail_plan plan;
};

static struct job job_of(const struct mc_comm *c, size_t count, int root) {
  struct job job = {.size = mc_dtype_bytes(c->call.dtype), .op = mc_phase_op(c->call.op), .plan = mc_rail_plan_of(c, root)};
  job.plan.local = root < 0 ? 0 : c->local_of[root];
  job.bytes = count * job.size, job.leader = job.plan.local % c->locals, job.leads = c->local == job.leader;
  return job;
}

static bool in_one_phase(const struct mc_comm *c, const struct job *job) {
  if (job->plan.wire != MC_WIRE_SAME && job->bytes > ONE_PHASE_BYTES) return false;
  return job->bytes * (c->nodes - 2) <= ONE_PHASE_BYTES;
}

static int one_phase(struct mc_comm *c, const struct job *job) {
  const struct mc_call *call = &c->call;
  uint8_t *all = mc_inter_scratch(c, MC_SCRATCH_RECEIVED, c->nodes * job->bytes);
  size_t *borders = mc_phase_borders(c, job->bytes, false);
  if (!all || !borders) return mc_check(c);
  uint8_t *own = all + c->node * job->bytes;
  int code = mc_local_reduce(c, call->in, own, call->count, call->dtype, job->op, (int)job->leader);
  if (code || !job->leads) return code;
  MC_FAULT_POINT(leaders_summed);
  code = (job->plan.root < 0 ? mc_phase_exchange : mc_phase_collect)(c, job->plan.local, all, borders);
  MC_FAULT_POINT(leaders_collected);
  if (code || (job->plan.root >= 0 && job->plan.root != (int)c->node)) return code;
  struct mc_rail_plan exact = job->plan;
  exact.wire = MC_WIRE_SAME;
  return mc_rail_sum(c, &exact, call->out, own, all, job->bytes, call->count);
}

static int two_phases(struct mc_comm *c, struct job *job) {
  const struct mc_call *call = &c->call;
  bool is_receiver = job->plan.root < 0 || call->root == c->rank;
  struct mc_rail rail = {.data = is_receiver ? call->out : mc_inter_scratch(c, MC_SCRATCH_SUM, job->bytes), .count = call->count};
  if (!rail.data) return mc_check(c);
  int code = mc_local_reduce(c, call->in, rail.data, call->count, call->dtype, job->op, (int)job->leader);
  if (code || !job->leads) return code;
  code = mc_rail_room(c, &job->plan, call->count);
  MC_FAULT_POINT(leaders_halved);
  while (!code && rail.step < mc_rail_steps(c, &job->plan)) code = mc_rail_step(c, &job->plan, &rail);
  MC_FAULT_POINT(leaders_joined);
  return code ? code : mc_inter_await_sent(c, 0, MC_INTER_ALL); /* before the leader waits for its node */
}

int mc_leaders_reduce(struct mc_comm *c, int root) {
  struct job job = job_of(c, c->call.count, root);
  int code = in_one_phase(c, &job) ? one_phase(c, &job) : two_phases(c, &job);
  if (!code && root < 0) code = mc_local_broadcast(c, c->call.out, job.bytes, job.leader);
  c->path = MC_PATH_LEADERS;
  return code;
}

/* The leaders' part: the node's blocks, in the order of `members`, are sent, received and summed. */
static int trade(struct mc_comm *c, const struct job *job, const uint8_t *whole, uint8_t *sum) {
  size_t own = c->locals * job->bytes;
  uint8_t *ordered = mc_inter_scratch(c, MC_SCRATCH_SENT, c->size * job->bytes);
  uint8_t *received = mc_inter_scratch(c, MC_SCRATCH_RECEIVED, c->nodes * own);
  if (!ordered || !received) return mc_check(c);
  for (uint32_t i = 0; i < c->size; i++) mc_copy(ordered + i * job->bytes, whole + c->members[i] * job->bytes, job->bytes);
  for (uint32_t distance = 1; distance < c->nodes; distance++) {
    uint32_t to = mc_inter_node(c, distance), from = mc_inter_node(c, c->nodes - distance);
    int code = mc_inter_recv(c, 0, mc_inter_rank(c, from, 0), received + from * own, own);
    if (!code)
      code = mc_inter_send(c, 0, mc_inter_rank(c, to, 0), ordered + c->first_of[to] * job->bytes,
                         mc_inter_locals(c, to) * job->bytes);
    if (code) return code;
  }
  MC_FAULT_POINT(leaders_scatter_posted);
  int code = mc_inter_await_received(c, 0, MC_INTER_ALL);
  MC_FAULT_POINT(leaders_scattered);
  const uint8_t *mine = ordered + c->first_of[c->node] * job->bytes;
  return code ? code : mc_rail_sum(c, &job->plan, sum, mine, received, own, c->locals * c->call.count);
}

int mc_leaders_reduce_scatter(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  struct job job = job_of(c, call->count, -1);
  job.plan.wire = MC_WIRE_SAME;
  uint8_t *whole = mc_inter_scratch(c, MC_SCRATCH_SUM, c->size * job.bytes);
  if (!whole) return mc_check(c);
  int code = mc_local_reduce(c, call->in, whole, call->count * c->size, call->dtype, job.op, (int)job.leader);
  if (!code && job.leads) code = trade(c, &job, whole, whole);
  if (!code) code = mc_local_scatter(c, whole, NULL, call->out, job.bytes, job.leader);
  c->path = MC_PATH_LEADERS;
  return code;
}

int mc_leaders_gather(struct mc_comm *c, int root) {
  const struct mc_call *call = &c->call;
  size_t bytes = call->count * mc_dtype_bytes(call->dtype);
  uint32_t leader = root < 0 ? 0 : c->local_of[root] % c->locals;
  uint8_t *ordered = mc_inter_scratch(c, MC_SCRATCH_SENT, c->size * bytes);
  size_t *borders = mc_phase_borders(c, bytes, true);
  if (!ordered || !borders) return mc_check(c);
  int code = mc_local_gather(c, call->in, ordered + borders[c->node], NULL, bytes, (int)leader);
  c->path = MC_PATH_LEADERS;
  MC_FAULT_POINT(leaders_gathered);
  if (!code && c->local == leader) code = (root < 0 ? mc_phase_exchange : mc_phase_collect)(c, leader, ordered, borders);
  MC_FAULT_POINT(leaders_exchanged);
  uint8_t *row = call->out;
  const bool is_row = root >= 0 || !call->blocks; /* else the node's row is told first */
  if (!is_row) row = mc_inter_scratch(c, MC_SCRATCH_SUM, c->size * bytes);
  if (!code && !is_row && !row) return mc_check(c);
  bool has_all = root < 0 ? c->local == leader : root == (int)c->rank;
  for (uint32_t i = 0; has_all && i < c->size && !code; i++) {
    uint32_t rank = c->members[i];
    mc_copy(is_row ? mc_call_block(c, row, rank, bytes) : row + rank * bytes, ordered + i * bytes, bytes);
  }
  if (!code && root < 0) code = mc_local_broadcast(c, row, c->size * bytes, leader);
  for (uint32_t rank = 0; !is_row && rank < c->size && !code; rank++) mc_copy(call->blocks[rank], row + rank * bytes, bytes);
  return code;
}
