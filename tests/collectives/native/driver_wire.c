/* A proxy between two nodes flips one byte of what goes through; checked mode must notice (F43). Or it damages, repeats,
 * moves or cuts off a frame: its place and its header's checksum must tell, in any mode. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "driver.h"
#include "net/wire.h"

#define COUNT 40000u
#define HELLO_BYTES (sizeof(struct mc_client_hello) + sizeof(struct mc_client_finished))
#define FLIPPED_AT 60000u /* bytes of one direction: in the middle of the data */

static struct {
  int listener;
  struct sockaddr_in target;
  uint32_t behind; /* the rank that is reached through it */
  atomic_bool flip; /* one byte is still to be flipped */
  atomic_bool cut;
  atomic_int harm;  /* of the first frame, still to be done; 0: none */
  atomic_bool over;
  atomic_ulong carried;
} proxy;

enum harm { UNHARMED, GARBLED, REPEATED, MOVED, CUT_OFF };

static bool send_whole(int to, const void *data, size_t bytes) {
  return send(to, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* A whole frame, from a connecting rank that has said hello; its bytes or 0. */
static size_t frame_from(int from, uint8_t *into, size_t room) {
  struct mc_frame header;
  if (recv(from, into, sizeof header, MSG_WAITALL) != (ssize_t)sizeof header) return 0;
  memcpy(&header, into, sizeof header);
  if (header.bytes > room - sizeof header) return 0;
  const ssize_t body = header.bytes ? recv(from, into + sizeof header, header.bytes, MSG_WAITALL) : 0;
  return body == (ssize_t)header.bytes ? sizeof header + header.bytes : 0;
}

/* The first frame of a row, and for MOVED the second before it. */
static bool pass_harmed(int from, int to, enum harm harm) {
  uint8_t first[16384], second[16384];
  const size_t bytes = frame_from(from, first, sizeof first);
  if (!bytes) return false;
  if (harm == CUT_OFF) {
    send_whole(to, first, sizeof(struct mc_frame) / 2);
    shutdown(to, SHUT_RDWR);
    return false;
  }
  if (harm == GARBLED) first[offsetof(struct mc_frame, count)] ^= 1;
  if (harm == MOVED) {
    const size_t next = frame_from(from, second, sizeof second);
    if (!next || !send_whole(to, second, next)) return false;
  }
  return send_whole(to, first, bytes) && (harm != REPEATED || send_whole(to, first, bytes));
}

static bool pass_hello(int from, int to, size_t *carried) {
  uint8_t piece[HELLO_BYTES];
  const ssize_t got = recv(from, piece, HELLO_BYTES - *carried, MSG_DONTWAIT);
  if (got < 0) return true;
  if (got == 0) {
    shutdown(to, SHUT_WR);
    return false;
  }
  *carried += (size_t)got;
  return send_whole(to, piece, (size_t)got);
}

static bool pass(int from, int to, size_t *carried) {
  static _Thread_local uint8_t piece[16384];
  ssize_t got = recv(from, piece, sizeof piece, MSG_DONTWAIT);
  if (got < 0) return true;
  if (got == 0) {
    shutdown(to, SHUT_WR);
    return false;
  }
  if (*carried + (size_t)got > FLIPPED_AT && atomic_exchange(&proxy.flip, false))
    piece[*carried > FLIPPED_AT ? 0 : FLIPPED_AT - *carried] ^= 0x10;
  *carried += (size_t)got;
  atomic_fetch_add(&proxy.carried, (unsigned long)got);
  for (ssize_t sent = 0, now; sent < got; sent += now)
    if ((now = send(to, piece + sent, (size_t)(got - sent), MSG_NOSIGNAL)) <= 0) return false;
  return true;
}

static void *carry(void *given) {
  int near = (int)(intptr_t)given, far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  size_t carried[2] = {0, 0};
  bool open[2] = {true, true};
  if (connect(far, (struct sockaddr *)&proxy.target, sizeof proxy.target)) open[0] = open[1] = false;
  while ((open[0] || open[1]) && !atomic_load(&proxy.over)) {
    struct pollfd ends[2] = {{open[0] ? near : -1, POLLIN, 0}, {open[1] ? far : -1, POLLIN, 0}};
    if (poll(ends, 2, 50) <= 0) continue;
    const enum harm harm = (enum harm)atomic_load(&proxy.harm);
    if (ends[0].revents && harm && carried[0] < HELLO_BYTES) open[0] = pass_hello(near, far, &carried[0]);
    else if (ends[0].revents && harm && atomic_exchange(&proxy.harm, 0)) open[0] = pass_harmed(near, far, harm);
    else if (ends[0].revents) open[0] = pass(near, far, &carried[0]);
    if (ends[1].revents) open[1] = pass(far, near, &carried[1]);
  }
  close(near);
  close(far);
  return NULL;
}

static void *serve(void *unused) {
  pthread_t threads[64];
  unsigned count = 0;
  (void)unused;
  while (!atomic_load(&proxy.over)) {
    struct pollfd end = {proxy.listener, POLLIN, 0};
    if (poll(&end, 1, 50) <= 0 || count == 64) continue;
    int near = accept4(proxy.listener, NULL, NULL, SOCK_CLOEXEC);
    if (near >= 0 && pthread_create(&threads[count], NULL, carry, (void *)(intptr_t)near) == 0) count++;
  }
  while (count) pthread_join(threads[--count], NULL);
  return NULL;
}

static bool flipping;

/* With a byte flipped both ranks fail with MC_ECHECK; with none all is right. */
static void play(struct rank *self) {
  float *data = malloc(COUNT * sizeof *data);
  for (uint32_t i = 0; i < COUNT; i++) data[i] = (float)self->rank;
  int code = run(self, MC_ALL_REDUCE, MC_F32, MC_SUM, 0, data, data, COUNT, 20.0);
  bool right = true;
  for (uint32_t i = 0; i < COUNT && code == MC_OK; i++)
    right = right && data[i] == (float)(self->size * (self->size - 1) / 2);
  free(data);
  CHECK(self, code == (flipping ? MC_ECHECK : MC_OK));
  CHECK(self, right);
}

/* Who sends a message connects, so this one goes through the proxy. The receive alone tells: the message
 * had left its sender whole. */
static void play_message(struct rank *self) {
  static const uint32_t tag = 3;
  bool receives = self->rank == proxy.behind, right = true;
  uint8_t *data = malloc(COUNT * 4u);
  struct mc_status status = {0};
  uint64_t request;
  memset(data, receives ? 0 : 0x5a, COUNT * 4u);
  int code = mc_post(self->comm, receives ? MC_RECV : MC_SEND, 1 - (int32_t)self->rank, tag, data, COUNT * 4u, 20.0, &request);
  self->failure = (struct mc_failure){.rank_status = self->rank_status};
  if (!code) code = mc_wait(self->comm, request, WAIT_S, &status, &self->failure);
  if (!code) code = status.code;
  for (uint32_t i = 0; i < COUNT * 4u && !flipping; i++) right = right && data[i] == 0x5a;
  free(data);
  CHECK(self, status.done);
  if (receives) CHECK(self, code == (flipping ? MC_ECHECK : MC_OK));
  CHECK(self, right);
}

/* The rank behind the proxy finds it, and names the other one; a few sums, for some of it is found by the next. */
static void play_harmed(struct rank *self) {
  float data[8] = {0};
  int code = MC_OK;
  for (int times = 0; times < 4 && code == MC_OK; times++) {
    data[0] = (float)self->rank;
    code = run(self, MC_ALL_REDUCE, MC_F32, MC_SUM, 0, data, data, 8, 20.0);
    if (code == MC_OK) CHECK(self, data[0] == (float)(self->size * (self->size - 1) / 2));
  }
  CHECK(self, (code == MC_OK) == !flipping);
  if (!flipping || self->rank != proxy.behind) return;
  CHECK(self, code == MC_ENET || (code == MC_EPEER && atomic_load(&proxy.cut)));
  CHECK(self, self->failure.rank == 1 - (int32_t)self->rank && self->failure.reported_by == (int32_t)self->rank);
}

static int one(const char *nodes, act *what, bool flip, enum harm harm) {
  struct scene scene;
  struct mc_address address;
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof here;
  pthread_t thread;
  scene_open(&scene, nodes, NULL);
  scene.tuning.checked = !harm;
  proxy.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(proxy.listener, (struct sockaddr *)&here, sizeof here) || listen(proxy.listener, 64)) return 2;
  if (getsockname(proxy.listener, (struct sockaddr *)&here, &length)) return 2;
  /* whoever connects to rank 0, or to the last rank, goes through the proxy: one of them listens */
  uint32_t behind = 0;
  for (int turn = 0; turn < 2; turn++, behind = scene.size - 1) {
    address = scene.addresses[behind];
    proxy.target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(address.port)};
    memcpy(&proxy.target.sin_addr, address.bytes, 4);
    if (turn == (getenv("DRIVER_BEHIND_LAST") ? 1 : 0)) break;
  }
  scene.addresses[behind].port = ntohs(here.sin_port);
  proxy.behind = behind;
  atomic_store(&proxy.over, false);
  atomic_store(&proxy.flip, flip);
  atomic_store(&proxy.carried, 0);
  atomic_store(&proxy.harm, harm);
  atomic_store(&proxy.cut, harm == CUT_OFF);
  flipping = flip || harm;
  if (pthread_create(&thread, NULL, serve, NULL)) return 2;
  int wrong = scene_play(&scene, what);
  atomic_store(&proxy.over, true);
  pthread_join(thread, NULL);
  close(proxy.listener);
  scene_close(&scene);
  if (atomic_load(&proxy.carried) == 0) {
    fprintf(stderr, "nothing went through the proxy\n");
    return 3; /* the other side connects: DRIVER_BEHIND_LAST */
  }
  return wrong;
}

int play_wire(const char *nodes, bool messages) {
  act *what = messages ? play_message : play;
  int wrong = one(nodes, what, false, UNHARMED);
  return wrong ? wrong : one(nodes, what, true, UNHARMED);
}

int play_wire_harmed(const char *nodes) {
  int wrong = one(nodes, play_harmed, false, UNHARMED);
  for (enum harm harm = GARBLED; harm <= CUT_OFF && !wrong; harm++) wrong = one(nodes, play_harmed, false, harm);
  return wrong;
}
