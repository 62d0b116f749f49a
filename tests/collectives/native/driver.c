/* driver PLAY NODES [ROUNDS [SEED]]: sets the scene, plays, ends with 1 when a rank saw something wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "driver.h"
#undef mmap /* the system's: to all other files driver_mmap goes by its name */
#undef munmap
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int munmap(void *at, size_t bytes);

static void die(const char *what) {
  perror(what);
  exit(2);
}

/* All is compiled with -Dmmap=driver_mmap: one mapping per file, whoever asks for it. */
static struct { dev_t device; ino_t inode; size_t bytes; void *at; } mapped[64];
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

void *driver_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int driver_munmap(void *at, size_t bytes);

void *driver_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  struct stat facts;
  if (fd < 0 || flags & MAP_FIXED) return mmap(at, bytes, protection, flags, fd, offset);
  if (fstat(fd, &facts)) return MAP_FAILED;
  pthread_mutex_lock(&mapping);
  void *found = MAP_FAILED;
  for (unsigned i = 0; i < 64; i++) {
    if (mapped[i].at && (mapped[i].inode != facts.st_ino || mapped[i].device != facts.st_dev)) continue;
    if (!mapped[i].at) {
      mapped[i].at = mmap(at, bytes, protection, flags, fd, offset);
      mapped[i].device = facts.st_dev;
      mapped[i].inode = facts.st_ino;
      mapped[i].bytes = bytes;
    }
    found = mapped[i].bytes == bytes ? mapped[i].at : MAP_FAILED;
    break;
  }
  pthread_mutex_unlock(&mapping);
  return found;
}

void *shared_memory(uint32_t which, size_t bytes) {
  static struct { void *at; size_t bytes; } pools[SHARED];
  pthread_mutex_lock(&mapping);
  if (!pools[which].at) {
    pools[which].at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pools[which].bytes = bytes;
  }
  void *found = pools[which].at;
  pthread_mutex_unlock(&mapping);
  if (found == MAP_FAILED || pools[which].bytes != bytes) exit(2);
  return found;
}

int driver_munmap(void *at, size_t bytes) {
  for (unsigned i = 0; i < 64; i++)
    if (mapped[i].at == at) return 0; /* others look at it still; the process's end takes it */
  return munmap(at, bytes);
}

/* One of its own for each rank, as in a process of its own. */
static void listener(uint32_t rank, struct mc_address *address) {
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char name[16];
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&here, sizeof here) || listen(fd, 64)) die("listen");
  snprintf(name, sizeof name, "rank %u", rank);
  if (mc_endpoint_open(name, fd, &address->endpoint, &address->port)) die("mc_endpoint_open");
  address->family = AF_INET;
  memcpy(address->bytes, &here.sin_addr, 4);
}

void scene_open(struct scene *scene, const char *nodes, tune *other) {
  memset(scene, 0, sizeof *scene);
  scene->size = (uint32_t)strlen(nodes);
  if (scene->size < 1 || scene->size > RANKS) exit(2);
  for (uint32_t rank = 0; rank < scene->size; rank++) {
    uint32_t first = (uint32_t)(strchr(nodes, nodes[rank]) - nodes);
    scene->node_of[rank] = first == rank ? scene->nodes++ : scene->node_of[first];
    scene->locals[scene->node_of[rank]]++;
  }
  scene->tuning = (struct mc_tuning){
      .slot_bytes = 8192, .one_shot_bytes = 2048, .chunk_bytes = 4096, .direct_bytes = 1024,
      .leader_bytes = 2048, .segment_bytes = 8192, .eager_bytes = 1 << 30, .streams = 3, .spin_s = 20e-6};
  scene->create_s = WAIT_S;
  if (other) other(&scene->tuning);
  for (uint32_t node = 0; node < scene->nodes; node++) {
    scene->segments[node] = memfd_create("driver", MFD_CLOEXEC);
    uint64_t bytes = mc_segment_bytes(scene->locals[node], &scene->tuning);
    if (scene->segments[node] < 0 || ftruncate(scene->segments[node], (off_t)bytes)) die("memfd");
  }
  for (uint32_t rank = 0; rank < scene->size && scene->nodes > 1; rank++) listener(rank, &scene->addresses[rank]);
}

void scene_close(struct scene *scene) {
  for (uint32_t node = 0; node < scene->nodes; node++) close(scene->segments[node]);
}

static act *playing;

static void *live(void *given) {
  struct rank *self = given;
  struct scene *scene = self->scene;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", scene->segments[scene->node_of[self->rank]]);
  int fd = open(path, O_RDWR | O_CLOEXEC); /* a descriptor of its own, as another process has */
  if (fd < 0) die(path);
  struct mc_layout layout = {
      .abi = MC_ABI, .rank = self->rank, .size = self->size, .node_of = scene->node_of, .segment_fd = fd,
      .addresses = scene->nodes > 1 ? scene->addresses : NULL, .tuning = scene->tuning};
  memset(layout.key, 7, sizeof layout.key);
  self->failure.rank_status = self->rank_status;
  int code = mc_create(&layout, scene->create_s, &self->comm, &self->failure);
  if (code) {
    fprintf(stderr, "rank %u: mc_create: %d, errno %d\n", self->rank, code, self->failure.sys_errno);
    self->wrong++;
    return NULL;
  }
  playing(self);
  mc_close(self->comm);
  return NULL;
}

int scene_play(struct scene *scene, act *what) {
  struct rank ranks[RANKS];
  int wrong = 0;
  memset(ranks, 0, sizeof ranks);
  playing = what;
  for (uint32_t rank = 0; rank < scene->size; rank++) {
    ranks[rank] = (struct rank){.scene = scene, .rank = rank, .size = scene->size, .chance = scene->seed * 2 + 1};
    if (pthread_create(&ranks[rank].thread, NULL, live, &ranks[rank])) die("pthread_create");
  }
  for (uint32_t rank = 0; rank < scene->size; rank++) {
    pthread_join(ranks[rank].thread, NULL);
    wrong += ranks[rank].wrong;
  }
  return wrong;
}

int run(struct rank *self, uint32_t verb, uint32_t dtype, uint32_t op, uint32_t root, const void *in, void *out,
        uint64_t count, double timeout_s) {
  struct mc_call call = {.verb = verb, .dtype = dtype, .op = op, .root = root, .in = in, .out = out, .count = count,
                         .timeout_s = timeout_s};
  self->failure = (struct mc_failure){.rank_status = self->rank_status};
  return mc_run(self->comm, &call, &self->failure);
}

uint32_t draw(struct rank *self, uint32_t below) {
  self->chance = self->chance * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(self->chance >> 33) % below;
}

static const struct { const char *name; act *what; tune *other; } plays[] = {
    {"ops", play_ops, NULL},           {"small", play_small, NULL},
    {"patient", play_small, NULL},
    {"direct", play_direct, NULL},     {"messages", play_messages, NULL},
    {"adopts", play_adopts, tune_adopts},
    {"timeout", play_timeout, NULL},   {"beside", play_messages_beside, NULL},
    {"mismatch", play_mismatch, NULL}, {"abort", play_abort, NULL}, {"abort_idle", play_abort_idle, NULL},
    {"leave", play_leave, NULL},       {"mix", play_mix, tune_offers},
    {"offers", play_offers, tune_offers}, {"unreadable", play_unreadable, tune_offers},
    {"withdraw", play_withdraw, tune_offers}, {"now", play_now, NULL},
    {"types", play_types, NULL},       {"large", play_large, tune_large},
    {"legs-f16", play_legs, tune_f16}, {"large-direct", play_large_direct, tune_large},
    {"footprint", play_footprint, tune_default},
    {"legs-i8", play_legs, tune_i8},   {"legs-bf16", play_legs, tune_bf16}};

/* What is played must be what the test means to play. */
static void demand_isa(void) {
  const char *due = getenv("DRIVER_ISA");
  if (!due || !strcmp(due, mc_isa())) return;
  fprintf(stderr, "the kernels are %s, not %s\n", mc_isa(), due);
  exit(3);
}

int main(int count, char **words) {
  if (count < 3) return 2;
  demand_isa();
  uint32_t rounds = count > 3 ? (uint32_t)atoi(words[3]) : 100;
  if (!strcmp(words[1], "wire-harmed")) return play_wire_harmed(words[2]) ? 1 : 0;
  if (!strncmp(words[1], "wire", 4)) return play_wire(words[2], !strcmp(words[1], "wire-messages")) ? 1 : 0;
  if (!strcmp(words[1], "kernels")) return play_kernels(rounds);
  if (!strcmp(words[1], "parts")) return play_parts(rounds);
  for (unsigned i = 0; i < sizeof plays / sizeof *plays; i++) {
    if (strcmp(words[1], plays[i].name)) continue;
    struct scene scene;
    scene_open(&scene, words[2], plays[i].other);
    if (!strcmp(words[1], "patient")) scene.create_s = 1e300; /* callers say "for ever" so */
    scene.rounds = rounds;
    scene.seed = count > 4 ? (uint64_t)atoll(words[4]) : 1;
    int wrong = scene_play(&scene, plays[i].what);
    scene_close(&scene);
    return wrong ? 1 : 0;
  }
  fprintf(stderr, "no play %s\n", words[1]);
  return 2;
}
