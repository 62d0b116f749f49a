/* Sends and receives by tag. Within the node through rings in the segment, to other nodes over a
 * channel of their own. mc_post and mc_wait are in muster_core.h. */
#ifndef MUSTER_P2P_H
#define MUSTER_P2P_H
#include "group/comm.h"

extern const struct mc_handler mc_p2p_handler; /* for mc_net_open */
/* Given: sparse, at most 300 MiB; pages are used only by pairs that talk. */
uint64_t mc_p2p_area_bytes(uint32_t local_ranks);
/* Ends the thread and frees; what is pending ends as MC_ECLOSED. Before mc_net_close. */
void mc_p2p_close(struct mc_comm *c);
#endif
