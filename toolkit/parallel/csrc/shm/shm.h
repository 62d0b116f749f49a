/* The verbs within a node, over its local ranks: count, in and out as in muster_core.h, but with the node's ranks
 * for size and a local rank for root. Each runs whole epochs. */
#ifndef MUSTER_SHM_H
#define MUSTER_SHM_H
#include "group/comm.h"

int mc_local_barrier(struct mc_comm *c);
int mc_local_all_reduce(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op);
int mc_local_reduce(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op, uint32_t root);
int mc_local_broadcast(struct mc_comm *c, void *data, size_t bytes, uint32_t root);
int mc_local_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes); /* bytes of one rank */
int mc_local_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op);
int mc_local_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, uint32_t root);
int mc_local_scatter(struct mc_comm *c, const void *in, void *out, size_t bytes, uint32_t root);
/* in_offsets/out_offsets [locals + 1] in bytes */
int mc_local_all_to_all(struct mc_comm *c, const void *in, void *out, const size_t *in_offsets, const size_t *out_offsets);
/* A vector cut into `parts`: borders at multiples of 64 bytes where it is long enough. */
struct mc_span { size_t begin, count; };
struct mc_span mc_part(size_t count, size_t element_bytes, uint32_t parts, uint32_t which);
/* --- shm/registered.c: the three below take registered memory where all ranks have it, after an epoch that asks.
 * *took false: they did nothing but that epoch (none where the group has no region). */
int mc_registered_all_reduce(struct mc_comm *c, void *data, size_t count, uint32_t dtype, uint32_t op, bool *took);
int mc_registered_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, bool *took);
int mc_registered_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op, bool *took);
#endif
