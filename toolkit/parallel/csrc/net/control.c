/* Control messages between nodes: heartbeats with the ranks that are missing, errors, goodbyes. They queue
 * after frames that have begun to go out, and never wait for room. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "net/connection.h"
#include "group/fault_point.h"

static bool say(struct mc_loop *loop, struct mc_conn *conn, uint8_t kind, const void *payload, size_t bytes,
                bool of_call) {
  struct mc_send_desc *out = mc_send_desc_new(kind, NULL, bytes);
  if (out) out->data = out->owned = malloc(bytes + 1); /* of 0 bytes it may be NULL */
  if (!out || !out->owned) {
    free(out);
    return false;
  }
  memcpy(out->owned, payload, bytes);
  if (of_call) mc_frame_call(&out->frame, loop->c);
  MC_PUSH(&conn->sends, out);
  mc_conn_send(loop, conn);
  return true;
}

void mc_control_heartbeat(struct mc_loop *loop, const uint8_t *rank_status) {
  struct mc_run_of runs[MC_CONTROL_RUNS];
  const size_t count = mc_rank_status_pack(rank_status, loop->c->size, runs, MC_CONTROL_RUNS);
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    if (conn->state != MC_CONN_UP || conn->heartbeat_queued) continue;
    conn->heartbeat_queued = true; /* cleared when it is out; before `say`, which may send it at once */
    if (!say(loop, conn, MC_HEARTBEAT, runs, count * sizeof runs[0], true)) conn->heartbeat_queued = false;
    MC_FAULT_POINT(heartbeat_sent);
  }
}

void mc_control_abort(struct mc_loop *loop, const struct mc_failure *failure) {
  struct { struct mc_failure message; struct mc_run_of runs[MC_CONTROL_RUNS]; } payload;
  payload.message = *failure;
  payload.message.rank_status = NULL;
  if (failure->reported_by < 0) payload.message.reported_by = (int32_t)loop->c->rank;
  const size_t count = mc_rank_status_pack(failure->rank_status, loop->c->size, payload.runs, MC_CONTROL_RUNS);
  const size_t bytes = sizeof payload.message + count * sizeof payload.runs[0];
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    if (conn->state != MC_CONN_UP) continue;
    mc_conn_drop_queue(conn, false);
    const bool said = say(loop, conn, MC_ABORT, &payload, bytes, false);
    MC_FAULT_POINT(error_propagated);
    if (conn->state == MC_CONN_UP && (!said || conn->sends.first)) { /* no room: the end of the connection must tell */
      shutdown(conn->fd, SHUT_WR);
      mc_conn_drop_queue(conn, true);
      mc_conn_lost(conn, 0);
    }
  }
}

void mc_control_goodbye(struct mc_loop *loop) {
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (conn->state == MC_CONN_UP && say(loop, conn, MC_GOODBYE, "", 0, false)) MC_FAULT_POINT(goodbye_sent);
}

static void on_abort(struct mc_loop *loop, const struct mc_conn *conn, const uint8_t *payload) {
  struct mc_failure message;
  struct mc_run_of runs[MC_CONTROL_RUNS];
  if (conn->frame.bytes < sizeof message || loop->has_report) return;
  memcpy(&message, payload, sizeof message);
  size_t count = (conn->frame.bytes - sizeof message) / sizeof runs[0];
  if (count > MC_CONTROL_RUNS) count = MC_CONTROL_RUNS;
  memcpy(runs, payload + sizeof message, count * sizeof runs[0]);
  memset(loop->reported_status, MC_HERE, loop->c->size);
  mc_rank_status_unpack(runs, count, loop->reported_status, loop->c->size);
  if (message.code <= MC_EINVAL || message.code > MC_ECLOSED) message.code = MC_ENET;
  if ((uint32_t)message.rank >= loop->c->size) message.rank = -1;
  if ((uint32_t)message.reported_by >= loop->c->size) message.reported_by = (int32_t)conn->peer;
  message.rank_status = loop->reported_status;
  loop->reported = message, loop->has_report = true, loop->reported_ns = mc_now_ns();
}

/* Whether the call that a control message names was another one here: the current call, or one of the last. */
static bool differs(const struct mc_comm *c, const struct mc_frame *frame) {
  if (frame->seq == c->desc.seq) return frame->fingerprint != c->call_fingerprint;
  const struct mc_desc theirs = mc_desc_of(frame), *mine = &c->records[frame->seq % c->record_count].what;
  return mine->seq == frame->seq && frame->seq < c->desc.seq && memcmp(mine, &theirs, sizeof theirs) != 0;
}

static void on_heartbeat(struct mc_loop *loop, struct mc_conn *conn, const uint8_t *payload) {
  const struct mc_comm *c = loop->c;
  if (conn->frame.seq > conn->heard_seq) conn->heard_seq = conn->frame.seq;
  if (differs(c, &conn->frame)) mc_conn_differs(loop, conn);
  free(conn->missing);
  conn->missing_count = conn->frame.bytes / sizeof *conn->missing;
  conn->missing = malloc(conn->missing_count * sizeof *conn->missing + 1);
  conn->heartbeat_seq = conn->frame.seq;
  if (!conn->missing) conn->missing_count = 0;
  else memcpy(conn->missing, payload, conn->missing_count * sizeof *conn->missing);
}

void mc_control_read(struct mc_loop *loop, struct mc_conn *conn, const uint8_t *payload) {
  switch (conn->frame.kind) {
    case MC_HEARTBEAT: on_heartbeat(loop, conn, payload); break;
    case MC_ABORT: on_abort(loop, conn, payload); break;
    case MC_GOODBYE: conn->goodbye = true; break;
  }
}
