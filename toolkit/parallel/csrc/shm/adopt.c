/* Registering memory where it lies, by the ranks of a node together, in the middle of a sum.
 *
 * A caller says beforehand which memory it sums again and again (mc_adopt). Each large sum asks (shm/registered.c); once all
 * ranks want to register theirs, each copies its whole pages into shared ones and offers those, an epoch later maps what the
 * others offer and puts the shared pages in the place of its own, and a second epoch says whether that went well everywhere.
 * Pages that the memory has only a part of stay as they are; `begin` and `end` of the region are what all ranks share. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "group/adopted.h"
#include "group/fault_point.h"
#include "shm/shm.h"

#define FAILURES 3u /* in groups where it cannot be done nobody wishes it any more */

struct offer { struct mc_file file; uint64_t bytes, head, dead, well; };

static _Atomic uint64_t adopted_bytes; /* of the process */

int mc_adopt(struct mc_comm *c, void *at, uint64_t bytes, uint32_t now, struct mc_adopted **made) {
  if (c->pid != (int)getpid()) return MC_EFORK;
  uint8_t *begin = (uint8_t *)mc_pages((uintptr_t)at), *end = (uint8_t *)(((uintptr_t)at + bytes) & ~(uintptr_t)4095);
  if ((!now && c->nodes > 1) || c->locals < 2 || bytes < MC_ADOPT_LEAST || (uintptr_t)at % 16 || c->tuning.slot_bytes < 2 * 4096) return MC_EINVAL;
  if (bytes > c->tuning.adopt_bytes || atomic_load(&adopted_bytes) > c->tuning.adopt_bytes - bytes) return MC_EMEM;
  struct mc_adopted *a = calloc(1, sizeof *a);
  if (!a) return MC_EMEM;
  *a = (struct mc_adopted){.holders = 2, .region = -1, .at = at, .bytes = bytes, .begin = begin, .whole = (uint64_t)(end - begin)};
  pthread_mutex_lock(&c->region_lock);
  uint32_t i = 0;
  for (; i < MC_ADOPTABLE; i++) { /* those that never were registered make room */
    struct mc_adopted *old = c->adopted[i];
    if (old && (!atomic_load(&old->over) || atomic_load(&old->region) >= 0)) continue;
    if (old) mc_adopted_drop(old);
    c->adopted[i] = a;
    break;
  }
  pthread_mutex_unlock(&c->region_lock);
  if (i == MC_ADOPTABLE) return free(a), MC_EMEM;
  atomic_fetch_add(&adopted_bytes, bytes);
  *made = a;
  if (now && (mc_pages_copy(a) != 0 || !mc_pages_replace(a))) mc_adopted_end(a, 0), *made = NULL;
  return *made ? MC_OK : MC_EMEM;
}

void mc_adopted_end(struct mc_adopted *a, uint32_t moved) {
  atomic_store(&a->over, 1);
  /* what lies there now may be anybody's, who writes meanwhile: it stays shared, and forks know it */
  if (moved) atomic_fetch_add(&a->holders, 1);
  else mc_pages_return(a, false);
  atomic_fetch_sub(&adopted_bytes, a->bytes);
  mc_adopted_drop(a);
}

void mc_adopted_return(struct mc_comm *c, struct mc_adopted *a) {
  pthread_mutex_lock(&c->region_lock); /* sends of another part look at it */
  atomic_store(&a->over, 1);
  mc_pages_return(a, true);
  pthread_mutex_unlock(&c->region_lock);
}

/* Whether the memory is still there that was registered. It is the sum's, so nobody else uses it now. */
static bool holds(struct mc_adopted *a, const uint8_t *first, const uint8_t *last) {
  const uint8_t *end = a->begin + a->whole;
  const bool well = mc_pages_are_there(a, first > a->begin ? first : a->begin, (last < end ? last : end) - 1);
  if (!well) atomic_store(&a->over, 1);
  return well;
}

struct mc_adopted *mc_adopted_of(struct mc_comm *c, const void *at, uint64_t bytes, uint64_t *rkey) {
  struct mc_adopted *found = NULL;
  const uint8_t *first = at, *last = first + bytes;
  pthread_mutex_lock(&c->region_lock);
  for (uint32_t i = 0; i < MC_ADOPTABLE && !(found && atomic_load(&found->region) >= 0); i++) {
    struct mc_adopted *a = c->adopted[i];
    if (!a || atomic_load(&a->over) || first < a->at || last > a->at + a->bytes) continue;
    /* of a wish all, for in the rest of it others may be at work; and rather what is registered */
    const bool wish = bytes == a->bytes && c->adopt_failures < FAILURES;
    if (atomic_load(&a->region) < 0 ? wish : holds(a, first, last)) found = a;
  }
  pthread_mutex_unlock(&c->region_lock);
  if (!found) return NULL;
  const int32_t region = atomic_load(&found->region);
  *rkey = (region < 0 ? MC_WISH : (uint64_t)region + 1) << 48 | (uint64_t)(first - found->at);
  return found;
}

static void unmap(struct mc_comm *c, struct mc_region *region) {
  for (uint32_t local = 0; local < c->locals; local++)
    if (region->peers[local].at && c->pid == (int)getpid()) munmap(region->peers[local].at, region->peers[local].bytes);
  free(region->peers);
  *region = (struct mc_region){.used = false};
}

static void forget(struct mc_comm *c, struct mc_adopted *a) {
  for (uint32_t i = 0; i < MC_ADOPTABLE; i++)
    if (c->adopted[i] == a) c->adopted[i] = NULL;
  mc_adopted_drop(a);
}

/* Regions whose memory has ended on any rank. */
static void drop_dead(struct mc_comm *c, uint64_t dead) {
  for (uint32_t i = 0; i < MC_ADOPTED; i++) {
    struct mc_region *region = &c->regions[MC_REGIONS + i];
    struct mc_adopted *a = region->own;
    if (!(dead >> i & 1) || !a) continue;
    unmap(c, region);
    atomic_store(&a->region, -1);
    atomic_store(&a->over, 1);
    forget(c, a);
  }
}

/* The region that the offers make, in `region`; false where one of them is none, or cannot be had. */
static bool map_all(struct mc_comm *c, struct mc_adopted *a, const struct offer *offers, struct mc_region *region) {
  region->peers = calloc(c->locals, sizeof *region->peers);
  if (!region->peers) return false;
  region->bytes = a->bytes, region->end = a->bytes, region->own = a;
  for (uint32_t local = 0; local < c->locals; local++) {
    const struct offer *offer = &offers[local];
    if (!offer->well || offer->bytes != a->bytes) return false;
    if (local != c->local) region->peers[local] = (struct mc_mapped){mc_pages_map(&offer->file), offer->file.bytes};
    if (local != c->local && !region->peers[local].at) return false;
    /* where the memory would begin, were it whole */
    region->bases[local] = local == c->local ? a->at : (uint8_t *)((uintptr_t)region->peers[local].at - offer->head);
    if (offer->head > region->begin) region->begin = offer->head;
    if (offer->head + offer->file.bytes < region->end) region->end = offer->head + offer->file.bytes;
  }
  return true;
}

static struct offer offer_of(struct mc_comm *c, struct mc_adopted *a) {
  struct offer mine = {.bytes = a->bytes, .head = (uint64_t)(a->begin - a->at), .well = a->alias || mc_pages_copy(a) == 0};
  mine.file = a->file;
  for (uint32_t i = 0; i < MC_ADOPTED; i++) {
    const struct mc_adopted *own = c->regions[MC_REGIONS + i].own;
    if (own && atomic_load(&own->over)) mine.dead |= (uint64_t)1 << i;
  }
  return mine;
}

static int together(struct mc_comm *c, struct mc_adopted *a, struct mc_region *region, bool *well, uint32_t *number) {
  struct offer offers[MC_LOCALS];
  const struct offer mine = offer_of(c, a);
  uint32_t epoch = mc_next(c);
  memcpy(mc_in_slot(c, c->local, epoch), &mine, sizeof mine);
  MC_FAULT_POINT(adopt_offered);
  int code = mc_epoch(c);
  if (code) return code;
  uint64_t dead = 0;
  for (uint32_t local = 0; local < c->locals; local++) {
    memcpy(&offers[local], mc_in_slot(c, local, epoch), sizeof *offers);
    dead |= offers[local].dead;
  }
  pthread_mutex_lock(&c->region_lock);
  drop_dead(c, dead);
  *number = MC_REGIONS;
  while (*number < MC_REGIONS + MC_ADOPTED && c->regions[*number].used) ++*number;
  pthread_mutex_unlock(&c->region_lock);
  const bool mapped = *number < MC_REGIONS + MC_ADOPTED && map_all(c, a, offers, region) && (a->in_place || mc_pages_replace(a));
  c->rkey = mapped;
  const uint32_t parity = mc_next(c) & 1;
  MC_FAULT_POINT(adopt_mapped);
  code = mc_epoch(c);
  *well = !code;
  for (uint32_t local = 0; local < c->locals && !code; local++) *well = *well && mc_block(c, local)->rkey[parity];
  return code;
}

int mc_adopt_together(struct mc_comm *c, struct mc_adopted *a, bool *well) {
  struct mc_region region = {.used = true};
  uint32_t number = 0;
  *well = false;
  const int code = together(c, a, &region, well, &number);
  if (*well) {
    pthread_mutex_lock(&c->region_lock);
    region.id = ++c->region_ids;
    c->regions[number] = region;
    atomic_store(&a->region, (int32_t)number);
    pthread_mutex_unlock(&c->region_lock);
    return MC_OK;
  }
  if (region.peers) unmap(c, &region);
  mc_adopted_return(c, a);
  if (number < MC_REGIONS + MC_ADOPTED) c->adopt_failures++; /* else there was no room; the same on all ranks */
  return code;
}

void mc_adopted_close(struct mc_comm *c) {
  for (uint32_t i = 0; i < MC_ADOPTED; i++)
    if (c->regions[MC_REGIONS + i].own) unmap(c, &c->regions[MC_REGIONS + i]);
  for (uint32_t i = 0; i < MC_ADOPTABLE; i++)
    if (c->adopted[i]) mc_adopted_drop(c->adopted[i]);
}
