/* What the verbs between nodes (inter/) are built of.
 *
 * A vector's parts travel as streams: a stream is a list of spans of the vector that one local rank owns
 * (it alone talks about them with other nodes). Local rank i of one node talks to local rank i of the
 * others: a rail. Where nodes have different numbers of ranks, the ranks of a larger node share out those
 * of a smaller one (mc_inter_owner), or there are as many rails as the smallest node has ranks. */
#ifndef MUSTER_PHASES_H
#define MUSTER_PHASES_H
#include "kernels/kernels.h"
#include "net/net.h"
#include "shm/shm.h"
#include "inter/inter.h"

/* Tickets of messages on their way; they are waited for in the order in which they were posted. A message
 * of no bytes is neither sent nor expected, unless `empties`. */
struct mc_posts { uint64_t *tickets; uint32_t first, count, room; bool empties; };
#define MC_INTER_SLOTS 3u /* pieces of a vector under way at once */
enum mc_scratch {
  MC_SCRATCH_SUM, MC_SCRATCH_RECEIVED, MC_SCRATCH_SENT, MC_SCRATCH_LISTS, MC_SCRATCH_STRIDED, MC_SCRATCH_SOURCES, MC_SCRATCH_WIRE,
  MC_SCRATCHES
};
struct mc_inter { /* kept from call to call, made by the first */
  struct { void *at; size_t bytes; } scratch[MC_SCRATCHES];
  struct mc_posts sends[MC_INTER_SLOTS], receives[MC_INTER_SLOTS];
  uint32_t rails; /* ranks of the smallest node */
  uint64_t alive_ns, dead_ns; /* when the ranks of this node were looked at, when one was found dead */
};

/* --- inter/scratch.c. NULL: there is no memory, and that has been declared (mc_check says it). */
int mc_inter_open(struct mc_comm *c);
void *mc_inter_scratch(struct mc_comm *c, enum mc_scratch which, size_t bytes);
/* Posts messages of a slot, and waits for the oldest of them. */
#define MC_INTER_ALL UINT32_MAX
int mc_inter_send(struct mc_comm *c, uint32_t slot, uint32_t peer, const void *data, size_t bytes);
int mc_inter_recv(struct mc_comm *c, uint32_t slot, uint32_t peer, void *data, size_t bytes);
int mc_inter_await_sent(struct mc_comm *c, uint32_t slot, uint32_t how_many);
int mc_inter_await_received(struct mc_comm *c, uint32_t slot, uint32_t how_many);
/* The same for as many as there are beyond `most`. */
int mc_inter_limit(struct mc_comm *c, struct mc_posts *posts, uint32_t most);

/* --- places */
static inline uint32_t mc_inter_locals(const struct mc_comm *c, uint32_t node) { return c->first_of[node + 1] - c->first_of[node]; }
static inline uint32_t mc_inter_rank(const struct mc_comm *c, uint32_t node, uint32_t local) { return c->members[c->first_of[node] + local]; }
/* Which rank of `node` speaks for local rank `local` of another node. */
static inline uint32_t mc_inter_owner(const struct mc_comm *c, uint32_t node, uint32_t local) {
  return mc_inter_rank(c, node, local % mc_inter_locals(c, node));
}
static inline uint32_t mc_inter_node(const struct mc_comm *c, uint32_t distance) { return (c->node + distance) % c->nodes; }

/* --- inter/spans.c: a block for every rank of the group, of which local rank i owns those of local ranks
 * i, i + locals, ... of other nodes and its own. In this order everywhere: by distance of the node. */
/* Fills `ranks`; returns how many. Distances `from` to `end` - 1; distance `nodes` is the own node. */
uint32_t mc_inter_owned(const struct mc_comm *c, uint32_t local, uint32_t from, uint32_t end, uint32_t *ranks);
/* For every local rank the places of its blocks: `length` bytes at `begin` of blocks of `block` bytes. NULL: no memory. */
const struct mc_strided *mc_inter_strided(struct mc_comm *c, uint32_t from, uint32_t end, size_t block, size_t begin, size_t length);

size_t mc_inter_segment(const struct mc_comm *c); /* the tuning's, not too small */
/* Bytes of a piece of `whole`: `wanted`, at most a segment, at least `least`; a multiple of 64, or the whole. */
size_t mc_inter_piece(const struct mc_comm *c, size_t whole, size_t wanted, size_t least);

/* --- inter/progress.c: moves messages; what the transport finds wrong becomes the group's failure here */
int mc_inter_progress(struct mc_comm *c); /* without waiting */
/* Until this one is done (0: all that was posted), or the deadline of the call: names the ranks that have not come. */
int mc_inter_wait(struct mc_comm *c, uint64_t ticket);
/* --- inter/epoch.c: as mc_epoch, but messages under way move on before it and while the node is waited for */
int mc_inter_epoch(struct mc_comm *c);
/* Blocks `first` to `first` + count - 1 of a row of one for each node, round its end: two spans, the second mostly empty.
 * borders[nodes + 1]: where the blocks begin. */
void mc_inter_cut(const struct mc_comm *c, const size_t *borders, uint32_t first, uint32_t count, struct mc_span spans[2]);

/* --- inter/exchange.c: every node's block to the same place of every node; called by one rank of each node.
 * offsets[nodes + 1]: the blocks' borders in `all`, where the own block is. `local`: who speaks (mc_inter_owner). */
int mc_phase_exchange(struct mc_comm *c, uint32_t local, void *all, const size_t *offsets);
/* Posts a round of it, in which each node has `have` blocks and gets those of radix - 1 others, less at the end. */
int mc_phase_round(struct mc_comm *c, uint32_t slot, uint32_t local, void *all, const size_t *offsets, uint32_t have, uint32_t radix);
static inline uint32_t mc_inter_blocks(const struct mc_comm *c, uint32_t have, uint32_t i) { /* that the i-th of them gives */
  return have < c->nodes - i * have ? have : c->nodes - i * have;
}
/* The same as mc_phase_exchange for the root of the call alone, whose node has its block by then; the others post theirs. */
int mc_phase_collect(struct mc_comm *c, uint32_t local, void *all, const size_t *offsets);
size_t *mc_phase_borders(struct mc_comm *c, size_t bytes, bool by_ranks); /* of blocks of each node, or of its ranks; NULL: no memory */

/* --- inter/rail.c: the sum over nodes of one piece, step by step */
#define MC_MESH_NODES 4u /* so few talk each to each */
#define MC_RADIX 4u      /* of the rounds of more: a message costs some third of the time that it travels */
static inline uint32_t mc_inter_have(uint32_t round) { return 1u << 2 * round; } /* MC_RADIX to the power of it */
static inline uint32_t mc_inter_rounds(const struct mc_comm *c) { /* the logarithm of the nodes */
  uint32_t rounds = 0;
  for (uint32_t have = 1; have < c->nodes; have *= MC_RADIX) rounds++;
  return rounds;
}
struct mc_rail_plan {
  uint32_t dtype, op, wire;
  uint32_t local; /* whose rail (mc_inter_owner) */
  int root;       /* the node that takes the sum; -1: all */
  size_t step;    /* bytes of the room for one node's part: mc_rail_room */
  bool rounds;    /* in mc_inter_rounds(): inter/rounds.c */
};
struct mc_rail_plan mc_rail_plan_of(const struct mc_comm *c, int root); /* of this call; root: a rank, -1: all */
struct mc_rail {
  uint8_t *data;  /* the node's sum, then that of all (MC_AVG: divided) */
  uint8_t *sum;   /* that of all of the own part; NULL: in its place in `data`, which else is only read */
  size_t count;
  uint32_t slot; /* of MC_INTER_SLOTS; used by one piece after another */
  uint32_t step; /* the next */
  uint8_t *received, *sent;
  size_t *borders; /* of the nodes' parts, in bytes; only in rounds */
};
/* The memory that all slots need for pieces of up to `count`; before the first piece. */
int mc_rail_room(struct mc_comm *c, struct mc_rail_plan *plan, size_t count);
/* Awaits and sums what the step before has asked for, and posts what is next; after mc_rail_steps() of them `data` is done. */
int mc_rail_step(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail);
uint32_t mc_rail_steps(const struct mc_comm *c, const struct mc_rail_plan *plan);
/* --- inter/rounds.c: sums what the round before has brought, and posts this one; after the last nothing, since this node's
 * part is done then. Every node sends what it has summed of others' parts, until each has its own. */
int mc_rail_round(struct mc_comm *c, const struct mc_rail_plan *plan, struct mc_rail *rail, uint32_t round);
/* --- inter/sum.c */
/* No part of mc_part of a vector of up to `count` is longer. Of a shorter vector one may be longer than all of
 * this: the last takes what rounding has left, up to an element for each part. */
size_t mc_rail_longest(size_t count, size_t element_bytes, uint32_t parts);
size_t mc_rail_bytes(const struct mc_rail_plan *plan, size_t count); /* of a part on the wire */
/* out = the sum of this node's part `own` and of those received (node n's lies at n * step), nodes ascending. */
int mc_rail_sum(struct mc_comm *c, const struct mc_rail_plan *plan, void *out, const void *own, const uint8_t *received,
                size_t step, size_t count);
/* What the node sums with: an average is divided in the last sum only. */
static inline uint32_t mc_phase_op(uint32_t op) { return op == MC_AVG ? MC_SUM : op; }

/* --- inter/ */
bool mc_nodes_small(const struct mc_comm *c, size_t bytes); /* the leaders alone talk */
int mc_nodes_reduce(struct mc_comm *c, int root); /* -1: all */
int mc_nodes_broadcast(struct mc_comm *c);
int mc_nodes_all_gather(struct mc_comm *c);
int mc_nodes_reduce_scatter(struct mc_comm *c);
int mc_nodes_gather(struct mc_comm *c);
int mc_nodes_scatter(struct mc_comm *c);
int mc_nodes_all_to_all(struct mc_comm *c);
/* Gather, scatter of large blocks: they go from where they are to where they belong. */
int mc_nodes_apart(struct mc_comm *c, size_t bytes, bool gathers);
/* inter/leaders.c: the small forms of the verbs that sum or gather: a node's blocks go in one message */
int mc_leaders_reduce(struct mc_comm *c, int root); /* -1: all */
int mc_leaders_reduce_scatter(struct mc_comm *c);
int mc_leaders_gather(struct mc_comm *c, int root); /* -1: all */
#endif
