/* Long waits on the net: heartbeats, the ranks that have not come, and how a failure is sent. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include "net/connection.h"

static bool awaited(const struct mc_conn *conn) { return conn->receives.first || conn->sends.first; }

/* A rank that waits in a call speaks every 200 ms: one that does not is stopped, or its host is. */
static bool is_here(const struct mc_conn *conn, uint64_t seq, uint64_t now) {
  return conn->heard_seq >= seq && now - conn->heard_ns < MC_QUIET_NS;
}

/* The ranks that have not come, as far as this rank can know: those that ranks which are here miss, and those it awaits
 * and does not hear in this call. Returns the first, or -1. */
static int missing(struct mc_loop *loop, uint8_t *rank_status) {
  const struct mc_comm *c = loop->c;
  const uint64_t seq = c->desc.seq, now = mc_now_ns();
  memset(rank_status, MC_HERE, c->size);
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (awaited(conn) && is_here(conn, seq, now) && conn->heartbeat_seq == seq)
      mc_rank_status_unpack(conn->missing, conn->missing_count, rank_status, c->size);
  rank_status[c->rank] = MC_HERE; /* another rank may have missed this one a moment ago */
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next) /* what we hear ourselves is newer */
    if (awaited(conn) && !is_here(conn, seq, now)) rank_status[conn->peer] = MC_MISSING;
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next) /* by any of its streams */
    if (is_here(conn, seq, now)) rank_status[conn->peer] = MC_HERE;
  for (uint32_t rank = 0; rank < c->size; rank++)
    if (rank_status[rank] != MC_HERE) return (int)rank;
  return -1;
}

void mc_net_late(struct mc_comm *c, struct mc_failure *loss) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  int first = missing(loop, loop->rank_status), code = MC_ETIMEOUT, error = 0;
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next) {
    if (!awaited(conn)) continue;
    if (first < 0) loop->rank_status[conn->peer] = MC_MISSING; /* all are here, these are slow */
    if (conn->state < MC_CONN_UP && !conn->accepted && conn->why && conn->why != ECONNREFUSED) { /* never reached at all */
      code = MC_ENET, error = conn->why, loop->rank_status[conn->peer] = MC_MISSING, first = (int)conn->peer;
    }
    if (mc_connect_lacks_fd(loop, conn, 0)) {
      code = MC_ESYS, error = EMFILE, first = (int)c->rank;
      break;
    }
  }
  for (uint32_t rank = 0; first < 0 && rank < c->size; rank++)
    if (loop->rank_status[rank] != MC_HERE) first = (int)rank;
  *loss = (struct mc_failure){.code = code, .sys_errno = error, .rank = first, .reported_by = -1,
                              .rank_status = loop->rank_status};
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
    if (node != c->node && peer < c->rank) mc_connect_to(loop, peer, 0);
  }
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (conn->accepted && awaited(conn)) mc_connect(conn);
}

void mc_net_heartbeat(struct mc_comm *c, const uint8_t *missing_locals) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  const uint64_t now = mc_now_ns();
  if (!heartbeat_is_due(loop, now)) return;
  loop->heartbeat_ns = now;
  connect_peers(loop, now);
  missing(loop, loop->rank_status);
  for (uint32_t i = 0; missing_locals && i < c->locals; i++)
    if (missing_locals[i] && i != c->local) loop->rank_status[mc_rank_of(c, i)] = MC_MISSING;
  mc_control_heartbeat(loop, loop->rank_status);
}

int mc_net_look(struct mc_comm *c, const uint8_t *missing_locals, struct mc_failure *loss) {
  bool moved;
  const int code = mc_net_step(c, 0, &moved, loss);
  if (code == MC_OK) mc_net_heartbeat(c, missing_locals);
  return code;
}

static bool being_made(struct mc_loop *loop) {
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (awaited(conn) && conn->state < MC_CONN_UP) return true;
  return mc_listener_is_busy(loop->net) || __atomic_load_n(&loop->handed, __ATOMIC_ACQUIRE);
}

/* A rank that is just connecting has not heard of the failure: it would wait, or take this rank for the dead one. */
static void finish_connecting(struct mc_loop *loop) {
  const uint64_t until = mc_now_ns() + MC_PROPAGATE_NS;
  while (being_made(loop) && mc_now_ns() < until && mc_loop_turn(loop, 5000000u)) {}
}

void mc_net_propagate(struct mc_comm *c, const struct mc_failure *failure) {
  struct mc_loop *loop = &c->net->channels[MC_NET_COLLECTIVE];
  finish_connecting(loop);
  mc_listener_deafen(c->net);
  mc_listener_fetch(loop);
  mc_control_abort(loop, failure);
}
