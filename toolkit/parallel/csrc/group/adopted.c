/* Pages that are replaced by shared ones, and made private again. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "group/adopted.h"

#define CHILD_MS 10000 /* so long a fork waits for the child's copies */

struct piece { uint8_t *at; size_t bytes; };
static struct {
  pthread_mutex_t lock;
  struct mc_adopted *first;
  struct piece *pieces; /* of a fork that is under way */
  size_t count;
  int done[2];          /* a pipe: the child has its copies */
  FILE *maps;           /* of this process, open while pages are shared: a fork needs it, whether or not there are descriptors then */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = {-1, -1}};

static void close_maps(void) {
  if (process.maps) fclose(process.maps);
  process.maps = NULL;
}

/* What still shows the pages of `one`, or of all (NULL). False: perhaps not all of it could be found. */
static bool find_pieces(const struct mc_adopted *one) {
  FILE *maps = process.maps;
  char *line = NULL;
  size_t room = 0;
  bool all = maps != NULL;
  process.pieces = NULL, process.count = 0;
  if (maps) rewind(maps);
  while (maps && getline(&line, &room, maps) > 0) {
    unsigned long long from, to, offset, inode;
    unsigned major_of, minor_of;
    if (sscanf(line, "%llx-%llx %*s %llx %x:%x %llu", &from, &to, &offset, &major_of, &minor_of, &inode) != 6) continue;
    for (const struct mc_adopted *a = one ? one : process.first; a; a = one ? NULL : a->next) {
      const uintptr_t begin = (uintptr_t)a->begin;
      if (inode != a->file.inode || makedev(major_of, minor_of) != a->file.device) continue;
      if (from < begin || to > begin + a->whole || offset != from - begin) continue; /* the alias */
      struct piece *more = realloc(process.pieces, (process.count + 1) * sizeof *more);
      all = all && more;
      if (!more) continue;
      process.pieces = more;
      process.pieces[process.count++] = (struct piece){(uint8_t *)(uintptr_t)from, to - from};
    }
  }
  free(line);
  return all && !ferror(maps);
}

static void forget_pieces(void) {
  free(process.pieces);
  process.pieces = NULL, process.count = 0;
}

static bool make_private(struct piece p) {
  void *copy = mmap(NULL, p.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  memcpy(copy, p.at, p.bytes);
  if (mremap(copy, p.bytes, p.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, p.at) != MAP_FAILED) return true;
  munmap(copy, p.bytes);
  return false;
}

/* Pages at an address of their own: a child of a fork has no part in them. */
static void *map_apart(int fd, size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return NULL;
  madvise(at, bytes, MADV_HUGEPAGE);
  madvise(at, bytes, MADV_DONTFORK);
  return at;
}

/* A child of a fork has memory of its own, with the content of this moment. It copies what is shared, and its parent's thread
 * that forks waits for it, or it would copy what comes later. */
static void before_fork(void) {
  pthread_mutex_lock(&process.lock);
  if (process.first) find_pieces(NULL);
  if (process.count && pipe2(process.done, O_CLOEXEC) != 0) process.done[0] = process.done[1] = -1;
}

static void close_pipe(void) {
  for (int end = 0; end < 2; end++)
    if (process.done[end] >= 0) close(process.done[end]);
  process.done[0] = process.done[1] = -1;
}

static void in_parent(void) {
  if (process.done[1] >= 0) {
    close(process.done[1]);
    process.done[1] = -1;
    struct pollfd wait = {.fd = process.done[0], .events = POLLIN};
    const uint64_t until_ns = mc_now_ns() + CHILD_MS * UINT64_C(1000000);
    for (uint64_t now = mc_now_ns(); now < until_ns; now = mc_now_ns())
      if (poll(&wait, 1, (int)((until_ns - now) / 1000000u) + 1) >= 0 || errno != EINTR) break;
  }
  close_pipe();
  forget_pieces();
  pthread_mutex_unlock(&process.lock);
}

/* The program may have closed descriptors that it did not open, and have another file under the number. */
static bool is_open(const struct mc_file *file) {
  struct stat facts;
  return fstat((int)file->fd, &facts) == 0 && facts.st_ino == file->inode && facts.st_dev == file->device;
}

static void in_child(void) {
  for (size_t i = 0; i < process.count; i++) /* better no memory than its parent's */
    if (!make_private(process.pieces[i])) munmap(process.pieces[i].at, process.pieces[i].bytes);
  for (struct mc_adopted *a = process.first; a; a = a->next) {
    if (is_open(&a->file)) close((int)a->file.fd);
    a->alias = NULL, a->file.fd = 0, a->in_place = false;
  }
  process.first = NULL;
  close_maps(); /* they are the parent's */
  close_pipe();
  forget_pieces();
  pthread_mutex_init(&process.lock, NULL);
}

static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

int mc_pages_copy(struct mc_adopted *a) {
  struct stat facts;
  int fd = (int)syscall(SYS_memfd_create, "muster-adopted", 1u /* MFD_CLOEXEC */);
  if (fd == 0) fd = fcntl(fd, F_DUPFD_CLOEXEC, 1), close(0); /* 0 says that there is none */
  if (fd < 0) return errno;
  int error = posix_fallocate(fd, 0, (off_t)a->whole);
  if (!error && fstat(fd, &facts) != 0) error = errno;
  void *alias = error ? NULL : map_apart(fd, a->whole);
  if (!error && !alias) error = errno;
  if (error) return close(fd), error;
  memcpy(alias, a->begin, a->whole);
  a->file = (struct mc_file){(uint64_t)getpid(), (uint64_t)fd, facts.st_dev, facts.st_ino, a->whole};
  a->alias = alias;
  return 0;
}

bool mc_pages_replace(struct mc_adopted *a) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  pthread_mutex_lock(&process.lock);
  bool free_of_others = true; /* the middle of what another group, or a larger piece, shows must stay what it is */
  for (const struct mc_adopted *o = process.first; o; o = o->next)
    free_of_others = free_of_others && (o->begin + o->whole <= a->begin || a->begin + a->whole <= o->begin);
  if (!process.maps) process.maps = fopen("/proc/self/maps", "re");
  a->in_place = free_of_others && process.maps &&
                mmap(a->begin, a->whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)a->file.fd, 0) != MAP_FAILED;
  if (!a->in_place && !process.first) close_maps();
  if (a->in_place) {
    madvise(a->begin, a->whole, MADV_HUGEPAGE);
    a->next = process.first;
    process.first = a;
  }
  pthread_mutex_unlock(&process.lock);
  return a->in_place;
}

void *mc_pages_map(const struct mc_file *file) {
  char path[64];
  struct stat facts;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)file->process, (int)file->fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  const bool is_it = fstat(fd, &facts) == 0 && facts.st_ino == file->inode && facts.st_dev == file->device &&
                     (uint64_t)facts.st_size >= file->bytes;
  void *at = is_it ? map_apart(fd, file->bytes) : NULL;
  close(fd);
  return at;
}

/* What is written by one name must be read by the other. */
static bool is_there(const struct mc_adopted *a, const uint8_t *at) {
  uint8_t *alias = a->alias + (at - a->begin), was = __atomic_load_n(alias, __ATOMIC_RELAXED);
  const uint8_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  if (seen != was) return false;
  __atomic_store_n(alias, (uint8_t)~was, __ATOMIC_SEQ_CST);
  const bool same = __atomic_load_n(at, __ATOMIC_SEQ_CST) == (uint8_t)~was;
  __atomic_store_n(alias, was, __ATOMIC_SEQ_CST);
  return same;
}

bool mc_pages_are_there(const struct mc_adopted *a, const uint8_t *first, const uint8_t *last) {
  return a->alias && is_there(a, first) && is_there(a, last);
}

/* Only shared memory can be mapped once more by its address. */
bool mc_pages_may_be_there(const struct mc_adopted *a) {
  void *again = a->alias ? mremap(a->begin, 0, 4096, MREMAP_MAYMOVE) : MAP_FAILED;
  if (again == MAP_FAILED) return false;
  munmap(again, 4096);
  return memcmp(a->begin, a->alias, 64) == 0 && memcmp(a->begin + a->whole - 64, a->alias + a->whole - 64, 64) == 0;
}

static void let_go(struct mc_adopted *a, bool may_be_read) {
  const bool own = a->file.process == (uint64_t)getpid(), open = is_open(&a->file);
  /* ranks that have it mapped shall not keep its pages */
  if (own && open && !may_be_read) fallocate((int)a->file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)a->whole);
  if (open) close((int)a->file.fd);
  if (own) munmap(a->alias, a->whole); /* a child of a fork has none */
  a->alias = NULL, a->file.fd = 0, a->in_place = false;
}

void mc_pages_return(struct mc_adopted *a, bool may_be_read) {
  pthread_mutex_lock(&process.lock);
  struct mc_adopted **link = &process.first;
  while (*link && *link != a) link = &(*link)->next;
  bool all = true;
  if (*link) {
    all = find_pieces(a);
    for (size_t i = 0; i < process.count; i++) all = make_private(process.pieces[i]) && all;
    forget_pieces();
    if (all) *link = a->next; /* else children still copy it, and it stays known */
    else atomic_fetch_add(&a->holders, 1);
    if (!process.first) close_maps();
  }
  if (all && a->alias) let_go(a, may_be_read);
  pthread_mutex_unlock(&process.lock);
}

void mc_adopted_drop(struct mc_adopted *a) {
  if (atomic_fetch_sub(&a->holders, 1) == 1) free(a);
}
