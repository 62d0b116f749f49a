/* What the groups of a process share, so that a hundred of them cost few descriptors: listeners (net/listener.c), and the
 * eventfds of those loops that sleep. A forked child has a row of its own, and lets go of its parent's listeners: a port
 * that it held open would hide its parent's end. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "net/connection.h"

static _Atomic(struct mc_shared *) shared;

static void let_go(struct mc_shared *parents) {
  for (uint32_t i = 0; i < parents->waker_count; i++) close(parents->wakers[i]);
  for (struct mc_listener *listener = parents->listeners; listener; listener = listener->next) mc_listener_close_sockets(listener);
}

struct mc_shared *mc_shared_get(void) {
  struct mc_shared *seen = atomic_load(&shared);
  while (!seen || seen->pid != (int)getpid()) {
    struct mc_shared *mine = calloc(1, sizeof *mine);
    if (!mine) return NULL;
    mine->pid = (int)getpid();
    pthread_mutex_init(&mine->lock, NULL);
    pthread_mutex_init(&mine->waker_lock, NULL);
    struct mc_shared *parents = seen;
    if (!atomic_compare_exchange_strong(&shared, &seen, mine)) {
      free(mine);
      continue;
    }
    if (parents) let_go(parents); /* its locks may be held by threads that this process does not have: it is never freed */
    return mine;
  }
  return seen;
}

static int waker_get(struct mc_shared *s) {
  return s->waker_count ? s->wakers[--s->waker_count] : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static void waker_put(struct mc_shared *s, int fd) {
  if (s->nets && s->waker_count < MC_WAKERS) s->wakers[s->waker_count++] = fd;
  else close(fd);
}

int mc_shared_enter(struct mc_shared *s) {
  pthread_mutex_lock(&s->waker_lock);
  s->nets++;
  const int fd = waker_get(s), error = fd < 0 ? errno : 0; /* one sleeper at least shall find one */
  if (!error) waker_put(s, fd);
  else s->nets--;
  pthread_mutex_unlock(&s->waker_lock);
  return error;
}

void mc_shared_leave(struct mc_shared *s) {
  pthread_mutex_lock(&s->waker_lock);
  s->nets--;
  while (!s->nets && s->waker_count) close(s->wakers[--s->waker_count]);
  pthread_mutex_unlock(&s->waker_lock);
}

bool mc_waker_take(struct mc_loop *loop) {
  struct mc_shared *s = loop->net->shared;
  pthread_mutex_lock(&s->waker_lock);
  if (loop->wake_fd < 0) loop->wake_fd = waker_get(s);
  const bool has_one = loop->wake_fd >= 0;
  pthread_mutex_unlock(&s->waker_lock);
  return has_one;
}

void mc_waker_give_back(struct mc_loop *loop) {
  struct mc_shared *s = loop->net->shared;
  pthread_mutex_lock(&s->waker_lock);
  if (loop->wake_fd >= 0) waker_put(s, loop->wake_fd); /* a late word in it wakes the next sleeper once for nothing */
  loop->wake_fd = -1;
  pthread_mutex_unlock(&s->waker_lock);
}

void mc_loop_wake(struct mc_loop *loop) {
  struct mc_shared *s = loop->net->shared;
  const uint64_t one = 1;
  ssize_t wrote = 0;
  pthread_mutex_lock(&s->waker_lock);
  if (loop->wake_fd >= 0) {
    do wrote = write(loop->wake_fd, &one, sizeof one);
    while (wrote < 0 && errno == EINTR);
  }
  pthread_mutex_unlock(&s->waker_lock);
}
