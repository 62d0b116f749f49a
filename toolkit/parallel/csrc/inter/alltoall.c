/* Between nodes: all-to-all. Ranks of other nodes are sent to straight, by distance so that nobody is
 * sent to by all at once; those of the node get theirs in its epochs meanwhile. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define WINDOW 16u /* distances that are posted ahead */

struct job {
  const uint8_t *in;
  uint8_t *out;
  size_t *ins, *outs; /* [size + 1] borders in bytes, by rank */
  bool uneven;
};

static size_t *borders(const struct mc_comm *c, size_t *at, const uint64_t *counts) {
  size_t size = mc_dtype_bytes(c->call.dtype);
  at[0] = 0;
  for (uint32_t rank = 0; rank < c->size; rank++) at[rank + 1] = at[rank] + (counts ? counts[rank] : c->call.count) * size;
  return at;
}

/* Uneven parts of no bytes are sent too: the other side may expect some, and shall hear it now. */
static int post(struct mc_comm *c, const struct job *job, uint32_t distance) {
  uint32_t to = (c->rank + distance) % c->size, from = (c->rank + c->size - distance) % c->size;
  int code = MC_OK;
  if (c->node_of[from] != c->node) {
    code = mc_inter_limit(c, &c->inter->receives[0], WINDOW - 1);
    if (!code) code = mc_inter_recv(c, 0, from, job->out + job->outs[from], job->outs[from + 1] - job->outs[from]);
  }
  if (!code && c->node_of[to] != c->node) {
    code = mc_inter_limit(c, &c->inter->sends[0], WINDOW - 1);
    if (!code) code = mc_inter_send(c, 0, to, job->in + job->ins[to], job->ins[to + 1] - job->ins[to]);
  }
  return code;
}

static int in_the_node(struct mc_comm *c, const struct job *job) {
  struct mc_span ins[MC_LOCALS], outs[MC_LOCALS];
  size_t longest = 0;
  for (uint32_t local = 0; local < c->locals; local++) {
    uint32_t rank = mc_rank_of(c, local);
    ins[local] = (struct mc_span){job->ins[rank], job->ins[rank + 1] - job->ins[rank]};
    outs[local] = (struct mc_span){job->outs[rank], job->outs[rank + 1] - job->outs[rank]};
    if (ins[local].count > longest) longest = ins[local].count;
  }
  int code = job->uneven ? mc_local_compare(c, mc_inter_epoch, ins, outs, &longest) : MC_OK;
  return code ? code : mc_local_all_to_all(c, mc_inter_epoch, job->in, ins, job->out, outs, longest);
}

/* What is sent: a copy where the result takes its place, for blocks come before those under them have gone. */
static const uint8_t *source(struct mc_comm *c, const size_t *ins) {
  const struct mc_call *call = &c->call;
  if (call->in != call->out || !ins[c->size]) return call->in;
  uint8_t *copy = mc_inter_scratch(c, MC_SCRATCH_SENT, ins[c->size]);
  if (copy) mc_copy(copy, call->in, ins[c->size]);
  return copy;
}

int mc_nodes_all_to_all(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  size_t *room = mc_inter_scratch(c, MC_SCRATCH_LISTS, 2 * (c->size + 1) * sizeof *room);
  if (!room) return mc_check(c);
  size_t *ins = borders(c, room, call->in_counts);
  struct job job = {source(c, ins), call->out, ins, borders(c, room + c->size + 1, call->out_counts), call->in_counts != NULL};
  if (!job.in && ins[c->size]) return mc_check(c);
  c->inter->sends[0].empties = c->inter->receives[0].empties = job.uneven;
  int code = MC_OK;
  uint32_t distance = 1;
  for (; distance < c->size && distance <= WINDOW / 2 && !code; distance++) code = post(c, &job, distance);
  if (!code) code = mc_inter_progress(c);
  MC_FAULT_POINT(nodes_alltoall_posted);
  if (!code) code = in_the_node(c, &job);
  MC_FAULT_POINT(nodes_alltoall_in_node);
  for (; distance < c->size && !code; distance++) code = post(c, &job, distance);
  return code ? code : mc_inter_await_received(c, 0, MC_INTER_ALL);
}
