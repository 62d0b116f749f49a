/* Between nodes: the phases within the node. As shm/parts.c, but of streams with many places, and the
 * messages of other nodes are moved on after every epoch. */
#include "inter/phases.h"
#include "group/fault_point.h"

struct cursor { uint32_t span; size_t inside; };

/* The next place of a stream, at most `room` bytes; 0: the stream ends here. */
static size_t next_run(const struct mc_strided *strided, struct cursor *at, size_t room, size_t *begin) {
  while (at->span < strided->count && at->inside == strided->spans[at->span].count) *at = (struct cursor){at->span + 1, 0};
  if (at->span == strided->count) return 0;
  const struct mc_span *span = &strided->spans[at->span];
  size_t now = mc_inter_less(span->count - at->inside, room);
  *begin = span->begin + at->inside;
  at->inside += now;
  return now;
}

static void collect(uint8_t *slot, const uint8_t *from, const struct mc_strided *strided, struct cursor *at, size_t room) {
  size_t begin, now;
  for (; room && (now = next_run(strided, at, room, &begin)) > 0; room -= now, slot += now) mc_copy(slot, from + begin, now);
}

static void spread(uint8_t *to, const uint8_t *slot, const struct mc_strided *strided, struct cursor *at, size_t room) {
  size_t begin, now;
  for (; room && (now = next_run(strided, at, room, &begin)) > 0; room -= now, slot += now) mc_copy(to + begin, slot, now);
}

/* How many of the streams, from the first on, hold the non-empty ones; and what the longest has. */
static uint32_t measure(const struct mc_comm *c, const struct mc_strided *strided, size_t *longest) {
  uint32_t owners = 0;
  *longest = 0;
  for (uint32_t local = 0; local < c->locals; local++) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < strided[local].count; i++) bytes += strided[local].spans[i].count;
    if (bytes) owners = local + 1;
    if (bytes > *longest) *longest = bytes;
  }
  return owners;
}

struct sum {
  mc_reduce_fn *reduce;
  const uint8_t *in;
  uint8_t *out;
  size_t size;
};

/* This rank's own stream: its places lie one after another in the slots of the others. */
static void sum_own(struct mc_comm *c, struct sum *sum, const struct mc_strided *strided, struct cursor *at, uint32_t epoch,
                    size_t slot_begin, size_t room) {
  const void *sources[MC_LOCALS];
  size_t begin, now;
  for (; room && (now = next_run(strided, at, room, &begin)) > 0; room -= now, slot_begin += now, sum->out += now) {
    for (uint32_t local = 0; local < c->locals; local++) sources[local] = mc_in_slot(c, local, epoch) + slot_begin;
    sources[c->local] = sum->in + begin;
    if (c->locals > 1 || sum->out != sum->in + begin)
      sum->reduce(sum->out, NULL, sources, c->locals, now / sum->size, mc_divisor(c));
  }
}

int mc_phase_reduce(struct mc_comm *c, const void *in, void *out, const struct mc_strided *strided, uint32_t dtype, uint32_t op) {
  struct cursor at[MC_LOCALS] = {{0, 0}};
  struct sum sum = {mc_reducer(dtype, op), in, out, mc_dtype_bytes(dtype)};
  size_t longest, done = 0;
  uint32_t owners = measure(c, strided, &longest);
  size_t piece = owners ? c->tuning.chunk_bytes / owners / 64 * 64 : 64;
  do {
    uint32_t epoch = mc_next(c);
    for (uint32_t local = 0; local < owners; local++)
      if (local != c->local) collect(mc_in_slot(c, c->local, epoch) + local * piece, in, &strided[local], &at[local], piece);
    MC_FAULT_POINT(phase_reduce_in);
    int code = mc_inter_epoch(c);
    if (code) return code;
    sum_own(c, &sum, &strided[c->local], &at[c->local], epoch, c->local * piece, piece);
    MC_FAULT_POINT(phase_reduce_summed);
    code = mc_inter_progress(c);
    if (code) return code;
    done += piece;
  } while (done < longest);
  return MC_OK;
}

int mc_phase_allgather(struct mc_comm *c, void *data, const struct mc_strided *strided, int root) {
  struct cursor at[MC_LOCALS] = {{0, 0}};
  size_t longest, done = 0, piece = c->tuning.chunk_bytes;
  measure(c, strided, &longest);
  bool is_sender = c->locals > 1 && root != (int)c->local, is_receiver = root < 0 || root == (int)c->local;
  do {
    uint32_t epoch = mc_next(c);
    if (is_sender) collect(mc_in_slot(c, c->local, epoch), data, &strided[c->local], &at[c->local], piece);
    MC_FAULT_POINT(phase_allgather_in);
    int code = mc_inter_epoch(c);
    if (code) return code;
    for (uint32_t step = 1; is_receiver && step < c->locals; step++) { /* not all from the same rank at a time */
      uint32_t local = (c->local + step) % c->locals;
      spread(data, mc_in_slot(c, local, epoch), &strided[local], &at[local], piece);
    }
    MC_FAULT_POINT(phase_allgather_spread);
    code = mc_inter_progress(c);
    if (code) return code;
    done += piece;
  } while (done < longest);
  return MC_OK;
}

int mc_phase_compare(struct mc_comm *c, const struct mc_span *in_spans, const struct mc_span *out_spans, size_t *longest) {
  uint32_t epoch = mc_next(c);
  uint64_t *told = (uint64_t *)(void *)mc_in_slot(c, c->local, epoch);
  for (uint32_t local = 0; local < c->locals; local++) told[local] = in_spans[local].count;
  MC_FAULT_POINT(phase_counted);
  int code = mc_inter_epoch(c);
  if (code) return code;
  *longest = 0;
  for (uint32_t local = 0; local < c->locals; local++) {
    const uint64_t *theirs = (const uint64_t *)(const void *)mc_in_slot(c, local, epoch);
    for (uint32_t to = 0; to < c->locals; to++)
      if (theirs[to] > *longest) *longest = (size_t)theirs[to];
    if (theirs[c->local] == out_spans[local].count) continue;
    struct mc_desc other = c->desc;
    other.count = theirs[c->local];
    return mc_fail(c, MC_EMISMATCH, 0, (int)mc_rank_of(c, local), NULL, &other);
  }
  return MC_OK;
}

int mc_phase_alltoall(struct mc_comm *c, const void *in, const struct mc_span *in_spans, void *out,
                 const struct mc_span *out_spans, size_t longest) {
  const uint8_t *from = in;
  uint8_t *to = out;
  size_t piece = c->tuning.chunk_bytes / c->locals / 64 * 64, done = 0;
  size_t own = in_spans[c->local].count;
  if (own && from + in_spans[c->local].begin != to + out_spans[c->local].begin)
    mc_copy(to + out_spans[c->local].begin, from + in_spans[c->local].begin, own);
  do {
    uint32_t epoch = mc_next(c);
    for (uint32_t local = 0; local < c->locals; local++)
      if (local != c->local && done < in_spans[local].count)
        mc_copy(mc_in_slot(c, c->local, epoch) + local * piece, from + in_spans[local].begin + done,
                mc_inter_less(in_spans[local].count - done, piece));
    MC_FAULT_POINT(phase_alltoall_in);
    int code = mc_inter_epoch(c);
    if (code) return code;
    for (uint32_t step = 1; step < c->locals; step++) {
      uint32_t local = (c->local + step) % c->locals;
      if (done < out_spans[local].count)
        mc_copy(to + out_spans[local].begin + done, mc_in_slot(c, local, epoch) + c->local * piece,
                mc_inter_less(out_spans[local].count - done, piece));
    }
    MC_FAULT_POINT(phase_alltoall_out);
    code = mc_inter_progress(c);
    if (code) return code;
    done += piece;
  } while (done < longest);
  return MC_OK;
}
