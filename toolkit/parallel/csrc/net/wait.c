/* Waiting on the net: until what was posted is done, with the names of those who have not come. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include "net/connection.h"

static bool awaited(const struct mc_link *l) { return l->want_first || l->first; }

static uint32_t world_rank(const struct mc_comm *c, uint32_t local) {
  return c->members[c->first_of[c->node] + local];
}

/* A rank that waits in a call speaks every 200 ms: one that does not is stopped, or its host is. */
static bool is_here(const struct mc_link *l, uint64_t seq, uint64_t now) {
  return l->heard_seq >= seq && now - l->heard_ns < MC_QUIET_NS;
}

/* Who has not come, as far as this rank can know: those that ranks which are here miss, and those it awaits
 * and does not hear in this call. Returns the first, or -1. */
static int missing(struct mc_chan *ch, uint8_t *marks) {
  const struct mc_comm *c = ch->c;
  const uint64_t seq = c->desc.seq, now = mc_now_ns();
  memset(marks, MC_HERE, c->size);
  for (const struct mc_link *l = ch->links; l; l = l->next)
    if (awaited(l) && is_here(l, seq, now)) mc_missed_by(l, seq, marks, c->size);
  marks[c->rank] = MC_HERE; /* another rank may have missed this one a moment ago */
  for (const struct mc_link *l = ch->links; l; l = l->next) { /* what we hear ourselves is newer */
    if (is_here(l, seq, now)) marks[l->peer] = MC_HERE;
    else if (awaited(l)) marks[l->peer] = MC_MISSING;
  }
  for (uint32_t rank = 0; rank < c->size; rank++)
    if (marks[rank] != MC_HERE) return (int)rank;
  return -1;
}

static int too_late(struct mc_chan *ch) {
  struct mc_comm *c = ch->c;
  int first = missing(ch, ch->marks), code = MC_ETIMEOUT, error = 0;
  for (const struct mc_link *l = ch->links; l; l = l->next) {
    if (!awaited(l)) continue;
    if (first < 0) ch->marks[l->peer] = MC_MISSING; /* all are here, these are slow */
    if (l->state < MC_LINK_UP && !l->accepted && l->why && l->why != ECONNREFUSED) { /* never reached at all */
      code = MC_ENET, error = l->why, ch->marks[l->peer] = MC_MISSING, first = (int)l->peer;
    }
  }
  for (uint32_t rank = 0; first < 0 && rank < c->size; rank++)
    if (ch->marks[rank] != MC_HERE) first = (int)rank;
  return mc_fail(c, code, error, first, ch->marks, NULL);
}

/* Ranks of this node have their part in the call as well. One that has ended without a word may have done it;
 * that becomes a failure only if nobody else's word comes within a second. */
static int look_at_locals(struct mc_chan *ch, uint64_t now) {
  struct mc_comm *c = ch->c;
  if (now - ch->alive_ns < MC_SLICE_NS) return MC_OK;
  ch->alive_ns = now;
  for (uint32_t i = 0; c->segment && i < c->locals; i++) {
    if (i == c->local || atomic_load(&c->segment->ranks[i].state) == 2 || mc_local_alive(c, i)) continue;
    if (!ch->dead_ns) ch->dead_ns = now;
    if (now - ch->dead_ns < MC_UNASKED_NS) return MC_OK;
    const uint32_t rank = world_rank(c, i);
    memset(ch->marks, MC_HERE, c->size);
    ch->marks[rank] = MC_DEAD;
    return mc_fail(c, MC_EPEER, 0, (int)rank, ch->marks, NULL);
  }
  return MC_OK;
}

static bool may_speak(const struct mc_chan *ch, uint64_t now) {
  const uint64_t since = ch->spoke_ns > ch->c->began_ns ? ch->spoke_ns : ch->c->began_ns;
  return now - since >= MC_WORD_NS;
}

/* A rank that is kept waiting makes the connections over which others will ask where it is, and over which a
 * verdict can reach them: to those of its own place in the other nodes. Those it awaits and that have made
 * none may be dead: it watches them. */
static void reach_out(struct mc_chan *ch, uint64_t now) {
  const struct mc_comm *c = ch->c;
  const uint64_t waited = now - c->began_ns;
  if (waited < MC_REACH_NS && (double)waited < c->call.timeout_s * 0.25e9) return;
  for (uint32_t node = 0; node < c->nodes; node++) {
    const uint32_t begin = c->first_of[node], locals = c->first_of[node + 1] - begin;
    const uint32_t peer = c->members[begin + (c->local < locals ? c->local : 0)];
    if (node == c->node || peer > c->rank) continue;
    struct mc_link *l = mc_link_new(ch, peer, false);
    if (l) mc_dial(l);
  }
  for (struct mc_link *l = ch->links; l; l = l->next)
    if (l->accepted && awaited(l)) mc_dial(l);
}

static bool is_done(struct mc_comm *c, uint64_t ticket) {
  return ticket ? mc_net_done(c, ticket) : c->net->channels[MC_NET_COLLECTIVE].open == 0;
}

/* Handlers, deaths, words and the deadline are looked at also while data moves: a slow link moves it for long. */
static int wait_for(struct mc_comm *c, uint64_t ticket) {
  struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  const uint64_t start = mc_now_ns();
  const uint64_t spin = c->tuning.spin_s > 0 ? (uint64_t)(c->tuning.spin_s * 1e9) : 0;
  uint64_t moved = start, now = start;
  int code = MC_OK;
  while (code == MC_OK && !is_done(c, ticket)) {
    code = mc_channel_progress(ch, now - moved < spin ? 0 : MC_SLICE_NS);
    now = mc_now_ns();
    if (ch->moved) moved = now;
    if (code == MC_OK) code = mc_attended(c);
    if (code == MC_OK) code = look_at_locals(ch, now);
    if (code == MC_OK && may_speak(ch, now)) {
      ch->spoke_ns = now;
      reach_out(ch, now);
      missing(ch, ch->marks);
      mc_word_present(ch, ch->marks);
    }
    const bool late = c->deadline_ns && now > c->deadline_ns + MC_GRACE_NS;
    if (code == MC_OK && late && !is_done(c, ticket)) code = too_late(ch);
  }
  const uint64_t took = mc_now_ns() - start;
  c->waited_ns += took;
  c->away_ns += took;
  return code;
}

int mc_net_finish(struct mc_comm *c) { return wait_for(c, 0); }

int mc_net_await(struct mc_comm *c, uint64_t ticket) { return wait_for(c, ticket); }

int mc_net_look(struct mc_comm *c, const uint8_t *missing_locals) {
  struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  const int code = mc_channel_progress(ch, 0);
  if (code != MC_OK) return code;
  const uint64_t now = mc_now_ns();
  if (!may_speak(ch, now)) return MC_OK;
  ch->spoke_ns = now;
  reach_out(ch, now);
  missing(ch, ch->marks);
  for (uint32_t i = 0; missing_locals && i < c->locals; i++)
    if (missing_locals[i] && i != c->local) ch->marks[world_rank(c, i)] = MC_MISSING;
  mc_word_present(ch, ch->marks);
  return MC_OK;
}

static bool being_made(struct mc_chan *ch) {
  for (const struct mc_link *l = ch->links; l; l = l->next)
    if (awaited(l) && l->state < MC_LINK_UP) return true;
  return mc_door_busy(ch->net) || __atomic_load_n(&ch->handed, __ATOMIC_ACQUIRE);
}

/* Who is just connecting has not heard of the failure: it would wait, or take this rank for the dead one. */
static void finish_connecting(struct mc_chan *ch) {
  const uint64_t until = mc_now_ns() + MC_TELL_NS;
  const struct timespec slice = {.tv_nsec = 5000000};
  while (being_made(ch) && mc_now_ns() < until) {
    mc_channel_push(ch);
    const uint32_t count = mc_channel_polls(ch);
    if (!count || ppoll(ch->polls, count, &slice, NULL) < 0) return;
    mc_channel_polled(ch);
  }
}

void mc_net_tell(struct mc_comm *c, const struct mc_failure *failure) {
  struct mc_chan *ch = &c->net->channels[MC_NET_COLLECTIVE];
  if (ch->told) return;
  ch->told = true;
  finish_connecting(ch);
  mc_word_fail(ch, failure);
}
