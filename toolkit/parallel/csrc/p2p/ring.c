/* Messages within the node: one ring of bytes per ordered pair. A message is a header of 16 bytes and its
 * payload, padded to 16, written and read in pieces as there is room: it may be longer than the ring. */
#include <stdlib.h>
#include <string.h>
#include "p2p/state.h"
#include "group/fault_point.h"

struct head { uint64_t bytes; uint32_t tag, magic; };
#define HEAD_MAGIC 0x6d637032u
#define OFFER_MAGIC 0x6d637033u /* a struct mc_offer comes instead of the bytes */
#define COPY_MAGIC 0x6d637034u  /* what was offered after all; the tag is its slot */
#define PIECE (64u << 10) /* published at once, so that the reader copies while the writer does */

static uint64_t padded(uint64_t bytes) { return (bytes + 15) & ~(uint64_t)15; }

struct mc_ring *mc_ring_of(const struct mc_p2p *p, uint32_t reader, uint32_t writer) {
  return &p->area.rings[(uint64_t)reader * p->c->locals + writer];
}

static uint8_t *bytes_of(const struct mc_p2p *p, const struct mc_ring *ring) {
  return p->area.bytes + (uint64_t)(ring - p->area.rings) * p->area.ring_bytes;
}

static void copy_in(uint8_t *ring, uint64_t size, uint64_t at, const uint8_t *data, uint64_t bytes) {
  const uint64_t place = at & (size - 1), first = bytes < size - place ? bytes : size - place;
  memcpy(ring + place, data, first);
  if (bytes > first) memcpy(ring, data + first, bytes - first);
}

static void copy_out(const uint8_t *ring, uint64_t size, uint64_t at, uint8_t *data, uint64_t bytes) {
  const uint64_t place = at & (size - 1), first = bytes < size - place ? bytes : size - place;
  memcpy(data, ring + place, first);
  if (bytes > first) memcpy(data + first, ring, bytes - first);
}

static bool push_offer(struct mc_p2p *p, uint32_t rank, struct mc_sending *s, struct mc_ring *ring, uint8_t *bytes) {
  const uint64_t size = p->area.ring_bytes, tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  const struct head head = {s->bytes, s->tag, OFFER_MAGIC};
  const struct mc_offer offer = mc_offer_of(p, s, rank);
  if (size - (tail - atomic_load(&ring->head)) < sizeof head + sizeof offer) return false;
  copy_in(bytes, size, tail, (const uint8_t *)&head, sizeof head);
  copy_in(bytes, size, tail + sizeof head, (const uint8_t *)&offer, sizeof offer);
  s->begun = true;
  MC_FAULT_POINT(offer_written);
  atomic_store_explicit(&ring->tail, tail + sizeof head + sizeof offer, memory_order_release);
  return true;
}

/* Moves as much of one message as there is room for. */
static bool push_one(struct mc_sending *s, struct mc_ring *ring, uint8_t *bytes, uint64_t size) {
  uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  uint64_t room = size - (tail - atomic_load(&ring->head)); /* seq_cst: see `writer_blocked` */
  if (!s->begun) {
    if (room < sizeof(struct head)) return false;
    const bool copied = s->way == MC_COPIED;
    const struct head head = {s->bytes, copied ? s->slot : s->tag, copied ? COPY_MAGIC : HEAD_MAGIC};
    copy_in(bytes, size, tail, (const uint8_t *)&head, sizeof head);
    tail += sizeof head, room -= sizeof head, s->begun = true;
    MC_FAULT_POINT(ring_head_written);
  }
  while (s->moved < s->bytes && room) {
    uint64_t part = s->bytes - s->moved;
    if (part > room) part = room; /* a multiple of 16, as all else */
    if (part > PIECE) part = PIECE;
    copy_in(bytes, size, tail, s->data + s->moved, part);
    s->moved += part, tail += padded(part), room -= padded(part);
    atomic_store_explicit(&ring->tail, tail, memory_order_release);
    MC_FAULT_POINT(ring_piece_written);
  }
  atomic_store_explicit(&ring->tail, tail, memory_order_release);
  return s->moved == s->bytes;
}

static void forget(struct mc_p2p *p, struct mc_sending *s) {
  if (s->owned) p->owed--;
  free(s->owned);
  free(s);
}

static bool push_all(struct mc_p2p *p, uint32_t rank, struct mc_ring *ring, uint8_t *bytes) {
  struct mc_peer *peer = &p->peers[rank];
  while (peer->sends.first) {
    struct mc_sending *s = peer->sends.first;
    const bool offered = s->way == MC_OFFERED;
    if (!(offered ? push_offer(p, rank, s, ring, bytes) : push_one(s, ring, bytes, p->area.ring_bytes))) return false;
    MC_POP(&peer->sends);
    if (offered) {
      MC_PUSH(&peer->offers, s);
      continue;
    }
    if (s->way == MC_COPIED) mc_offer_end(p, s, rank);
    if (s->request) {
      s->request->sending = NULL;
      mc_request_end(p, s->request, MC_OK, 0);
    }
    forget(p, s);
  }
  return true;
}

static void push(struct mc_p2p *p, uint32_t rank) {
  const uint32_t local = p->c->local_of[rank], self = p->c->local;
  struct mc_ring *ring = mc_ring_of(p, local, self);
  uint8_t *bytes = bytes_of(p, ring);
  const uint64_t before = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  if (!push_all(p, rank, ring, bytes)) {
    /* The flag first, then a second look: the reader frees room, then looks at the flag. */
    atomic_store(&ring->writer_blocked, 1);
    MC_FAULT_POINT(ring_writer_blocked);
    if (push_all(p, rank, ring, bytes)) atomic_store(&ring->writer_blocked, 0);
  }
  if (atomic_load_explicit(&ring->tail, memory_order_relaxed) == before) return;
  MC_FAULT_POINT(ring_filled);
  struct mc_doorbell *doorbell = &p->area.doorbells[local];
  atomic_fetch_or(&doorbell->pending_mask[self / 64], (uint64_t)1 << (self % 64));
  MC_FAULT_POINT(ring_noted);
  mc_doorbell_wake(doorbell);
}

int mc_ring_send(struct mc_p2p *p, struct mc_request *r) {
  struct mc_peer *peer = &p->peers[r->peer];
  struct mc_sending *s = calloc(1, sizeof *s);
  if (!s) return MC_EMEM;
  s->data = r->data, s->bytes = r->bytes, s->tag = r->tag, s->request = r;
  r->sending = s;
  mc_offer_make(p, s, (uint32_t)r->peer);
  MC_PUSH(&peer->sends, s);
  push(p, (uint32_t)r->peer);
  return MC_OK;
}

/* Of a message that begins; false: it, or the rest of it, stays where it is. */
static bool begin_one(struct mc_p2p *p, uint32_t rank, struct mc_ring *ring, const uint8_t *bytes) {
  struct mc_peer *peer = &p->peers[rank];
  const uint64_t size = p->area.ring_bytes, head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  struct head header;
  struct mc_offer offer;
  if (atomic_load_explicit(&ring->tail, memory_order_acquire) - head < sizeof header) return false;
  copy_out(bytes, size, head, (uint8_t *)&header, sizeof header);
  if (header.magic == OFFER_MAGIC) {
    copy_out(bytes, size, head + sizeof header, (uint8_t *)&offer, sizeof offer);
    peer->held = !mc_message_offered(p, rank, header.tag, header.bytes, &offer);
    if (peer->held) return false;
    atomic_store(&ring->head, head + sizeof header + sizeof offer);
    MC_FAULT_POINT(offer_arrived);
    return true;
  }
  peer->current = header.magic == COPY_MAGIC ? mc_take_copy(p, rank, header.tag, header.bytes) : mc_message_arrives(p, rank, header.tag, header.bytes, false);
  peer->held = !peer->current;
  if (peer->held) return false;
  atomic_store(&ring->head, head + sizeof header);
  MC_FAULT_POINT(ring_head_read);
  return true;
}

/* One message's bytes that are there; false: nothing more can be done with this ring now. */
static bool pull_one(struct mc_p2p *p, uint32_t rank, struct mc_ring *ring, const uint8_t *bytes) {
  struct mc_peer *peer = &p->peers[rank];
  const uint64_t size = p->area.ring_bytes;
  if (!peer->current && !begin_one(p, rank, ring, bytes)) return false;
  if (!peer->current) return true; /* an offer: the next one */
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  uint64_t here = atomic_load_explicit(&ring->tail, memory_order_acquire) - head;
  struct mc_message *m = peer->current;
  while (m->got < m->bytes && here) {
    uint64_t part = m->bytes - m->got;
    if (part > here) part = here;
    if (part > PIECE) part = PIECE;
    if (m->to) copy_out(bytes, size, head, m->to + m->got, part);
    m->got += part, head += padded(part), here -= padded(part);
    atomic_store(&ring->head, head);
    MC_FAULT_POINT(ring_piece_read);
  }
  if (m->got < m->bytes) return false;
  peer->current = NULL;
  mc_message_whole(p, m);
  return true;
}

void mc_ring_pull(struct mc_p2p *p, uint32_t local) {
  const struct mc_comm *c = p->c;
  const uint32_t rank = mc_rank_of(c, local);
  struct mc_ring *ring = mc_ring_of(p, c->local, local);
  const uint8_t *bytes = bytes_of(p, ring);
  while (pull_one(p, rank, ring, bytes)) {}
  if (atomic_load(&ring->writer_blocked) && atomic_exchange(&ring->writer_blocked, 0)) mc_doorbell_wake(&p->area.doorbells[local]);
}

void mc_rings_move(struct mc_p2p *p) {
  const struct mc_comm *c = p->c;
  struct mc_doorbell *doorbell = mc_own_doorbell(p);
  for (uint32_t i = 0; i < (c->locals + 63) / 64; i++) {
    if (!atomic_load(&doorbell->pending_mask[i])) continue; /* seq_cst: not before `armed`, see p2p/progress.c */
    uint64_t pending_mask = atomic_exchange(&doorbell->pending_mask[i], 0);
    while (pending_mask) {
      const uint32_t local = i * 64 + (uint32_t)__builtin_ctzll(pending_mask);
      pending_mask &= pending_mask - 1;
      mc_ring_pull(p, local);
    }
  }
  for (uint32_t local = 0; local < c->locals; local++) {
    const uint32_t rank = mc_rank_of(c, local);
    if (p->peers[rank].offers.first) mc_offers_move(p, rank);
    if (p->peers[rank].sends.first) push(p, rank);
  }
}

/* The request ends, its memory is the caller's again. What has begun must go on: the reader counts on it. */
bool mc_ring_withdraw(struct mc_p2p *p, struct mc_request *r) {
  struct mc_sending *s = r->sending;
  struct mc_peer *peer = &p->peers[r->peer];
  if (s->way == MC_OFFERED) return mc_offer_withdraw(p, r);
  r->sending = NULL;
  if ((s->begun || s->way == MC_COPIED) && peer->gone == MC_HERE) {
    const uint64_t left = s->bytes - s->moved;
    s->owned = malloc(left ? left : 1);
    s->request = NULL;
    if (s->owned) {
      p->owed++;
      if (left) memcpy(s->owned, s->data + s->moved, left);
      s->data = s->owned - s->moved;
      return true;
    }
    peer->gone = MC_LEFT, peer->code = MC_EMEM, peer->why = 0; /* no memory: this way is closed from now on */
  }
  MC_REMOVE(&peer->sends, s);
  forget(p, s);
  return true;
}

void mc_ring_forget(struct mc_p2p *p, struct mc_peer *peer) {
  while (peer->sends.first) {
    struct mc_sending *s = peer->sends.first;
    MC_POP(&peer->sends);
    forget(p, s);
  }
}
