/* The progress threads of p2p: they move what no caller waits for. One sleeps on the doorbell, one in poll over the sockets; each
 * ends after a second in which nothing was pending that concerns it, and a post starts it again. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include "p2p/state.h"
#include "group/fault_point.h"

#define LINGER 2u         /* slices in which nothing is pending, before the doorbell's thread sleeps longer */
#define GRACE_NS 1000000u /* a poster may wait at once: until then the rings or the sockets are left to it; two at once wait for each other ... */
#define RESTS 1000u       /* at most, until a thread that wants the lock has it */
#define GRACES 20u        /* ... and so often before the sockets' thread has to be called */

void mc_p2p_enter(struct mc_p2p *p) {
  atomic_fetch_add(&p->entering, 1);
  pthread_mutex_lock(&p->lock);
  atomic_fetch_sub(&p->entering, 1);
}

/* A thread that gives the lock and takes it again has it before another has woken. */
void mc_p2p_rest(struct mc_p2p *p) {
  pthread_mutex_unlock(&p->lock);
  for (unsigned turns = 0; turns < RESTS && atomic_load(&p->entering); turns++) sched_yield();
  pthread_mutex_lock(&p->lock);
}

static bool has_near(const struct mc_p2p *p) { return p->pending_near || p->owed; }

void mc_p2p_wake_progress(struct mc_p2p *p) {
  if (p->polling) mc_loop_wake(p->loop);
  else if (p->net_idle) pthread_cond_signal(&p->net_rest);
}

void mc_p2p_arm_progress(struct mc_p2p *p) {
  struct mc_doorbell *doorbell = mc_own_doorbell(p);
  const bool called = p->followed || (p->doorbell_rests && !atomic_load(&doorbell->armed));
  if (has_near(p) && !p->doorbell_waiters && called) p->turns_near++, mc_doorbell_wake_thread(doorbell); /* the caller may wait at once */
  if (p->reads.first && p->doorbell_waiters) mc_doorbell_wake(doorbell); /* it reads on */
  const bool needed = p->pending_remote && !p->net_waiters && !p->polling;
  if (needed && (p->net_idle || p->both_waiters)) pthread_cond_signal(&p->net_rest);
}

/* false: there has been nothing to do for long enough */
static bool sleep_on_doorbell(struct mc_p2p *p, uint64_t *turns, uint32_t *idle_for) {
  struct mc_doorbell *doorbell = mc_own_doorbell(p);
  const uint32_t thread_seq = atomic_load(&doorbell->thread_seq); /* what is heard from here on wakes the sleep below */
  const bool busy = p->turns_near != *turns;
  const bool alone = has_near(p) && !p->doorbell_waiters && (!busy || p->followed);
  *turns = p->turns_near;
  /* Arm first, then look: what comes between the two wakes the thread. The other way round it would
   * be noticed at the next slice only. */
  atomic_store(&doorbell->armed, alone ? 1u : 0u);
  MC_FAULT_POINT(thread_armed);
  if (alone) mc_rings_move(p);
  const bool more = alone && mc_reads_move(p);
  MC_FAULT_POINT(thread_moved);
  mc_p2p_check_liveness(p, false);
  *idle_for = has_near(p) || busy ? 0 : *idle_for + 1;
  if (more) {
    mc_p2p_rest(p);
    return true;
  }
  const bool idle = *idle_for > LINGER;
  p->doorbell_rests = !busy;
  pthread_mutex_unlock(&p->lock);
  mc_futex_sleep(&doorbell->thread_seq, thread_seq, busy ? GRACE_NS : idle ? MC_IDLE_NS : MC_SLICE_NS);
  pthread_mutex_lock(&p->lock);
  p->doorbell_rests = false;
  return !idle || has_near(p) || atomic_load(&doorbell->thread_seq) != thread_seq;
}

static void *run_doorbell(void *of) {
  struct mc_p2p *p = of;
  uint64_t turns = 0;
  uint32_t idle_for = 0;
  pthread_mutex_lock(&p->lock);
  while (!p->stop && sleep_on_doorbell(p, &turns, &idle_for)) {}
  p->doorbell_worker.over = true;
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

void mc_p2p_poll_sockets(struct mc_p2p *p, uint64_t wait_ns) {
  struct mc_loop *loop = p->loop;
  wait_ns = mc_loop_prepare(loop, wait_ns); /* a slice at most */
  p->polling = true;
  pthread_mutex_unlock(&p->lock);
  const struct timespec wait = mc_timespec(wait_ns);
  const int said = ppoll(loop->polls, loop->poll_count, &wait, NULL);
  if (!said && !wait_ns) sched_yield(); /* the peer may be here and want this processor */
  mc_p2p_enter(p);
  p->polling = false;
  mc_loop_polled(loop, said);
}

/* false: there has been nothing to do for long enough */
static bool rest(struct mc_p2p *p, bool idle) {
  const struct timespec until = mc_timespec(mc_now_ns() + (idle ? MC_IDLE_NS : GRACE_NS));
  p->net_idle = idle;
  const bool called = pthread_cond_timedwait(&p->net_rest, &p->lock, &until) == 0;
  p->net_idle = false;
  return called || !idle || p->pending_remote;
}

static void *run_net(void *of) {
  struct mc_p2p *p = of;
  uint64_t turns = 0; /* of waiters, when this thread looked last */
  uint32_t graces = 0;
  pthread_mutex_lock(&p->lock);
  while (!p->stop) {
    const bool left_alone = p->pending_remote && !p->net_waiters, busy = p->turns_net != turns;
    turns = p->turns_net;
    graces = left_alone || busy ? 0 : graces + 1;
    if (left_alone && (!busy || p->both_waiters)) {
      mc_p2p_poll_sockets(p, MC_SLICE_NS);
      if (p->net_waiters) mc_doorbell_wake(mc_own_doorbell(p)); /* the sockets are theirs now */
      mc_p2p_check_liveness(p, false);
    } else if (!rest(p, graces > GRACES)) {
      break;
    }
  }
  p->net_worker.over = true;
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

bool mc_p2p_start(struct mc_p2p *p, const struct mc_request *r) {
  return (!r->near || mc_worker_start(&p->doorbell_worker, run_doorbell, p)) &&
         (!r->remote || mc_worker_start(&p->net_worker, run_net, p));
}

void mc_p2p_stop(struct mc_p2p *p) {
  p->stop = true;
  mc_doorbell_wake_thread(mc_own_doorbell(p));
  pthread_cond_signal(&p->net_rest);
  if (p->polling) mc_loop_wake(p->loop);
  pthread_mutex_unlock(&p->lock);
  mc_worker_join(&p->doorbell_worker);
  mc_worker_join(&p->net_worker);
}
