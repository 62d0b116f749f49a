/* Between nodes: which local rank speaks for which blocks; how long pieces are. */
#include "inter/phases.h"

#define LEAST_SEGMENT 4096u

size_t mc_inter_segment(const struct mc_comm *c) {
  return c->tuning.segment_bytes > LEAST_SEGMENT ? c->tuning.segment_bytes : LEAST_SEGMENT;
}

size_t mc_inter_piece(const struct mc_comm *c, size_t whole, size_t wanted, size_t least) {
  size_t piece = mc_less(mc_inter_segment(c), wanted);
  return mc_less(((piece > least ? piece : least) + 63) / 64 * 64, whole);
}

void mc_inter_cut(const struct mc_comm *c, const size_t *borders, uint32_t first, uint32_t count, struct mc_span spans[2]) {
  uint32_t straight = first + count > c->nodes ? c->nodes - first : count, rest = count - straight;
  spans[0] = (struct mc_span){borders[first], borders[first + straight] - borders[first]};
  spans[1] = (struct mc_span){borders[0], borders[rest] - borders[0]};
}

uint32_t mc_inter_owned(const struct mc_comm *c, uint32_t local, uint32_t from, uint32_t end, uint32_t *ranks) {
  uint32_t count = 0;
  for (uint32_t distance = from; distance < end; distance++) {
    uint32_t node = mc_inter_node(c, distance), locals = mc_inter_locals(c, node);
    for (uint32_t theirs = local; theirs < locals; theirs += c->locals) ranks[count++] = mc_inter_rank(c, node, theirs);
  }
  return count;
}

/* In the caller's row. */
static size_t begin_of(const struct mc_comm *c, uint32_t rank, size_t block) {
  return mc_begin_of(c->call.out, mc_call_block(c, c->call.out, rank, block));
}

const struct mc_strided *mc_inter_strided(struct mc_comm *c, uint32_t from, uint32_t end, size_t block, size_t begin, size_t length) {
  size_t head = c->locals * sizeof(struct mc_strided), spans_bytes = c->size * sizeof(struct mc_span);
  uint8_t *room = mc_inter_scratch(c, MC_SCRATCH_STRIDED, head + spans_bytes + c->size * sizeof(uint32_t));
  if (!room) return NULL;
  struct mc_strided *strided = (struct mc_strided *)(void *)room;
  struct mc_span *spans = (struct mc_span *)(void *)(room + head);
  uint32_t *ranks = (uint32_t *)(void *)(room + head + spans_bytes);
  uint32_t filled = 0;
  for (uint32_t local = 0; local < c->locals; local++) {
    uint32_t count = mc_inter_owned(c, local, from, end, ranks);
    strided[local] = (struct mc_strided){spans + filled, count};
    for (uint32_t i = 0; i < count; i++) spans[filled++] = (struct mc_span){begin_of(c, ranks[i], block) + begin, length};
  }
  return strided;
}
