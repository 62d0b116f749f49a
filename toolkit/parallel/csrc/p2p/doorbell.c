/* P2P's part of the segment, and the doorbells that wake ranks which sleep. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "p2p/state.h"

#define PAGE 4096u
#define ALL_RINGS (256u << 20)
#define LARGEST_RING (256u << 10)

static uint64_t pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static uint64_t ring_bytes_of(uint64_t locals) {
  uint64_t bytes = LARGEST_RING; /* of the size of a core's cache; more only costs memory */
  while (bytes > PAGE && bytes * locals * locals > ALL_RINGS) bytes /= 2;
  return bytes;
}

uint64_t mc_p2p_area_bytes(uint32_t local_ranks) {
  const uint64_t locals = local_ranks;
  if (locals < 2) return PAGE;
  return pages(locals * sizeof(struct mc_doorbell)) + pages(locals * locals * sizeof(struct mc_ring)) +
         locals * locals * ring_bytes_of(locals);
}

bool mc_area_map(struct mc_p2p *p) {
  const uint64_t locals = p->c->locals;
  uint8_t *at = locals > 1 ? (uint8_t *)p->c->segment + mc_slots_end(p->c->locals, &p->c->tuning) : NULL;
  p->area.own = at == NULL;
  if (p->area.own) {
    void *doorbell = NULL;
    if (posix_memalign(&doorbell, 64, sizeof(struct mc_doorbell)) != 0) return false;
    memset(doorbell, 0, sizeof(struct mc_doorbell));
    p->area.doorbells = doorbell;
    return true;
  }
  p->area.doorbells = (struct mc_doorbell *)(void *)at;
  p->area.rings = (struct mc_ring *)(void *)(at + pages(locals * sizeof(struct mc_doorbell)));
  p->area.bytes = (uint8_t *)p->area.rings + pages(locals * locals * sizeof(struct mc_ring));
  p->area.ring_bytes = ring_bytes_of(locals);
  return true;
}

void mc_area_unmap(struct mc_p2p *p) {
  if (p->area.own) free(p->area.doorbells);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *wait) {
  syscall(SYS_futex, word, FUTEX_WAIT, value, wait, NULL, 0); /* shared: other processes wake it */
}

static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0); }

void mc_doorbell_wake_thread(struct mc_doorbell *doorbell) {
  atomic_fetch_add(&doorbell->thread_seq, 1);
  futex_wake(&doorbell->thread_seq);
}

void mc_doorbell_wake(struct mc_doorbell *doorbell) {
  /* Sequentially consistent on both sides: either the sleeper sees the ring, or we see the sleeper. */
  atomic_fetch_add(&doorbell->wake_seq, 1);
  if (atomic_load(&doorbell->sleepers)) futex_wake(&doorbell->wake_seq);
  if (atomic_load(&doorbell->armed)) mc_doorbell_wake_thread(doorbell);
}

static void sleep_on(_Atomic uint32_t *word, uint32_t value, uint64_t wait_ns) {
  const struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000u), .tv_nsec = (long)(wait_ns % 1000000000u)};
  futex_wait(word, value, wait_ns ? &wait : NULL);
}

void mc_doorbell_sleep(struct mc_doorbell *doorbell, uint32_t wake_seq, uint64_t wait_ns) {
  atomic_fetch_add(&doorbell->sleepers, 1);
  if (atomic_load(&doorbell->wake_seq) == wake_seq) sleep_on(&doorbell->wake_seq, wake_seq, wait_ns ? wait_ns : 1);
  atomic_fetch_sub(&doorbell->sleepers, 1);
}

void mc_doorbell_sleep_thread(struct mc_doorbell *doorbell, uint32_t thread_seq, uint64_t wait_ns) {
  sleep_on(&doorbell->thread_seq, thread_seq, wait_ns);
}
