/* See driver_values.h. */
#include "driver_values.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

union number { uint64_t whole; float real; double wide; };

static bool is_half(uint32_t dtype) { return dtype == MC_F16 || dtype == MC_BF16; }
static bool is_float(uint32_t dtype) { return is_half(dtype) || dtype == MC_F32 || dtype == MC_F64; }

size_t value_bytes(uint32_t dtype) {
  static const uint8_t bytes[MC_DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8};
  return bytes[dtype];
}

bool value_defined(uint32_t dtype, uint32_t op) {
  if (op == MC_AVG) return is_float(dtype);
  return op == MC_SUM || op == MC_MIN || op == MC_MAX || op == MC_PROD || !is_float(dtype);
}

/* --- 16 bits ------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float value_of_half(uint16_t bits, bool brain) {
  if (brain) return float_of((uint32_t)bits << 16);
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0));
  float size = exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24);
  return sign ? -size : size;
}

/* Counted in steps of the last place, which `rint` makes whole. */
uint16_t value_half(float value, bool brain) {
  int digits = brain ? 8 : 11, least = brain ? -126 : -14, most = brain ? 127 : 15, exponent;
  uint16_t sign = signbit(value) ? 0x8000 : 0, infinite = brain ? 0x7f80 : 0x7c00;
  if (isnan(value)) return (uint16_t)(brain ? bits_of(value) >> 16 | 0x40 : sign | 0x7e00u | (bits_of(value) >> 13 & 0x1ff));
  if (isinf(value)) return (uint16_t)(sign | infinite);
  frexp(fabs((double)value), &exponent);
  if (value == 0 || exponent - 1 < least) exponent = least + 1;
  double steps = rint(ldexp(fabs((double)value), digits - exponent)), full = ldexp(1.0, digits - 1);
  if (steps >= 2 * full) { /* carried into the next power */
    steps /= 2;
    exponent++;
  }
  if (exponent - 1 > most) return (uint16_t)(sign | infinite);
  /* below `full` the number is subnormal: its exponent field is 0 */
  uint32_t field = steps < full ? 0 : (uint32_t)(exponent - 1 - least + 1);
  uint32_t fraction = (uint32_t)(steps < full ? steps : steps - full);
  return (uint16_t)(sign | field << (digits - 1) | fraction);
}

/* --- drawing --------------------------------------------------------------------------------------- */

uint64_t value_mix(uint64_t number) {
  number += UINT64_C(0x9e3779b97f4a7c15);
  number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
  return number ^ number >> 31;
}

/* Fields of a float type: how many bits of fraction and of exponent. */
static uint64_t special(int fraction, int exponent, unsigned which) {
  uint64_t bias = (UINT64_C(1) << (exponent - 1)) - 1, all = (UINT64_C(1) << exponent) - 1, one = UINT64_C(1) << fraction;
  uint64_t sign = (uint64_t)(which & 1) << (fraction + exponent);
  switch (which / 2 % 8) {
  case 0: return sign;                             /* zero */
  case 1: return sign | 1;                         /* the smallest there is */
  case 2: return sign | (one - 1);                 /* the largest subnormal */
  case 3: return sign | one;                       /* the smallest normal */
  case 4: return sign | ((all << fraction) - 1);   /* the largest */
  case 5: return sign | all << fraction;           /* infinity */
  case 6: return sign | all << fraction | one / 2 | 5; /* a NaN */
  default: return sign | bias << fraction | 1;     /* just above 1 */
  }
}

static uint64_t drawn_float(int fraction, int exponent, uint64_t chance) {
  uint64_t bias = (UINT64_C(1) << (exponent - 1)) - 1, rest = chance >> 8;
  switch (chance % 8) {
  case 0: return special(fraction, exponent, (unsigned)rest);
  case 1: return chance >> 3; /* any bits */
  default: /* between 1/2 and 4: such are what rounding is about */
    return (rest & 1) << (fraction + exponent) | (((bias - 1) << fraction) + (rest >> 1) % (UINT64_C(3) << fraction));
  }
}

void value_draw(uint32_t dtype, uint64_t salt, uint32_t rank, uint64_t i, void *to) {
  uint64_t chance = value_mix(salt * 1000003 + rank + (i << 20));
  switch (dtype) {
  case MC_F16: chance = drawn_float(10, 5, chance); break;
  case MC_BF16: chance = drawn_float(7, 8, chance); break;
  case MC_F32: chance = drawn_float(23, 8, chance); break;
  case MC_F64: chance = drawn_float(52, 11, chance); break;
  default: break;
  }
  memcpy(to, &chance, value_bytes(dtype)); /* little-endian, as all of the core */
}

/* --- reducing -------------------------------------------------------------------------------------- */

static union number read_number(uint32_t dtype, const void *from) {
  union number v = {0};
  uint16_t half;
  memcpy(&v, from, value_bytes(dtype));
  if (is_half(dtype)) {
    memcpy(&half, from, sizeof half);
    v.real = value_of_half(half, dtype == MC_BF16);
  }
  if (dtype == MC_I8) v.whole = (uint64_t)(int64_t)(int8_t)v.whole;
  if (dtype == MC_I32) v.whole = (uint64_t)(int64_t)(int32_t)v.whole;
  return v;
}

static void write_number(uint32_t dtype, union number v, void *to) {
  uint16_t half;
  if (is_half(dtype)) {
    half = value_half(v.real, dtype == MC_BF16);
    memcpy(to, &half, sizeof half);
  } else {
    memcpy(to, &v, value_bytes(dtype));
  }
}

/* The first NaN wins; -0 is below +0. */
static bool first_wins(uint32_t op, double a, double b) {
  if (isnan(a) || isnan(b)) return isnan(a);
  if (a == b) return op == MC_MIN ? signbit(a) : !signbit(a);
  return op == MC_MIN ? a < b : a > b;
}

static union number combined_whole(uint32_t dtype, uint32_t op, union number a, union number b) {
  bool less = dtype == MC_U8 ? a.whole < b.whole : (int64_t)a.whole < (int64_t)b.whole;
  switch (op) {
  case MC_SUM: return (union number){a.whole + b.whole};
  case MC_PROD: return (union number){a.whole * b.whole};
  case MC_MIN: return less ? a : b;
  case MC_MAX: return less ? b : a;
  case MC_BAND: return (union number){a.whole & b.whole};
  case MC_BOR: return (union number){a.whole | b.whole};
  default: return (union number){a.whole ^ b.whole};
  }
}

static union number combined(uint32_t dtype, uint32_t op, union number a, union number b) {
  bool wide = dtype == MC_F64;
  if (!is_float(dtype)) return combined_whole(dtype, op, a, b);
  if (op == MC_MIN || op == MC_MAX)
    return first_wins(op, wide ? a.wide : (double)a.real, wide ? b.wide : (double)b.real) ? a : b;
  bool sum = op == MC_SUM || op == MC_AVG;
  if (wide) a.wide = sum ? a.wide + b.wide : a.wide * b.wide;
  else a.real = sum ? a.real + b.real : a.real * b.real;
  return a;
}

void value_expect(uint32_t dtype, uint32_t op, const void *const *from, const uint32_t *node_of, uint32_t size, double divisor,
                  void *to) {
  union number whole = {0};
  bool one_node = true;
  for (uint32_t rank = 1; rank < size; rank++) one_node = one_node && node_of[rank] == node_of[0];
  for (uint32_t node = 0, seen = 0; seen < size; node++) {
    union number sum = {0};
    bool any = false;
    for (uint32_t rank = 0; rank < size; rank++) {
      if (node_of[rank] != node) continue;
      union number next = read_number(dtype, from[rank]);
      sum = any ? combined(dtype, op, sum, next) : next;
      any = true;
      seen++;
    }
    if (!one_node) { /* it travels as an element */
      uint8_t travels[VALUE_BYTES];
      write_number(dtype, sum, travels);
      sum = read_number(dtype, travels);
    }
    whole = node ? combined(dtype, op, whole, sum) : sum;
  }
  if (op == MC_AVG && dtype == MC_F64) whole.wide /= divisor;
  else if (op == MC_AVG) whole.real /= (float)divisor;
  write_number(dtype, whole, to);
}

bool value_same(uint32_t dtype, uint32_t op, const void *got, const void *due) {
  size_t bytes = value_bytes(dtype);
  if (!memcmp(got, due, bytes)) return true;
  if (!is_float(dtype) || op == MC_MIN || op == MC_MAX) return false;
  union number a = read_number(dtype, got), b = read_number(dtype, due);
  return dtype == MC_F64 ? isnan(a.wide) && isnan(b.wide) : isnan(a.real) && isnan(b.real);
}

/* --- memory ---------------------------------------------------------------------------------------- */

#define GUARD 64u
#define GUARDED 0xa5
#define FRESH 0x5a

struct room room_open(size_t bytes, size_t shift, bool guarded) {
  struct room room = {.bytes = bytes, .shift = shift, .guard = guarded ? GUARD : 0};
  size_t whole = 2 * room.guard + shift + bytes;
  room.whole = guarded ? aligned_alloc(GUARD, (whole + GUARD) / GUARD * GUARD) : malloc(whole ? whole : 1);
  if (!room.whole) abort();
  room.at = room.whole + room.guard + shift;
  if (whole) memset(room.whole, GUARDED, whole);
  if (bytes) memset(room.at, FRESH, bytes);
  return room;
}

bool room_close(struct room *room) {
  bool whole = true;
  for (size_t i = 0; i < room->guard + room->shift; i++) whole = whole && room->whole[i] == GUARDED;
  for (size_t i = 0; i < room->guard; i++) whole = whole && room->at[room->bytes + i] == GUARDED;
  free(room->whole);
  return whole;
}
