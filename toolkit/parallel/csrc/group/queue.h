/* Singly linked queues, of structs that have a `next`. */
#ifndef MUSTER_QUEUE_H
#define MUSTER_QUEUE_H
#include <stddef.h>

#define MC_QUEUE(type) struct { struct type *first, *last; }
#define MC_PUSH(queue, item)                       \
  do {                                             \
    (item)->next = NULL;                           \
    if ((queue)->last) (queue)->last->next = item; \
    else (queue)->first = item;                    \
    (queue)->last = item;                          \
  } while (0)
/* The first one, which is there, leaves. */
#define MC_POP(queue)                                 \
  do {                                                \
    (queue)->first = (queue)->first->next;            \
    if (!(queue)->first) (queue)->last = NULL;        \
  } while (0)
/* The item leaves, where it is in the queue. */
#define MC_REMOVE(queue, item)                                            \
  do {                                                                    \
    __typeof__((queue)->first) *at_ = &(queue)->first, before_ = NULL;    \
    while (*at_ && *at_ != (item)) before_ = *at_, at_ = &before_->next;  \
    if (*at_ && (queue)->last == (item)) (queue)->last = before_;         \
    if (*at_) *at_ = (item)->next;                                        \
  } while (0)
#endif
