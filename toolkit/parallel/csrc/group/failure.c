/* How a group ends: the first failure is written once per node, told to other nodes, and every rank takes it. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include "group/comm.h"
#include "group/fault_point.h"

/* The state of the node's verdict: 0 while there is none, then who writes which of the places: the number of the
 * try from 1, the local rank, and whether it is done. A rank that stands still as it writes (dead, or stopped) is
 * not waited for: the next try has a place of its own, so that no two ever write the same one (but the fifth). */
#define DONE 1u
#define WRITE_NS 200000000u
#define SLICE_NS 1000000u
#define PLACES (sizeof((struct mc_segment *)0)->verdicts / sizeof(struct mc_verdict))

static uint32_t next_try(uint32_t state, uint32_t local) { return ((state >> 16) + 1) << 16 | local << 1; }

static struct mc_verdict *place_of(const struct mc_comm *c, uint32_t state) {
  return &c->segment->verdicts[((state >> 16) - 1) % PLACES];
}

const struct mc_verdict *mc_verdict(const struct mc_comm *c) {
  uint32_t state = atomic_load_explicit(&c->segment->verdict_state, memory_order_acquire);
  return state & DONE ? place_of(c, state) : NULL;
}

static void wake_all(struct mc_comm *c) {
  for (uint32_t local = 0; local < c->locals; local++) mc_futex_wake(&mc_block(c, local)->flag);
}

static uint32_t marked(const struct mc_comm *c) {
  return c->size < MC_MARKED ? c->size : MC_MARKED;
}

static bool same_call(const struct mc_desc *a, const struct mc_desc *b) {
  return a->seq == b->seq && a->count == b->count && a->verb == b->verb && a->dtype == b->dtype && a->op == b->op &&
         a->root == b->root;
}

/* Ranks that differ: each names one that called something else than itself, whoever of the two wrote the verdict. */
static void see_difference(struct mc_comm *c, const struct mc_verdict *verdict) {
  bool with_other = verdict->rank == (int)c->rank || same_call(&c->desc, &verdict->other);
  if (!with_other || verdict->told_by < 0 || verdict->told_by >= (int)c->size) return;
  c->broken.rank = verdict->told_by;
  c->broken.other = verdict->mine;
  memset(c->broken_marks, 0, c->size);
  c->broken_marks[verdict->told_by] = MC_DIFFERENT;
}

/* Makes the verdict of the node this rank's own, and tells it on as it was written, once. */
static int take(struct mc_comm *c, const struct mc_verdict *verdict) {
  struct mc_failure written = {
      .code = verdict->code, .sys_errno = verdict->sys_errno, .rank = verdict->rank, .told_by = verdict->told_by,
      .mine = verdict->mine, .other = verdict->other,
      .marks = marked(c) < c->size ? c->broken_marks : (uint8_t *)verdict->marks,
      .waited_s = (double)(mc_now_ns() - c->began_ns) / 1e9};
  if (c->broken.code == MC_OK) {
    c->broken = written;
    c->broken.mine = c->desc;
    /* Who gave up a later call may accuse this rank, which is still in the one before: then that call is told, too. */
    if (verdict->code == MC_ETIMEOUT && verdict->mine.seq > c->desc.seq) c->broken.other = verdict->mine;
    c->broken.marks = c->broken_marks;
    memcpy(c->broken_marks, verdict->marks, marked(c));
    if (verdict->code == MC_EMISMATCH) see_difference(c, verdict);
  }
  if (c->net && !c->told) {
    c->told = true;
    MC_FAULT_POINT(verdict_taken);
    c->transport.propagate(c, &written);
  }
  return c->broken.code;
}

/* A try to write the verdict, to be claimed by this rank: its state, or 0 once there is one. */
static uint32_t claim(struct mc_comm *c) {
  _Atomic uint32_t *state = &c->segment->verdict_state;
  uint32_t seen = 0, mine = next_try(seen, c->local);
  if (atomic_compare_exchange_strong(state, &seen, mine)) return mine;
  uint64_t began = mc_now_ns();
  while (!(seen & DONE)) {
    uint32_t writer = seen;
    mine = next_try(writer, c->local);
    if (mc_now_ns() - began > WRITE_NS && atomic_compare_exchange_strong(state, &seen, mine)) return mine;
    mc_futex_sleep(state, writer, SLICE_NS);
    seen = atomic_load_explicit(state, memory_order_acquire);
    if (seen != writer) began = mc_now_ns();
  }
  return 0;
}

/* The node's verdict: what is there already, else `what`. */
static const struct mc_verdict *write_down(struct mc_comm *c, const struct mc_failure *what, const uint8_t *marks) {
  for (uint32_t mine; (mine = claim(c)) != 0;) {
    MC_FAULT_POINT(verdict_claimed);
    struct mc_verdict *verdict = place_of(c, mine);
    *verdict = (struct mc_verdict){.code = what->code, .sys_errno = what->sys_errno, .rank = what->rank,
                                   .told_by = what->told_by, .mine = what->mine, .other = what->other};
    if (marks) memcpy(verdict->marks, marks, marked(c));
    MC_FAULT_POINT(verdict_filled);
    uint32_t seen = mine; /* another's, where this rank stood still meanwhile */
    if (!atomic_compare_exchange_strong(&c->segment->verdict_state, &seen, mine | DONE)) continue;
    MC_FAULT_POINT(verdict_written);
    mc_futex_wake(&c->segment->verdict_state);
    wake_all(c);
  }
  return mc_verdict(c);
}

int mc_fail(struct mc_comm *c, int code, int sys_errno, int rank, const uint8_t *marks, const struct mc_desc *other) {
  struct mc_failure what = {.code = code, .sys_errno = sys_errno, .rank = rank, .told_by = (int)c->rank, .mine = c->desc};
  if (other) what.other = *other;
  uint8_t own[MC_MARKED] = {0};
  if (!marks && rank >= 0 && (size_t)rank < MC_MARKED) {
    own[rank] = code == MC_EMISMATCH ? MC_DIFFERENT : code == MC_EPEER ? MC_DEAD : MC_MISSING;
    marks = own;
  }
  return take(c, write_down(c, &what, marks));
}

int mc_fail_told(struct mc_comm *c, const struct mc_failure *told) {
  return take(c, write_down(c, told, told->marks));
}

int mc_check(struct mc_comm *c) {
  if (c->broken.code) return c->broken.code;
  const struct mc_verdict *verdict = mc_verdict(c);
  if (verdict) return take(c, verdict);
  if (atomic_load(&c->aborted)) return mc_fail(c, MC_EABORT, 0, -1, NULL, NULL);
  return MC_OK;
}

void mc_abort(struct mc_comm *c) {
  struct mc_failure what = {.code = MC_EABORT, .rank = -1, .told_by = (int)c->rank};
  atomic_store(&c->aborted, 1);
  write_down(c, &what, NULL);
  if (c->net) c->transport.abort(c);
}

void mc_abort_told(struct mc_comm *c, uint32_t by) {
  struct mc_failure what = {.code = MC_EABORT, .rank = -1, .told_by = (int)by};
  write_down(c, &what, NULL);
}

static int look_at_peers(struct mc_comm *c, const uint8_t *missing) {
  uint8_t marks[MC_MARKED] = {0};
  int first = -1;
  for (uint32_t local = 0; local < c->locals; local++) {
    if (!missing[local] || mc_local_alive(c, local)) continue;
    struct mc_rank_block *block = mc_block(c, local);
    /* It may have come, and ended, after the caller looked for its flag. */
    if ((int32_t)(atomic_load(&block->flag) - c->round) >= 0) continue;
    uint32_t rank = mc_rank_of(c, local);
    if (rank < sizeof marks) marks[rank] = atomic_load(&block->state) == 2 ? MC_LEFT : MC_DEAD;
    if (first < 0) first = (int)rank;
  }
  return first < 0 ? MC_OK : mc_fail(c, MC_EPEER, 0, first, marks, NULL);
}

/* A rank that is in this call, but waits for another node, will say who is really missing: the net
 * gives the other node's verdict GRACE_NS to arrive, so here the wait is longer than that. */
#define GRACE_NS 2000000000u

static bool is_here(struct mc_comm *c, uint32_t local) {
  const struct mc_desc *desc = mc_block(c, local)->desc;
  return __atomic_load_n(&desc[0].seq, __ATOMIC_RELAXED) == c->seq || __atomic_load_n(&desc[1].seq, __ATOMIC_RELAXED) == c->seq;
}

static uint64_t deadline_of(struct mc_comm *c, const uint8_t *missing) {
  if (c->nodes == 1) return c->deadline_ns;
  for (uint32_t local = 0; local < c->locals; local++)
    if (missing[local] && !is_here(c, local)) return c->deadline_ns;
  return c->deadline_ns + GRACE_NS;
}

static int too_late(struct mc_comm *c, const uint8_t *missing) {
  uint8_t marks[MC_MARKED] = {0};
  int first = -1;
  for (uint32_t local = 0; local < c->locals; local++) {
    uint32_t rank = mc_rank_of(c, local);
    if (!missing[local]) continue;
    if (rank < sizeof marks) marks[rank] = MC_MISSING;
    if (first < 0) first = (int)rank;
  }
  return mc_fail(c, MC_ETIMEOUT, 0, first, marks, NULL);
}

int mc_look(struct mc_comm *c, const uint8_t *missing) {
  int code = mc_check(c);
  if (!code) code = mc_attended(c);
  if (!code && missing) code = look_at_peers(c, missing);
  if (!code && c->net) code = c->transport.poll(c, missing);
  if (!code && missing && mc_now_ns() >= deadline_of(c, missing)) code = too_late(c, missing);
  return code;
}
