/* The arithmetic, once for all instruction sets and for plain C. Included after kernels/isa_types.h and after
 * the instruction set's own conversions (kernels/isa_table.h).
 * What is promised of the bits: sums and products are IEEE's, one rounding each, in the order given;
 * minima and maxima know -0 < +0 and hand on the first NaN; a NaN that a sum makes is some quiet NaN. */

/* A type of which memory and registers have the same form. STEP: the bytes of one register of it. */
enum { BYTES_u8 = 1, BYTES_i8 = 1, BYTES_i32 = 4, BYTES_i64 = 8, BYTES_f16 = 2, BYTES_bf16 = 2, BYTES_f32 = 4, BYTES_f64 = 8 };
#define MC_WHOLE(T, word)                                                                        \
  typedef word sum_##T;                                                                          \
  enum { STEP_##T = sizeof(word) };                                                              \
  MC_INLINE word take_##T(const char *from) { return load_##word(from); }                        \
  MC_INLINE void give_##T(char *to, word v) { store_##word(to, v); }

/* --- integers: wrap; `order` is the type that compares ------------------------------------------- */

#define MC_INTEGER(T, word, order)                                                               \
  MC_INLINE word combine_##T(unsigned op, word a, word b) {                                      \
    switch (op) {                                                                                \
    case MC_SUM: return (word)(a + b);                                                           \
    case MC_PROD: return (word)(a * b);                                                          \
    case MC_BAND: return (word)(a & b);                                                          \
    case MC_BOR: return (word)(a | b);                                                           \
    case MC_BXOR: return (word)(a ^ b);                                                          \
    default: break;                                                                              \
    }                                                                                            \
    word take_a = op == MC_MIN ? MASK(word, (order)a < (order)b) : MASK(word, (order)a > (order)b); \
    return (word)((a & take_a) | (b & (word)~take_a));                                           \
  }                                                                                              \
  MC_WHOLE(T, word)                                                                              \
  MC_INLINE word divide_##T(word v, double by) { (void)by; return v; }
MC_INTEGER(u8, v_u8, v_u8)
MC_INTEGER(i8, v_u8, v_s8)
MC_INTEGER(i32, v_u32, v_s32)
MC_INTEGER(i64, v_u64, v_s64)

/* --- floats ---------------------------------------------------------------------------------------- */

/* Of equal numbers only 0 has two forms: or-ing the bits gives -0 (minimum), and-ing +0 (maximum). */
#define MC_FLOAT(T, word, bits, number, of_bits)                                                 \
  MC_INLINE word combine_##T(unsigned op, word a, word b) {                                      \
    if (op == MC_SUM || op == MC_AVG) return a + b;                                              \
    if (op == MC_PROD) return a * b;                                                             \
    bits x = bits_##T(a), y = bits_##T(b), best;                                                 \
    if (op == MC_MIN)                                                                            \
      best = (x & MASK(bits, a <= b)) | (y & MASK(bits, a >= b));                                \
    else                                                                                         \
      best = (x & MASK(bits, a > b)) | (y & MASK(bits, a < b)) | (x & y & MASK(bits, a == b));   \
    bits nan_a = MASK(bits, a != a), nan_b = MASK(bits, b != b);                                 \
    return of_bits(best | (x & nan_a) | (y & nan_b & ~nan_a));                                   \
  }                                                                                              \
  MC_WHOLE(T, word)                                                                              \
  MC_INLINE word divide_##T(word v, double by) { return v / (number)by; }
MC_FLOAT(f32, v_f32, v_u32, float, float_of)
MC_FLOAT(f64, v_f64, v_u64, double, double_of)

/* --- 16-bit floats: two registers of fp32 for one of memory ------------------------------------ */

struct pair { v_f32 first, second; };

#define MC_PAIR(T)                                                                       \
  typedef struct pair sum_##T;                                                           \
  enum { STEP_##T = sizeof(v_f32) };                                                     \
  MC_INLINE struct pair combine_##T(unsigned op, struct pair a, struct pair b) {         \
    a.first = combine_f32(op, a.first, b.first);                                         \
    a.second = combine_f32(op, a.second, b.second);                                      \
    return a;                                                                            \
  }                                                                                      \
  MC_INLINE struct pair divide_##T(struct pair v, double by) {                            \
    v.first = divide_f32(v.first, by);                                                    \
    v.second = divide_f32(v.second, by);                                                  \
    return v;                                                                            \
  }
MC_PAIR(f16)
MC_PAIR(bf16)

MC_INLINE struct pair take_f16(const char *from) {
  struct pair v = {f32_of_f16(load_v_half(from)), f32_of_f16(load_v_half(from + sizeof(v_half)))};
  return v;
}
MC_INLINE void give_f16(char *to, struct pair v) {
  store_v_half(to, f16_of(v.first));
  store_v_half(to + sizeof(v_half), f16_of(v.second));
}

/* The bits of a bf16, rounded to nearest even, in the upper half of each word; the lower is rubbish.
 * A NaN is kept and made quiet: rounding could carry it into an infinity. */
MC_INLINE v_u32 bf16_upper(v_f32 v) {
  v_u32 x = bits_f32(v), nan = MASK(v_u32, v != v);
  v_u32 near = x + 0x7fffu + ((x >> 16) & 1u);
  return (near & ~nan) | ((x | 0x400000u) & nan);
}

/* Even and odd elements are the halves of 32-bit words, and a bf16 is the upper half of its fp32: so
 * neither way needs a shuffle. */
MC_INLINE struct pair take_bf16(const char *from) {
  v_u32 both = load_v_u32(from);
  struct pair v = {float_of(both << 16), float_of(both & 0xffff0000u)};
  return v;
}
MC_INLINE void give_bf16(char *to, struct pair v) {
  store_v_u32(to, (bf16_upper(v.first) >> 16) | (bf16_upper(v.second) & 0xffff0000u));
}

/* In order, for packing. */
MC_INLINE v_half bf16_of(v_f32 v) { return narrow_half(bf16_upper(v) >> 16); }
MC_INLINE v_f32 f32_of_bf16(v_half v) { return float_of(widen_half(v) << 16); }
