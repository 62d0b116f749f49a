/* See driver_deal.h. */
#include "driver_deal.h"
#include <string.h>
#include "driver_values.h"

static bool reduces(uint32_t verb) { return verb == MC_ALL_REDUCE || verb == MC_REDUCE || verb == MC_REDUCE_SCATTER; }

uint64_t deal_in(const struct deal *deal, uint32_t size) {
  switch (deal->verb) {
  case MC_BARRIER:
  case MC_BROADCAST: return 0;
  case MC_REDUCE_SCATTER:
  case MC_SCATTER:
  case MC_ALL_TO_ALL: return deal->count * size;
  default: return deal->count;
  }
}

uint64_t deal_out(const struct deal *deal, uint32_t size) {
  switch (deal->verb) {
  case MC_BARRIER: return 0;
  case MC_ALL_GATHER:
  case MC_GATHER:
  case MC_ALL_TO_ALL: return deal->count * size;
  default: return deal->count;
  }
}

static void fill(const struct deal *deal, uint32_t rank, uint8_t *at, uint64_t count) {
  size_t bytes = value_bytes(deal->dtype);
  for (uint64_t i = 0; i < count; i++) value_draw(deal->dtype, deal->salt, rank, i, at + i * bytes);
}

/* Element i of this rank's result. */
static void expect(const struct rank *self, const struct deal *deal, uint64_t i, void *due) {
  uint64_t count = deal->count, own = self->rank * count;
  uint8_t given[RANKS][VALUE_BYTES];
  const void *from[RANKS];
  switch (deal->verb) {
  case MC_BROADCAST: value_draw(deal->dtype, deal->salt, deal->root, i, due); return;
  case MC_ALL_GATHER:
  case MC_GATHER: value_draw(deal->dtype, deal->salt, (uint32_t)(i / count), i % count, due); return;
  case MC_SCATTER: value_draw(deal->dtype, deal->salt, deal->root, own + i, due); return;
  case MC_ALL_TO_ALL: value_draw(deal->dtype, deal->salt, (uint32_t)(i / count), own + i % count, due); return;
  default: break;
  }
  for (uint32_t rank = 0; rank < self->size; rank++) {
    value_draw(deal->dtype, deal->salt, rank, deal->verb == MC_REDUCE_SCATTER ? own + i : i, given[rank]);
    from[rank] = given[rank];
  }
  value_expect(deal->dtype, deal->op, from, self->scene->node_of, self->size, (double)self->size, due);
}

static bool right(const struct rank *self, const struct deal *deal, const uint8_t *out) {
  size_t bytes = value_bytes(deal->dtype);
  uint32_t op = reduces(deal->verb) ? deal->op : MC_MIN; /* what is only moved keeps all its bits */
  for (uint64_t i = 0; i < deal_out(deal, self->size); i++) {
    uint8_t due[VALUE_BYTES] = {0}, got[VALUE_BYTES] = {0};
    expect(self, deal, i, due);
    memcpy(got, out + i * bytes, bytes);
    if (value_same(deal->dtype, op, got, due)) continue;
    uint64_t words[2];
    memcpy(&words[0], got, sizeof got);
    memcpy(&words[1], due, sizeof due);
    fprintf(stderr, "element %llu is %llx, not %llx\n", (unsigned long long)i, (unsigned long long)words[0],
            (unsigned long long)words[1]);
    return false;
  }
  return true;
}

static bool takes(const struct rank *self, const struct deal *deal) {
  bool rooted = deal->verb == MC_REDUCE || deal->verb == MC_GATHER;
  return !rooted || deal->root == self->rank;
}

static bool untouched(const struct room *room) {
  for (size_t i = 0; i < room->bytes; i++)
    if (room->at[i] != 0x5a) return false;
  return true;
}

bool deal_right(struct rank *self, const struct deal *deal) {
  size_t bytes = value_bytes(deal->dtype);
  uint64_t chance = value_mix(deal->salt * 64 + self->rank), gives = deal_in(deal, self->size);
  struct room ins = room_open(deal->in ? 0 : gives * bytes, chance % 61, chance >> 8 & 1);
  struct room outs = room_open(deal->out ? 0 : deal_out(deal, self->size) * bytes, (chance >> 16) % 61, chance >> 24 & 1);
  uint8_t *in = deal->in ? deal->in : ins.at, *out = deal->out ? deal->out : outs.at;
  fill(deal, self->rank, in, gives);
  if (deal->verb == MC_BROADCAST) fill(deal, self->rank, out, deal->count);
  uint64_t count = deal->verb == MC_BARRIER ? 0 : deal->count;
  int code = run(self, deal->verb, deal->dtype, deal->op, deal->root, in, out, count, WAIT_S);
  bool good = code == MC_OK;
  if (good) good = takes(self, deal) ? right(self, deal, out) : deal->out || untouched(&outs);
  bool beside = room_close(&ins);
  beside = room_close(&outs) && beside;
  if (!good || !beside)
    fprintf(stderr, "rank %u: verb %u, type %u, op %u, root %u, count %llu, salt %llu: code %d, %s\n", self->rank,
            deal->verb, deal->dtype, deal->op, deal->root, (unsigned long long)deal->count,
            (unsigned long long)deal->salt, code, beside ? "wrong" : "written beside its memory");
  return good && beside;
}

struct deal deal_drawn(struct rank *self, uint64_t salt) {
  struct deal deal = {.verb = draw(self, MC_VERBS), .dtype = draw(self, MC_DTYPES), .root = draw(self, self->size), .salt = salt};
  do deal.op = draw(self, MC_OPS);
  while (!value_defined(deal.dtype, deal.op));
  return deal;
}
