/* 16 bytes at a time: every 64-bit Arm. */
#include "kernels/isa_kernels.h"
#ifdef MC_ISA_NEON
#include <arm_neon.h>

#define MC_LANE_BYTES 16
#define MC_NAME "neon"
#define MC_TABLE mc_kernels_neon
#define MC_REGISTER "w"
#include "kernels/isa_types.h"

MC_INLINE v_f32 f32_of_f16(v_half v) { return (v_f32)vcvt_f32_f16((float16x4_t)v); }
MC_INLINE v_half f16_of(v_f32 v) { return (v_half)vcvt_f16_f32((float32x4_t)v); }

MC_INLINE v_half narrow_half(v_u32 v) { return (v_half)vmovn_u32((uint32x4_t)v); }
MC_INLINE v_u32 widen_half(v_half v) { return (v_u32)vmovl_u16((uint16x4_t)v); }
MC_INLINE v_byte narrow_byte(v_s32 v) {
  int16x4_t halves = vmovn_s32((int32x4_t)v);
  uint32_t bytes = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(halves, halves))), 0);
  return (v_byte)bytes;
}
MC_INLINE v_s32 widen_byte(v_byte v) {
  int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32((uint32_t)v));
  return (v_s32)vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}

#include "kernels/isa_table.h"
#endif
