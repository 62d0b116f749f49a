/* Plays in which something goes wrong: every rank learns it, with the same first name. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "driver.h"

#define SHORT_S 2.0 /* healthy ranks must keep it too, with a sanitizer below them */
#define LOOK_US 1000u

/* What ranks and threads tell each other, relaxed: a sanitizer shall see no order that is not the core's. */
static _Atomic uint32_t ready, gave_up, aborted;

static void tell(_Atomic uint32_t *count) { atomic_fetch_add_explicit(count, 1, memory_order_relaxed); }

static bool wait_until(_Atomic uint32_t *count, uint32_t due) {
  for (double left_s = WAIT_S; left_s > 0; left_s -= LOOK_US / 1e6) {
    if (atomic_load_explicit(count, memory_order_relaxed) >= due) return true;
    usleep(LOOK_US);
  }
  return false;
}

static uint32_t last(const struct rank *self) { return self->size - 1; }

static int all_reduce(struct rank *self, uint64_t count, uint32_t dtype, double timeout_s) {
  static _Thread_local float data[8192];
  memset(data, 0, sizeof data);
  return run(self, MC_ALL_REDUCE, dtype, MC_SUM, 0, data, data, count, timeout_s);
}

/* The others begin together, for one that is late by SHORT_S is missed too; the last rank comes when they have
 * given up. */
void play_timeout(struct rank *self) {
  const uint32_t others = self->size - 1;
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  if (self->rank != last(self)) tell(&ready);
  CHECK(self, self->rank == last(self) ? wait_until(&gave_up, others) : wait_until(&ready, others));
  int code = all_reduce(self, 4096, MC_F32, SHORT_S);
  if (self->rank != last(self)) tell(&gave_up);
  CHECK(self, code == MC_ETIMEOUT);
  if (self->rank != last(self)) {
    CHECK(self, self->failure.rank == (int32_t)last(self));
    CHECK(self, self->rank_status[last(self)] == MC_MISSING);
    CHECK(self, self->failure.mine.seq == 2);
    bool told = self->failure.reported_by >= 0 && self->failure.reported_by != (int32_t)self->rank; /* by one that began earlier */
    CHECK(self, told || self->failure.waited_s >= SHORT_S);
  }
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_ETIMEOUT); /* at once, and no other reason */
}

void play_mismatch(struct rank *self) {
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  bool odd = self->rank == last(self);
  CHECK(self, all_reduce(self, odd ? 999 : 1000, MC_F32, WAIT_S) == MC_EMISMATCH);
  CHECK(self, self->failure.mine.count == (odd ? 999u : 1000u));
  if (self->size == 2) CHECK(self, self->failure.other.count == (odd ? 1000u : 999u));
}

/* A second thread of rank 0 aborts when rank 0 waits in its call; the last rank comes after that. */
struct abort_soon {
  struct mc_comm *comm;
  uint64_t sleeps;
};

static uint64_t sleeps(struct mc_comm *comm) {
  struct mc_stats stats;
  mc_stats_read(comm, &stats);
  return stats.sleeps;
}

static void *abort_soon(void *given) {
  const struct abort_soon *soon = given;
  for (double left_s = WAIT_S / 2; left_s > 0 && sleeps(soon->comm) == soon->sleeps; left_s -= LOOK_US / 1e6)
    usleep(LOOK_US);
  mc_abort(soon->comm);
  tell(&aborted);
  return NULL;
}

void play_abort(struct rank *self) {
  pthread_t thread;
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  struct abort_soon soon = {.comm = self->comm, .sleeps = sleeps(self->comm)};
  if (self->rank == 0) CHECK(self, pthread_create(&thread, NULL, abort_soon, &soon) == 0);
  if (self->rank == last(self)) CHECK(self, wait_until(&aborted, 1));
  int code = all_reduce(self, 2000, MC_F32, WAIT_S);
  if (self->rank == 0) pthread_join(thread, NULL);
  CHECK(self, code == MC_EABORT);
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_EABORT);
}

/* Rank 0 aborts in no call; the others are in one, or about to be. */
void play_abort_idle(struct rank *self) {
  const uint32_t others = self->size - 1;
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  if (self->rank == 0) {
    CHECK(self, wait_until(&ready, others));
    mc_abort(self->comm);
    CHECK(self, wait_until(&gave_up, others));
  } else {
    tell(&ready);
    CHECK(self, all_reduce(self, 2000, MC_F32, WAIT_S) == MC_EABORT);
    CHECK(self, self->failure.reported_by == 0);
    tell(&gave_up);
  }
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_EABORT);
}

/* The last rank says good-bye in the middle; the others are told who left. */
void play_leave(struct rank *self) {
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  if (self->rank == last(self)) return;
  CHECK(self, all_reduce(self, 2000, MC_F32, WAIT_S) == MC_EPEER);
  CHECK(self, self->failure.rank == (int32_t)last(self));
  CHECK(self, self->rank_status[last(self)] == MC_LEFT);
}
