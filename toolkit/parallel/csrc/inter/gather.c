/* Between nodes: all-gather and gather.
 *
 * All-gather: every rank sends its block once to each other node, to the rank there that speaks for it;
 * these hand out in the node what they received. Blocks go straight to their places in the order of ranks. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define LEAST_MESSAGE 65536u
#define LEAST_SEGMENT 4096u
#define TOGETHER_BYTES 4096u /* gather: blocks up to this go through the leaders */

struct job {
  uint8_t *out;
  size_t bytes, piece; /* of a block */
  uint32_t pieces, *ranks;
};

static size_t piece_of(const struct mc_comm *c, size_t bytes) {
  size_t segment = c->tuning.segment_bytes > LEAST_SEGMENT ? c->tuning.segment_bytes : LEAST_SEGMENT;
  size_t piece = segment / c->inter->rails;
  if (piece < mc_inter_less(segment, LEAST_MESSAGE)) piece = mc_inter_less(segment, LEAST_MESSAGE);
  return mc_inter_less((piece + 63) / 64 * 64, bytes);
}

static size_t length_of(const struct job *job, uint32_t k) { return mc_inter_less(job->bytes - k * job->piece, job->piece); }

static int post(struct mc_comm *c, const struct job *job, uint32_t k) {
  struct mc_posts *sends = &c->inter->slots[k & 1].sends, *receives = &c->inter->slots[k & 1].receives;
  size_t begin = k * job->piece, length = length_of(job, k);
  int code = mc_inter_await_all(c, sends); /* so that not all pieces are posted at once */
  for (uint32_t distance = 1; distance < c->nodes && !code; distance++) {
    uint32_t count = mc_inter_owned(c, c->local, distance, distance + 1, job->ranks);
    for (uint32_t i = 0; i < count && !code; i++)
      code = mc_inter_recv(c, receives, job->ranks[i], job->out + job->ranks[i] * job->bytes + begin, length);
    uint32_t to = mc_inter_owner(c, mc_inter_node(c, c->nodes - distance), c->local);
    if (!code) code = mc_inter_send(c, sends, to, job->out + c->rank * job->bytes + begin, length);
  }
  if (!code) code = mc_inter_progress(c);
  MC_FAULT_POINT(blocks_posted);
  return code;
}

/* The blocks of nodes at these distances have come, or are the own node's: the node gets them. */
static int hand_out(struct mc_comm *c, const struct job *job, uint32_t k, uint32_t from, uint32_t end) {
  struct mc_posts *receives = &c->inter->slots[k & 1].receives;
  uint32_t remote = end > c->nodes ? c->nodes : end;
  int code = mc_inter_await(c, receives, mc_inter_owned(c, c->local, from, remote, job->ranks));
  if (code) return code;
  MC_FAULT_POINT(blocks_arrived);
  const struct mc_strided *strided = mc_inter_strided(c, from, end, job->bytes, k * job->piece, length_of(job, k));
  return strided ? mc_phase_allgather(c, job->out, strided, -1) : mc_check(c);
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
  uint8_t *own = job.out + c->rank * job.bytes;
  if (mc_nodes_small(c, job.bytes * c->size)) return mc_leaders_all_gather(c);
  job.ranks = mc_inter_scratch(c, MC_SCRATCH_LISTS, c->size * sizeof *job.ranks);
  if (!job.ranks) return mc_check(c);
  if (own != call->in) mc_copy(own, call->in, job.bytes);
  job.piece = piece_of(c, job.bytes);
  job.pieces = (uint32_t)((job.bytes + job.piece - 1) / job.piece);
  return all_gather(c, &job);
}

/* --- gather */

/* Small blocks: a node's go in one message. */
static int gather_together(struct mc_comm *c, size_t bytes) {
  const struct mc_call *call = &c->call;
  uint32_t speaker = c->local_of[call->root] % c->locals;
  bool root = call->root == c->rank;
  struct mc_posts *sends = &c->inter->slots[0].sends, *receives = &c->inter->slots[0].receives;
  uint8_t *ordered = mc_inter_scratch(c, MC_SCRATCH_SUM, c->size * bytes), *out = call->out;
  if (!ordered) return mc_check(c);
  int code = MC_OK;
  for (uint32_t distance = 1; root && distance < c->nodes && !code; distance++) {
    uint32_t node = mc_inter_node(c, distance);
    code = mc_inter_recv(c, receives, mc_inter_owner(c, node, c->local), ordered + c->first_of[node] * bytes,
                       mc_inter_locals(c, node) * bytes);
  }
  if (!code) code = mc_local_gather(c, call->in, ordered + c->first_of[c->node] * bytes, bytes, speaker);
  c->path = MC_PATH_LEADERS;
  MC_FAULT_POINT(gather_node_in);
  if (!code && !root && c->local == speaker)
    code = mc_inter_send(c, sends, call->root, ordered + c->first_of[c->node] * bytes, c->locals * bytes);
  MC_FAULT_POINT(gather_node_sent);
  if (!code) code = mc_inter_await_all(c, receives);
  for (uint32_t i = 0; root && i < c->size && !code; i++) mc_copy(out + c->members[i] * bytes, ordered + i * bytes, bytes);
  return code;
}

/* Large ones go from where they are to where they belong. */
static int gather_apart(struct mc_comm *c, size_t bytes) {
  const struct mc_call *call = &c->call;
  struct mc_posts *sends = &c->inter->slots[0].sends, *receives = &c->inter->slots[0].receives;
  if (c->node_of[call->root] != c->node) { /* the epoch only compares what the ranks of the node called */
    int code = mc_inter_send(c, sends, call->root, call->in, bytes);
    MC_FAULT_POINT(gather_apart_posted);
    return code ? code : mc_local_barrier(c);
  }
  struct mc_span ins[MC_LOCALS] = {{0, 0}}, outs[MC_LOCALS] = {{0, 0}};
  ins[c->local_of[call->root]].count = bytes;
  int code = MC_OK;
  for (uint32_t rank = 0; call->root == c->rank && rank < c->size && !code; rank++) {
    if (c->node_of[rank] == c->node) outs[c->local_of[rank]] = (struct mc_span){rank * bytes, bytes};
    else code = mc_inter_recv(c, receives, rank, (uint8_t *)call->out + rank * bytes, bytes);
  }
  if (!code) code = mc_phase_alltoall(c, call->in, ins, call->out, outs, bytes);
  return code ? code : mc_inter_await_all(c, receives);
}

int mc_nodes_gather(struct mc_comm *c) {
  size_t bytes = c->call.count * mc_dtype_bytes(c->call.dtype);
  return bytes <= TOGETHER_BYTES ? gather_together(c, bytes) : gather_apart(c, bytes);
}
