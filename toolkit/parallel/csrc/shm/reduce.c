/* Within the node: all-reduce and reduce of whole vectors.
 *
 * One-shot (small): copy in, one epoch, every rank sums all slots in rank order.
 * Staged (large), in chunks: local rank i sums part i of each chunk. One round per chunk says two things
 * at once: "my input of chunk k + 1 is there" and "my part of the sum of chunk k is there". */
#include <string.h>
#include "group/fault_point.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

static const int ALL = -1;

static bool is_receiver(const struct mc_comm *c, int root) { return root == ALL || root == (int)c->local; }

static int one_shot(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op, int root) {
  size_t bytes = count * mc_dtype_bytes(dtype);
  uint32_t epoch = mc_next(c);
  bool is_sender = root != (int)c->local;
  c->path = MC_PATH_ONE_SHOT;
  if (is_sender) memcpy(mc_in_slot(c, c->local, epoch), in, bytes);
  MC_FAULT_POINT(one_shot_copied_in);
  int code = mc_epoch(c);
  if (code || !is_receiver(c, root) || !count) return code;
  MC_FAULT_POINT(one_shot_reading);
  const void *sources[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, epoch);
  sources[c->local] = in;
  mc_reducer(dtype, op)(out, NULL, sources, c->locals, count, mc_divisor(c));
  return MC_OK;
}

/* Two ranks and one handler: halving the work would only add a second way through memory. */
static int to_one(struct mc_comm *c, const uint8_t *in, uint8_t *out, size_t count, uint32_t dtype, uint32_t op, int root) {
  size_t size = mc_dtype_bytes(dtype), chunk = c->tuning.chunk_bytes / size;
  for (size_t done = 0; done < count; done += chunk) {
    size_t now = count - done < chunk ? count - done : chunk;
    int code = one_shot(c, in + done * size, out + done * size, now, dtype, op, root);
    if (code) return code;
  }
  c->path = MC_PATH_STAGED; /* as it was: one shot after another is not one */
  return MC_OK;
}

struct chunk { size_t at, count; struct mc_span mine; };

static struct chunk chunk_of(const struct mc_comm *c, size_t count, size_t size, size_t each, size_t which) {
  size_t at = which * each, now = count - at < each ? count - at : each;
  return (struct chunk){at, now, mc_part(now, size, c->locals, c->local)};
}

/* All but the own part: that one is summed from where it lies. */
static void copy_in(struct mc_comm *c, const uint8_t *in, struct chunk k, size_t size, uint32_t epoch) {
  uint8_t *slot = mc_in_slot(c, c->local, epoch);
  const uint8_t *from = in + k.at * size;
  size_t end = k.mine.begin + k.mine.count;
  mc_copy(slot, from, k.mine.begin * size);
  mc_copy(slot + end * size, from + end * size, (k.count - end) * size);
}

static void sum_part(struct mc_comm *c, const uint8_t *in, uint8_t *out, struct chunk k, size_t size, uint32_t epoch,
                     mc_reduce_fn *reduce, bool keep) {
  const void *sources[MC_LOCALS];
  size_t begin = k.mine.begin * size;
  if (!k.mine.count) return;
  for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, epoch) + begin;
  sources[c->local] = in + k.at * size + begin;
  uint8_t *given = mc_out_slot(c, c->local, epoch + 1);
  if (keep) reduce(out + k.at * size + begin, given, sources, c->locals, k.mine.count, mc_divisor(c));
  else reduce(given, NULL, sources, c->locals, k.mine.count, mc_divisor(c));
}

static void copy_out(struct mc_comm *c, uint8_t *out, struct chunk k, size_t size, uint32_t epoch, size_t whole) {
  for (uint32_t step = 1; step < c->locals; step++) {
    uint32_t local = (c->local + step) % c->locals;
    struct mc_span part = mc_part(k.count, size, c->locals, local);
    mc_copy_piece(out + (k.at + part.begin) * size, mc_out_slot(c, local, epoch), part.count * size, whole);
  }
}

static int staged(struct mc_comm *c, const uint8_t *in, uint8_t *out, size_t count, uint32_t dtype, uint32_t op, int root) {
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  size_t size = mc_dtype_bytes(dtype), each = mc_chunk_bytes(c->tuning.chunk_bytes, c->locals, c->locals) / size;
  size_t chunks = (count + each - 1) / each;
  struct chunk k = chunk_of(c, count, size, each, 0);
  copy_in(c, in, k, size, mc_next(c));
  MC_FAULT_POINT(staged_copied_in);
  int code = mc_epoch(c);
  for (size_t which = 0; which < chunks && !code; which++) {
    uint32_t epoch = c->epoch;
    sum_part(c, in, out, k, size, epoch, reduce, is_receiver(c, root));
    MC_FAULT_POINT(staged_summed);
    struct chunk next = k;
    if (which + 1 < chunks) {
      next = chunk_of(c, count, size, each, which + 1);
      copy_in(c, in, next, size, epoch + 1);
      MC_FAULT_POINT(staged_next_in);
    }
    code = mc_epoch(c);
    MC_FAULT_POINT(staged_reading);
    if (!code && is_receiver(c, root)) copy_out(c, out, k, size, epoch + 1, count * size);
    k = next;
  }
  return code;
}

int mc_local_reduce(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op,
                    int root) {
  size_t bytes = count * mc_dtype_bytes(dtype);
  if (bytes <= c->tuning.slot_bytes && bytes * c->locals <= c->tuning.one_shot_bytes)
    return one_shot(c, in, out, count, dtype, op, root);
  if (root != ALL && c->locals == 2) return to_one(c, in, out, count, dtype, op, root);
  return staged(c, in, out, count, dtype, op, root);
}
