/* Handlers of the caller's interpreter (Ctrl-C, SIGTERM) run while a call waits, not after it. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include "group/comm.h"

#define ATTEND_NS 50000000u /* how long a signal may wait for its handler */

void mc_attend(struct mc_comm *c, struct mc_host *host) { c->host = host; }

int mc_attended(struct mc_comm *c) {
  struct mc_host *host = c->host;
  if (!host || (uint64_t)pthread_self() != host->thread) return MC_OK;
  uint64_t now = mc_now_ns();
  if (now - c->attended_ns < ATTEND_NS) return MC_OK;
  c->attended_ns = now;
  int held = host->hold();
  int raised = host->look();
  if (raised) host->keep(&host->kept[0], &host->kept[1], &host->kept[2]);
  host->let_go(held);
  return raised ? mc_fail(c, MC_EABORT, EINTR, -1, NULL, NULL) : MC_OK;
}
