/* The listening side: one socket for all groups of a process that give the same address, and a thread that takes hellos
 * there while one of them has several nodes. Each group has an endpoint, which its hellos name; one that is not there
 * any more is said so, as a port would that is closed. Strangers cost at most MC_PENDING small places and MC_HELLO_NS
 * each; a rank that is put out by a crowd tries again. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"
#include "group/fault_point.h"

/* Closing is not enough where a forked child has a copy: the socket would stay in the epoll set, which would call out for a
 * place that is free, and whoever connected would not hear of its end. */
void mc_pending_evict(struct mc_listener *listener, struct mc_pending *p) {
  const int fd = p->fd;
  p->fd = -1;
  if (fd < 0) return;
  epoll_ctl(listener->poll_fd, EPOLL_CTL_DEL, fd, NULL);
  shutdown(fd, SHUT_RDWR);
  close(fd);
}

/* Closes, and no more: in a forked child they are its parent's as well. */
void mc_listener_close_sockets(struct mc_listener *listener) {
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    if (listener->pending[i].fd >= 0) close(listener->pending[i].fd);
    listener->pending[i].fd = -1;
  }
  if (listener->listen_fd >= 0) close(listener->listen_fd);
  if (listener->poll_fd >= 0) close(listener->poll_fd);
  listener->listen_fd = listener->poll_fd = -1;
}

struct mc_endpoint *mc_endpoint_of(const struct mc_listener *listener, uint64_t number) {
  struct mc_endpoint *found = listener->endpoints;
  while (found && found->number != number) found = found->next;
  return found;
}

/* Where all are taken the oldest gives way, but not before it had its time: many ranks of a large group
 * come at once, and those wait in the kernel's backlog. */
static struct mc_pending *free_slot(struct mc_listener *listener) {
  struct mc_pending *oldest = &listener->pending[0];
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    if (listener->pending[i].fd < 0) return &listener->pending[i];
    if (listener->pending[i].since_ns < oldest->since_ns) oldest = &listener->pending[i];
  }
  if (mc_now_ns() - oldest->since_ns < MC_CROWDED_NS) return NULL;
  mc_pending_evict(listener, oldest);
  return oldest;
}

/* With no place the listening socket is not looked at, or each wait would end at once. */
static void set_listening(struct mc_listener *listener, bool on) {
  if (listener->listening == on) return;
  struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data = {.u32 = MC_PENDING}};
  if (epoll_ctl(listener->poll_fd, EPOLL_CTL_MOD, listener->listen_fd, &event) == 0) listener->listening = on;
}

static bool is_for_this_rank(const struct mc_net *n, const struct mc_client_hello *hello) {
  const struct mc_comm *c = n->c;
  if (hello->channel == MC_NET_WATCH) return true;
  if (hello->channel >= MC_NET_CHANNELS || hello->stream >= n->channels[hello->channel].streams) return false;
  if (hello->to_rank != c->rank || hello->rank >= c->size || hello->rank == c->rank) return false;
  return hello->channel != MC_NET_COLLECTIVE || hello->rank > c->rank;
}

void mc_pending_refuse(struct mc_pending *p) {
  const struct mc_server_hello nobody = {.magic = MC_HELLO_MAGIC, .abi = MC_ABI, .rank = MC_NOBODY};
  mc_socket_send(p->fd, &nobody, sizeof nobody);
}

/* In a call of a group that has failed here nothing is received any more: who comes late hears of it from others, or at its
 * deadline, and does not take what it sends for received. */
static bool is_deaf(const struct mc_net *n, const struct mc_client_hello *hello) {
  return hello->channel == MC_NET_COLLECTIVE && n->has_told;
}

/* false: it is not ours, or has been told all */
static bool answer(struct mc_listener *listener, struct mc_pending *p) {
  const struct mc_client_hello *hello = &p->hello.client;
  if (hello->magic != MC_HELLO_MAGIC || hello->abi != MC_ABI) return false;
  const struct mc_endpoint *endpoint = mc_endpoint_of(listener, hello->endpoint);
  if (!endpoint) {
    mc_pending_refuse(p);
    return false;
  }
  p->state = MC_EARLY;
  if (!endpoint->net || is_deaf(endpoint->net, hello)) return true;
  const struct mc_net *n = endpoint->net;
  if (!mc_proves(hello->group, n->group) || !is_for_this_rank(n, hello)) return false;
  p->state = hello->channel == MC_NET_WATCH ? MC_WATCHER : MC_ANSWERED;
  if (p->state == MC_WATCHER || hello->channel == MC_NET_ABORT) return true; /* its proof is there, and it may have gone */
  struct mc_server_hello *mine = &p->hello.server;
  mine->magic = MC_HELLO_MAGIC, mine->abi = MC_ABI, mine->rank = n->c->rank;
  if (!mc_random(mine->nonce, sizeof mine->nonce)) return false;
  mc_hello_proof(n->c, &p->hello, MC_PROVES_SERVER_HELLO, mine->proof);
  const int error = mc_socket_send(p->fd, mine, sizeof *mine);
  MC_FAULT_POINT(listener_answered);
  return !error;
}

/* Without the lock: it waits for a rank of the node that stands still as it writes, and other groups shall not. */
static void report_abort(struct mc_listener *listener, const struct mc_net *n, uint32_t by) {
  struct mc_shared *s = listener->shared;
  listener->reporting = n;
  pthread_mutex_unlock(&s->lock);
  mc_abort_reported(n->c, by);
  MC_FAULT_POINT(abort_heard);
  pthread_mutex_lock(&s->lock);
  listener->reporting = NULL;
  pthread_cond_broadcast(&s->reported);
}

/* The proof is there: the socket goes to the channel it asked for, or has said all with its hello. */
static bool hand_over(struct mc_listener *listener, struct mc_pending *p) {
  const struct mc_endpoint *endpoint = mc_endpoint_of(listener, p->hello.client.endpoint);
  uint8_t proof[MC_PROOF];
  if (!endpoint || !endpoint->net || is_deaf(endpoint->net, &p->hello.client)) return false;
  struct mc_net *n = endpoint->net;
  mc_hello_proof(n->c, &p->hello, MC_PROVES_CLIENT_FINISHED, proof);
  if (!mc_proves(proof, p->buffer)) return false;
  if (p->hello.client.channel == MC_NET_ABORT) {
    mc_hello_proof(n->c, &p->hello, MC_PROVES_ACCEPTED, proof);
    report_abort(listener, n, p->hello.client.rank);
    if (p->fd >= 0) mc_socket_send(p->fd, proof, sizeof proof);
    return false;
  }
  struct mc_handed *handed = malloc(sizeof *handed);
  if (!handed) return false;
  mc_hello_proof(n->c, &p->hello, MC_PROVES_ACCEPTED, proof);
  if (mc_socket_send(p->fd, proof, sizeof proof)) {
    free(handed);
    return false;
  }
  MC_FAULT_POINT(listener_handed_over);
  epoll_ctl(listener->poll_fd, EPOLL_CTL_DEL, p->fd, NULL);
  struct mc_loop *loop = &n->channels[p->hello.client.channel];
  *handed = (struct mc_handed){.next = loop->handed, .fd = p->fd, .peer = p->hello.client.rank, .stream = p->hello.client.stream};
  __atomic_store_n(&loop->handed, handed, __ATOMIC_RELEASE);
  p->fd = -1;
  mc_loop_wake(loop);
  return true;
}

/* One whose group is being made is looked at again once it is: what it has sent meanwhile wakes nobody. */
static void set_reading(struct mc_listener *listener, struct mc_pending *p, bool on) {
  struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data = {.u32 = (uint32_t)(p - listener->pending)}};
  epoll_ctl(listener->poll_fd, EPOLL_CTL_MOD, p->fd, &event);
}

/* false: not ours, or gone */
static bool read_hello(struct mc_listener *listener, struct mc_pending *p) {
  for (;;) {
    const bool is_answered = p->state == MC_ANSWERED;
    const size_t whole = is_answered ? sizeof(struct mc_client_finished) : sizeof p->hello.client;
    const int error = mc_socket_receive(p->fd, p->buffer, whole, &p->got);
    if (error) return mc_would_block(error);
    if (is_answered) return hand_over(listener, p);
    memcpy(&p->hello.client, p->buffer, sizeof p->hello.client);
    if (!answer(listener, p)) return false;
    if (p->state == MC_EARLY) set_reading(listener, p, false);
    if (p->state != MC_ANSWERED) return true;
  }
}

void mc_listener_answer_early(struct mc_listener *listener, uint64_t endpoint) {
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    struct mc_pending *p = &listener->pending[i];
    if (p->fd < 0 || p->state != MC_EARLY || p->hello.client.endpoint != endpoint) continue;
    if (answer(listener, p)) set_reading(listener, p, true);
    else mc_pending_evict(listener, p);
  }
}

/* Who connects stays in the backlog, where it would be seen at each look. Without a descriptor the kernel says so even where
 * nobody has come. */
static void rest(struct mc_listener *listener, int error) {
  struct pollfd at = {.fd = listener->listen_fd, .events = POLLIN};
  if (mc_would_block(error) || poll(&at, 1, 0) <= 0) return;
  const uint64_t now = mc_now_ns();
  if (mc_no_descriptor(error) && !atomic_load(&listener->no_fd_ns)) atomic_store(&listener->no_fd_ns, now);
  listener->rest_ns = now + MC_SLICE_NS;
  set_listening(listener, false);
}

static void accept_pending(struct mc_listener *listener) {
  for (uint32_t times = 0; times < MC_PENDING; times++) { /* bounded: who has connected is to be heard */
    struct mc_pending *p = free_slot(listener);
    if (!p) {
      set_listening(listener, false);
      return;
    }
    const int fd = accept4(listener->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) {
      rest(listener, errno);
      return;
    }
    atomic_store(&listener->no_fd_ns, 0);
    MC_FAULT_POINT(listener_accepted);
    *p = (struct mc_pending){.fd = fd, .since_ns = mc_now_ns()};
    mc_socket_settle(fd, listener->buffer_bytes);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t)(p - listener->pending)}};
    /* its hello is there as a rule */
    if (epoll_ctl(listener->poll_fd, EPOLL_CTL_ADD, fd, &event) != 0 || !read_hello(listener, p)) mc_pending_evict(listener, p);
  }
}

static void deal_with(struct mc_listener *listener, const struct epoll_event *event) {
  if (event->data.u32 == MC_PENDING) {
    accept_pending(listener);
    return;
  }
  struct mc_pending *p = &listener->pending[event->data.u32];
  const bool is_over = p->state == MC_EARLY || p->state == MC_WATCHER; /* nothing more is due of those */
  if (p->fd >= 0 && (is_over || !read_hello(listener, p))) mc_pending_evict(listener, p);
}

/* Ends slow hellos. In how many ms that is to be done again; -1: there is none. */
static int evict_old(struct mc_listener *listener) {
  const uint64_t now = mc_now_ns();
  bool is_free = true;
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    if (listener->pending[i].fd >= 0 && now - listener->pending[i].since_ns > MC_HELLO_NS) mc_pending_evict(listener, &listener->pending[i]);
    if (listener->pending[i].fd >= 0) is_free = false;
  }
  if (!listener->listening && now >= listener->rest_ns && free_slot(listener)) set_listening(listener, true);
  return is_free && listener->listening ? -1 : (int)(MC_SLICE_NS / 1000000u);
}

void *mc_listener_run(void *of) {
  struct mc_listener *listener = of;
  struct mc_shared *s = listener->shared;
  pthread_mutex_lock(&s->lock);
  while (!listener->closing) {
    struct epoll_event events[16];
    const int wait_ms = evict_old(listener);
    pthread_mutex_unlock(&s->lock);
    const int count = epoll_wait(listener->poll_fd, events, 16, wait_ms);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < count && !listener->closing; i++) deal_with(listener, &events[i]);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* One whose hello has not been read yet may be for any group. */
bool mc_listener_is_busy(struct mc_net *n) {
  struct mc_listener *listener = n->listener;
  struct epoll_event event;
  pthread_mutex_lock(&n->shared->lock);
  bool busy = epoll_wait(listener->poll_fd, &event, 1, 0) > 0;
  for (uint32_t i = 0; i < MC_PENDING && !busy; i++) {
    const struct mc_pending *p = &listener->pending[i];
    busy = p->fd >= 0 && (p->state == MC_UNREAD || (p->state == MC_ANSWERED && p->hello.client.endpoint == n->endpoint));
  }
  pthread_mutex_unlock(&n->shared->lock);
  return busy;
}

/* Whoever was handed over before is there to be fetched; nobody is any more. */
void mc_listener_deafen(struct mc_net *n) {
  pthread_mutex_lock(&n->shared->lock);
  n->has_told = true;
  pthread_mutex_unlock(&n->shared->lock);
}

/* Takes what was handed to the channel into its connections. */
void mc_listener_fetch(struct mc_loop *loop) {
  if (!__atomic_load_n(&loop->handed, __ATOMIC_ACQUIRE)) return;
  pthread_mutex_lock(&loop->net->shared->lock);
  struct mc_handed *row = loop->handed;
  __atomic_store_n(&loop->handed, NULL, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&loop->net->shared->lock);
  while (row) {
    struct mc_handed *handed = row;
    row = handed->next;
    struct mc_conn *conn = mc_conn_new(loop, handed->peer, handed->stream, true);
    /* A rank that has a connection makes a second only if the first broke before it carried anything. */
    if (conn && conn->state == MC_CONN_GONE && !conn->send_index && !conn->recv_index && !conn->faulty) mc_conn_reset(conn);
    if (!conn || conn->state >= MC_CONN_UP) close(handed->fd);
    else mc_conn_up(conn, handed->fd), loop->moved = true;
    free(handed);
    MC_FAULT_POINT(listener_fetched);
  }
}
