/* Registered memory: every rank of the node has mapped the regions of all, so nothing is staged.
 *
 * A round asks: each rank says where in its region its tensor lies (or that it does not). If all have
 * one, they work straight in each other's memory and a second round says that all are done. Of sums it may also say that it
 * would register the tensor where it lies: shm/adopt.c. */
#include <string.h>
#include "group/adopted.h"
#include "group/fault_point.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

enum answer { APART, WISHED, REGISTERED };

/* Of registered memory *at[local] is where. What was registered where it lies has to be the same on all ranks. */
static enum answer answer_of(const struct mc_comm *c, uint32_t parity, size_t bytes, uint8_t **at) {
  const uint64_t mine = mc_block(c, c->local)->rkey[parity];
  bool same = true, is_adopted = false, is_wished = false;
  for (uint32_t local = 0; local < c->locals; local++) {
    uint64_t rkey = mc_block(c, local)->rkey[parity], which = rkey >> 48, offset = rkey & 0xffffffffffffu;
    same = same && rkey == mine;
    is_wished = is_wished || which == MC_WISH;
    if (which == MC_WISH) continue;
    if (!which || which > MC_REGIONS + MC_ADOPTED) return APART;
    const struct mc_region *region = &c->regions[which - 1];
    if (!region->used || offset + bytes > region->bytes) return APART;
    is_adopted = is_adopted || region->own;
    at[local] = (uint8_t *)region->bases[local] + offset;
  }
  if (is_wished) return same ? WISHED : APART;
  return same || !is_adopted ? REGISTERED : APART;
}

static int ask(struct mc_comm *c, uint64_t rkey, size_t bytes, uint8_t **at, enum answer *answer) {
  c->rkey = rkey;
  uint32_t parity = mc_next(c) & 1;
  int code = mc_epoch(c);
  *answer = code ? APART : answer_of(c, parity, bytes, at);
  if (*answer != REGISTERED) return code;
  c->path = MC_PATH_DIRECT;
  MC_FAULT_POINT(registered_agreed);
  return MC_OK;
}

static uint64_t rkey_of(const struct mc_comm *c, const void *mine, size_t bytes) {
  const struct mc_region *own = mc_region_of(c, mine, bytes);
  return own ? (uint64_t)(own - c->regions + 1) << 48 | mc_region_offset(c, own, mine) : 0;
}

/* *took: all have registered memory; then at[local] is where. */
static int ask_plain(struct mc_comm *c, const void *mine, size_t bytes, size_t least, uint8_t **at, bool *took) {
  enum answer answer = APART;
  *took = false;
  if (!c->region_count || least < c->tuning.direct_bytes) return MC_OK;
  int code = ask(c, rkey_of(c, mine, bytes), bytes, at, &answer);
  *took = answer == REGISTERED;
  return code;
}

/* Of memory that was registered where it lies the first and the last bytes may be in pages of each rank's own: these go
 * through the slots, in the epoch that asks. */
struct edges { size_t head, tail; uint32_t epoch; };

static struct edges edges_of(struct mc_comm *c, const struct mc_adopted *a, const uint8_t *data, size_t bytes) {
  struct edges e = {.epoch = mc_next(c)};
  if (!a || atomic_load(&a->region) < 0) return e;
  const struct mc_region *region = &c->regions[atomic_load(&a->region)];
  const uint64_t offset = (uint64_t)(data - a->at);
  e.head = offset < region->begin ? region->begin - offset : 0;
  e.tail = offset + bytes > region->end ? offset + bytes - region->end : 0;
  uint8_t *slot = mc_in_slot(c, c->local, e.epoch);
  memcpy(slot, data, e.head);
  memcpy(slot + e.head, data + bytes - e.tail, e.tail);
  return e;
}

static void sum_edge(struct mc_comm *c, uint8_t *data, size_t bytes, size_t at, uint32_t epoch, uint32_t dtype, uint32_t op) {
  const void *sources[MC_LOCALS];
  if (!bytes) return;
  for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, epoch) + at;
  mc_reducer(dtype, op)(data, NULL, sources, c->locals, bytes / mc_dtype_bytes(dtype), mc_divisor(c));
}

static int sum(struct mc_comm *c, uint8_t *const *at, size_t first, size_t count, uint32_t dtype, uint32_t op) {
  size_t size = mc_dtype_bytes(dtype);
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  struct mc_span mine = mc_part(count, size, c->locals, c->local);
  uint32_t other = (c->local + 1) % c->locals;
  for (size_t done = 0; done < mine.count; done += MC_BLOCK_BYTES / size) {
    size_t now = mine.count - done < MC_BLOCK_BYTES / size ? mine.count - done : MC_BLOCK_BYTES / size;
    size_t begin = first + (mine.begin + done) * size;
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

/* Of a call that failed others may still be at work, and nobody waits for them any more: they shall not write in this memory. */
static int settled(struct mc_comm *c, struct mc_adopted *a, int code) {
  if (!code || !a) return code;
  mc_adopted_return(c, a);
  return code;
}

int mc_registered_all_reduce(struct mc_comm *c, void *data, size_t count, uint32_t dtype, uint32_t op, bool *took) {
  size_t size = mc_dtype_bytes(dtype), bytes = count * size;
  uint8_t *at[MC_LOCALS];
  enum answer answer = WISHED;
  struct edges e = {0};
  struct mc_adopted *a = NULL;
  const bool adopts = c->tuning.adopt_bytes && bytes >= MC_ADOPT_LEAST;
  *took = false;
  if (bytes < c->tuning.direct_bytes || !(c->region_count || adopts)) return MC_OK;
  for (bool well = true; answer == WISHED && well;) {
    uint64_t rkey = rkey_of(c, data, bytes);
    a = adopts && !rkey && data ? mc_adopted_of(c, data, bytes, &rkey) : NULL;
    e = edges_of(c, a, data, bytes);
    int code = ask(c, rkey, bytes, at, &answer);
    if (!code && answer == WISHED) code = mc_adopt_together(c, a, &well);
    if (code) return settled(c, a, code);
  }
  if (answer != REGISTERED) return MC_OK;
  *took = true;
  sum_edge(c, data, e.head, 0, e.epoch, dtype, op);
  sum_edge(c, (uint8_t *)data + bytes - e.tail, e.tail, e.head, e.epoch, dtype, op);
  return settled(c, a, sum(c, at, e.head, (bytes - e.head - e.tail) / size, dtype, op));
}

int mc_registered_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, bool *took) {
  uint8_t *at[MC_LOCALS], *own = (uint8_t *)out + c->local * bytes;
  if (out && c->region_count && bytes && in != own) mc_copy_piece(own, in, bytes, bytes * c->locals);
  int code = ask_plain(c, out, bytes * c->locals, bytes, at, took);
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
  int code = ask_plain(c, overlaps ? NULL : in, count * size * c->locals, count * size, at, took);
  if (code || !*took) return code;
  const void *sources[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) sources[local] = at[local] + c->local * count * size;
  mc_reducer(dtype, op)(out, NULL, sources, c->locals, count, mc_divisor(c));
  MC_FAULT_POINT(registered_scattered);
  return mc_epoch(c);
}
