/* A channel: its links and tickets, one poll over all of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/connection.h"

int mc_channel_open(struct mc_chan *ch, struct mc_net *n, uint32_t which, const struct mc_taker *taker) {
  const uint32_t size = n->c->size;
  ch->net = n, ch->c = n->c, ch->which = which, ch->taker = taker;
  ch->done_base = ch->done_next = 1; /* ticket 0: none */
  ch->made = calloc(size, sizeof(struct mc_link *));
  ch->taken = which == MC_NET_COLLECTIVE ? ch->made : calloc(size, sizeof(struct mc_link *));
  ch->marks = calloc(size, 1);
  ch->told_marks = calloc(size, 1);
  ch->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!ch->made || !ch->taken || !ch->marks || !ch->told_marks) return MC_EMEM;
  return ch->wake_fd < 0 ? MC_ESYS : MC_OK;
}

void mc_channel_close(struct mc_chan *ch) {
  while (ch->links) {
    struct mc_link *l = ch->links;
    ch->links = l->next;
    mc_link_free(l);
  }
  while (ch->spare_outs) {
    struct mc_out *out = ch->spare_outs;
    ch->spare_outs = out->next;
    free(out);
  }
  while (ch->spare_wants) {
    struct mc_want *want = ch->spare_wants;
    ch->spare_wants = want->next;
    free(want);
  }
  while (ch->handed) {
    struct mc_handed *handed = ch->handed;
    ch->handed = handed->next;
    close(handed->fd);
    free(handed);
  }
  if (ch->taken != ch->made) free(ch->taken);
  free(ch->made), free(ch->marks), free(ch->told_marks), free(ch->polls), free(ch->polled);
  free(ch->done), free(ch->scratch);
  if (ch->wake_fd >= 0) close(ch->wake_fd);
}

void mc_channel_wake(struct mc_chan *ch) {
  const uint64_t one = 1;
  ssize_t wrote;
  do wrote = write(ch->wake_fd, &one, sizeof one);
  while (wrote < 0 && errno == EINTR);
}

void mc_channel_push(struct mc_chan *ch) {
  const uint64_t now = mc_now_ns();
  for (struct mc_link *l = ch->links; l; l = l->next) {
    if (l->state == MC_LINK_DIAL && now >= l->retry_ns) mc_dial_move(ch, l);
    if (l->state == MC_LINK_UP && l->first) mc_link_send(ch, l);
  }
}

uint64_t mc_channel_due(struct mc_chan *ch, uint64_t now) {
  uint64_t due = now + MC_SLICE_NS;
  for (const struct mc_link *l = ch->links; l; l = l->next)
    if (l->state == MC_LINK_DIAL && l->retry_ns < due) due = l->retry_ns;
  return due > now ? due - now : 0;
}

static short events_of(const struct mc_link *l) {
  switch (l->state) {
    case MC_LINK_CONNECTING: return POLLOUT;
    case MC_LINK_ANSWER: case MC_LINK_WELCOME: case MC_LINK_WATCHED: return POLLIN;
    case MC_LINK_UP:
      return (short)(POLLRDHUP | (l->phase == MC_HELD || l->broken ? 0 : POLLIN) | (l->first ? POLLOUT : 0));
    default: return 0;
  }
}

uint32_t mc_channel_polls(struct mc_chan *ch) {
  if (ch->poll_room < ch->link_count + 2) {
    const uint32_t room = (ch->link_count + 2) * 2;
    struct pollfd *polls = realloc(ch->polls, room * sizeof *polls);
    if (polls) ch->polls = polls;
    struct mc_link **polled = realloc(ch->polled, room * sizeof *polled);
    if (polled) ch->polled = polled;
    if (!polls || !polled) return ch->poll_count = 0;
    ch->poll_room = room;
  }
  ch->polls[0] = (struct pollfd){.fd = ch->wake_fd, .events = POLLIN};
  ch->polls[1] = (struct pollfd){.fd = ch->net->door.poll_fd, .events = POLLIN};
  uint32_t count = 2;
  for (struct mc_link *l = ch->links; l; l = l->next) {
    const short events = events_of(l);
    if (!events || l->fd < 0) continue;
    ch->polled[count] = l;
    ch->polls[count++] = (struct pollfd){.fd = l->fd, .events = events};
  }
  return ch->poll_count = count;
}

static void answer(struct mc_chan *ch, struct mc_link *l, short said) {
  if (l->state != MC_LINK_UP) {
    mc_dial_move(ch, l);
    return;
  }
  if (said & POLLOUT) mc_link_send(ch, l);
  if ((said & POLLIN) && l->state == MC_LINK_UP) mc_link_read(ch, l);
  if ((said & (POLLRDHUP | POLLHUP | POLLERR)) && l->state == MC_LINK_UP) mc_link_slurp(ch, l);
}

void mc_channel_polled(struct mc_chan *ch) {
  if (!ch->poll_count) return;
  if (ch->polls[0].revents) {
    uint64_t times;
    while (read(ch->wake_fd, &times, sizeof times) < 0 && errno == EINTR) {}
  }
  const uint64_t now = mc_now_ns();
  if (ch->polls[1].revents || now - ch->door_ns > MC_SLICE_NS) { /* it also ends slow hellos */
    ch->door_ns = now;
    mc_door_look(ch->net);
  }
  for (uint32_t i = 2; i < ch->poll_count; i++)
    if (ch->polls[i].revents && ch->polls[i].fd == ch->polled[i]->fd) answer(ch, ch->polled[i], ch->polls[i].revents);
  mc_door_fetch(ch);
}

/* All sent is acknowledged by the other hosts, or the time is up. What comes meanwhile is dropped: a socket
 * closed with bytes unread resets the connection, and what is still on its way would be lost. */
void mc_channel_flush(struct mc_chan *ch, uint64_t until_ns) {
  uint8_t drop[4096];
  for (;;) {
    bool busy = false;
    for (struct mc_link *l = ch->links; l; l = l->next) {
      int unsent = 0;
      if (l->state != MC_LINK_UP) continue;
      mc_link_send(ch, l);
      if (l->state != MC_LINK_UP) continue;
      for (unsigned i = 0; i < 256 && recv(l->fd, drop, sizeof drop, MSG_DONTWAIT) > 0; i++) {}
      if (l->first || (ioctl(l->fd, SIOCOUTQ, &unsent) == 0 && unsent > 0)) busy = true;
    }
    if (!busy || mc_now_ns() >= until_ns) return;
    poll(NULL, 0, 1);
  }
}

uint64_t mc_ticket_new(struct mc_chan *ch) {
  if (ch->done_next - ch->done_base == ch->done_room) {
    const uint64_t room = ch->done_room ? ch->done_room * 2 : 256;
    uint8_t *done = calloc(room, 1);
    if (!done) return 0;
    for (uint64_t t = ch->done_base; t < ch->done_next; t++) done[t & (room - 1)] = ch->done[t & (ch->done_room - 1)];
    free(ch->done);
    ch->done = done, ch->done_room = room;
  }
  ch->done[ch->done_next & (ch->done_room - 1)] = 0;
  ch->open++;
  return ch->done_next++;
}

void mc_ticket_done(struct mc_chan *ch, uint64_t ticket) {
  if (!ticket) return;
  ch->done[ticket & (ch->done_room - 1)] = 1;
  ch->open--;
  while (ch->done_base < ch->done_next && ch->done[ch->done_base & (ch->done_room - 1)]) ch->done_base++;
}
