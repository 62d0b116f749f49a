/* Calls that their caller does not wait for: a thread of the core runs them in the order in which they were posted,
 * so that they begin and go on whatever the caller's interpreter does. A caller that waits for one before the thread has
 * begun it runs it itself, which saves the way to the thread and back. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>
#include "api/api.h"
#include "group/queue.h"

struct mc_op_queue {
  struct mc_comm *c;
  pthread_mutex_t lock;
  pthread_cond_t news; /* one was posted, one has ended, the group closes */
  struct mc_worker worker;
  MC_QUEUE(mc_async) calls; /* the first may be running */
  bool running, stop;
};

static bool is_done(const struct mc_async *a) { return __atomic_load_n(&a->done, __ATOMIC_ACQUIRE); }

static void end_first(struct mc_op_queue *q, int code, uint32_t ended) {
  struct mc_async *a = q->calls.first;
  MC_POP(&q->calls);
  a->code = code, a->ended = ended;
  __atomic_store_n(&a->done, 1, __ATOMIC_RELEASE); /* from here on its memory is the caller's again */
  pthread_cond_broadcast(&q->news);
}

static void run_first(struct mc_op_queue *q) {
  const struct mc_async *a = q->calls.first;
  int code = MC_OK;
  uint32_t ended = 0;
  q->running = true;
  pthread_mutex_unlock(&q->lock);
  while (ended < a->count && (code = mc_run(q->c, &a->calls[ended], NULL)) == MC_OK) ended++;
  pthread_mutex_lock(&q->lock);
  q->running = false;
  end_first(q, code, ended);
}

static bool sleep_until(struct mc_op_queue *q, uint64_t ns) { /* false: nothing has been said by then */
  const struct timespec until = mc_timespec(ns);
  return pthread_cond_timedwait(&q->news, &q->lock, &until) == 0;
}

static void *run_thread(void *of) {
  struct mc_op_queue *q = of;
  pthread_mutex_lock(&q->lock);
  for (bool called = true; !q->stop && (called || q->calls.first);) {
    if (!q->calls.first || q->running) called = sleep_until(q, mc_now_ns() + MC_IDLE_NS);
    else if (mc_now_ns() < q->calls.first->due_ns) sleep_until(q, q->calls.first->due_ns);
    else run_first(q);
  }
  q->worker.over = true;
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

static struct mc_op_queue *create(struct mc_comm *c) {
  struct mc_op_queue *q = calloc(1, sizeof *q);
  if (!q) return NULL;
  q->c = c;
  pthread_mutex_init(&q->lock, NULL);
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&q->news, &clock);
  pthread_condattr_destroy(&clock);
  return q;
}

int mc_async_post(struct mc_comm *c, struct mc_async *a, double grace_s) {
  if (!c || !a || (a->count && !a->calls) || !(grace_s >= 0)) return MC_EINVAL;
  if (c->pid != (int)getpid()) return MC_EFORK;
  if (!c->op_queue) c->op_queue = create(c);
  struct mc_op_queue *q = c->op_queue;
  if (!q) return MC_EMEM;
  a->done = a->ended = 0, a->code = MC_OK;
  a->due_ns = mc_now_ns() + mc_ns_of(grace_s);
  pthread_mutex_lock(&q->lock);
  mc_worker_start(&q->worker, run_thread, q); /* where the machine has no more threads, who waits runs it */
  MC_PUSH(&q->calls, a);
  pthread_cond_broadcast(&q->news);
  pthread_mutex_unlock(&q->lock);
  return MC_OK;
}

int mc_async_wait(struct mc_comm *c, struct mc_async *a, double wait_s, struct mc_failure *failure) {
  if (c->pid != (int)getpid()) { /* where this is the child's copy, and the thread is not */
    a->code = mc_refused(c, failure, MC_EFORK), a->done = 1;
    return 1;
  }
  struct mc_op_queue *q = c->op_queue;
  const uint64_t until = mc_now_ns() + mc_ns_of(wait_s);
  pthread_mutex_lock(&q->lock);
  while (!is_done(a)) {
    if (!q->running) run_first(q);
    else if (mc_now_ns() < until) sleep_until(q, until);
    else break;
  }
  const int done = is_done(a);
  if (done && a->code) (a->code == c->error.code ? mc_failed : mc_refused)(c, failure, a->code);
  pthread_mutex_unlock(&q->lock);
  return done;
}

void mc_async_close(struct mc_comm *c) {
  struct mc_op_queue *q = c->op_queue;
  if (!q) return;
  pthread_mutex_lock(&q->lock);
  const bool waited_for = q->running;
  q->stop = true;
  pthread_cond_broadcast(&q->news);
  pthread_mutex_unlock(&q->lock);
  if (waited_for) mc_abort(c); /* else this rank would wait for peers that need not come */
  mc_worker_join(&q->worker);
  while (q->calls.first) end_first(q, MC_ECLOSED, 0);
  pthread_cond_destroy(&q->news);
  pthread_mutex_destroy(&q->lock);
  free(q);
}
