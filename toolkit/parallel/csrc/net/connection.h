/* Inside the net: the door (listening socket and hellos that are under way), channels, links.
 *
 * A channel is driven by one thread at a time; only its handed-over sockets and the door are shared
 * between channels, under door.lock. On MC_NET_COLLECTIVE a pair has one link, made by the higher
 * rank. On MC_NET_P2P links have a direction: the sender makes its own, so that a receive from
 * any source needs no connections of its own. On MC_NET_ABORT the hello is all. */
#ifndef MUSTER_NET_LINK_H
#define MUSTER_NET_LINK_H
#include <pthread.h>
#include "net/net.h"
#include "net/wire.h"

#define MC_SLICE_NS 50000000u           /* no wait sleeps longer than this without looking up */
#define MC_HELLO_NS 5000000000u         /* for a foreign or slow hello */
#define MC_CROWDED_NS 1000000000u       /* the same where others wait for the place */
#define MC_PENDING 64u                  /* accepted sockets whose hello is under way; the oldest gives way */
#define MC_REFUSED_NS 2000000000u       /* refused for this long: the process is gone, its port closed */
#define MC_ELSEWHERE_NS 300000000u      /* after a loss: for the verdict of somebody who knows more */
#define MC_UNASKED_NS 1000000000u       /* the same for a rank that nothing is awaited from at the moment */
#define MC_GRACE_NS 1000000000u         /* beyond the deadline, for the verdict of the node that is late */
#define MC_WORD_NS 200000000u           /* between two PRESENT words to the same peers */
#define MC_TELL_NS 300000000u           /* for connections that are being made, so that the verdict reaches their ends */
#define MC_REACH_NS 1000000000u         /* a wait this long is worth connections that the call has no use for */
#define MC_QUIET_NS 1500000000u         /* a rank that waits in a call speaks more often than that */
#define MC_SILENT_MS 15000u             /* unacknowledged data, not even probes answered: the host is gone */

struct mc_out { /* a frame to send */
  struct mc_out *next;
  struct mc_frame frame;
  const uint8_t *data;
  uint64_t left;     /* header and payload not yet sent */
  uint8_t *owned;    /* freed with it */
  uint64_t ticket;   /* collective, 0: none */
  void *owner;       /* p2p request or NULL */
  bool sealed;
};
struct mc_want { /* a posted receive of the collective channel */
  struct mc_want *next;
  uint8_t *data;
  uint64_t bytes, ticket, sign;
};

enum mc_link_state {
  MC_LINK_NONE, MC_LINK_DIAL, MC_LINK_CONNECTING, MC_LINK_ANSWER, MC_LINK_WELCOME, MC_LINK_WATCHED, MC_LINK_UP,
  MC_LINK_GONE
};
enum mc_phase { MC_HEADER, MC_HELD, MC_PAYLOAD };
#define MC_AHEAD 16384u

struct mc_link {
  struct mc_link *next; /* of the channel's row of links */
  uint32_t peer;
  int fd, why;          /* why: errno of the last failure */
  enum mc_link_state state;
  bool accepted;        /* by us: made by the other end */
  bool bye, broken;     /* broken: what came is not ours, nothing more is read */
  bool settled;         /* the loss has been dealt with */
  uint64_t retry_ns, pause_ns, refused_ns, lost_ns, probed_ns;
  struct mc_hello hello; /* dialling */
  uint8_t greet[64]; size_t greeted;
  uint8_t send_key[16], recv_key[16];
  uint64_t send_index, recv_index;
  struct mc_out *first, *last;
  bool word_queued;      /* a PRESENT is in the queue */
  /* reading: what is in `ahead` comes before what is in the socket */
  uint8_t *ahead;
  size_t ahead_at, ahead_end, ahead_room;
  bool ended;            /* nothing more comes from the socket */
  enum mc_phase phase;
  struct mc_frame frame;
  uint8_t *to;           /* NULL: dropped */
  uint64_t left;
  uint8_t *word;         /* payload of a word */
  /* collective */
  struct mc_want *want_first, *want_last;
  uint64_t heard_seq;    /* the last call it was heard in ... */
  uint64_t heard_ns;     /* ... and when */
  uint64_t word_seq;     /* of its last PRESENT word, with whom it misses */
  struct mc_run_of *missing;
  size_t missing_count;
  void *incoming;        /* p2p: the message that is under way */
};

struct mc_chan;
enum mc_taking { MC_TAKE, MC_HOLD, MC_REFUSE };
struct mc_taker { /* what a channel does with frames */
  enum mc_taking (*begin)(struct mc_chan *ch, struct mc_link *l); /* sets l->to */
  void (*landed)(struct mc_chan *ch, struct mc_link *l);
  void (*sent)(struct mc_chan *ch, struct mc_link *l, struct mc_out *out);
  void (*word)(struct mc_chan *ch, struct mc_link *l, const uint8_t *payload);
};
struct mc_fault { int code, sys_errno, rank; uint8_t mark; bool has_other; struct mc_desc other; };

struct mc_handed { /* an accepted socket that has proved itself */
  struct mc_handed *next;
  int fd;
  struct mc_hello hello;
};
struct mc_chan {
  struct mc_net *net;
  struct mc_comm *c;
  uint32_t which;
  const struct mc_taker *taker;
  int wake_fd;                      /* eventfd: a socket was handed over, or work was queued */
  struct mc_handed *handed;         /* under the door's lock */
  struct mc_link **made, **taken;   /* [size]; collective: the same array */
  struct mc_link *links;            /* all that exist */
  struct mc_out *spare_outs;
  struct mc_want *spare_wants;
  struct mc_fault fault;            /* the first, zero: none */
  struct pollfd *polls;
  struct mc_link **polled;
  uint32_t poll_room, poll_count, link_count;
  bool moved;
  /* tickets: a ring of "done", from base to next */
  uint8_t *done;
  uint64_t done_base, done_next, done_room, open;
  /* words */
  uint64_t spoke_ns, alive_ns, dead_ns, door_ns, told_ns;
  bool told, told_by_peer;
  struct mc_failure told_failure;
  uint8_t *marks, *told_marks;      /* [size]; the first is scratch */
  uint8_t *scratch;                 /* where dropped bytes go */
};

struct pollfd;
struct mc_pending;
struct mc_door {
  pthread_mutex_t lock;
  bool listening;
  int listen_fd, poll_fd; /* poll_fd: epoll over the listening socket and the pending ones */
  struct mc_pending *pending; /* [MC_PENDING] */
};
struct mc_abort { /* net/abort.c */
  pthread_t thread;
  _Atomic uint32_t begun, started, stop, done; /* done: no node is left to tell */
  uint64_t began_ns;
};
struct mc_net {
  struct mc_comm *c;
  struct mc_abort abort;
  struct mc_address *addresses;
  uint8_t group[MC_PROOF];
  struct mc_door door;
  struct mc_chan channels[MC_NET_CHANNELS];
  int buffer_bytes; /* of a socket, 0: the kernel's own choice */
};

/* --- net/socket.c */
int mc_socket_buffers(void);
void mc_socket_settle(int fd, int buffer_bytes);
int mc_socket_connect(const struct mc_address *address, int buffer_bytes, int *error); /* -1: error says why */
bool mc_socket_silent(int fd);
bool mc_would_block(int error);
/* --- net/listener.c */
int mc_door_open(struct mc_net *n, int listen_fd);
void mc_door_close(struct mc_net *n);
void mc_door_look(struct mc_net *n);
bool mc_door_busy(struct mc_net *n); /* somebody is being let in */
/* Takes what was handed to the channel into its links. */
int mc_door_fetch(struct mc_chan *ch);
/* --- net/connector.c */
void mc_dial(struct mc_link *l);                              /* wants a connection, from now on; the other end makes it: watches that one */
void mc_dial_move(struct mc_chan *ch, struct mc_link *l);  /* one step of connecting and the hello */
bool mc_dial_gone(const struct mc_link *l, uint64_t now);     /* refused for too long */
/* --- net/connection.c */
struct mc_link *mc_link_new(struct mc_chan *ch, uint32_t peer, bool accepted);
void mc_link_up(struct mc_chan *ch, struct mc_link *l, int fd, const struct mc_hello *hello);
void mc_link_anew(struct mc_link *l); /* as if it had never been */
void mc_link_free(struct mc_link *l);
struct mc_out *mc_out_new(struct mc_chan *ch, uint8_t kind, const void *data, uint64_t bytes);
void mc_out_free(struct mc_chan *ch, struct mc_out *out);
void mc_link_queue(struct mc_link *l, struct mc_out *out);
void mc_link_send(struct mc_chan *ch, struct mc_link *l);
void mc_link_lost(struct mc_link *l, int error);
void mc_link_drop_queue(struct mc_chan *ch, struct mc_link *l, bool also_begun);
/* --- net/read.c */
void mc_link_read(struct mc_chan *ch, struct mc_link *l);
void mc_link_slurp(struct mc_chan *ch, struct mc_link *l); /* the other end has ended: takes all that is left */
void mc_link_fault(struct mc_chan *ch, struct mc_link *l, int code);
/* --- net/event_loop.c */
int mc_channel_open(struct mc_chan *ch, struct mc_net *n, uint32_t which, const struct mc_taker *taker);
void mc_channel_close(struct mc_chan *ch);
void mc_channel_flush(struct mc_chan *ch, uint64_t until_ns);
void mc_channel_push(struct mc_chan *ch);       /* dials and sends without being asked to by poll */
uint32_t mc_channel_polls(struct mc_chan *ch);  /* fills ch->polls, says how many */
void mc_channel_polled(struct mc_chan *ch);     /* deals with what poll has said in ch->polls */
void mc_channel_wake(struct mc_chan *ch);
uint64_t mc_channel_due(struct mc_chan *ch, uint64_t now); /* when something must be done without an event */
/* --- net/collective.c */
int mc_channel_progress(struct mc_chan *ch, uint64_t wait_ns); /* of the collective channel: everything but naming */
/* --- net/control.c */
void mc_word_present(struct mc_chan *ch, const uint8_t *marks);
void mc_word_fail(struct mc_chan *ch, const struct mc_failure *failure);
void mc_word_bye(struct mc_chan *ch);
void mc_word_read(struct mc_chan *ch, struct mc_link *l, const uint8_t *payload);
bool mc_missed_by(const struct mc_link *l, uint64_t seq, uint8_t *marks, uint32_t size);
/* --- net/abort.c */
void mc_net_abort_end(struct mc_net *n);
/* --- net/receives.c */
extern const struct mc_taker mc_collective_taker;
int mc_settle(struct mc_chan *ch);
uint64_t mc_ticket_new(struct mc_chan *ch);
void mc_ticket_done(struct mc_chan *ch, uint64_t ticket);
#endif
