/* Messages to and from other nodes: a frame is a message, its root the tag. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "p2p/state.h"
#include "group/fault_point.h"

static bool on_header(struct mc_loop *loop, struct mc_conn *conn) {
  struct mc_message *m = mc_message_arrives(loop->c->p2p, conn->peer, conn->frame.root, conn->frame.bytes, false);
  if (!m) return false;
  conn->to = m->to, conn->incoming = m;
  MC_FAULT_POINT(message_arriving);
  return true;
}

static void on_recv_done(struct mc_loop *loop, struct mc_conn *conn) {
  struct mc_message *m = conn->incoming;
  conn->incoming = NULL;
  m->got = m->bytes;
  MC_FAULT_POINT(message_landed);
  mc_message_whole(loop->c->p2p, m);
}

static void on_send_done(struct mc_loop *loop, struct mc_send_desc *out) {
  struct mc_request *r = out->owner;
  if (!r) return;
  r->out = NULL;
  MC_FAULT_POINT(message_sent);
  mc_request_end(loop->c->p2p, r, MC_OK, 0);
}

static void on_control(struct mc_loop *loop, struct mc_conn *conn, const uint8_t *payload) {
  int32_t code = MC_OK;
  if (conn->frame.kind == MC_GOODBYE) conn->goodbye = true;
  if (conn->frame.kind == MC_ABORT && conn->frame.bytes >= sizeof code) memcpy(&code, payload, sizeof code);
  if (code == MC_EABORT) atomic_store(&loop->c->aborted, 1); /* the next sweep ends all */
}

const struct mc_handler mc_p2p_handler = {on_header, on_recv_done, on_send_done, on_control};

int mc_p2p_net_send(struct mc_p2p *p, struct mc_request *r) {
  struct mc_conn *conn = mc_connect_to(p->loop, (uint32_t)r->peer, 0);
  struct mc_send_desc *out = conn ? mc_send_desc_new(MC_DATA, r->data, r->bytes) : NULL;
  if (!out) return MC_EMEM;
  out->frame.root = r->tag, out->owner = r, r->out = out;
  MC_PUSH(&conn->sends, out);
  MC_FAULT_POINT(message_queued);
  if (conn->state == MC_CONN_UP) mc_conn_send(p->loop, conn);
  if (!r->done) mc_p2p_wake_progress(p);
  return MC_OK;
}

void mc_p2p_net_expect(struct mc_p2p *p, const struct mc_request *r) {
  bool changed = false;
  if (r->peer >= 0) { /* our own connection to it tells whether it lives */
    struct mc_conn *conn = mc_conn_new(p->loop, (uint32_t)r->peer, 0, false);
    changed = conn && conn->state == MC_CONN_NONE;
    if (conn) mc_connect(conn);
  }
  for (struct mc_conn *conn = p->loop->conns; conn; conn = conn->next) {
    if (!conn->accepted || conn->faulty || (r->peer >= 0 && (uint32_t)r->peer != conn->peer)) continue;
    if (conn->phase != MC_HELD && conn->state != MC_CONN_GONE) continue;
    mc_conn_read(p->loop, conn);
    changed = true;
  }
  if (changed && !r->done) mc_p2p_wake_progress(p);
}

void mc_p2p_net_withdraw(struct mc_p2p *p, struct mc_request *r) {
  struct mc_conn *conn = p->loop->outgoing[r->peer];
  struct mc_send_desc *out = r->out;
  r->out = NULL, out->owner = NULL;
  if (out->has_mac && conn->state == MC_CONN_UP) { /* its place in the row is taken: it goes on from a copy */
    out->owned = malloc(out->frame.bytes ? out->frame.bytes : 1);
    if (out->owned) {
      if (out->frame.bytes) memcpy(out->owned, out->data, out->frame.bytes);
      out->data = out->owned;
      return;
    }
    mc_conn_lost(conn, ENOMEM);
  }
  MC_REMOVE(&conn->sends, out);
  mc_send_desc_free(out);
}

/* The message that was under way from a rank that has gone. */
void mc_p2p_net_cut(struct mc_p2p *p, uint32_t peer) {
  struct mc_conn *conn = p->loop->incoming[peer];
  if (!conn || !conn->incoming) return;
  struct mc_message *m = conn->incoming;
  conn->incoming = NULL, conn->to = NULL, conn->faulty = true;
  mc_conn_lost(conn, conn->why);
  mc_message_cut(p, m);
}

static void lost(struct mc_p2p *p, struct mc_conn *conn, uint64_t now) {
  struct mc_peer *peer = &p->peers[conn->peer];
  struct mc_conn *in = p->loop->incoming[conn->peer], *out = p->loop->outgoing[conn->peer];
  if (!peer->lost_ns) peer->lost_ns = now;
  /* what it had sent completely still counts: that may be on the other connection */
  if (in && in->state == MC_CONN_UP && now - peer->lost_ns < MC_ELSEWHERE_NS) return;
  conn->handled = true;
  if (in && !in->faulty) mc_conn_read(p->loop, in);
  const bool goodbye = (in && in->goodbye) || (out && out->goodbye), foul = p->loop->fault.code && p->loop->fault.rank == (int)conn->peer;
  mc_peer_gone(p, conn->peer, goodbye ? MC_LEFT : MC_DEAD, foul ? p->loop->fault.code : MC_EPEER, conn->why);
  if (foul) p->loop->fault.code = MC_OK;
}

void mc_p2p_net_losses(struct mc_p2p *p, uint64_t now) {
  for (struct mc_conn *conn = p->loop->conns; conn; conn = conn->next) {
    if (conn->faulty) mc_conn_lost(conn, EPROTO);
    if (p->peers[conn->peer].gone == MC_HERE && mc_connect_refused(conn, now))
      mc_peer_gone(p, conn->peer, MC_DEAD, MC_EPEER, ECONNREFUSED);
    mc_conn_probe(conn, now);
    if (conn->state == MC_CONN_GONE && !conn->handled) lost(p, conn, now);
  }
}
