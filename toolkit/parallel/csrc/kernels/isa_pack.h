/* fp32 to the wire's form and back, once for all instruction sets. Included after kernels/isa_reduce.h. */
#define LANES (sizeof(v_f32) / sizeof(float))

/* --- fp16, bf16: the same loops ------------------------------------------------------------------ */

#define MC_HALF(T)                                                                              \
  static void pack_##T(void *dst, const float *src, size_t count) {                             \
    char *to = dst;                                                                             \
    size_t at = 0;                                                                              \
    for (; count - at >= LANES; at += LANES) {                                                  \
      prefetch((const char *)(src + at) + SOON(0, (count - at) * 4), sizeof(v_f32));            \
      store_v_half(to + 2 * at, T##_of(load_v_f32((const char *)(src + at))));                  \
    }                                                                                           \
    if (at < count) {                                                                           \
      size_t rest = count - at;                                                                 \
      char from[sizeof(v_f32)] = {0}, packed[sizeof(v_half)];                                   \
      __builtin_memcpy(from, src + at, 4 * rest);                                               \
      store_v_half(packed, T##_of(load_v_f32(from)));                                           \
      __builtin_memcpy(to + 2 * at, packed, 2 * rest);                                          \
    }                                                                                           \
  }                                                                                             \
  static void unpack_##T(float *dst, const void *src, size_t count) {                           \
    const char *from = src;                                                                     \
    size_t at = 0;                                                                              \
    for (; count - at >= LANES; at += LANES) {                                                  \
      prefetch(from + 2 * at + SOON(0, (count - at) * 2), sizeof(v_half));                      \
      store_v_f32((char *)(dst + at), f32_of_##T(load_v_half(from + 2 * at)));                  \
    }                                                                                           \
    if (at < count) {                                                                           \
      size_t rest = count - at;                                                                 \
      char packed[sizeof(v_half)] = {0}, to[sizeof(v_f32)];                                     \
      __builtin_memcpy(packed, from + 2 * at, 2 * rest);                                        \
      store_v_f32(to, f32_of_##T(load_v_half(packed)));                                         \
      __builtin_memcpy(dst + at, to, 4 * rest);                                                 \
    }                                                                                           \
  }
MC_HALF(f16)
MC_HALF(bf16)
#undef MC_HALF

/* --- int8 in blocks: a scale, then a byte for each value ------------------------------------------
 * With error feedback the value packed is src + error, and error becomes what of it was lost; where
 * that is no finite number (an infinity went out, or 127 steps of int8 are one next to the largest float)
 * nothing is kept: it would poison every later sum. */

MC_INLINE v_f32 finite_or_0(v_f32 v) { return float_of(bits_f32(v) & MASK(v_u32, v - v == 0)); }

#define BLOCK_FLOATS MC_I8_BLOCK
#define BLOCK_BYTES (sizeof(float) + BLOCK_FLOATS)
/* 1.5 * 2^23: adding it leaves a number below 2^22 rounded to nearest even in the low bits. */
#define ROUNDER 12582912.0f
#define ROUNDER_BITS 0x4b400000u
#define INFINITE_BITS 0x7f800000u
#define NORMAL_BITS 0x00800000u

/* The bits of max|x|: as integers they are ordered as the numbers are, and every NaN is above infinity. */
MC_INLINE uint32_t biggest_bits(const char *from) {
  v_u32 most = bits_f32(load_v_f32(from)) & 0x7fffffffu;
  for (size_t i = 1; i < BLOCK_FLOATS / LANES; i++) {
    v_u32 x = bits_f32(load_v_f32(from + i * sizeof(v_f32))) & 0x7fffffffu;
    v_u32 less = MASK(v_u32, (v_s32)most < (v_s32)x);
    most = (x & less) | (most & ~less);
  }
  uint32_t each[LANES], result = 0;
  __builtin_memcpy(each, &most, sizeof most);
  for (size_t i = 0; i < LANES; i++) result = each[i] > result ? each[i] : result;
  return result;
}

/* One whole block; `error` may be NULL. `from` may be `error`. */
MC_INLINE void pack_block(char *to, const char *from, char *error) {
  for (size_t i = 0; error && i < BLOCK_FLOATS * sizeof(float); i += sizeof(v_f32))
    store_v_f32(error + i, load_v_f32(from + i) + load_v_f32(error + i));
  if (error) from = error; /* the values to pack; each is replaced by its error below */
  uint32_t bits = biggest_bits(from);
  float most, scale;
  __builtin_memcpy(&most, &bits, sizeof most);
  scale = most / 127.0f;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  int hopeless = bits >= INFINITE_BITS;
  if (hopeless || bits < NORMAL_BITS) { /* not finite: the block arrives as NaN. Next to 0: as 0, and stays in error */
    bits = hopeless ? INFINITE_BITS | 0x400000u : 0;
    __builtin_memcpy(to, &bits, sizeof bits);
    __builtin_memset(to + sizeof bits, 0, BLOCK_FLOATS);
    if (error && hopeless) __builtin_memset(error, 0, BLOCK_FLOATS * sizeof(float));
    return;
  }
  __builtin_memcpy(to, &scale, sizeof scale);
  const v_f32 zero = {0}, by = zero + 1.0f / scale, back = zero + scale;
  for (size_t i = 0; i < BLOCK_FLOATS / LANES; i++) {
    v_f32 v = load_v_f32(from + i * sizeof(v_f32));
    v_f32 near = rounded(v * by) + ROUNDER; /* within +-127 by itself: the quotient is off by 2^-22 at most */
    store_v_byte(to + sizeof scale + i * LANES, narrow_byte((v_s32)(bits_f32(near) - ROUNDER_BITS)));
    if (error) store_v_f32(error + i * sizeof(v_f32), finite_or_0(v - rounded((near - ROUNDER) * back)));
  }
}

static void pack_i8_keeping(void *dst, const float *src, size_t count, float *error) {
  char *to = dst;
  for (; count >= BLOCK_FLOATS; count -= BLOCK_FLOATS, to += BLOCK_BYTES, src += BLOCK_FLOATS) {
    if (error)
      pack_block(to, (const char *)src, (char *)error);
    else
      pack_block(to, (const char *)src, NULL);
    if (error) error += BLOCK_FLOATS;
  }
  if (count) {
    char packed[BLOCK_BYTES];
    float from[BLOCK_FLOATS] = {0}, lost[BLOCK_FLOATS] = {0};
    __builtin_memcpy(from, src, count * sizeof *src);
    if (error) __builtin_memcpy(lost, error, count * sizeof *error);
    pack_block(packed, (const char *)from, (char *)lost);
    __builtin_memcpy(to, packed, sizeof(float) + count);
    if (error) __builtin_memcpy(error, lost, count * sizeof *error);
  }
}
static void pack_i8(void *dst, const float *src, size_t count) { pack_i8_keeping(dst, src, count, NULL); }

/* `count` values of one block; a multiple of LANES. */
MC_INLINE void unpack_lanes_i8(char *to, const char *from, float scale, size_t count, int add) {
  const v_f32 zero = {0}, by = zero + scale;
  for (size_t i = 0; i < count / LANES; i++) {
    v_f32 v = rounded(float_of_int(widen_byte(load_v_byte(from + i * LANES))) * by);
    char *at = to + i * sizeof(v_f32);
    store_v_f32(at, add ? load_v_f32(at) + v : v);
  }
}

MC_INLINE void unpack_all_i8(float *dst, const char *from, size_t count, int add) {
  float scale;
  for (; count; from += BLOCK_BYTES, dst += BLOCK_FLOATS) {
    size_t part = count < BLOCK_FLOATS ? count : BLOCK_FLOATS, whole = part - part % LANES;
    __builtin_memcpy(&scale, from, sizeof scale);
    prefetch(from + sizeof scale + SOON(0, count), BLOCK_FLOATS);
    unpack_lanes_i8((char *)dst, from + sizeof scale, scale, whole, add);
    if (whole < part) {
      char packed[sizeof(v_byte)] = {0}, to[sizeof(v_f32)] = {0};
      __builtin_memcpy(packed, from + sizeof scale + whole, part - whole);
      __builtin_memcpy(to, dst + whole, add ? (part - whole) * sizeof *dst : 0);
      unpack_lanes_i8(to, packed, scale, LANES, add);
      __builtin_memcpy(dst + whole, to, (part - whole) * sizeof *dst);
    }
    count -= part;
    if (!count) break; /* the addresses behind a short block are nobody's */
  }
}
static void unpack_i8(float *dst, const void *src, size_t count) { unpack_all_i8(dst, src, count, 0); }
static void unpack_add_i8(float *dst, const void *src, size_t count) { unpack_all_i8(dst, src, count, 1); }
