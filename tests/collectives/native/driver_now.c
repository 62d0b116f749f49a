/* A thread beside each rank's calls reads which one it is in, as an agent does: what it reads is of one call. */
#include <sched.h>
#include <stdatomic.h>
#include "driver.h"

#define COUNTS 97u

struct reader {
  struct rank *rank;
  _Atomic bool stop;
  uint32_t found, wrong;
};

static uint64_t count_of(uint64_t seq) { return 1 + seq % COUNTS; }

static void *read_on(void *of) {
  struct reader *reader = of;
  struct rank *self = reader->rank;
  uint64_t last = 0;
  while (!atomic_load(&reader->stop)) {
    struct mc_now now;
    uint8_t absent[RANKS];
    if (!mc_now_read(self->comm, &now, absent)) {
      sched_yield();
      continue;
    }
    reader->found++;
    bool is_whole = now.what.seq >= last && now.what.verb == MC_ALL_REDUCE && now.what.dtype == MC_F32 &&
                    now.what.count == count_of(now.what.seq) && now.running <= 1 && now.since_s > 0;
    for (uint32_t rank = 0; rank < self->size; rank++)
      is_whole = is_whole && absent[rank] <= (now.running && rank != self->rank);
    reader->wrong += !is_whole;
    last = now.what.seq;
  }
  return NULL;
}

static void calls(struct rank *self) {
  float in[COUNTS], out[COUNTS];
  for (uint32_t i = 0; i < COUNTS; i++) in[i] = (float)self->rank;
  for (uint32_t i = 1; i <= self->scene->rounds; i++)
    CHECK(self, run(self, MC_ALL_REDUCE, MC_F32, MC_SUM, 0, in, out, count_of(i), WAIT_S) == MC_OK);
}

void play_now(struct rank *self) {
  struct reader reader = {.rank = self};
  pthread_t thread;
  CHECK(self, pthread_create(&thread, NULL, read_on, &reader) == 0);
  calls(self);
  atomic_store(&reader.stop, true);
  pthread_join(thread, NULL);
  CHECK(self, reader.found > 0 && !reader.wrong);
}
