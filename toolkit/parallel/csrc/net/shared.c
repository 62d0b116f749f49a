/* What the groups of a process share, so that a hundred of them cost few descriptors: listeners (net/listener.c), and the
 * eventfds of those loops that sleep. A forked child has none of it, and lets go of its parent's descriptors at once: a port
 * that it held open would hide its parent's end. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "net/connection.h"

static struct mc_shared *_Atomic shared;

/* A fork waits until no thread writes: a child that saw a descriptor which is just closed, or not there yet, would close
 * another file of its own under that number. */
static void before_fork(void) {
  struct mc_shared *s = atomic_load(&shared);
  pthread_mutex_lock(&s->lock);
  pthread_mutex_lock(&s->waker_lock);
}

static void after_fork(void) {
  struct mc_shared *s = atomic_load(&shared);
  pthread_mutex_unlock(&s->waker_lock);
  pthread_mutex_unlock(&s->lock);
}

static void init_locks(struct mc_shared *s) {
  pthread_mutex_init(&s->lock, NULL);
  pthread_mutex_init(&s->waker_lock, NULL);
  pthread_cond_init(&s->reported, NULL);
}

/* The listeners are never freed: groups of the parent, of no use here, point to them. */
static void in_child(void) {
  struct mc_shared *parents = atomic_load(&shared);
  for (uint32_t i = 0; i < parents->waker_count; i++) close(parents->wakers[i]);
  for (struct mc_listener *listener = parents->listeners; listener; listener = listener->next) mc_listener_close_sockets(listener);
  parents->waker_count = parents->nets = 0, parents->listeners = NULL;
  init_locks(parents);
}

static void make(void) {
  struct mc_shared *made = calloc(1, sizeof *made);
  if (!made) return;
  init_locks(made);
  atomic_store(&shared, made);
  if (pthread_atfork(before_fork, after_fork, in_child) != 0) atomic_store(&shared, NULL), free(made);
}

struct mc_shared *mc_shared_get(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make);
  return atomic_load(&shared);
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
