/* What a wait must not miss: deadlines, ranks that have gone, an abort. Every 50 ms. */
#define _GNU_SOURCE
#include "p2p/state.h"

void mc_withdraw(struct mc_p2p *p, struct mc_request *r, int code, int sys_errno) {
  if (r->done) return;
  if (!r->ending) r->ending = code, r->ending_ns = mc_now_ns();
  if (r->way == MC_RECV) mc_match_withdraw(p, r);
  else if (r->sending && !mc_ring_withdraw(p, r)) return; /* asked again, until nobody reads its memory */
  else if (r->out) mc_p2p_net_withdraw(p, r);
  mc_request_end(p, r, code, sys_errno);
}

static bool concerns(const struct mc_request *r, uint32_t peer) {
  return (r->peer >= 0 && (uint32_t)r->peer == peer) || (r->message && r->message->peer == peer);
}

void mc_peer_gone(struct mc_p2p *p, uint32_t rank, uint8_t status, int code, int why) {
  struct mc_peer *peer = &p->peers[rank];
  if (peer->gone != MC_HERE) return;
  peer->gone = status, peer->why = why, peer->code = code;
  for (uint32_t i = 0; i < p->slots; i++) {
    struct mc_request *r = p->requests[i];
    if (!r || r->done || !concerns(r, rank)) continue;
    r->status = status, r->from = (int32_t)rank;
    mc_withdraw(p, r, code, why);
  }
  if (mc_is_local(p->c, rank)) {
    if (peer->current) {
      mc_message_cut(p, peer->current);
      peer->current = NULL;
    }
    mc_messages_drop(p, rank);
    mc_ring_forget(p, peer); /* they are sent from copies; nobody will read them */
  } else if (p->loop) {
    mc_p2p_net_cut(p, rank);
  }
}

static bool is_aborted(const struct mc_p2p *p) {
  const struct mc_comm *c = p->c;
  if (atomic_load(&c->aborted)) return true;
  for (uint32_t i = 0; i < c->locals; i++)
    if (atomic_load(&p->area.doorbells[i].aborted)) return true;
  const struct mc_error_record *record = mc_error_record(c);
  return record && record->what.code == MC_EABORT;
}

static void end_all(struct mc_p2p *p) {
  p->aborted = true;
  atomic_store(&p->c->aborted, 1);
  for (uint32_t i = 0; i < p->slots; i++)
    if (p->requests[i]) mc_withdraw(p, p->requests[i], MC_EABORT, 0);
  atomic_store(&mc_own_doorbell(p)->aborted, 1);
  for (uint32_t i = 0; i < p->c->locals; i++) mc_doorbell_wake(&p->area.doorbells[i]);
  const struct mc_failure failure = {.code = MC_EABORT, .rank = (int32_t)p->c->rank, .reported_by = (int32_t)p->c->rank};
  if (p->loop) mc_control_abort(p->loop, &failure);
}

static void check_local(struct mc_p2p *p, uint32_t rank) {
  struct mc_comm *c = p->c;
  const uint32_t local = c->local_of[rank];
  const bool left = atomic_load(&mc_block(c, local)->state) == 2;
  if (!left && mc_local_alive(c, local)) return;
  mc_ring_pull(p, local); /* what it had sent completely still counts */
  mc_peer_gone(p, rank, left ? MC_LEFT : MC_DEAD, MC_EPEER, 0);
}

void mc_p2p_check_liveness(struct mc_p2p *p, bool at_once) {
  const uint64_t now = mc_now_ns();
  if (!at_once && now - p->checked_ns < MC_SLICE_NS) return;
  p->checked_ns = now;
  if (!p->aborted && is_aborted(p)) end_all(p);
  for (uint32_t i = 0; (p->pending_near || p->pending_remote) && i < p->slots; i++) {
    struct mc_request *r = p->requests[i];
    if (!r || r->done) continue;
    const int32_t peer = r->peer >= 0 ? r->peer : r->message ? (int32_t)r->message->peer : -1;
    const bool is_local = peer >= 0 && (uint32_t)peer != p->c->rank && mc_is_local(p->c, (uint32_t)peer);
    if (is_local && p->peers[peer].checked_ns != now) { /* once for all that concerns it */
      p->peers[peer].checked_ns = now;
      check_local(p, (uint32_t)peer);
    }
    if (!r->done && r->ending) {
      mc_withdraw(p, r, r->ending, 0);
    } else if (!r->done && now > r->deadline_ns) {
      r->status = MC_MISSING;
      mc_withdraw(p, r, MC_ETIMEOUT, 0);
    }
  }
  if (p->loop) mc_p2p_net_losses(p, now);
}
