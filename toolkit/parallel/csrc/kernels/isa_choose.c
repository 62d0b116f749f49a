/* Picks the widest instruction set that processor and system have, once per process. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/isa_kernels.h"
#ifdef MC_ISA_X86
#include <cpuid.h>
#endif

#ifdef MC_ISA_X86
/* Asked of the processor itself: the compilers' own lists differ in what they name, and some runtimes
 * have none. XCR0 says which registers the system keeps over a switch of threads. */
#define F16C (1u << 29)                                    /* leaf 1, ecx */
#define OSXSAVE (1u << 27)                                 /* leaf 1, ecx: XCR0 may be read */
#define AVX2 (1u << 5)                                     /* leaf 7, ebx */
#define AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define KEEPS_YMM 0x06u
#define KEEPS_ZMM 0xe6u

static int has(unsigned features, unsigned keeps) {
  unsigned a, b, c, d, kept, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) || !(c & F16C)) return 0;
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if ((kept & keeps) != keeps || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  return (b & features) == features;
}

static int has_avx2(void) { return has(AVX2, KEEPS_YMM); }
static int has_avx512(void) { return has(AVX2 | AVX512, KEEPS_ZMM); }
#endif

static int always(void) { return 1; }

/* Widest first, so that lowering means to begin further down. */
static const struct {
  const struct mc_kernels *kernels;
  int (*here)(void);
} known[] = {
#ifdef MC_ISA_X86
  {&mc_kernels_avx512, has_avx512},
  {&mc_kernels_avx2, has_avx2},
#endif
#ifdef MC_ISA_NEON
  {&mc_kernels_neon, always}, /* part of every 64-bit Arm */
#endif
  {&mc_kernels_plain, always},
};
#define KNOWN (sizeof known / sizeof known[0])

/* COLLECTIVES_ISA can only lower: a name this build does not know, or one the processor lacks, gives
 * the best there is. The Python side names a misspelt value. */
static const struct mc_kernels *choose(void) {
  const char *wish = getenv("COLLECTIVES_ISA");
  size_t first = 0;
  for (size_t i = 0; wish && i < KNOWN; i++)
    if (!strcmp(wish, known[i].kernels->name)) first = i;
  while (!known[first].here()) first++; /* the last one is always here */
  return known[first].kernels;
}

/* Without a lock, so that a fork in the middle cannot leave one locked; of two threads that come
 * first together one wins, and both use the winner's. */
const struct mc_kernels *mc_kernels_chosen(void) {
  static _Atomic(const struct mc_kernels *) chosen;
  const struct mc_kernels *now = atomic_load_explicit(&chosen, memory_order_acquire);
  if (now) return now;
  const struct mc_kernels *mine = choose();
  if (atomic_compare_exchange_strong(&chosen, &now, mine)) return mine;
  return now;
}

const char *mc_isa(void) { return mc_kernels_chosen()->name; }
