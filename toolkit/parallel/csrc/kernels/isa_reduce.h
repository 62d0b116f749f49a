/* All reducers of one instruction set. Included once in its file, after kernels/isa_lanes.h. */
#define AHEAD_BYTES 4096u /* measured: this far ahead a prefetch gives 8-12 % where memory is shared */
/* Processors with AVX-512 fetch better by themselves (measured: a prefetch costs 5-20 % there, whichever registers
 * are used), and one number at a time is slower than any processor's own fetching. */
#define PREFETCHES (MC_LANE_BYTES > 0 && MC_LANE_BYTES < 64)
#define SOON(at, bytes) ((bytes) - (at) > AHEAD_BYTES ? (at) + AHEAD_BYTES : (at))

MC_INLINE void prefetch(const char *at, size_t bytes) {
#if PREFETCHES
  for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + line);
#else
  (void)at, (void)bytes;
#endif
}

/* Most parts are whole registers: let the compiler see that length. */
MC_INLINE void copy_part(char *to, const char *from, size_t part, size_t whole) {
  if (part == whole)
    __builtin_memcpy(to, from, whole);
  else
    __builtin_memcpy(to, from, part);
}

/* What is of the type MC_T in kernels/isa_loop.h. */
#define MC_JOIN_(a, b) a##b
#define MC_JOIN(a, b) MC_JOIN_(a, b)
#define SUM MC_JOIN(sum_, MC_T)
#define TAKE MC_JOIN(take_, MC_T)
#define GIVE MC_JOIN(give_, MC_T)
#define COMBINE MC_JOIN(combine_, MC_T)
#define DIVIDE MC_JOIN(divide_, MC_T)
#define STEP MC_JOIN(STEP_, MC_T)
#define FINISH MC_JOIN(finish_, MC_T)
#define BLOCK MC_JOIN(block_, MC_T)
#define MC_T u8
#include "kernels/isa_loop.h"
#define MC_T i8
#include "kernels/isa_loop.h"
#define MC_T i32
#include "kernels/isa_loop.h"
#define MC_T i64
#include "kernels/isa_loop.h"
#define MC_T f16
#include "kernels/isa_loop.h"
#define MC_T bf16
#include "kernels/isa_loop.h"
#define MC_T f32
#include "kernels/isa_loop.h"
#define MC_T f64
#include "kernels/isa_loop.h"

/* One function per type and operation: inside each the operation is a constant. */
#define FLOAT_OPS(OF, T) OF(T, MC_SUM) OF(T, MC_AVG) OF(T, MC_MIN) OF(T, MC_MAX) OF(T, MC_PROD)
#define INTEGER_OPS(OF, T) \
  OF(T, MC_SUM) OF(T, MC_MIN) OF(T, MC_MAX) OF(T, MC_PROD) OF(T, MC_BAND) OF(T, MC_BOR) OF(T, MC_BXOR)
#define REDUCER(T, op)                                                                                      \
  static void reduce_##T##_##op(void *dst, void *dst2, const void *const *src, unsigned n, size_t count,    \
                                double divisor) {                                                           \
    loop_##T(op, dst, dst2, (const char *const *)src, n, count * BYTES_##T, divisor);                       \
  }
INTEGER_OPS(REDUCER, u8)
INTEGER_OPS(REDUCER, i8)
INTEGER_OPS(REDUCER, i32)
INTEGER_OPS(REDUCER, i64)
FLOAT_OPS(REDUCER, f16)
FLOAT_OPS(REDUCER, bf16)
FLOAT_OPS(REDUCER, f32)
FLOAT_OPS(REDUCER, f64)

#define ENTRY(T, op) [op] = reduce_##T##_##op,
#define REDUCE_TABLE                                                                                          \
  {[MC_U8] = {INTEGER_OPS(ENTRY, u8)},   [MC_I8] = {INTEGER_OPS(ENTRY, i8)}, [MC_I32] = {INTEGER_OPS(ENTRY, i32)}, \
   [MC_I64] = {INTEGER_OPS(ENTRY, i64)}, [MC_F16] = {FLOAT_OPS(ENTRY, f16)}, [MC_BF16] = {FLOAT_OPS(ENTRY, bf16)}, \
   [MC_F32] = {FLOAT_OPS(ENTRY, f32)},   [MC_F64] = {FLOAT_OPS(ENTRY, f64)}}
