/* One call: checked, numbered, fingerprinted, run within the node or between nodes, logged. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>
#include "api/api.h"
#include "inter/inter.h"
#include "kernels/kernels.h"
#include "shm/shm.h"

static bool reduces(uint32_t verb) { return verb == MC_ALL_REDUCE || verb == MC_REDUCE || verb == MC_REDUCE_SCATTER; }

static size_t sum(const uint64_t *counts, uint32_t n) {
  size_t all = 0;
  for (uint32_t i = 0; i < n; i++) all += counts[i];
  return all;
}

/* `at` may be missing where there is nothing. At most 2^48 bytes for each rank, so that the sum cannot overflow. */
static bool valid_counts(const struct mc_comm *c, const void *at, const uint64_t *counts, size_t size) {
  for (uint32_t rank = 0; rank < c->size; rank++)
    if (counts[rank] > (UINT64_C(1) << 48) / size) return false;
  size_t all = sum(counts, c->size);
  return all <= (UINT64_C(1) << 48) / size && (at || !all);
}

/* In place of a row. */
static bool valid_blocks(const struct mc_comm *c, const struct mc_call *call) {
  if (call->verb != MC_ALL_GATHER && call->verb != MC_GATHER && call->verb != MC_SCATTER) return false;
  bool all = !call->count || (call->verb == MC_SCATTER ? call->out != NULL : call->in != NULL);
  for (uint32_t rank = 0; call->count && rank < c->size; rank++) all = all && call->blocks[rank];
  return all;
}

static bool valid(const struct mc_comm *c, const struct mc_call *call) {
  if (call->verb >= MC_VERBS || call->dtype >= MC_DTYPES || call->root >= c->size) return false;
  if (!(call->timeout_s >= 0)) return false;
  size_t size = mc_dtype_bytes(call->dtype);
  if (call->count > (UINT64_C(1) << 48) / size / c->size) return false;
  if (reduces(call->verb) && (call->op >= MC_OPS || !mc_reducer(call->dtype, call->op))) return false;
  if (!call->in_counts != !call->out_counts) return false;
  if (call->in_counts)
    return call->verb == MC_ALL_TO_ALL && valid_counts(c, call->in, call->in_counts, size) &&
           valid_counts(c, call->out, call->out_counts, size) &&
           (c->size > 1 || call->in_counts[0] == call->out_counts[0]); /* of several, ranks compare what they send */
  bool root = call->root == c->rank;
  if (call->blocks) return (root || call->verb == MC_ALL_GATHER) && valid_blocks(c, call);
  if (!call->count || call->verb == MC_BARRIER) return true;
  bool is_sender = call->verb != MC_BROADCAST && (call->verb != MC_SCATTER || root);
  bool is_receiver = (call->verb != MC_REDUCE && call->verb != MC_GATHER) || root;
  return (call->in || !is_sender) && (call->out || !is_receiver);
}

static uint64_t hash_of(const struct mc_desc *desc) {
  uint64_t words[5] = {desc->seq, desc->count, (uint64_t)desc->verb << 32 | desc->dtype,
                       (uint64_t)desc->op << 32 | desc->root, UINT64_C(0x9e3779b97f4a7c15)};
  uint64_t hash = UINT64_C(0x243f6a8885a308d3);
  for (unsigned i = 0; i < 5; i++) {
    hash = (hash ^ words[i]) * UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 32;
  }
  return hash | 1; /* 0 says that no call begins */
}

/* Fields that a verb has no use for must not make two ranks differ. */
static struct mc_desc desc_of(const struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  bool rooted = call->verb == MC_REDUCE || call->verb == MC_BROADCAST || call->verb == MC_GATHER || call->verb == MC_SCATTER;
  return (struct mc_desc){
      .seq = c->seq, .verb = call->verb, .dtype = call->dtype, .root = rooted ? call->root : 0,
      .op = reduces(call->verb) ? call->op : call->in_counts != NULL, .count = call->in_counts ? 0 : call->count};
}

/* One thread writes at a time; a reader sees by `edits` whether what it read is of one call. */
static void note(struct mc_comm *c, uint64_t since_ns, bool running) {
  const struct mc_latest now = {.what = c->desc, .since_ns = since_ns, .running = running};
  const uint32_t before = atomic_load_explicit(&c->edits, memory_order_relaxed);
  atomic_store_explicit(&c->edits, before + 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  mc_copy_words(&c->latest, &now, sizeof now);
  atomic_store_explicit(&c->edits, before + 2, memory_order_release);
}

static void begin(struct mc_comm *c, const struct mc_call *call) {
  c->call = *call;
  c->seq++;
  c->began_ns = mc_now_ns();
  c->deadline_ns = c->began_ns + mc_ns_of(call->timeout_s);
  c->desc = desc_of(c);
  c->call_fingerprint = c->fingerprint = hash_of(&c->desc);
  c->path = MC_PATH_STAGED;
  note(c, c->began_ns, true);
}

/* One thread adds, others may read. */
static void add(uint64_t *figure, uint64_t value) { __atomic_store_n(figure, *figure + value, __ATOMIC_RELAXED); }

static void add_s(double *figure, uint64_t ns) {
  double sum = *figure + (double)ns / 1e9;
  __atomic_store(figure, &sum, __ATOMIC_RELAXED);
}

static void end(struct mc_comm *c, int code) {
  uint64_t now = mc_now_ns(), took = now - c->began_ns;
  uint32_t verb = c->call.verb;
  uint64_t count = c->call.in_counts ? sum(c->call.in_counts, c->size) : c->call.count;
  uint64_t bytes = count * mc_dtype_bytes(c->call.dtype);
  add(&c->stats.calls[verb], 1);
  add(&c->stats.bytes[verb], bytes);
  add(&c->stats.paths[c->path], 1);
  add_s(&c->stats.time_s, took);
  add_s(&c->stats.times_s[verb], took);
  add_s(&c->stats.wait_s, c->waited_ns);
  c->waited_ns = 0;
  c->records[c->seq % c->record_count] = (struct mc_record){
      .what = c->desc, .began_s = (double)c->began_ns / 1e9, .took_s = (double)took / 1e9, .code = code, .path = c->path};
  note(c, now, false);
}

static int alone(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  size_t size = mc_dtype_bytes(call->dtype);
  size_t bytes = (call->in_counts ? sum(call->in_counts, 1) : call->count) * size;
  c->path = MC_PATH_ALONE;
  const void *in = call->verb == MC_SCATTER ? mc_call_block(c, call->in, 0, bytes) : call->in;
  void *out = call->verb == MC_SCATTER ? call->out : mc_call_block(c, call->out, 0, bytes);
  if (call->verb != MC_BROADCAST && call->verb != MC_BARRIER && bytes && in != out) memmove(out, in, bytes);
  return MC_OK;
}

static int all_to_all(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  struct mc_span ins[MC_LOCALS], outs[MC_LOCALS], in = {0, 0}, out = {0, 0};
  size_t size = mc_dtype_bytes(call->dtype), longest = call->count * size;
  for (uint32_t rank = 0; rank < c->size; rank++) {
    in.count = (call->in_counts ? call->in_counts[rank] : call->count) * size;
    out.count = (call->out_counts ? call->out_counts[rank] : call->count) * size;
    ins[rank] = in, outs[rank] = out;
    in.begin += in.count, out.begin += out.count;
  }
  int code = call->in_counts ? mc_local_compare(c, mc_epoch, ins, outs, &longest) : MC_OK;
  return code ? code : mc_local_all_to_all(c, mc_epoch, call->in, ins, call->out, outs, longest);
}

static int all_reduce(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  bool took = false;
  /* Where one rank reduces in place and another does not, all must ask all the same. */
  void *data = call->in == call->out ? call->out : NULL;
  int code = mc_registered_all_reduce(c, data, call->count, call->dtype, call->op, &took);
  return code || took ? code : mc_local_reduce(c, call->in, call->out, call->count, call->dtype, call->op, -1);
}

static int local_run(struct mc_comm *c) {
  const struct mc_call *call = &c->call;
  size_t bytes = call->count * mc_dtype_bytes(call->dtype);
  bool took = false;
  int code;
  switch (call->verb) {
    case MC_BARRIER: return mc_epoch(c);
    case MC_ALL_REDUCE: return all_reduce(c);
    case MC_REDUCE: return mc_local_reduce(c, call->in, call->out, call->count, call->dtype, call->op, (int)call->root);
    case MC_BROADCAST: return mc_local_broadcast(c, call->out, bytes, call->root);
    case MC_GATHER: return mc_local_gather(c, call->in, call->out, call->blocks, bytes, (int)call->root);
    case MC_SCATTER: return mc_local_scatter(c, call->in, call->blocks, call->out, bytes, call->root);
    case MC_ALL_GATHER:
      code = mc_registered_all_gather(c, call->in, call->blocks ? NULL : call->out, bytes, &took);
      return code || took ? code : mc_local_gather(c, call->in, call->out, call->blocks, bytes, -1);
    case MC_REDUCE_SCATTER:
      code = mc_registered_reduce_scatter(c, call->in, call->out, call->count, call->dtype, call->op, &took);
      return code || took ? code : mc_local_reduce_scatter(c, call->in, call->out, call->count, call->dtype, call->op);
    default: return all_to_all(c); /* MC_ALL_TO_ALL: there is no other */
  }
}

int mc_failed(struct mc_comm *c, struct mc_failure *failure, int code) {
  mc_failure_tell(c, failure, c->error, c->error_status);
  return code;
}

int mc_refused(struct mc_comm *c, struct mc_failure *failure, int code) {
  mc_failure_tell(c, failure, (struct mc_failure){.code = code, .rank = -1, .reported_by = -1, .mine = c->desc}, NULL);
  return code;
}

static int run(struct mc_comm *c, const struct mc_call *call, struct mc_failure *failure) {
  if (!valid(c, call)) return mc_refused(c, failure, MC_EINVAL);
  if (c->error.code) return mc_failed(c, failure, c->error.code);
  begin(c, call); /* before an error of others is read: which rank it names depends on what this rank calls */
  int code = mc_check(c);
  if (!code) code = c->size == 1 ? alone(c) : c->nodes > 1 ? mc_nodes_run(c) : local_run(c);
  end(c, code);
  return code ? mc_failed(c, failure, c->error.code) : MC_OK;
}

int mc_run(struct mc_comm *c, const struct mc_call *call, struct mc_failure *failure) {
  if (c->pid != (int)getpid()) return mc_refused(c, failure, MC_EFORK);
  pthread_mutex_lock(&c->call_lock); /* a posted call may be under way on the core's own thread */
  const int code = run(c, call, failure);
  pthread_mutex_unlock(&c->call_lock);
  return code;
}
