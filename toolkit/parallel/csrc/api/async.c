/* Calls that their caller does not wait for: a thread of the core runs them in the order in which they were posted,
 * so that they begin and go on whatever the caller's interpreter does. Whoever waits for one before the thread has
 * begun it runs it himself, which saves the way to the thread and back. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "api/api.h"

struct mc_lane {
  struct mc_comm *c;
  pthread_mutex_t lock;
  pthread_cond_t news; /* one was posted, one has ended, the group closes */
  pthread_t thread;
  struct mc_async *first, *last; /* the first may be running */
  bool running, stop;
};

static uint64_t ns_of(double seconds) { return (uint64_t)((seconds < 1e9 ? seconds : 1e9) * 1e9); }

static bool is_done(const struct mc_async *a) { return __atomic_load_n(&a->done, __ATOMIC_ACQUIRE); }

static void end_first(struct mc_lane *l, int code, uint32_t ended) {
  struct mc_async *a = l->first;
  l->first = a->next;
  if (!l->first) l->last = NULL;
  a->code = code, a->ended = ended;
  __atomic_store_n(&a->done, 1, __ATOMIC_RELEASE); /* from here on its memory is the caller's again */
  pthread_cond_broadcast(&l->news);
}

static void run_first(struct mc_lane *l) {
  const struct mc_async *a = l->first;
  int code = MC_OK;
  uint32_t ended = 0;
  l->running = true;
  pthread_mutex_unlock(&l->lock);
  while (ended < a->count && (code = mc_run(l->c, &a->calls[ended], NULL)) == MC_OK) ended++;
  pthread_mutex_lock(&l->lock);
  l->running = false;
  end_first(l, code, ended);
}

static void sleep_until(struct mc_lane *l, uint64_t ns) {
  const struct timespec until = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  pthread_cond_timedwait(&l->news, &l->lock, &until);
}

static void *run_thread(void *of) {
  struct mc_lane *l = of;
  pthread_mutex_lock(&l->lock);
  while (!l->stop) {
    if (!l->first || l->running) pthread_cond_wait(&l->news, &l->lock);
    else if (mc_now_ns() < l->first->due_ns) sleep_until(l, l->first->due_ns);
    else run_first(l);
  }
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

static struct mc_lane *create(struct mc_comm *c) {
  struct mc_lane *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->c = c;
  pthread_mutex_init(&l->lock, NULL);
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&l->news, &clock);
  pthread_condattr_destroy(&clock);
  if (mc_thread_start(&l->thread, run_thread, l)) return l;
  pthread_cond_destroy(&l->news);
  pthread_mutex_destroy(&l->lock);
  free(l);
  return NULL;
}

int mc_async_post(struct mc_comm *c, struct mc_async *a, double grace_s) {
  if (!c || !a || (a->count && !a->calls) || !(grace_s >= 0)) return MC_EINVAL;
  if (c->pid != (int)getpid()) return MC_EFORK;
  if (!c->lane) c->lane = create(c);
  struct mc_lane *l = c->lane;
  if (!l) return MC_ESYS;
  a->next = NULL, a->done = a->ended = 0, a->code = MC_OK;
  a->due_ns = mc_now_ns() + ns_of(grace_s);
  pthread_mutex_lock(&l->lock);
  if (l->last) l->last->next = a;
  else l->first = a;
  l->last = a;
  pthread_cond_broadcast(&l->news);
  pthread_mutex_unlock(&l->lock);
  return MC_OK;
}

int mc_async_wait(struct mc_comm *c, struct mc_async *a, double wait_s, struct mc_failure *failure) {
  if (c->pid != (int)getpid()) { /* where this is the child's copy, and the thread is not */
    a->code = mc_refused(c, failure, MC_EFORK), a->done = 1;
    return 1;
  }
  struct mc_lane *l = c->lane;
  const uint64_t until = mc_now_ns() + ns_of(wait_s);
  pthread_mutex_lock(&l->lock);
  while (!is_done(a)) {
    if (!l->running) run_first(l);
    else if (mc_now_ns() < until) sleep_until(l, until);
    else break;
  }
  const int done = is_done(a);
  if (done && a->code) (a->code == c->broken.code ? mc_failed : mc_refused)(c, failure, a->code);
  pthread_mutex_unlock(&l->lock);
  return done;
}

void mc_async_close(struct mc_comm *c) {
  struct mc_lane *l = c->lane;
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  const bool waited_for = l->running;
  l->stop = true;
  pthread_cond_broadcast(&l->news);
  pthread_mutex_unlock(&l->lock);
  if (waited_for) mc_abort(c); /* else this rank would wait for peers that need not come */
  pthread_join(l->thread, NULL);
  while (l->first) end_first(l, MC_ECLOSED, 0);
  pthread_cond_destroy(&l->news);
  pthread_mutex_destroy(&l->lock);
  free(l);
}
