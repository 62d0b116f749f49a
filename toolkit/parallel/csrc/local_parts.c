/* Within the node, a vector in parts: each local rank sums (or gives) its own part.
 *
 * Each span is one local rank's part of the caller's memory; a round moves a piece of every span at once,
 * so that all ranks work at the same time. */
#include <string.h>
#include "comm.h"
#include "kernels.h"

struct mc_span mc_part(size_t count, size_t element_bytes, uint32_t parts, uint32_t which) {
  size_t grain = element_bytes < 64 ? 64 / element_bytes : 1;
  size_t each = (count / parts + grain - 1) / grain * grain;
  size_t begin = (size_t)which * each, end = begin + each;
  if (begin > count) begin = count;
  if (which + 1 == parts || end > count) end = count;
  return (struct mc_span){begin, end - begin};
}

static size_t at_most(size_t left, size_t piece) { return left < piece ? left : piece; }

/* How many elements of a span are in the piece that begins at `done`. */
static size_t in_piece(struct mc_span span, size_t done, size_t piece) {
  return done < span.count ? at_most(span.count - done, piece) : 0;
}

struct job {
  const uint8_t *in;
  uint8_t *out;                 /* of this rank's own span */
  const struct mc_span *spans;  /* [parts], in elements of `in` */
  uint32_t parts;
  size_t longest, element_bytes;
};

#define BLOCK_BYTES ((size_t)16 << 10) /* summed, then copied on while they are in the first cache */

/* The own piece. A long result is summed where the own part of the own slot would be, which nobody reads, and
 * copied past the cache from there: the sums themselves would have the target read first. */
static void sum_piece(struct mc_comm *c, const struct job *job, mc_reduce_fn *reduce, size_t done, size_t count,
                      size_t piece, uint32_t round) {
  size_t size = job->element_bytes, whole = job->longest * job->parts * size, step = BLOCK_BYTES / size;
  size_t begin = c->local * piece * size;
  uint8_t *scratch = mc_in_slot(c, c->local, round) + begin, *out = job->out + done * size;
  const uint8_t *own = job->in + (job->spans[c->local].begin + done) * size;
  bool is_cold = mc_is_cold(whole);
  if (!is_cold) step = count;
  for (size_t at = 0; at < count; at += step) {
    size_t now = at_most(count - at, step);
    const void *sources[MC_LOCALS];
    for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, round) + begin + at * size;
    sources[c->local] = own + at * size;
    reduce(is_cold ? scratch : out + at * size, NULL, sources, c->locals, now, mc_divisor(c));
    if (is_cold) mc_copy_out(out + at * size, scratch, now * size);
  }
}

static int reduce_spans(struct mc_comm *c, const struct job *job, uint32_t dtype, uint32_t op) {
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  size_t size = job->element_bytes;
  size_t piece = c->tuning.chunk_bytes / job->parts / 64 * 64 / size;
  bool mine = c->local < job->parts;
  size_t done = 0;
  do { /* an empty vector still is a round: a barrier, and the comparison of the calls */
    uint32_t round = mc_next(c);
    uint8_t *slot = mc_in_slot(c, c->local, round);
    for (uint32_t part = 0; part < job->parts; part++) {
      size_t count = in_piece(job->spans[part], done, piece);
      if (part != c->local && count)
        mc_copy(slot + part * piece * size, job->in + (job->spans[part].begin + done) * size, count * size);
    }
    int code = mc_round(c);
    if (code) return code;
    size_t count = mine ? in_piece(job->spans[c->local], done, piece) : 0;
    if (count) sum_piece(c, job, reduce, done, count, piece, round);
    done += piece;
  } while (done < job->longest);
  return MC_OK;
}

int mc_local_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op) {
  struct mc_span spans[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) spans[local] = (struct mc_span){local * count, count};
  struct job job = {in, out, spans, c->locals, count, mc_dtype_bytes(dtype)};
  return reduce_spans(c, &job, dtype, op);
}

int mc_local_reduce_parts(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op,
                          uint32_t parts) {
  struct mc_span spans[MC_LOCALS];
  size_t longest = 0, size = mc_dtype_bytes(dtype);
  for (uint32_t part = 0; part < parts; part++) {
    spans[part] = mc_part(count, size, parts, part);
    if (spans[part].count > longest) longest = spans[part].count;
  }
  uint8_t *own = c->local < parts ? (uint8_t *)out + spans[c->local].begin * size : NULL;
  struct job job = {in, own, spans, parts, longest, size};
  return reduce_spans(c, &job, dtype, op);
}

/* Spans of bytes of `out`; this rank gives `in` (its own span, in place or not). A piece is read from memory
 * once: for the slot, and then, while it is in the cache and the others are on their way, for the own span. */
static int gather_spans(struct mc_comm *c, const uint8_t *in, uint8_t *out, const struct mc_span *spans, uint32_t parts,
                        size_t longest, int root) {
  size_t piece = c->tuning.chunk_bytes;
  bool gives = c->local < parts, takes = root < 0 || root == (int)c->local;
  size_t whole = longest * parts, done = 0;
  do {
    uint32_t round = mc_next(c);
    size_t count = gives ? in_piece(spans[c->local], done, piece) : 0;
    if (count && root != (int)c->local) mc_copy(mc_in_slot(c, c->local, round), in + done, count);
    mc_publish(c);
    if (count && takes) mc_copy_piece(out + spans[c->local].begin + done, in + done, count, whole);
    int code = mc_await(c);
    if (code) return code;
    for (uint32_t step = 1; takes && step < c->locals; step++) { /* not all from the same rank at a time */
      uint32_t part = (c->local + step) % c->locals;
      size_t other = part < parts ? in_piece(spans[part], done, piece) : 0;
      if (other) mc_copy_piece(out + spans[part].begin + done, mc_in_slot(c, part, round), other, whole);
    }
    done += piece;
  } while (done < longest);
  return MC_OK;
}

static int gather(struct mc_comm *c, const void *in, void *out, size_t bytes, int root) {
  struct mc_span spans[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) spans[local] = (struct mc_span){local * bytes, bytes};
  return gather_spans(c, in, out, spans, c->locals, bytes, root);
}

int mc_local_all_gather(struct mc_comm *c, const void *in, void *out, size_t bytes) { return gather(c, in, out, bytes, -1); }

int mc_local_gather(struct mc_comm *c, const void *in, void *out, size_t bytes, uint32_t root) {
  return gather(c, in, out, bytes, (int)root);
}

int mc_local_gather_parts(struct mc_comm *c, void *data, size_t count, size_t element_bytes, uint32_t parts) {
  struct mc_span spans[MC_LOCALS];
  size_t longest = 0;
  for (uint32_t part = 0; part < parts; part++) {
    struct mc_span span = mc_part(count, element_bytes, parts, part);
    spans[part] = (struct mc_span){span.begin * element_bytes, span.count * element_bytes};
    if (spans[part].count > longest) longest = spans[part].count;
  }
  const uint8_t *own = c->local < parts ? (uint8_t *)data + spans[c->local].begin : NULL;
  return gather_spans(c, own, data, spans, parts, longest, -1);
}
