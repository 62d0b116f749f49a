/* How vectors are cut: no part is longer than the room that was made for it, and what the ranks of a node touch in a round
 * fits a cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "driver.h"
#include "driver_values.h"
#include "inter/phases.h"

#define MOST_BYTES ((size_t)4 << 20) /* that a round touches of slots */

static bool fits(uint64_t count, uint64_t most, size_t size, uint32_t parts) {
  size_t room = mc_rail_longest(most, size, parts), sum = 0;
  for (uint32_t which = 0; which < parts; which++) {
    size_t part = mc_part(count, size, parts, which).count;
    sum += part;
    if (part <= room) continue;
    fprintf(stderr, "part %u of %u of %llu has %zu elements of %zu bytes, room is for %zu (vectors up to %llu)\n", which,
            parts, (unsigned long long)count, part, size, room, (unsigned long long)most);
    return false;
  }
  return sum == count;
}

static bool fits_cache(uint32_t locals, uint32_t writers) {
  const size_t tuned = 1 << 20, chunk = mc_chunk_bytes(tuned, locals, writers), most = locals > 4 ? MOST_BYTES : 2 * locals * tuned;
  if (chunk >= 64 * locals && chunk <= tuned && 2 * writers * chunk <= most) return true;
  fprintf(stderr, "%u of %u ranks write %zu bytes each in a round\n", writers, locals, chunk);
  return false;
}

/* A vector as long as can be and, as the last piece of a call, shorter ones. */
int play_parts(uint32_t rounds) {
  bool good = fits(800018, 800032, 4, 20); /* the last piece of 3 200 114 floats over two nodes of 20 ranks */
  for (uint64_t round = 0; round < rounds && good; round++) {
    uint64_t chance = value_mix(round), most = chance % 100000;
    size_t size = (size_t)1 << (chance >> 20) % 4;
    uint32_t parts = 1 + (uint32_t)((chance >> 30) % MC_LOCALS);
    uint64_t less = most < 2000 ? most : 2000;
    for (uint64_t count = most - less; count <= most && good; count++) good = fits(count, most, size, parts);
  }
  for (uint32_t locals = 2; locals <= 64; locals++)
    for (uint32_t writers = 1; writers <= locals; writers++) good = fits_cache(locals, writers) && good;
  return good ? 0 : 1;
}

/* --- what a round touches ---------------------------------------------------------------------------- */

#define LINE 64u

void tune_default(struct mc_tuning *tuning) { /* as Tuning() of runtime/tuning.py */
  tuning->slot_bytes = tuning->chunk_bytes = 1 << 20, tuning->one_shot_bytes = 128 << 10;
}

/* Lines of the node's slots that hold anything: calls of nothing but ones write no zeros. */
static size_t touched(const struct mc_comm *c) {
  static const uint8_t nothing[LINE];
  size_t bytes = 0, all = (size_t)c->locals * 4 * c->tuning.slot_bytes;
  for (size_t at = 0; at < all; at += LINE)
    if (memcmp(c->slots + at, nothing, LINE)) bytes += LINE;
  return bytes;
}

/* Each verb, in two rounds and more, so that it has touched the slots of both parities. */
void play_footprint(struct rank *self) {
  size_t count = (MOST_BYTES + (MOST_BYTES >> 8)) / self->size, whole = count * self->size;
  size_t most = self->size > 4 ? MOST_BYTES : 2 * self->size * self->scene->tuning.chunk_bytes;
  most += most >> 7; /* the last round is shorter, and its parts lie elsewhere */
  uint8_t *in = malloc(whole), *out = malloc(whole);
  memset(in, 1, whole);
  for (uint32_t verb = 0; verb < MC_VERBS; verb++) {
    bool is_part = verb != MC_ALL_REDUCE && verb != MC_REDUCE && verb != MC_BROADCAST;
    if (verb == MC_BARRIER) continue;
    if (verb == MC_BROADCAST) memset(out, 1, whole);
    if (!self->rank) memset(self->comm->slots, 0, self->size * 4 * self->scene->tuning.slot_bytes);
    CHECK(self, run(self, MC_BARRIER, MC_U8, MC_SUM, 0, NULL, NULL, 0, WAIT_S) == MC_OK);
    CHECK(self, run(self, verb, MC_U8, MC_MAX, 0, in, out, is_part ? count : whole, WAIT_S) == MC_OK);
    CHECK(self, run(self, MC_BARRIER, MC_U8, MC_SUM, 0, NULL, NULL, 0, WAIT_S) == MC_OK);
    size_t found = self->rank ? 0 : touched(self->comm);
    if (!self->rank && getenv("DRIVER_SAYS")) printf("%u ranks, verb %u: %zu KiB\n", self->size, verb, found >> 10);
    if (found > most) fprintf(stderr, "%u ranks touch %zu bytes in verb %u\n", self->size, found, verb);
    CHECK(self, found <= most);
    CHECK(self, self->rank || found > most / 8); /* it has counted */
    CHECK(self, run(self, MC_BARRIER, MC_U8, MC_SUM, 0, NULL, NULL, 0, WAIT_S) == MC_OK); /* all slots are zeroed after this */
  }
  free(in);
  free(out);
}
