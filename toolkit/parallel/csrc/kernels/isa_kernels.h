/* What one instruction set offers. There is one such table per instruction set the compiler can make;
 * kernels/isa_choose.c picks one for the life of the process. All tables give the same bits. */
#ifndef MUSTER_ISA_KERNELS_H
#define MUSTER_ISA_KERNELS_H
#include "kernels/kernels.h"

#ifdef __FAST_MATH__
#error "the kernels promise the same bits everywhere: compile them without -ffast-math"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire and the halves of 32-bit words are little-endian here"
#endif

/* What follows is compiled for these features of the processor, up to MC_TARGET_END. */
#define MC_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define MC_TARGET(features) MC_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define MC_TARGET_END MC_PRAGMA(clang attribute pop)
#else
#define MC_TARGET(features) MC_PRAGMA(GCC push_options) MC_PRAGMA(GCC target(features))
#define MC_TARGET_END MC_PRAGMA(GCC pop_options)
#endif

#define MC_INLINE static inline __attribute__((always_inline))
#define MC_WIRES 4 /* enum mc_wire */

typedef void mc_copy_fn(void *dst, const void *src, size_t bytes);
typedef void mc_pack_fn(void *dst, const float *src, size_t count);
typedef void mc_keep_fn(void *dst, const float *src, size_t count, float *error);
typedef void mc_unpack_fn(float *dst, const void *src, size_t count);

struct mc_kernels {
  const char *name; /* what mc_isa says */
  mc_reduce_fn *reduce[MC_DTYPES][MC_OPS];
  mc_copy_fn *copy, *copy_out; /* 1 KiB and more, no overlap */
  mc_pack_fn *pack[MC_WIRES]; /* NULL for MC_WIRE_SAME, as unpack */
  mc_unpack_fn *unpack[MC_WIRES], *unpack_add_i8;
  mc_keep_fn *pack_i8_keeping;
};

extern const struct mc_kernels mc_kernels_plain;
#if defined(__x86_64__) && defined(__GNUC__)
#define MC_ISA_X86 1
extern const struct mc_kernels mc_kernels_avx2, mc_kernels_avx512;
#endif
#if defined(__aarch64__) && defined(__GNUC__)
#define MC_ISA_NEON 1
extern const struct mc_kernels mc_kernels_neon;
#endif

const struct mc_kernels *mc_kernels_chosen(void); /* never NULL; any thread; the same for ever */
#endif
