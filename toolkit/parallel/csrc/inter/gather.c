/* Between nodes: all-gather and gather.
 *
 * All-gather: every rank sends its block once to each other node, to the rank there that speaks for it;
 * these hand out in the node what they received. Blocks go straight to their places in the order of ranks. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define LEAST_MESSAGE 65536u
#define TOGETHER_BYTES 4096u /* gather: blocks up to this go through the leaders */

struct job {
  uint8_t *out;
  size_t bytes, piece; /* of a block */
  uint32_t pieces, *ranks;
};

static size_t length_of(const struct job *job, uint32_t k) { return mc_less(job->bytes - k * job->piece, job->piece); }

static int post(struct mc_comm *c, const struct job *job, uint32_t k) {
  size_t begin = k * job->piece, length = length_of(job, k);
  int code = mc_inter_await_sent(c, k & 1, MC_INTER_ALL); /* so that not all pieces are posted at once */
  for (uint32_t distance = 1; distance < c->nodes && !code; distance++) {
    uint32_t count = mc_inter_owned(c, c->local, distance, distance + 1, job->ranks);
    for (uint32_t i = 0; i < count && !code; i++)
      code = mc_inter_recv(c, k & 1, job->ranks[i], mc_call_block(c, job->out, job->ranks[i], job->bytes) + begin, length);
    uint32_t to = mc_inter_owner(c, mc_inter_node(c, c->nodes - distance), c->local);
    if (!code) code = mc_inter_send(c, k & 1, to, mc_call_block(c, job->out, c->rank, job->bytes) + begin, length);
  }
  if (!code) code = mc_inter_progress(c);
  MC_FAULT_POINT(blocks_posted);
  return code;
}

/* The blocks of nodes at these distances have come, or are the own node's: the node gets them. */
static int hand_out(struct mc_comm *c, const struct job *job, uint32_t k, uint32_t from, uint32_t end) {
  uint32_t remote = end > c->nodes ? c->nodes : end;
  int code = mc_inter_await_received(c, k & 1, mc_inter_owned(c, c->local, from, remote, job->ranks));
  if (code) return code;
  MC_FAULT_POINT(blocks_arrived);
  const struct mc_strided *strided = mc_inter_strided(c, from, end, job->bytes, k * job->piece, length_of(job, k));
  return strided ? mc_local_gather_streams(c, mc_inter_epoch, job->out, strided, -1) : mc_check(c);
}

static int all_gather(struct mc_comm *c, const struct job *job) {
  bool at_once = job->piece * c->nodes <= c->tuning.chunk_bytes; /* one epoch for all nodes */
  uint32_t nodes_at_once = (uint32_t)(c->tuning.chunk_bytes / job->piece);
  if (!nodes_at_once) nodes_at_once = 1;
  int code = post(c, job, 0);
  for (uint32_t k = 0; k < job->pieces && !code; k++) {
    if (k + 1 < job->pieces) code = post(c, job, k + 1);
    if (!code && at_once) {
      code = hand_out(c, job, k, 1, c->nodes + 1);
      continue;
    }
    if (!code) code = hand_out(c, job, k, c->nodes, c->nodes + 1); /* the own node's, while others' are on their way */
    for (uint32_t distance = 1; distance < c->nodes && !code; distance += nodes_at_once) {
      uint32_t end = distance + nodes_at_once;
      code = hand_out(c, job, k, distance, end < c->nodes ? end : c->nodes);
    }
  }
  return code;
}

int mc_nodes_all_gather(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  struct job job = {.out = call->out, .bytes = call->count * mc_dtype_bytes(call->dtype)};
  uint8_t *own = mc_call_block(c, job.out, c->rank, job.bytes);
  if (mc_nodes_small(c, job.bytes * c->size)) return mc_leaders_gather(c, -1);
  job.ranks = mc_inter_scratch(c, MC_SCRATCH_LISTS, c->size * sizeof *job.ranks);
  if (!job.ranks) return mc_check(c);
  if (own != call->in) mc_copy(own, call->in, job.bytes);
  job.piece = mc_inter_piece(c, job.bytes, mc_inter_segment(c) / c->inter->rails, mc_less(mc_inter_segment(c), LEAST_MESSAGE));
  job.pieces = (uint32_t)((job.bytes + job.piece - 1) / job.piece);
  return all_gather(c, &job);
}

/* --- gather */

int mc_nodes_apart(struct mc_comm *c, size_t bytes, bool gathers) {
  const struct mc_call *call = &c->call;
  if (c->node_of[call->root] != c->node) { /* the epoch only compares what the ranks of the node called */
    int code = gathers ? mc_inter_send(c, 0, call->root, call->in, bytes) : mc_inter_recv(c, 0, call->root, call->out, bytes);
    MC_FAULT_POINT(apart_posted);
    if (!code) code = mc_epoch(c);
    return code ? code : mc_inter_await_received(c, 0, MC_INTER_ALL);
  }
  struct mc_span one[MC_LOCALS] = {{0, 0}}, blocks[MC_LOCALS] = {{0, 0}};
  const void *row = gathers ? call->out : call->in;
  one[c->local_of[call->root]].count = bytes;
  int code = MC_OK;
  for (uint32_t rank = 0; call->root == c->rank && rank < c->size && !code; rank++) {
    uint8_t *block = mc_call_block(c, row, rank, bytes);
    if (c->node_of[rank] == c->node) blocks[c->local_of[rank]] = (struct mc_span){mc_begin_of(row, block), bytes};
    else if (gathers) code = mc_inter_recv(c, 0, rank, block, bytes);
    else code = mc_inter_send(c, 0, rank, block, bytes);
  }
  if (!code) code = mc_local_all_to_all(c, mc_inter_epoch, call->in, gathers ? one : blocks, call->out, gathers ? blocks : one, bytes);
  return code ? code : mc_inter_await_received(c, 0, MC_INTER_ALL);
}

int mc_nodes_gather(struct mc_comm *c) {
  size_t bytes = c->call.count * mc_dtype_bytes(c->call.dtype);
  return bytes <= TOGETHER_BYTES ? mc_leaders_gather(c, (int)c->call.root) : mc_nodes_apart(c, bytes, true);
}
