/* One connection: incoming frames. Small ones come by way of `read_buffer`, large payloads go straight to where
 * they belong. A frame without a posted receive is held: the connection is not read on, and TCP
 * makes the sender wait. Once the other end has closed, all that is left is taken into memory (it
 * is no more than a socket's buffer), so that an error after a held frame is found. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define DIRECT 8192u         /* payloads with more than this to come are read past `read_buffer` */
#define SCRATCH 65536u
#define VISIT (8u << 20)

/* Nothing more is read; an error may still be sent. */
void mc_conn_fault(struct mc_loop *loop, struct mc_conn *conn, int code) {
  conn->faulty = true;
  if (loop->fault.code == MC_OK)
    loop->fault = (struct mc_failure){.code = code, .sys_errno = EPROTO, .rank = (int)conn->peer, .reported_by = -1};
}

/* The first 64 bytes of `read_buffer` are a header. */
static void header(struct mc_loop *loop, struct mc_conn *conn) {
  memcpy(&conn->frame, conn->read_buffer + conn->read_at, sizeof conn->frame);
  conn->read_at += sizeof conn->frame;
  const struct mc_frame *frame = &conn->frame;
  const bool is_control = frame->kind != MC_DATA;
  if (!mc_frame_fits(frame, conn->recv_index++) || frame->kind < MC_DATA || frame->kind > MC_GOODBYE ||
      (is_control && frame->bytes > MC_CONTROL_BYTES)) {
    mc_conn_fault(loop, conn, MC_ENET);
    return;
  }
  conn->left = frame->bytes;
  if (is_control && !conn->control && !(conn->control = malloc(MC_CONTROL_BYTES))) mc_conn_fault(loop, conn, MC_EMEM);
  MC_FAULT_POINT(header_read);
  conn->phase = is_control ? MC_PAYLOAD : MC_HELD;
  conn->to = is_control ? conn->control : NULL;
}

static void on_recv_done(struct mc_loop *loop, struct mc_conn *conn) {
  const uint64_t bytes = conn->frame.bytes;
  conn->phase = MC_HEADER;
  if (conn->frame.sum && conn->to && bytes && mc_frame_sum(conn->to - bytes, bytes) != conn->frame.sum) {
    mc_conn_fault(loop, conn, MC_ECHECK);
    return;
  }
  if (conn->frame.kind == MC_DATA) loop->handler->on_recv_done(loop, conn);
  else loop->handler->on_control(loop, conn, conn->control);
}

/* Uses up `read_buffer` as far as it goes. False: nothing more may be read now. */
static bool parse(struct mc_loop *loop, struct mc_conn *conn) {
  while (!conn->faulty) {
    const size_t here = conn->read_end - conn->read_at;
    if (conn->phase == MC_HEADER) {
      if (here < sizeof conn->frame) return true;
      header(loop, conn);
    } else if (conn->phase == MC_HELD) {
      if (!loop->handler->on_header(loop, conn)) return false;
      conn->phase = MC_PAYLOAD, loop->moved = true;
    } else {
      const size_t part = here < conn->left ? here : (size_t)conn->left;
      if (part && conn->to) memcpy(conn->to, conn->read_buffer + conn->read_at, part), conn->to += part;
      conn->read_at += part, conn->left -= part;
      if (conn->left) return true;
      loop->moved = true;
      on_recv_done(loop, conn);
    }
  }
  return false;
}

static bool make_room(struct mc_conn *conn, size_t bytes) {
  if (conn->read_at == conn->read_end) conn->read_at = conn->read_end = 0;
  if (conn->read_at && conn->read_room - conn->read_end < bytes) {
    memmove(conn->read_buffer, conn->read_buffer + conn->read_at, conn->read_end - conn->read_at);
    conn->read_end -= conn->read_at, conn->read_at = 0;
  }
  if (conn->read_room - conn->read_end >= bytes) return true;
  size_t room = conn->read_room ? conn->read_room : MC_READ_BUFFER;
  while (room - conn->read_end < bytes) room *= 2;
  uint8_t *larger = realloc(conn->read_buffer, room);
  if (!larger) return false;
  conn->read_buffer = larger, conn->read_room = room;
  return true;
}

/* One read: the payload's memory first, what follows into `read_buffer`. <= 0: as recv. */
static ssize_t receive(struct mc_loop *loop, struct mc_conn *conn) {
  if (!make_room(conn, sizeof conn->frame + 1)) {
    errno = ENOMEM;
    return -1;
  }
  struct iovec pieces[2];
  size_t count = 0;
  uint64_t direct = 0;
  if (conn->phase == MC_PAYLOAD && conn->left > DIRECT) { /* `read_buffer` is empty here */
    direct = conn->to ? conn->left : conn->left < SCRATCH ? conn->left : SCRATCH;
    if (!conn->to && !loop->scratch && !(loop->scratch = malloc(SCRATCH))) direct = 0;
    if (direct) pieces[count++] = (struct iovec){conn->to ? conn->to : loop->scratch, (size_t)direct};
  }
  if (direct == 0 || direct == conn->left)
    pieces[count++] = (struct iovec){conn->read_buffer + conn->read_end, conn->read_room - conn->read_end};
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
  const ssize_t got = recvmsg(conn->fd, &message, MSG_DONTWAIT);
  if (got <= 0) return got;
  const uint64_t past = (uint64_t)got < direct ? (uint64_t)got : direct;
  if (conn->to && direct) conn->to += past;
  if (direct) conn->left -= past;
  conn->read_end += (size_t)((uint64_t)got - past);
  if (past < direct) MC_FAULT_POINT(payload_part_read);
  __atomic_fetch_add(&loop->c->stats.received_bytes, (uint64_t)got, __ATOMIC_RELAXED);
  return got;
}

void mc_conn_read(struct mc_loop *loop, struct mc_conn *conn) {
  uint64_t visit = 0;
  while (parse(loop, conn) && conn->state != MC_CONN_GONE && visit < VISIT) {
    const ssize_t got = receive(loop, conn);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && mc_would_block(errno)) return;
    if (got <= 0) {
      mc_conn_lost(conn, got < 0 ? errno : conn->why);
      return;
    }
    visit += (uint64_t)got, loop->moved = true, conn->heard_ns = mc_now_ns();
  }
}

/* Looks for an error or a goodbye after a held frame. Those are handled now; the frames before them stay as
 * they are. */
static void scan_control(struct mc_loop *loop, struct mc_conn *conn) {
  size_t at = conn->read_at;
  uint64_t skip = conn->phase == MC_HEADER ? 0 : conn->left, index = conn->recv_index;
  while (conn->read_end - at >= skip && conn->read_end - at - (size_t)skip >= sizeof(struct mc_frame)) {
    struct mc_frame frame;
    at += (size_t)skip;
    memcpy(&frame, conn->read_buffer + at, sizeof frame);
    if (!mc_frame_fits(&frame, index++)) return;
    at += sizeof frame, skip = frame.bytes;
    if (frame.kind != MC_ABORT && frame.kind != MC_GOODBYE) continue;
    if (conn->read_end - at < skip || skip > MC_CONTROL_BYTES) return;
    const struct mc_frame held = conn->frame;
    conn->frame = frame;
    loop->handler->on_control(loop, conn, conn->read_buffer + at);
    conn->frame = held;
  }
}

void mc_conn_drain(struct mc_loop *loop, struct mc_conn *conn) {
  mc_conn_read(loop, conn);
  if (conn->state != MC_CONN_UP) return;
  int error = conn->why;
  while (make_room(conn, SCRATCH)) {
    const ssize_t got = recv(conn->fd, conn->read_buffer + conn->read_end, conn->read_room - conn->read_end, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got < 0 && !mc_would_block(errno)) error = errno;
      break;
    }
    conn->read_end += (size_t)got;
    __atomic_fetch_add(&loop->c->stats.received_bytes, (uint64_t)got, __ATOMIC_RELAXED);
  }
  mc_conn_lost(conn, error);
  mc_conn_read(loop, conn);
  if (!conn->faulty) scan_control(loop, conn);
}
