/* Within the node: verbs that only move bytes. */
#include "group/fault_point.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

int mc_local_broadcast(struct mc_comm *c, void *data, size_t bytes, uint32_t root) {
  const struct mc_span whole = {0, bytes};
  struct mc_strided streams[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) streams[local] = (struct mc_strided){&whole, local == root};
  return mc_local_gather_streams(c, mc_epoch, data, streams, -1);
}

int mc_local_compare(struct mc_comm *c, mc_epoch_fn *epoch, const struct mc_span *ins, const struct mc_span *outs, size_t *longest) {
  uint32_t next = mc_next(c);
  uint64_t *told = (uint64_t *)(void *)mc_in_slot(c, c->local, next);
  for (uint32_t local = 0; local < c->locals; local++) told[local] = ins[local].count;
  MC_FAULT_POINT(alltoall_counted);
  int code = epoch(c);
  if (code) return code;
  *longest = 0;
  for (uint32_t local = 0; local < c->locals; local++) {
    const uint64_t *theirs = (const uint64_t *)(const void *)mc_in_slot(c, local, next);
    for (uint32_t to = 0; to < c->locals; to++)
      if (theirs[to] > *longest) *longest = (size_t)theirs[to];
    if (theirs[c->local] == outs[local].count) continue;
    struct mc_desc other = c->desc;
    other.count = theirs[c->local];
    return mc_fail(c, MC_EMISMATCH, 0, (int)mc_rank_of(c, local), NULL, &other);
  }
  return MC_OK;
}

int mc_local_all_to_all(struct mc_comm *c, mc_epoch_fn *epoch, const void *in, const struct mc_span *ins, void *out,
                        const struct mc_span *outs, size_t longest) {
  /* of a scatter or a gather only the root's pieces are written or read */
  uint32_t writers = c->call.verb == MC_ALL_TO_ALL ? c->locals : 1;
  size_t piece = mc_chunk_bytes(c->tuning.chunk_bytes, c->locals, writers) / c->locals / 64 * 64, done = 0, whole = 0;
  for (uint32_t local = 0; local < c->locals; local++) whole += outs[local].count;
  if (ins[c->local].count) mc_copy_piece(mc_at(out, outs[c->local].begin), mc_at(in, ins[c->local].begin), ins[c->local].count, whole);
  do {
    uint32_t next = mc_next(c);
    for (uint32_t local = 0; local < c->locals; local++)
      if (local != c->local && done < ins[local].count)
        mc_copy(mc_in_slot(c, c->local, next) + local * piece, mc_at(in, ins[local].begin + done),
                mc_less(ins[local].count - done, piece));
    MC_FAULT_POINT(alltoall_copied_in);
    int code = epoch(c);
    if (code) return code;
    MC_FAULT_POINT(alltoall_reading);
    for (uint32_t step = 1; step < c->locals; step++) {
      uint32_t local = (c->local + step) % c->locals;
      if (done < outs[local].count)
        mc_copy_piece(mc_at(out, outs[local].begin + done), mc_in_slot(c, local, next) + c->local * piece,
                      mc_less(outs[local].count - done, piece), whole);
    }
    done += piece;
  } while (done < longest);
  return MC_OK;
}

int mc_local_scatter(struct mc_comm *c, const void *in, void *const *blocks, void *out, size_t bytes, uint32_t root) {
  struct mc_span ins[MC_LOCALS], outs[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) {
    ins[local] = (struct mc_span){blocks ? mc_begin_of(in, blocks[local]) : local * bytes, root == c->local ? bytes : 0};
    outs[local] = (struct mc_span){0, local == root ? bytes : 0};
  }
  return mc_local_all_to_all(c, mc_epoch, in, ins, out, outs, bytes);
}
