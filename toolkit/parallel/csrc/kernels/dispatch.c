/* The kernels as the rest of the core calls them: what does not depend on the instruction set, and the exports for tests. */
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

/* --- for other users of the kernels, and tests: muster_core.h ----------------------------------------- */

int mc_kernel_reduce(uint32_t dtype, uint32_t op, void *dst, void *dst2, const void *const *src, uint32_t n, uint64_t count,
                     double divisor) {
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  if (!reduce || n == 0) return MC_EINVAL;
  reduce(dst, dst2, src, n, (size_t)count, divisor);
  return MC_OK;
}

static bool is_packed(uint32_t wire) { return wire > MC_WIRE_SAME && wire < MC_WIRES; }

int mc_kernel_pack(uint32_t wire, void *dst, const float *src, uint64_t count) {
  if (!is_packed(wire)) return MC_EINVAL;
  mc_pack(wire, dst, src, count);
  return MC_OK;
}

int mc_kernel_unpack(uint32_t wire, float *dst, const void *src, uint64_t count) {
  if (!is_packed(wire)) return MC_EINVAL;
  mc_unpack(wire, dst, src, count);
  return MC_OK;
}

void mc_kernel_pack_i8_keeping(void *dst, const float *src, uint64_t count, float *error) {
  mc_kernels_chosen()->pack_i8_keeping(dst, src, count, error);
}

void mc_kernel_unpack_add_i8(float *dst, const void *src, uint64_t count) { mc_kernels_chosen()->unpack_add_i8(dst, src, count); }

uint64_t mc_kernel_packed_bytes(uint32_t wire, uint64_t count) { return mc_packed_bytes(wire, count); }

void mc_kernel_copy(void *dst, const void *src, uint64_t bytes) { mc_copy(dst, src, bytes); }

void mc_kernel_copy_out(void *dst, const void *src, uint64_t bytes) { mc_copy_out(dst, src, bytes); }

uint64_t mc_kernel_checksum(uint64_t seed, const void *data, uint64_t bytes) { return mc_checksum(seed, data, bytes); }
