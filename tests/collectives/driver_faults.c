/* Plays in which something goes wrong: every rank learns it, with the same first name. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>
#include "driver.h"

#define SHORT_S 0.5

static uint32_t last(const struct rank *self) { return self->size - 1; }

static int all_reduce(struct rank *self, uint64_t count, uint32_t dtype, double timeout_s) {
  static _Thread_local float data[8192];
  memset(data, 0, sizeof data);
  return run(self, MC_ALL_REDUCE, dtype, MC_SUM, 0, data, data, count, timeout_s);
}

/* The last rank comes when the others have given up: between nodes they ask once more before they do. */
void play_timeout(struct rank *self) {
  unsigned late_us = self->scene->nodes > 1 ? 5000000 : 1500000;
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  if (self->rank == last(self)) usleep(late_us);
  int code = all_reduce(self, 4096, MC_F32, SHORT_S);
  CHECK(self, code == MC_ETIMEOUT);
  if (self->rank != last(self)) {
    CHECK(self, self->failure.rank == (int32_t)last(self));
    CHECK(self, self->marks[last(self)] == MC_MISSING);
    CHECK(self, self->failure.mine.seq == 2);
    bool told = self->failure.told_by >= 0 && self->failure.told_by != (int32_t)self->rank; /* by one that began earlier */
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

/* A second thread of rank 0 aborts while all but the last wait. */
static void *abort_soon(void *given) {
  struct rank *self = given;
  usleep(200000);
  mc_abort(self->comm);
  return NULL;
}

void play_abort(struct rank *self) {
  pthread_t thread;
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  if (self->rank == 0) CHECK(self, pthread_create(&thread, NULL, abort_soon, self) == 0);
  if (self->rank == last(self)) usleep(500000);
  int code = all_reduce(self, 2000, MC_F32, WAIT_S);
  if (self->rank == 0) pthread_join(thread, NULL);
  CHECK(self, code == MC_EABORT);
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_EABORT);
}

/* The last rank says good-bye in the middle; the others are told who left. */
void play_leave(struct rank *self) {
  CHECK(self, all_reduce(self, 8, MC_F32, WAIT_S) == MC_OK);
  if (self->rank == last(self)) return;
  CHECK(self, all_reduce(self, 2000, MC_F32, WAIT_S) == MC_EPEER);
  CHECK(self, self->failure.rank == (int32_t)last(self));
  CHECK(self, self->marks[last(self)] == MC_LEFT);
}
