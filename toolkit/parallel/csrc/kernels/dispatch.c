/* The kernels as the rest of the core calls them: what does not depend on the instruction set. */
#include <string.h>
#include "kernels/isa_kernels.h"

size_t mc_dtype_bytes(uint32_t dtype) {
  static const uint8_t bytes[MC_DTYPES] = {
    [MC_U8] = 1, [MC_I8] = 1, [MC_I32] = 4, [MC_I64] = 8, [MC_F16] = 2, [MC_BF16] = 2, [MC_F32] = 4, [MC_F64] = 8,
  };
  return dtype < MC_DTYPES ? bytes[dtype] : 0;
}

mc_reduce_fn *mc_reducer(uint32_t dtype, uint32_t op) {
  return dtype < MC_DTYPES && op < MC_OPS ? mc_kernels_chosen()->reduce[dtype][op] : NULL;
}

/* Below the one, memcpy is faster, having no warm-up; above the other it knows how large the cache is. */
#define COPY_FROM_BYTES ((size_t)8 << 10)
#define COPY_TO_BYTES ((size_t)4 << 20)

void mc_copy(void *dst, const void *src, size_t bytes) {
  if (bytes == 0 || dst == src) return; /* memcpy may not be given NULL, nor the same place */
  if (bytes < COPY_FROM_BYTES || bytes > COPY_TO_BYTES)
    memcpy(dst, src, bytes);
  else
    mc_kernels_chosen()->copy(dst, src, bytes);
}

void mc_copy_out(void *dst, const void *src, size_t bytes) {
  if (bytes == 0 || dst == src) return;
  if (bytes < COPY_FROM_BYTES)
    memcpy(dst, src, bytes);
  else
    mc_kernels_chosen()->copy_out(dst, src, bytes);
}

/* A result this long is not read again before other memory has driven it out of the cache. */
#define NONTEMPORAL_BYTES ((size_t)8 << 20)

bool mc_is_nontemporal(size_t whole) { return whole >= NONTEMPORAL_BYTES; }

void mc_copy_piece(void *dst, const void *src, size_t bytes, size_t whole) {
  if (mc_is_nontemporal(whole))
    mc_copy_out(dst, src, bytes);
  else
    mc_copy(dst, src, bytes);
}

size_t mc_packed_bytes(uint32_t wire, size_t count) {
  size_t blocks = count / MC_I8_BLOCK + (count % MC_I8_BLOCK != 0);
  return wire == MC_WIRE_I8 ? blocks * sizeof(float) + count : count * sizeof(uint16_t);
}

void mc_pack(uint32_t wire, void *dst, const float *src, size_t count) { mc_kernels_chosen()->pack[wire](dst, src, count); }

void mc_unpack(uint32_t wire, float *dst, const void *src, size_t count) { mc_kernels_chosen()->unpack[wire](dst, src, count); }

/* --- muster_core.h */

void mc_kernel_pack_i8(void *dst, const float *src, uint64_t count, float *error) {
  mc_kernels_chosen()->pack_i8_keeping(dst, src, count, error);
}

void mc_kernel_unpack_i8(float *dst, const void *src, uint64_t count) { mc_unpack(MC_WIRE_I8, dst, src, count); }

void mc_kernel_unpack_add_i8(float *dst, const void *src, uint64_t count) { mc_kernels_chosen()->unpack_add_i8(dst, src, count); }
