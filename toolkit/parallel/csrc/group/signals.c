/* Handlers of the caller's interpreter (Ctrl-C, SIGTERM) run while a call waits, not after it. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include "group/comm.h"

#define SIGNALS_NS 50000000u /* how long a signal may wait for its handler */

void mc_set_signal_check(struct mc_comm *c, struct mc_signal_check *check) { c->signals = check; }

int mc_check_signals(struct mc_comm *c) {
  struct mc_signal_check *check = c->signals;
  if (!check || (uint64_t)pthread_self() != check->thread) return MC_OK;
  uint64_t now = mc_now_ns();
  if (now - c->signals_checked_ns < SIGNALS_NS) return MC_OK;
  c->signals_checked_ns = now;
  int held = check->ensure_gil();
  int raised = check->check_signals();
  if (raised) check->fetch(&check->kept[0], &check->kept[1], &check->kept[2]);
  check->release(held);
  return raised ? mc_fail(c, MC_EABORT, EINTR, -1, NULL, NULL) : MC_OK;
}
