/* The receiver's side of an offer (p2p/offer.h): its bytes are read where they lie, in a registered region that all
 * ranks of the node have mapped, or in the sender's own memory; or they are asked for. A piece at a time, with the
 * lock held, so that no receive ends whose memory is being written. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include "p2p/state.h"
#include "group/fault_point.h"
#include "kernels/kernels.h"

static _Atomic uint64_t *word_of(const struct mc_p2p *p, const struct mc_message *m) {
  return &mc_ring_of(p, p->c->local, p->c->local_of[m->peer])->offers[m->offer.slot];
}

static bool move_on(struct mc_p2p *p, const struct mc_message *m, enum mc_offer_state from, enum mc_offer_state to) {
  uint64_t seen = mc_offer_word(m->offer.turn, from);
  return atomic_compare_exchange_strong(word_of(p, m), &seen, mc_offer_word(m->offer.turn, to));
}

static void tell_sender(struct mc_p2p *p, const struct mc_message *m) { mc_doorbell_wake(&p->area.doorbells[p->c->local_of[m->peer]]); }

bool mc_take_begin(struct mc_p2p *p, const struct mc_message *m) {
  if (!move_on(p, m, MC_OFFER_OPEN, MC_OFFER_READING)) return false;
  MC_FAULT_POINT(offer_reading);
  return true;
}

/* It comes behind what waits in the ring for a receive, which may wait there no longer. */
static void await_copy(struct mc_p2p *p, struct mc_message *m) {
  const uint32_t peer = m->peer;
  MC_REMOVE(&p->reads, m);
  m->got = 0;
  MC_PUSH(&p->wanted, m);
  if (p->peers[peer].held) mc_ring_pull(p, p->c->local_of[peer]);
}

/* The sender does not wait for this rank to read on. It sends a copy, or has sent it, or it has left. */
static void taken_back(struct mc_p2p *p, struct mc_message *m) {
  if (atomic_load(word_of(p, m)) != mc_offer_word(m->offer.turn, MC_OFFER_FREE)) {
    await_copy(p, m);
    return;
  }
  MC_REMOVE(&p->reads, m);
  struct mc_request *r = m->request;
  mc_message_cut(p, m);
  if (!r) return;
  r->status = MC_LEFT;
  mc_request_end(p, r, MC_EPEER, 0);
}

static void whole(struct mc_p2p *p, struct mc_message *m) {
  if (!move_on(p, m, MC_OFFER_READING, MC_OFFER_TAKEN)) {
    taken_back(p, m);
    return;
  }
  MC_FAULT_POINT(offer_taken);
  tell_sender(p, m);
  MC_REMOVE(&p->reads, m);
  mc_message_whole(p, m);
}

static void ask(struct mc_p2p *p, struct mc_message *m) {
  if (!move_on(p, m, MC_OFFER_READING, MC_OFFER_WANTED)) {
    taken_back(p, m);
    return;
  }
  MC_FAULT_POINT(offer_wanted);
  __atomic_fetch_add(&p->c->stats.messages_asked, 1, __ATOMIC_RELAXED);
  tell_sender(p, m);
  await_copy(p, m);
}

/* From the region, where this rank has it too. */
static bool copy_region(struct mc_p2p *p, struct mc_message *m, uint64_t part) {
  struct mc_comm *c = p->c;
  if (!m->offer.region) return false;
  pthread_mutex_lock(&c->region_lock); /* it stays mapped */
  const uint8_t *from = mc_region_at(c, m->offer.region, c->local_of[m->peer], m->offer.offset, m->bytes);
  if (from) mc_copy_piece(m->to + m->got, from + m->got, part, m->bytes);
  pthread_mutex_unlock(&c->region_lock);
  return from != NULL;
}

static const uint8_t *view_of(struct mc_p2p *p, const struct mc_message *m) {
  struct mc_view *oldest = p->views;
  for (struct mc_view *view = p->views; view < p->views + MC_VIEWS; view++) {
    if (view->used < oldest->used) oldest = view;
    if (!view->at || view->peer != m->peer || view->inode != m->offer.file.inode) continue;
    view->used = ++p->views_used;
    return view->at;
  }
  uint8_t *at = mc_pages_map(&m->offer.file);
  if (!at) return NULL;
  if (oldest->at) munmap(oldest->at, oldest->bytes);
  *oldest = (struct mc_view){m->peer, m->offer.file.inode, m->offer.file.bytes, ++p->views_used, at};
  return at;
}

void mc_views_close(struct mc_p2p *p) {
  for (struct mc_view *view = p->views; view < p->views + MC_VIEWS; view++)
    if (view->at) munmap(view->at, view->bytes);
}

/* From what this rank has mapped: true, and then it was so much of *part. Else *part is what comes before some that is. */
static bool copy_mapped(struct mc_p2p *p, struct mc_message *m, uint64_t *part) {
  const struct mc_offer *offer = &m->offer;
  if (copy_region(p, m, *part)) return true;
  if (!offer->file.fd) return false;
  const uint64_t at = offer->address + m->got, end = offer->begin + offer->file.bytes;
  if (at < offer->begin) *part = mc_less(*part, offer->begin - at); /* a page that the memory has only a part of */
  if (at < offer->begin || at >= end) return false;
  const uint8_t *from = view_of(p, m);
  if (!from) return false;
  *part = mc_less(*part, end - at);
  mc_copy_piece(m->to + m->got, from + (at - offer->begin), *part, m->bytes);
  return true;
}

/* How many bytes of the sender's memory; 0: the system refuses. */
static uint64_t read_remote(struct mc_p2p *p, struct mc_message *m, uint64_t part) {
  const struct mc_rank_block *mine = mc_block(p->c, p->c->local), *other = mc_block(p->c, p->c->local_of[m->peer]);
  uint8_t *from = (uint8_t *)(uintptr_t)m->offer.address + m->got;
  /* a process id means something in its own namespace only */
  if (p->peers[m->peer].unreadable || !other->pids || other->pids != mine->pids) return 0;
  const struct iovec here = {m->to + m->got, part}, there = {from, part};
  const ssize_t got = process_vm_readv((pid_t)(uint32_t)other->process, &here, 1, &there, 1, 0);
  if (got < 0 && (errno == EPERM || errno == ENOSYS)) p->peers[m->peer].unreadable = true;
  return got > 0 ? (uint64_t)got : 0;
}

bool mc_reads_move(struct mc_p2p *p) {
  struct mc_message *m = p->reads.first;
  if (!m) return false;
  uint64_t part = mc_less(m->bytes - m->got, MC_PIECE);
  if (atomic_load(word_of(p, m)) != mc_offer_word(m->offer.turn, MC_OFFER_READING)) {
    taken_back(p, m);
    return p->reads.first != NULL;
  }
  const bool mapped = copy_mapped(p, m, &part);
  m->mapped = m->mapped || mapped;
  const uint64_t got = mapped ? part : read_remote(p, m, part);
  m->got += got;
  if (!mapped && got) m->foreign = true;
  MC_FAULT_POINT(offer_piece_read);
  if (!got) {
    ask(p, m);
  } else if (m->got == m->bytes) {
    /* A process that has ended may have left its number to another one, whose memory this was then. */
    if (m->foreign && !mc_local_alive(p->c, p->c->local_of[m->peer])) {
      m->got = 0, m->foreign = false;
      mc_p2p_check_liveness(p, true);
      return p->reads.first != NULL;
    }
    __atomic_fetch_add(m->mapped ? &p->c->stats.messages_mapped : &p->c->stats.messages_read, 1, __ATOMIC_RELAXED);
    whole(p, m);
  }
  return p->reads.first != NULL;
}

void mc_take(struct mc_p2p *p, struct mc_message *m) {
  MC_PUSH(&p->reads, m);
  if (!m->request) whole(p, m); /* longer than its receive, which has ended */
}

void mc_take_drop(struct mc_p2p *p, struct mc_message *m) {
  m->to = NULL, m->request = NULL;
  for (const struct mc_message *each = p->reads.first; each; each = each->next)
    if (each == m) {
      whole(p, m);
      return;
    }
}

struct mc_message *mc_take_copy(struct mc_p2p *p, uint32_t peer, uint32_t slot, uint64_t bytes) {
  struct mc_message *heads[] = {p->wanted.first, p->reads.first};
  for (unsigned i = 0; i < 2; i++)
    for (struct mc_message *m = heads[i]; m; m = m->next) {
      if (m->peer != peer || m->offer.slot != slot) continue;
      MC_REMOVE(&p->wanted, m);
      MC_REMOVE(&p->reads, m);
      m->got = 0;
      return m;
    }
  struct mc_message *dropped = calloc(1, sizeof *dropped); /* nobody waits for it any more */
  if (dropped) dropped->peer = peer, dropped->bytes = bytes, dropped->offered = true;
  return dropped;
}
