/* Everything one instruction set has, and its table. Included last in its file, which has defined
 *   MC_LANE_BYTES, MC_NAME (its name as a string), MC_TABLE (the variable), MC_REGISTER (the constraint
 *   of inline assembly for its registers; left out: none known), MC_STREAM(to, v) (an aligned store past the
 *   cache, x86; left out: none),
 * and, since compilers make single moves of them, the conversions between words of different width:
 *   f16_of, f32_of_f16         fp32 to nearest even, and back; NaNs become quiet and keep their upper bits
 *   narrow_half, widen_half    unsigned numbers below 2^16
 *   narrow_byte, widen_byte    signed numbers within a byte */
#include "kernels/isa_lanes.h"
#include "kernels/isa_reduce.h"
#include "kernels/isa_pack.h"

#if MC_LANE_BYTES
MC_INLINE void put(char *to, v_u8 v, int past_cache) {
#ifdef MC_STREAM
  if (past_cache) {
    MC_STREAM(to, v);
    return;
  }
#endif
  (void)past_cache;
  store_v_u8(to, v);
}

/* The first and the last register may write a part again: the rest lies in line with the target. */
MC_INLINE void copy_all(char *to, const char *from, size_t bytes, int past_cache) {
  const size_t step = sizeof(v_u8);
  size_t at = step - ((uintptr_t)to & (step - 1));
  v_u8 last = load_v_u8(from + bytes - step);
  store_v_u8(to, load_v_u8(from));
  for (; bytes - at >= 4 * step; at += 4 * step) {
    prefetch(from + SOON(at, bytes), 4 * step);
    v_u8 a = load_v_u8(from + at), b = load_v_u8(from + at + step);
    v_u8 c = load_v_u8(from + at + 2 * step), d = load_v_u8(from + at + 3 * step);
    put(to + at, a, past_cache);
    put(to + at + step, b, past_cache);
    put(to + at + 2 * step, c, past_cache);
    put(to + at + 3 * step, d, past_cache);
  }
  for (; bytes - at >= step; at += step) put(to + at, load_v_u8(from + at), past_cache);
  store_v_u8(to + bytes - step, last);
#ifdef MC_STREAM
  if (past_cache) _mm_sfence(); /* such writes may otherwise be seen after a later flag */
#endif
}
static void copy(void *dst, const void *src, size_t bytes) { copy_all(dst, src, bytes, 0); }
static void copy_out(void *dst, const void *src, size_t bytes) { copy_all(dst, src, bytes, 1); }
#else
static void copy(void *dst, const void *src, size_t bytes) { __builtin_memcpy(dst, src, bytes); }
static void copy_out(void *dst, const void *src, size_t bytes) { __builtin_memcpy(dst, src, bytes); }
#endif

const struct mc_kernels MC_TABLE = {
  .name = MC_NAME,
  .reduce = REDUCE_TABLE,
  .copy = copy,
  .copy_out = copy_out,
  .pack = {NULL, pack_f16, pack_bf16, pack_i8},
  .unpack = {NULL, unpack_f16, unpack_bf16, unpack_i8},
  .pack_i8_keeping = pack_i8_keeping,
  .unpack_add_i8 = unpack_add_i8,
};
