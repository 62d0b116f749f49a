/* Which transfers have ended, in the order in which they end: for threads that follow many of them at once.
 * A note of the end outlives its request, which another thread may be told of and forget meanwhile. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>
#include "p2p/state.h"

void mc_note_end(struct mc_p2p *p, struct mc_request *r) {
  MC_PUSH(&p->ended, r->note);
  r->note = NULL;
  p->followed--;
  pthread_cond_signal(&p->ended_news);
}

void mc_notes_free(struct mc_p2p *p) {
  for (uint32_t i = 0; i < p->slots; i++)
    if (p->requests[i]) free(p->requests[i]->note);
  for (struct mc_note *note = p->ended.first, *next; note; note = next) {
    next = note->next;
    free(note);
  }
}

int mc_follow(struct mc_comm *c, uint64_t request) {
  if (c->pid != (int)getpid()) return MC_EFORK;
  struct mc_p2p *p = c->p2p;
  int code = MC_OK;
  struct mc_note *note = calloc(1, sizeof *note);
  if (!note) return MC_EMEM;
  note->id = request;
  mc_p2p_enter(p);
  struct mc_request *r = mc_request_find(p, request);
  if (r && !r->note && !p->followed_no_more) {
    r->note = note;
    p->followed++;
    if (r->done) mc_note_end(p, r);
    else mc_p2p_arm_progress(p); /* nobody else may look after it */
  } else {
    free(note);
    code = MC_EINVAL;
  }
  pthread_mutex_unlock(&p->lock);
  return code;
}

int mc_next_ended(struct mc_comm *c, uint64_t *request) {
  if (c->pid != (int)getpid()) return MC_EFORK;
  struct mc_p2p *p = c->p2p;
  mc_p2p_enter(p);
  while (!p->ended.first && !p->followed_no_more) pthread_cond_wait(&p->ended_news, &p->lock);
  struct mc_note *note = p->followed_no_more ? NULL : p->ended.first;
  if (note) {
    *request = note->id;
    MC_POP(&p->ended);
  }
  pthread_mutex_unlock(&p->lock);
  free(note);
  return note ? MC_OK : MC_ECLOSED;
}

void mc_follow_no_more(struct mc_comm *c) {
  if (c->pid != (int)getpid()) return;
  struct mc_p2p *p = c->p2p;
  mc_p2p_enter(p);
  p->followed_no_more = true;
  pthread_cond_broadcast(&p->ended_news);
  pthread_mutex_unlock(&p->lock);
}
