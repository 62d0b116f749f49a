/* Words between nodes: who is here and misses whom, verdicts, good-byes. They queue behind frames that
 * have begun to go out and never wait for room. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "net/connection.h"
#include "group/fault_point.h"

static bool say(struct mc_chan *ch, struct mc_link *l, uint8_t kind, const void *payload, size_t bytes,
                bool of_call) {
  struct mc_out *out = mc_out_new(ch, kind, NULL, bytes);
  if (!out) return false;
  if (bytes) {
    out->owned = malloc(bytes);
    if (!out->owned) {
      mc_out_free(ch, out);
      return false;
    }
    memcpy(out->owned, payload, bytes);
    out->data = out->owned;
  }
  if (of_call) mc_frame_call(&out->frame, ch->c);
  mc_link_queue(l, out);
  mc_link_send(ch, l);
  return true;
}

void mc_word_present(struct mc_chan *ch, const uint8_t *marks) {
  struct mc_run_of runs[MC_WORD_RUNS];
  const size_t count = mc_marks_pack(marks, ch->c->size, runs, MC_WORD_RUNS);
  for (struct mc_link *l = ch->links; l; l = l->next) {
    if (l->state != MC_LINK_UP || l->word_queued) continue;
    l->word_queued = true; /* cleared when it is out; before `say`, which may send it at once */
    if (!say(ch, l, MC_PRESENT, runs, count * sizeof runs[0], true)) l->word_queued = false;
    MC_FAULT_POINT(present_said);
  }
}

void mc_word_fail(struct mc_chan *ch, const struct mc_failure *failure) {
  struct { struct mc_verdict_word word; struct mc_run_of runs[MC_WORD_RUNS]; } payload;
  payload.word = (struct mc_verdict_word){
      .code = failure->code, .sys_errno = failure->sys_errno, .rank = failure->rank,
      .told_by = failure->told_by >= 0 ? failure->told_by : (int32_t)ch->c->rank,
      .waited_s = failure->waited_s, .mine = failure->mine, .other = failure->other};
  const size_t count = mc_marks_pack(failure->marks, ch->c->size, payload.runs, MC_WORD_RUNS);
  const size_t bytes = sizeof payload.word + count * sizeof payload.runs[0];
  for (struct mc_link *l = ch->links; l; l = l->next) {
    if (l->state != MC_LINK_UP) continue;
    mc_link_drop_queue(ch, l, false);
    const bool said = say(ch, l, MC_FAIL, &payload, bytes, false);
    MC_FAULT_POINT(verdict_told);
    if (l->state == MC_LINK_UP && (!said || l->first)) { /* no room: the end of the connection must tell */
      shutdown(l->fd, SHUT_WR);
      mc_link_drop_queue(ch, l, true);
      mc_link_lost(l, 0);
    }
  }
}

void mc_word_bye(struct mc_chan *ch) {
  for (struct mc_link *l = ch->links; l; l = l->next)
    if (l->state == MC_LINK_UP && say(ch, l, MC_BYE, NULL, 0, false)) MC_FAULT_POINT(bye_said);
}

static void take_verdict(struct mc_chan *ch, const struct mc_link *l, const uint8_t *payload) {
  struct mc_verdict_word word;
  struct mc_run_of runs[MC_WORD_RUNS];
  if (l->frame.bytes < sizeof word || ch->told_by_peer) return;
  memcpy(&word, payload, sizeof word);
  size_t count = (l->frame.bytes - sizeof word) / sizeof runs[0];
  if (count > MC_WORD_RUNS) count = MC_WORD_RUNS;
  memcpy(runs, payload + sizeof word, count * sizeof runs[0]);
  memset(ch->told_marks, MC_HERE, ch->c->size);
  mc_marks_unpack(runs, count, ch->told_marks, ch->c->size);
  const bool in_group = word.rank >= 0 && (uint32_t)word.rank < ch->c->size;
  ch->told_failure = (struct mc_failure){
      .code = word.code > MC_EINVAL && word.code <= MC_ECLOSED ? word.code : MC_ENET,
      .sys_errno = word.sys_errno, .rank = in_group ? word.rank : -1,
      .told_by = word.told_by >= 0 && (uint32_t)word.told_by < ch->c->size ? word.told_by : (int32_t)l->peer,
      .waited_s = word.waited_s, .mine = word.mine, .other = word.other, .marks = ch->told_marks};
  ch->told_by_peer = true, ch->told_ns = mc_now_ns();
}

/* Whether the call a word speaks of is another one here, now or among the last that have ended. */
static bool differs(const struct mc_comm *c, const struct mc_frame *frame) {
  if (frame->seq == c->desc.seq) return frame->sign != c->call_sign;
  const struct mc_desc theirs = mc_desc_of(frame), *mine = &c->records[frame->seq % MC_RECORDS].what;
  return mine->seq == frame->seq && frame->seq < c->desc.seq && memcmp(mine, &theirs, sizeof theirs) != 0;
}

static void take_presence(struct mc_chan *ch, struct mc_link *l, const uint8_t *payload) {
  const struct mc_comm *c = ch->c;
  if (l->frame.seq > l->heard_seq) l->heard_seq = l->frame.seq;
  if (ch->fault.code == MC_OK && differs(c, &l->frame))
    ch->fault = (struct mc_fault){.code = MC_EMISMATCH, .rank = (int)l->peer, .mark = MC_DIFFERENT,
                                  .has_other = true, .other = mc_desc_of(&l->frame)};
  free(l->missing);
  l->missing_count = l->frame.bytes / sizeof *l->missing;
  l->missing = malloc(l->missing_count * sizeof *l->missing + 1);
  l->word_seq = l->frame.seq;
  if (!l->missing) l->missing_count = 0;
  else memcpy(l->missing, payload, l->missing_count * sizeof *l->missing);
}

void mc_word_read(struct mc_chan *ch, struct mc_link *l, const uint8_t *payload) {
  switch (l->frame.kind) {
    case MC_PRESENT: take_presence(ch, l, payload); break;
    case MC_FAIL: take_verdict(ch, l, payload); break;
    case MC_BYE: l->bye = true; break;
    default: break;
  }
}

bool mc_missed_by(const struct mc_link *l, uint64_t seq, uint8_t *marks, uint32_t size) {
  if (l->word_seq != seq) return false;
  mc_marks_unpack(l->missing, l->missing_count, marks, size);
  return true;
}
