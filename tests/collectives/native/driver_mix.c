/* A play in which everything happens in one sequence: calls of every verb, type and operation, messages that are
 * under way meanwhile, and registered memory that comes and goes. The ranks draw the same sequence. */
#include "driver_deal.h"
#include "driver_values.h"

#define REGIONS 3u
#define REGION_BYTES ((size_t)192 << 10) /* of each rank */
#define LETTERS 6u

struct letter { /* one sent and one received, under way */
  uint64_t requests[2], bytes;
  uint32_t tag, from;
  struct room out, in;
};
struct mix {
  struct rank *self;
  struct letter letters[LETTERS]; /* the oldest first */
  uint32_t under_way, tags;
  uint8_t *regions[REGIONS]; /* this rank's memory; NULL: not registered now */
  uint32_t numbers[REGIONS];
  uint64_t salt, direct;
};

static bool toggle_region(struct mix *mix, uint32_t region) {
  struct rank *self = mix->self;
  bool adds = mix->regions[region] == NULL;
  if (adds) mix->regions[region] = region_of(self, region, REGION_BYTES, &mix->numbers[region]);
  if (adds) return mix->regions[region] != NULL;
  mix->regions[region] = NULL;
  return mc_region_drop(self->comm, mix->numbers[region]) == MC_OK;
}

/* --- calls ------------------------------------------------------------------------------------------ */

static bool call(struct mix *mix) {
  static const uint32_t counts[] = {0, 1, 17, 255, 1025, 2049, 5001};
  struct deal deal = deal_drawn(mix->self, ++mix->salt);
  deal.count = counts[draw(mix->self, 7)];
  return deal_right(mix->self, &deal);
}

/* In registered memory, at a place that differs from rank to rank; at times not on all ranks. */
static bool call_registered(struct mix *mix, uint32_t region) {
  static const uint32_t verbs[] = {MC_ALL_REDUCE, MC_ALL_GATHER, MC_REDUCE_SCATTER};
  struct rank *self = mix->self;
  struct deal deal = deal_drawn(self, ++mix->salt);
  deal.verb = verbs[draw(self, 3)];
  size_t bytes = value_bytes(deal.dtype), most = (REGION_BYTES - 4096) / self->size / bytes;
  deal.count = 1 + draw(self, (uint32_t)most);
  bool own_place = draw(self, 2), everybody = draw(self, 4);
  if (!mix->regions[region]) return true; /* all ranks know the same */
  if (everybody && deal.count * bytes >= self->scene->tuning.direct_bytes) mix->direct++;
  if (!everybody && self->rank % 2) return deal_right(self, &deal);
  uint8_t *at = mix->regions[region] + value_mix(deal.salt * RANKS + self->rank) % 4096;
  if (deal.verb == MC_REDUCE_SCATTER) deal.in = at;
  else deal.out = at;
  if (deal.verb == MC_ALL_REDUCE) deal.in = at;
  if (deal.verb == MC_ALL_GATHER && own_place) deal.in = at + self->rank * deal.count * bytes;
  return deal_right(self, &deal);
}

/* --- messages ---------------------------------------------------------------------------------------- */

static uint8_t byte_of(uint32_t tag, uint32_t rank, uint64_t i) {
  return (uint8_t)value_mix(((uint64_t)tag << 8 | rank) ^ i << 32);
}

static bool post(struct mix *mix) {
  static const uint32_t sizes[] = {0, 1, 65, 4097, 70001};
  struct rank *self = mix->self;
  uint32_t distance = 1 + draw(self, self->size - 1), from_any = draw(self, 3), larger = draw(self, 2) * 100;
  struct letter *letter = &mix->letters[mix->under_way];
  uint64_t bytes = sizes[draw(self, 5)];
  if (mix->under_way == LETTERS) return true;
  *letter = (struct letter){.bytes = bytes, .tag = ++mix->tags, .from = (self->rank + self->size - distance) % self->size};
  letter->out = room_open(bytes, letter->tag % 9, letter->tag & 1);
  letter->in = room_open(bytes + larger, letter->tag % 7, letter->tag & 2);
  for (uint64_t i = 0; i < bytes; i++) letter->out.at[i] = byte_of(letter->tag, self->rank, i);
  int32_t to = (int32_t)((self->rank + distance) % self->size), from = from_any ? (int32_t)letter->from : -1;
  mix->under_way++;
  return mc_post(self->comm, MC_SEND, to, letter->tag, letter->out.at, bytes, WAIT_S, &letter->requests[0]) == MC_OK &&
         mc_post(self->comm, MC_RECV, from, letter->tag, letter->in.at, bytes + larger, WAIT_S, &letter->requests[1]) == MC_OK;
}

static bool arrived(struct rank *self, uint64_t request, struct mc_status *status) {
  self->failure = (struct mc_failure){.rank_status = self->rank_status};
  return mc_wait(self->comm, request, WAIT_S, status, &self->failure) == MC_OK && status->done && status->code == MC_OK;
}

/* Ends one that is under way, any of them. */
static bool settle(struct mix *mix) {
  struct rank *self = mix->self;
  uint32_t which = draw(self, LETTERS);
  if (!mix->under_way) return true;
  struct letter letter = mix->letters[which % mix->under_way];
  mix->letters[which % mix->under_way] = mix->letters[mix->under_way - 1];
  mix->under_way--;
  struct mc_status in = {0}, out = {0};
  bool good = arrived(self, letter.requests[1], &in) && arrived(self, letter.requests[0], &out);
  good = good && in.bytes == letter.bytes && in.peer == (int32_t)letter.from && in.tag == letter.tag;
  for (uint64_t i = 0; i < letter.bytes && good; i++) good = letter.in.at[i] == byte_of(letter.tag, letter.from, i);
  for (uint64_t i = letter.bytes; i < letter.in.bytes && good; i++) good = letter.in.at[i] == 0x5a;
  if (!good)
    fprintf(stderr, "rank %u: message %u of %llu bytes from %u\n", self->rank, letter.tag, (unsigned long long)letter.bytes,
            letter.from);
  good = room_close(&letter.out) && good;
  return room_close(&letter.in) && good;
}

/* --- all of it --------------------------------------------------------------------------------------- */

static bool step(struct mix *mix) {
  uint32_t what = draw(mix->self, 16), region = draw(mix->self, REGIONS);
  if (what < 6) return call(mix);
  if (what < 10) return call_registered(mix, region);
  if (what < 13) return post(mix);
  if (what < 15) return settle(mix);
  return toggle_region(mix, region);
}

void play_mix(struct rank *self) {
  struct mix mix = {.self = self, .salt = self->scene->seed << 20};
  CHECK(self, toggle_region(&mix, 0));
  for (uint32_t round = 0; round < self->scene->rounds; round++) CHECK(self, step(&mix));
  while (mix.under_way) CHECK(self, settle(&mix));
  struct mc_stats stats;
  mc_stats_read(self->comm, &stats);
  CHECK(self, stats.sends == mix.tags && stats.receives == mix.tags);
  CHECK(self, self->scene->nodes > 1 || stats.paths[MC_PATH_DIRECT] == mix.direct);
}
