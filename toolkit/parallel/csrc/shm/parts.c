/* Within the node, a vector in parts: each local rank sums (or gives) its own.
 *
 * A round moves a piece of every part at once, so that all ranks work at the same time. */
#include <string.h>
#include "group/fault_point.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

struct mc_span mc_part(size_t count, size_t element_bytes, uint32_t parts, uint32_t which) {
  size_t grain = element_bytes < 64 ? 64 / element_bytes : 1;
  size_t each = (count / parts + grain - 1) / grain * grain;
  size_t begin = (size_t)which * each, end = begin + each;
  if (begin > count) begin = count;
  if (which + 1 == parts || end > count) end = count;
  return (struct mc_span){begin, end - begin};
}

static size_t at_most(size_t left, size_t piece) { return left < piece ? left : piece; }

struct job { /* every rank gives `count` elements for each */
  const uint8_t *in;
  uint8_t *out;
  size_t count, element_bytes, piece; /* piece: elements of a part in one epoch */
};

/* `count` elements of the own part from `done` on. A long result is summed where the own part of the own slot
 * would be, which nobody reads, and copied past the cache from there: the sums themselves would have the target
 * read first. */
static void sum_piece(struct mc_comm *c, const struct job *job, mc_reduce_fn *reduce, size_t done, size_t count,
                      uint32_t epoch) {
  size_t size = job->element_bytes, begin = c->local * job->piece * size;
  uint8_t *scratch = mc_in_slot(c, c->local, epoch) + begin, *out = job->out + done * size;
  const uint8_t *own = job->in + (c->local * job->count + done) * size;
  bool is_nontemporal = mc_is_nontemporal(job->count * size * c->locals);
  size_t step = is_nontemporal ? MC_BLOCK_BYTES / size : count;
  for (size_t at = 0; at < count; at += step) {
    size_t now = at_most(count - at, step);
    const void *sources[MC_LOCALS];
    for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, epoch) + begin + at * size;
    sources[c->local] = own + at * size;
    reduce(is_nontemporal ? scratch : out + at * size, NULL, sources, c->locals, now, mc_divisor(c));
    if (is_nontemporal) mc_copy_out(out + at * size, scratch, now * size);
  }
}

int mc_local_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op) {
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  size_t size = mc_dtype_bytes(dtype), piece = c->tuning.chunk_bytes / c->locals / 64 * 64 / size, done = 0;
  const struct job job = {in, out, count, size, piece};
  do { /* an empty vector still is an epoch: a barrier, and the comparison of the calls */
    uint32_t epoch = mc_next(c);
    uint8_t *slot = mc_in_slot(c, c->local, epoch);
    size_t now = at_most(count - done, piece);
    for (uint32_t part = 0; part < c->locals; part++)
      if (part != c->local && now) mc_copy(slot + part * piece * size, job.in + (part * count + done) * size, now * size);
    MC_FAULT_POINT(parts_copied_in);
    int code = mc_epoch(c);
    if (code) return code;
    if (now) sum_piece(c, &job, reduce, done, now, epoch);
    MC_FAULT_POINT(parts_summed);
    done += now;
  } while (done < count);
  return MC_OK;
}

/* `bytes` of each rank; root -1: everybody takes. A piece is read from memory once: for the slot, and then, while
 * it is in the cache and the others are on their way, for the own part. */
static int gather(struct mc_comm *c, const uint8_t *in, uint8_t *out, size_t bytes, int root) {
  size_t piece = c->tuning.chunk_bytes, whole = bytes * c->locals, done = 0;
  bool is_receiver = root < 0 || root == (int)c->local;
  do {
    uint32_t epoch = mc_next(c);
    size_t now = at_most(bytes - done, piece);
    if (now && root != (int)c->local) mc_copy(mc_in_slot(c, c->local, epoch), in + done, now);
    MC_FAULT_POINT(gather_copied_in);
    mc_publish(c);
    MC_FAULT_POINT(gather_published);
    if (now && is_receiver) mc_copy_piece(out + c->local * bytes + done, in + done, now, whole);
    int code = mc_await(c);
    if (code) return code;
    MC_FAULT_POINT(gather_reading);
    for (uint32_t step = 1; now && is_receiver && step < c->locals; step++) { /* not all from the same rank at a time */
      uint32_t local = (c->local + step) % c->locals;
      mc_copy_piece(out + local * bytes + done, mc_in_slot(c, local, epoch), now, whole);
    }
    done += now;
  } while (done < bytes);
  return MC_OK;
}

int mc_local_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes) { return gather(c, in, out, bytes, -1); }

int mc_local_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, uint32_t root) {
  return gather(c, in, out, bytes, (int)root);
}
