/* How vectors are cut: no part is longer than the room that was made for it. */
#include <stdio.h>
#include "driver.h"
#include "driver_values.h"
#include "inter/phases.h"

static bool fits(uint64_t count, uint64_t most, size_t size, uint32_t parts) {
  size_t room = mc_rail_longest(most, size, parts), sum = 0;
  for (uint32_t which = 0; which < parts; which++) {
    size_t part = mc_part(count, size, parts, which).count;
    sum += part;
    if (part <= room) continue;
    fprintf(stderr, "part %u of %u of %llu has %zu elements of %zu bytes, room is for %zu (vectors up to %llu)\n", which,
            parts, (unsigned long long)count, part, size, room, (unsigned long long)most);
    return false;
  }
  return sum == count;
}

/* A vector as long as can be and, as the last piece of a call, shorter ones. */
int play_parts(uint32_t rounds) {
  bool good = fits(800018, 800032, 4, 20); /* the last piece of 3 200 114 floats over two nodes of 20 ranks */
  for (uint64_t round = 0; round < rounds && good; round++) {
    uint64_t chance = value_mix(round), most = chance % 100000;
    size_t size = (size_t)1 << (chance >> 20) % 4;
    uint32_t parts = 1 + (uint32_t)((chance >> 30) % MC_LOCALS);
    uint64_t less = most < 2000 ? most : 2000;
    for (uint64_t count = most - less; count <= most && good; count++) good = fits(count, most, size, parts);
  }
  return good ? 0 : 1;
}
