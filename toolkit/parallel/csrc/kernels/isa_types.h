/* The words an instruction set works on. Included inside its file, after
 *   MC_LANE_BYTES  the width of its registers, or 0 for plain C, whose "vectors" are single numbers.
 * Vectors are the compiler's own (GCC, Clang): the rest of the kernels is written once, for all. */
#if MC_LANE_BYTES
#define MC_WORD(number, name, bytes) typedef number name __attribute__((vector_size(bytes)));
#define MASK(type, condition) ((type)(condition)) /* all ones where it holds; a comparison gives just that */
#else
#define MC_WORD(number, name, bytes) typedef number name;
#define MASK(type, condition) ((type)(0 - (type)(condition)))
#endif

MC_WORD(uint8_t, v_u8, MC_LANE_BYTES)
MC_WORD(int8_t, v_s8, MC_LANE_BYTES)
MC_WORD(uint32_t, v_u32, MC_LANE_BYTES)
MC_WORD(int32_t, v_s32, MC_LANE_BYTES)
MC_WORD(uint64_t, v_u64, MC_LANE_BYTES)
MC_WORD(int64_t, v_s64, MC_LANE_BYTES)
MC_WORD(float, v_f32, MC_LANE_BYTES)
MC_WORD(double, v_f64, MC_LANE_BYTES)
/* as many as there are floats in a register, but narrow */
MC_WORD(uint16_t, v_half, MC_LANE_BYTES / 2)
MC_WORD(int8_t, v_byte, MC_LANE_BYTES / 4)
#undef MC_WORD

/* Loads and stores know no alignment; the same bits seen as another type. */
#define MC_MEMORY(name)                                                                                   \
  MC_INLINE name load_##name(const char *from) { name v; __builtin_memcpy(&v, from, sizeof v); return v; } \
  MC_INLINE void store_##name(char *to, name v) { __builtin_memcpy(to, &v, sizeof v); }
MC_MEMORY(v_u8)
MC_MEMORY(v_u32)
MC_MEMORY(v_u64)
MC_MEMORY(v_f32)
MC_MEMORY(v_f64)
MC_MEMORY(v_half)
MC_MEMORY(v_byte)
#undef MC_MEMORY

#define MC_BITS(name, from, to) \
  MC_INLINE to name(from v) { to bits; __builtin_memcpy(&bits, &v, sizeof bits); return bits; }
MC_BITS(bits_f32, v_f32, v_u32)
MC_BITS(bits_f64, v_f64, v_u64)
MC_BITS(float_of, v_u32, v_f32)
MC_BITS(double_of, v_u64, v_f64)
#undef MC_BITS

MC_INLINE v_f32 float_of_int(v_s32 v) {
#if MC_LANE_BYTES
  return __builtin_convertvector(v, v_f32);
#else
  return (float)v;
#endif
}

/* A product that is to be rounded before it is added to: hides from the compiler that a multiply-add,
 * which epochs once and gives other bits, would do. */
MC_INLINE v_f32 rounded(v_f32 v) {
#ifdef MC_REGISTER
  __asm__("" : "+" MC_REGISTER(v));
  return v;
#else
  volatile v_f32 out = v;
  return out;
#endif
}
