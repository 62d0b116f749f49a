/* The connecting side of a hello, tried again until the caller's deadline.
 *
 * A rank that is to connect may die before it does. Who waits for it connects to where it listens and says
 * nothing: that connection ends with the process, and the next one is refused (MC_LINK_WATCHED). It is
 * kept open, for many short ones would fill the backlog of a rank that is only late. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define FIRST_PAUSE_NS 10000000u
#define LONGEST_PAUSE_NS 400000000u

void mc_dial(struct mc_link *l) {
  if (l->state == MC_LINK_NONE) l->state = MC_LINK_DIAL, l->pause_ns = FIRST_PAUSE_NS, l->retry_ns = 0;
}

bool mc_dial_gone(const struct mc_link *l, uint64_t now) {
  return l->state == MC_LINK_DIAL && l->refused_ns && now - l->refused_ns > MC_REFUSED_NS;
}

static void again(struct mc_link *l, int error) {
  const uint64_t now = mc_now_ns();
  if (l->fd >= 0) close(l->fd);
  l->fd = -1, l->state = MC_LINK_DIAL, l->why = error, l->greeted = 0;
  l->retry_ns = now + l->pause_ns;
  l->pause_ns = l->pause_ns * 2 < LONGEST_PAUSE_NS ? l->pause_ns * 2 : LONGEST_PAUSE_NS;
  if (error != ECONNREFUSED) l->refused_ns = 0;
  else if (!l->refused_ns) l->refused_ns = now;
}

static void connect_now(struct mc_chan *ch, struct mc_link *l) {
  int error = 0;
  l->fd = mc_socket_connect(&ch->net->addresses[l->peer], ch->net->buffer_bytes, &error);
  if (l->fd < 0) again(l, error);
  else l->state = MC_LINK_CONNECTING;
  MC_FAULT_POINT(dial_connecting);
}

/* A hello is smaller than any empty socket buffer: sent whole or not at all. */
static bool send_all(struct mc_link *l, const void *data, size_t bytes) {
  const ssize_t sent = send(l->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == (ssize_t)bytes) return true;
  again(l, sent < 0 ? errno : EPROTO);
  return false;
}

/* Exactly `bytes` of what comes, never more: frames follow. */
static bool receive(struct mc_link *l, size_t bytes) {
  while (l->greeted < bytes) {
    const ssize_t got = recv(l->fd, l->greet + l->greeted, bytes - l->greeted, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && mc_would_block(errno)) return false;
    if (got <= 0) {
      again(l, got == 0 ? ECONNRESET : errno);
      return false;
    }
    l->greeted += (size_t)got;
  }
  l->greeted = 0;
  return true;
}

static void greet(struct mc_chan *ch, struct mc_link *l) {
  int error = 0;
  socklen_t bytes = sizeof error;
  struct sockaddr_storage peer;
  socklen_t peer_bytes = sizeof peer;
  if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error) {
    again(l, error);
    return;
  }
  if (getpeername(l->fd, (struct sockaddr *)&peer, &peer_bytes) != 0) return; /* not connected yet */
  if (l->accepted) {
    l->state = MC_LINK_WATCHED;
    return;
  }
  struct mc_greeting *hello = &l->hello.greeting;
  *hello = (struct mc_greeting){.magic = MC_HELLO_MAGIC, .abi = MC_ABI, .channel = ch->which,
                                .rank = ch->c->rank, .to_rank = l->peer};
  memcpy(hello->group, ch->net->group, sizeof hello->group);
  if (!mc_random(hello->nonce, sizeof hello->nonce)) {
    again(l, EIO);
    return;
  }
  if (ch->which == MC_NET_ABORT) {
    struct { struct mc_greeting greeting; struct mc_closing closing; } whole = {.greeting = *hello};
    mc_closing_proof(ch->c, &l->hello, whole.closing.proof);
    if (send_all(l, &whole, sizeof whole)) l->state = MC_LINK_WELCOME;
  } else if (send_all(l, hello, sizeof *hello)) {
    l->state = MC_LINK_ANSWER;
  }
  MC_FAULT_POINT(dial_greeted);
}

static void answered(struct mc_chan *ch, struct mc_link *l) {
  uint8_t proof[MC_PROOF];
  if (!receive(l, sizeof l->hello.answer)) return;
  memcpy(&l->hello.answer, l->greet, sizeof l->hello.answer);
  const struct mc_answer *answer = &l->hello.answer;
  mc_answer_proof(ch->c, &l->hello, proof);
  if (answer->magic != MC_HELLO_MAGIC || answer->abi != MC_ABI || answer->rank != l->peer ||
      !mc_proves(proof, answer->proof)) {
    again(l, EPROTO); /* something else listens there */
    return;
  }
  mc_closing_proof(ch->c, &l->hello, proof);
  if (send_all(l, proof, sizeof proof)) l->state = MC_LINK_WELCOME;
  MC_FAULT_POINT(dial_proved);
}

static void welcomed(struct mc_chan *ch, struct mc_link *l) {
  uint8_t proof[MC_PROOF];
  if (!receive(l, sizeof proof)) return;
  mc_welcome_proof(ch->c, &l->hello, proof);
  if (!mc_proves(proof, l->greet)) {
    again(l, EPROTO);
    return;
  }
  const int fd = l->fd;
  MC_FAULT_POINT(dial_welcomed);
  mc_link_up(ch, l, fd, &l->hello);
  ch->moved = true;
}

/* Its door lets nobody stay who says nothing, so an end is not yet a death. */
static void watch(struct mc_link *l) {
  uint8_t nothing;
  const ssize_t got = recv(l->fd, &nothing, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || mc_would_block(errno))) return;
  l->pause_ns = LONGEST_PAUSE_NS;
  again(l, got < 0 ? errno : ECONNRESET);
}

void mc_dial_move(struct mc_chan *ch, struct mc_link *l) {
  if (l->state == MC_LINK_DIAL && mc_now_ns() >= l->retry_ns) connect_now(ch, l);
  if (l->state == MC_LINK_CONNECTING) greet(ch, l);
  if (l->state == MC_LINK_ANSWER) answered(ch, l);
  if (l->state == MC_LINK_WELCOME) welcomed(ch, l);
  if (l->state == MC_LINK_WATCHED) watch(l);
}
