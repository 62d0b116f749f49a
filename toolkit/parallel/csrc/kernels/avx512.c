/* 64 bytes at a time: x86-64 with AVX-512 F, BW, DQ and VL. bf16 is rounded in integers, not by
 * AVX512_BF16, which flushes subnormals. */
#include "kernels/isa_kernels.h"
#ifdef MC_ISA_X86
#include <immintrin.h>
MC_TARGET("avx512f,avx512bw,avx512dq,avx512vl")

#define MC_LANE_BYTES 64
#define MC_NAME "avx512"
#define MC_TABLE mc_kernels_avx512
#define MC_REGISTER "v"
#define MC_STREAM(to, v) _mm512_stream_si512((__m512i *)(void *)(to), (__m512i)(v))
#include "kernels/isa_types.h"

MC_INLINE v_f32 f32_of_f16(v_half v) { return (v_f32)_mm512_cvtph_ps((__m256i)v); }
MC_INLINE v_half f16_of(v_f32 v) {
  return (v_half)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

MC_INLINE v_half narrow_half(v_u32 v) { return (v_half)_mm512_cvtepi32_epi16((__m512i)v); }
MC_INLINE v_u32 widen_half(v_half v) { return (v_u32)_mm512_cvtepu16_epi32((__m256i)v); }
MC_INLINE v_byte narrow_byte(v_s32 v) { return (v_byte)_mm512_cvtepi32_epi8((__m512i)v); }
MC_INLINE v_s32 widen_byte(v_byte v) { return (v_s32)_mm512_cvtepi8_epi32((__m128i)v); }

#include "kernels/isa_table.h"

MC_TARGET_END
#endif
