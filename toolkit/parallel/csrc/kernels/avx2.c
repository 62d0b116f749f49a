/* 32 bytes at a time: x86-64 with AVX2 and F16C. No multiply-add: it would round differently. */
#include "kernels/isa_kernels.h"
#ifdef MC_ISA_X86
#include <immintrin.h>
MC_TARGET("avx2,f16c")

#define MC_LANE_BYTES 32
#define MC_NAME "avx2"
#define MC_TABLE mc_kernels_avx2
#define MC_REGISTER "x"
#define MC_STREAM(to, v) _mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(v))
#include "kernels/isa_types.h"

MC_INLINE v_f32 f32_of_f16(v_half v) { return (v_f32)_mm256_cvtph_ps((__m128i)v); }
MC_INLINE v_half f16_of(v_f32 v) {
  return (v_half)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

MC_INLINE v_half narrow_half(v_u32 v) {
  __m256i all = (__m256i)v;
  return (v_half)_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
MC_INLINE v_u32 widen_half(v_half v) { return (v_u32)_mm256_cvtepu16_epi32((__m128i)v); }
MC_INLINE v_byte narrow_byte(v_s32 v) {
  __m256i all = (__m256i)v;
  __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  int64_t bytes = _mm_cvtsi128_si64(_mm_packs_epi16(halves, halves));
  return (v_byte)bytes;
}
MC_INLINE v_s32 widen_byte(v_byte v) { return (v_s32)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)v)); }

#include "kernels/isa_table.h"

MC_TARGET_END
#endif
