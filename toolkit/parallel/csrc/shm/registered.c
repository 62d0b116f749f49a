/* Registered memory: every rank of the node has mapped the regions of all, so nothing is staged.
 *
 * A round asks: each rank says where in its region its tensor lies (or that it does not). If all have
 * one, they work straight in each other's memory and a second round says that all are done. */
#include <string.h>
#include "group/fault_point.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

/* *took: all have registered memory; then at[local] is where. */
static int ask(struct mc_comm *c, const void *mine, size_t bytes, size_t least, uint8_t **at, bool *took) {
  *took = false;
  if (!c->region_count || least < c->tuning.direct_bytes) return MC_OK;
  const struct mc_region *own = mc_region_of(c, mine, bytes);
  c->rkey = own ? (uint64_t)(own - c->regions + 1) << 48 | mc_region_offset(c, own, mine) : 0;
  uint32_t parity = mc_next(c) & 1;
  int code = mc_epoch(c);
  if (code) return code;
  for (uint32_t local = 0; local < c->locals; local++) {
    uint64_t rkey = mc_block(c, local)->rkey[parity], which = rkey >> 48, offset = rkey & 0xffffffffffffu;
    if (!which || which > MC_REGIONS) return MC_OK;
    const struct mc_region *region = &c->regions[which - 1];
    if (!region->used || offset + bytes > region->bytes) return MC_OK;
    at[local] = (uint8_t *)region->bases[local] + offset;
  }
  *took = true;
  c->path = MC_PATH_DIRECT;
  MC_FAULT_POINT(registered_agreed);
  return MC_OK;
}

int mc_registered_all_reduce(struct mc_comm *c, void *data, size_t count, uint32_t dtype, uint32_t op, bool *took) {
  size_t size = mc_dtype_bytes(dtype);
  uint8_t *at[MC_LOCALS];
  int code = ask(c, data, count * size, count * size, at, took);
  if (code || !*took) return code;
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  struct mc_span mine = mc_part(count, size, c->locals, c->local);
  uint32_t other = (c->local + 1) % c->locals;
  for (size_t done = 0; done < mine.count; done += MC_BLOCK_BYTES / size) {
    size_t now = mine.count - done < MC_BLOCK_BYTES / size ? mine.count - done : MC_BLOCK_BYTES / size;
    size_t begin = (mine.begin + done) * size;
    const void *sources[MC_LOCALS];
    for (uint32_t local = 0; local < c->locals; local++) sources[local] = at[local] + begin;
    reduce(at[c->local] + begin, at[other] + begin, sources, c->locals, now, mc_divisor(c));
    for (uint32_t step = 2; step < c->locals; step++) {
      uint32_t local = (c->local + step) % c->locals;
      memcpy(at[local] + begin, at[c->local] + begin, now * size);
    }
    MC_FAULT_POINT(registered_writing);
  }
  return mc_epoch(c);
}

int mc_registered_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, bool *took) {
  uint8_t *at[MC_LOCALS], *own = (uint8_t *)out + c->local * bytes;
  if (out && c->region_count && bytes && in != own) mc_copy_piece(own, in, bytes, bytes * c->locals);
  int code = ask(c, out, bytes * c->locals, bytes, at, took);
  if (code || !*took) return code;
  for (uint32_t step = 1; step < c->locals; step++) {
    uint32_t local = (c->local + step) % c->locals;
    mc_copy_piece((uint8_t *)out + local * bytes, at[local] + local * bytes, bytes, bytes * c->locals);
  }
  MC_FAULT_POINT(registered_gathered);
  return mc_epoch(c); /* others read this rank's piece until then */
}

int mc_registered_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op,
                             bool *took) {
  size_t size = mc_dtype_bytes(dtype);
  const uint8_t *from = in, *to = out;
  /* others still read what this rank would write, unless it is its own part; staged, their copies are taken first */
  const bool overlaps = to != from + c->local * count * size && to < from + c->locals * count * size && from < to + count * size;
  uint8_t *at[MC_LOCALS];
  int code = ask(c, overlaps ? NULL : in, count * size * c->locals, count * size, at, took);
  if (code || !*took) return code;
  const void *sources[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) sources[local] = at[local] + c->local * count * size;
  mc_reducer(dtype, op)(out, NULL, sources, c->locals, count, mc_divisor(c));
  MC_FAULT_POINT(registered_scattered);
  return mc_epoch(c);
}
