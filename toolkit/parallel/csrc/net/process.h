/* What the groups of a process share between nodes: listeners with an endpoint for each group, and eventfds. */
#ifndef MUSTER_NET_PROCESS_H
#define MUSTER_NET_PROCESS_H
#include <pthread.h>
#include <stdatomic.h>
#include "net/wire.h"

#define MC_PENDING 256u /* accepted sockets whose hello is under way; the oldest gives way */
#define MC_WAKERS 16u /* kept for the next sleepers */
struct mc_shared { /* of the groups of a process: net/shared.c */
  pthread_mutex_t lock;
  pthread_cond_t reported; /* a listener's `reporting` has ended */
  struct mc_listener *listeners;
  uint64_t endpoints; /* numbers given so far */
  pthread_mutex_t waker_lock; /* innermost */
  uint32_t nets, waker_count;
  int wakers[MC_WAKERS]; /* eventfds that no loop has */
};
struct mc_listener { /* under the lock of mc_shared */
  struct mc_listener *next;
  struct mc_shared *shared;
  char *hosts; /* where it listens, as callers say it */
  uint16_t port;
  pthread_t thread;
  bool has_thread, closing, listening;
  const struct mc_net *reporting; /* whose group's error record its thread writes, without the lock; it does not end meanwhile */
  _Atomic uint64_t no_fd_ns; /* since when there is no descriptor for who connects, 0: there is */
  uint64_t rest_ns;          /* nobody is accepted before */
  int listen_fd, poll_fd;    /* poll_fd: epoll over the listening socket and the pending ones */
  int buffer_bytes;
  struct mc_pending *pending; /* [MC_PENDING] */
  struct mc_endpoint *endpoints;
};
struct mc_pending {
  int fd; /* -1: free */
  enum { MC_UNREAD, MC_EARLY, MC_ANSWERED, MC_WATCHER } state; /* early: its group is still being made here */
  uint64_t since_ns;
  size_t got;
  uint8_t buffer[sizeof(struct mc_client_hello)];
  struct mc_hello hello;
};
struct mc_endpoint {
  struct mc_endpoint *next;
  uint64_t number;
  struct mc_net *net; /* NULL: its group is being made */
};

/* --- net/shared.c */
struct mc_shared *mc_shared_get(void);    /* NULL: no memory */
int mc_shared_enter(struct mc_shared *s); /* a net more; 0 or an errno value: no descriptor */
void mc_shared_leave(struct mc_shared *s);
/* --- net/endpoint.c */
struct mc_net;
int mc_listener_join(struct mc_net *n, uint64_t endpoint); /* its hellos go to this net from here on. 0 or an errno value */
void mc_listener_leave(struct mc_net *n);                  /* nothing more is handed over */
/* --- net/listener.c, with the lock of mc_shared */
struct mc_endpoint *mc_endpoint_of(const struct mc_listener *listener, uint64_t number); /* NULL: it is not there, or no more */
void mc_listener_answer_early(struct mc_listener *listener, uint64_t endpoint); /* those that waited for its net */
void mc_listener_close_sockets(struct mc_listener *listener); /* this process's descriptors of them */
void mc_pending_evict(struct mc_listener *listener, struct mc_pending *p); /* ends the connection */
void mc_pending_refuse(struct mc_pending *p); /* its group has left: it makes of it what it makes of a closed port */
/* --- net/listener.c, without it */
void *mc_listener_run(void *of); /* its thread */
bool mc_listener_is_busy(struct mc_net *n); /* a hello is under way */
#endif
