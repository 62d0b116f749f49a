/* Between nodes: memory and lists of messages that are kept from call to call. */
#include <errno.h>
#include <stdlib.h>
#include "inter/phases.h"

#define PAGE 4096u

static int no_memory(struct mc_comm *c) { return mc_fail(c, MC_EMEM, ENOMEM, -1, NULL, NULL); }

int mc_inter_open(struct mc_comm *c) {
  struct mc_inter *b = c->inter;
  if (!b) {
    b = calloc(1, sizeof *b);
    if (!b) return no_memory(c);
    b->rails = mc_inter_locals(c, 0);
    for (uint32_t node = 1; node < c->nodes; node++)
      if (mc_inter_locals(c, node) < b->rails) b->rails = mc_inter_locals(c, node);
    c->inter = b;
  }
  for (uint32_t slot = 0; slot < MC_INTER_SLOTS; slot++) {
    b->sends[slot].first = b->sends[slot].count = b->receives[slot].first = b->receives[slot].count = 0;
    b->sends[slot].empties = b->receives[slot].empties = false;
  }
  return MC_OK;
}

void mc_inter_close(struct mc_comm *c) {
  struct mc_inter *b = c->inter;
  if (!b) return;
  for (unsigned i = 0; i < MC_SCRATCHES; i++) free(b->scratch[i].at);
  for (unsigned i = 0; i < MC_INTER_SLOTS; i++) free(b->sends[i].tickets), free(b->receives[i].tickets);
  free(b);
}

void *mc_inter_scratch(struct mc_comm *c, enum mc_scratch which, size_t bytes) {
  struct mc_inter *b = c->inter;
  if (b->scratch[which].bytes < bytes || !b->scratch[which].at) {
    size_t room = (bytes / PAGE + 1) * PAGE;
    free(b->scratch[which].at); /* what it held is of no use any more */
    b->scratch[which].at = aligned_alloc(PAGE, room);
    b->scratch[which].bytes = b->scratch[which].at ? room : 0;
    if (!b->scratch[which].at) no_memory(c);
  }
  return b->scratch[which].at;
}

static int room_for_one(struct mc_comm *c, struct mc_posts *posts) {
  if (posts->count < posts->room) return MC_OK;
  uint32_t room = posts->room ? posts->room * 2 : 16;
  uint64_t *tickets = realloc(posts->tickets, room * sizeof *tickets);
  if (!tickets) return no_memory(c);
  posts->tickets = tickets;
  posts->room = room;
  return MC_OK;
}

int mc_inter_send(struct mc_comm *c, uint32_t slot, uint32_t peer, const void *data, size_t bytes) {
  struct mc_posts *posts = &c->inter->sends[slot];
  if (!bytes && !posts->empties) return MC_OK;
  int code = room_for_one(c, posts);
  if (code) return code;
  code = mc_net_send(c, peer, data, bytes, &posts->tickets[posts->count++]);
  return code ? mc_fail(c, code, 0, (int)peer, NULL, NULL) : MC_OK;
}

int mc_inter_recv(struct mc_comm *c, uint32_t slot, uint32_t peer, void *data, size_t bytes) {
  struct mc_posts *posts = &c->inter->receives[slot];
  if (!bytes && !posts->empties) return MC_OK;
  int code = room_for_one(c, posts);
  if (code) return code;
  code = mc_net_recv(c, peer, data, bytes, &posts->tickets[posts->count++]);
  return code ? mc_fail(c, code, 0, (int)peer, NULL, NULL) : MC_OK;
}

static int await(struct mc_comm *c, struct mc_posts *posts, uint32_t how_many) {
  for (; how_many && posts->first < posts->count; how_many--) {
    int code = mc_inter_wait(c, posts->tickets[posts->first]);
    if (code) return code;
    posts->first++;
  }
  if (posts->first == posts->count) posts->first = posts->count = 0;
  return MC_OK;
}

int mc_inter_await_sent(struct mc_comm *c, uint32_t slot, uint32_t how_many) { return await(c, &c->inter->sends[slot], how_many); }

int mc_inter_await_received(struct mc_comm *c, uint32_t slot, uint32_t how_many) {
  return await(c, &c->inter->receives[slot], how_many);
}

int mc_inter_limit(struct mc_comm *c, struct mc_posts *posts, uint32_t most) {
  uint32_t open = posts->count - posts->first;
  return open > most ? await(c, posts, open - most) : MC_OK;
}
