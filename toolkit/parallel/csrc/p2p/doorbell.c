/* P2P's part of the segment, and the doorbells that wake ranks which sleep. */
#include "p2p/state.h"

#define ALL_RINGS (256u << 20)
#define LARGEST_RING (256u << 10)
#define LEAST_RING 4096u

/* A power of two. Small slots are a wish for little memory: a ring is a quarter of one at most. */
static uint64_t ring_bytes_of(uint64_t locals, const struct mc_tuning *tuning) {
  uint64_t bytes = LARGEST_RING; /* of the size of a core's cache; more only costs memory */
  while (bytes > LEAST_RING && (bytes * locals * locals > ALL_RINGS || bytes > tuning->slot_bytes / 4)) bytes /= 2;
  return bytes;
}

static uint64_t doorbells_bytes(uint64_t locals) { return mc_pages(locals * sizeof(struct mc_doorbell)); }
static uint64_t rings_bytes(uint64_t locals) { return mc_pages(locals * locals * sizeof(struct mc_ring)); }

uint64_t mc_p2p_area_bytes(uint32_t locals, const struct mc_tuning *tuning) {
  return doorbells_bytes(locals) + rings_bytes(locals) + (uint64_t)locals * locals * ring_bytes_of(locals, tuning);
}

void mc_area_map(struct mc_p2p *p) {
  const uint32_t locals = p->c->locals;
  uint8_t *at = (uint8_t *)p->c->segment + mc_slots_end(locals, &p->c->tuning);
  p->area.doorbells = (struct mc_doorbell *)(void *)at;
  p->area.rings = (struct mc_ring *)(void *)(at + doorbells_bytes(locals));
  p->area.bytes = at + doorbells_bytes(locals) + rings_bytes(locals);
  p->area.ring_bytes = ring_bytes_of(locals, &p->c->tuning);
}

void mc_doorbell_wake_thread(struct mc_doorbell *doorbell) {
  atomic_fetch_add(&doorbell->thread_seq, 1);
  mc_futex_wake(&doorbell->thread_seq);
}

void mc_doorbell_wake(struct mc_doorbell *doorbell) {
  /* Sequentially consistent on both sides: either the sleeper sees the ring, or we see the sleeper. */
  atomic_fetch_add(&doorbell->wake_seq, 1);
  if (atomic_load(&doorbell->sleepers)) mc_futex_wake(&doorbell->wake_seq);
  if (atomic_load(&doorbell->armed)) mc_doorbell_wake_thread(doorbell);
}

void mc_doorbell_sleep(struct mc_doorbell *doorbell, uint32_t wake_seq, uint64_t wait_ns) {
  atomic_fetch_add(&doorbell->sleepers, 1);
  if (atomic_load(&doorbell->wake_seq) == wake_seq) mc_futex_sleep(&doorbell->wake_seq, wake_seq, wait_ns ? wait_ns : 1);
  atomic_fetch_sub(&doorbell->sleepers, 1);
}
