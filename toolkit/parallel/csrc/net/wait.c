/* Waiting on the net: until what was posted is done, with the names of those who have not come. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include "net/connection.h"

static bool awaited(const struct mc_conn *conn) { return conn->recv_first || conn->first; }

static uint32_t world_rank(const struct mc_comm *c, uint32_t local) {
  return c->members[c->first_of[c->node] + local];
}

/* A rank that waits in a call speaks every 200 ms: one that does not is stopped, or its host is. */
static bool is_here(const struct mc_conn *conn, uint64_t seq, uint64_t now) {
  return conn->heard_seq >= seq && now - conn->heard_ns < MC_QUIET_NS;
}

/* Who has not come, as far as this rank can know: those that ranks which are here miss, and those it awaits
 * and does not hear in this call. Returns the first, or -1. */
static int missing(struct mc_loop *loop, uint8_t *rank_status) {
  const struct mc_comm *c = loop->c;
  const uint64_t seq = c->desc.seq, now = mc_now_ns();
  memset(rank_status, MC_HERE, c->size);
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (awaited(conn) && is_here(conn, seq, now)) mc_missed_by(conn, seq, rank_status, c->size);
  rank_status[c->rank] = MC_HERE; /* another rank may have missed this one a moment ago */
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next) { /* what we hear ourselves is newer */
    if (is_here(conn, seq, now)) rank_status[conn->peer] = MC_HERE;
    else if (awaited(conn)) rank_status[conn->peer] = MC_MISSING;
  }
  for (uint32_t rank = 0; rank < c->size; rank++)
    if (rank_status[rank] != MC_HERE) return (int)rank;
  return -1;
}

static int too_late(struct mc_loop *loop) {
  struct mc_comm *c = loop->c;
  int first = missing(loop, loop->rank_status), code = MC_ETIMEOUT, error = 0;
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    if (!awaited(conn)) continue;
    if (first < 0) loop->rank_status[conn->peer] = MC_MISSING; /* all are here, these are slow */
    if (conn->state < MC_CONN_UP && !conn->accepted && conn->why && conn->why != ECONNREFUSED) { /* never reached at all */
      code = MC_ENET, error = conn->why, loop->rank_status[conn->peer] = MC_MISSING, first = (int)conn->peer;
    }
  }
  for (uint32_t rank = 0; first < 0 && rank < c->size; rank++)
    if (loop->rank_status[rank] != MC_HERE) first = (int)rank;
  return mc_fail(c, code, error, first, loop->rank_status, NULL);
}

/* Ranks of this node have their part in the call as well. One that has ended without a word may have done it;
 * that becomes a failure only if nobody else's word comes within a second. */
static int check_locals(struct mc_loop *loop, uint64_t now) {
  struct mc_comm *c = loop->c;
  if (now - loop->alive_ns < MC_SLICE_NS) return MC_OK;
  loop->alive_ns = now;
  for (uint32_t i = 0; c->segment && i < c->locals; i++) {
    if (i == c->local || atomic_load(&c->segment->ranks[i].state) == 2 || mc_local_alive(c, i)) continue;
    if (!loop->dead_ns) loop->dead_ns = now;
    if (now - loop->dead_ns < MC_UNASKED_NS) return MC_OK;
    const uint32_t rank = world_rank(c, i);
    memset(loop->rank_status, MC_HERE, c->size);
    loop->rank_status[rank] = MC_DEAD;
    return mc_fail(c, MC_EPEER, 0, (int)rank, loop->rank_status, NULL);
  }
  return MC_OK;
}

static bool heartbeat_is_due(const struct mc_loop *loop, uint64_t now) {
  const uint64_t since = loop->heartbeat_ns > loop->c->began_ns ? loop->heartbeat_ns : loop->c->began_ns;
  return now - since >= MC_HEARTBEAT_NS;
}

/* A rank that is kept waiting makes the connections over which others will ask where it is, and over which a
 * error record can reach them: to those of its own place in the other nodes. Those it awaits and that have made
 * none may be dead: it watches them. */
static void connect_peers(struct mc_loop *loop, uint64_t now) {
  const struct mc_comm *c = loop->c;
  const uint64_t waited = now - c->began_ns;
  if (waited < MC_REACH_NS && (double)waited < c->call.timeout_s * 0.25e9) return;
  for (uint32_t node = 0; node < c->nodes; node++) {
    const uint32_t begin = c->first_of[node], locals = c->first_of[node + 1] - begin;
    const uint32_t peer = c->members[begin + (c->local < locals ? c->local : 0)];
    if (node == c->node || peer > c->rank) continue;
    struct mc_conn *conn = mc_conn_new(loop, peer, false);
    if (conn) mc_connect(conn);
  }
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (conn->accepted && awaited(conn)) mc_connect(conn);
}

static bool is_done(struct mc_comm *c, uint64_t ticket) {
  return ticket ? mc_net_done(c, ticket) : c->net->channels[MC_NET_COLLECTIVE].open == 0;
}

/* Handlers, deaths, words and the deadline are looked at also while data moves: a slow connection moves it for long. */
static int wait_for(struct mc_comm *c, uint64_t ticket) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  const uint64_t start = mc_now_ns();
  const uint64_t spin = c->tuning.spin_s > 0 ? (uint64_t)(c->tuning.spin_s * 1e9) : 0;
  uint64_t moved = start, now = start;
  int code = MC_OK;
  while (code == MC_OK && !is_done(c, ticket)) {
    code = mc_loop_progress(loop, now - moved < spin ? 0 : MC_SLICE_NS);
    now = mc_now_ns();
    if (loop->moved) moved = now;
    if (code == MC_OK) code = mc_check_signals(c);
    if (code == MC_OK) code = check_locals(loop, now);
    if (code == MC_OK && heartbeat_is_due(loop, now)) {
      loop->heartbeat_ns = now;
      connect_peers(loop, now);
      missing(loop, loop->rank_status);
      mc_control_heartbeat(loop, loop->rank_status);
    }
    const bool late = c->deadline_ns && now > c->deadline_ns + MC_GRACE_NS;
    if (code == MC_OK && late && !is_done(c, ticket)) code = too_late(loop);
  }
  const uint64_t took = mc_now_ns() - start;
  c->waited_ns += took;
  c->remote_wait_ns += took;
  return code;
}

int mc_net_finish(struct mc_comm *c) { return wait_for(c, 0); }

int mc_net_await(struct mc_comm *c, uint64_t ticket) { return wait_for(c, ticket); }

int mc_net_look(struct mc_comm *c, const uint8_t *missing_locals) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  const int code = mc_loop_progress(loop, 0);
  if (code != MC_OK) return code;
  const uint64_t now = mc_now_ns();
  if (!heartbeat_is_due(loop, now)) return MC_OK;
  loop->heartbeat_ns = now;
  connect_peers(loop, now);
  missing(loop, loop->rank_status);
  for (uint32_t i = 0; missing_locals && i < c->locals; i++)
    if (missing_locals[i] && i != c->local) loop->rank_status[world_rank(c, i)] = MC_MISSING;
  mc_control_heartbeat(loop, loop->rank_status);
  return MC_OK;
}

static bool being_made(struct mc_loop *loop) {
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (awaited(conn) && conn->state < MC_CONN_UP) return true;
  return mc_listener_is_busy(loop->net) || __atomic_load_n(&loop->handed, __ATOMIC_ACQUIRE);
}

/* Who is just connecting has not heard of the failure: it would wait, or take this rank for the dead one. */
static void finish_connecting(struct mc_loop *loop) {
  const uint64_t until = mc_now_ns() + MC_PROPAGATE_NS;
  const struct timespec slice = {.tv_nsec = 5000000};
  while (being_made(loop) && mc_now_ns() < until) {
    mc_loop_push(loop);
    const uint32_t count = mc_loop_polls(loop);
    if (!count || ppoll(loop->polls, count, &slice, NULL) < 0) return;
    mc_loop_polled(loop);
  }
}

void mc_net_propagate(struct mc_comm *c, const struct mc_failure *failure) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  if (loop->propagated) return;
  loop->propagated = true;
  finish_connecting(loop);
  mc_control_abort(loop, failure);
}
