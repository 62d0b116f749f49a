#include "net/wire.h"
#include "kernels/kernels.h"
#include <string.h>

_Static_assert(sizeof(struct mc_frame) == 64, "a frame's header is 64 bytes");
_Static_assert(sizeof(struct mc_greeting) == 56, "no holes");
_Static_assert(sizeof(struct mc_answer) == 48, "no holes");

void mc_group_id(const struct mc_comm *c, uint8_t out[MC_PROOF]) { mc_prove(c->key, 1, "", 0, out); }

void mc_answer_proof(const struct mc_comm *c, const struct mc_hello *hello, uint8_t out[MC_PROOF]) {
  /* all but the proof itself */
  mc_prove(c->key, 2, hello, sizeof *hello - MC_PROOF, out);
}

void mc_closing_proof(const struct mc_comm *c, const struct mc_hello *hello, uint8_t out[MC_PROOF]) {
  mc_prove(c->key, 3, hello, sizeof *hello, out);
}

void mc_welcome_proof(const struct mc_comm *c, const struct mc_hello *hello, uint8_t out[MC_PROOF]) {
  mc_prove(c->key, 4, hello, sizeof *hello, out);
}

void mc_frame_keys(const struct mc_comm *c, const struct mc_hello *hello, uint8_t from_connecting[16],
                   uint8_t from_accepting[16]) {
  mc_prove(c->key, 5, hello, sizeof *hello, from_connecting);
  mc_prove(c->key, 6, hello, sizeof *hello, from_accepting);
}

static uint64_t seal_of(const struct mc_frame *frame, const uint8_t key[16], uint64_t index) {
  struct mc_frame copy = *frame;
  copy.seal = index; /* a frame that is lost, doubled or moved does not fit its place */
  return mc_siphash64(key, &copy, sizeof copy);
}

void mc_seal(struct mc_frame *frame, const uint8_t key[16], uint64_t index) {
  frame->seal = seal_of(frame, key, index);
}

bool mc_sealed(const struct mc_frame *frame, const uint8_t key[16], uint64_t index) {
  return frame->magic == MC_FRAME_MAGIC && frame->seal == seal_of(frame, key, index);
}

uint64_t mc_frame_sum(const void *data, uint64_t bytes) {
  const uint64_t sum = mc_checksum(0, data, (size_t)bytes);
  return sum ? sum : 1; /* 0 is: not checked */
}

void mc_frame_call(struct mc_frame *frame, const struct mc_comm *c) {
  const struct mc_desc *desc = &c->desc;
  frame->verb = (uint8_t)desc->verb, frame->dtype = (uint8_t)desc->dtype, frame->op = (uint8_t)desc->op;
  frame->seq = desc->seq, frame->count = desc->count, frame->root = desc->root;
  frame->sign = c->call_sign;
}

struct mc_desc mc_desc_of(const struct mc_frame *frame) {
  return (struct mc_desc){.seq = frame->seq, .count = frame->count, .verb = frame->verb,
                          .dtype = frame->dtype, .op = frame->op, .root = frame->root};
}

size_t mc_marks_pack(const uint8_t *marks, uint32_t size, struct mc_run_of *runs, size_t room) {
  size_t used = 0;
  for (uint32_t rank = 0; marks && rank < size && used < room;) {
    const uint8_t mark = marks[rank];
    uint32_t end = rank + 1;
    while (end < size && marks[end] == mark) end++;
    if (mark != MC_HERE) runs[used++] = (struct mc_run_of){rank, (end - rank) << 4 | (mark & 15u)};
    rank = end;
  }
  return used;
}

void mc_marks_unpack(const struct mc_run_of *runs, size_t count, uint8_t *marks, uint32_t size) {
  for (size_t i = 0; i < count; i++) {
    const uint32_t mark = runs[i].count_mark & 15u, length = runs[i].count_mark >> 4;
    if (mark > MC_DIFFERENT || runs[i].first >= size) continue;
    const uint32_t end = length < size - runs[i].first ? runs[i].first + length : size;
    for (uint32_t rank = runs[i].first; rank < end; rank++) marks[rank] = (uint8_t)mark;
  }
}
