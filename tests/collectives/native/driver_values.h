/* What elements are: values of every type drawn from numbers, and what a reduction must make of them, one
 * element at a time and in the plainest way; nothing of the core's arithmetic is used. */
#ifndef DRIVER_VALUES_H
#define DRIVER_VALUES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "muster_core.h"

#define VALUE_BYTES 8u

size_t value_bytes(uint32_t dtype);
bool value_defined(uint32_t dtype, uint32_t op);
/* Element i of rank r's input: any bits, ordinary numbers, and what is special (NaN, infinities, the
 * smallest, both zeros). The same for the same numbers, everywhere. */
void value_draw(uint32_t dtype, uint64_t salt, uint32_t rank, uint64_t i, void *to);
/* The reduction of one element of each of `size` ranks: of the ranks of a node ascending, then of the nodes
 * ascending, a node's sum being an element of the type. `node_of` numbers nodes by first appearance. */
void value_expect(uint32_t dtype, uint32_t op, const void *const *from, const uint32_t *node_of, uint32_t size, double divisor,
                  void *to);
/* Whether the bits are the same; of sums and products that are no number: whether both are none. */
bool value_same(uint32_t dtype, uint32_t op, const void *got, const void *due);

float value_of_half(uint16_t bits, bool brain); /* bfloat16 or binary16 */
uint16_t value_half(float value, bool brain);   /* to nearest even; NaNs become quiet */
uint64_t value_mix(uint64_t number);            /* scatters bits */

/* Memory with what lies beside it: `shift` bytes off alignment; guarded: some bytes before and behind that must
 * stay; else it ends where malloc's memory does, which a sanitizer watches. */
struct room { uint8_t *whole, *at; size_t bytes, shift, guard; };
struct room room_open(size_t bytes, size_t shift, bool guarded);
bool room_close(struct room *room); /* false: something was written beside it */
#endif
