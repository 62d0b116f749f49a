/* How a group fails: the first error is recorded once per node, sent to other nodes, and adopted by every rank. */
#define _GNU_SOURCE
#include <string.h>
#include "group/comm.h"
#include "group/fault_point.h"

/* The state of the node's error record: 0 while there is none, then which rank writes which of the slots: the number of the
 * try from 1, the local rank, and whether it is done. A rank that stands still as it writes (dead, or stopped) is
 * not waited for: the next try has a place of its own, so that no two ever write the same one (but the fifth). */
#define DONE 1u
#define WRITE_NS 200000000u
#define SLICE_NS 1000000u
#define PLACES (sizeof((struct mc_segment *)0)->errors / sizeof(struct mc_error_record))

static uint32_t next_try(uint32_t state, uint32_t local) { return ((state >> 16) + 1) << 16 | local << 1; }

static struct mc_error_record *place_of(const struct mc_comm *c, uint32_t state) {
  return &c->segment->errors[((state >> 16) - 1) % PLACES];
}

const struct mc_error_record *mc_error_record(const struct mc_comm *c) {
  uint32_t state = atomic_load_explicit(&c->segment->error_state, memory_order_acquire);
  return state & DONE ? place_of(c, state) : NULL;
}

static uint32_t marked(const struct mc_comm *c) {
  return c->size < MC_STATUS_RANKS ? c->size : MC_STATUS_RANKS;
}

/* Ranks that differ: each names one that called something else than itself, whichever of the two wrote the record. */
static void see_difference(struct mc_comm *c, const struct mc_error_record *record) {
  bool with_other = record->what.rank == (int)c->rank || memcmp(&c->desc, &record->what.other, sizeof c->desc) == 0;
  if (!with_other || record->what.reported_by < 0 || record->what.reported_by >= (int)c->size) return;
  c->error.rank = record->what.reported_by;
  c->error.other = record->what.mine;
  memset(c->error_status, 0, c->size);
  c->error_status[record->what.reported_by] = MC_DIFFERENT;
}

/* Adopts the node's error record as this rank's own, and sends it to other nodes as it was written, once. */
static int adopt_error(struct mc_comm *c, const struct mc_error_record *record) {
  struct mc_failure written = record->what;
  written.rank_status = marked(c) < c->size ? c->error_status : (uint8_t *)record->rank_status;
  written.waited_s = (double)(mc_now_ns() - c->began_ns) / 1e9;
  if (c->error.code == MC_OK) {
    c->error = written;
    c->error.mine = c->desc;
    /* A rank that gave up a later call may name this one, which is still in the call before: report that call, too. */
    if (record->what.code == MC_ETIMEOUT && record->what.mine.seq > c->desc.seq) c->error.other = record->what.mine;
    c->error.rank_status = c->error_status;
    memcpy(c->error_status, record->rank_status, marked(c));
    if (record->what.code == MC_EMISMATCH) see_difference(c, record);
  }
  if (c->net && !c->propagated) {
    c->propagated = true;
    MC_FAULT_POINT(error_adopted);
    c->transport.propagate(c, &written);
  }
  return c->error.code;
}

/* A try to write the error record, to be claimed by this rank: its state, or 0 once there is one. */
static uint32_t claim(struct mc_comm *c) {
  _Atomic uint32_t *state = &c->segment->error_state;
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

/* The node's error record: what is there already, else `what`. */
static const struct mc_error_record *write_record(struct mc_comm *c, const struct mc_failure *what, const uint8_t *rank_status) {
  for (uint32_t mine; (mine = claim(c)) != 0;) {
    MC_FAULT_POINT(error_claimed);
    struct mc_error_record *record = place_of(c, mine);
    *record = (struct mc_error_record){.what = *what};
    if (rank_status) memcpy(record->rank_status, rank_status, marked(c));
    MC_FAULT_POINT(error_filled);
    uint32_t seen = mine; /* another's, where this rank stood still meanwhile */
    if (!atomic_compare_exchange_strong(&c->segment->error_state, &seen, mine | DONE)) continue;
    MC_FAULT_POINT(error_written);
    mc_futex_wake(&c->segment->error_state);
    for (uint32_t local = 0; local < c->locals; local++) mc_futex_wake(&mc_block(c, local)->flag);
  }
  return mc_error_record(c);
}

int mc_fail(struct mc_comm *c, int code, int sys_errno, int rank, const uint8_t *rank_status, const struct mc_desc *other) {
  struct mc_failure what = {.code = code, .sys_errno = sys_errno, .rank = rank, .reported_by = (int)c->rank, .mine = c->desc};
  if (other) what.other = *other;
  uint8_t own[MC_STATUS_RANKS] = {0};
  if (!rank_status && rank >= 0 && (size_t)rank < MC_STATUS_RANKS) {
    own[rank] = code == MC_EMISMATCH ? MC_DIFFERENT : code == MC_EPEER ? MC_DEAD : MC_MISSING;
    rank_status = own;
  }
  return adopt_error(c, write_record(c, &what, rank_status));
}

int mc_fail_loss(struct mc_comm *c, const struct mc_failure *loss) {
  if (loss->reported_by >= 0) return adopt_error(c, write_record(c, loss, loss->rank_status));
  return mc_fail(c, loss->code, loss->sys_errno, loss->rank, loss->rank_status, &loss->other);
}

void mc_failure_tell(const struct mc_comm *c, struct mc_failure *failure, struct mc_failure what, const uint8_t *rank_status) {
  if (!failure) return;
  what.rank_status = failure->rank_status;
  *failure = what;
  if (what.rank_status && rank_status) memcpy(what.rank_status, rank_status, c->size);
  else if (what.rank_status) memset(what.rank_status, MC_HERE, c->size);
}

int mc_check(struct mc_comm *c) {
  if (c->error.code) return c->error.code;
  const struct mc_error_record *record = mc_error_record(c);
  if (record) return adopt_error(c, record);
  if (atomic_load(&c->aborted)) return mc_fail(c, MC_EABORT, 0, -1, NULL, NULL);
  return MC_OK;
}

void mc_abort_reported(struct mc_comm *c, uint32_t by) {
  struct mc_failure what = {.code = MC_EABORT, .rank = -1, .reported_by = (int)by};
  write_record(c, &what, NULL);
}

void mc_abort(struct mc_comm *c) {
  atomic_store(&c->aborted, 1);
  mc_abort_reported(c, c->rank);
  if (c->net) c->transport.abort(c);
}

/* MC_MISSING, or why this one will never come. */
static uint8_t status_of(struct mc_comm *c, uint32_t local) {
  struct mc_rank_block *block = mc_block(c, local);
  if (mc_local_alive(c, local)) return MC_MISSING;
  /* It may have come, and ended, after the caller looked for its flag. */
  if (mc_has_come(c, local)) return MC_MISSING;
  return atomic_load(&block->state) == 2 ? MC_LEFT : MC_DEAD;
}

/* The group fails with the ranks that are missing, or of them with those that will never come (none: it does not). */
static int fail_locals(struct mc_comm *c, int code, const uint8_t *missing) {
  uint8_t rank_status[MC_STATUS_RANKS] = {0};
  int first = -1;
  for (uint32_t local = 0; local < c->locals; local++) {
    uint32_t rank = mc_rank_of(c, local);
    uint8_t status = !missing[local] ? MC_HERE : code == MC_EPEER ? status_of(c, local) : MC_MISSING;
    if (!missing[local] || (code == MC_EPEER && status == MC_MISSING)) continue;
    if (rank < sizeof rank_status) rank_status[rank] = status;
    if (first < 0) first = (int)rank;
  }
  return first < 0 && code == MC_EPEER ? MC_OK : mc_fail(c, code, 0, first, rank_status, NULL);
}

/* A rank that is in this call, but waits for another node, will say which rank is really missing: the net
 * gives the other node's error record GRACE_NS to arrive, so here the wait is longer than that. */
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

int mc_look(struct mc_comm *c) {
  uint8_t missing[MC_LOCALS];
  for (uint32_t local = 0; local < c->locals; local++) missing[local] = !mc_has_come(c, local);
  int code = mc_check(c);
  if (!code) code = mc_check_signals(c);
  if (!code) code = fail_locals(c, MC_EPEER, missing);
  struct mc_failure loss;
  if (!code && c->net && c->transport.poll(c, missing, &loss)) code = mc_fail_loss(c, &loss);
  if (!code && mc_now_ns() >= deadline_of(c, missing)) code = fail_locals(c, MC_ETIMEOUT, missing);
  return code;
}
