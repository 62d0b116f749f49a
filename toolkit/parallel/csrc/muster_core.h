/* The collective core: what a caller may use. C11, Linux, no dependencies; loaded with ctypes.
 *
 * One mc_comm is one group as one rank sees it. A collective is one mc_run, called by every rank of
 * the group in the same order, from one thread at a time (mc_async_post: by one of the core); mc_abort, mc_stats and the p2p functions
 * may be called from any thread meanwhile. Every wait has a deadline. Nothing here prints, exits or
 * handles signals (mc_set_signal_check lets the caller's handlers run). All ranks get identical bits, from run to run (fixed order of summation: ranks
 * within a node ascending, then nodes ascending or, many of them, in a tree that their number shapes). */
#ifndef MUSTER_CORE_H
#define MUSTER_CORE_H
#include <stdint.h>

#define MC_ABI 16u
struct mc_comm;
#define MC_API __attribute__((visibility("default")))

/* bool tensors travel as MC_U8. */
enum mc_dtype { MC_U8, MC_I8, MC_I32, MC_I64, MC_F16, MC_BF16, MC_F32, MC_F64, MC_DTYPES };
/* MC_AVG divides after the sum, in fp32 for 16-bit types; not for integers. BAND/BOR/BXOR are for integers. */
enum mc_op { MC_SUM, MC_AVG, MC_MIN, MC_MAX, MC_PROD, MC_BAND, MC_BOR, MC_BXOR, MC_OPS };
/* `count` of a call, in elements:           in            out
 *   MC_BARRIER                              -             -           count is 0
 *   MC_ALL_REDUCE, MC_REDUCE                count         count       (reduce: out only on the root)
 *   MC_BROADCAST                            -             count       in place; the root's out is sent
 *   MC_ALL_GATHER                           count         count*size
 *   MC_REDUCE_SCATTER                       count*size    count
 *   MC_GATHER                               count         count*size  out only on the root
 *   MC_SCATTER                              count*size    count       in only on the root
 *   MC_ALL_TO_ALL                           count*size    count*size  or in_counts/out_counts [size]
 * The row of an all-gather, and the root's of a gather or a scatter, may be `blocks` [size] instead, each of `count`.
 * in may equal out where the sizes are equal; all_gather's in may be its own place in out,
 * reduce_scatter's out its own place in in. Otherwise they must not overlap. */
enum mc_verb {
  MC_BARRIER, MC_ALL_REDUCE, MC_REDUCE, MC_BROADCAST, MC_ALL_GATHER, MC_REDUCE_SCATTER,
  MC_GATHER, MC_SCATTER, MC_ALL_TO_ALL, MC_VERBS
};
enum mc_code {
  MC_OK,
  MC_EINVAL,        /* this rank's own call is wrong; nothing was sent, the group still works */
  MC_ETIMEOUT,      /* rank_status says which ranks have not come */
  MC_EPEER,         /* rank_status says which died or left */
  MC_EMISMATCH,     /* ranks called different things; `other` is what another rank called */
  MC_EABORT,        /* mc_abort here or on another rank */
  MC_ENET,          /* a connection failed or carried what is not ours; rank_status say to whom */
  MC_ECHECK,        /* checked mode: a frame's checksum is wrong */
  MC_EMEM, MC_ESYS, /* sys_errno says why */
  MC_EFORK,         /* called in a child of the process that made the group */
  MC_ECLOSED
};
/* Once a call ends with anything but MC_OK or MC_EINVAL the group is broken on this and, within
 * the deadline, on every rank: each later call returns the same failure at once. */

enum mc_rank_status { MC_HERE, MC_MISSING, MC_DEAD, MC_LEFT, MC_DIFFERENT };

struct mc_desc { /* what a rank called */
  uint64_t seq;  /* number of the call in its group, from 1 */
  uint64_t count;
  uint32_t verb, dtype, op, root;
};
struct mc_failure {
  int32_t code, sys_errno;
  int32_t rank;        /* the rank that is named first (dead, different, unreachable), or -1 */
  int32_t reported_by; /* the rank that found it, or -1: this one */
  double waited_s;
  struct mc_desc mine, other;
  uint8_t *rank_status;     /* [size] of enum mc_rank_status, given by the caller, may be NULL */
};
struct mc_call {
  uint32_t verb, dtype, op, root;
  const void *in;
  void *out;
  uint64_t count;
  const uint64_t *in_counts, *out_counts; /* all-to-all with uneven parts, else NULL */
  void *const *blocks;                    /* by rank, where its block lies; NULL: in a row */
  double timeout_s;
};

enum mc_wire { MC_WIRE_SAME, MC_WIRE_F16, MC_WIRE_BF16, MC_WIRE_I8 }; /* fp32 sums between nodes only */
struct mc_tuning {
  uint64_t slot_bytes;     /* one staging slot; a rank has several of them */
  uint64_t one_shot_bytes; /* local ranks x bytes at most this: one-shot */
  uint64_t chunk_bytes;    /* of the piped algorithms; at most slot_bytes. More than four ranks take less */
  uint64_t direct_bytes;   /* registered buffers of at least this: direct */
  uint64_t adopt_bytes;    /* memory that is summed or sent again and again is registered, up to this of a process; 0: none */
  uint64_t leader_bytes;   /* between nodes, at most this: the leaders alone talk */
  uint64_t segment_bytes;  /* between nodes, larger: pieces of this overlap their phases */
  uint64_t eager_bytes;    /* within a node, larger messages are read where they lie, once there is a receive */
  uint32_t streams;        /* TCP connections between two nodes, which their ranks share; 1 to 64 */
  uint32_t wire;           /* enum mc_wire */
  uint32_t checked;        /* 1: every frame between nodes carries a checksum */
  double spin_s;           /* busy wait before the processor is given away */
};
struct mc_address { uint64_t endpoint; uint16_t family, port; uint8_t bytes[16]; uint32_t scope; }; /* port: host order */
struct mc_layout {
  uint32_t abi, rank, size;
  const uint32_t *node_of;            /* [size], numbered by first appearance */
  int32_t segment_fd;                 /* of this node's ranks, mc_segment_bytes long, zeroed; -1: alone in the node */
  const struct mc_address *addresses; /* [size], where ranks listen; NULL: one node. This rank's endpoint is the core's from here on */
  uint8_t key[32];                    /* the group's secret; the hello of every connection proves it */
  struct mc_tuning tuning;            /* the same on all ranks */
  uint32_t records;                   /* how many the flight log keeps; 0: MC_RECORDS */
};

MC_API uint32_t mc_abi(void);
MC_API const char *mc_isa(void);  /* "avx512", "avx2", "neon", "plain"; COLLECTIVES_ISA lowers it */
MC_API uint64_t mc_segment_bytes(uint32_t local_ranks, const struct mc_tuning *tuning);
/* An endpoint is where ranks of other nodes reach this one for one group that is to be made: a number at a listening socket,
 * which all groups of this process have in common that give the same `hosts`. ENOENT: nothing listens there yet, so bring
 * `fd`, listening and non-blocking, which is the core's from here on unless this fails. 0 or an errno value. */
MC_API int mc_endpoint_open(const char *hosts, int32_t fd, uint64_t *endpoint, uint16_t *port);
MC_API void mc_endpoint_close(uint64_t endpoint); /* one that no group has: none does where that is not made, or in one node */
/* Attaches to the segment and waits until all ranks of the node have. */
MC_API int mc_create(const struct mc_layout *layout, double timeout_s, struct mc_comm **out, struct mc_failure *failure);
MC_API int mc_run(struct mc_comm *comm, const struct mc_call *call, struct mc_failure *failure);
/* Calls in a row that no caller waits for yet: a thread of the core runs them, after what was posted before them and
 * grace_s later at the earliest, the first failure ends the row. The memory of `calls`, of all that they point to
 * and of this itself is the core's until `done`. One thread at a time posts; mc_run may come from another, between
 * two calls. */
struct mc_async {
  struct mc_async *next;       /* the core's, as all of the others but calls and count */
  const struct mc_call *calls;
  uint64_t due_ns;
  uint32_t count, ended;       /* ended: well; the number of the one that failed */
  int32_t code;
  uint32_t done;
};
MC_API int mc_async_post(struct mc_comm *comm, struct mc_async *calls, double grace_s);
/* 1 once it is done, with the failure of its code; 0 after wait_s. Runs on this thread what the core's thread has not
 * begun, whatever wait_s says. */
MC_API int mc_async_wait(struct mc_comm *comm, struct mc_async *calls, double wait_s, struct mc_failure *failure);
/* Ends a call in progress on every rank, from any thread. Later calls: MC_EABORT. */
MC_API void mc_abort(struct mc_comm *comm);
/* The caller's interpreter, so that its signal handlers run within 50 ms while a call waits (an
 * exception of one ends the call with MC_EABORT on every rank): functions of CPython's stable
 * interface, by value so that the core is linked with none. It must outlive the group. */
struct mc_signal_check {
  uint64_t thread;                          /* pthread_self() of the thread that runs handlers */
  int (*ensure_gil)(void);                  /* PyGILState_Ensure */
  int (*check_signals)(void);               /* PyErr_CheckSignals */
  void (*fetch)(void **, void **, void **); /* PyErr_Fetch */
  void (*release)(int);                     /* PyGILState_Release */
  void *kept[3];                            /* what a handler raised, for PyErr_Restore; NULL: nothing */
};
MC_API void mc_set_signal_check(struct mc_comm *comm, struct mc_signal_check *check);
/* mc_run, mc_post and mc_wait for CPython, as METH_FASTCALL functions of which `self` is the address of a mc_entry
 * (a number). Arguments: those of mc_call in its order; of mc_post its timeout last; of mc_wait as they are; addresses
 * as numbers, a peer of -1 as UINT32_MAX, of mc_post's request where a mc_transfer is: it looks at once, and returns
 * MC_UNDER_WAY where the transfer is not over and well. Return the code, or NULL with CPython's exception for an
 * argument that is no number. mc_python comes first, once: CPython's stable interface, by value as above. */
struct mc_python {
  uint64_t (*number)(void *);     /* PyLong_AsUnsignedLongLong */
  double (*real)(void *);         /* PyFloat_AsDouble */
  void *(*error)(void);           /* PyErr_Occurred */
  void *(*save_thread)(void);     /* PyEval_SaveThread */
  void (*restore_thread)(void *); /* PyEval_RestoreThread */
  void *(*code)(long);            /* PyLong_FromLong */
};
struct mc_entry {
  struct mc_comm *comm; /* NULL: closed; the close waits until no thread is inside */
  struct mc_failure *failure;
  uint64_t inside; /* threads in mc_post and mc_wait */
};
MC_API void mc_python(const struct mc_python *functions);
MC_API void *mc_python_run(void *self, void *const *arguments, intptr_t given);
MC_API void *mc_python_post(void *self, void *const *arguments, intptr_t given);
MC_API void *mc_python_wait(void *self, void *const *arguments, intptr_t given);
/* Says goodbye and frees; the caller's threads have left the core. Never blocks longer than 1 s. */
MC_API void mc_close(struct mc_comm *comm);

/* Registered memory: `bases[i]` is where this process has mapped the region of local rank i, each
 * `bytes` long and shared. Collective by agreement: all ranks of the node add the same regions in
 * the same order, between the same calls. */
MC_API int mc_region_add(struct mc_comm *comm, void *const *bases, uint64_t bytes, uint32_t *region);
MC_API int mc_region_drop(struct mc_comm *comm, uint32_t region);
/* Private memory that is summed in place again and again, of 1 MiB and more, aligned to 16: the next all-reduce of all of it for
 * which each rank has said this registers it where it lies. Its pages give way to shared ones with their content at the same
 * address, so pointers to it stay good; a child of a fork gets private copies. Within one node. `now`: shared at once, by this
 * rank alone, for what it sends: others of the node map it as they receive. MC_EINVAL: other memory, MC_EMEM: enough of it. */
struct mc_adopted;
MC_API int mc_adopt(struct mc_comm *comm, void *at, uint64_t bytes, uint32_t now, struct mc_adopted **made);
/* Before that memory is freed; from any thread, also after mc_close. `moved`: it has been, and others may have it. */
MC_API void mc_adopted_end(struct mc_adopted *adopted, uint32_t moved);

/* Sends and receives by tag, in order per (pair, tag); a thread of the core moves them. */
enum mc_way { MC_SEND, MC_RECV };
struct mc_status { int32_t code, peer; uint32_t tag, done; uint64_t bytes; };
struct mc_transfer { uint64_t request; struct mc_status status; }; /* of mc_python_post */
/* peer -1: from any rank. A message longer than the receive is MC_EMISMATCH for that receive only
 * (its bytes are dropped); a shorter one is fine and status.bytes says so. */
MC_API int mc_post(struct mc_comm *comm, uint32_t way, int32_t peer, uint32_t tag, void *data,
                   uint64_t bytes, double timeout_s, uint64_t *request);
/* Waits up to wait_s (0: only looks): MC_UNDER_WAY where it is not done by then, which leaves *status alone. A request
 * that is done is forgotten once this has said so; one that failed, once this has said so with a `failure`. */
#define MC_UNDER_WAY (-1)
MC_API int mc_wait(struct mc_comm *comm, uint64_t request, double wait_s, struct mc_status *status,
                   struct mc_failure *failure);
/* Which of many requests has ended, for threads that follow them all. mc_follow: the end of this one shall be
 * told; MC_EINVAL: it shall already, or mc_wait has told it. mc_next_ended sleeps until one that is followed has ended, and says
 * which, once, in the order in which they end; mc_wait still has its status. It returns MC_ECLOSED after
 * mc_follow_no_more, which comes before mc_close. */
MC_API int mc_follow(struct mc_comm *comm, uint64_t request);
MC_API int mc_next_ended(struct mc_comm *comm, uint64_t *request);
MC_API void mc_follow_no_more(struct mc_comm *comm);

enum mc_path { MC_PATH_ALONE, MC_PATH_ONE_SHOT, MC_PATH_STAGED, MC_PATH_DIRECT, MC_PATH_LEADERS, MC_PATH_RAILS, MC_PATHS };
struct mc_stats { /* since the group was made */
  uint64_t calls[MC_VERBS], bytes[MC_VERBS], paths[MC_PATHS];
  uint64_t sent_bytes, received_bytes;  /* between nodes, frames included */
  uint64_t sends, receives;             /* p2p, as posted */
  uint64_t sends_bytes, receives_bytes; /* of those that ended well, within nodes and between */
  uint64_t messages_mapped, messages_read, messages_asked; /* offered to this rank: read in registered memory, in the sender's, refused */
  uint64_t sleeps;                      /* waits that gave the processor away */
  double time_s, wait_s;                /* in calls; of it waiting */
  double times_s[MC_VERBS];             /* time_s by verb */
};
MC_API void mc_stats_read(struct mc_comm *comm, struct mc_stats *stats);
/* wait_s[size]: for how long this rank has waited for each rank of its node last of all, without what that one
 * itself waited for other nodes (stragglers). */
MC_API void mc_waits_read(struct mc_comm *comm, double *wait_s);
struct mc_record { struct mc_desc what; double began_s, took_s; int32_t code; uint32_t path; };
/* The flight log: the last operations, oldest first; began_s on CLOCK_MONOTONIC. Returns how many. */
#define MC_RECORDS 128u
MC_API uint32_t mc_records_read(struct mc_comm *comm, struct mc_record *records, uint32_t room);
/* What this rank is in at this moment: 1 with the call that runs, else the last one; 0 where there was none yet, or calls
 * follow each other so fast that none could be read whole. Never waits. since_s on CLOCK_MONOTONIC: when it began, or ended.
 * absent[size] (NULL: not asked): 1 for ranks that have not come to the call that runs; of a group over nodes, 0. */
struct mc_now { struct mc_desc what; double since_s; uint32_t running; };
MC_API int mc_now_read(struct mc_comm *comm, struct mc_now *now, uint8_t *absent);

/* For DDP's hooks: fp32 to the form of MC_WIRE_I8 and back. `error` (NULL: none), [count], is added to src first, and
 * receives what rounding lost. */
MC_API void mc_kernel_pack_i8(void *dst, const float *src, uint64_t count, float *error);
MC_API void mc_kernel_unpack_i8(float *dst, const void *src, uint64_t count);
MC_API void mc_kernel_unpack_add_i8(float *dst, const void *src, uint64_t count); /* dst += */
#endif
