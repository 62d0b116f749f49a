/* One connection: its life and its outgoing frames. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define BATCH 8              /* frames of one system call */
#define VISIT (8u << 20)     /* bytes of one visit: others have a turn as well */

struct mc_link *mc_link_new(struct mc_chan *ch, uint32_t peer, bool accepted) {
  struct mc_link **row = accepted ? ch->taken : ch->made;
  if (row[peer]) return row[peer];
  struct mc_link *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->fd = -1, l->peer = peer, l->accepted = accepted;
  l->next = ch->links, ch->links = l, ch->link_count++;
  row[peer] = l;
  return l;
}

void mc_link_up(struct mc_chan *ch, struct mc_link *l, int fd, const struct mc_hello *hello) {
  if (l->fd >= 0 && l->fd != fd) close(l->fd); /* it was watched */
  l->fd = fd, l->state = MC_LINK_UP, l->why = 0, l->refused_ns = 0;
  if (l->accepted) mc_frame_keys(ch->c, hello, l->recv_key, l->send_key);
  else mc_frame_keys(ch->c, hello, l->send_key, l->recv_key);
}

void mc_link_anew(struct mc_link *l) {
  if (l->fd >= 0) close(l->fd);
  l->fd = -1, l->state = MC_LINK_NONE, l->ended = l->settled = l->bye = false;
  l->lost_ns = 0, l->ahead_at = l->ahead_end = 0, l->phase = MC_HEADER;
}

void mc_link_free(struct mc_link *l) {
  if (l->fd >= 0) close(l->fd);
  while (l->want_first) {
    struct mc_want *want = l->want_first;
    l->want_first = want->next;
    free(want);
  }
  while (l->first) {
    struct mc_out *out = l->first;
    l->first = out->next;
    free(out->owned);
    free(out);
  }
  free(l->ahead), free(l->word), free(l->missing);
  free(l);
}

struct mc_out *mc_out_new(struct mc_chan *ch, uint8_t kind, const void *data, uint64_t bytes) {
  struct mc_out *out = ch->spare_outs;
  if (out) ch->spare_outs = out->next;
  else if (!(out = malloc(sizeof *out))) return NULL;
  *out = (struct mc_out){.data = data, .left = sizeof out->frame + bytes};
  out->frame = (struct mc_frame){.magic = MC_FRAME_MAGIC, .kind = kind, .bytes = bytes};
  return out;
}

void mc_out_free(struct mc_chan *ch, struct mc_out *out) {
  free(out->owned), out->owned = NULL;
  out->next = ch->spare_outs, ch->spare_outs = out;
}

void mc_link_queue(struct mc_link *l, struct mc_out *out) {
  out->next = NULL;
  if (l->last) l->last->next = out;
  else l->first = out;
  l->last = out;
}

/* Takes what has not begun to go out of the queue; `also_begun`: that as well, nothing more is sent. */
void mc_link_drop_queue(struct mc_chan *ch, struct mc_link *l, bool also_begun) {
  struct mc_out *out = l->first;
  const bool begun = out && out->left < sizeof out->frame + out->frame.bytes;
  if (begun && !also_begun) {
    out = out->next;
    l->first->next = NULL, l->last = l->first;
  } else {
    l->first = l->last = NULL;
  }
  while (out) {
    struct mc_out *next = out->next;
    if (out->frame.kind == MC_PRESENT) l->word_queued = false;
    if (out->sealed) l->send_index--; /* its number is free again: sealed ones are the first of the row */
    mc_out_free(ch, out);
    out = next;
  }
}

void mc_link_lost(struct mc_link *l, int error) {
  if (l->state == MC_LINK_GONE) return;
  if (l->fd >= 0) close(l->fd);
  l->fd = -1, l->state = MC_LINK_GONE, l->ended = true;
  l->lost_ns = mc_now_ns(), l->why = error;
}

static void seal(struct mc_chan *ch, struct mc_link *l, struct mc_out *out) {
  if (out->sealed) return;
  if (ch->c->tuning.checked && out->frame.bytes) out->frame.sum = mc_frame_sum(out->data, out->frame.bytes);
  mc_seal(&out->frame, l->send_key, l->send_index++);
  out->sealed = true;
}

static void finish_sent(struct mc_chan *ch, struct mc_link *l, uint64_t sent) {
  while (l->first && sent) {
    struct mc_out *out = l->first;
    const uint64_t part = sent < out->left ? sent : out->left;
    out->left -= part, sent -= part;
    if (out->left) return;
    l->first = out->next;
    if (!l->first) l->last = NULL;
    if (out->frame.kind == MC_PRESENT) l->word_queued = false;
    else if (out->frame.kind == MC_DATA) ch->taker->sent(ch, l, out);
    mc_out_free(ch, out);
  }
}

void mc_link_send(struct mc_chan *ch, struct mc_link *l) {
  uint64_t visit = 0;
  while (l->state == MC_LINK_UP && l->first && visit < VISIT) {
    struct iovec pieces[2 * BATCH];
    size_t count = 0;
    uint64_t asked = 0;
    for (struct mc_out *out = l->first; out && count + 2 <= 2 * BATCH && asked < VISIT; out = out->next) {
      seal(ch, l, out);
      const uint64_t body = out->frame.bytes, head = out->left > body ? out->left - body : 0;
      if (head) {
        pieces[count].iov_base = (uint8_t *)&out->frame + (sizeof out->frame - head);
        pieces[count++].iov_len = head;
      }
      if (out->left - head) {
        pieces[count].iov_base = (uint8_t *)(uintptr_t)out->data + (body - (out->left - head));
        pieces[count++].iov_len = out->left - head;
      }
      asked += out->left;
    }
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    const ssize_t sent = sendmsg(l->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && mc_would_block(errno)) return;
    if (sent <= 0) { /* what it sent before it went may tell why */
      l->why = sent < 0 ? errno : EPIPE;
      mc_link_slurp(ch, l);
      return;
    }
    visit += (uint64_t)sent;
    ch->moved = true;
    if ((uint64_t)sent < asked) MC_FAULT_POINT(frames_part_sent);
    else MC_FAULT_POINT(frames_sent);
    __atomic_fetch_add(&ch->c->stats.sent_bytes, (uint64_t)sent, __ATOMIC_RELAXED);
    finish_sent(ch, l, (uint64_t)sent);
    if ((uint64_t)sent < asked) return; /* full */
  }
}
