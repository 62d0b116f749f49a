/* Plays of every type and operation at every width's edges; of results past the cache; of packed legs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "driver_deal.h"
#include "driver_values.h"
#include "kernels/kernels.h"

static const uint32_t reducing[] = {MC_ALL_REDUCE, MC_REDUCE, MC_REDUCE_SCATTER};

/* Elements: around the registers (16, 32, 64 bytes, and four of them), the chunk, several chunks. */
static uint64_t edge(uint32_t dtype, uint64_t which, uint64_t chunk_bytes) {
  static const uint32_t few[] = {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  uint64_t chunk = chunk_bytes / value_bytes(dtype), counts = sizeof few / sizeof *few;
  which %= counts + 5;
  if (which < counts) return few[which];
  return (which - counts < 3 ? chunk : 3 * chunk + 7) + (which - counts) % 3 - 1;
}

/* Of each type, operation and verb as many sizes as rounds; one after the other meets all of them. */
void play_types(struct rank *self) {
  uint64_t salt = self->scene->seed << 20;
  for (uint32_t dtype = 0; dtype < MC_DTYPES; dtype++)
    for (uint32_t op = 0; op < MC_OPS; op++)
      for (uint32_t verb = 0; verb < 3 && value_defined(dtype, op); verb++)
        for (uint32_t round = 0; round < self->scene->rounds; round++) {
          struct deal deal = {.verb = reducing[verb], .dtype = dtype, .op = op, .root = (uint32_t)(++salt % self->size)};
          deal.count = edge(dtype, salt, self->scene->tuning.chunk_bytes);
          deal.salt = salt;
          CHECK(self, deal_right(self, &deal));
        }
}

/* --- results past the cache ------------------------------------------------------------------------ */

#define COLD ((uint64_t)8 << 20) /* NONTEMPORAL_BYTES of kernels.c */

void tune_large(struct mc_tuning *tuning) { /* pieces that are long enough to be copied past the cache */
  tuning->slot_bytes = 256 << 10;
  tuning->chunk_bytes = 128 << 10;
  tuning->segment_bytes = 256 << 10;
}

/* `bytes` of the whole result; of a reduce-scatter the sum's, over all ranks. */
static struct deal large(const struct rank *self, uint32_t verb, uint32_t dtype, uint64_t bytes) {
  bool parts = verb == MC_ALL_GATHER || verb == MC_GATHER || verb == MC_ALL_TO_ALL || verb == MC_REDUCE_SCATTER;
  uint64_t count = bytes / value_bytes(dtype);
  return (struct deal){.verb = verb, .dtype = dtype, .op = MC_SUM, .root = 1, .count = parts ? count / self->size : count};
}

/* On both sides of the border, and an odd length above it; the rounds are how many of the verbs. */
void play_large(struct rank *self) {
  static const uint32_t verbs[] = {MC_ALL_GATHER, MC_REDUCE_SCATTER, MC_ALL_REDUCE, MC_BROADCAST,
                                   MC_ALL_TO_ALL, MC_GATHER,         MC_SCATTER};
  static const uint32_t types[] = {MC_F32, MC_BF16, MC_F64, MC_I64};
  CHECK(self, mc_is_nontemporal(COLD) && !mc_is_nontemporal(COLD - 1));
  uint64_t salt = self->scene->seed;
  for (uint32_t round = 0; round < self->scene->rounds; round++) {
    uint32_t verb = verbs[round % 7], dtype = types[(round + round / 7) % 4];
    uint64_t element = value_bytes(dtype);
    const uint64_t sizes[] = {COLD - element, COLD, COLD + 77 * self->size * element};
    struct deal deal = large(self, verb, dtype, sizes[(round / 7 + 1) % 3]);
    deal.salt = ++salt;
    CHECK(self, deal_right(self, &deal));
  }
}

/* The same of registered memory: pieces are taken straight from where the others have them. */
void play_large_direct(struct rank *self) {
  uint32_t region;
  uint8_t *mine = region_of(self, SHARED - 1, COLD + (1 << 20), &region);
  CHECK(self, mine);
  for (uint32_t round = 0; round < self->scene->rounds; round++) {
    struct deal deal = large(self, round % 2 ? MC_ALL_REDUCE : MC_ALL_GATHER, MC_F32, COLD + 4096);
    deal.salt = self->scene->seed + round;
    deal.out = mine + round % 61;
    if (deal.verb == MC_ALL_REDUCE) deal.in = deal.out;
    CHECK(self, deal_right(self, &deal));
  }
  struct mc_stats stats;
  mc_stats_read(self->comm, &stats);
  CHECK(self, self->scene->nodes > 1 || stats.paths[MC_PATH_DIRECT] == self->scene->rounds);
}

/* --- legs that are packed ---------------------------------------------------------------------------- */

void tune_f16(struct mc_tuning *tuning) { tuning->wire = MC_WIRE_F16; }
void tune_bf16(struct mc_tuning *tuning) { tuning->wire = MC_WIRE_BF16; }
void tune_i8(struct mc_tuning *tuning) { tuning->wire = MC_WIRE_I8; }

/* Values whose sums the form carries exactly: small ones, and of blocks one magnitude and zeros. */
static float plain_value(uint32_t wire, uint64_t salt, uint64_t i) {
  uint64_t chance = value_mix(salt * 77 + i);
  float size = wire == MC_WIRE_I8 ? 127.0f : 3.0f;
  return chance % 5 ? (chance & 64 ? size : -size) : 0;
}

static float rough_value(uint64_t salt, uint32_t rank, uint64_t i) {
  return (float)((double)(value_mix(salt * 131 + rank * 7 + (i << 24)) >> 11) * 0x1p-52 - 1);
}

/* What the sum of rough values may be off by: one rounding of each node's sum and one of the whole. */
static double room_of(uint32_t wire, double most, uint32_t nodes) {
  double step = wire == MC_WIRE_I8 ? most / 254 : wire == MC_WIRE_BF16 ? most * 0x1p-8 : most * 0x1p-11;
  return (nodes + 1) * step * 1.1 + most * 0x1p-20;
}

static bool summed(struct rank *self, uint32_t verb, uint64_t count, uint64_t salt, bool rough) {
  uint64_t whole = verb == MC_REDUCE_SCATTER ? count * self->size : count, begin = whole == count ? 0 : self->rank * count;
  struct room in = room_open(whole * sizeof(float), salt % 7, salt & 1), out = room_open(count * sizeof(float), salt % 5, true);
  for (uint64_t i = 0; i < whole; i++) {
    float value = rough ? rough_value(salt, self->rank, i) : plain_value(self->scene->tuning.wire, salt, i);
    memcpy(in.at + i * sizeof value, &value, sizeof value);
  }
  bool good = run(self, verb, MC_F32, MC_SUM, 0, in.at, out.at, count, WAIT_S) == MC_OK;
  for (uint64_t i = 0; i < count && good; i++) {
    double ideal = 0, off = rough ? room_of(self->scene->tuning.wire, self->size, self->scene->nodes) : 0;
    float got;
    for (uint32_t rank = 0; rank < self->size; rank++)
      ideal += rough ? rough_value(salt, rank, begin + i) : plain_value(self->scene->tuning.wire, salt, begin + i);
    memcpy(&got, out.at + i * sizeof got, sizeof got);
    good = fabs(got - ideal) <= off; /* a NaN is not */
    if (!good) fprintf(stderr, "rank %u: sum %llu is %g, not %g\n", self->rank, (unsigned long long)i, (double)got, ideal);
  }
  good = room_close(&in) && good;
  return room_close(&out) && good;
}

void play_legs(struct rank *self) {
  static const uint64_t counts[] = {1, 255, 256, 257, 511, 1025, 9001, 40003};
  for (uint32_t round = 0; round < self->scene->rounds; round++) {
    uint32_t verb = round & 1 ? MC_REDUCE_SCATTER : MC_ALL_REDUCE;
    uint64_t count = counts[draw(self, 8)];
    CHECK(self, summed(self, verb, count, round + 1, round / 2 & 1));
  }
}
