/* One collective call with drawn values of any type, and whether every element of its result is right. */
#ifndef DRIVER_DEAL_H
#define DRIVER_DEAL_H
#include "driver.h"

struct deal {
  uint32_t verb, dtype, op, root;
  uint64_t count, salt; /* another salt: other values */
  void *in, *out;       /* where they lie (registered memory); NULL: rooms at odd places of their own */
};

/* All ranks call it with the same deal. Says on stderr what is wrong. */
bool deal_right(struct rank *self, const struct deal *deal);
uint64_t deal_in(const struct deal *deal, uint32_t size);  /* elements, on the ranks that give */
uint64_t deal_out(const struct deal *deal, uint32_t size); /* elements, on the ranks that take */
/* A verb and a type and an operation that go together, the same on all ranks. */
struct deal deal_drawn(struct rank *self, uint64_t salt);
#endif
