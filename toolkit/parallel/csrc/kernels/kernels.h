/* Kernels: element-wise reductions, conversions, copies, checksums; chosen once per process by what
 * the processor has. Every instruction set gives the same bits as the plain C one. */
#ifndef MUSTER_KERNELS_H
#define MUSTER_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include "muster_core.h"

/* dst[i] = src[0][i] op src[1][i] op ... op src[n-1][i], in this order, n >= 1. 16-bit floats are summed
 * in fp32 and rounded once (to nearest even); integers wrap. MIN and MAX of floats: NaN wins. The result
 * is divided by `divisor` before rounding where the op is MC_AVG (else ignored). dst may equal any src;
 * dst2 (NULL: none) receives the same. No alignment is assumed. Prefetches what it reads. */
typedef void mc_reduce_fn(void *dst, void *dst2, const void *const *src, unsigned n, size_t count, double divisor);
mc_reduce_fn *mc_reducer(uint32_t dtype, uint32_t op); /* NULL: not defined for this type */
size_t mc_dtype_bytes(uint32_t dtype);

void mc_copy(void *dst, const void *src, size_t bytes); /* memcpy for large blocks, prefetching */
/* The same for a target that is far larger than the cache in all and not read soon (a caller's large
 * result, chunk by chunk): writes past the cache where the processor can, which spares reading the target
 * first. Done, for other processors too, when it returns. */
void mc_copy_out(void *dst, const void *src, size_t bytes);
bool mc_is_nontemporal(size_t whole); /* whether that is so of a result this long */
void mc_copy_piece(void *dst, const void *src, size_t bytes, size_t whole); /* of a result: the one or the other */

/* fp32 <-> a packed form (not MC_WIRE_SAME, which is neither packed nor unpacked). MC_WIRE_I8: blocks of
 * MC_I8_BLOCK values, a float scale (max|x|/127) before each. */
#define MC_I8_BLOCK 256u
size_t mc_packed_bytes(uint32_t wire, size_t count);
void mc_pack(uint32_t wire, void *dst, const float *src, size_t count);
void mc_unpack(uint32_t wire, float *dst, const void *src, size_t count);

uint64_t mc_checksum(uint64_t seed, const void *data, size_t bytes); /* may be fed in pieces of multiples of 64 bytes */
#endif
