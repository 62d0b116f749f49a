/* The thread of p2p: moves what nobody waits for, and the sockets. It sleeps on its own bell where only this
 * node is concerned, in poll where other nodes are, and without end when nothing is pending. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <time.h>
#include "p2p_state.h"
#include "fault_point.h"

#define LINGER 2u             /* slices before it sleeps without end: posts in a row need not wake it */
#define BOTH_NS 1000000u      /* in poll it does not hear the node's bell */

void mc_p2p_kick(struct mc_p2p *p) {
  if (p->polling) mc_channel_wake(p->ch);
  else mc_bell_call(mc_own_bell(p));
}

static void sleep_in_poll(struct mc_p2p *p) {
  struct mc_chan *ch = p->ch;
  ch->moved = false;
  mc_channel_push(ch);
  const uint32_t count = mc_channel_polls(ch);
  uint64_t wait_ns = mc_channel_due(ch, mc_now_ns());
  if (p->pending_near && !p->waiters && wait_ns > BOTH_NS) wait_ns = BOTH_NS;
  if (ch->moved) wait_ns = 0;
  atomic_store(&mc_own_bell(p)->listens, 0);
  p->polling = true;
  pthread_mutex_unlock(&p->lock);
  const struct timespec wait = {.tv_sec = 0, .tv_nsec = (long)wait_ns};
  const int said = ppoll(ch->polls, count, &wait, NULL);
  pthread_mutex_lock(&p->lock);
  p->polling = false;
  if (said >= 0) mc_channel_polled(ch);
}

static void sleep_on_bell(struct mc_p2p *p, uint32_t *idle_for) {
  struct mc_bell *bell = mc_own_bell(p);
  const bool needed = p->pending > 0;
  const uint32_t calls = atomic_load(&bell->calls);
  atomic_store(&bell->listens, needed && !p->waiters ? 1u : 0u);
  if (needed && !p->waiters && mc_bell_news(bell)) return; /* came before we listened */
  *idle_for = needed ? 0 : *idle_for + 1;
  p->idle = *idle_for > LINGER;
  const uint64_t wait_ns = p->idle ? 0 : MC_SLICE_NS;
  pthread_mutex_unlock(&p->lock);
  mc_bell_sleep_thread(bell, calls, wait_ns);
  pthread_mutex_lock(&p->lock);
  p->idle = false;
}

static void *run(void *of) {
  struct mc_p2p *p = of;
  uint32_t idle_for = 0;
  pthread_mutex_lock(&p->lock);
  while (!p->stop) {
    if (!p->waiters) mc_rings_move(p);
    MC_FAULT_POINT(thread_moved);
    mc_p2p_sweep(p, false);
    if (p->ch && p->pending_remote) {
      idle_for = 0;
      sleep_in_poll(p);
    } else {
      sleep_on_bell(p, &idle_for);
    }
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

bool mc_p2p_start(struct mc_p2p *p) {
  sigset_t all, before;
  sigfillset(&all); /* the program's signals are for its own threads */
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  const bool started = pthread_create(&p->thread, NULL, run, p) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}
