/* Keyed proofs (SipHash-2-4, Aumasson and Bernstein 2012) and random bytes. */
#ifndef MUSTER_HASH_H
#define MUSTER_HASH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_PROOF 16u /* bytes of a proof */

/* HMAC-like, two keys nested: what only holders of the 32-byte key can make. `label` keeps the uses apart. */
void mc_prove(const uint8_t key[32], uint64_t label, const void *data, size_t bytes, uint8_t out[MC_PROOF]);
/* In constant time. */
bool mc_proves(const uint8_t a[MC_PROOF], const uint8_t b[MC_PROOF]);
bool mc_random(void *data, size_t bytes);
#endif
