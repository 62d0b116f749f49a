/* Sockets: made, set up, connected; never blocking, never inherited. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"

#define MC_BUFFER (4 << 20)

bool mc_would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int mc_socket_send(int fd, const void *data, size_t bytes) {
  const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == (ssize_t)bytes ? 0 : sent < 0 ? errno : EPROTO;
}

int mc_socket_receive(int fd, uint8_t *data, size_t bytes, size_t *got) {
  while (*got < bytes) {
    const ssize_t now = recv(fd, data + *got, bytes - *got, MSG_DONTWAIT);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return now < 0 ? errno : ECONNRESET;
    *got += (size_t)now;
  }
  *got = 0;
  return 0;
}

/* A fixed size ends the kernel's own growth (to 6 MiB as a rule), so it is only worth having where
 * the administrator allows a large one; net.core.rmem_max is 208 KiB by default. */
static bool allows_buffers(void) {
  static const char *const limits[] = {"/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"};
  for (unsigned i = 0; i < 2; i++) {
    FILE *file = fopen(limits[i], "re");
    long limit = 0;
    if (!file) return false;
    if (fscanf(file, "%ld", &limit) != 1) limit = 0;
    fclose(file);
    if (limit < MC_BUFFER) return false;
  }
  return true;
}

int mc_socket_buffers(void) {
  static _Atomic int known = -1; /* groups are many */
  if (atomic_load(&known) < 0) atomic_store(&known, allows_buffers() ? MC_BUFFER : 0);
  return atomic_load(&known);
}

void mc_socket_settle(int fd, int buffer_bytes) {
  const int on = 1, idle_s = 5, between_s = 2, probes = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  /* No TCP_USER_TIMEOUT: it also ends connections to a peer that is well but has no room (it computes
   * and does not read), and it overrides the probes above. mc_conn_probe looks instead. */
  if (buffer_bytes) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  }
}

void mc_conn_probe(struct mc_conn *conn, uint64_t now) {
  struct tcp_info info;
  socklen_t bytes = sizeof info;
  if (conn->state != MC_CONN_UP || now - conn->probed_ns <= 1000000000u) return;
  conn->probed_ns = now;
  memset(&info, 0, sizeof info);
  if (getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return;
  /* probes of a closed window are acknowledged by a host that lives */
  if (info.tcpi_unacked > 0 && info.tcpi_last_ack_recv > MC_SILENT_MS && info.tcpi_retransmits > 1) mc_conn_lost(conn, ETIMEDOUT);
}

int mc_socket_connect(const struct mc_address *address, int buffer_bytes, int *error) {
  union { struct sockaddr any; struct sockaddr_in four; struct sockaddr_in6 six; } to;
  socklen_t bytes;
  memset(&to, 0, sizeof to);
  if (address->family == AF_INET) {
    to.four.sin_family = AF_INET, to.four.sin_port = htons(address->port);
    memcpy(&to.four.sin_addr, address->bytes, 4), bytes = sizeof to.four;
  } else if (address->family == AF_INET6) {
    to.six.sin6_family = AF_INET6, to.six.sin6_port = htons(address->port);
    memcpy(&to.six.sin6_addr, address->bytes, 16), bytes = sizeof to.six;
    to.six.sin6_scope_id = address->scope;
  } else {
    *error = EAFNOSUPPORT;
    return -1;
  }
  const int fd = socket(address->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    *error = errno;
    return -1;
  }
  mc_socket_settle(fd, buffer_bytes);
  if (connect(fd, &to.any, bytes) == 0 || errno == EINPROGRESS || errno == EINTR) return fd;
  *error = errno;
  close(fd);
  return -1;
}
