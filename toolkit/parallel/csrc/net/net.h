/* Between nodes: authenticated TCP connections to ranks of other nodes, made when first needed; framed
 * messages in order; control messages: heartbeats, errors, goodbyes. Sockets never block; one thread at a
 * time drives a net (the caller of mc_run), p2p has a net of its own. */
#ifndef MUSTER_NET_H
#define MUSTER_NET_H
#include "group/comm.h"

enum mc_channel { MC_NET_COLLECTIVE, MC_NET_P2P, MC_NET_ABORT, MC_NET_CHANNELS, MC_NET_WATCH = MC_NET_CHANNELS }; /* each has connections of its own; a watcher only sees whether the group is there */

struct mc_handler;
/* `p2p`: of the frames of MC_NET_P2P. 0 or an errno value; after a failure this rank's endpoint is still the caller's. */
int mc_net_open(struct mc_comm *c, const struct mc_address *addresses, const struct mc_handler *p2p);
void mc_net_close(struct mc_comm *c); /* sends goodbyes, where that does not block */

/* Collectives. Posts queue only; memory must stay as it is until done. Messages of a pair match in order;
 * each frame's header carries the call's fingerprint, so that a peer in another call is a mismatch, not garbage. */
int mc_net_send(struct mc_comm *c, uint32_t peer, const void *data, size_t bytes, uint64_t *ticket);
int mc_net_recv(struct mc_comm *c, uint32_t peer, void *data, size_t bytes, uint64_t *ticket);
bool mc_net_done(struct mc_comm *c, uint64_t ticket);
bool mc_net_idle(struct mc_comm *c); /* nothing that was posted is under way */
/* Moves what can be moved, and waits once, for up to wait_ns, if nothing could; *moved says whether something did.
 * Not MC_OK: `loss` says what is wrong. Nothing here decides that the group has failed. */
int mc_net_step(struct mc_comm *c, uint64_t wait_ns, bool *moved, struct mc_failure *loss);
/* For long waits: reads control messages, says "I am here, these local ranks are not" to the peers that may
 * wait for this rank, where that is due. Neither blocks. */
int mc_net_look(struct mc_comm *c, const uint8_t *missing_locals, struct mc_failure *loss);
void mc_net_heartbeat(struct mc_comm *c, const uint8_t *missing_locals);
/* The deadline has passed: `loss` names the ranks that have not come, as far as this rank can know. */
void mc_net_late(struct mc_comm *c, struct mc_failure *loss);
/* Sends the failure to all connected peers; waits for no more than connections that are being made (300 ms). */
void mc_net_propagate(struct mc_comm *c, const struct mc_failure *failure);
/* Tells every other node that this rank has aborted, from any thread, also in no call: begins it once, waits up to
 * 250 ms for their answers; nodes whose ranks are all in no call hear it in their next one, also when
 * this rank has ended by then. */
void mc_net_abort(struct mc_comm *c);
#endif
