/* Inside p2p. One lock guards all that is not shared with other processes; the rings and doorbells of the segment
 * are shared, each ring with one writer and one reader process. The holder of the lock may move messages: the
 * poster at once, a waiter while it waits, else a thread.
 *
 * There are two things to sleep on: the doorbell, which other ranks of the node ring, and the sockets. No thread can
 * sleep on both, so each has a thread of its own, started by the first request that concerns it. A waiter for
 * another node sleeps in poll itself, for a hop through a thread costs as much as the transfer. */
#ifndef MUSTER_P2P_STATE_H
#define MUSTER_P2P_STATE_H
#include <pthread.h>
#include "net/connection.h"
#include "p2p/offer.h"
#include "p2p/p2p.h"

#define MC_KEPT_BYTES (4u << 20) /* of one peer, for receives that have not been posted */
#define MC_OFFERS 64u            /* of one pair open at a time */
#define MC_PIECE (1u << 20)      /* of an offered message, read before others get the lock */

struct mc_doorbell {                      /* one per local rank, in the area */
  _Alignas(64) _Atomic uint32_t wake_seq; /* waiters of that rank sleep on it */
  _Atomic uint32_t sleepers;
  _Atomic uint32_t thread_seq; /* its thread sleeps on this ... */
  _Atomic uint32_t armed;      /* ... and wants to be called for news */
  _Atomic uint32_t aborted;
  _Alignas(64) _Atomic uint64_t pending_mask[MC_LOCALS / 64]; /* by local rank: look into its ring */
};
struct mc_ring {                      /* [reader][writer], in the area; the bytes are elsewhere */
  _Alignas(64) _Atomic uint64_t tail; /* written */
  _Alignas(64) _Atomic uint64_t head; /* read */
  _Atomic uint32_t writer_blocked;    /* the writer waits for room */
  _Alignas(64) _Atomic uint64_t offers[MC_OFFERS]; /* p2p/offer.h */
};
struct mc_area { /* in the segment, behind the slots */
  struct mc_doorbell *doorbells;
  struct mc_ring *rings;
  uint8_t *bytes;
  uint64_t ring_bytes;
};

struct mc_note { /* of a followed request, which it may outlive */
  struct mc_note *next;
  uint64_t id;
};
struct mc_message { /* incoming, under way or waiting for its receive */
  struct mc_message *next;
  uint32_t peer, tag;
  uint64_t bytes, got;
  uint8_t *to;      /* where it goes; NULL: dropped */
  uint8_t *buffer;  /* owned */
  bool whole, lost; /* lost: there was no memory for it */
  bool offered;     /* its bytes lie with the sender */
  bool foreign;     /* some of them were read as memory of another process */
  bool mapped;      /* some were read where this process has them mapped */
  struct mc_offer offer;
  struct mc_request *request;
};
struct mc_sending { /* to a rank of this node */
  struct mc_sending *next;
  const uint8_t *data;
  uint64_t bytes, moved;
  uint32_t tag, slot; /* slot: of its offer */
  enum { MC_BY_RING, MC_OFFERED, MC_COPIED } way; /* copied: it was offered, and goes through the ring all the same */
  bool begun;
  uint8_t *owned;
  struct mc_request *request;
};
struct mc_request {
  struct mc_request *next;   /* posted receives, in order */
  uint64_t id, bytes, got, began_ns, deadline_ns;
  uint8_t *data;
  uint32_t way, tag;
  int32_t peer, from;        /* peer: as asked for */
  int code, sys_errno;
  int ending;         /* of a send that shall end, once its memory is not read any more: with what, ... */
  uint64_t ending_ns; /* ... and since when */
  uint8_t status;
  bool done, remote, near; /* may concern other nodes, this node; from any source: both */
  struct mc_message *message;
  struct mc_sending *sending;
  struct mc_send_desc *out;
  struct mc_note *note; /* NULL: it is not followed, or its end has been noted */
};
struct mc_peer {
  MC_QUEUE(mc_sending) sends;
  MC_QUEUE(mc_sending) offers; /* in the ring, not taken yet */
  uint64_t slots;              /* bits of those that are in use */
  struct mc_message *current; /* of its ring */
  uint64_t buffered, lost_ns, checked_ns;
  bool unreadable; /* the system refuses its memory */
  bool held;     /* its ring has a message without a posted receive */
  uint8_t gone;  /* MC_HERE, or why nothing more comes */
  int why, code; /* of what its requests end with */
};
#define MC_VIEWS 32u
struct mc_view { uint32_t peer; uint64_t inode, bytes, used; uint8_t *at; }; /* shared pages of another rank, mapped as it sent them */
struct mc_spin { uint32_t vain, rest; }; /* waits that do not spin after the last spin in vain, and how many are left */
struct mc_p2p {
  struct mc_comm *c;
  struct mc_loop *loop; /* NULL: one node */
  pthread_mutex_t lock;
  struct mc_worker doorbell_worker, net_worker;
  bool stop;
  bool doorbell_rests; /* the doorbell's thread sleeps for long: unless it is armed, it is to be called where it is needed */
  bool net_idle;      /* the same of the sockets' */
  bool polling;       /* a thread sleeps in poll: no other may; mc_p2p_wake_progress wakes it */
  pthread_cond_t net_rest;
  struct mc_area area;
  struct mc_peer *peers;        /* [size] */
  struct mc_request **requests; /* by the low bits of the id */
  uint32_t *free_slots, slots, free_count;
  uint64_t next_id;
  uint32_t pending_remote, pending_near; /* each request is one of these, or both */
  uint32_t owed;                         /* messages whose request has ended: the rest of them goes on from a copy */
  uint32_t waiters, doorbell_waiters, net_waiters; /* all; those that move the rings, the sockets themselves */
  uint32_t both_waiters;                           /* those of doorbell_waiters that need the sockets' thread */
  uint64_t turns_near, turns_net;                  /* of waiters at the rings, at the sockets */
  uint32_t followed;                               /* requests under way whose end others wait for */
  struct mc_spin near_spin, net_spin;
  MC_QUEUE(mc_request) posted; /* receives that no message has come for */
  MC_QUEUE(mc_message) early;  /* messages that no receive has been posted for */
  MC_QUEUE(mc_message) reads;  /* offered, a receive has them: bytes are to be read */
  MC_QUEUE(mc_message) wanted; /* the same, to come through the ring after all */
  _Atomic uint32_t entering;   /* threads of the caller that want the lock */
  struct mc_view views[MC_VIEWS];
  uint64_t views_used; /* counted */
  uint64_t checked_ns;
  bool aborted, closing;
  MC_QUEUE(mc_note) ended; /* followed requests that have ended */
  pthread_cond_t ended_news;
  bool followed_no_more;
};

static inline bool mc_is_local(const struct mc_comm *c, uint32_t rank) { return c->node_of[rank] == c->node; }
static inline uint64_t mc_spin_ns(const struct mc_comm *c) { return (uint64_t)(c->tuning.spin_s * 1e9); }
static inline struct mc_doorbell *mc_own_doorbell(struct mc_p2p *p) { return &p->area.doorbells[p->c->local]; }
struct mc_request *mc_request_find(const struct mc_p2p *p, uint64_t id); /* p2p/post.c; NULL: it is forgotten */
/* --- p2p/follow.c */
void mc_note_end(struct mc_p2p *p, struct mc_request *r);
void mc_notes_free(struct mc_p2p *p);
/* --- p2p/doorbell.c */
void mc_area_map(struct mc_p2p *p);
void mc_doorbell_wake(struct mc_doorbell *doorbell);
void mc_doorbell_wake_thread(struct mc_doorbell *doorbell);
void mc_doorbell_sleep(struct mc_doorbell *doorbell, uint32_t wake_seq, uint64_t wait_ns);
/* --- p2p/ring.c */
int mc_ring_send(struct mc_p2p *p, struct mc_request *r);
void mc_rings_move(struct mc_p2p *p);
bool mc_ring_withdraw(struct mc_p2p *p, struct mc_request *r); /* false: not now, its memory is being read */
struct mc_ring *mc_ring_of(const struct mc_p2p *p, uint32_t reader, uint32_t writer);
void mc_ring_forget(struct mc_p2p *p, struct mc_peer *peer); /* all that has not been sent to it */
void mc_ring_pull(struct mc_p2p *p, uint32_t local);
/* --- p2p/match.c */
void mc_request_end(struct mc_p2p *p, struct mc_request *r, int code, int sys_errno);
/* A message that begins; NULL: it may wait where it is, unless that is nowhere (`at_once`), or there is no memory. */
struct mc_message *mc_message_arrives(struct mc_p2p *p, uint32_t peer, uint32_t tag, uint64_t bytes, bool at_once);
void mc_message_whole(struct mc_p2p *p, struct mc_message *m);
void mc_message_cut(struct mc_p2p *p, struct mc_message *m); /* the rest will never come */
bool mc_message_offered(struct mc_p2p *p, uint32_t peer, uint32_t tag, uint64_t bytes, const struct mc_offer *offer); /* false: no memory */
void mc_messages_drop(struct mc_p2p *p, uint32_t peer);      /* those offered that no receive has taken */
bool mc_match_early(struct mc_p2p *p, struct mc_request *r);
void mc_match_withdraw(struct mc_p2p *p, struct mc_request *r);
bool mc_match_self(struct mc_p2p *p, uint32_t tag, const void *data, uint64_t bytes);
/* --- p2p/give.c: of the sender */
void mc_offer_make(struct mc_p2p *p, struct mc_sending *s, uint32_t rank); /* where it may be one */
struct mc_offer mc_offer_of(struct mc_p2p *p, const struct mc_sending *s, uint32_t rank);
void mc_offer_end(struct mc_p2p *p, const struct mc_sending *s, uint32_t rank); /* its slot is free */
void mc_offers_move(struct mc_p2p *p, uint32_t rank);
bool mc_offer_withdraw(struct mc_p2p *p, struct mc_request *r); /* as mc_ring_withdraw */
/* --- p2p/take.c: of the receiver */
bool mc_take_begin(struct mc_p2p *p, const struct mc_message *m); /* false: it has been withdrawn */
void mc_take(struct mc_p2p *p, struct mc_message *m);             /* begun, with its receive or to be dropped */
bool mc_reads_move(struct mc_p2p *p);                             /* a piece; true: there is more to read */
struct mc_message *mc_take_copy(struct mc_p2p *p, uint32_t peer, uint32_t slot, uint64_t bytes); /* comes by ring now; NULL: no memory */
void mc_take_drop(struct mc_p2p *p, struct mc_message *m);        /* its receive has been withdrawn */
void mc_views_close(struct mc_p2p *p);
/* --- p2p/remote.c */
int mc_p2p_net_send(struct mc_p2p *p, struct mc_request *r);
void mc_p2p_net_expect(struct mc_p2p *p, const struct mc_request *r);
void mc_p2p_net_withdraw(struct mc_p2p *p, struct mc_request *r);
void mc_p2p_net_cut(struct mc_p2p *p, uint32_t peer);
void mc_p2p_net_losses(struct mc_p2p *p, uint64_t now);
/* --- p2p/liveness.c */
void mc_p2p_check_liveness(struct mc_p2p *p, bool now);
void mc_peer_gone(struct mc_p2p *p, uint32_t peer, uint8_t status, int code, int why);
void mc_withdraw(struct mc_p2p *p, struct mc_request *r, int code, int sys_errno);
/* --- p2p/progress.c */
void mc_p2p_enter(struct mc_p2p *p); /* takes the lock, before who reads on */
void mc_p2p_rest(struct mc_p2p *p);  /* lets them */
bool mc_p2p_start(struct mc_p2p *p, const struct mc_request *r); /* the threads that care for it */
void mc_p2p_arm_progress(struct mc_p2p *p);                      /* to the threads: what no caller waits for */
void mc_p2p_wake_progress(struct mc_p2p *p);                     /* the sockets are to be looked at anew */
void mc_p2p_poll_sockets(struct mc_p2p *p, uint64_t wait_ns);    /* at the sockets: moves, else sleeps in poll without the lock */
void mc_p2p_stop(struct mc_p2p *p);
#endif
