/* mc_run as a function of the caller's own interpreter, CPython. Its arguments cost a tenth of what they
 * cost through ctypes, which for a small sum is more than the sum. */
#include <stddef.h>
#include "muster_core.h"

/* One process has one interpreter, and its functions never change. */
static struct mc_python python;

void mc_python(const struct mc_python *functions) { python = *functions; }

static int perform(struct mc_entry *entry, const uint64_t *n, double timeout_s) {
  for (int i = 0; i < 4; i++)
    if (n[i] > UINT32_MAX) return MC_EINVAL;
  struct mc_call call = {
    .verb = (uint32_t)n[0], .dtype = (uint32_t)n[1], .op = (uint32_t)n[2], .root = (uint32_t)n[3],
    .in = (const void *)(uintptr_t)n[4], .out = (void *)(uintptr_t)n[5], .count = n[6],
    .in_counts = (const uint64_t *)(uintptr_t)n[7], .out_counts = (const uint64_t *)(uintptr_t)n[8],
    .timeout_s = timeout_s,
  };
  void *thread = python.let_go();
  int code = mc_run(entry->comm, &call, entry->failure);
  python.hold(thread);
  return code;
}

void *mc_python_run(void *self, void *const *arguments, intptr_t given) {
  uint64_t n[9];
  if (given != 10) return python.code(MC_EINVAL);
  struct mc_entry *entry = (struct mc_entry *)(uintptr_t)python.number(self);
  for (int i = 0; i < 9; i++) n[i] = python.number(arguments[i]);
  double timeout_s = python.real(arguments[9]);
  return python.error() ? NULL : python.code(perform(entry, n, timeout_s));
}
