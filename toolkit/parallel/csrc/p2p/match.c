/* Which message belongs to which receive: the first posted receive that fits takes it; a message that comes
 * before its receive waits, in the order of arrival. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "p2p/state.h"

void mc_request_end(struct mc_p2p *p, struct mc_request *r, int code, int sys_errno) {
  if (r->done) return;
  r->done = true, r->code = code, r->sys_errno = sys_errno;
  if (r->remote) p->pending_remote--;
  if (r->near) p->pending_near--;
  if (code == MC_OK) {
    struct mc_stats *stats = &p->c->stats;
    __atomic_fetch_add(r->way == MC_SEND ? &stats->sends_bytes : &stats->receives_bytes,
                       r->way == MC_SEND ? r->bytes : r->got, __ATOMIC_RELAXED);
  }
  if (r->note) mc_note_end(p, r);
  if (!p->waiters) return; /* it may be another thread's */
  mc_doorbell_wake(mc_own_doorbell(p));
  if (p->net_waiters && p->polling) mc_loop_wake(p->loop);
}

static bool fits(const struct mc_request *r, uint32_t peer, uint32_t tag) {
  return r->tag == tag && (r->peer < 0 || (uint32_t)r->peer == peer);
}

static struct mc_request *claimant(struct mc_p2p *p, uint32_t peer, uint32_t tag) {
  for (struct mc_request *r = p->posted.first; r; r = r->next)
    if (fits(r, peer, tag)) return r;
  return NULL;
}

static void forget(struct mc_p2p *p, struct mc_message *m) {
  if (m->buffer) p->peers[m->peer].buffered -= m->bytes;
  free(m->buffer);
  free(m);
}

/* True: nothing can come behind this message that a receive waits for, so it may wait where it is. */
static bool may_wait(const struct mc_p2p *p, uint32_t peer) {
  for (const struct mc_request *r = p->posted.first; r; r = r->next)
    if (r->peer < 0 || (uint32_t)r->peer == peer) return false;
  for (const struct mc_message *m = p->wanted.first; m; m = m->next)
    if (m->peer == peer) return false; /* its copy comes there */
  return true;
}

static void claim(struct mc_p2p *p, struct mc_message *m, struct mc_request *r) {
  MC_REMOVE(&p->posted, r);
  r->from = (int32_t)m->peer, r->got = m->bytes;
  if (m->bytes > r->bytes) {
    mc_request_end(p, r, MC_EMISMATCH, 0); /* its bytes are dropped as they come */
  } else {
    m->to = r->data, m->request = r, r->message = m;
  }
}

struct mc_message *mc_message_arrives(struct mc_p2p *p, uint32_t peer, uint32_t tag, uint64_t bytes, bool at_once) {
  struct mc_request *r = claimant(p, peer, tag);
  if (!r && !at_once && p->peers[peer].buffered + bytes > MC_KEPT_BYTES && may_wait(p, peer)) return NULL;
  struct mc_message *m = calloc(1, sizeof *m);
  if (!m) return NULL; /* stays where it is; looked at again */
  m->peer = peer, m->tag = tag, m->bytes = bytes;
  if (r) {
    claim(p, m, r);
    return m;
  }
  m->to = m->buffer = malloc(bytes ? bytes : 1);
  m->lost = !m->buffer;
  if (m->buffer) p->peers[peer].buffered += bytes;
  MC_PUSH(&p->early, m);
  return m;
}

/* An offer of a slot says that the one before has been withdrawn. */
static void forget_withdrawn(struct mc_p2p *p, uint32_t peer, uint64_t slot) {
  for (struct mc_message *m = p->early.first, *next; m; m = next) {
    next = m->next;
    if (m->offered && m->peer == peer && m->offer.slot == slot) mc_message_cut(p, m);
  }
}

bool mc_message_offered(struct mc_p2p *p, uint32_t peer, uint32_t tag, uint64_t bytes, const struct mc_offer *offer) {
  if (p->peers[peer].gone != MC_HERE) return true; /* nobody is there to read from */
  struct mc_message *m = calloc(1, sizeof *m);
  if (!m) return false;
  m->peer = peer, m->tag = tag, m->bytes = bytes, m->offered = true, m->offer = *offer;
  forget_withdrawn(p, peer, offer->slot);
  struct mc_request *r = claimant(p, peer, tag);
  if (!r) {
    MC_PUSH(&p->early, m); /* the bytes stay with the sender */
  } else if (!mc_take_begin(p, m)) {
    free(m);
  } else {
    claim(p, m, r);
    mc_take(p, m);
  }
  return true;
}

void mc_messages_drop(struct mc_p2p *p, uint32_t peer) {
  for (struct mc_message *m = p->early.first, *next; m; m = next) {
    next = m->next;
    if (m->offered && m->peer == peer) mc_message_cut(p, m);
  }
  for (struct mc_message *m = p->wanted.first, *next; m; m = next) {
    next = m->next;
    if (m->peer != peer) continue;
    MC_REMOVE(&p->wanted, m);
    mc_message_cut(p, m);
  }
}

/* A kept message and its receive: the bytes are copied, or there are none to copy. */
static void deliver(struct mc_p2p *p, struct mc_message *m, struct mc_request *r) {
  r->from = (int32_t)m->peer, r->got = m->bytes, r->message = NULL;
  if (m->lost) mc_request_end(p, r, MC_EMEM, ENOMEM);
  else if (m->bytes > r->bytes) mc_request_end(p, r, MC_EMISMATCH, 0);
  else {
    if (m->buffer && m->bytes) memcpy(r->data, m->buffer, m->bytes);
    mc_request_end(p, r, MC_OK, 0);
  }
}

void mc_message_whole(struct mc_p2p *p, struct mc_message *m) {
  m->whole = true;
  if (m->request) deliver(p, m, m->request);
  else if (m->buffer || m->lost) return; /* until its receive is posted */
  forget(p, m);
}

void mc_message_cut(struct mc_p2p *p, struct mc_message *m) {
  if (m->request) m->request->message = NULL;
  MC_REMOVE(&p->early, m);
  forget(p, m);
}

bool mc_match_early(struct mc_p2p *p, struct mc_request *r) {
  for (struct mc_message *m = p->early.first, *next; m; m = next) {
    next = m->next;
    if (!fits(r, m->peer, m->tag)) continue;
    MC_REMOVE(&p->early, m);
    if (m->offered && !mc_take_begin(p, m)) {
      forget(p, m);
      continue;
    }
    if (m->offered) {
      claim(p, m, r);
      mc_take(p, m);
    } else if (m->whole) {
      deliver(p, m, r);
      forget(p, m);
    } else { /* copied when the rest is there */
      r->from = (int32_t)m->peer, r->message = m, m->request = r;
    }
    return true;
  }
  return false;
}

void mc_match_withdraw(struct mc_p2p *p, struct mc_request *r) {
  MC_REMOVE(&p->posted, r);
  struct mc_message *m = r->message;
  if (!m) return;
  r->message = NULL, m->request = NULL;
  if (m->offered) {
    mc_take_drop(p, m);
    return;
  }
  if (m->buffer || m->lost) {
    m->next = p->early.first, p->early.first = m; /* for a later receive */
    if (!p->early.last) p->early.last = m;
    return;
  }
  m->to = NULL; /* went straight to the receive's memory: the rest is dropped */
  if (p->loop && !mc_is_local(p->c, m->peer) && p->loop->incoming[m->peer]) p->loop->incoming[m->peer]->to = NULL;
}

bool mc_match_self(struct mc_p2p *p, uint32_t tag, const void *data, uint64_t bytes) {
  struct mc_message *m = mc_message_arrives(p, p->c->rank, tag, bytes, true);
  if (!m) return false;
  if (m->lost) {
    mc_message_cut(p, m);
    return false;
  }
  if (m->to && bytes) memcpy(m->to, data, bytes);
  mc_message_whole(p, m);
  return true;
}
