#include "net/wire.h"
#include "kernels/kernels.h"

_Static_assert(sizeof(struct mc_frame) == 64, "a frame's header is 64 bytes");
_Static_assert(sizeof(struct mc_client_hello) == 64, "no holes");
_Static_assert(sizeof(struct mc_server_hello) == 48, "no holes");

void mc_hello_proof(const struct mc_comm *c, const struct mc_hello *hello, enum mc_proof of, uint8_t out[MC_PROOF]) {
  const size_t its_own = of == MC_PROVES_SERVER_HELLO ? MC_PROOF : 0; /* stands at the end, and cannot cover itself */
  mc_prove(c->key, of, hello, sizeof *hello - its_own, out);
}

static uint64_t check_of(const struct mc_frame *frame) {
  struct mc_frame copy = *frame;
  copy.check = 0;
  return mc_checksum(0, &copy, sizeof copy);
}

void mc_frame_close(struct mc_frame *frame, uint64_t index) {
  frame->place = (uint32_t)index;
  frame->check = check_of(frame);
}

bool mc_frame_fits(const struct mc_frame *frame, uint64_t index) {
  return frame->magic == MC_FRAME_MAGIC && frame->place == (uint32_t)index && frame->check == check_of(frame);
}

uint64_t mc_frame_sum(const void *data, uint64_t bytes) {
  const uint64_t sum = mc_checksum(0, data, (size_t)bytes);
  return sum ? sum : 1; /* 0 is: not checked */
}

void mc_frame_call(struct mc_frame *frame, const struct mc_comm *c) {
  const struct mc_desc *desc = &c->desc;
  frame->verb = (uint8_t)desc->verb, frame->dtype = (uint8_t)desc->dtype, frame->op = (uint8_t)desc->op;
  frame->seq = desc->seq, frame->count = desc->count, frame->root = desc->root;
  frame->fingerprint = c->call_fingerprint;
}

struct mc_desc mc_desc_of(const struct mc_frame *frame) {
  return (struct mc_desc){.seq = frame->seq, .count = frame->count, .verb = frame->verb,
                          .dtype = frame->dtype, .op = frame->op, .root = frame->root};
}

size_t mc_rank_status_pack(const uint8_t *rank_status, uint32_t size, struct mc_run_of *runs, size_t room) {
  size_t used = 0;
  for (uint32_t rank = 0; rank_status && rank < size && used < room;) {
    const uint8_t status = rank_status[rank];
    uint32_t end = rank + 1;
    while (end < size && rank_status[end] == status) end++;
    if (status != MC_HERE) runs[used++] = (struct mc_run_of){rank, (end - rank) << 4 | (status & 15u)};
    rank = end;
  }
  return used;
}

void mc_rank_status_unpack(const struct mc_run_of *runs, size_t count, uint8_t *rank_status, uint32_t size) {
  for (size_t i = 0; i < count; i++) {
    const uint32_t status = runs[i].count_status & 15u, length = runs[i].count_status >> 4;
    if (status > MC_DIFFERENT || runs[i].first >= size) continue;
    const uint32_t end = length < size - runs[i].first ? runs[i].first + length : size;
    for (uint32_t rank = runs[i].first; rank < end; rank++) rank_status[rank] = (uint8_t)status;
  }
}
