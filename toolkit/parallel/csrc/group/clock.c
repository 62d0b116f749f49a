#define _GNU_SOURCE
#include <time.h>
#include "group/comm.h"

uint64_t mc_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
