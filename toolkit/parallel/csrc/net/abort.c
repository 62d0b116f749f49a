/* An abort told to other nodes by a thread of its own, since the rank that aborts may be in no call and may
 * have no connection. Its hello on the channel MC_NET_ABORT says all: the thread that listens there, whatever its rank is
 * doing, writes the group's failure for its node (net/listener.c). One rank of a node is enough. */
#define _GNU_SOURCE
#include <time.h>
#include "net/connection.h"

#define NEXT_NS 20000000u    /* a node that has not answered for so long: its next rank is asked, too */
#define AT_ONCE 256u         /* connections: a process has 1,024 descriptors as a rule */
#define RETURN_NS 250000000u /* how long mc_abort waits for its message to be out: its caller may end the process */
#define CLOSE_NS 300000000u

static bool has_heard(struct mc_loop *loop, uint32_t node) {
  const struct mc_comm *c = loop->c;
  for (uint32_t i = c->first_of[node]; i < c->first_of[node + 1]; i++) {
    const struct mc_conn *conn = loop->outgoing[c->members[i]];
    if (conn && conn->state == MC_CONN_GONE) return true;
  }
  return false;
}

/* The `turn`th rank of each node that is left, beginning with the one of this rank's own place; one for which
 * there was no room gets a later turn. Returns how many nodes are left. */
static uint32_t connect_nodes(struct mc_loop *loop, uint32_t turn) {
  const struct mc_comm *c = loop->c;
  uint32_t left = 0, open = 0;
  for (const struct mc_conn *conn = loop->conns; conn; conn = conn->next) open += conn->state != MC_CONN_GONE;
  for (uint32_t node = 0; node < c->nodes; node++) {
    const uint32_t begin = c->first_of[node], locals = c->first_of[node + 1] - begin;
    if (node == c->node || has_heard(loop, node)) continue;
    left++;
    const uint32_t peer = c->members[begin + (c->local + turn) % locals];
    if (loop->outgoing[peer] || open >= AT_ONCE) continue;
    if (mc_connect_to(loop, peer, 0)) open++;
  }
  return left;
}

static void close_answered(struct mc_loop *loop) {
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next)
    if (conn->state == MC_CONN_UP) mc_conn_lost(conn, 0); /* it has proved that it heard */
}

static void *run_abort(void *of) {
  struct mc_loop *loop = of;
  struct mc_abort *abort = &loop->net->abort;
  for (uint32_t turn = 0; !atomic_load(&abort->stop) && connect_nodes(loop, turn) && turn < UINT32_MAX; turn++) {
    const uint64_t until = mc_now_ns() + (turn < MC_LOCALS ? NEXT_NS : MC_SLICE_NS);
    for (uint64_t now; (now = mc_now_ns()) < until && !atomic_load(&abort->stop);) {
      mc_loop_turn(loop, until - now);
      close_answered(loop);
    }
  }
  for (struct mc_conn *conn = loop->conns; conn; conn = conn->next) mc_conn_lost(conn, 0); /* no listener shall wait for these hellos */
  atomic_store(&abort->done, 1);
  return NULL;
}

static void wait_until_done(const struct mc_abort *abort, uint64_t until) {
  const struct timespec slice = {.tv_nsec = 1000000};
  while (!atomic_load(&abort->done) && mc_now_ns() < until) nanosleep(&slice, NULL);
}

void mc_net_abort(struct mc_comm *c) {
  struct mc_net *n = c->net;
  struct mc_abort *abort = &n->abort;
  if (atomic_exchange(&abort->begun, 1)) return;
  abort->began_ns = mc_now_ns();
  const bool started = mc_thread_start(&abort->thread, run_abort, &n->channels[MC_NET_ABORT]);
  atomic_store(&abort->started, started);
  if (started) wait_until_done(abort, abort->began_ns + RETURN_NS);
}

void mc_net_abort_end(struct mc_net *n) {
  struct mc_abort *abort = &n->abort;
  if (!atomic_load(&abort->started)) return;
  wait_until_done(abort, abort->began_ns + CLOSE_NS);
  atomic_store(&abort->stop, 1);
  pthread_join(abort->thread, NULL);
}
