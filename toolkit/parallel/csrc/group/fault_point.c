/* Breaks this process at a point that the environment names; empty in a core that is not made for tests. */
#define _GNU_SOURCE
#include "group/fault_point.h"

#ifdef MC_FAULT_POINTS
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "group/comm.h"

static const char *const names[] = {
#define MC_FAULT_NAME(name) #name,
    MC_FAULT_LIST(MC_FAULT_NAME)
#undef MC_FAULT_NAME
};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int chosen = -1, number; /* the point, -1: none; the signal, or minus the microseconds */
static int left;                /* passings until it is raised; threads pass as well */

static void read_instruction(void) {
  const char *text = getenv("MC_FAULT");
  char name[64];
  int nth, what;
  if (!text || sscanf(text, "%63[^:]:%d:%d", name, &nth, &what) != 3 || nth < 1) return;
  for (int i = 0; i < MC_FAULTS; i++)
    if (strcmp(names[i], name) == 0) chosen = i, left = nth, number = what;
  if (chosen < 0) abort(); /* a test that breaks nothing must not pass */
}

static void note(const char *name) {
  const char *path = getenv("MC_FAULT_RECORD");
  char line[96];
  const int bytes = snprintf(line, sizeof line, "%s %llu\n", name, (unsigned long long)mc_now_ns());
  const int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (fd < 0) return;
  if (write(fd, line, (size_t)bytes) != bytes) abort();
  close(fd);
}

void mc_fault_pass(enum mc_fault_point point) {
  pthread_once(&once, read_instruction);
  if ((int)point != chosen) return;
  const int to_come = __atomic_sub_fetch(&left, 1, __ATOMIC_RELAXED);
  if (number < 0 && to_come <= 0) {
    const struct timespec pause = {.tv_sec = -number / 1000000, .tv_nsec = -number % 1000000 * 1000L};
    nanosleep(&pause, NULL);
  }
  if (number < 0 || to_come != 0) return;
  note(names[point]);
  /* This thread goes no further, whichever of them it is; what a handler takes is for the program's
   * own threads, since those of the core block it. */
  if (number == SIGKILL || number == SIGSTOP) raise(number);
  else kill(getpid(), number);
}
#endif
