/* The group: its state, the node's segment, epochs, failures. Not for callers.
 *
 * Within a node a call is a sequence of epochs. In each a rank writes what others will read, raises its flag
 * (mc_publish) and waits until all flags have reached its own (mc_await). Slots are double-buffered by epoch
 * parity: a rank that publishes epoch k + 1 has read all of epoch k, so epoch k + 2 may overwrite it. No call
 * needs a closing barrier. */
#ifndef MUSTER_COMM_H
#define MUSTER_COMM_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>
#include "muster_core.h"

/* Of a struct that is nothing but whole words of 8 bytes, which others may read or write meanwhile. */
static inline void mc_copy_words(void *to, const void *from, size_t bytes) {
  typedef uint64_t __attribute__((may_alias)) word;
  for (size_t i = 0; i < bytes / sizeof(word); i++)
    __atomic_store_n((word *)to + i, __atomic_load_n((const word *)from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

static inline uint64_t mc_pages(uint64_t bytes) { return (bytes + 4095) & ~(uint64_t)4095; } /* rounded up to whole ones */
static inline size_t mc_less(size_t a, size_t b) { return a < b ? a : b; }

#define MC_LOCALS 256u /* ranks of one node */
#define MC_BLOCK_BYTES ((size_t)16 << 10) /* of a sum: summed, then copied on while they are in the first cache */

struct mc_rank_block { /* one per local rank, in the segment */
  /* first line: all that an epoch needs */
  _Alignas(64) _Atomic uint32_t flag; /* epochs published; others sleep on it */
  _Atomic uint32_t sleepers;
  uint64_t fingerprint[2];    /* by parity: hash of the descriptor, 0: no new call begins in this epoch */
  uint64_t rkey[2];           /* by parity: (region + 1) << 48 | offset of registered memory, 0: none */
  uint64_t remote_wait_ns[2]; /* by parity: how long the rank has waited for other nodes since its last epoch */
  /* second: rarely read */
  _Alignas(64) struct mc_desc desc[2]; /* by parity of the epoch in which the call began */
  _Atomic uint32_t edits[2]; /* of `desc`, odd while it is being written: others may read it at any time */
  _Alignas(64) _Atomic uint32_t state; /* 0 not yet, 1 attached, 2 left */
  uint64_t process, started, stack, pids; /* group/segment.c; written before the state */
};
#define MC_STATUS_RANKS 4096u
struct mc_error_record { /* a failure of the node, written once */
  struct mc_failure what;
  uint8_t rank_status[MC_STATUS_RANKS]; /* by world rank; larger groups: ranks beyond are not marked */
};
struct mc_segment {
  uint32_t magic, locals;
  uint64_t slot_bytes;
  _Atomic uint32_t attached; /* counted; ranks that wait for others sleep on it */
  _Atomic uint32_t error_state; /* group/failure.c: which of them counts, the first that was written whole */
  struct mc_error_record errors[4];
  _Alignas(64) struct mc_rank_block ranks[]; /* [locals], then the slots */
};

/* What a failure and a long wait need of the transport; mc_net_open fills it in. */
struct mc_transport {
  int (*poll)(struct mc_comm *c, const uint8_t *missing_locals, struct mc_failure *loss); /* mc_net_look */
  void (*propagate)(struct mc_comm *c, const struct mc_failure *failure);
  void (*abort)(struct mc_comm *c);
};
struct mc_mapped { void *at; uint64_t bytes; };
struct mc_region {
  void *bases[MC_LOCALS];
  uint64_t bytes, id; /* id: counted, the same on all ranks of the node */
  bool used;
  /* of memory that was registered where it lies (shm/adopt.c), else NULL: only sums may use it, from `begin` to `end` of it */
  struct mc_adopted *own;
  uint64_t begin, end;
  struct mc_mapped *peers; /* [locals] */
};
#define MC_REGIONS 64u
#define MC_ADOPTED 64u /* more of them, behind the others, for memory that is registered where it lies */
#define MC_ADOPTABLE (2 * MC_ADOPTED) /* with what is to be: where all regions are of memory that has ended, the next one shows it */

struct mc_latest { struct mc_desc what; uint64_t since_ns, running; }; /* see mc_now */

struct mc_comm {
  uint32_t rank, size, node, nodes, local, locals;
  uint32_t *node_of, *local_of; /* [size]; all four in one block */
  uint32_t *first_of;           /* [nodes + 1]: begins in members */
  uint32_t *members;            /* [size] ranks ordered by node, then rank */
  int segment_fd, pid;
  struct mc_segment *segment;
  size_t segment_bytes;
  uint8_t *slots;
  struct mc_tuning tuning;
  uint8_t key[32];
  uint32_t epoch;             /* published by this rank */
  uint64_t fingerprint, rkey; /* for the next epoch published: see mc_rank_block */
  uint64_t call_fingerprint;  /* hash of desc; frames between nodes carry it */
  uint64_t seq;
  struct mc_call call;          /* in progress */
  struct mc_desc desc;
  struct mc_latest latest;      /* of it, for other threads: `edits` is odd while it is written */
  _Atomic uint32_t edits;
  uint64_t deadline_ns, began_ns, waited_ns;
  uint64_t remote_wait_ns;             /* waited for other nodes, not published yet */
  _Atomic uint32_t aborted;
  struct mc_failure error;   /* code MC_OK: the group works; rank_status points to error_status */
  uint8_t *error_status;     /* [size] */
  struct mc_region regions[MC_REGIONS + MC_ADOPTED];
  uint32_t region_count;
  uint64_t region_ids;           /* given so far */
  struct mc_adopted *adopted[MC_ADOPTABLE]; /* registered where they lie, or to be */
  uint32_t adopt_failures;
  pthread_mutex_t region_lock;   /* what changes regions holds it as well as the call's, what reads them one of the two */
  bool propagated;               /* the error record has been sent to other nodes */
  struct mc_net *net;            /* NULL: one node */
  struct mc_transport transport; /* of the net */
  struct mc_inter *inter;        /* what inter/ keeps: NULL until the first call over nodes */
  struct mc_p2p *p2p;
  pthread_mutex_t call_lock;    /* held during a call, and while regions change */
  struct mc_op_queue *op_queue; /* NULL until the first mc_async_post */
  struct mc_stats stats;
  uint64_t *peer_wait_ns;    /* [size] */
  struct mc_record *records; /* [record_count], at seq % record_count */
  uint32_t record_count;
  uint32_t path;
  struct mc_signal_check *signals; /* lets signal handlers run in long waits; NULL: none */
  uint64_t signals_checked_ns;     /* when they last could */
};

/* --- group/thread.c */
uint64_t mc_now_ns(void);
static inline struct timespec mc_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}
static inline uint64_t mc_ns_of(double seconds) { return (uint64_t)((seconds < 1e9 ? seconds : 1e9) * 1e9); } /* 30 years at most */
bool mc_thread_start(pthread_t *thread, void *(*run)(void *), void *of); /* it gets no signals */
/* A thread that ends once it has had nothing to do for MC_IDLE_NS, so that groups at rest cost none. It sets `over`, as its
 * last word, under the lock that whoever starts it holds. */
#ifndef MC_IDLE_NS /* the sanitizers' build has less */
#define MC_IDLE_NS 1000000000u
#endif
struct mc_worker { pthread_t thread; bool started, over; };
bool mc_worker_start(struct mc_worker *worker, void *(*run)(void *), void *of); /* unless it runs */
void mc_worker_join(struct mc_worker *worker); /* it has been told to end */
/* --- group/segment.c */
/* `bytes`: the whole of c->segment_fd. Until the deadline. 0 or an errno value. */
int mc_segment_attach(struct mc_comm *c, uint64_t bytes);
void mc_segment_detach(struct mc_comm *c);
bool mc_local_alive(const struct mc_comm *c, uint32_t local); /* false: its process has ended or it has left the group */
/* Where the slots end: a page border, behind which lies what others keep in the segment (zeroed at first). */
uint64_t mc_slots_end(uint32_t locals, const struct mc_tuning *tuning);
/* Slots. A rank has four: input and output, each of two parities. */
static inline uint8_t *mc_in_slot(const struct mc_comm *c, uint32_t local, uint32_t epoch) {
  return c->slots + ((size_t)local * 4 + (epoch & 1)) * c->tuning.slot_bytes;
}
static inline uint8_t *mc_out_slot(const struct mc_comm *c, uint32_t local, uint32_t epoch) {
  return c->slots + ((size_t)local * 4 + 2 + (epoch & 1)) * c->tuning.slot_bytes;
}
static inline uint32_t mc_next(const struct mc_comm *c) { return c->epoch + 1; } /* its parity says which slots */
/* --- group/regions.c */
const struct mc_region *mc_region_of(const struct mc_comm *c, const void *at, uint64_t bytes); /* of this rank's memory; NULL: none */
uint64_t mc_region_offset(const struct mc_comm *c, const struct mc_region *region, const void *at);
/* Where this rank sees memory of a local rank; NULL: it has no such region. */
const uint8_t *mc_region_at(const struct mc_comm *c, uint64_t id, uint32_t local, uint64_t offset, uint64_t bytes);
/* --- group/epoch.c */
bool mc_has_come(const struct mc_comm *c, uint32_t local);                   /* to this rank's epoch */
void mc_sleep_until_come(struct mc_comm *c, uint32_t local, uint64_t for_ns); /* at most so long */
void mc_publish(struct mc_comm *c); /* raises the flag: a rank that awaits it sees all that was written before */
int mc_await(struct mc_comm *c);    /* until all local ranks have published this epoch */
int mc_epoch(struct mc_comm *c);    /* both; in a call's first epoch it also compares descriptors */
void mc_futex_wake(_Atomic uint32_t *word);
void mc_futex_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t for_ns); /* 0: without end */
static inline struct mc_rank_block *mc_block(const struct mc_comm *c, uint32_t local) { return &c->segment->ranks[local]; }
static inline uint32_t mc_rank_of(const struct mc_comm *c, uint32_t local) { return c->members[c->first_of[c->node] + local]; }
/* --- group/failure.c */
const struct mc_error_record *mc_error_record(const struct mc_comm *c); /* the node's failure, NULL: none yet */
/* The group fails: writes the error record (or adopts the one that is there), sends it to other nodes, wakes all ranks.
 * rank_status: by world rank, may be NULL. Returns the code that counts. */
int mc_fail(struct mc_comm *c, int code, int sys_errno, int rank, const uint8_t *rank_status, const struct mc_desc *other);
/* The same, of what the transport between nodes has found. It only says so; with reported_by it is another node's record. */
int mc_fail_loss(struct mc_comm *c, const struct mc_failure *loss);
void mc_abort_reported(struct mc_comm *c, uint32_t by); /* a rank of another node has aborted; from any thread */
/* *failure becomes `what`, and its rank_status, where it has one, `rank_status` (NULL: all MC_HERE). failure: NULL is fine. */
void mc_failure_tell(const struct mc_comm *c, struct mc_failure *failure, struct mc_failure what, const uint8_t *rank_status);
int mc_check(struct mc_comm *c);             /* MC_OK, or the code of the error or abort that is there by now; cheap */
/* One look at what a long wait for the node must not miss: the error record, ranks that are dead, messages of other nodes,
 * the deadline of those that have not come. Called every 50 ms. */
int mc_look(struct mc_comm *c);
/* --- group/signals.c */
int mc_check_signals(struct mc_comm *c); /* lets the caller's signal handlers run; not MC_OK: one raised, the call ends */
/* Of a row of the caller's, with a block of `bytes` for each rank: where this one's lies. */
static inline uint8_t *mc_call_block(const struct mc_comm *c, const void *row, uint32_t rank, size_t bytes) {
  return (uint8_t *)(c->call.blocks ? (uintptr_t)c->call.blocks[rank] : (uintptr_t)row + rank * bytes);
}
/* Of AVG: the sum over all ranks of the group is what is divided. */
static inline double mc_divisor(const struct mc_comm *c) { return (double)c->size; }
#endif
