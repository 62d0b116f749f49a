/* The verbs between nodes, as a call sees them. */
#ifndef MUSTER_INTER_H
#define MUSTER_INTER_H
#include "group/comm.h"

int mc_nodes_run(struct mc_comm *c);    /* one call over all nodes: c->call, already checked */
void mc_inter_close(struct mc_comm *c); /* what the verbs between nodes keep from call to call */
#endif
