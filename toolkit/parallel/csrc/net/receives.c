/* What the collective channel does with frames and losses. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "net/connection.h"
#include "group/fault_point.h"

void mc_conn_differs(struct mc_loop *loop, const struct mc_conn *conn) {
  if (loop->fault.code != MC_OK) return;
  loop->fault = (struct mc_failure){.code = MC_EMISMATCH, .rank = (int)conn->peer, .reported_by = -1,
                                    .other = mc_desc_of(&conn->frame)};
}

/* A frame for which no receive is posted may be of a later call: the peer is ahead. But what belongs to this call must
 * be of the same call, and what is left over from a call that has ended was another call there. */
static bool is_of_another_call(const struct mc_loop *loop, const struct mc_conn *conn) {
  const struct mc_comm *c = loop->c;
  if (conn->frame.seq == c->desc.seq) return conn->frame.fingerprint != c->call_fingerprint;
  return conn->frame.seq < c->desc.seq;
}

static bool on_header(struct mc_loop *loop, struct mc_conn *conn) {
  const struct mc_posted_recv *posted = conn->receives.first;
  if (conn->frame.seq > conn->heard_seq) conn->heard_seq = conn->frame.seq;
  if (!posted && !is_of_another_call(loop, conn)) return false;
  const struct mc_frame *frame = &conn->frame;
  if (!posted || frame->fingerprint != posted->fingerprint || frame->bytes != posted->bytes || frame->parts != posted->parts) {
    mc_conn_differs(loop, conn);
    return false;
  }
  conn->to = posted->data;
  return true;
}

static void on_recv_done(struct mc_loop *loop, struct mc_conn *conn) {
  struct mc_posted_recv *posted = conn->receives.first;
  MC_FAULT_POINT(frame_landed);
  MC_POP(&conn->receives);
  mc_ticket_done(loop, posted->ticket);
  free(posted);
}

static void on_send_done(struct mc_loop *loop, struct mc_send_desc *out) { mc_ticket_done(loop, out->ticket); }

const struct mc_handler mc_collective_handler = {on_header, on_recv_done, on_send_done, mc_control_read};

/* `what` is wrong with its rank. */
static int lose(struct mc_loop *loop, struct mc_failure what, uint8_t status, struct mc_failure *loss) {
  memset(loop->rank_status, MC_HERE, loop->c->size);
  loop->rank_status[what.rank] = status;
  *loss = what, loss->rank_status = loop->rank_status;
  return loss->code;
}

static struct mc_failure loss_of(const struct mc_conn *conn, int error) {
  return (struct mc_failure){.code = MC_EPEER, .sys_errno = error, .rank = (int)conn->peer, .reported_by = -1};
}

/* A loss is held back a little, for a report of its cause. A rank that has left, or from which nothing is awaited,
 * may have done its part of the call. */
static int check_conn(struct mc_loop *loop, struct mc_conn *conn, uint64_t now, struct mc_failure *loss) {
  const bool awaited = conn->receives.first || conn->sends.first;
  if (awaited && mc_connect_lacks_fd(loop, conn, MC_NO_FD_NS)) {
    const struct mc_failure own = {.code = MC_ESYS, .sys_errno = EMFILE, .rank = (int)loop->c->rank, .reported_by = -1};
    return lose(loop, own, MC_DEAD, loss);
  }
  if (mc_connect_refused(conn, now) && awaited) return lose(loop, loss_of(conn, ECONNREFUSED), MC_DEAD, loss);
  /* also where all has been handed to the kernel: it sends no probes while data is unacknowledged */
  if (awaited) mc_conn_probe(conn, now);
  if (conn->phase == MC_HELD && !conn->faulty && !conn->receives.first && is_of_another_call(loop, conn)) mc_conn_differs(loop, conn); /* seen at the next look */
  if (conn->state != MC_CONN_GONE || (conn->goodbye && !awaited)) return MC_OK;
  if (now - conn->lost_ns < (awaited ? MC_ELSEWHERE_NS : MC_UNASKED_NS)) return MC_OK;
  return lose(loop, loss_of(conn, conn->why), conn->goodbye ? MC_LEFT : MC_DEAD, loss);
}

/* A report on a later call may come in one read with the last data of this one, which is fine: this call gets a
 * moment to end, and the next one finds the report at its first look. */
static bool may_wait(const struct mc_loop *loop) {
  return loop->reported.code != MC_EABORT && loop->reported.mine.seq > loop->c->desc.seq &&
         mc_now_ns() - loop->reported_ns < MC_ELSEWHERE_NS;
}

int mc_loop_status(struct mc_loop *loop, struct mc_failure *loss) {
  if (loop->has_report && !may_wait(loop)) { /* adopted, it reaches nodes which the finder has no connection to */
    loop->has_report = false;
    *loss = loop->reported;
    return loss->code;
  }
  if (loop->fault.code != MC_OK) {
    const struct mc_failure fault = loop->fault;
    loop->fault.code = MC_OK;
    return lose(loop, fault, fault.code == MC_EMISMATCH ? MC_DIFFERENT : MC_DEAD, loss);
  }
  const uint64_t now = mc_now_ns();
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    const int code = check_conn(loop, conn, now, loss);
    if (code != MC_OK) return code;
  }
  return MC_OK;
}
