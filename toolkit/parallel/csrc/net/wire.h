/* What travels between nodes: hellos, then frames. Little-endian; the magics tell the order of bytes. */
#ifndef MUSTER_WIRE_H
#define MUSTER_WIRE_H
#include "group/comm.h"
#include "group/hash.h"

/* Connecting rank -> CLIENT_HELLO -> accepting rank -> SERVER_HELLO -> connecting -> CLIENT_FINISHED -> accepting -> ACCEPTED.
 * Both prove that they hold the group's key over both nonces before either believes anything. ACCEPTED
 * is there so that no rank sends data into a connection that the other end has not accepted.
 * On MC_NET_ABORT there is no SERVER_HELLO: CLIENT_HELLO and CLIENT_FINISHED come at once, over a nonce of the connecting rank alone,
 * so that they are read after that rank has ended, too. Replaying them aborts a group that is aborted already. */
#define MC_HELLO_MAGIC 0x3152455453554dfeu
struct mc_client_hello {
  uint64_t magic;
  uint32_t abi;
  uint16_t channel, stream;
  uint32_t rank, to_rank;
  uint64_t endpoint; /* at the listener: of the group and rank that are meant */
  uint8_t group[MC_PROOF], nonce[16];
};
#define MC_NOBODY UINT32_MAX /* in place of a rank: that endpoint is not there any more */
struct mc_server_hello {
  uint64_t magic;
  uint32_t abi, rank;
  uint8_t nonce[16], proof[MC_PROOF];
};
struct mc_client_finished { uint8_t proof[MC_PROOF]; }; /* ACCEPTED has the same form */
struct mc_hello { struct mc_client_hello client; struct mc_server_hello server; };

/* Who says so holds the group's key and, but for the first, which only names the group, has seen both nonces. */
enum mc_proof { MC_NAMES_GROUP = 1, MC_PROVES_SERVER_HELLO, MC_PROVES_CLIENT_FINISHED, MC_PROVES_ACCEPTED };
void mc_hello_proof(const struct mc_comm *c, const struct mc_hello *hello, enum mc_proof of, uint8_t out[MC_PROOF]);

/* A connection that has proved itself is trusted: payloads are not signed, and so neither are headers. A header tells
 * its place and has a checksum, so that one that is lost, doubled, moved or damaged ends the connection. */
enum mc_kind { MC_DATA = 1, MC_HEARTBEAT, MC_ABORT, MC_GOODBYE };
#define MC_FRAME_MAGIC 0x4d43u
#define MC_CONTROL_BYTES 4096u /* the longest payload of a heartbeat or an abort */
struct mc_frame {
  uint16_t magic, parts; /* parts: of its message, on as many streams; 0 where that is not looked at */
  uint8_t kind, verb, dtype, op;
  uint64_t seq, fingerprint, bytes, count;
  uint32_t root;  /* p2p: the tag */
  uint32_t place; /* in the row of frames of its direction, modulo 2^32 */
  uint64_t sum; /* of the payload, 0: not checked */
  uint64_t check; /* checksum of the header with 0 here */
};
void mc_frame_close(struct mc_frame *frame, uint64_t index); /* all else is in it */
bool mc_frame_fits(const struct mc_frame *frame, uint64_t index);

uint64_t mc_frame_sum(const void *data, uint64_t bytes); /* never 0 */
void mc_frame_call(struct mc_frame *frame, const struct mc_comm *c); /* the call that is in progress */
struct mc_desc mc_desc_of(const struct mc_frame *frame);

/* Marks by world rank, as runs of equal ones; MC_HERE is left out. */
struct mc_run_of { uint32_t first; uint32_t count_status; /* count << 4 | mark */ };
size_t mc_rank_status_pack(const uint8_t *rank_status, uint32_t size, struct mc_run_of *runs, size_t room);
void mc_rank_status_unpack(const struct mc_run_of *runs, size_t count, uint8_t *rank_status, uint32_t size);

/* An abort is a mc_failure (its rank_status NULL), and the ranks' as runs. */
#define MC_CONTROL_RUNS ((MC_CONTROL_BYTES - sizeof(struct mc_failure)) / sizeof(struct mc_run_of))
#endif
