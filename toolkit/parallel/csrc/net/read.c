/* One connection: incoming frames. Small ones come by way of `ahead`, large payloads go straight to where
 * they belong. A frame nobody has asked for yet is held: the connection is not read on, and TCP
 * makes the sender wait. Once the other end has closed, all that is left is taken into memory (it
 * is no more than a socket's buffer), so that a verdict behind a held frame is found. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define DIRECT 8192u         /* payloads with more than this to come are read past `ahead` */
#define SCRATCH 65536u
#define VISIT (8u << 20)

/* Nothing more is read; the verdict may still be sent. */
void mc_link_fault(struct mc_chan *ch, struct mc_link *l, int code) {
  l->broken = true;
  if (ch->fault.code == MC_OK)
    ch->fault = (struct mc_fault){.code = code, .sys_errno = EPROTO, .rank = (int)l->peer, .mark = MC_DEAD};
}

/* The first 64 bytes of `ahead` are a header. */
static void header(struct mc_chan *ch, struct mc_link *l) {
  memcpy(&l->frame, l->ahead + l->ahead_at, sizeof l->frame);
  l->ahead_at += sizeof l->frame;
  const struct mc_frame *frame = &l->frame;
  const bool word = frame->kind != MC_DATA;
  if (!mc_sealed(frame, l->recv_key, l->recv_index++) || frame->kind < MC_DATA || frame->kind > MC_BYE ||
      (word && frame->bytes > MC_WORD_BYTES)) {
    mc_link_fault(ch, l, MC_ENET);
    return;
  }
  l->left = frame->bytes;
  if (word && !l->word && !(l->word = malloc(MC_WORD_BYTES))) mc_link_fault(ch, l, MC_EMEM);
  MC_FAULT_POINT(header_read);
  l->phase = word ? MC_PAYLOAD : MC_HELD;
  l->to = word ? l->word : NULL;
}

static void landed(struct mc_chan *ch, struct mc_link *l) {
  const uint64_t bytes = l->frame.bytes;
  l->phase = MC_HEADER;
  if (l->frame.sum && l->to && bytes && mc_frame_sum(l->to - bytes, bytes) != l->frame.sum) {
    mc_link_fault(ch, l, MC_ECHECK);
    return;
  }
  if (l->frame.kind == MC_DATA) ch->taker->landed(ch, l);
  else ch->taker->word(ch, l, l->word);
}

/* Uses up `ahead` as far as it goes. False: nothing more may be read now. */
static bool digest(struct mc_chan *ch, struct mc_link *l) {
  while (!l->broken) {
    const size_t here = l->ahead_end - l->ahead_at;
    if (l->phase == MC_HEADER) {
      if (here < sizeof l->frame) return true;
      header(ch, l);
    } else if (l->phase == MC_HELD) {
      const enum mc_taking taking = ch->taker->begin(ch, l);
      if (taking == MC_HOLD || taking == MC_REFUSE) return false;
      l->phase = MC_PAYLOAD, ch->moved = true;
    } else {
      const size_t part = here < l->left ? here : (size_t)l->left;
      if (part && l->to) memcpy(l->to, l->ahead + l->ahead_at, part), l->to += part;
      l->ahead_at += part, l->left -= part;
      if (l->left) return true;
      ch->moved = true;
      landed(ch, l);
    }
  }
  return false;
}

static bool make_room(struct mc_link *l, size_t bytes) {
  if (l->ahead_at == l->ahead_end) l->ahead_at = l->ahead_end = 0;
  if (l->ahead_at && l->ahead_room - l->ahead_end < bytes) {
    memmove(l->ahead, l->ahead + l->ahead_at, l->ahead_end - l->ahead_at);
    l->ahead_end -= l->ahead_at, l->ahead_at = 0;
  }
  if (l->ahead_room - l->ahead_end >= bytes) return true;
  size_t room = l->ahead_room ? l->ahead_room : MC_AHEAD;
  while (room - l->ahead_end < bytes) room *= 2;
  uint8_t *larger = realloc(l->ahead, room);
  if (!larger) return false;
  l->ahead = larger, l->ahead_room = room;
  return true;
}

/* One read: the payload's memory first, what follows into `ahead`. <= 0: as recv. */
static ssize_t receive(struct mc_chan *ch, struct mc_link *l) {
  if (!make_room(l, sizeof l->frame + 1)) {
    errno = ENOMEM;
    return -1;
  }
  struct iovec pieces[2];
  size_t count = 0;
  uint64_t direct = 0;
  if (l->phase == MC_PAYLOAD && l->left > DIRECT) { /* `ahead` is empty here */
    direct = l->to ? l->left : l->left < SCRATCH ? l->left : SCRATCH;
    if (!l->to && !ch->scratch && !(ch->scratch = malloc(SCRATCH))) direct = 0;
    if (direct) pieces[count++] = (struct iovec){l->to ? l->to : ch->scratch, (size_t)direct};
  }
  if (direct == 0 || direct == l->left)
    pieces[count++] = (struct iovec){l->ahead + l->ahead_end, l->ahead_room - l->ahead_end};
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
  const ssize_t got = recvmsg(l->fd, &message, MSG_DONTWAIT);
  if (got <= 0) return got;
  const uint64_t past = (uint64_t)got < direct ? (uint64_t)got : direct;
  if (l->to && direct) l->to += past;
  if (direct) l->left -= past;
  l->ahead_end += (size_t)((uint64_t)got - past);
  if (past < direct) MC_FAULT_POINT(payload_part_read);
  __atomic_fetch_add(&ch->c->stats.received_bytes, (uint64_t)got, __ATOMIC_RELAXED);
  return got;
}

void mc_link_read(struct mc_chan *ch, struct mc_link *l) {
  uint64_t visit = 0;
  while (digest(ch, l) && !l->ended && visit < VISIT) {
    const ssize_t got = receive(ch, l);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && mc_would_block(errno)) return;
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      mc_link_lost(l, error ? error : l->why);
      return;
    }
    visit += (uint64_t)got, ch->moved = true, l->heard_ns = mc_now_ns();
  }
}

/* Is there a verdict or a good-bye among what waits behind a held frame? Words are dealt with now; the
 * frames before them stay as they are. */
static void look_behind(struct mc_chan *ch, struct mc_link *l) {
  size_t at = l->ahead_at;
  uint64_t skip = l->phase == MC_HEADER ? 0 : l->left, index = l->recv_index;
  while (l->ahead_end - at >= skip && l->ahead_end - at - (size_t)skip >= sizeof(struct mc_frame)) {
    struct mc_frame frame;
    at += (size_t)skip;
    memcpy(&frame, l->ahead + at, sizeof frame);
    if (!mc_sealed(&frame, l->recv_key, index++)) return;
    at += sizeof frame, skip = frame.bytes;
    if (frame.kind != MC_FAIL && frame.kind != MC_BYE) continue;
    if (l->ahead_end - at < skip || skip > MC_WORD_BYTES) return;
    const struct mc_frame held = l->frame;
    l->frame = frame;
    ch->taker->word(ch, l, l->ahead + at);
    l->frame = held;
  }
}

void mc_link_slurp(struct mc_chan *ch, struct mc_link *l) {
  mc_link_read(ch, l);
  if (l->state != MC_LINK_UP) return;
  int error = l->why;
  while (make_room(l, SCRATCH)) {
    const ssize_t got = recv(l->fd, l->ahead + l->ahead_end, l->ahead_room - l->ahead_end, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got < 0 && !mc_would_block(errno)) error = errno;
      break;
    }
    l->ahead_end += (size_t)got;
    __atomic_fetch_add(&ch->c->stats.received_bytes, (uint64_t)got, __ATOMIC_RELAXED);
  }
  mc_link_lost(l, error);
  mc_link_read(ch, l);
  if (!l->broken) look_behind(ch, l);
}
