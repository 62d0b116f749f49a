/* mc_post and mc_wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "p2p/state.h"
#include "group/fault_point.h"

#define SLOT_BITS 24
#define LONG_SPIN 10u  /* times the spin of a sum: to another node and back, or a copy of a megabyte, takes longer */
#define SPIN_REST 127u /* waits at most that do not spin after spins that were in vain */

static void release(struct mc_p2p *p) {
  mc_views_close(p);
  for (uint32_t rank = 0; rank < p->c->size; rank++) {
    if (p->peers[rank].current) mc_message_cut(p, p->peers[rank].current);
    mc_ring_forget(p, &p->peers[rank]);
  }
  for (struct mc_conn *conn = p->loop ? p->loop->conns : NULL; conn; conn = conn->next) {
    if (conn->incoming) mc_message_cut(p, conn->incoming);
    conn->incoming = NULL, conn->faulty = true; /* nobody is left to take what comes */
  }
  while (p->early.first) mc_message_cut(p, p->early.first);
  for (uint32_t local = 0; local < p->c->locals; local++) mc_messages_drop(p, mc_rank_of(p->c, local));
  mc_notes_free(p);
  for (uint32_t i = 0; i < p->slots; i++) free(p->requests[i]);
  free(p->requests), free(p->free_slots), free(p->peers);
  pthread_cond_destroy(&p->net_rest);
  pthread_cond_destroy(&p->ended_news);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

int mc_p2p_open(struct mc_comm *c) {
  struct mc_p2p *p = calloc(1, sizeof *p);
  struct mc_peer *peers = calloc(c->size, sizeof *peers);
  if (!p || !peers) {
    free(p), free(peers);
    return ENOMEM;
  }
  p->c = c, p->loop = c->net ? &c->net->channels[MC_NET_P2P] : NULL, p->peers = peers;
  pthread_mutex_init(&p->lock, NULL);
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&p->net_rest, &clock);
  pthread_cond_init(&p->ended_news, NULL);
  pthread_condattr_destroy(&clock);
  mc_area_map(p);
  c->p2p = p;
  return 0;
}

static bool more_slots(struct mc_p2p *p) {
  const uint32_t slots = p->slots ? p->slots * 2 : 64;
  if (slots > 1u << SLOT_BITS) return false;
  struct mc_request **requests = realloc(p->requests, slots * sizeof(struct mc_request *));
  if (requests) p->requests = requests;
  uint32_t *free_slots = realloc(p->free_slots, slots * sizeof *free_slots);
  if (free_slots) p->free_slots = free_slots;
  if (!requests || !free_slots) return false;
  for (uint32_t i = slots; i-- > p->slots;) p->requests[i] = NULL, p->free_slots[p->free_count++] = i;
  p->slots = slots;
  return true;
}

static struct mc_request *new_request(struct mc_p2p *p) {
  if (!p->free_count && !more_slots(p)) return NULL;
  struct mc_request *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  const uint32_t slot = p->free_slots[--p->free_count];
  r->id = ++p->next_id << SLOT_BITS | slot;
  p->requests[slot] = r;
  return r;
}

struct mc_request *mc_request_find(const struct mc_p2p *p, uint64_t id) {
  const uint64_t slot = id & ((1u << SLOT_BITS) - 1);
  struct mc_request *r = slot < p->slots ? p->requests[slot] : NULL;
  return r && r->id == id ? r : NULL;
}

static void forget(struct mc_p2p *p, struct mc_request *r) {
  const uint32_t slot = (uint32_t)(r->id & ((1u << SLOT_BITS) - 1));
  p->requests[slot] = NULL, p->free_slots[p->free_count++] = slot;
  free(r);
}

static int begin_send(struct mc_p2p *p, struct mc_request *r) {
  const uint32_t peer = (uint32_t)r->peer;
  __atomic_fetch_add(&p->c->stats.sends, 1, __ATOMIC_RELAXED);
  if (peer == p->c->rank) {
    if (!mc_match_self(p, r->tag, r->data, r->bytes)) return MC_EMEM;
    mc_request_end(p, r, MC_OK, 0);
    return MC_OK;
  }
  if (p->peers[peer].gone != MC_HERE) {
    r->status = p->peers[peer].gone;
    mc_request_end(p, r, p->peers[peer].code, p->peers[peer].why);
    return MC_OK;
  }
  return r->remote ? mc_p2p_net_send(p, r) : mc_ring_send(p, r);
}

static void begin_receive(struct mc_p2p *p, struct mc_request *r) {
  const struct mc_comm *c = p->c;
  __atomic_fetch_add(&p->c->stats.receives, 1, __ATOMIC_RELAXED);
  mc_rings_move(p);
  if (mc_match_early(p, r)) {
    if (r->message && r->message->offered) mc_reads_move(p); /* a small one whole; of a large one others read the rest */
    return;
  }
  MC_PUSH(&p->posted, r);
  for (uint32_t local = 0; local < c->locals && !r->done; local++) {
    const uint32_t rank = mc_rank_of(c, local);
    if (p->peers[rank].held && (r->peer < 0 || (uint32_t)r->peer == rank)) mc_ring_pull(p, local);
  }
  if (p->loop && !r->done && (r->peer < 0 || r->remote)) mc_p2p_net_expect(p, r);
  if (r->done || r->peer < 0 || p->peers[r->peer].gone == MC_HERE) return;
  r->status = p->peers[r->peer].gone;
  mc_withdraw(p, r, p->peers[r->peer].code, p->peers[r->peer].why);
}

int mc_post(struct mc_comm *c, uint32_t way, int32_t peer, uint32_t tag, void *data, uint64_t bytes,
            double timeout_s, uint64_t *request) {
  if (!c || !request || way > MC_RECV || peer >= (int32_t)c->size || peer < (way == MC_RECV ? -1 : 0) ||
      (bytes && !data) || !(timeout_s >= 0))
    return MC_EINVAL;
  if (c->pid != (int)getpid()) return MC_EFORK;
  if (atomic_load(&c->aborted)) return MC_EABORT;
  struct mc_p2p *p = c->p2p;
  mc_p2p_enter(p);
  int code = p->aborted ? MC_EABORT : MC_OK; /* while this thread waited for the lock: nothing would end the request any more */
  struct mc_request *r = code ? NULL : new_request(p);
  if (!r) {
    pthread_mutex_unlock(&p->lock);
    return code ? code : MC_EMEM;
  }
  r->way = way, r->peer = r->from = peer, r->tag = tag, r->data = data, r->bytes = bytes;
  r->began_ns = mc_now_ns();
  r->deadline_ns = r->began_ns + mc_ns_of(timeout_s);
  r->remote = p->loop && (peer < 0 || !mc_is_local(c, (uint32_t)peer));
  r->near = c->locals == 1 ? !r->remote : peer < 0 || mc_is_local(c, (uint32_t)peer);
  if (r->remote) p->pending_remote++;
  if (r->near) p->pending_near++;
  *request = r->id;
  MC_FAULT_POINT(post_begun);
  if (!mc_p2p_start(p, r)) code = MC_ESYS;
  else if (way == MC_SEND) code = begin_send(p, r);
  else begin_receive(p, r);
  if (code != MC_OK) {
    mc_request_end(p, r, code, 0);
    forget(p, r);
  } else if (!r->done) {
    mc_p2p_arm_progress(p);
  }
  pthread_mutex_unlock(&p->lock);
  return code;
}

static int report(struct mc_p2p *p, struct mc_request *r, struct mc_status *status, struct mc_failure *failure) {
  const int code = r->code;
  if (status)
    *status = (struct mc_status){.code = code, .peer = r->from, .tag = r->tag, .done = 1,
                                 .bytes = r->way == MC_RECV ? r->got : r->bytes};
  if (failure && code != MC_OK) {
    const struct mc_failure what = {
        .code = code, .sys_errno = r->sys_errno, .rank = r->from, .reported_by = -1,
        .waited_s = (double)(mc_now_ns() - r->began_ns) * 1e-9,
        .mine = {.count = r->bytes, .verb = MC_VERBS, .dtype = MC_U8, .op = r->way, .root = r->tag},
        .other = {.count = r->got, .verb = MC_VERBS, .dtype = MC_U8, .root = r->tag}};
    mc_failure_tell(p->c, failure, what, NULL);
    if (failure->rank_status && r->from >= 0) failure->rank_status[r->from] = code == MC_EMISMATCH ? MC_DIFFERENT : r->status;
  }
  if (code == MC_OK || failure) forget(p, r);
  return code;
}

/* Without the lock: spins until `spin_until`, then sleeps until news or `until`. False: the spin was in vain. */
static bool wait_for_doorbell(struct mc_p2p *p, uint32_t wake_seq, uint64_t until, uint64_t spin_until) {
  struct mc_doorbell *doorbell = mc_own_doorbell(p);
  uint64_t now = mc_now_ns();
  while (now < spin_until) {
    for (unsigned i = 0; i < 32; i++)
      if (atomic_load_explicit(&doorbell->wake_seq, memory_order_acquire) != wake_seq) return true;
    now = mc_now_ns();
  }
  if (now >= until) return false;
  __atomic_fetch_add(&p->c->stats.sleeps, 1, __ATOMIC_RELAXED);
  mc_doorbell_sleep(doorbell, wake_seq, until - now < MC_SLICE_NS ? until - now : MC_SLICE_NS);
  return false;
}

/* A waiter takes the place of the thread at the doorbell or at the sockets, and gives it back. */
static void take_over(struct mc_p2p *p, bool near, bool remote, int sign) {
  p->waiters += (uint32_t)sign;
  if (near) p->doorbell_waiters += (uint32_t)sign, p->turns_near++;
  if (near && remote) p->both_waiters += (uint32_t)sign;
  if (!near) p->net_waiters += (uint32_t)sign;
  if (near && sign > 0) atomic_store(&mc_own_doorbell(p)->armed, 0);
  if (!near && sign < 0 && p->net_waiters) mc_doorbell_wake(mc_own_doorbell(p)); /* another one has the sockets now */
  mc_p2p_arm_progress(p);
}

/* Whether this wait spins long. To sleep and to be woken takes longer than a message, so a spin pays where the peer
 * answers at once. Where it does not, or cannot since this spin has the processor that it needs, spins are in vain,
 * and each makes the next twice as rare. */
static bool spins_long(struct mc_spin *spin) {
  if (!spin->rest) return true;
  spin->rest--;
  return false;
}

static void learn(struct mc_spin *spin, bool in_vain) {
  spin->vain = !in_vain ? 0 : spin->vain < SPIN_REST ? spin->vain * 2 + 1 : SPIN_REST;
  spin->rest = spin->vain;
}

static void wait_locked(struct mc_p2p *p, const struct mc_request *r, uint64_t until) {
  struct mc_doorbell *doorbell = mc_own_doorbell(p);
  const uint64_t id = r->id, deadline_ns = r->deadline_ns + 1;
  const bool near = r->near, remote = r->remote;
  struct mc_spin *spin = near ? &p->near_spin : &p->net_spin;
  const bool is_long = spins_long(spin);
  const uint64_t spin_ns = is_long ? mc_spin_ns(p->c) * LONG_SPIN : near ? mc_spin_ns(p->c) : 0;
  uint64_t moved = mc_now_ns(), spin_until = moved + spin_ns;
  bool in_vain = !spin_ns, more = false;
  take_over(p, near, remote, 1);
  for (;;) {
    const uint32_t wake_seq = atomic_load(&doorbell->wake_seq);
    if (near) {
      mc_rings_move(p);
      more = mc_reads_move(p);
    }
    mc_p2p_check_liveness(p, false);
    r = mc_request_find(p, id);
    if (!r || r->done) break;
    /* one whose memory is still read outlives its deadline: it ends with a look at the ranks */
    const uint64_t now = mc_now_ns(), at_most = deadline_ns < until && !r->ending ? deadline_ns : until;
    if (now >= until) break;
    if (more) {
      mc_p2p_rest(p);
    } else if (now >= at_most) {
      mc_p2p_check_liveness(p, true);
    } else if (!near && !p->polling) {
      in_vain |= now - moved >= spin_ns; /* also what comes late, after others had the processor: no more of this */
      p->turns_net++;
      if (in_vain) __atomic_fetch_add(&p->c->stats.sleeps, 1, __ATOMIC_RELAXED);
      mc_p2p_poll_sockets(p, in_vain ? at_most - now : 0);
      if (p->loop->moved && !in_vain) {
        const uint64_t came = mc_now_ns();
        in_vain = came - moved >= spin_ns, moved = came;
      }
    } else {
      if (!near && p->net_waiters == 1) mc_p2p_wake_progress(p); /* the thread is to leave */
      pthread_mutex_unlock(&p->lock);
      if (!wait_for_doorbell(p, wake_seq, at_most, spin_until)) in_vain = true;
      mc_p2p_enter(p);
    }
  }
  if (is_long) learn(spin, in_vain);
  take_over(p, near, remote, -1);
}

int mc_wait(struct mc_comm *c, uint64_t request, double wait_s, struct mc_status *status, struct mc_failure *failure) {
  if (!c || !(wait_s >= 0)) return MC_EINVAL;
  if (c->pid != (int)getpid()) return MC_EFORK;
  struct mc_p2p *p = c->p2p;
  mc_p2p_enter(p);
  struct mc_request *r = mc_request_find(p, request);
  if (r && !r->done) {
    mc_rings_move(p);
    mc_p2p_check_liveness(p, false);
    if (!r->done && wait_s > 0) wait_locked(p, r, mc_now_ns() + mc_ns_of(wait_s));
    r = mc_request_find(p, request); /* another thread may have been told its end */
  }
  const int code = !r ? MC_EINVAL : r->done ? report(p, r, status, failure) : MC_UNDER_WAY;
  pthread_mutex_unlock(&p->lock);
  return code;
}

/* False: memory of some is being read. */
static bool withdraw_all(struct mc_p2p *p, int code) {
  bool all = true;
  for (uint32_t i = 0; i < p->slots; i++) {
    if (p->requests[i]) mc_withdraw(p, p->requests[i], code, 0);
    all = all && (!p->requests[i] || p->requests[i]->done);
  }
  return all;
}

void mc_p2p_close(struct mc_comm *c) {
  struct mc_p2p *p = c->p2p;
  mc_p2p_enter(p);
  p->closing = true;
  while (!withdraw_all(p, MC_ECLOSED)) {
    const uint32_t wake_seq = atomic_load(&mc_own_doorbell(p)->wake_seq);
    mc_rings_move(p);
    pthread_mutex_unlock(&p->lock);
    mc_doorbell_sleep(mc_own_doorbell(p), wake_seq, MC_SLICE_NS);
    pthread_mutex_lock(&p->lock);
    mc_p2p_check_liveness(p, false);
  }
  mc_p2p_stop(p); /* gives the lock back */
  release(p);
}
