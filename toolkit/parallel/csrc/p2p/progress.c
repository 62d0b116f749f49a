/* The threads of p2p: they move what nobody waits for. One sleeps on the bell, one in poll over the sockets; each
 * sleeps without end when nothing is pending that concerns it. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <time.h>
#include "p2p/state.h"
#include "group/fault_point.h"

#define LINGER 2u           /* slices before the bell's thread sleeps without end: posts in a row need not wake it */
#define GRACE_NS 1000000u   /* who posts may wait at once: until then the sockets are left to him ... */
#define GRACES 20u          /* ... and so often before their thread sleeps without end */

void mc_p2p_kick(struct mc_p2p *p) {
  if (p->polling) mc_channel_wake(p->ch);
  else if (p->net_idle) pthread_cond_signal(&p->net_rest);
}

void mc_p2p_entrust(struct mc_p2p *p) {
  struct mc_bell *bell = mc_own_bell(p);
  if (p->pending_near && !p->bell_waiters) {
    /* First the thread listens, then we look: what comes between the two calls it. It was the other way
     * round once, and news that came between was heard at the next slice only. */
    atomic_store(&bell->listens, 1);
    MC_FAULT_POINT(bell_entrusted);
    mc_rings_move(p);
    if (p->pending_near && p->bell_idle) mc_bell_call(bell);
  }
  const bool needed = p->pending_remote && !p->net_waiters && !p->polling;
  if (needed && (p->net_idle || p->both_waiters)) pthread_cond_signal(&p->net_rest);
}

static void sleep_on_bell(struct mc_p2p *p, uint32_t *idle_for) {
  struct mc_bell *bell = mc_own_bell(p);
  const uint32_t calls = atomic_load(&bell->calls); /* what is heard from here on wakes the sleep below */
  const bool alone = p->pending_near && !p->bell_waiters;
  atomic_store(&bell->listens, alone ? 1u : 0u);
  MC_FAULT_POINT(thread_listens);
  if (alone) mc_rings_move(p);
  MC_FAULT_POINT(thread_moved);
  mc_p2p_sweep(p, false);
  *idle_for = p->pending_near ? 0 : *idle_for + 1;
  p->bell_idle = *idle_for > LINGER;
  const uint64_t wait_ns = p->bell_idle ? 0 : MC_SLICE_NS;
  pthread_mutex_unlock(&p->lock);
  mc_bell_sleep_thread(bell, calls, wait_ns);
  pthread_mutex_lock(&p->lock);
  p->bell_idle = false;
}

static void *run_bell(void *of) {
  struct mc_p2p *p = of;
  uint32_t idle_for = 0;
  pthread_mutex_lock(&p->lock);
  while (!p->stop) sleep_on_bell(p, &idle_for);
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

void mc_p2p_turn(struct mc_p2p *p, uint64_t wait_ns) {
  struct mc_chan *ch = p->ch;
  ch->moved = false;
  mc_channel_push(ch);
  const uint32_t count = mc_channel_polls(ch);
  const uint64_t due_ns = mc_channel_due(ch, mc_now_ns()); /* a slice at most */
  if (due_ns < wait_ns) wait_ns = due_ns;
  if (ch->moved) wait_ns = 0;
  p->polling = true;
  pthread_mutex_unlock(&p->lock);
  const struct timespec wait = {.tv_sec = 0, .tv_nsec = (long)wait_ns};
  const int said = ppoll(ch->polls, count, &wait, NULL);
  if (!said && !wait_ns) sched_yield(); /* the peer may be here and want this processor */
  pthread_mutex_lock(&p->lock);
  p->polling = false;
  if (said >= 0) mc_channel_polled(ch);
}

static void rest(struct mc_p2p *p, bool idle) {
  p->net_idle = idle;
  if (idle) {
    pthread_cond_wait(&p->net_rest, &p->lock);
  } else {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GRACE_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&p->net_rest, &p->lock, &until);
  }
  p->net_idle = false;
}

static void *run_net(void *of) {
  struct mc_p2p *p = of;
  uint64_t turns = 0; /* of waiters, when this thread looked last */
  uint32_t graces = 0;
  pthread_mutex_lock(&p->lock);
  while (!p->stop) {
    const bool left_alone = p->pending_remote && !p->net_waiters, busy = p->turns != turns;
    turns = p->turns;
    graces = left_alone || busy ? 0 : graces + 1;
    if (left_alone && (!busy || p->both_waiters)) {
      mc_p2p_turn(p, MC_SLICE_NS);
      if (p->net_waiters) mc_bell_ring(mc_own_bell(p)); /* the sockets are theirs now */
      mc_p2p_sweep(p, false);
    } else {
      rest(p, graces > GRACES);
    }
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

bool mc_p2p_start(struct mc_p2p *p, const struct mc_request *r) {
  if (r->near && !p->bell_started) p->bell_started = mc_thread_start(&p->bell_thread, run_bell, p);
  if (r->remote && !p->net_started) p->net_started = mc_thread_start(&p->net_thread, run_net, p);
  return (!r->near || p->bell_started) && (!r->remote || p->net_started);
}

void mc_p2p_stop(struct mc_p2p *p) {
  p->stop = true;
  mc_bell_call(mc_own_bell(p));
  pthread_cond_signal(&p->net_rest);
  if (p->polling) mc_channel_wake(p->ch);
  pthread_mutex_unlock(&p->lock);
  if (p->bell_started) pthread_join(p->bell_thread, NULL);
  if (p->net_started) pthread_join(p->net_thread, NULL);
}
