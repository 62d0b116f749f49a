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
#define REDUCER(T, bytes, op)                                                                             \
  static void reduce_##T##_##op(void *dst, void *dst2, const void *const *src, unsigned n, size_t count,  \
                                double divisor) {                                                           \
    loop_##T(op, dst, dst2, (const char *const *)src, n, count * (bytes), divisor);                         \
  }
#define FLOAT_REDUCERS(T, bytes) \
  REDUCER(T, bytes, MC_SUM) REDUCER(T, bytes, MC_AVG) REDUCER(T, bytes, MC_MIN) REDUCER(T, bytes, MC_MAX) \
  REDUCER(T, bytes, MC_PROD)
#define INTEGER_REDUCERS(T, bytes) \
  REDUCER(T, bytes, MC_SUM) REDUCER(T, bytes, MC_MIN) REDUCER(T, bytes, MC_MAX) REDUCER(T, bytes, MC_PROD) \
  REDUCER(T, bytes, MC_BAND) REDUCER(T, bytes, MC_BOR) REDUCER(T, bytes, MC_BXOR)
INTEGER_REDUCERS(u8, 1)
REDUCER(i8, 1, MC_MIN) /* what else i8 does is the same for u8 */
REDUCER(i8, 1, MC_MAX)
INTEGER_REDUCERS(i32, 4)
INTEGER_REDUCERS(i64, 8)
FLOAT_REDUCERS(f16, 2)
FLOAT_REDUCERS(bf16, 2)
FLOAT_REDUCERS(f32, 4)
FLOAT_REDUCERS(f64, 8)
#undef REDUCER
#undef FLOAT_REDUCERS
#undef INTEGER_REDUCERS

#define FLOAT_ROW(T) \
  {[MC_SUM] = reduce_##T##_MC_SUM, [MC_AVG] = reduce_##T##_MC_AVG, [MC_MIN] = reduce_##T##_MC_MIN, \
   [MC_MAX] = reduce_##T##_MC_MAX, [MC_PROD] = reduce_##T##_MC_PROD}
/* `O` orders, `T` does the rest */
#define INTEGER_ROW(T, O) \
  {[MC_SUM] = reduce_##T##_MC_SUM, [MC_MIN] = reduce_##O##_MC_MIN, [MC_MAX] = reduce_##O##_MC_MAX, \
   [MC_PROD] = reduce_##T##_MC_PROD, [MC_BAND] = reduce_##T##_MC_BAND, [MC_BOR] = reduce_##T##_MC_BOR, \
   [MC_BXOR] = reduce_##T##_MC_BXOR}
#define REDUCE_TABLE                                                                              \
  {[MC_U8] = INTEGER_ROW(u8, u8), [MC_I8] = INTEGER_ROW(u8, i8), [MC_I32] = INTEGER_ROW(i32, i32), \
   [MC_I64] = INTEGER_ROW(i64, i64), [MC_F16] = FLOAT_ROW(f16), [MC_BF16] = FLOAT_ROW(bf16),       \
   [MC_F32] = FLOAT_ROW(f32), [MC_F64] = FLOAT_ROW(f64)}
