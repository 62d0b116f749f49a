/* The kernels by themselves, of the instruction set in use: every type, operation and wire's form at every
 * length about the registers' widths and at odd addresses. Each result is what driver_values.c says, and has
 * the very bits of the plain kernels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "driver.h"
#include "driver_values.h"
#include "kernels/isa_kernels.h"

#define MOST 5u /* sources */

static const uint32_t lengths[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  15, 16,  17,  31,  32,  33,  47, 48,
                                   49, 63, 64, 65, 79, 95, 96, 97, 127, 128, 129, 191, 255, 256, 257, 321};
#define LENGTHS (sizeof lengths / sizeof *lengths)

static bool wrong(const char *what, uint32_t kind, uint32_t op, uint64_t count, uint64_t i) {
  fprintf(stderr, "%s: %s of kind %u, op %u, count %llu is wrong at %llu\n", mc_isa(), what, kind, op,
          (unsigned long long)count, (unsigned long long)i);
  return false;
}

/* --- reductions --------------------------------------------------------------------------------------- */

struct sum { uint32_t dtype, op, n; uint64_t count, salt; };

static bool sums_right(const struct sum *sum, const void *const *src, const uint8_t *got, double divisor) {
  static const uint32_t one_node[MOST];
  size_t bytes = value_bytes(sum->dtype);
  uint8_t *plain = malloc(sum->count * bytes + 1);
  mc_kernels_plain.reduce[sum->dtype][sum->op](plain, NULL, src, sum->n, sum->count, divisor);
  bool good = true;
  for (uint64_t i = 0; i < sum->count && good; i++) {
    const void *from[MOST];
    uint8_t due[VALUE_BYTES];
    for (uint32_t k = 0; k < sum->n; k++) from[k] = (const uint8_t *)src[k] + i * bytes;
    value_expect(sum->dtype, sum->op, from, one_node, sum->n, divisor, due);
    good = value_same(sum->dtype, sum->op, got + i * bytes, due);
    good = good && value_same(sum->dtype, sum->op, got + i * bytes, plain + i * bytes);
    if (!good) wrong("a reduction", sum->dtype, sum->op, sum->count, i);
  }
  free(plain);
  return good;
}

/* The target is beside the sources or one of them; every third time there is a second one. */
static bool reduced(const struct sum *sum) {
  uint64_t chance = value_mix(sum->salt);
  size_t bytes = value_bytes(sum->dtype) * sum->count;
  struct room src[MOST], dst = room_open(bytes, chance % 67, chance >> 8 & 1);
  struct room twice = room_open(bytes, chance % 59, chance >> 9 & 1);
  const void *given[MOST], *kept[MOST];
  uint8_t *copies = malloc(MOST * bytes + 1);
  uint32_t into = (uint32_t)(chance >> 16) % (2 * sum->n);
  for (uint32_t k = 0; k < sum->n; k++) {
    src[k] = room_open(bytes, (chance >> (k + 20)) % 65, chance >> (k + 40) & 1);
    for (uint64_t i = 0; i < sum->count; i++)
      value_draw(sum->dtype, sum->salt, k, i, src[k].at + i * value_bytes(sum->dtype));
    given[k] = src[k].at;
    kept[k] = memcpy(copies + k * bytes, src[k].at, bytes);
  }
  uint8_t *to = into < sum->n ? src[into].at : dst.at;
  double divisor = (double)(1 + chance % 7);
  mc_reducer(sum->dtype, sum->op)(to, chance % 3 ? NULL : twice.at, given, sum->n, sum->count, divisor);
  bool good = sums_right(sum, kept, to, divisor);
  if (good && chance % 3 == 0 && memcmp(to, twice.at, bytes))
    good = wrong("a second target", sum->dtype, sum->op, sum->count, 0);
  for (uint32_t k = 0; k < sum->n; k++) {
    if (good && k != into && memcmp(src[k].at, kept[k], bytes))
      good = wrong("a source", sum->dtype, sum->op, sum->count, 0);
    if (!room_close(&src[k])) good = wrong("what lies beside a source", sum->dtype, sum->op, sum->count, k);
  }
  bool beside = room_close(&dst);
  beside = room_close(&twice) && beside;
  free(copies);
  return beside ? good : wrong("what lies beside a target", sum->dtype, sum->op, sum->count, 0);
}

static bool all_reduced(uint32_t rounds) {
  struct sum sum = {0};
  for (sum.dtype = 0; sum.dtype < MC_DTYPES; sum.dtype++)
    for (sum.op = 0; sum.op < MC_OPS; sum.op++)
      for (size_t k = 0; k < LENGTHS && value_defined(sum.dtype, sum.op); k++)
        for (uint32_t round = 0; round < rounds; round++) {
          sum.count = lengths[k];
          sum.n = 1 + (uint32_t)(++sum.salt % MOST);
          if (!reduced(&sum)) return false;
        }
  return true;
}

/* --- the wire's forms --------------------------------------------------------------------------------- */

static float read_float(const uint8_t *at, uint64_t i) {
  float value;
  memcpy(&value, at + i * sizeof value, sizeof value);
  return value;
}

static bool same_float(float a, float b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

/* One block of the int8 form: the values' integers in `due`; returns the scale. */
static float block_due(const float *values, uint64_t count, int8_t *due) {
  float most = 0;
  bool finite = true;
  for (uint64_t i = 0; i < count; i++) {
    finite = finite && isfinite(values[i]);
    if (fabsf(values[i]) > most) most = fabsf(values[i]);
  }
  float scale = most / 127.0f;
  memset(due, 0, count);
  if (!finite) return NAN;
  if (scale < 0x1p-126f) return 0;
  for (uint64_t i = 0; i < count; i++) {
    volatile float product = values[i] * (1.0f / scale); /* rounded before it is made whole */
    due[i] = (int8_t)rintf(product);
  }
  return scale;
}

/* What arrives of `values` and, where that is kept, what is lost of them. */
static void arrive(uint32_t wire, const float *values, uint64_t count, float *arrived, float *lost) {
  int8_t whole[MC_I8_BLOCK];
  for (uint64_t i = 0; i < count; i++) {
    uint64_t at = i % MC_I8_BLOCK, rest = count - i;
    static float scale; /* of the block, from its first value on */
    if (wire == MC_WIRE_I8 && at == 0) scale = block_due(values + i, rest < MC_I8_BLOCK ? rest : MC_I8_BLOCK, whole);
    if (wire == MC_WIRE_I8) arrived[i] = isnan(scale) ? NAN : (float)whole[at] * scale;
    else arrived[i] = value_of_half(value_half(values[i], wire == MC_WIRE_BF16), wire == MC_WIRE_BF16);
    float off = values[i] - arrived[i];
    lost[i] = isfinite(off) ? off : 0;
    if (wire == MC_WIRE_I8 && isnan(scale)) lost[i] = 0;
  }
}

struct parcel { uint32_t wire; uint64_t count, salt; };

/* Packs `from` (what was lost before is added), unpacks it, unpacks it onto something. */
static bool packed_right(const struct parcel *parcel, const uint8_t *from, const uint8_t *before) {
  uint64_t count = parcel->count, chance = value_mix(parcel->salt), bytes = mc_packed_bytes(parcel->wire, count);
  struct room src = room_open(4 * count, 4 * (chance % 17), chance >> 8 & 1), plain = room_open(bytes, 0, false);
  struct room packed = room_open(bytes, (chance >> 9) % 63, chance >> 16 & 1);
  struct room error = room_open(4 * count, 4 * ((chance >> 17) % 16), chance >> 24 & 1);
  struct room out = room_open(4 * count, 4 * ((chance >> 25) % 16), chance >> 32 & 1);
  struct room onto = room_open(4 * count, 4, true);
  float *values = malloc(4 * count + 1), *arrived = malloc(4 * count + 1), *lost = malloc(4 * count + 1);
  float *plain_error = malloc(4 * count + 1);
  memcpy(src.at, from, 4 * count);
  if (before) memcpy(error.at, before, 4 * count), memcpy(plain_error, before, 4 * count);
  for (uint64_t i = 0; i < count; i++) values[i] = read_float(from, i) + (before ? read_float(before, i) : 0);
  for (uint64_t i = 0; i < count && !before; i++) values[i] = read_float(from, i); /* -0 stays -0 */
  arrive(parcel->wire, values, count, arrived, lost);
  const float *given = (const float *)(const void *)src.at;
  if (before) {
    mc_kernel_pack_i8(packed.at, given, count, (float *)(void *)error.at);
    mc_kernels_plain.pack_i8_keeping(plain.at, given, count, plain_error);
  } else {
    mc_pack(parcel->wire, packed.at, given, count);
    mc_kernels_plain.pack[parcel->wire](plain.at, given, count);
  }
  mc_unpack(parcel->wire, (float *)(void *)out.at, packed.at, count);
  for (uint64_t i = 0; i < count; i++) {
    float one = 1.5f;
    memcpy(onto.at + 4 * i, &one, sizeof one);
  }
  bool adds = parcel->wire == MC_WIRE_I8;
  if (adds) mc_kernel_unpack_add_i8((float *)(void *)onto.at, packed.at, count);
  bool good = memcmp(packed.at, plain.at, bytes) ? wrong("a packed form", parcel->wire, 0, count, 0) : true;
  for (uint64_t i = 0; i < count && good; i++) {
    if (!same_float(read_float(out.at, i), arrived[i])) good = wrong("what arrives", parcel->wire, 0, count, i);
    if (adds && !same_float(read_float(onto.at, i), 1.5f + arrived[i]))
      good = wrong("what is added", parcel->wire, 0, count, i);
    if (before && (!same_float(read_float(error.at, i), lost[i]) || !same_float(lost[i], plain_error[i])))
      good = wrong("what is kept", parcel->wire, 0, count, i);
  }
  struct room *rooms[] = {&src, &packed, &plain, &error, &out, &onto};
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
    if (!room_close(rooms[i])) good = wrong("what lies beside", parcel->wire, (uint32_t)i, count, 0);
  free(values), free(arrived), free(lost), free(plain_error);
  return good;
}

static float wire_value(uint64_t salt, uint64_t i, bool wild) {
  uint8_t bits[VALUE_BYTES] = {0};
  float value;
  value_draw(MC_F32, salt, 0, i, bits);
  memcpy(&value, bits, sizeof value);
  return wild || (isfinite(value) && fabsf(value) < 1e30f) ? value : (float)(i % 100) / 7.0f;
}

static bool all_packed(uint32_t rounds) {
  struct parcel parcel = {0};
  uint8_t from[4 * 700], before[4 * 700];
  for (parcel.wire = MC_WIRE_F16; parcel.wire <= MC_WIRE_I8; parcel.wire++)
    for (size_t k = 0; k < LENGTHS + 3; k++)
      for (uint32_t round = 0; round < 4 * rounds; round++) {
        parcel.count = k < LENGTHS ? lengths[k] : 511 + k - LENGTHS;
        bool wild = ++parcel.salt % 4 == 0; /* what is not finite among them */
        for (uint64_t i = 0; i < parcel.count; i++) {
          float value = wire_value(parcel.salt, i, wild);
          float error = wire_value(parcel.salt + 1, i, false) * 0x1p-9f;
          memcpy(from + 4 * i, &value, sizeof value);
          memcpy(before + 4 * i, &error, sizeof error);
        }
        if (!packed_right(&parcel, from, parcel.wire == MC_WIRE_I8 && round & 1 ? before : NULL)) return false;
      }
  return true;
}

/* Every 16-bit number, the middle to the next one, and the numbers on both sides of that. */
static bool every_half(uint32_t wire) {
  static uint8_t from[4 * 4 * 65536];
  uint64_t count = 0;
  for (uint32_t bits = 0; bits < 65536; bits++) {
    float here = value_of_half((uint16_t)bits, wire == MC_WIRE_BF16);
    float next = value_of_half((uint16_t)(bits + 1), wire == MC_WIRE_BF16);
    float middle = (float)(((double)here + (double)next) / 2);
    const float four[] = {here, middle, nextafterf(middle, here), nextafterf(middle, next)};
    memcpy(from + 4 * count, four, sizeof four);
    count += 4;
  }
  const struct parcel parcel = {.wire = wire, .count = count, .salt = 5};
  return packed_right(&parcel, from, NULL);
}

/* --- copies and checksums ------------------------------------------------------------------------------ */

typedef void copies(void *dst, const void *src, size_t bytes);

static bool copied(copies *copy, uint64_t bytes, uint64_t salt) {
  uint64_t chance = value_mix(salt);
  struct room src = room_open(bytes, chance % 65, chance >> 8 & 1);
  struct room dst = room_open(bytes, (chance >> 16) % 65, chance >> 24 & 1);
  for (uint64_t i = 0; i < bytes; i += 8) {
    uint64_t word = value_mix(salt + i);
    memcpy(src.at + i, &word, bytes - i < 8 ? bytes - i : 8);
  }
  copy(dst.at, src.at, bytes);
  bool good = bytes ? !memcmp(dst.at, src.at, bytes) : true;
  uint64_t cut = bytes / 2 / 64 * 64, whole = mc_checksum(salt, src.at, bytes);
  good = good && mc_checksum(mc_checksum(salt, src.at, cut), src.at + cut, bytes - cut) == whole;
  bool beside = room_close(&src);
  beside = room_close(&dst) && beside;
  return good && beside ? true : wrong("a copy", copy == mc_copy_out, !beside, bytes, 0);
}

static bool all_copied(uint32_t rounds) {
  static const uint64_t sizes[] = {0,     1,     63,    64,    1023,           8191,          8192,         8193,
                                   8255,  8257,  16383, 16385, 70001, (1 << 20) + 13, (4 << 20) - 1, (4 << 20) + 1};
  for (uint64_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
    for (uint64_t round = 0; round < (sizes[k] > 100000 ? 1 : 8 * rounds); round++) {
      uint64_t salt = 1000 * k + round;
      if (!copied(mc_copy, sizes[k], salt) || !copied(mc_copy_out, sizes[k], salt)) return false;
    }
  return true;
}

int play_kernels(uint32_t rounds) {
  bool good = all_reduced(rounds) && all_packed(rounds) && every_half(MC_WIRE_F16) && every_half(MC_WIRE_BF16);
  return good && all_copied(rounds) ? 0 : 1;
}
