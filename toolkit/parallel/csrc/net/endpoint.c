/* Endpoints: one for each group, at a listener that all groups of a process share which give the same address. A listener
 * lives as long as it has any, its thread from the first that belongs to a net. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"

static uint16_t port_of(int fd) {
  union { struct sockaddr any; struct sockaddr_in four; struct sockaddr_in6 six; } at;
  socklen_t bytes = sizeof at;
  if (getsockname(fd, &at.any, &bytes) != 0) return 0;
  return ntohs(at.any.sa_family == AF_INET6 ? at.six.sin6_port : at.four.sin_port);
}

static struct mc_listener *listener_new(struct mc_shared *s, const char *hosts, int fd, int *error) {
  struct mc_listener *listener = calloc(1, sizeof *listener);
  *error = ENOMEM;
  if (!listener) return NULL;
  listener->pending = calloc(MC_PENDING, sizeof *listener->pending);
  listener->hosts = strdup(hosts);
  listener->shared = s, listener->listen_fd = fd, listener->port = port_of(fd), listener->listening = true;
  for (uint32_t i = 0; listener->pending && i < MC_PENDING; i++) listener->pending[i].fd = -1;
  if (listener->pending && listener->hosts) {
    listener->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = MC_PENDING}};
    const bool is_made = listener->poll_fd >= 0 && epoll_ctl(listener->poll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
    *error = is_made ? 0 : errno;
    if (!is_made && listener->poll_fd >= 0) close(listener->poll_fd);
  }
  if (*error) {
    free(listener->pending), free(listener->hosts), free(listener);
    return NULL;
  }
  listener->buffer_bytes = mc_socket_buffers();
  mc_socket_settle(fd, listener->buffer_bytes);
  listener->next = s->listeners, s->listeners = listener;
  return listener;
}

/* With the lock, which it gives up. */
static void listener_end(struct mc_shared *s, struct mc_listener *listener) {
  struct mc_listener **at = &s->listeners;
  while (*at != listener) at = &(*at)->next;
  *at = listener->next;
  listener->closing = true;
  shutdown(listener->listen_fd, SHUT_RDWR); /* wakes its thread; who connects from here on is refused */
  pthread_mutex_unlock(&s->lock);
  if (listener->has_thread) pthread_join(listener->thread, NULL);
  for (uint32_t i = 0; i < MC_PENDING; i++) mc_pending_evict(listener, &listener->pending[i]);
  mc_listener_close_sockets(listener);
  free(listener->pending), free(listener->hosts), free(listener);
}

/* Takes an endpoint away, and its listener where it was the last. With the lock, which it gives up. */
static void endpoint_end(struct mc_shared *s, struct mc_listener *listener, struct mc_endpoint *endpoint) {
  struct mc_endpoint **at = &listener->endpoints;
  while (*at != endpoint) at = &(*at)->next;
  *at = endpoint->next;
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    struct mc_pending *p = &listener->pending[i];
    if (p->fd < 0 || p->state == MC_UNREAD || p->hello.client.endpoint != endpoint->number) continue;
    if (p->state != MC_ANSWERED) mc_pending_refuse(p);
    mc_pending_evict(listener, p);
  }
  free(endpoint);
  if (!listener->endpoints) listener_end(s, listener);
  else pthread_mutex_unlock(&s->lock);
}

static struct mc_endpoint *find(struct mc_shared *s, uint64_t number, struct mc_listener **listener) {
  for (*listener = s->listeners; *listener; *listener = (*listener)->next) {
    struct mc_endpoint *found = mc_endpoint_of(*listener, number);
    if (found) return found;
  }
  return NULL;
}

int mc_endpoint_open(const char *hosts, int32_t fd, uint64_t *endpoint, uint16_t *port) {
  struct mc_shared *s = mc_shared_get();
  struct mc_endpoint *made = calloc(1, sizeof *made);
  if (!s || !made) {
    free(made);
    return ENOMEM;
  }
  int error = 0;
  pthread_mutex_lock(&s->lock);
  struct mc_listener *listener = s->listeners;
  while (listener && strcmp(listener->hosts, hosts)) listener = listener->next;
  if (listener && fd >= 0) close(fd); /* another thread was faster */
  if (!listener && fd < 0) error = ENOENT;
  else if (!listener) listener = listener_new(s, hosts, fd, &error);
  if (!error) {
    made->number = *endpoint = ++s->endpoints;
    made->next = listener->endpoints, listener->endpoints = made;
    *port = listener->port;
  }
  pthread_mutex_unlock(&s->lock);
  if (error) free(made);
  return error;
}

void mc_endpoint_close(uint64_t number) {
  struct mc_shared *s = mc_shared_get();
  struct mc_listener *listener;
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  struct mc_endpoint *endpoint = find(s, number, &listener);
  if (endpoint && !endpoint->net) endpoint_end(s, listener, endpoint);
  else pthread_mutex_unlock(&s->lock);
}

int mc_listener_join(struct mc_net *n, uint64_t number) {
  struct mc_shared *s = n->shared;
  struct mc_listener *listener;
  pthread_mutex_lock(&s->lock);
  struct mc_endpoint *endpoint = find(s, number, &listener);
  int error = endpoint && !endpoint->net ? 0 : EINVAL;
  if (!error && !listener->has_thread) {
    listener->has_thread = mc_thread_start(&listener->thread, mc_listener_run, listener);
    if (!listener->has_thread) error = EAGAIN;
  }
  if (!error) endpoint->net = n, n->listener = listener, n->endpoint = number;
  if (!error) mc_listener_answer_early(listener, number);
  pthread_mutex_unlock(&s->lock);
  return error;
}

void mc_listener_leave(struct mc_net *n) {
  struct mc_listener *listener;
  if (!n->listener) return;
  pthread_mutex_lock(&n->shared->lock);
  while (n->listener->reporting == n) pthread_cond_wait(&n->shared->reported, &n->shared->lock);
  struct mc_endpoint *endpoint = find(n->shared, n->endpoint, &listener);
  n->listener = NULL;
  endpoint_end(n->shared, listener, endpoint);
}
