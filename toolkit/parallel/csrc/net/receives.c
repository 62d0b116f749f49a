/* What the collective channel does with frames and losses. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include "net/connection.h"
#include "group/fault_point.h"

static void differs(struct mc_chan *ch, const struct mc_link *l) {
  if (ch->fault.code != MC_OK) return;
  ch->fault = (struct mc_fault){.code = MC_EMISMATCH, .rank = (int)l->peer, .mark = MC_DIFFERENT,
                                .has_other = true, .other = mc_desc_of(&l->frame)};
}

/* A frame nobody waits for: of a later call it may be, the peer is ahead. But what belongs to this call must
 * be of the same call, and what is left over from a call that has ended was another call there. */
static bool strange(const struct mc_chan *ch, const struct mc_link *l) {
  const struct mc_comm *c = ch->c;
  if (l->frame.seq == c->desc.seq) return l->frame.sign != c->call_sign;
  return l->frame.seq < c->desc.seq;
}

static enum mc_taking begin(struct mc_chan *ch, struct mc_link *l) {
  const struct mc_want *want = l->want_first;
  if (l->frame.seq > l->heard_seq) l->heard_seq = l->frame.seq;
  if (!want && !strange(ch, l)) return MC_HOLD;
  if (!want || l->frame.sign != want->sign || l->frame.bytes != want->bytes) {
    differs(ch, l);
    return MC_REFUSE;
  }
  l->to = want->data;
  return MC_TAKE;
}

static void landed(struct mc_chan *ch, struct mc_link *l) {
  struct mc_want *want = l->want_first;
  MC_FAULT_POINT(frame_landed);
  l->want_first = want->next;
  if (!l->want_first) l->want_last = NULL;
  mc_ticket_done(ch, want->ticket);
  want->next = ch->spare_wants, ch->spare_wants = want;
}

static void sent(struct mc_chan *ch, struct mc_link *l, struct mc_out *out) {
  (void)l;
  mc_ticket_done(ch, out->ticket);
}

const struct mc_taker mc_collective_taker = {begin, landed, sent, mc_word_read};

static int lose(struct mc_chan *ch, const struct mc_link *l, int error, uint8_t mark) {
  memset(ch->marks, MC_HERE, ch->c->size);
  ch->marks[l->peer] = mark;
  return mc_fail(ch->c, MC_EPEER, error, (int)l->peer, ch->marks, NULL);
}

/* Losses wait a little for the verdict of somebody who knows why. A rank that has left, or from which nothing
 * is awaited, may have done its part of the call. */
static int look_at(struct mc_chan *ch, struct mc_link *l, uint64_t now) {
  const bool awaited = l->want_first || l->first;
  if (mc_dial_gone(l, now) && awaited) return lose(ch, l, ECONNREFUSED, MC_DEAD);
  /* also where all has been handed to the kernel: it sends no probes while data is unacknowledged */
  if (l->state == MC_LINK_UP && awaited && now - l->probed_ns > 1000000000u) {
    l->probed_ns = now;
    if (mc_socket_silent(l->fd)) mc_link_lost(l, ETIMEDOUT);
  }
  if (l->phase == MC_HELD && !l->broken && !l->want_first && strange(ch, l)) differs(ch, l); /* seen at the next look */
  if (l->state != MC_LINK_GONE || (l->bye && !awaited)) return MC_OK;
  if (now - l->lost_ns < (awaited ? MC_ELSEWHERE_NS : MC_UNASKED_NS)) return MC_OK;
  return lose(ch, l, l->why, l->bye ? MC_LEFT : MC_DEAD);
}

/* A verdict on a later call may come in one read with the last data of this one, which is all right: the
 * call has a moment to end. The next finds the verdict at its first look. */
static bool may_be_put_off(const struct mc_chan *ch) {
  return ch->told_failure.code != MC_EABORT && ch->told_failure.mine.seq > ch->c->desc.seq &&
         mc_now_ns() - ch->told_ns < MC_ELSEWHERE_NS;
}

int mc_settle(struct mc_chan *ch) {
  struct mc_comm *c = ch->c;
  if (ch->told_by_peer && !may_be_put_off(ch)) { /* this tells it on, so that it reaches nodes which the finder has no connection to */
    ch->told_by_peer = false;
    return mc_fail_told(c, &ch->told_failure);
  }
  if (ch->fault.code != MC_OK) {
    const struct mc_fault fault = ch->fault;
    ch->fault.code = MC_OK;
    memset(ch->marks, MC_HERE, c->size);
    ch->marks[fault.rank] = fault.mark;
    return mc_fail(c, fault.code, fault.sys_errno, fault.rank, ch->marks, fault.has_other ? &fault.other : NULL);
  }
  const uint64_t now = mc_now_ns();
  for (struct mc_link *l = ch->links; l; l = l->next) {
    const int code = look_at(ch, l, now);
    if (code != MC_OK) return code;
  }
  return MC_OK;
}
