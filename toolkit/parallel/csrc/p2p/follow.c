/* Which transfers have ended, in the order in which they end: for threads that follow many of them at once.
 * A note of the end outlives its request, which another thread may be told of and forget meanwhile. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>
#include "p2p/state.h"

struct mc_note {
  struct mc_note *next;
  uint64_t id;
};

void mc_note_end(struct mc_p2p *p, struct mc_request *r) {
  struct mc_note *note = r->note;
  r->note = NULL;
  if (p->ended_last) p->ended_last->next = note;
  else p->ended_first = note;
  p->ended_last = note;
  pthread_cond_signal(&p->ended_news);
}

void mc_notes_free(struct mc_p2p *p) {
  for (uint32_t i = 0; i < p->slots; i++)
    if (p->requests[i]) free(p->requests[i]->note);
  for (struct mc_note *note = p->ended_first, *next; note; note = next) {
    next = note->next;
    free(note);
  }
}

static struct mc_p2p *opened(struct mc_comm *c, int *code) {
  struct mc_p2p *p = c ? __atomic_load_n(&c->p2p, __ATOMIC_ACQUIRE) : NULL;
  *code = !p ? MC_EINVAL : p->pid != (int)getpid() ? MC_EFORK : MC_OK;
  return p;
}

int mc_follow(struct mc_comm *c, uint64_t request) {
  int code;
  struct mc_p2p *p = opened(c, &code);
  if (code != MC_OK) return code;
  struct mc_note *note = calloc(1, sizeof *note);
  if (!note) return MC_EMEM;
  note->id = request;
  pthread_mutex_lock(&p->lock);
  struct mc_request *r = mc_request_find(p, request);
  if (r && !r->note && !p->followed_no_more) {
    r->note = note;
    if (r->done) mc_note_end(p, r);
  } else {
    free(note);
    code = MC_EINVAL;
  }
  pthread_mutex_unlock(&p->lock);
  return code;
}

int mc_next_ended(struct mc_comm *c, uint64_t *request) {
  int code;
  struct mc_p2p *p = opened(c, &code);
  if (code != MC_OK) return code;
  pthread_mutex_lock(&p->lock);
  while (!p->ended_first && !p->followed_no_more) pthread_cond_wait(&p->ended_news, &p->lock);
  struct mc_note *note = p->followed_no_more ? NULL : p->ended_first;
  if (note) {
    *request = note->id;
    p->ended_first = note->next;
    if (!note->next) p->ended_last = NULL;
  }
  pthread_mutex_unlock(&p->lock);
  free(note);
  return note ? MC_OK : MC_ECLOSED;
}

void mc_follow_no_more(struct mc_comm *c) {
  int code;
  struct mc_p2p *p = opened(c, &code);
  if (code != MC_OK) return;
  pthread_mutex_lock(&p->lock);
  p->followed_no_more = true;
  pthread_cond_broadcast(&p->ended_news);
  pthread_mutex_unlock(&p->lock);
}
