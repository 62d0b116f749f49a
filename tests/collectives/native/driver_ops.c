/* Plays in which all goes well: each verb at drawn sizes, registered memory, messages. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "driver.h"

/* What element i of rank r's input is: small enough that fp32 sums of 16 ranks are exact. */
static int32_t value(uint32_t rank, uint64_t i) { return (int32_t)(rank * 1000 + i % 997); }

static int32_t sum(uint32_t size, uint64_t i) {
  return (int32_t)(size * (size - 1) / 2 * 1000 + size * (i % 997));
}

static void fill(void *data, bool real, uint32_t rank, uint64_t count) {
  for (uint64_t i = 0; i < count; i++)
    if (real) ((float *)data)[i] = (float)value(rank, i);
    else ((int32_t *)data)[i] = value(rank, i);
}

static int32_t at(const void *data, bool real, uint64_t i) {
  return real ? (int32_t)((const float *)data)[i] : ((const int32_t *)data)[i];
}

static bool sums(const void *out, bool real, uint32_t size, uint64_t begin, uint64_t count) {
  for (uint64_t i = 0; i < count; i++)
    if (at(out, real, i) != sum(size, begin + i)) return false;
  return true;
}

static bool values(const void *out, bool real, uint64_t from, uint32_t rank, uint64_t begin, uint64_t count) {
  for (uint64_t i = 0; i < count; i++)
    if (at(out, real, from + i) != value(rank, begin + i)) return false;
  return true;
}

static void one(struct rank *self, uint32_t verb, bool real, uint64_t count, uint32_t root) {
  uint32_t size = self->size, rank = self->rank, dtype = real ? MC_F32 : MC_I32;
  uint64_t whole = count * size;
  void *in = malloc(whole * 4 + 4), *out = calloc(whole + 1, 4);
  fill(in, real, rank, whole);
  if (verb == MC_BROADCAST) memcpy(out, in, count * 4);
  int code = run(self, verb, dtype, MC_SUM, root, in, out, verb == MC_BARRIER ? 0 : count, WAIT_S);
  bool right = code == MC_OK;
  for (uint32_t r = 0; r < size && right; r++) switch (verb) {
      case MC_ALL_GATHER: right = values(out, real, r * count, r, 0, count); break;
      case MC_GATHER: right = rank != root || values(out, real, r * count, r, 0, count); break;
      case MC_ALL_TO_ALL: right = values(out, real, r * count, r, rank * count, count); break;
      default: break;
    }
  if (right) switch (verb) {
      case MC_ALL_REDUCE: right = sums(out, real, size, 0, count); break;
      case MC_REDUCE: right = rank != root || sums(out, real, size, 0, count); break;
      case MC_REDUCE_SCATTER: right = sums(out, real, size, rank * count, count); break;
      case MC_BROADCAST: right = values(out, real, 0, root, 0, count); break;
      case MC_SCATTER: right = values(out, real, 0, root, rank * count, count); break;
      default: break;
    }
  free(in);
  free(out);
  if (!right) fprintf(stderr, "verb %u, count %llu, root %u\n", verb, (unsigned long long)count, root);
  CHECK(self, right);
}

void play_ops(struct rank *self) {
  static const uint64_t counts[] = {0, 1, 15, 16, 17, 255, 1023, 1024, 1025, 2048, 3 * 1024 + 7};
  for (uint32_t round = 0; round < self->scene->rounds && !self->wrong; round++) {
    uint32_t verb = draw(self, MC_VERBS), real = draw(self, 2), root = draw(self, self->size);
    one(self, verb, real, counts[draw(self, sizeof counts / sizeof *counts)], root);
  }
}

/* One-shot rounds only, as fast as they go: parity and sleepers under the most haste. */
void play_small(struct rank *self) {
  for (uint32_t round = 0; round < self->scene->rounds; round++) {
    int64_t word = round + self->rank;
    CHECK(self, run(self, MC_ALL_REDUCE, MC_I64, MC_SUM, 0, &word, &word, 1, WAIT_S) == MC_OK);
    CHECK(self, word == (int64_t)self->size * round + self->size * (self->size - 1) / 2);
  }
}

#define REGION (1u << 20)

uint8_t *region_of(struct rank *self, uint32_t which, size_t bytes, uint32_t *region) {
  uint8_t *whole = shared_memory(which, bytes * RANKS);
  void *bases[RANKS];
  uint32_t local = 0;
  for (uint32_t rank = 0; rank < self->size; rank++)
    if (self->scene->node_of[rank] == self->scene->node_of[self->rank]) bases[local++] = whole + rank * bytes;
  return mc_region_add(self->comm, bases, bytes, region) == MC_OK ? whole + self->rank * bytes : NULL;
}

void play_direct(struct rank *self) {
  uint32_t region;
  uint8_t *mine = region_of(self, 0, REGION, &region);
  CHECK(self, mine);
  for (uint32_t round = 0; round < self->scene->rounds; round++) {
    uint64_t count = 1000 + 777 * draw(self, 8);
    fill(mine, true, self->rank, count);
    CHECK(self, run(self, MC_ALL_REDUCE, MC_F32, MC_SUM, 0, mine, mine, count, WAIT_S) == MC_OK);
    CHECK(self, sums(mine, true, self->size, 0, count));
  }
  struct mc_stats stats;
  mc_stats_read(self->comm, &stats);
  CHECK(self, self->scene->nodes > 1 || stats.paths[MC_PATH_DIRECT] >= self->scene->rounds);
  CHECK(self, mc_region_drop(self->comm, region) == MC_OK);
}

void tune_adopts(struct mc_tuning *tuning) { tuning->adopt_bytes = 1u << 30; }

/* Memory of each rank's own, at another place in its page on each, is registered in a sum; some ends before the group. */
void play_adopts(struct rank *self) {
  enum { COUNT = 300000, PLACES = 3 };
  uint64_t lead = 4 * (1 + 5 * self->rank);
  for (uint32_t place = 0; place < PLACES; place++) {
    float *whole = malloc((COUNT + 1024) * sizeof *whole), *mine = whole + lead;
    struct mc_adopted *adopted = NULL;
    CHECK(self, whole && mc_adopt(self->comm, mine, COUNT * sizeof *mine, place == 1, &adopted) == MC_OK);
    for (uint32_t round = 0; round < self->scene->rounds; round++) {
      uint64_t first = round ? draw(self, 5000) : 0, count = round ? COUNT - first - draw(self, 5000) : COUNT;
      fill(mine + first, true, self->rank, count);
      CHECK(self, run(self, MC_ALL_REDUCE, MC_F32, MC_SUM, 0, mine + first, mine + first, count, WAIT_S) == MC_OK);
      CHECK(self, sums(mine + first, true, self->size, 0, count));
    }
    mc_adopted_end(adopted, 0);
    free(whole);
  }
  struct mc_stats stats;
  mc_stats_read(self->comm, &stats);
  CHECK(self, stats.paths[MC_PATH_DIRECT] >= self->scene->rounds);
}

static bool done(struct rank *self, uint64_t request, struct mc_status *status) {
  self->failure = (struct mc_failure){.rank_status = self->rank_status};
  return mc_wait(self->comm, request, WAIT_S, status, &self->failure) == MC_OK && status->done && status->code == MC_OK;
}

/* To the next rank, from the one before; sizes from nothing to many slots. */
void play_messages(struct rank *self) {
  static const uint64_t sizes[] = {0, 1, 63, 4096, 100000};
  uint32_t next = (self->rank + 1) % self->size, before = (self->rank + self->size - 1) % self->size;
  for (uint32_t round = 0; round < self->scene->rounds; round++) {
    uint64_t bytes = sizes[draw(self, 5)], requests[2];
    char *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    memset(out, (int)(self->rank * 31 + round) & 0xff, bytes);
    int sent = mc_post(self->comm, MC_SEND, (int32_t)next, round, out, bytes, WAIT_S, &requests[0]);
    int got = mc_post(self->comm, MC_RECV, round % 3 ? (int32_t)before : -1, round, in, bytes, WAIT_S, &requests[1]);
    struct mc_status status = {0}, other = {0};
    bool right = sent == MC_OK && got == MC_OK && done(self, requests[1], &status) && done(self, requests[0], &other);
    right = right && status.bytes == bytes && status.peer == (int32_t)before && status.tag == round;
    for (uint64_t i = 0; i < bytes && right; i++) right = in[i] == (char)((before * 31 + round) & 0xff);
    free(out);
    free(in);
    CHECK(self, right);
  }
}

static void *messages(void *self) {
  play_messages(self);
  return NULL;
}

/* Messages from a second thread while the first is in collectives. */
void play_messages_beside(struct rank *self) {
  struct rank other = *self;
  pthread_t thread;
  CHECK(self, pthread_create(&thread, NULL, messages, &other) == 0);
  play_small(self);
  pthread_join(thread, NULL);
  self->wrong += other.wrong;
  struct mc_stats stats;
  mc_stats_read(self->comm, &stats);
  CHECK(self, stats.calls[MC_ALL_REDUCE] == self->scene->rounds);
}
