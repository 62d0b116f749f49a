/* Memory of the caller's that is registered where it lies: its whole pages give way to shared ones with the same content, at the
 * same address, so that whoever points to it notices nothing. */
#ifndef MUSTER_ADOPTED_H
#define MUSTER_ADOPTED_H
#include "group/comm.h"

struct mc_file { uint64_t process, fd, device, inode, bytes; }; /* fd: 0 where there is none */

#define MC_ADOPT_LEAST ((size_t)1 << 20) /* of less the copies that it spares do not matter */

struct mc_adopted {
  struct mc_adopted *next;        /* of those of the process whose pages are shared */
  _Atomic uint32_t holders;       /* the group, the caller */
  _Atomic uint32_t over;          /* its memory ends, or cannot be shared */
  _Atomic int32_t region;         /* of the group, -1: none */
  uint8_t *at;                    /* as the caller says */
  uint64_t bytes;
  uint8_t *begin;                 /* the whole pages in it */
  uint64_t whole;
  uint8_t *alias;                 /* the shared pages at another address; NULL: they are private */
  struct mc_file file;            /* of the shared pages; open as long as they are there */
  bool in_place;                  /* they are where the memory is */
};

/* --- group/adopted.c: the pages */
int mc_pages_copy(struct mc_adopted *a); /* into new shared ones. 0 or an errno value */
bool mc_pages_replace(struct mc_adopted *a); /* by those; nobody writes the memory meanwhile */
/* Whether the memory from `first` to `last` still shows them: its owner may have mapped something else there. Only for memory
 * that nobody else reads now. */
bool mc_pages_are_there(const struct mc_adopted *a, const uint8_t *first, const uint8_t *last);
bool mc_pages_may_be_there(const struct mc_adopted *a); /* for memory that others may read: it is shared, and looks alike */
/* Private again, with their content; only where it still shows them. `may_be_read`: others still read what has been offered. */
void mc_pages_return(struct mc_adopted *a, bool may_be_read);
void mc_adopted_drop(struct mc_adopted *a); /* by one of its holders */
void *mc_pages_map(const struct mc_file *file); /* those of another process; NULL: they cannot be had */
/* --- group/regions.c */
/* Whose shared pages all but the edges of this lie in; NULL: there are none. With the lock of regions. */
const struct mc_adopted *mc_adopted_around(struct mc_comm *c, const void *at, uint64_t bytes);
#endif
