/* The sender's side of an offer: p2p/offer.h. */
#include <stdlib.h>
#include <string.h>
#include "p2p/state.h"
#include "group/fault_point.h"

#define STILL_NS 500000000u /* a reader that takes longer over what is left stands still */

static _Atomic uint64_t *word_of(const struct mc_p2p *p, uint32_t rank, uint32_t slot) {
  return &mc_ring_of(p, p->c->local_of[rank], p->c->local)->offers[slot];
}

void mc_offer_make(struct mc_p2p *p, struct mc_sending *s, uint32_t rank) {
  struct mc_peer *peer = &p->peers[rank];
  if (s->bytes <= p->c->tuning.eager_bytes || !~peer->slots) return;
  s->slot = (uint32_t)__builtin_ctzll(~peer->slots);
  s->way = MC_OFFERED;
  peer->slots |= (uint64_t)1 << s->slot;
  _Atomic uint64_t *word = word_of(p, rank, s->slot);
  atomic_store(word, mc_offer_word(atomic_load(word) >> MC_OFFER_BITS, MC_OFFER_OPEN));
}

struct mc_offer mc_offer_of(struct mc_p2p *p, const struct mc_sending *s, uint32_t rank) {
  struct mc_offer offer = {.address = (uint64_t)(uintptr_t)s->data, .slot = s->slot,
                           .turn = atomic_load(word_of(p, rank, s->slot)) >> MC_OFFER_BITS};
  pthread_mutex_lock(&p->c->region_lock);
  const struct mc_region *region = mc_region_of(p->c, s->data, s->bytes);
  const struct mc_adopted *adopted = region ? NULL : mc_adopted_around(p->c, s->data, s->bytes);
  if (region) offer.region = region->id, offer.offset = mc_region_offset(p->c, region, s->data);
  if (adopted) offer.begin = (uint64_t)(uintptr_t)adopted->begin, offer.file = adopted->file;
  pthread_mutex_unlock(&p->c->region_lock);
  return offer;
}

void mc_offer_end(struct mc_p2p *p, const struct mc_sending *s, uint32_t rank) {
  _Atomic uint64_t *word = word_of(p, rank, s->slot);
  atomic_store(word, mc_offer_word((atomic_load(word) >> MC_OFFER_BITS) + 1, MC_OFFER_FREE));
  p->peers[rank].slots &= ~((uint64_t)1 << s->slot);
}

static void taken(struct mc_p2p *p, struct mc_sending *s, uint32_t rank) {
  MC_REMOVE(&p->peers[rank].offers, s);
  mc_offer_end(p, s, rank);
  MC_FAULT_POINT(offer_ended);
  s->request->sending = NULL;
  mc_request_end(p, s->request, MC_OK, 0);
  free(s);
}

static void send_copy(struct mc_p2p *p, struct mc_sending *s, uint32_t rank) {
  struct mc_peer *peer = &p->peers[rank];
  MC_REMOVE(&peer->offers, s);
  s->way = MC_COPIED, s->begun = false;
  MC_PUSH(&peer->sends, s);
  MC_FAULT_POINT(offer_copying);
}

void mc_offers_move(struct mc_p2p *p, uint32_t rank) {
  for (struct mc_sending *s = p->peers[rank].offers.first, *next; s; s = next) {
    next = s->next;
    const enum mc_offer_state state = mc_offer_state_of(atomic_load(word_of(p, rank, s->slot)));
    if (state == MC_OFFER_TAKEN) taken(p, s, rank);
    else if (state == MC_OFFER_WANTED) send_copy(p, s, rank);
  }
}

/* The request is to end, and has not said so for long enough to a reader that lives: it may go on. */
static bool may_read_on(const struct mc_p2p *p, const struct mc_request *r) {
  return p->peers[r->peer].gone == MC_HERE && mc_now_ns() - r->ending_ns < STILL_NS;
}

bool mc_offer_withdraw(struct mc_p2p *p, struct mc_request *r) {
  struct mc_sending *s = r->sending;
  const uint32_t rank = (uint32_t)r->peer;
  struct mc_peer *peer = &p->peers[rank];
  _Atomic uint64_t *word = word_of(p, rank, s->slot);
  uint64_t seen = atomic_load(word);
  const uint64_t turn = seen >> MC_OFFER_BITS;
  for (;;) {
    const enum mc_offer_state state = mc_offer_state_of(seen);
    if (state == MC_OFFER_TAKEN) {
      taken(p, s, rank);
      return true;
    }
    if (state == MC_OFFER_READING && may_read_on(p, r)) return false;
    /* nobody takes a copy of who has gone, nor from who goes: where a receive has it, the slot is not used again */
    const bool open = state == MC_OFFER_OPEN;
    if (open || peer->gone != MC_HERE || p->closing || p->aborted) {
      if (!atomic_compare_exchange_strong(word, &seen, mc_offer_word(open ? turn + 1 : turn, MC_OFFER_FREE))) continue;
      MC_FAULT_POINT(offer_withdrawn);
      MC_REMOVE(&peer->offers, s);
      MC_REMOVE(&peer->sends, s);
      if (open) peer->slots &= ~((uint64_t)1 << s->slot);
      r->sending = NULL;
      free(s);
      return true;
    }
    if (state == MC_OFFER_READING && !atomic_compare_exchange_strong(word, &seen, mc_offer_word(turn, MC_OFFER_WANTED))) continue;
    send_copy(p, s, rank);
    return mc_ring_withdraw(p, r);
  }
}
