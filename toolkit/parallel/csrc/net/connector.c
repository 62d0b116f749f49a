/* The connecting side of a hello, tried again until the caller's deadline.
 *
 * A rank that is to connect may die before it does, or leave. A rank that waits for it connects to its listener and says
 * no more than whom it watches: that connection ends with the group or its process, and the next one is refused
 * (MC_CONN_WATCHED). It is kept open, for many short ones would fill the backlog of a rank that is only late. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define FIRST_PAUSE_NS 10000000u
#define LONGEST_PAUSE_NS 400000000u

void mc_connect(struct mc_conn *conn) {
  if (conn->state == MC_CONN_NONE) conn->state = MC_CONN_RETRY, conn->pause_ns = FIRST_PAUSE_NS, conn->retry_ns = 0;
}

struct mc_conn *mc_connect_to(struct mc_loop *loop, uint32_t peer, uint32_t stream) {
  struct mc_conn *conn = mc_conn_new(loop, peer, stream, false);
  if (conn) mc_connect(conn);
  return conn;
}

bool mc_no_descriptor(int error) { return error == EMFILE || error == ENFILE; }

bool mc_connect_lacks_fd(const struct mc_loop *loop, const struct mc_conn *conn, uint64_t for_ns) {
  if (conn->state >= MC_CONN_UP) return false;
  const uint64_t taking = conn->accepted ? atomic_load(&loop->net->listener->no_fd_ns) : 0;
  const uint64_t since = conn->no_fd_ns ? conn->no_fd_ns : taking;
  return since && mc_now_ns() >= since + for_ns;
}

bool mc_connect_refused(const struct mc_conn *conn, uint64_t now) {
  return conn->state == MC_CONN_RETRY && conn->refused_ns && now - conn->refused_ns > MC_REFUSED_NS;
}

static void again(struct mc_conn *conn, int error) {
  const uint64_t now = mc_now_ns();
  if (conn->fd >= 0) close(conn->fd);
  conn->fd = -1, conn->state = MC_CONN_RETRY, conn->why = error, conn->hello_got = 0;
  conn->retry_ns = now + conn->pause_ns;
  conn->pause_ns = conn->pause_ns * 2 < LONGEST_PAUSE_NS ? conn->pause_ns * 2 : LONGEST_PAUSE_NS;
  if (!mc_no_descriptor(error)) conn->no_fd_ns = 0;
  else if (!conn->no_fd_ns) conn->no_fd_ns = now;
  if (error != ECONNREFUSED) conn->refused_ns = 0;
  else if (!conn->refused_ns) conn->refused_ns = now;
}

static void connect_now(struct mc_loop *loop, struct mc_conn *conn) {
  int error = 0;
  conn->fd = mc_socket_connect(&loop->net->addresses[conn->peer], loop->net->buffer_bytes, &error);
  if (conn->fd < 0) again(conn, error);
  else conn->state = MC_CONN_CONNECTING;
  MC_FAULT_POINT(connector_connecting);
}

static bool send_all(struct mc_conn *conn, const void *data, size_t bytes) {
  const int error = mc_socket_send(conn->fd, data, bytes);
  if (error) again(conn, error);
  return !error;
}

static bool receive(struct mc_conn *conn, size_t bytes) {
  const int error = mc_socket_receive(conn->fd, conn->hello_bytes, bytes, &conn->hello_got);
  if (error && !mc_would_block(error)) again(conn, error);
  return !error;
}

static void greet(struct mc_loop *loop, struct mc_conn *conn) {
  int error = 0;
  socklen_t bytes = sizeof error;
  struct sockaddr_storage peer;
  socklen_t peer_bytes = sizeof peer;
  if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error) {
    again(conn, error);
    return;
  }
  if (getpeername(conn->fd, (struct sockaddr *)&peer, &peer_bytes) != 0) return; /* not connected yet */
  struct mc_client_hello *hello = &conn->hello.client;
  const uint32_t channel = conn->accepted ? MC_NET_WATCH : loop->which;
  *hello = (struct mc_client_hello){.magic = MC_HELLO_MAGIC, .abi = MC_ABI, .channel = (uint16_t)channel, .stream = (uint16_t)conn->stream,
                                .rank = loop->c->rank, .to_rank = conn->peer, .endpoint = loop->net->addresses[conn->peer].endpoint};
  memcpy(hello->group, loop->net->group, sizeof hello->group);
  if (!mc_random(hello->nonce, sizeof hello->nonce)) {
    again(conn, EIO);
    return;
  }
  if (conn->accepted) {
    if (send_all(conn, hello, sizeof *hello)) conn->state = MC_CONN_WATCHED;
    return;
  }
  if (loop->which == MC_NET_ABORT) {
    struct { struct mc_client_hello client; struct mc_client_finished closing; } whole = {.client = *hello};
    mc_hello_proof(loop->c, &conn->hello, MC_PROVES_CLIENT_FINISHED, whole.closing.proof);
    if (send_all(conn, &whole, sizeof whole)) conn->state = MC_CONN_ACCEPTED;
  } else if (send_all(conn, hello, sizeof *hello)) {
    conn->state = MC_CONN_SERVER_HELLO;
  }
  MC_FAULT_POINT(connector_hello_sent);
}

/* What the listener says in place of an answer: the group has left. No more than a closed port, it proves nothing. */
static bool is_refusal(const struct mc_server_hello *answer) {
  return answer->magic == MC_HELLO_MAGIC && answer->abi == MC_ABI && answer->rank == MC_NOBODY;
}

static void answered(struct mc_loop *loop, struct mc_conn *conn) {
  uint8_t proof[MC_PROOF];
  if (!receive(conn, sizeof conn->hello.server)) return;
  memcpy(&conn->hello.server, conn->hello_bytes, sizeof conn->hello.server);
  const struct mc_server_hello *answer = &conn->hello.server;
  if (is_refusal(answer)) {
    again(conn, ECONNREFUSED);
    return;
  }
  mc_hello_proof(loop->c, &conn->hello, MC_PROVES_SERVER_HELLO, proof);
  if (answer->magic != MC_HELLO_MAGIC || answer->abi != MC_ABI || answer->rank != conn->peer ||
      !mc_proves(proof, answer->proof)) {
    again(conn, EPROTO); /* something else listens there */
    return;
  }
  mc_hello_proof(loop->c, &conn->hello, MC_PROVES_CLIENT_FINISHED, proof);
  if (send_all(conn, proof, sizeof proof)) conn->state = MC_CONN_ACCEPTED;
  MC_FAULT_POINT(connector_finished_sent);
}

static void welcomed(struct mc_loop *loop, struct mc_conn *conn) {
  uint8_t proof[MC_PROOF];
  if (!receive(conn, sizeof proof)) return;
  mc_hello_proof(loop->c, &conn->hello, MC_PROVES_ACCEPTED, proof);
  if (!mc_proves(proof, conn->hello_bytes)) {
    again(conn, EPROTO);
    return;
  }
  MC_FAULT_POINT(connector_accepted);
  mc_conn_up(conn, conn->fd);
  loop->moved = true;
}

/* Its listener closes connections that send nothing, so an end is not yet a death. */
static void watch(struct mc_conn *conn) {
  const int error = mc_socket_receive(conn->fd, conn->hello_bytes, sizeof conn->hello.server, &conn->hello_got);
  if (mc_would_block(error)) return;
  memcpy(&conn->hello.server, conn->hello_bytes, sizeof conn->hello.server);
  conn->pause_ns = LONGEST_PAUSE_NS;
  again(conn, error ? error : is_refusal(&conn->hello.server) ? ECONNREFUSED : EPROTO);
}

void mc_connect_step(struct mc_loop *loop, struct mc_conn *conn) {
  if (conn->state == MC_CONN_RETRY && mc_now_ns() >= conn->retry_ns) connect_now(loop, conn);
  if (conn->state == MC_CONN_CONNECTING) greet(loop, conn);
  if (conn->state == MC_CONN_SERVER_HELLO) answered(loop, conn);
  if (conn->state == MC_CONN_ACCEPTED) welcomed(loop, conn);
  if (conn->state == MC_CONN_WATCHED) watch(conn);
}
