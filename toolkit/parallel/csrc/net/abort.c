/* An abort told to other nodes by a thread of its own, since the rank that aborts may be in no call and may
 * have no connection. Its hello on the channel MC_NET_ABORT says all: whoever listens there, for any wait at
 * all, writes the group's failure for its node (net/listener.c). One rank of a node is enough. Ranks that are in
 * no call do not listen: what was sent waits in their sockets until they make their next call. */
#define _GNU_SOURCE
#include <poll.h>
#include <time.h>
#include "net/connection.h"
#include "group/fault_point.h"

#define NEXT_NS 20000000u   /* a node that has not answered for so long: its next rank is asked, too */
#define AT_ONCE 256u        /* connections: a process has 1,024 descriptors as a rule */
#define RETURN_NS 250000000u /* how long mc_abort waits for the word to be out: its caller may end the process */
#define CLOSE_NS 300000000u

static bool is_told(struct mc_chan *ch, uint32_t node) {
  const struct mc_comm *c = ch->c;
  for (uint32_t i = c->first_of[node]; i < c->first_of[node + 1]; i++) {
    const struct mc_link *l = ch->made[c->members[i]];
    if (l && l->state == MC_LINK_GONE) return true;
  }
  return false;
}

/* The `turn`th rank of each node that is left, beginning with the one of this rank's own place; one for which
 * there was no room gets a later turn. Returns how many nodes are left. */
static uint32_t dial(struct mc_chan *ch, uint32_t turn) {
  const struct mc_comm *c = ch->c;
  uint32_t left = 0, open = 0;
  for (const struct mc_link *l = ch->links; l; l = l->next) open += l->state != MC_LINK_GONE;
  for (uint32_t node = 0; node < c->nodes; node++) {
    const uint32_t begin = c->first_of[node], locals = c->first_of[node + 1] - begin;
    if (node == c->node || is_told(ch, node)) continue;
    left++;
    const uint32_t peer = c->members[begin + (c->local + turn) % locals];
    if (ch->made[peer] || open >= AT_ONCE) continue;
    struct mc_link *l = mc_link_new(ch, peer, false);
    if (l) mc_dial(l), open++;
  }
  return left;
}

static void settle(struct mc_chan *ch) {
  for (struct mc_link *l = ch->links; l; l = l->next)
    if (l->state == MC_LINK_UP) mc_link_lost(l, 0); /* it has proved that it heard */
}

static void *tell(void *of) {
  struct mc_chan *ch = of;
  struct mc_abort *abort = &ch->net->abort;
  for (uint32_t turn = 0; !atomic_load(&abort->stop) && dial(ch, turn) && turn < UINT32_MAX; turn++) {
    const uint64_t until = mc_now_ns() + (turn < MC_LOCALS ? NEXT_NS : MC_SLICE_NS);
    for (uint64_t now; (now = mc_now_ns()) < until && !atomic_load(&abort->stop);) {
      mc_channel_push(ch);
      const uint32_t count = mc_channel_polls(ch);
      const uint64_t due = mc_channel_due(ch, now), left = until - now;
      const struct timespec wait = {.tv_nsec = (long)(due < left ? due : left)};
      if (count && ppoll(ch->polls, count, &wait, NULL) >= 0) mc_channel_polled(ch);
      settle(ch);
    }
  }
  for (struct mc_link *l = ch->links; l; l = l->next) mc_link_lost(l, 0); /* nobody shall wait for these hellos */
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
  const bool started = mc_thread_start(&abort->thread, tell, &n->channels[MC_NET_ABORT]);
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
