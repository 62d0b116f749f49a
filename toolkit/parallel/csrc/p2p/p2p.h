/* Sends and receives by tag. Within the node through rings in the segment, to other nodes over a
 * channel of their own. mc_post and mc_wait are in muster_core.h. */
#ifndef MUSTER_P2P_H
#define MUSTER_P2P_H
#include "group/comm.h"

extern const struct mc_handler mc_p2p_handler; /* for mc_net_open */
/* What it keeps in the segment: sparse, at most 300 MiB; pages are used only by pairs that talk. */
uint64_t mc_p2p_area_bytes(uint32_t local_ranks, const struct mc_tuning *tuning);
int mc_p2p_open(struct mc_comm *c); /* after the segment and the net; 0 or an errno value. Threads start with the first mc_post */
/* Ends the thread and frees; what is pending ends as MC_ECLOSED. Before mc_net_close. */
void mc_p2p_close(struct mc_comm *c);
#endif
