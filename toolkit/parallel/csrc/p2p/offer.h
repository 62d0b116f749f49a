/* Large messages within the node: offered, and read where they lie.
 *
 * The sender puts an entry into the ring, at the message's place in the row, that says where the bytes are. Whose
 * they are is said by a word of the pair, one for each open offer: the turn of its slot, and
 *
 *   FREE      none, or the sender has withdrawn it: the turn is another then. The same turn: a receive had it as the sender
 *             left, and no copy comes. Another turn says nothing to a receive that has it: its copy has gone into the ring
 *   OFFERED   the receiver may take it, the sender may withdraw it: a compare-and-swap decides
 *   READING   a receive has it. The sender's memory is read, so its request does not end now; who stands still as it reads is
 *             not waited for without end: the sender makes a copy, and says WANTED itself
 *   WANTED    the system does not let the receiver read: the sender is to send the bytes through the ring
 *   TAKEN     all has been read; the sender frees the slot
 *
 * What a receive has begun stays its own: from READING there is no way back to OFFERED. */
#ifndef MUSTER_OFFER_H
#define MUSTER_OFFER_H
#include "group/adopted.h"

enum mc_offer_state { MC_OFFER_FREE, MC_OFFER_OPEN, MC_OFFER_READING, MC_OFFER_WANTED, MC_OFFER_TAKEN };
#define MC_OFFER_BITS 3

struct mc_offer { /* the entry in the ring, behind the message's head */
  uint64_t address;        /* in the sender's memory */
  uint64_t region, offset; /* where that is registered memory; region 0: it is not */
  uint64_t turn;           /* of the slot */
  uint64_t slot;
  uint64_t begin;          /* of shared pages around it, in the sender's memory */
  struct mc_file file;     /* theirs; no fd: there are none */
  uint64_t spare;
};
_Static_assert(sizeof(struct mc_offer) % 16 == 0, "rings have nothing but pieces of 16 bytes");
static inline uint64_t mc_offer_word(uint64_t turn, enum mc_offer_state state) { return turn << MC_OFFER_BITS | (uint64_t)state; }
static inline enum mc_offer_state mc_offer_state_of(uint64_t word) { return (enum mc_offer_state)(word & ((1u << MC_OFFER_BITS) - 1)); }
#endif
