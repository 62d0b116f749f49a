/* A channel: its connections and tickets, one poll over all of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"

#define UNWOKEN_NS 1000000u /* the longest sleep of a loop that nobody can wake */

/* Those of a pair of nodes, shared out among the ranks that talk there: as many as the smallest node has. */
static uint32_t streams_of(const struct mc_comm *c) {
  uint32_t rails = c->size;
  for (uint32_t node = 0; node < c->nodes; node++) rails = (uint32_t)mc_less(rails, c->first_of[node + 1] - c->first_of[node]);
  return (c->tuning.streams + rails - 1) / rails;
}

int mc_loop_open(struct mc_loop *loop, struct mc_net *n, uint32_t which, const struct mc_handler *handler) {
  const uint32_t size = n->c->size;
  loop->net = n, loop->c = n->c, loop->which = which, loop->handler = handler;
  loop->done_base = loop->done_next = 1; /* ticket 0: none */
  loop->streams = which == MC_NET_COLLECTIVE ? streams_of(n->c) : 1;
  loop->outgoing = calloc((size_t)size * loop->streams, sizeof(struct mc_conn *));
  loop->incoming = which == MC_NET_COLLECTIVE ? loop->outgoing : calloc(size, sizeof(struct mc_conn *));
  loop->rank_status = calloc(size, 1);
  loop->reported_status = calloc(size, 1);
  return loop->outgoing && loop->incoming && loop->rank_status && loop->reported_status ? 0 : ENOMEM;
}

void mc_loop_close(struct mc_loop *loop) {
  while (loop->conns) {
    struct mc_conn *conn = loop->conns;
    loop->conns = conn->next;
    if (conn->fd >= 0) shutdown(conn->fd, SHUT_RDWR); /* a forked child may have a copy that stays open */
    mc_conn_free(conn);
  }
  while (loop->handed) {
    struct mc_handed *handed = loop->handed;
    loop->handed = handed->next;
    close(handed->fd);
    free(handed);
  }
  if (loop->incoming != loop->outgoing) free(loop->incoming);
  free(loop->outgoing), free(loop->rank_status), free(loop->reported_status), free(loop->polls);
  free(loop->left), free(loop->scratch);
}

static void push(struct mc_loop *loop) {
  const uint64_t now = mc_now_ns();
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    if (conn->state == MC_CONN_RETRY && now >= conn->retry_ns) mc_connect_step(loop, conn);
    if (conn->state == MC_CONN_UP && conn->sends.first) mc_conn_send(loop, conn);
  }
}

/* In how long something must be done without an event. */
static uint64_t due_in(const struct mc_loop *loop) {
  const uint64_t now = mc_now_ns();
  uint64_t due = now + MC_SLICE_NS;
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (conn->state == MC_CONN_RETRY && conn->retry_ns < due) due = conn->retry_ns;
  return due > now ? due - now : 0;
}

static short events_of(const struct mc_conn *conn) {
  switch (conn->state) {
    case MC_CONN_CONNECTING: return POLLOUT;
    case MC_CONN_SERVER_HELLO: case MC_CONN_ACCEPTED: case MC_CONN_WATCHED: return POLLIN;
    case MC_CONN_UP:
      return (short)(POLLRDHUP | (conn->phase == MC_HELD || conn->faulty ? 0 : POLLIN) | (conn->sends.first ? POLLOUT : 0));
    default: return 0;
  }
}

static void fill_polls(struct mc_loop *loop) {
  loop->poll_count = 0;
  if (loop->poll_room < loop->conn_count + 1) {
    const uint32_t room = (loop->conn_count + 1) * 2;
    struct pollfd *polls = realloc(loop->polls, room * sizeof *polls);
    if (!polls) return;
    loop->polls = polls, loop->poll_room = room;
  }
  loop->polls[0] = (struct pollfd){.fd = loop->wake_fd, .events = POLLIN};
  loop->poll_count = 1;
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    const short events = events_of(conn);
    conn->poll_at = 0;
    if (!events || conn->fd < 0) continue;
    conn->poll_at = loop->poll_count++;
    loop->polls[conn->poll_at] = (struct pollfd){.fd = conn->fd, .events = events};
  }
}

uint64_t mc_loop_prepare(struct mc_loop *loop, uint64_t wait_ns) {
  loop->moved = false;
  push(loop);
  if (loop->moved) wait_ns = 0;
  if (wait_ns && !mc_waker_take(loop) && wait_ns > UNWOKEN_NS) wait_ns = UNWOKEN_NS;
  if (__atomic_load_n(&loop->handed, __ATOMIC_ACQUIRE)) wait_ns = 0; /* looked at last: what comes later wakes */
  fill_polls(loop);
  if (!wait_ns) return 0;
  const uint64_t due = due_in(loop);
  return due < wait_ns ? due : wait_ns;
}

static void deal_with(struct mc_loop *loop, struct mc_conn *conn, short said) {
  if (conn->state != MC_CONN_UP) {
    mc_connect_step(loop, conn);
    return;
  }
  if (said & POLLOUT) mc_conn_send(loop, conn);
  if ((said & POLLIN) && conn->state == MC_CONN_UP) mc_conn_read(loop, conn);
  if ((said & (POLLRDHUP | POLLHUP | POLLERR)) && conn->state == MC_CONN_UP) mc_conn_drain(loop, conn);
}

static void wake_up(struct mc_loop *loop, bool was_woken) {
  uint64_t times;
  if (loop->wake_fd < 0) return;
  while (was_woken && read(loop->wake_fd, &times, sizeof times) < 0 && errno == EINTR) {}
  mc_waker_give_back(loop);
}

void mc_loop_polled(struct mc_loop *loop, int said) {
  wake_up(loop, said > 0 && loop->polls[0].revents);
  if (said < 0 || !loop->poll_count) return;
  for (struct mc_conn *conn = loop->conns; said && conn; conn = conn->next) {
    const struct pollfd *poll = &loop->polls[conn->poll_at];
    if (conn->poll_at && poll->revents && poll->fd == conn->fd) deal_with(loop, conn, poll->revents);
  }
  mc_listener_fetch(loop);
}

bool mc_loop_turn(struct mc_loop *loop, uint64_t wait_ns) {
  wait_ns = mc_loop_prepare(loop, wait_ns);
  const struct timespec wait = mc_timespec(wait_ns);
  if (wait_ns) __atomic_fetch_add(&loop->c->stats.sleeps, 1, __ATOMIC_RELAXED);
  const int said = loop->poll_count ? ppoll(loop->polls, loop->poll_count, &wait, NULL) : -1;
  mc_loop_polled(loop, said);
  return said >= 0;
}

/* Both ways: it was reset, and what was sent last is never acknowledged. */
static bool has_ended(const struct mc_conn *conn) {
  struct pollfd end = {.fd = conn->fd};
  return poll(&end, 1, 0) > 0 && (end.revents & POLLHUP);
}

/* All sent is acknowledged by the other hosts, or the time is up. What comes meanwhile is dropped: a socket
 * closed with bytes unread resets the connection, and what is still on its way would be lost. */
void mc_loop_flush(struct mc_loop *loop, uint64_t until_ns) {
  uint8_t drop[4096];
  for (;;) {
    bool busy = false;
    for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
      int unsent = 0;
      if (conn->state != MC_CONN_UP) continue;
      mc_conn_send(loop, conn);
      if (conn->state != MC_CONN_UP) continue;
      for (unsigned i = 0; i < 256 && recv(conn->fd, drop, sizeof drop, MSG_DONTWAIT) > 0; i++) {}
      if (has_ended(conn)) continue;
      if (conn->sends.first || (ioctl(conn->fd, SIOCOUTQ, &unsent) == 0 && unsent > 0)) busy = true;
    }
    if (!busy || mc_now_ns() >= until_ns) return;
    poll(NULL, 0, 1);
  }
}

uint64_t mc_ticket_new(struct mc_loop *loop, uint32_t parts) {
  if (loop->done_next - loop->done_base == loop->done_room) {
    const uint64_t room = loop->done_room ? loop->done_room * 2 : 256;
    uint8_t *left = calloc(room, 1);
    if (!left) return 0;
    for (uint64_t t = loop->done_base; t < loop->done_next; t++) left[t & (room - 1)] = loop->left[t & (loop->done_room - 1)];
    free(loop->left);
    loop->left = left, loop->done_room = room;
  }
  loop->left[loop->done_next & (loop->done_room - 1)] = (uint8_t)parts;
  loop->open++;
  return loop->done_next++;
}

void mc_ticket_done(struct mc_loop *loop, uint64_t ticket) {
  if (!ticket || --loop->left[ticket & (loop->done_room - 1)]) return;
  loop->open--;
  while (loop->done_base < loop->done_next && !loop->left[loop->done_base & (loop->done_room - 1)]) loop->done_base++;
}
