/* Messages to and from other nodes: a frame is a message, its root the tag. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "p2p/state.h"
#include "group/fault_point.h"

static enum mc_taking begin(struct mc_chan *ch, struct mc_link *l) {
  struct mc_message *m = mc_message_arrives(ch->c->p2p, l->peer, l->frame.root, l->frame.bytes);
  if (!m) return MC_HOLD;
  l->to = m->to, l->incoming = m;
  MC_FAULT_POINT(message_arriving);
  return MC_TAKE;
}

static void landed(struct mc_chan *ch, struct mc_link *l) {
  struct mc_message *m = l->incoming;
  l->incoming = NULL;
  m->got = m->bytes;
  MC_FAULT_POINT(message_landed);
  mc_message_whole(ch->c->p2p, m);
}

static void sent(struct mc_chan *ch, struct mc_link *l, struct mc_out *out) {
  struct mc_request *r = out->owner;
  (void)l;
  if (!r) return;
  r->out = NULL;
  MC_FAULT_POINT(message_sent);
  mc_request_end(ch->c->p2p, r, MC_OK, 0);
}

static void word(struct mc_chan *ch, struct mc_link *l, const uint8_t *payload) {
  int32_t code = MC_OK;
  if (l->frame.kind == MC_BYE) l->bye = true;
  if (l->frame.kind == MC_FAIL && l->frame.bytes >= sizeof code) memcpy(&code, payload, sizeof code);
  if (code == MC_EABORT) atomic_store(&ch->c->aborted, 1); /* the next sweep ends all */
}

const struct mc_taker mc_p2p_taker = {begin, landed, sent, word};

int mc_p2p_net_send(struct mc_p2p *p, struct mc_request *r) {
  struct mc_link *l = mc_link_new(p->ch, (uint32_t)r->peer, false);
  struct mc_out *out = l ? mc_out_new(p->ch, MC_DATA, r->data, r->bytes) : NULL;
  if (!out) return MC_EMEM;
  mc_dial(l);
  out->frame.root = r->tag, out->owner = r, r->out = out;
  mc_link_queue(l, out);
  MC_FAULT_POINT(message_queued);
  if (l->state == MC_LINK_UP) mc_link_send(p->ch, l);
  if (!r->done) mc_p2p_kick(p);
  return MC_OK;
}

void mc_p2p_net_want(struct mc_p2p *p, const struct mc_request *r) {
  bool changed = false;
  if (r->peer >= 0) { /* our own connection to it tells whether it lives */
    struct mc_link *l = mc_link_new(p->ch, (uint32_t)r->peer, false);
    changed = l && l->state == MC_LINK_NONE;
    if (l) mc_dial(l);
  }
  for (struct mc_link *l = p->ch->links; l; l = l->next) {
    if (!l->accepted || l->broken || (r->peer >= 0 && (uint32_t)r->peer != l->peer)) continue;
    if (l->phase != MC_HELD && l->state != MC_LINK_GONE) continue;
    mc_link_read(p->ch, l);
    changed = true;
  }
  if (changed && !r->done) mc_p2p_kick(p);
}

void mc_p2p_net_withdraw(struct mc_p2p *p, struct mc_request *r) {
  struct mc_link *l = p->ch->made[r->peer];
  struct mc_out *out = r->out, *before = NULL;
  r->out = NULL, out->owner = NULL;
  if (out->sealed && l->state == MC_LINK_UP) { /* its place in the row is taken: it goes on from a copy */
    out->owned = malloc(out->frame.bytes ? out->frame.bytes : 1);
    if (out->owned) {
      if (out->frame.bytes) memcpy(out->owned, out->data, out->frame.bytes);
      out->data = out->owned;
      return;
    }
    mc_link_lost(l, ENOMEM);
  }
  for (struct mc_out *at = l->first; at && at != out; at = at->next) before = at;
  if (before) before->next = out->next;
  else l->first = out->next;
  if (l->last == out) l->last = before;
  mc_out_free(p->ch, out);
}

/* The message that was under way from a rank that has gone. */
void mc_p2p_net_cut(struct mc_p2p *p, uint32_t peer) {
  struct mc_link *l = p->ch->taken[peer];
  if (!l || !l->incoming) return;
  struct mc_message *m = l->incoming;
  l->incoming = NULL, l->to = NULL, l->broken = true;
  mc_link_lost(l, l->why);
  mc_message_cut(p, m);
}

static void lost(struct mc_p2p *p, struct mc_link *l, uint64_t now) {
  struct mc_peer *peer = &p->peers[l->peer];
  struct mc_link *in = p->ch->taken[l->peer], *out = p->ch->made[l->peer];
  if (!peer->lost_ns) peer->lost_ns = now;
  /* what it had sent completely still counts: that may be on the other connection */
  if (in && in->state == MC_LINK_UP && now - peer->lost_ns < MC_ELSEWHERE_NS) return;
  l->settled = true;
  if (in && !in->broken) mc_link_read(p->ch, in);
  const bool bye = (in && in->bye) || (out && out->bye), foul = p->ch->fault.code && p->ch->fault.rank == (int)l->peer;
  mc_peer_gone(p, l->peer, bye ? MC_LEFT : MC_DEAD, foul ? p->ch->fault.code : MC_EPEER, l->why);
  if (foul) p->ch->fault.code = MC_OK;
}

void mc_p2p_net_losses(struct mc_p2p *p, uint64_t now) {
  for (struct mc_link *l = p->ch->links; l; l = l->next) {
    if (l->broken) mc_link_lost(l, EPROTO);
    if (p->peers[l->peer].gone == MC_HERE && mc_dial_gone(l, now)) {
      mc_peer_gone(p, l->peer, MC_DEAD, MC_EPEER, ECONNREFUSED);
    } else if (l->state == MC_LINK_UP && now - l->probed_ns > 1000000000u) {
      l->probed_ns = now;
      if (mc_socket_silent(l->fd)) mc_link_lost(l, ETIMEDOUT);
    }
    if (l->state == MC_LINK_GONE && !l->settled) lost(p, l, now);
  }
}

void mc_p2p_net_abort(struct mc_p2p *p) {
  const struct mc_failure failure = {.code = MC_EABORT, .rank = (int32_t)p->c->rank, .told_by = (int32_t)p->c->rank};
  mc_word_fail(p->ch, &failure);
}
