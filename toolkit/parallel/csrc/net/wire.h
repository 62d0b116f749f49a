/* What travels between nodes: hellos, then frames. Little-endian; the magics tell the order of bytes. */
#ifndef MUSTER_NET_WIRE_H
#define MUSTER_NET_WIRE_H
#include "group/comm.h"
#include "group/hash.h"

/* Connecting rank -> GREETING -> accepting rank -> ANSWER -> connecting -> CLOSING -> accepting -> WELCOME.
 * Both prove that they hold the group's key over both nonces before either believes anything. WELCOME
 * is there so that nobody sends data into a connection the other end has not taken.
 * On MC_NET_ABORT there is no ANSWER: GREETING and CLOSING come at once, over a nonce of the connecting rank alone,
 * so that they are read after that rank has ended, too. Who repeats them aborts a group that has been aborted. */
#define MC_HELLO_MAGIC 0x3152455453554dfeu
struct mc_greeting {
  uint64_t magic;
  uint32_t abi, channel, rank, to_rank;
  uint8_t group[MC_PROOF], nonce[16];
};
struct mc_answer {
  uint64_t magic;
  uint32_t abi, rank;
  uint8_t nonce[16], proof[MC_PROOF];
};
struct mc_closing { uint8_t proof[MC_PROOF]; }; /* WELCOME has the same form */
struct mc_hello { struct mc_greeting greeting; struct mc_answer answer; };

void mc_group_id(const struct mc_comm *c, uint8_t out[MC_PROOF]);
void mc_answer_proof(const struct mc_comm *c, const struct mc_hello *hello, uint8_t out[MC_PROOF]);
void mc_closing_proof(const struct mc_comm *c, const struct mc_hello *hello, uint8_t out[MC_PROOF]);
void mc_welcome_proof(const struct mc_comm *c, const struct mc_hello *hello, uint8_t out[MC_PROOF]);
/* Keys that seal the headers, one per direction. */
void mc_frame_keys(const struct mc_comm *c, const struct mc_hello *hello, uint8_t from_connecting[16],
                   uint8_t from_accepting[16]);

enum mc_kind { MC_DATA = 1, MC_PRESENT, MC_FAIL, MC_BYE };
#define MC_FRAME_MAGIC 0x4d43464du
#define MC_WORD_BYTES 4096u /* payload of PRESENT and FAIL at most */
struct mc_frame {
  uint32_t magic;
  uint8_t kind, verb, dtype, op;
  uint64_t seq, sign, bytes, count;
  uint32_t root;  /* p2p: the tag */
  uint32_t spare;
  uint64_t sum;   /* of the payload, 0: not checked */
  uint64_t seal;  /* keyed hash of the header and of its place in the row of frames */
};
void mc_seal(struct mc_frame *frame, const uint8_t key[16], uint64_t index);
bool mc_sealed(const struct mc_frame *frame, const uint8_t key[16], uint64_t index);

uint64_t mc_frame_sum(const void *data, uint64_t bytes); /* never 0 */
void mc_frame_call(struct mc_frame *frame, const struct mc_comm *c); /* the call that is in progress */
struct mc_desc mc_desc_of(const struct mc_frame *frame);

/* Marks by world rank, as runs of equal ones; MC_HERE is left out. */
struct mc_run_of { uint32_t first; uint32_t count_mark; /* count << 4 | mark */ };
size_t mc_marks_pack(const uint8_t *marks, uint32_t size, struct mc_run_of *runs, size_t room);
void mc_marks_unpack(const struct mc_run_of *runs, size_t count, uint8_t *marks, uint32_t size);

struct mc_verdict_word { /* FAIL */
  int32_t code, sys_errno, rank, told_by;
  double waited_s;
  struct mc_desc mine, other;
};
#define MC_WORD_RUNS ((MC_WORD_BYTES - sizeof(struct mc_verdict_word)) / sizeof(struct mc_run_of))
#endif
