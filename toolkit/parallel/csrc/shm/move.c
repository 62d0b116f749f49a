/* Within the node: verbs that only move bytes. */
#include <string.h>
#include "group/fault_point.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

static size_t at_most(size_t left, size_t piece) { return left < piece ? left : piece; }

int mc_local_barrier(struct mc_comm *c) { return mc_epoch(c); }

int mc_local_broadcast(struct mc_comm *c, void *data, size_t bytes, uint32_t root) {
  size_t piece = c->tuning.chunk_bytes, done = 0;
  do {
    uint32_t epoch = mc_next(c);
    size_t now = at_most(bytes - done, piece);
    if (root == c->local && now) mc_copy(mc_in_slot(c, root, epoch), (uint8_t *)data + done, now);
    MC_FAULT_POINT(broadcast_copied_in);
    int code = mc_epoch(c);
    if (code) return code;
    MC_FAULT_POINT(broadcast_reading);
    if (root != c->local && now) mc_copy_piece((uint8_t *)data + done, mc_in_slot(c, root, epoch), now, bytes);
    done += now;
  } while (done < bytes);
  return MC_OK;
}

int mc_local_scatter(struct mc_comm *c, const void *in, void *out, size_t bytes, uint32_t root) {
  size_t piece = c->tuning.chunk_bytes / c->locals / 64 * 64, done = 0;
  const uint8_t *from = in;
  if (root == c->local && bytes && out != from + root * bytes) mc_copy(out, from + root * bytes, bytes);
  do {
    uint32_t epoch = mc_next(c);
    size_t now = at_most(bytes - done, piece);
    for (uint32_t local = 0; root == c->local && local < c->locals; local++)
      if (local != root && now) mc_copy(mc_in_slot(c, root, epoch) + local * piece, from + local * bytes + done, now);
    MC_FAULT_POINT(scatter_copied_in);
    int code = mc_epoch(c);
    if (code) return code;
    MC_FAULT_POINT(scatter_reading);
    if (root != c->local && now)
      mc_copy_piece((uint8_t *)out + done, mc_in_slot(c, root, epoch) + c->local * piece, now, bytes);
    done += now;
  } while (done < bytes);
  return MC_OK;
}

static size_t part(const size_t *offsets, uint32_t local) { return offsets[local + 1] - offsets[local]; }

/* The longest part that anybody sends: all must make the same number of epochs. Where parts are uneven
 * they are told first, and what one sends must be what the other expects. */
static int longest_part(struct mc_comm *c, const size_t *in_offsets, const size_t *out_offsets, size_t *longest) {
  *longest = 0;
  if (!c->call.in_counts) {
    for (uint32_t local = 0; local < c->locals; local++)
      if (part(in_offsets, local) > *longest) *longest = part(in_offsets, local);
    return MC_OK;
  }
  uint32_t epoch = mc_next(c);
  uint64_t *told = (uint64_t *)(void *)mc_in_slot(c, c->local, epoch);
  for (uint32_t local = 0; local < c->locals; local++) told[local] = part(in_offsets, local);
  MC_FAULT_POINT(alltoall_counted);
  int code = mc_epoch(c);
  if (code) return code;
  for (uint32_t local = 0; local < c->locals; local++) {
    const uint64_t *theirs = (const uint64_t *)(const void *)mc_in_slot(c, local, epoch);
    for (uint32_t to = 0; to < c->locals; to++)
      if (theirs[to] > *longest) *longest = (size_t)theirs[to];
    if (theirs[c->local] == part(out_offsets, local)) continue;
    struct mc_desc other = c->desc;
    other.count = theirs[c->local];
    return mc_fail(c, MC_EMISMATCH, 0, (int)mc_rank_of(c, local), NULL, &other);
  }
  return MC_OK;
}

int mc_local_all_to_all(struct mc_comm *c, const void *in, void *out, const size_t *in_offsets, const size_t *out_offsets) {
  size_t piece = c->tuning.chunk_bytes / c->locals / 64 * 64, done = 0, longest;
  const uint8_t *from = in;
  uint8_t *to = out;
  int code = longest_part(c, in_offsets, out_offsets, &longest);
  if (code) return code;
  size_t own = part(in_offsets, c->local), whole = out_offsets[c->locals];
  if (own) mc_copy_piece(to + out_offsets[c->local], from + in_offsets[c->local], own, whole);
  do {
    uint32_t epoch = mc_next(c);
    for (uint32_t local = 0; local < c->locals; local++) {
      size_t count = part(in_offsets, local);
      if (local != c->local && done < count)
        mc_copy(mc_in_slot(c, c->local, epoch) + local * piece, from + in_offsets[local] + done, at_most(count - done, piece));
    }
    MC_FAULT_POINT(alltoall_copied_in);
    code = mc_epoch(c);
    if (code) return code;
    MC_FAULT_POINT(alltoall_reading);
    for (uint32_t step = 1; step < c->locals; step++) {
      uint32_t local = (c->local + step) % c->locals;
      size_t count = part(out_offsets, local);
      if (done < count)
        mc_copy_piece(to + out_offsets[local] + done, mc_in_slot(c, local, epoch) + c->local * piece,
                      at_most(count - done, piece), whole);
    }
    done += piece;
  } while (done < longest);
  return MC_OK;
}
