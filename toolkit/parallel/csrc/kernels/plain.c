/* Plain C, one number at a time: for processors without the others, and what these are measured by. */
#include "kernels/isa_kernels.h"

#define MC_LANE_BYTES 0
#define MC_NAME "plain"
#define MC_TABLE mc_kernels_plain
#if defined(__x86_64__)
#define MC_REGISTER "x"
#elif defined(__aarch64__)
#define MC_REGISTER "w"
#endif
#include "kernels/isa_types.h"

MC_INLINE float f32_of_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3ff;
  if (exponent == 31) /* infinity, or a NaN made quiet */
    return float_of(sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0));
  if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact */
    uint32_t bits = bits_f32((float)fraction * 0x1p-24f);
    return float_of(sign | bits);
  }
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Epochs to nearest even, as the processors do. */
MC_INLINE uint16_t f16_of(float v) {
  uint32_t x = bits_f32(v), sign = (x >> 16) & 0x8000, size = x & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x1ff)); /* quiet NaN */
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                       /* 65520 and more: infinity */
  if (size >= 0x38800000) /* 2^-14 and more: normal; a carry moves into the exponent rightly */
    return (uint16_t)(sign | ((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13));
  /* below: in units of 2^-24, which is the lowest bit of fp32 numbers from 0.5 to 1 */
  return (uint16_t)(sign | (bits_f32(float_of(size) + 0.5f) - 0x3f000000));
}

MC_INLINE uint16_t narrow_half(uint32_t v) { return (uint16_t)v; }
MC_INLINE uint32_t widen_half(uint16_t v) { return v; }
MC_INLINE int8_t narrow_byte(int32_t v) { return (int8_t)v; }
MC_INLINE int32_t widen_byte(int8_t v) { return v; }

#include "kernels/isa_table.h"
