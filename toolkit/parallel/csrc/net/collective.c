/* The net as collectives use it: opened, posted to, moved, closed. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "net/connection.h"

static void release(struct mc_net *n) {
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) mc_channel_close(&n->channels[i]);
  mc_door_close(n);
  pthread_mutex_destroy(&n->door.lock);
  free(n->addresses);
  n->c->net = NULL;
  free(n);
}

static int open_all(struct mc_net *n, int listen_fd, const struct mc_address *addresses, const struct mc_taker *p2p) {
  const size_t bytes = n->c->size * sizeof *n->addresses;
  n->addresses = malloc(bytes);
  if (!n->addresses) return MC_EMEM;
  memcpy(n->addresses, addresses, bytes);
  mc_group_id(n->c, n->group);
  n->buffer_bytes = mc_socket_buffers();
  mc_socket_settle(listen_fd, n->buffer_bytes);
  int code = mc_door_open(n, listen_fd);
  const struct mc_taker *const takers[] = {&mc_collective_taker, p2p, NULL};
  for (uint32_t i = 0; i < MC_NET_CHANNELS && code == MC_OK; i++) code = mc_channel_open(&n->channels[i], n, i, takers[i]);
  return code;
}

/* 0 or an errno value; after a failure listen_fd is still the caller's. */
int mc_net_open(struct mc_comm *c, int listen_fd, const struct mc_address *addresses, const struct mc_taker *p2p) {
  struct mc_net *n = calloc(1, sizeof *n);
  if (!n) return ENOMEM;
  n->c = c, c->net = n;
  c->transport = (struct mc_transport){.poll = mc_net_look, .propagate = mc_net_tell, .abort = mc_net_abort};
  n->door.listen_fd = n->door.poll_fd = -1;
  pthread_mutex_init(&n->door.lock, NULL);
  for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) n->channels[i].wake_fd = -1;
  const int code = open_all(n, listen_fd, addresses, p2p), error = errno;
  if (code == MC_OK) return 0;
  n->door.listen_fd = -1;
  release(n);
  return code == MC_EMEM ? ENOMEM : error ? error : EIO;
}

/* After a call that failed links still know where its data was to go: memory that may be gone by now. */
static void stop_reading(struct mc_chan *ch) {
  for (struct mc_link *l = ch->links; l; l = l->next) l->broken = true;
}

void mc_net_close(struct mc_comm *c) {
  struct mc_net *n = c->net;
  if (!n) return;
  if (c->pid == 0 || c->pid == (int)getpid()) { /* a forked child has no part in its parent's connections */
    mc_net_abort_end(n);
    const uint64_t until = mc_now_ns() + 300000000u;
    for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) stop_reading(&n->channels[i]);
    for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) mc_word_bye(&n->channels[i]);
    for (uint32_t i = 0; i < MC_NET_CHANNELS; i++) mc_channel_flush(&n->channels[i], until);
  }
  release(n);
}

static struct mc_link *link_to(struct mc_chan *ch, uint32_t peer) {
  if (peer >= ch->c->size || peer == ch->c->rank) return NULL;
  struct mc_link *l = mc_link_new(ch, peer, peer > ch->c->rank);
  if (l && !l->accepted) mc_dial(l); /* of a pair the higher rank connects */
  return l;
}

int mc_net_send(struct mc_comm *c, uint32_t peer, const void *data, size_t bytes, uint64_t *ticket) {
  struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  struct mc_link *l = link_to(ch, peer);
  struct mc_out *out = l ? mc_out_new(ch, MC_DATA, data, bytes) : NULL;
  *ticket = out ? mc_ticket_new(ch) : 0;
  if (!*ticket) {
    if (out) mc_out_free(ch, out);
    return mc_fail(c, MC_EMEM, 0, (int)peer, NULL, NULL);
  }
  mc_frame_call(&out->frame, c);
  out->ticket = *ticket;
  mc_link_queue(l, out);
  return MC_OK;
}

int mc_net_recv(struct mc_comm *c, uint32_t peer, void *data, size_t bytes, uint64_t *ticket) {
  struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  struct mc_link *l = link_to(ch, peer);
  struct mc_want *want = l ? ch->spare_wants : NULL;
  if (want) ch->spare_wants = want->next;
  else if (l) want = malloc(sizeof *want);
  *ticket = want ? mc_ticket_new(ch) : 0;
  if (!*ticket) {
    free(want);
    return mc_fail(c, MC_EMEM, 0, (int)peer, NULL, NULL);
  }
  *want = (struct mc_want){.data = data, .bytes = bytes, .ticket = *ticket, .sign = c->call_sign};
  if (l->want_last) l->want_last->next = want;
  else l->want_first = want;
  l->want_last = want;
  if (l->phase == MC_HELD || l->state == MC_LINK_GONE) mc_link_read(ch, l); /* it may be there already */
  return MC_OK;
}

bool mc_net_done(struct mc_comm *c, uint64_t ticket) {
  const struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  return ticket < ch->done_base || (ticket < ch->done_next && ch->done[ticket & (ch->done_room - 1)]);
}

/* One look at all connections. */
static void step(struct mc_chan *ch, uint64_t wait_ns) {
  mc_channel_push(ch);
  const uint32_t count = mc_channel_polls(ch);
  if (!count) return;
  if (ch->moved) wait_ns = 0;
  if (wait_ns) {
    const uint64_t due = mc_channel_due(ch, mc_now_ns());
    if (due < wait_ns) wait_ns = due;
    __atomic_fetch_add(&ch->c->stats.sleeps, 1, __ATOMIC_RELAXED);
  }
  const struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000u), .tv_nsec = (long)(wait_ns % 1000000000u)};
  if (ppoll(ch->polls, count, &wait, NULL) >= 0) mc_channel_polled(ch);
}

int mc_channel_progress(struct mc_chan *ch, uint64_t wait_ns) {
  struct mc_comm *c = ch->c;
  const uint64_t until = mc_now_ns() + wait_ns;
  uint64_t left = wait_ns;
  ch->moved = false;
  for (;;) {
    int code = mc_check(c);
    if (code != MC_OK) return code;
    step(ch, left < MC_SLICE_NS ? left : MC_SLICE_NS);
    code = mc_settle(ch);
    if (code != MC_OK) return code;
    const uint64_t now = mc_now_ns();
    if (ch->moved || now >= until) return MC_OK;
    left = until - now;
  }
}

int mc_net_progress(struct mc_comm *c, uint64_t wait_ns) {
  struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  if (!ch->open && !wait_ns) return mc_check(c); /* asked often: words are read by mc_net_look */
  return mc_channel_progress(ch, wait_ns);
}
