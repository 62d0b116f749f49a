/* The net as collectives use it: opened, posted to, moved, closed. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "net/connection.h"

#define LEAST_PART 131072u /* of a message: each is a frame, to be written, read and polled for */

static void release(struct mc_net *n) {
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) mc_loop_close(&n->channels[i]);
  mc_shared_leave(n->shared);
  free(n->addresses);
  n->c->net = NULL;
  free(n);
}

static int open_all(struct mc_net *n, const struct mc_address *addresses, const struct mc_handler *p2p) {
  const size_t bytes = n->c->size * sizeof *n->addresses;
  n->addresses = malloc(bytes);
  if (!n->addresses) return ENOMEM;
  memcpy(n->addresses, addresses, bytes);
  mc_prove(n->c->key, MC_NAMES_GROUP, "", 0, n->group);
  n->buffer_bytes = mc_socket_buffers();
  const struct mc_handler *const handlers[] = {&mc_collective_handler, p2p, NULL};
  int error = 0;
  for (uint32_t i = 0; i < MC_NET_CHANNELS && !error; i++) error = mc_loop_open(&n->channels[i], n, i, handlers[i]);
  return error ? error : mc_listener_join(n, addresses[n->c->rank].endpoint);
}

int mc_net_open(struct mc_comm *c, const struct mc_address *addresses, const struct mc_handler *p2p) {
  struct mc_net *n = calloc(1, sizeof *n);
  struct mc_shared *s = n ? mc_shared_get() : NULL;
  int error = s ? mc_shared_enter(s) : ENOMEM;
  if (error) {
    free(n);
    return error;
  }
  n->c = c, n->shared = s, c->net = n;
  c->transport = (struct mc_transport){.poll = mc_net_look, .propagate = mc_net_propagate, .abort = mc_net_abort};
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) n->channels[i].wake_fd = -1;
  error = open_all(n, addresses, p2p);
  if (error) release(n);
  return error;
}

/* After a call that failed connections still know where its data was to go: memory that may be gone by now. */
static void stop_reading(struct mc_loop *loop) {
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) conn->faulty = true;
}

void mc_net_close(struct mc_comm *c) {
  struct mc_net *n = c->net;
  mc_net_abort_end(n);
  mc_listener_leave(n);
  for (uint32_t i = 0; i < MC_NET_ABORT; i++) mc_listener_fetch(&n->channels[i]); /* they are told as well */
  const uint64_t until = mc_now_ns() + 300000000u;
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) stop_reading(&n->channels[i]);
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) mc_control_goodbye(&n->channels[i]);
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) mc_loop_flush(&n->channels[i], until);
  release(n);
}

static struct mc_conn *conn_to(struct mc_loop *loop, uint32_t peer, uint32_t stream) {
  if (peer >= loop->c->size || peer == loop->c->rank) return NULL;
  if (peer > loop->c->rank) return mc_conn_new(loop, peer, stream, true); /* of a pair the higher rank connects */
  return mc_connect_to(loop, peer, stream);
}

/* How a message lies over the streams of its pair: part i is a frame of its own on stream i. Both ends work out the same
 * from its length. Every part goes at once, so that no stream rests for longer than the pair does: over a slow link one that
 * had rested would begin slowly again. */
static uint32_t parts_of(const struct mc_loop *loop, size_t bytes) {
  return bytes < 2 * LEAST_PART ? 1 : (uint32_t)mc_less(bytes / LEAST_PART, loop->streams);
}

static size_t part_of(size_t bytes, uint32_t parts, uint32_t part, size_t *begin) {
  const size_t step = (bytes / parts + 63) / 64 * 64;
  *begin = part * step;
  return part + 1 == parts ? bytes - *begin : step;
}

int mc_net_send(struct mc_comm *c, uint32_t peer, const void *data, size_t bytes, uint64_t *ticket) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  const uint32_t parts = parts_of(loop, bytes);
  *ticket = mc_ticket_new(loop, parts);
  for (uint32_t part = 0; part < parts; part++) {
    size_t begin, length = part_of(bytes, parts, part, &begin);
    struct mc_conn *conn = *ticket ? conn_to(loop, peer, part) : NULL;
    struct mc_send_desc *out = conn ? mc_send_desc_new(MC_DATA, (const uint8_t *)data + begin, length) : NULL;
    if (!out) return MC_EMEM;
    mc_frame_call(&out->frame, c);
    out->frame.parts = (uint16_t)parts; /* or messages of other lengths could have equal parts */
    out->ticket = *ticket;
    MC_PUSH(&conn->sends, out);
  }
  return MC_OK;
}

int mc_net_recv(struct mc_comm *c, uint32_t peer, void *data, size_t bytes, uint64_t *ticket) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  const uint32_t parts = parts_of(loop, bytes);
  *ticket = mc_ticket_new(loop, parts);
  for (uint32_t part = 0; part < parts; part++) {
    size_t begin, length = part_of(bytes, parts, part, &begin);
    struct mc_conn *conn = *ticket ? conn_to(loop, peer, part) : NULL;
    struct mc_posted_recv *posted = conn ? malloc(sizeof *posted) : NULL;
    if (!posted) return MC_EMEM;
    *posted = (struct mc_posted_recv){
        .data = (uint8_t *)data + begin, .bytes = length, .parts = parts, .ticket = *ticket, .fingerprint = c->call_fingerprint};
    MC_PUSH(&conn->receives, posted);
    if (conn->phase == MC_HELD || conn->state == MC_CONN_GONE) mc_conn_read(loop, conn); /* it may be there already */
  }
  return MC_OK;
}

bool mc_net_done(struct mc_comm *c, uint64_t ticket) {
  const struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  return ticket < loop->done_base || (ticket < loop->done_next && !loop->left[ticket & (loop->done_room - 1)]);
}

bool mc_net_idle(struct mc_comm *c) { return !c->net->channels[MC_NET_COLLECTIVE].open; }

int mc_net_step(struct mc_comm *c, uint64_t wait_ns, bool *moved, struct mc_failure *loss) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  mc_loop_turn(loop, wait_ns);
  *moved = loop->moved;
  return mc_loop_status(loop, loss);
}
