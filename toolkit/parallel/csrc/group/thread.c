/* The clock, and threads of the core. */
#define _GNU_SOURCE
#include <signal.h>
#include "group/comm.h"

uint64_t mc_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool mc_thread_start(pthread_t *thread, void *(*run)(void *), void *of) {
  sigset_t all, before;
  sigfillset(&all); /* the program's signals are for its own threads */
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  const bool started = pthread_create(thread, NULL, run, of) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

void mc_worker_join(struct mc_worker *worker) {
  if (worker->started) pthread_join(worker->thread, NULL);
  worker->started = false;
}

bool mc_worker_start(struct mc_worker *worker, void *(*run)(void *), void *of) {
  if (worker->started && !worker->over) return true;
  mc_worker_join(worker);
  worker->over = false;
  worker->started = mc_thread_start(&worker->thread, run, of);
  return worker->started;
}
