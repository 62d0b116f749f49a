/* mc_run, mc_post and mc_wait as functions of the caller's own interpreter, CPython. Their arguments cost a tenth of
 * what they cost through ctypes, which for a small sum or message is more than the sum. */
#include <stddef.h>
#include "muster_core.h"

/* One process has one interpreter, and its functions never change. */
static struct mc_python python;

void mc_python(const struct mc_python *functions) { python = *functions; }

static struct mc_entry *entry_of(void *self) { return (struct mc_entry *)(uintptr_t)python.number(self); }

/* `count` numbers and a timeout, taken from the interpreter for `perform`. */
static inline void *with_numbers(void *self, void *const *arguments, intptr_t given, int count,
                                 int (*perform)(struct mc_entry *entry, const uint64_t *n, double timeout_s)) {
  uint64_t n[10];
  if (given != count + 1) return python.code(MC_EINVAL);
  struct mc_entry *entry = entry_of(self);
  for (int i = 0; i < count; i++) n[i] = python.number(arguments[i]);
  double timeout_s = python.real(arguments[count]);
  return python.error() ? NULL : python.code(perform(entry, n, timeout_s));
}

static int run(struct mc_entry *entry, const uint64_t *n, double timeout_s) {
  for (int i = 0; i < 4; i++)
    if (n[i] > UINT32_MAX) return MC_EINVAL;
  struct mc_call call = {
    .verb = (uint32_t)n[0], .dtype = (uint32_t)n[1], .op = (uint32_t)n[2], .root = (uint32_t)n[3],
    .in = (const void *)(uintptr_t)n[4], .out = (void *)(uintptr_t)n[5], .count = n[6],
    .in_counts = (const uint64_t *)(uintptr_t)n[7], .out_counts = (const uint64_t *)(uintptr_t)n[8],
    .blocks = (void *const *)(uintptr_t)n[9], .timeout_s = timeout_s,
  };
  void *thread = python.save_thread();
  int code = mc_run(entry->comm, &call, entry->failure);
  python.restore_thread(thread);
  return code;
}

void *mc_python_run(void *self, void *const *arguments, intptr_t given) {
  return with_numbers(self, arguments, given, 10, run);
}

/* The group, for as long as the caller is in it; NULL once it is closed. Both sides sequentially consistent: either
 * this sees that it is closed, or the close sees this. */
static struct mc_comm *enter(struct mc_entry *entry) {
  __atomic_fetch_add(&entry->inside, 1, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&entry->comm, __ATOMIC_SEQ_CST);
}

static void leave(struct mc_entry *entry) { __atomic_fetch_sub(&entry->inside, 1, __ATOMIC_SEQ_CST); }

static int post(struct mc_entry *entry, const uint64_t *n, double timeout_s) {
  for (int i = 0; i < 3; i++)
    if (n[i] > UINT32_MAX) return MC_EINVAL;
  struct mc_transfer *transfer = (struct mc_transfer *)(uintptr_t)n[5];
  void *thread = python.save_thread();
  struct mc_comm *comm = enter(entry);
  int code = MC_ECLOSED;
  if (comm) code = mc_post(comm, (uint32_t)n[0], (int32_t)(uint32_t)n[1], (uint32_t)n[2], (void *)(uintptr_t)n[3], n[4],
                           timeout_s, &transfer->request);
  if (code == MC_OK && mc_wait(comm, transfer->request, 0, &transfer->status, NULL) != MC_OK) code = MC_UNDER_WAY;
  leave(entry);
  python.restore_thread(thread);
  return code;
}

void *mc_python_post(void *self, void *const *arguments, intptr_t given) {
  return with_numbers(self, arguments, given, 6, post);
}

void *mc_python_wait(void *self, void *const *arguments, intptr_t given) {
  if (given != 4) return python.code(MC_EINVAL);
  struct mc_entry *entry = entry_of(self);
  uint64_t request = python.number(arguments[0]);
  double wait_s = python.real(arguments[1]);
  struct mc_status *status = (struct mc_status *)(uintptr_t)python.number(arguments[2]);
  struct mc_failure *failure = (struct mc_failure *)(uintptr_t)python.number(arguments[3]);
  if (python.error()) return NULL;
  void *thread = python.save_thread();
  struct mc_comm *comm = enter(entry);
  int code = comm ? mc_wait(comm, request, wait_s, status, failure) : MC_ECLOSED;
  leave(entry);
  python.restore_thread(thread);
  return python.code(code);
}
