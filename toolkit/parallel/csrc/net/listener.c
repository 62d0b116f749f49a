/* The listening side: whichever event loop runs polls the listener, too. Strangers cost at most MC_PENDING small
 * places and MC_HELLO_NS each; a rank that is put out by a crowd tries again. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"
#include "group/fault_point.h"

struct mc_pending {
  int fd; /* -1: free */
  bool answered;
  uint64_t since_ns;
  size_t got;
  uint8_t buffer[sizeof(struct mc_client_hello)];
  struct mc_hello hello;
};

int mc_listener_open(struct mc_net *n, int listen_fd) {
  struct mc_listener *listener = &n->listener;
  listener->listen_fd = listen_fd;
  listener->pending = calloc(MC_PENDING, sizeof *listener->pending);
  if (!listener->pending) return ENOMEM;
  for (uint32_t i = 0; i < MC_PENDING; i++) listener->pending[i].fd = -1;
  listener->poll_fd = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = MC_PENDING}};
  if (listener->poll_fd < 0 || epoll_ctl(listener->poll_fd, EPOLL_CTL_ADD, listen_fd, &event) != 0) return errno;
  listener->listening = true;
  return 0;
}

static void evict(struct mc_pending *p) {
  if (p->fd >= 0) close(p->fd); /* leaves the epoll set by itself */
  p->fd = -1;
}

void mc_listener_close(struct mc_net *n) {
  for (uint32_t i = 0; n->listener.pending && i < MC_PENDING; i++) evict(&n->listener.pending[i]);
  free(n->listener.pending);
  if (n->listener.listen_fd >= 0) close(n->listener.listen_fd);
  if (n->listener.poll_fd >= 0) close(n->listener.poll_fd);
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
  evict(oldest);
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
  if (hello->magic != MC_HELLO_MAGIC || hello->abi != MC_ABI || hello->channel >= MC_NET_CHANNELS) return false;
  if (hello->stream >= n->channels[hello->channel].streams) return false;
  if (hello->to_rank != c->rank || hello->rank >= c->size || hello->rank == c->rank) return false;
  if (hello->channel == MC_NET_COLLECTIVE && hello->rank < c->rank) return false;
  return mc_proves(hello->group, n->group);
}

static bool answer(struct mc_net *n, struct mc_pending *p) {
  memcpy(&p->hello.client, p->buffer, sizeof p->hello.client);
  if (!is_for_this_rank(n, &p->hello.client)) return false;
  p->answered = true;
  if (p->hello.client.channel == MC_NET_ABORT) return true; /* its proof is there, and it may have gone */
  struct mc_server_hello *mine = &p->hello.server;
  mine->magic = MC_HELLO_MAGIC, mine->abi = MC_ABI, mine->rank = n->c->rank;
  if (!mc_random(mine->nonce, sizeof mine->nonce)) return false;
  mc_hello_proof(n->c, &p->hello, MC_PROVES_SERVER_HELLO, mine->proof);
  const int error = mc_socket_send(p->fd, mine, sizeof *mine);
  MC_FAULT_POINT(listener_answered);
  return !error;
}

/* The proof is there: the socket goes to the channel it asked for, or has said all with its hello. */
static bool hand_over(struct mc_net *n, struct mc_pending *p) {
  uint8_t proof[MC_PROOF];
  mc_hello_proof(n->c, &p->hello, MC_PROVES_CLIENT_FINISHED, proof);
  if (!mc_proves(proof, p->buffer)) return false;
  if (p->hello.client.channel == MC_NET_ABORT) {
    mc_abort_reported(n->c, p->hello.client.rank);
    MC_FAULT_POINT(abort_heard);
    mc_hello_proof(n->c, &p->hello, MC_PROVES_ACCEPTED, proof);
    mc_socket_send(p->fd, proof, sizeof proof);
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
  epoll_ctl(n->listener.poll_fd, EPOLL_CTL_DEL, p->fd, NULL);
  struct mc_loop *loop = &n->channels[p->hello.client.channel];
  *handed = (struct mc_handed){.next = loop->handed, .fd = p->fd, .peer = p->hello.client.rank, .stream = p->hello.client.stream};
  __atomic_store_n(&loop->handed, handed, __ATOMIC_RELEASE);
  p->fd = -1;
  mc_loop_wake(loop);
  return true;
}

/* false: not ours, or gone */
static bool read_hello(struct mc_net *n, struct mc_pending *p) {
  for (;;) {
    const size_t whole = p->answered ? sizeof(struct mc_client_finished) : sizeof(struct mc_client_hello);
    const int error = mc_socket_receive(p->fd, p->buffer, whole, &p->got);
    if (error) return mc_would_block(error);
    if (p->answered) return hand_over(n, p);
    if (!answer(n, p)) return false;
  }
}

/* Who connects stays in the backlog, where it would be seen at each look. */
static void rest(struct mc_listener *listener) {
  const uint64_t now = mc_now_ns();
  if (!atomic_load(&listener->no_fd_ns)) atomic_store(&listener->no_fd_ns, now);
  listener->rest_ns = now + MC_SLICE_NS;
  set_listening(listener, false);
}

static void accept_pending(struct mc_net *n) {
  struct mc_listener *listener = &n->listener;
  for (uint32_t times = 0; times < MC_PENDING; times++) { /* bounded: others wait for this thread */
    struct mc_pending *p = free_slot(listener);
    if (!p) {
      set_listening(listener, false);
      return;
    }
    const int fd = accept4(listener->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) {
      if (mc_no_descriptor(errno)) rest(listener);
      return;
    }
    atomic_store(&listener->no_fd_ns, 0);
    MC_FAULT_POINT(listener_accepted);
    *p = (struct mc_pending){.fd = fd, .since_ns = mc_now_ns()};
    mc_socket_settle(fd, n->buffer_bytes);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t)(p - listener->pending)}};
    /* its hello is there as a rule: a rank that polls every 50 ms only answers at once */
    if (epoll_ctl(listener->poll_fd, EPOLL_CTL_ADD, fd, &event) != 0 || !read_hello(n, p)) evict(p);
  }
}

void mc_listener_poll(struct mc_net *n) {
  struct mc_listener *listener = &n->listener;
  struct epoll_event events[16];
  if (pthread_mutex_trylock(&listener->lock) != 0) return; /* the other channel is at it */
  const int count = epoll_wait(listener->poll_fd, events, 16, 0);
  for (int i = 0; i < count; i++) {
    const uint32_t which = events[i].data.u32;
    if (which == MC_PENDING) {
      accept_pending(n);
    } else if (listener->pending[which].fd >= 0 && !read_hello(n, &listener->pending[which])) {
      evict(&listener->pending[which]);
    }
  }
  const uint64_t now = mc_now_ns();
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    if (listener->pending[i].fd >= 0 && now - listener->pending[i].since_ns > MC_HELLO_NS) evict(&listener->pending[i]);
  }
  if (!listener->listening && now >= listener->rest_ns && free_slot(listener)) set_listening(listener, true);
  pthread_mutex_unlock(&listener->lock);
}

bool mc_listener_is_busy(struct mc_net *n) {
  struct epoll_event event;
  pthread_mutex_lock(&n->listener.lock);
  bool busy = epoll_wait(n->listener.poll_fd, &event, 1, 0) > 0;
  for (uint32_t i = 0; i < MC_PENDING && !busy; i++) busy = n->listener.pending[i].fd >= 0;
  pthread_mutex_unlock(&n->listener.lock);
  return busy;
}

void mc_listener_fetch(struct mc_loop *loop) {
  if (!__atomic_load_n(&loop->handed, __ATOMIC_ACQUIRE)) return;
  pthread_mutex_lock(&loop->net->listener.lock);
  struct mc_handed *row = loop->handed;
  __atomic_store_n(&loop->handed, NULL, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&loop->net->listener.lock);
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
