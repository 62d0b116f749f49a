/* One connection: its life and its outgoing frames. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define BATCH 8          /* frames of one system call */
#define VISIT (8u << 20) /* bytes of one visit: others have a turn as well */

struct mc_conn *mc_conn_new(struct mc_loop *loop, uint32_t peer, uint32_t stream, bool accepted) {
  struct mc_conn **place = (accepted ? loop->incoming : loop->outgoing) + ((size_t)peer * loop->streams + stream);
  if (*place) return *place;
  struct mc_conn *conn = calloc(1, sizeof *conn);
  if (!conn) return NULL;
  conn->fd = -1, conn->peer = peer, conn->stream = stream, conn->accepted = accepted;
  conn->next = loop->conns, loop->conns = conn, loop->conn_count++;
  *place = conn;
  return conn;
}

void mc_conn_up(struct mc_conn *conn, int fd) {
  if (conn->fd >= 0 && conn->fd != fd) close(conn->fd); /* it was watched */
  conn->fd = fd, conn->state = MC_CONN_UP, conn->why = 0, conn->refused_ns = 0;
}

void mc_conn_reset(struct mc_conn *conn) {
  if (conn->fd >= 0) close(conn->fd);
  conn->fd = -1, conn->state = MC_CONN_NONE, conn->handled = conn->goodbye = false;
  conn->lost_ns = 0, conn->read_at = conn->read_end = 0, conn->phase = MC_HEADER;
}

void mc_conn_free(struct mc_conn *conn) {
  if (conn->fd >= 0) close(conn->fd);
  while (conn->receives.first) {
    struct mc_posted_recv *posted = conn->receives.first;
    conn->receives.first = posted->next;
    free(posted);
  }
  mc_conn_drop_queue(conn, true);
  free(conn->read_buffer), free(conn->control), free(conn->missing);
  free(conn);
}

struct mc_send_desc *mc_send_desc_new(uint8_t kind, const void *data, uint64_t bytes) {
  struct mc_send_desc *out = malloc(sizeof *out);
  if (!out) return NULL;
  *out = (struct mc_send_desc){.data = data, .left = sizeof out->frame + bytes};
  out->frame = (struct mc_frame){.magic = MC_FRAME_MAGIC, .kind = kind, .bytes = bytes};
  return out;
}

void mc_send_desc_free(struct mc_send_desc *out) {
  free(out->owned);
  free(out);
}

/* Takes what has not begun to go out of the queue; `also_begun`: that as well, nothing more is sent. */
void mc_conn_drop_queue(struct mc_conn *conn, bool also_begun) {
  struct mc_send_desc *out = conn->sends.first;
  const bool begun = out && out->left < sizeof out->frame + out->frame.bytes;
  if (begun && !also_begun) {
    out = out->next;
    conn->sends.first->next = NULL, conn->sends.last = conn->sends.first;
  } else {
    conn->sends.first = conn->sends.last = NULL;
  }
  while (out) {
    struct mc_send_desc *next = out->next;
    if (out->frame.kind == MC_HEARTBEAT) conn->heartbeat_queued = false;
    if (out->has_mac) conn->send_index--; /* its place is free again: those with one are the first of the row */
    mc_send_desc_free(out);
    out = next;
  }
}

void mc_conn_lost(struct mc_conn *conn, int error) {
  if (conn->state == MC_CONN_GONE) return;
  if (conn->fd >= 0) close(conn->fd);
  conn->fd = -1, conn->state = MC_CONN_GONE;
  conn->lost_ns = mc_now_ns(), conn->why = error;
}

static void close_header(struct mc_loop *loop, struct mc_conn *conn, struct mc_send_desc *out) {
  if (out->has_mac) return;
  if (loop->c->tuning.checked && out->frame.bytes) out->frame.sum = mc_frame_sum(out->data, out->frame.bytes);
  mc_frame_close(&out->frame, conn->send_index++);
  out->has_mac = true;
}

static void finish_sent(struct mc_loop *loop, struct mc_conn *conn, uint64_t sent) {
  while (conn->sends.first && sent) {
    struct mc_send_desc *out = conn->sends.first;
    const uint64_t part = sent < out->left ? sent : out->left;
    out->left -= part, sent -= part;
    if (out->left) return;
    MC_POP(&conn->sends);
    if (out->frame.kind == MC_HEARTBEAT) conn->heartbeat_queued = false;
    else if (out->frame.kind == MC_DATA) loop->handler->on_send_done(loop, out);
    mc_send_desc_free(out);
  }
}

void mc_conn_send(struct mc_loop *loop, struct mc_conn *conn) {
  uint64_t visit = 0;
  while (conn->state == MC_CONN_UP && conn->sends.first && visit < VISIT) {
    struct iovec pieces[2 * BATCH];
    size_t count = 0;
    uint64_t asked = 0;
    for (struct mc_send_desc *out = conn->sends.first; out && count + 2 <= 2 * BATCH && asked < VISIT; out = out->next) {
      close_header(loop, conn, out);
      const uint64_t body = out->frame.bytes, head = out->left > body ? out->left - body : 0;
      if (head) {
        pieces[count].iov_base = (uint8_t *)&out->frame + (sizeof out->frame - head);
        pieces[count++].iov_len = head;
      }
      if (out->left - head) {
        pieces[count].iov_base = (uint8_t *)(uintptr_t)out->data + (body - (out->left - head));
        pieces[count++].iov_len = out->left - head;
      }
      asked += out->left;
    }
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    const ssize_t sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && mc_would_block(errno)) return;
    if (sent <= 0) { /* what it sent before it went may tell why */
      conn->why = sent < 0 ? errno : EPIPE;
      mc_conn_drain(loop, conn);
      return;
    }
    visit += (uint64_t)sent;
    loop->moved = true;
    if ((uint64_t)sent < asked) MC_FAULT_POINT(frames_part_sent);
    else MC_FAULT_POINT(frames_sent);
    __atomic_fetch_add(&loop->c->stats.sent_bytes, (uint64_t)sent, __ATOMIC_RELAXED);
    finish_sent(loop, conn, (uint64_t)sent);
    if ((uint64_t)sent < asked) return; /* full */
  }
}
