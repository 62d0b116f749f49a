/* Within the node, a vector in parts: each local rank sums (or gives) its own, which is a stream of one place or many.
 *
 * An epoch moves a piece of every part at once, so that all ranks work at the same time. */
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

#define ROUND_BYTES ((size_t)4 << 20) /* of slots: the one parity is read while the other is written */
#define LEAST_CHUNK ((size_t)32 << 10)

size_t mc_chunk_bytes(size_t chunk, uint32_t locals, uint32_t writers) {
  if (locals <= 4 || !writers) return chunk;
  size_t shared = ROUND_BYTES / 2 / writers / 64 * 64;
  return mc_less(chunk, shared > LEAST_CHUNK ? shared : LEAST_CHUNK);
}

static size_t chunk_of(const struct mc_comm *c, uint32_t writers) {
  return mc_chunk_bytes(c->tuning.chunk_bytes, c->locals, writers);
}

struct cursor { uint32_t span; size_t inside; };

/* The next place of a stream, at most `room` bytes; 0: the stream ends here. */
static size_t next_run(const struct mc_strided *strided, struct cursor *at, size_t room, size_t *begin) {
  while (at->span < strided->count && at->inside == strided->spans[at->span].count) *at = (struct cursor){at->span + 1, 0};
  if (at->span == strided->count) return 0;
  const struct mc_span *span = &strided->spans[at->span];
  size_t now = mc_less(span->count - at->inside, room);
  *begin = span->begin + at->inside;
  at->inside += now;
  return now;
}

static void collect(uint8_t *slot, const uint8_t *from, const struct mc_strided *strided, struct cursor *at, size_t room) {
  size_t begin, now;
  for (; room && (now = next_run(strided, at, room, &begin)) > 0; room -= now, slot += now) mc_copy(slot, mc_at(from, begin), now);
}

static void spread(uint8_t *to, const uint8_t *slot, const struct mc_strided *strided, struct cursor *at, size_t room,
                   size_t whole) {
  size_t begin, now;
  for (; room && (now = next_run(strided, at, room, &begin)) > 0; room -= now, slot += now)
    mc_copy_piece(mc_at(to, begin), slot, now, whole);
}

struct extent {
  uint32_t owners, writers; /* the first so many streams hold all that are not empty; how many are not */
  size_t longest;
};

/* Of the streams; and where all begin. */
static struct extent measure(const struct mc_comm *c, const struct mc_strided *strided, struct cursor *at) {
  struct extent found = {0, 0, 0};
  for (uint32_t local = 0; local < c->locals; local++) {
    size_t bytes = 0;
    at[local] = (struct cursor){0, 0};
    for (uint32_t i = 0; i < strided[local].count; i++) bytes += strided[local].spans[i].count;
    if (bytes) found.owners = local + 1, found.writers++;
    if (bytes > found.longest) found.longest = bytes;
  }
  return found;
}

struct sum {
  mc_reduce_fn *reduce;
  const uint8_t *in;
  uint8_t *out;
  size_t size;
  bool is_nontemporal;
};

/* `bytes` at `own`, and at `slot_begin` of the slots of the others. A long result is summed where they would be in the
 * own slot, which nobody reads, and copied past the cache from there: the sums themselves would have the target
 * read first. */
static void sum_run(struct mc_comm *c, const struct sum *sum, const uint8_t *own, size_t bytes, size_t slot_begin, uint32_t epoch) {
  uint8_t *scratch = mc_in_slot(c, c->local, epoch) + slot_begin;
  size_t step = sum->is_nontemporal ? MC_BLOCK_BYTES : bytes;
  const void *sources[MC_LOCALS];
  for (size_t at = 0; at < bytes; at += step) {
    size_t now = mc_less(bytes - at, step);
    for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, epoch) + slot_begin + at;
    sources[c->local] = own + at;
    sum->reduce(sum->is_nontemporal ? scratch : sum->out + at, NULL, sources, c->locals, now / sum->size, mc_divisor(c));
    if (sum->is_nontemporal) mc_copy_out(sum->out + at, scratch, now);
  }
}

/* This rank's own stream: its places lie one after another in the slots of the others. */
static void sum_own(struct mc_comm *c, struct sum *sum, const struct mc_strided *stream, struct cursor *at, uint32_t epoch,
                    size_t slot_begin, size_t room) {
  size_t begin, now;
  for (; room && (now = next_run(stream, at, room, &begin)) > 0; room -= now, slot_begin += now, sum->out += now)
    if (c->locals > 1 || sum->out != sum->in + begin) sum_run(c, sum, sum->in + begin, now, slot_begin, epoch);
}

int mc_local_reduce_streams(struct mc_comm *c, mc_epoch_fn *epoch, const void *in, void *out, const struct mc_strided *streams,
                            uint32_t dtype, uint32_t op) {
  struct cursor at[MC_LOCALS];
  struct sum sum = {mc_reducer(dtype, op), in, out, mc_dtype_bytes(dtype), false};
  struct extent of = measure(c, streams, at);
  sum.is_nontemporal = mc_is_nontemporal(of.longest * c->locals);
  size_t done = 0, piece = of.owners ? chunk_of(c, c->locals) / of.owners / 64 * 64 : 64;
  do { /* an empty vector still is an epoch: a barrier, and the comparison of the calls */
    uint32_t next = mc_next(c);
    for (uint32_t local = 0; local < of.owners; local++)
      if (local != c->local) collect(mc_in_slot(c, c->local, next) + local * piece, in, &streams[local], &at[local], piece);
    MC_FAULT_POINT(parts_copied_in);
    int code = epoch(c);
    if (code) return code;
    sum_own(c, &sum, &streams[c->local], &at[c->local], next, c->local * piece, piece);
    MC_FAULT_POINT(parts_summed);
    done += piece;
  } while (done < of.longest);
  return MC_OK;
}

int mc_local_reduce_scatter(struct mc_comm *c, const void *in, void *out, size_t count, uint32_t dtype, uint32_t op) {
  struct mc_span spans[MC_LOCALS];
  struct mc_strided streams[MC_LOCALS];
  size_t bytes = count * mc_dtype_bytes(dtype);
  for (uint32_t local = 0; local < c->locals; local++) {
    spans[local] = (struct mc_span){local * bytes, bytes};
    streams[local] = (struct mc_strided){&spans[local], 1};
  }
  return mc_local_reduce_streams(c, mc_epoch, in, out, streams, dtype, op);
}

int mc_local_gather_streams(struct mc_comm *c, mc_epoch_fn *epoch, void *data, const struct mc_strided *streams, int root) {
  struct cursor at[MC_LOCALS];
  struct extent of = measure(c, streams, at);
  size_t done = 0, piece = chunk_of(c, of.writers);
  bool is_sender = c->locals > 1 && root != (int)c->local, is_receiver = root < 0 || root == (int)c->local;
  do {
    uint32_t next = mc_next(c);
    if (is_sender) collect(mc_in_slot(c, c->local, next), data, &streams[c->local], &at[c->local], piece);
    MC_FAULT_POINT(streams_copied_in);
    int code = epoch(c);
    if (code) return code;
    for (uint32_t step = 1; is_receiver && step < c->locals; step++) { /* not all from the same rank at a time */
      uint32_t local = (c->local + step) % c->locals;
      spread(data, mc_in_slot(c, local, next), &streams[local], &at[local], piece, of.longest);
    }
    MC_FAULT_POINT(streams_spread);
    done += piece;
  } while (done < of.longest);
  return MC_OK;
}

static uint8_t *block_at(void *row, void *const *blocks, uint32_t local, size_t bytes) {
  return blocks ? blocks[local] : (uint8_t *)row + local * bytes;
}

/* `bytes` of each rank; root -1: everybody takes. A piece is read from memory once: for the slot, and then, while
 * it is in the cache and the others are on their way, for the own part. */
int mc_local_gather(struct mc_comm *c, const void *source, void *target, void *const *blocks, size_t bytes, int root) {
  const uint8_t *in = source;
  size_t piece = chunk_of(c, c->locals), whole = bytes * c->locals, done = 0;
  bool is_receiver = root < 0 || root == (int)c->local;
  do {
    uint32_t epoch = mc_next(c);
    size_t now = mc_less(bytes - done, piece);
    if (now && root != (int)c->local) mc_copy(mc_in_slot(c, c->local, epoch), in + done, now);
    MC_FAULT_POINT(gather_copied_in);
    mc_publish(c);
    MC_FAULT_POINT(gather_published);
    if (now && is_receiver) mc_copy_piece(block_at(target, blocks, c->local, bytes) + done, in + done, now, whole);
    int code = mc_await(c);
    if (code) return code;
    MC_FAULT_POINT(gather_reading);
    for (uint32_t step = 1; now && is_receiver && step < c->locals; step++) { /* not all from the same rank at a time */
      uint32_t local = (c->local + step) % c->locals;
      mc_copy_piece(block_at(target, blocks, local, bytes) + done, mc_in_slot(c, local, epoch), now, whole);
    }
    done += now;
  } while (done < bytes);
  return MC_OK;
}
