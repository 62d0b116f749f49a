/* What net.c needs of p2p. */
#ifndef MUSTER_P2P_NET_H
#define MUSTER_P2P_NET_H
#include "net_link.h"
extern const struct mc_taker mc_p2p_taker;
#endif
