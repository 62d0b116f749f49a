/* Regions: memory that all ranks of the node have mapped. Whoever reads them holds the call's lock or region_lock. */
#include "group/adopted.h"

const struct mc_region *mc_region_of(const struct mc_comm *c, const void *at, uint64_t bytes) {
  const uint8_t *begin = at;
  for (uint32_t i = 0; c->region_count && i < MC_REGIONS; i++) {
    const struct mc_region *region = &c->regions[i];
    const uint8_t *base = region->bases[c->local];
    if (region->used && begin >= base && begin + bytes <= base + region->bytes) return region;
  }
  return NULL;
}

uint64_t mc_region_offset(const struct mc_comm *c, const struct mc_region *region, const void *at) {
  return (uint64_t)((const uint8_t *)at - (const uint8_t *)region->bases[c->local]);
}

const uint8_t *mc_region_at(const struct mc_comm *c, uint64_t id, uint32_t local, uint64_t offset, uint64_t bytes) {
  for (uint32_t i = 0; i < MC_REGIONS; i++) {
    const struct mc_region *region = &c->regions[i];
    if (region->used && region->id == id && offset <= region->bytes && bytes <= region->bytes - offset)
      return (const uint8_t *)region->bases[local] + offset;
  }
  return NULL;
}

const struct mc_adopted *mc_adopted_around(struct mc_comm *c, const void *at, uint64_t bytes) {
  const uint8_t *first = at, *last = first + bytes;
  for (uint32_t i = 0; i < MC_ADOPTABLE; i++) {
    struct mc_adopted *a = c->adopted[i];
    if (!a || atomic_load(&a->over) || !a->in_place || first < a->at || last > a->at + a->bytes) continue;
    if (mc_pages_may_be_there(a)) return a;
    atomic_store(&a->over, 1);
  }
  return NULL;
}
