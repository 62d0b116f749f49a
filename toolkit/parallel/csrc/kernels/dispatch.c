/* The doors to the kernels: what does not depend on the instruction set, and the exports for tests. */
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
  if (wire == MC_WIRE_I8) return blocks * sizeof(float) + count;
  return count * (wire == MC_WIRE_SAME ? sizeof(float) : sizeof(uint16_t));
}

/* Nothing is lost where the form stays the same; an error from before is still sent. */
static void pack_same(void *dst, const float *src, size_t count, float *error) {
  const void *both[2] = {src, error};
  if (!error) {
    mc_copy(dst, src, count * sizeof *src);
    return;
  }
  mc_reducer(MC_F32, MC_SUM)(dst, NULL, both, 2, count, 1.0);
  memset(error, 0, count * sizeof *error);
}

void mc_pack(uint32_t wire, void *dst, const float *src, size_t count, float *error) {
  if (count == 0 || wire >= MC_WIRES) return;
  if (wire == MC_WIRE_SAME)
    pack_same(dst, src, count, error);
  else
    mc_kernels_chosen()->pack[wire](dst, src, count, error);
}

void mc_unpack(uint32_t wire, float *dst, const void *src, size_t count) {
  if (count == 0 || wire >= MC_WIRES) return;
  if (wire == MC_WIRE_SAME)
    mc_copy(dst, src, count * sizeof *dst);
  else
    mc_kernels_chosen()->unpack[wire](dst, src, count);
}

void mc_unpack_add(uint32_t wire, float *dst, const void *src, size_t count) {
  const void *both[2] = {dst, src};
  if (count == 0 || wire >= MC_WIRES) return;
  if (wire == MC_WIRE_SAME)
    mc_reducer(MC_F32, MC_SUM)(dst, NULL, both, 2, count, 1.0);
  else
    mc_kernels_chosen()->unpack_add[wire](dst, src, count);
}

/* --- for tests and tools ------------------------------------------------------------------------ */

int mc_kernel_reduce_to(uint32_t dtype, uint32_t op, void *dst, void *dst2, const void *const *src, uint32_t n,
                        uint64_t count, double divisor) {
  mc_reduce_fn *reduce = mc_reducer(dtype, op);
  if (!reduce || n == 0) return MC_EINVAL;
  reduce(dst, dst2, src, n, (size_t)count, divisor);
  return MC_OK;
}

int mc_kernel_reduce(uint32_t dtype, uint32_t op, void *dst, const void *const *src, uint32_t n, uint64_t count) {
  return mc_kernel_reduce_to(dtype, op, dst, NULL, src, n, count, n);
}

int mc_kernel_pack(uint32_t wire, void *dst, float *src, uint64_t count, float *error) {
  if (wire >= MC_WIRES) return MC_EINVAL;
  mc_pack(wire, dst, src, (size_t)count, error);
  return MC_OK;
}

int mc_kernel_unpack(uint32_t wire, float *dst, const void *src, uint64_t count) {
  if (wire >= MC_WIRES) return MC_EINVAL;
  mc_unpack(wire, dst, src, (size_t)count);
  return MC_OK;
}

int mc_kernel_unpack_add(uint32_t wire, float *dst, const void *src, uint64_t count) {
  if (wire >= MC_WIRES) return MC_EINVAL;
  mc_unpack_add(wire, dst, src, (size_t)count);
  return MC_OK;
}

uint64_t mc_kernel_packed_bytes(uint32_t wire, uint64_t count) {
  return wire < MC_WIRES ? mc_packed_bytes(wire, (size_t)count) : 0;
}

void mc_kernel_copy(void *dst, const void *src, uint64_t bytes) { mc_copy(dst, src, (size_t)bytes); }

void mc_kernel_copy_out(void *dst, const void *src, uint64_t bytes) { mc_copy_out(dst, src, (size_t)bytes); }

uint64_t mc_kernel_checksum(uint64_t seed, const void *data, uint64_t bytes) {
  return mc_checksum(seed, data, (size_t)bytes);
}
