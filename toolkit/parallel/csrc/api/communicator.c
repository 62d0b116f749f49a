/* A group: made from a layout, closed, its regions, its figures. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "api/api.h"
#include "inter/inter.h"
#include "net/net.h"
#include "p2p/p2p.h"
#include "shm/shm.h"

#define NOW_TRIES 100u

uint32_t mc_abi(void) { return MC_ABI; }

uint64_t mc_segment_bytes(uint32_t locals, const struct mc_tuning *tuning) {
  return mc_slots_end(locals, tuning) + mc_p2p_area_bytes(locals, tuning);
}

static bool sound(const struct mc_layout *layout) {
  const struct mc_tuning *t = &layout->tuning;
  if (layout->abi != MC_ABI || !layout->size || layout->rank >= layout->size || !layout->node_of) return false;
  /* a chunk is cut in a part for every local rank, in lines of 64 bytes */
  if (t->slot_bytes % 4096 || t->chunk_bytes % 4096 || !t->chunk_bytes || t->chunk_bytes > t->slot_bytes) return false;
  if (t->streams < 1 || t->streams > 64) return false; /* parts of a message are counted in a byte */
  return t->wire <= MC_WIRE_I8 && t->spin_s >= 0 && t->spin_s < 1;
}

/* Ranks by node: `first_of` are borders in `members`, which has the ranks of a node ascending. */
static int place(struct mc_comm *c, const struct mc_layout *layout) {
  for (uint32_t rank = 0; rank < c->size; rank++) {
    uint32_t node = layout->node_of[rank];
    if (node > c->nodes) return EINVAL;
    if (node == c->nodes) c->nodes++;
    c->node_of[rank] = node;
  }
  uint32_t filled = 0;
  for (uint32_t node = 0; node < c->nodes; node++) {
    c->first_of[node] = filled;
    for (uint32_t rank = 0; rank < c->size; rank++) {
      if (c->node_of[rank] != node) continue;
      c->local_of[rank] = filled - c->first_of[node];
      c->members[filled++] = rank;
    }
  }
  c->first_of[c->nodes] = filled;
  c->node = c->node_of[c->rank];
  c->local = c->local_of[c->rank];
  c->locals = c->first_of[c->node + 1] - c->first_of[c->node];
  if (c->locals > MC_LOCALS || c->tuning.chunk_bytes / c->locals < 64) return EINVAL;
  return c->locals > 1 && layout->segment_fd < 0 ? EINVAL : 0;
}

static int allocate(struct mc_comm *c) {
  size_t n = c->size;
  c->node_of = calloc(4 * n + 1, sizeof *c->node_of);
  c->error_status = calloc(n > MC_STATUS_RANKS ? n : MC_STATUS_RANKS, 1);
  c->peer_wait_ns = calloc(n, sizeof *c->peer_wait_ns);
  c->records = calloc(c->record_count, sizeof *c->records);
  if (!c->node_of || !c->error_status || !c->peer_wait_ns || !c->records) return ENOMEM;
  c->local_of = c->node_of + n, c->members = c->local_of + n, c->first_of = c->members + n;
  return 0;
}

static void release(struct mc_comm *c) {
  mc_inter_close(c);
  mc_adopted_close(c);
  pthread_mutex_destroy(&c->call_lock);
  pthread_mutex_destroy(&c->region_lock);
  mc_segment_detach(c);
  free(c->node_of), free(c->error_status), free(c->peer_wait_ns), free(c->records);
  free(c);
}

static int refuse(struct mc_comm *c, const struct mc_layout *layout, struct mc_failure *failure, int error) {
  int code = error == ETIMEDOUT ? MC_ETIMEOUT : error == ENOMEM ? MC_EMEM : error == EINVAL ? MC_EINVAL : MC_ESYS;
  struct mc_failure what = {.code = code, .sys_errno = error, .rank = -1, .reported_by = -1};
  /* who of the node has not attached */
  for (uint32_t local = 0; c && c->segment && error == ETIMEDOUT && local < c->locals; local++)
    if (!atomic_load(&mc_block(c, local)->state)) {
      c->error_status[mc_rank_of(c, local)] = MC_MISSING;
      if (what.rank < 0) what.rank = (int)mc_rank_of(c, local);
    }
  if (c && c->error_status) mc_failure_tell(c, failure, what, c->error_status);
  else if (failure) what.rank_status = failure->rank_status, *failure = what;
  if (layout->addresses && !(c && c->net) && layout->rank < layout->size) mc_endpoint_close(layout->addresses[layout->rank].endpoint);
  if (c && c->net) mc_net_close(c);
  if (c) release(c);
  else if (layout->segment_fd >= 0) close(layout->segment_fd);
  return code;
}

int mc_create(const struct mc_layout *layout, double timeout_s, struct mc_comm **out, struct mc_failure *failure) {
  *out = NULL;
  if (!sound(layout)) return refuse(NULL, layout, failure, EINVAL);
  struct mc_comm *c = calloc(1, sizeof *c);
  if (!c) return refuse(NULL, layout, failure, ENOMEM);
  c->rank = layout->rank;
  c->size = layout->size;
  c->tuning = layout->tuning;
  c->record_count = layout->records ? layout->records : MC_RECORDS;
  c->pid = (int)getpid();
  c->segment_fd = layout->segment_fd;
  memcpy(c->key, layout->key, sizeof c->key);
  pthread_mutex_init(&c->call_lock, NULL);
  pthread_mutex_init(&c->region_lock, NULL);
  c->began_ns = mc_now_ns();
  c->deadline_ns = c->began_ns + mc_ns_of(timeout_s);
  int failed = allocate(c);
  if (!failed) failed = place(c, layout);
  c->error.rank_status = c->error_status;
  if (!failed) failed = mc_segment_attach(c, mc_segment_bytes(c->locals, &c->tuning));
  if (!failed && c->nodes > 1)
    failed = !layout->addresses ? EINVAL : mc_net_open(c, layout->addresses, &mc_p2p_handler);
  if (!failed) failed = mc_p2p_open(c);
  if (failed) return refuse(c, layout, failure, failed);
  *out = c;
  return MC_OK;
}

void mc_close(struct mc_comm *c) {
  if (c->pid == (int)getpid()) { /* a forked child has no part in its parent's threads and connections */
    mc_async_close(c);
    mc_p2p_close(c);
    if (c->net) mc_net_close(c);
  }
  release(c);
}

int mc_region_add(struct mc_comm *c, void *const *bases, uint64_t bytes, uint32_t *region) {
  uint32_t i = 0;
  if (c->pid != (int)getpid()) return MC_EFORK;
  pthread_mutex_lock(&c->call_lock);
  pthread_mutex_lock(&c->region_lock);
  const uint64_t id = ++c->region_ids; /* of a call that fails, too: others may have gone through with it */
  while (i < MC_REGIONS && c->regions[i].used) i++;
  if (i < MC_REGIONS) {
    memcpy(c->regions[i].bases, bases, c->locals * sizeof *bases);
    c->regions[i].bytes = bytes;
    c->regions[i].id = id;
    c->regions[i].used = true;
    c->region_count++;
    *region = i;
  }
  pthread_mutex_unlock(&c->region_lock);
  pthread_mutex_unlock(&c->call_lock);
  return i < MC_REGIONS ? MC_OK : MC_EMEM;
}

int mc_region_drop(struct mc_comm *c, uint32_t region) {
  if (c->pid != (int)getpid()) return MC_EFORK;
  pthread_mutex_lock(&c->call_lock);
  pthread_mutex_lock(&c->region_lock);
  const bool is_used = region < MC_REGIONS && c->regions[region].used;
  if (is_used) c->regions[region].used = false, c->region_count--;
  pthread_mutex_unlock(&c->region_lock);
  pthread_mutex_unlock(&c->call_lock);
  return is_used ? MC_OK : MC_EINVAL;
}

/* Read while other threads may be in a call or move messages: figures, not facts to build on. */
void mc_stats_read(struct mc_comm *c, struct mc_stats *stats) {
  mc_copy_words(stats, &c->stats, sizeof *stats);
}

void mc_waits_read(struct mc_comm *c, double *wait_s) {
  for (uint32_t rank = 0; rank < c->size; rank++) wait_s[rank] = (double)c->peer_wait_ns[rank] / 1e9;
}

uint32_t mc_records_read(struct mc_comm *c, struct mc_record *records, uint32_t room) {
  uint64_t last = c->seq, kept = last < c->record_count ? last : c->record_count;
  uint32_t n = room < kept ? room : (uint32_t)kept;
  for (uint32_t i = 0; i < n; i++) records[i] = c->records[(last - n + 1 + i) % c->record_count];
  return n;
}

/* Whether a rank of this node has begun a call of that number: it describes each one as it comes to it. */
static bool has_begun(const struct mc_comm *c, uint32_t local, uint64_t seq) {
  struct mc_rank_block *block = mc_block(c, local);
  (void)atomic_load_explicit(&block->flag, memory_order_acquire); /* what it wrote before it raised this is seen */
  return __atomic_load_n(&block->desc[0].seq, __ATOMIC_RELAXED) >= seq || __atomic_load_n(&block->desc[1].seq, __ATOMIC_RELAXED) >= seq;
}

int mc_now_read(struct mc_comm *c, struct mc_now *now, uint8_t *absent) {
  if (c->pid != (int)getpid()) return 0;
  for (unsigned tries = 0; tries < NOW_TRIES; tries++) {
    const uint32_t before = atomic_load_explicit(&c->edits, memory_order_acquire);
    struct mc_latest found;
    mc_copy_words(&found, &c->latest, sizeof found);
    for (uint32_t rank = 0; absent && rank < c->size; rank++)
      absent[rank] = found.running && c->nodes == 1 && rank != c->rank && !has_begun(c, c->local_of[rank], found.what.seq);
    atomic_thread_fence(memory_order_acquire);
    if (before & 1 || before != atomic_load_explicit(&c->edits, memory_order_relaxed)) continue;
    *now = (struct mc_now){.what = found.what, .since_s = (double)found.since_ns / 1e9, .running = (uint32_t)found.running};
    return before > 0;
  }
  return 0;
}
