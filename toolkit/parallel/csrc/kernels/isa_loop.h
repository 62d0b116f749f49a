/* The loop of a reduction, for one type. A template: included once per type, with MC_T its name; the
 * other names in capitals are of kernels/isa_reduce.h.
 * One pass: every source is read once and every target written once, whatever n is. Within a block all
 * sources are read before a target is written, so a target may be any of the sources. */

MC_INLINE void MC_JOIN(finish_, MC_T)(unsigned op, char *to, SUM v, double divisor) {
  GIVE(to, op == MC_AVG ? DIVIDE(v, divisor) : v);
}

/* Four registers at `at`, from n sources. */
MC_INLINE void MC_JOIN(block_, MC_T)(unsigned op, char *dst, char *dst2, const char *const *src, unsigned n,
                                     size_t at, size_t soon, double divisor) {
  const char *from = src[0] + at;
  prefetch(src[0] + soon, 4 * STEP);
  SUM a = TAKE(from), b = TAKE(from + STEP), c = TAKE(from + 2 * STEP), d = TAKE(from + 3 * STEP);
  for (unsigned i = 1; i < n; i++) {
    from = src[i] + at;
    prefetch(src[i] + soon, 4 * STEP);
    a = COMBINE(op, a, TAKE(from));
    b = COMBINE(op, b, TAKE(from + STEP));
    c = COMBINE(op, c, TAKE(from + 2 * STEP));
    d = COMBINE(op, d, TAKE(from + 3 * STEP));
  }
  FINISH(op, dst + at, a, divisor);
  FINISH(op, dst + at + STEP, b, divisor);
  FINISH(op, dst + at + 2 * STEP, c, divisor);
  FINISH(op, dst + at + 3 * STEP, d, divisor);
  for (size_t i = 0; dst2 && i < 4 * STEP; i += STEP) __builtin_memcpy(dst2 + at + i, dst + at + i, STEP);
}

/* The last bytes: through one register, filled up with zeros, at the end; else one register at a time. */
MC_INLINE void MC_JOIN(rest_, MC_T)(unsigned op, char *dst, char *dst2, const char *const *src, unsigned n,
                                    size_t at, size_t bytes, double divisor) {
  while (at < bytes) {
    size_t part = bytes - at < STEP ? bytes - at : STEP;
    char room[STEP] = {0};
    copy_part(room, src[0] + at, part, STEP);
    SUM v = TAKE(room);
    for (unsigned i = 1; i < n; i++) {
      copy_part(room, src[i] + at, part, STEP);
      v = COMBINE(op, v, TAKE(room));
    }
    FINISH(op, room, v, divisor);
    copy_part(dst + at, room, part, STEP);
    if (dst2) copy_part(dst2 + at, room, part, STEP);
    at += part;
  }
}

MC_INLINE void MC_JOIN(loop_, MC_T)(unsigned op, char *dst, char *dst2, const char *const *src, unsigned n,
                                    size_t bytes, double divisor) {
  size_t at = 0, full = bytes - bytes % (4 * STEP);
  if (dst2 == dst) dst2 = NULL;
  if (n == 2) { /* the common case: both addresses stay in registers */
    const char *two[2] = {src[0], src[1]};
    for (; at < full; at += 4 * STEP) BLOCK(op, dst, dst2, two, 2, at, SOON(at, bytes), divisor);
  }
  for (; at < full; at += 4 * STEP) BLOCK(op, dst, dst2, src, n, at, SOON(at, bytes), divisor);
  MC_JOIN(rest_, MC_T)(op, dst, dst2, src, n, at, bytes, divisor);
}

#undef MC_T
