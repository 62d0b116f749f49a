/* Between nodes: broadcast.
 *
 * Small: from node to node as a tree (few bytes and few nodes: from the root to all), then in the node.
 * Large: a chain of nodes in pieces over all rails, so that every node receives and sends the vector
 * once, and hands it out in the node meanwhile. */
#include "inter/phases.h"
#include "group/fault_point.h"

#define LEAST_PIECE 262144u
#define FLAT_NODES 8u
#define FLAT_BYTES 8192u
#define WINDOW 4u /* pieces that are posted ahead */

/* How far this node is from the root's. */
static uint32_t place_of(const struct mc_comm *c) {
  return (c->node + c->nodes - c->node_of[c->call.root]) % c->nodes;
}

static uint32_t peer_at(const struct mc_comm *c, uint32_t place, uint32_t local) {
  uint32_t node = (c->node_of[c->call.root] + place) % c->nodes;
  return mc_inter_owner(c, node, local);
}

static int from_parent(struct mc_comm *c, uint32_t parent, size_t bytes) {
  int code = mc_inter_recv(c, 0, peer_at(c, parent, c->local_of[c->call.root]), c->call.out, bytes);
  if (!code) code = mc_inter_await_received(c, 0, MC_INTER_ALL);
  MC_FAULT_POINT(tree_received);
  return code;
}

static int to_child(struct mc_comm *c, uint32_t child, size_t bytes) {
  return mc_inter_send(c, 0, peer_at(c, child, c->local_of[c->call.root]), c->call.out, bytes);
}

/* Binomial: place p has it from p without its highest bit, and gives it to p + 2^i for all larger bits. */
static int down_the_tree(struct mc_comm *c, size_t bytes) {
  uint32_t place = place_of(c), above = 1;
  while (above <= place) above *= 2;
  int code = place ? from_parent(c, place - above / 2, bytes) : MC_OK;
  uint32_t last = above;
  while (last * 2 < c->nodes) last *= 2;
  for (uint32_t bit = last; bit >= above && !code; bit /= 2) /* the child with most below it first */
    if (place + bit < c->nodes) code = to_child(c, place + bit, bytes);
  return code;
}

static int flat(struct mc_comm *c, size_t bytes) {
  if (place_of(c)) return from_parent(c, 0, bytes);
  int code = MC_OK;
  for (uint32_t child = 1; child < c->nodes && !code; child++) code = to_child(c, child, bytes);
  return code;
}

static int small(struct mc_comm *c, size_t bytes) {
  uint32_t speaker = c->local_of[c->call.root] % c->locals;
  int code = MC_OK;
  if (c->local == speaker) {
    code = c->nodes <= FLAT_NODES && bytes <= FLAT_BYTES ? flat(c, bytes) : down_the_tree(c, bytes);
    if (!code) code = mc_inter_progress(c);
    MC_FAULT_POINT(tree_sent);
  }
  if (!code) code = mc_local_broadcast(c, c->call.out, bytes, speaker);
  c->path = MC_PATH_LEADERS;
  return code;
}

struct job {
  uint8_t *out;
  size_t bytes, piece;
  uint32_t pieces, place;
  bool on_rail;
};

static struct mc_span part_of(const struct mc_comm *c, const struct job *job, uint32_t k, uint32_t local) {
  size_t length = mc_less(job->bytes - k * job->piece, job->piece);
  struct mc_span part = mc_part(length, 1, c->inter->rails, local);
  return (struct mc_span){k * job->piece + part.begin, part.count};
}

static int expect(struct mc_comm *c, const struct job *job, uint32_t k) {
  if (!job->on_rail || !job->place || k >= job->pieces) return MC_OK;
  struct mc_span part = part_of(c, job, k, c->local);
  return mc_inter_recv(c, 0, peer_at(c, job->place - 1, c->local), job->out + part.begin, part.count);
}

static int pass_on(struct mc_comm *c, const struct job *job, uint32_t k) {
  if (!job->on_rail || job->place + 1 == c->nodes) return MC_OK;
  struct mc_span part = part_of(c, job, k, c->local);
  int code = mc_inter_limit(c, &c->inter->sends[0], WINDOW - 1);
  if (!code) code = mc_inter_send(c, 0, peer_at(c, job->place + 1, c->local), job->out + part.begin, part.count);
  if (!code) code = mc_inter_progress(c);
  MC_FAULT_POINT(chain_passed);
  return code;
}

/* The node gets a piece: from its rails, or (the root's node) from the root. */
static int share(struct mc_comm *c, const struct job *job, uint32_t k) {
  struct mc_span spans[MC_LOCALS], whole = {k * job->piece, mc_less(job->bytes - k * job->piece, job->piece)};
  struct mc_strided strided[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) {
    spans[local] = (struct mc_span){0, 0};
    if (job->place && local < c->inter->rails) spans[local] = part_of(c, job, k, local);
    if (!job->place && local == c->local_of[c->call.root]) spans[local] = whole;
    strided[local] = (struct mc_strided){&spans[local], 1};
  }
  int code = mc_local_gather_streams(c, mc_inter_epoch, job->out, strided, -1);
  MC_FAULT_POINT(chain_shared);
  return code;
}

static int piece_from_root(struct mc_comm *c, const struct job *job, uint32_t k) {
  int code = share(c, job, k);
  return code ? code : pass_on(c, job, k);
}

static int piece_from_before(struct mc_comm *c, const struct job *job, uint32_t k) {
  int code = expect(c, job, k + WINDOW);
  if (!code && job->on_rail && part_of(c, job, k, c->local).count) code = mc_inter_await_received(c, 0, 1);
  MC_FAULT_POINT(chain_received);
  if (!code) code = pass_on(c, job, k);
  return code ? code : share(c, job, k);
}

static int chain(struct mc_comm *c, const struct job *job) {
  int code = MC_OK;
  for (uint32_t k = 0; k < WINDOW && !code; k++) code = expect(c, job, k);
  for (uint32_t k = 0; k < job->pieces && !code; k++)
    code = job->place ? piece_from_before(c, job, k) : piece_from_root(c, job, k);
  return code;
}

int mc_nodes_broadcast(struct mc_comm *c) {
  size_t bytes = c->call.count * mc_dtype_bytes(c->call.dtype);
  if (mc_nodes_small(c, bytes)) return small(c, bytes);
  /* a chain is full only after nodes - 1 pieces */
  size_t piece = mc_inter_piece(c, bytes, bytes / 4 / c->nodes, mc_less(mc_inter_segment(c), LEAST_PIECE));
  struct job job = {.out = c->call.out, .bytes = bytes, .piece = piece, .place = place_of(c),
                    .on_rail = c->local < c->inter->rails};
  job.pieces = (uint32_t)((bytes + job.piece - 1) / job.piece);
  return job.pieces * 2 >= c->nodes ? chain(c, &job) : small(c, bytes);
}
