/* The memory that the ranks of a node share, and how they know that the others are alive.
 *
 * Each rank holds a POSIX record lock on one byte of the segment's file. The kernel drops it when the
 * process ends, however it ends; another rank asks for it (F_GETLK). That needs no process id, so it
 * works between containers with process namespaces of their own, and a forked child does not hold it.
 * A process that closes another descriptor of the same file drops it, too. So of a rank that does not hold it
 * /proc has a second opinion, where both have the same process ids. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "group/comm.h"
#include "group/fault_point.h"
#include "group/hash.h"

#define MAGIC 0x6d633031u

static size_t head_bytes(uint32_t locals) {
  return mc_pages(sizeof(struct mc_segment) + locals * sizeof(struct mc_rank_block));
}

static size_t slots_bytes(uint32_t locals, const struct mc_tuning *tuning) {
  return mc_pages((size_t)locals * 4 * tuning->slot_bytes);
}

uint64_t mc_slots_end(uint32_t locals, const struct mc_tuning *tuning) {
  return head_bytes(locals) + slots_bytes(locals, tuning);
}

static struct flock byte_of(uint32_t local, short type) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)local, .l_len = 1};
}

static bool holds_lock(const struct mc_comm *c, uint32_t local) {
  struct flock lock = byte_of(local, F_WRLCK);
  return fcntl(c->segment_fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Ranks that are threads of one process (tests) cannot see each other's locks, so each rank says which process
 * it is. Its number alone would not do: containers with process namespaces of their own have the same ones. */
static uint64_t this_process(void) {
  static _Atomic uint64_t known;
  uint64_t seen = atomic_load(&known), pid = (uint32_t)getpid();
  while ((uint32_t)seen != pid) { /* the first time, and in a forked child */
    uint32_t salt;
    if (!mc_random(&salt, sizeof salt)) salt = (uint32_t)mc_now_ns();
    if (atomic_compare_exchange_strong(&known, &seen, (uint64_t)salt << 32 | pid)) return (uint64_t)salt << 32 | pid;
  }
  return seen;
}

/* Of a process: when it began, in the kernel's ticks since boot. 0: it has ended, or that cannot be read.
 * `stack`: where its stack begins, which is another place after an exec; 0: that is not for us to read. */
static uint64_t start_of(uint32_t pid, uint64_t *stack) {
  char path[32], text[1024];
  *stack = 0;
  snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = '\0';
  const char *after = strrchr(text, ')'); /* of the name, which may hold anything: state is field 3, start 22 */
  char state;
  uint64_t start;
  const char *format = " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64
                       " %*s %*s %*s %*s %*s %" SCNu64; /* fields 3, 22 and 28 */
  const int found = after ? sscanf(after + 1, format, &state, &start, stack) : 0;
  return found >= 2 && state != 'Z' && state != 'X' ? start : 0;
}

static uint64_t pid_namespace(void) {
  struct stat facts;
  return stat("/proc/self/ns/pid", &facts) ? 0 : (uint64_t)facts.st_ino;
}

static bool is_running(const struct mc_rank_block *block) {
  uint64_t stack;
  return block->started && block->pids && block->pids == pid_namespace() &&
         start_of((uint32_t)block->process, &stack) == block->started &&
         (!stack || !block->stack || stack == block->stack);
}

/* Of its own process a rank can see no death. */
bool mc_local_alive(const struct mc_comm *c, uint32_t local) {
  const struct mc_rank_block *block = mc_block(c, local);
  if (atomic_load(&block->state) == 2) return false;
  return block->process == mc_block(c, c->local)->process || holds_lock(c, local) || is_running(block);
}

static int map(struct mc_comm *c, uint64_t bytes) {
  const int fd = c->segment_fd;
  c->segment_bytes = bytes;
  struct stat facts;
  if (fd >= 0 && fstat(fd, &facts)) return errno;
  if (fd >= 0 && (size_t)facts.st_size < c->segment_bytes) return EINVAL;
  int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void *at = mmap(NULL, c->segment_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) return errno;
  c->segment = at;
  c->slots = (uint8_t *)at + head_bytes(c->locals);
  /* Advice only: where the kernel has no huge pages for shared memory it says no. */
  madvise(c->slots, slots_bytes(c->locals, &c->tuning), MADV_HUGEPAGE);
  return 0;
}

/* A late rank is slept for, not spun for. */
static int await_attached(struct mc_comm *c) {
  _Atomic uint32_t *attached = &c->segment->attached;
  for (uint32_t local = 0; local < c->locals;) {
    const uint32_t seen = atomic_load(attached);
    if (atomic_load(&mc_block(c, local)->state)) {
      local++;
      continue;
    }
    const uint64_t now = mc_now_ns();
    if (now >= c->deadline_ns) return ETIMEDOUT;
    const uint64_t left = c->deadline_ns - now;
    mc_futex_sleep(attached, seen, left < 50000000u ? left : 50000000u);
  }
  return 0;
}

int mc_segment_attach(struct mc_comm *c, uint64_t bytes) {
  int failed = map(c, bytes);
  if (failed) return failed;
  MC_FAULT_POINT(attach_mapped);
  struct flock lock = byte_of(c->local, F_WRLCK);
  if (c->segment_fd >= 0 && fcntl(c->segment_fd, F_SETLK, &lock)) return errno;
  MC_FAULT_POINT(attach_locked);
  struct mc_rank_block *mine = mc_block(c, c->local);
  mine->process = this_process();
  mine->started = start_of((uint32_t)mine->process, &mine->stack);
  mine->pids = pid_namespace();
  if (c->local == 0) {
    c->segment->magic = MAGIC;
    c->segment->locals = c->locals;
    c->segment->slot_bytes = c->tuning.slot_bytes;
  }
  atomic_store(&mine->state, 1);
  MC_FAULT_POINT(attach_announced);
  /* Only the last one wakes the others: woken for each, 256 ranks would change places some 30,000 times. */
  if (atomic_fetch_add(&c->segment->attached, 1) + 1 >= c->locals) mc_futex_wake(&c->segment->attached);
  failed = await_attached(c);
  if (failed) return failed;
  MC_FAULT_POINT(attach_complete);
  if (c->segment->magic != MAGIC || c->segment->locals != c->locals || c->segment->slot_bytes != c->tuning.slot_bytes)
    return EPROTO;
  return 0;
}

void mc_segment_detach(struct mc_comm *c) {
  bool mine = c->pid == (int)getpid(); /* a forked child only lets go */
  if (c->segment && mine) {
    atomic_store(&mc_block(c, c->local)->state, 2);
    MC_FAULT_POINT(detach_left);
    mc_futex_wake(&mc_block(c, c->local)->flag);
  }
  if (c->segment) munmap(c->segment, c->segment_bytes);
  if (c->segment_fd >= 0) close(c->segment_fd);
}
