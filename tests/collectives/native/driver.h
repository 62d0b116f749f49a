/* Ranks as threads of one process, so that sanitizers see all sides of the core at once.
 * All ranks of a node share ONE mapping of its segment (see driver_mmap): the address is what a
 * sanitizer knows memory by. */
#ifndef DRIVER_H
#define DRIVER_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "muster_core.h"

#define RANKS 64u
#define WAIT_S 60.0

struct scene {
  uint32_t size, nodes;
  uint32_t node_of[RANKS], locals[RANKS];
  int segments[RANKS];                  /* by node */
  struct mc_address addresses[RANKS];   /* where ranks are told that others listen */
  struct mc_tuning tuning;
  double create_s;                      /* how long ranks wait for each other at first */
  uint64_t seed;
  uint32_t rounds;
};
struct rank {
  struct scene *scene;
  struct mc_comm *comm;
  uint32_t rank, size;
  uint8_t rank_status[RANKS];
  struct mc_failure failure; /* of the last call */
  uint64_t chance;
  int wrong;
  pthread_t thread;
};
typedef void act(struct rank *self);

typedef void tune(struct mc_tuning *tuning);

/* `nodes`: a letter for each rank ("aab"); `other`: what differs from a tuning of small pieces, or NULL. Ends
 * the process where the machine refuses something. */
void scene_open(struct scene *scene, const char *nodes, tune *other);
void scene_close(struct scene *scene);
/* A thread for each rank runs `what` between mc_create and mc_close. Returns how many were wrong. */
int scene_play(struct scene *scene, act *what);

int run(struct rank *self, uint32_t verb, uint32_t dtype, uint32_t op, uint32_t root, const void *in, void *out,
        uint64_t count, double timeout_s);
uint32_t draw(struct rank *self, uint32_t below); /* the same row of numbers on every rank */
/* Memory that all ranks see at one address, zeroed at first, to the process's end; all ask for the same size. */
#define SHARED 8u
void *shared_memory(uint32_t which, size_t bytes);
/* Registers `bytes` of each rank there. Returns this rank's, NULL: refused. */
uint8_t *region_of(struct rank *self, uint32_t which, size_t bytes, uint32_t *region);
#define CHECK(self, holds)                                                                                   \
  do {                                                                                                       \
    if (!(holds)) {                                                                                          \
      fprintf(stderr, "%s:%d: rank %u: not so: %s (code %d)\n", __FILE__, __LINE__, (self)->rank, #holds,     \
              (self)->failure.code);                                                                         \
      (self)->wrong++;                                                                                       \
      return;                                                                                                \
    }                                                                                                        \
  } while (0)

/* The plays, by name. */
act play_ops, play_small, play_direct, play_adopts, play_messages, play_messages_beside, play_timeout, play_mismatch,
    play_abort, play_abort_idle, play_leave, play_types, play_large, play_large_direct, play_legs, play_mix, play_offers,
    play_unreadable, play_withdraw, play_now, play_footprint;
tune tune_large, tune_f16, tune_bf16, tune_i8, tune_offers, tune_adopts, tune_default;
int play_wire(const char *nodes, bool messages); /* a proxy flips a byte: driver_wire.c */
int play_wire_harmed(const char *nodes);         /* or damages a frame as a whole */
int play_kernels(uint32_t rounds);               /* no ranks: driver_kernels.c */
int play_parts(uint32_t rounds);                 /* nor here: driver_parts.c */
#endif
