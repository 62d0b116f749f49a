/* What the files of the interface share. */
#ifndef MUSTER_API_H
#define MUSTER_API_H
#include "group/comm.h"

int mc_failed(struct mc_comm *c, struct mc_failure *failure, int code);  /* as the group has failed */
int mc_refused(struct mc_comm *c, struct mc_failure *failure, int code); /* the call alone */
void mc_async_close(struct mc_comm *c); /* ends the thread; what is under way is aborted on all ranks */
#endif
