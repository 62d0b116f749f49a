/* The listening side: whoever drives a channel also opens the door. Strangers cost at most MC_PENDING small
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
  uint8_t buffer[sizeof(struct mc_greeting)];
  struct mc_hello hello;
};

int mc_door_open(struct mc_net *n, int listen_fd) {
  struct mc_door *door = &n->door;
  door->listen_fd = listen_fd;
  door->pending = calloc(MC_PENDING, sizeof *door->pending);
  door->poll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (!door->pending) return MC_EMEM;
  for (uint32_t i = 0; i < MC_PENDING; i++) door->pending[i].fd = -1;
  if (door->poll_fd < 0) return MC_ESYS;
  if (listen_fd < 0) return MC_OK;
  struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = MC_PENDING}};
  if (epoll_ctl(door->poll_fd, EPOLL_CTL_ADD, listen_fd, &event) != 0) return MC_ESYS;
  door->listening = true;
  return MC_OK;
}

static void put_out(struct mc_pending *p) {
  if (p->fd >= 0) close(p->fd); /* leaves the epoll set by itself */
  p->fd = -1;
}

void mc_door_close(struct mc_net *n) {
  for (uint32_t i = 0; n->door.pending && i < MC_PENDING; i++) put_out(&n->door.pending[i]);
  free(n->door.pending), n->door.pending = NULL;
  if (n->door.listen_fd >= 0) close(n->door.listen_fd);
  if (n->door.poll_fd >= 0) close(n->door.poll_fd);
  n->door.listen_fd = n->door.poll_fd = -1;
}

/* Where all are taken the oldest gives way, but not before it had its time: many ranks of a large group
 * come at once, and those wait in the kernel's backlog. */
static struct mc_pending *a_place(struct mc_door *door) {
  struct mc_pending *oldest = &door->pending[0];
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    if (door->pending[i].fd < 0) return &door->pending[i];
    if (door->pending[i].since_ns < oldest->since_ns) oldest = &door->pending[i];
  }
  if (mc_now_ns() - oldest->since_ns < MC_CROWDED_NS) return NULL;
  put_out(oldest);
  return oldest;
}

/* With no place the listening socket is not looked at, or each wait would end at once. */
static void listen_again(struct mc_door *door, bool on) {
  if (door->listen_fd < 0 || door->listening == on) return;
  struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data = {.u32 = MC_PENDING}};
  if (epoll_ctl(door->poll_fd, EPOLL_CTL_MOD, door->listen_fd, &event) == 0) door->listening = on;
}

static bool listen_to(struct mc_net *n, struct mc_pending *p);

static void let_in(struct mc_net *n) {
  struct mc_door *door = &n->door;
  for (uint32_t times = 0; times < MC_PENDING; times++) { /* bounded: others wait for this thread */
    struct mc_pending *p = a_place(door);
    if (!p) {
      listen_again(door, false);
      return;
    }
    const int fd = accept4(door->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return;
    MC_FAULT_POINT(door_let_in);
    *p = (struct mc_pending){.fd = fd, .since_ns = mc_now_ns()};
    mc_socket_settle(fd, n->buffer_bytes);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t)(p - door->pending)}};
    /* its greeting is there as a rule: who looks only every 50 ms answers at once */
    if (epoll_ctl(door->poll_fd, EPOLL_CTL_ADD, fd, &event) != 0 || !listen_to(n, p)) put_out(p);
  }
}

static bool one_of_ours(const struct mc_net *n, const struct mc_greeting *hello) {
  const struct mc_comm *c = n->c;
  if (hello->magic != MC_HELLO_MAGIC || hello->abi != MC_ABI || hello->channel >= MC_NET_CHANNELS) return false;
  if (hello->to_rank != c->rank || hello->rank >= c->size || hello->rank == c->rank) return false;
  if (hello->channel == MC_NET_COLLECTIVE && hello->rank < c->rank) return false;
  return mc_proves(hello->group, n->group);
}

static bool send_all(int fd, const void *data, size_t bytes) {
  return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static bool answer(struct mc_net *n, struct mc_pending *p) {
  memcpy(&p->hello.greeting, p->buffer, sizeof p->hello.greeting);
  if (!one_of_ours(n, &p->hello.greeting)) return false;
  p->answered = true, p->got = 0;
  if (p->hello.greeting.channel == MC_NET_ABORT) return true; /* its proof is there, and it may have gone */
  struct mc_answer *mine = &p->hello.answer;
  mine->magic = MC_HELLO_MAGIC, mine->abi = MC_ABI, mine->rank = n->c->rank;
  if (!mc_random(mine->nonce, sizeof mine->nonce)) return false;
  mc_answer_proof(n->c, &p->hello, mine->proof);
  const bool sent = send_all(p->fd, mine, sizeof *mine);
  MC_FAULT_POINT(door_answered);
  return sent;
}

/* The proof is there: the socket goes to the channel it asked for, or has said all with its hello. */
static bool hand_over(struct mc_net *n, struct mc_pending *p) {
  uint8_t proof[MC_PROOF];
  mc_closing_proof(n->c, &p->hello, proof);
  if (!mc_proves(proof, p->buffer)) return false;
  if (p->hello.greeting.channel == MC_NET_ABORT) {
    mc_abort_told(n->c, p->hello.greeting.rank);
    MC_FAULT_POINT(abort_heard);
    mc_welcome_proof(n->c, &p->hello, proof);
    send_all(p->fd, proof, sizeof proof);
    return false;
  }
  struct mc_handed *handed = malloc(sizeof *handed);
  if (!handed) return false;
  mc_welcome_proof(n->c, &p->hello, proof);
  if (!send_all(p->fd, proof, sizeof proof)) {
    free(handed);
    return false;
  }
  MC_FAULT_POINT(door_handed);
  epoll_ctl(n->door.poll_fd, EPOLL_CTL_DEL, p->fd, NULL);
  struct mc_chan *ch = &n->channels[p->hello.greeting.channel];
  *handed = (struct mc_handed){.next = ch->handed, .fd = p->fd, .hello = p->hello};
  __atomic_store_n(&ch->handed, handed, __ATOMIC_RELEASE);
  p->fd = -1;
  mc_channel_wake(ch);
  return true;
}

/* false: not ours, or gone */
static bool listen_to(struct mc_net *n, struct mc_pending *p) {
  for (;;) {
    const size_t whole = p->answered ? sizeof(struct mc_closing) : sizeof(struct mc_greeting);
    while (p->got < whole) { /* never reads beyond: frames follow */
      const ssize_t got = recv(p->fd, p->buffer + p->got, whole - p->got, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && mc_would_block(errno)) return true;
      if (got <= 0) return false;
      p->got += (size_t)got;
    }
    if (p->answered) return hand_over(n, p);
    if (!answer(n, p)) return false;
  }
}

void mc_door_look(struct mc_net *n) {
  struct mc_door *door = &n->door;
  struct epoll_event events[16];
  if (pthread_mutex_trylock(&door->lock) != 0) return; /* the other channel is at it */
  const int count = epoll_wait(door->poll_fd, events, 16, 0);
  for (int i = 0; i < count; i++) {
    const uint32_t which = events[i].data.u32;
    if (which == MC_PENDING) {
      let_in(n);
    } else if (which < MC_PENDING && door->pending[which].fd >= 0) {
      if (!listen_to(n, &door->pending[which])) put_out(&door->pending[which]);
    }
  }
  const uint64_t now = mc_now_ns();
  for (uint32_t i = 0; i < MC_PENDING; i++) {
    if (door->pending[i].fd >= 0 && now - door->pending[i].since_ns > MC_HELLO_NS) put_out(&door->pending[i]);
  }
  if (!door->listening && a_place(door)) listen_again(door, true);
  pthread_mutex_unlock(&door->lock);
}

bool mc_door_busy(struct mc_net *n) {
  struct epoll_event event;
  pthread_mutex_lock(&n->door.lock);
  bool busy = epoll_wait(n->door.poll_fd, &event, 1, 0) > 0;
  for (uint32_t i = 0; i < MC_PENDING && !busy; i++) busy = n->door.pending[i].fd >= 0;
  pthread_mutex_unlock(&n->door.lock);
  return busy;
}

int mc_door_fetch(struct mc_chan *ch) {
  if (!__atomic_load_n(&ch->handed, __ATOMIC_ACQUIRE)) return MC_OK;
  pthread_mutex_lock(&ch->net->door.lock);
  struct mc_handed *row = ch->handed;
  __atomic_store_n(&ch->handed, NULL, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&ch->net->door.lock);
  int code = MC_OK;
  while (row) {
    struct mc_handed *handed = row;
    row = handed->next;
    const uint32_t peer = handed->hello.greeting.rank;
    struct mc_link *l = mc_link_new(ch, peer, true);
    if (!l) code = MC_EMEM;
    /* A rank that has a connection makes a second only if the first broke before it carried anything. */
    if (l && l->state == MC_LINK_GONE && !l->send_index && !l->recv_index && !l->broken) mc_link_anew(l);
    if (!l || l->state >= MC_LINK_UP) close(handed->fd);
    else mc_link_up(ch, l, handed->fd, &handed->hello), ch->moved = true;
    free(handed);
    MC_FAULT_POINT(door_taken);
  }
  return code;
}
