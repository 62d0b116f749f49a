/* The verbs within a node, over its local ranks: count, in and out as in muster_core.h, but with the node's ranks
 * for size and a local rank for root. Each runs whole epochs. */
#ifndef MUSTER_SHM_H
#define MUSTER_SHM_H
#include "group/comm.h"

/* What a rank writes to its slot in one epoch, at most, where `writers` of `locals` ranks of the node do and the tuning has
 * `chunk`. Of more than four ranks it is less, or the slots that a round touches would leave the caches: those that all read
 * and those that they write for the next are 4 MiB together, of up to 64 ranks. */
size_t mc_chunk_bytes(size_t chunk, uint32_t locals, uint32_t writers);
/* Of this and of a gather a root of -1 is all of the node. */
int mc_local_reduce(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op, int root);
int mc_local_broadcast(struct mc_comm *c, void *data, size_t bytes, uint32_t root);
int mc_local_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op);
/* bytes: of one rank; blocks: by local rank, where they lie, NULL: in a row */
int mc_local_gather(struct mc_comm *c, const void *in, void *out, void *const *blocks, size_t bytes, int root);
int mc_local_scatter(struct mc_comm *c, const void *in, void *const *blocks, void *out, size_t bytes, uint32_t root);
/* What a verb's epochs are: mc_epoch, or one that moves the messages of other nodes on meanwhile (inter/epoch.c). */
typedef int mc_epoch_fn(struct mc_comm *c);
struct mc_span { size_t begin, count; };
static inline uint8_t *mc_at(const void *base, size_t begin) { return (uint8_t *)((uintptr_t)base + begin); }
static inline size_t mc_begin_of(const void *base, const void *at) { return (uintptr_t)at - (uintptr_t)base; } /* for mc_at, whichever comes first */
/* In bytes: ins[i] goes to local rank i, outs[i] comes from it; no pair has more than `longest`. */
int mc_local_all_to_all(struct mc_comm *c, mc_epoch_fn *epoch, const void *in, const struct mc_span *ins, void *out,
                        const struct mc_span *outs, size_t longest);
/* Uneven pairs: compares what is sent with what is expected, and says what the longest has, since all must make the
 * same number of epochs. One epoch. */
int mc_local_compare(struct mc_comm *c, mc_epoch_fn *epoch, const struct mc_span *ins, const struct mc_span *outs, size_t *longest);
/* A part of a vector that lies in many places of it, in bytes. */
struct mc_strided { const struct mc_span *spans; uint32_t count; };
/* Sums every stream [locals] over the local ranks; this rank's ends in `out`, its places one after another
 * (out may be the only place itself). */
int mc_local_reduce_streams(struct mc_comm *c, mc_epoch_fn *epoch, const void *in, void *out, const struct mc_strided *streams,
                            uint32_t dtype, uint32_t op);
/* Every rank's own stream is in `data`; all streams end in the `data` of all, or of local rank `root` only (-1: all). */
int mc_local_gather_streams(struct mc_comm *c, mc_epoch_fn *epoch, void *data, const struct mc_strided *streams, int root);
/* A vector cut into `parts`: borders at multiples of 64 bytes where it is long enough. */
struct mc_span mc_part(size_t count, size_t element_bytes, uint32_t parts, uint32_t which);
/* --- shm/registered.c: the three below take registered memory where all ranks have it, after an epoch that asks.
 * *took false: they did nothing but that epoch (none where the group has no region). */
int mc_registered_all_reduce(struct mc_comm *c, void *data, size_t count, uint32_t dtype, uint32_t op, bool *took);
int mc_registered_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, bool *took);
int mc_registered_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op, bool *took);
/* --- shm/adopt.c: memory that is registered where it lies, with the other ranks */
/* What this rank says of its memory to the others: (region + 1) << 48 | offset, MC_WISH << 48 | offset, 0: nothing. */
#define MC_WISH ((uint64_t)0xffff)
struct mc_adopted *mc_adopted_of(struct mc_comm *c, const void *at, uint64_t bytes, uint64_t *rkey);
/* By all ranks, of which each has said that it would: two epochs. *well: it is registered. */
int mc_adopt_together(struct mc_comm *c, struct mc_adopted *a, bool *well);
void mc_adopted_return(struct mc_comm *c, struct mc_adopted *a); /* its pages are private again, before its memory ends */
void mc_adopted_close(struct mc_comm *c);
#endif
