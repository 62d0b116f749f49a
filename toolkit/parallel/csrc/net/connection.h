/* Inside the net: the listener (a socket, and hellos that are under way), event loops, connections.
 *
 * An event loop is driven by one thread at a time. What is shared between groups, and the sockets that the listener's
 * thread hands to a loop, is under the lock of mc_shared. On MC_NET_COLLECTIVE a pair has up to `streams` connections, made by the
 * higher rank when a message first needs them. On MC_NET_P2P connections have a direction: the sender makes its own, so that a receive from
 * any source needs no connections of its own. On MC_NET_ABORT the hello is all. */
#ifndef MUSTER_CONNECTION_H
#define MUSTER_CONNECTION_H
#include <pthread.h>
#include "group/queue.h"
#include "net/process.h"
#include "net/net.h"
#include "net/wire.h"

#define MC_SLICE_NS 50000000u      /* no wait sleeps longer than this without looking up */
#define MC_HELLO_NS 5000000000u    /* for a foreign or slow hello */
#define MC_CROWDED_NS 1000000000u  /* the same where others wait for the place */
#define MC_REFUSED_NS 2000000000u  /* refused for this long: the process is gone, its port closed */
#define MC_NO_FD_NS 2000000000u  /* without a descriptor for this long: no other thread gives one back */
#define MC_ELSEWHERE_NS 300000000u /* after a loss: time for another rank to report its cause */
#define MC_UNASKED_NS 1000000000u  /* the same for a rank that nothing is awaited from at the moment */
#define MC_HEARTBEAT_NS 200000000u /* between two heartbeats to the same peers */
#define MC_PROPAGATE_NS 300000000u /* time for connections that are being made, so that they carry the error, too */
#define MC_REACH_NS 1000000000u    /* a wait this long is worth connections that the call has no use for */
#define MC_QUIET_NS 1500000000u    /* a rank that waits in a call speaks more often than that */
#define MC_SILENT_MS 15000u        /* unacknowledged data, not even probes answered: the host is gone */

struct mc_send_desc { /* a frame to send */
  struct mc_send_desc *next;
  struct mc_frame frame;
  const uint8_t *data;
  uint64_t left;   /* header and payload not yet sent */
  uint8_t *owned;  /* freed with it */
  uint64_t ticket; /* collective, 0: none */
  void *owner;     /* p2p request or NULL */
  bool has_mac;    /* its header is closed: it has its place */
};
struct mc_posted_recv { /* a posted receive of the collective channel */
  struct mc_posted_recv *next;
  uint8_t *data;
  uint64_t bytes, ticket, fingerprint;
  uint32_t parts;
};

enum mc_conn_state {
  MC_CONN_NONE, MC_CONN_RETRY, MC_CONN_CONNECTING, MC_CONN_SERVER_HELLO, MC_CONN_ACCEPTED, MC_CONN_WATCHED, MC_CONN_UP,
  MC_CONN_GONE
};
enum mc_phase { MC_HEADER, MC_HELD, MC_PAYLOAD };
#define MC_READ_BUFFER 16384u

struct mc_conn {
  struct mc_conn *next; /* the loop's list of connections */
  uint32_t peer, stream;
  int fd, why;          /* why: errno of the last failure */
  uint32_t poll_at;     /* in the loop's polls, 0: not there */
  enum mc_conn_state state;
  bool accepted;        /* by us: made by the other end */
  bool goodbye, faulty; /* faulty: what came is not ours, nothing more is read */
  bool handled;         /* the loss has been dealt with */
  uint64_t retry_ns, pause_ns, refused_ns, no_fd_ns, lost_ns, probed_ns; /* no_fd: this process had no descriptor for it */
  struct mc_hello hello; /* dialling */
  uint8_t hello_bytes[64]; size_t hello_got;
  uint64_t send_index, recv_index;
  MC_QUEUE(mc_send_desc) sends;
  bool heartbeat_queued;      /* a heartbeat is in the queue */
  /* reading: what is in `read_buffer` comes before what is in the socket */
  uint8_t *read_buffer;
  size_t read_at, read_end, read_room;
  enum mc_phase phase;
  struct mc_frame frame;
  uint8_t *to;           /* NULL: dropped */
  uint64_t left;
  uint8_t *control;         /* payload of a control message */
  /* collective */
  MC_QUEUE(mc_posted_recv) receives;
  uint64_t heard_seq;     /* the last call it was heard in ... */
  uint64_t heard_ns;      /* ... and when */
  uint64_t heartbeat_seq; /* of its last heartbeat, which lists the ranks it misses */
  struct mc_run_of *missing;
  size_t missing_count;
  void *incoming;        /* p2p: the message that is under way */
};

struct mc_loop;
struct mc_handler { /* what a channel does with frames */
  bool (*on_header)(struct mc_loop *loop, struct mc_conn *conn); /* sets conn->to; false: the payload is not to be read, at least not yet */
  void (*on_recv_done)(struct mc_loop *loop, struct mc_conn *conn);
  void (*on_send_done)(struct mc_loop *loop, struct mc_send_desc *out);
  void (*on_control)(struct mc_loop *loop, struct mc_conn *conn, const uint8_t *payload);
};

struct mc_handed { /* an accepted socket that has proved itself */
  struct mc_handed *next;
  int fd;
  uint32_t peer, stream;
};
struct mc_loop {
  struct mc_net *net;
  struct mc_comm *c;
  uint32_t which;
  const struct mc_handler *handler;
  int wake_fd;                           /* while it sleeps, an eventfd: a socket was handed over, or work was queued; else -1 */
  struct mc_handed *handed;              /* under the lock of mc_shared */
  uint32_t streams;                      /* of a pair; other channels than the collective one: 1 */
  struct mc_conn **outgoing, **incoming; /* [size * streams], a peer's side by side; collective: the same array */
  struct mc_conn *conns;                 /* all that exist */
  struct mc_failure fault;          /* the first, zero: none */
  struct pollfd *polls;
  uint32_t poll_room, poll_count, conn_count;
  bool moved;
  /* tickets: a ring of "parts that are left", from base to next */
  uint8_t *left;
  uint64_t done_base, done_next, done_room, open;
  /* control messages */
  uint64_t heartbeat_ns, reported_ns;
  bool has_report;
  struct mc_failure reported;
  uint8_t *rank_status, *reported_status; /* [size]; the first is scratch */
  uint8_t *scratch;                       /* where dropped bytes go */
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
  struct mc_shared *shared;
  struct mc_listener *listener; /* NULL: not joined */
  uint64_t endpoint;
  bool has_told; /* its failure, to all who were connected: nobody would tell those who come later. Under the lock of mc_shared */
  struct mc_loop channels[MC_NET_CHANNELS];
  int buffer_bytes; /* of a socket, 0: the kernel's own choice */
};

/* --- net/socket.c */
int mc_socket_buffers(void);
void mc_socket_settle(int fd, int buffer_bytes);
int mc_socket_connect(const struct mc_address *address, int buffer_bytes, int *error); /* -1: error says why */
bool mc_would_block(int error);
/* Of a hello; 0 or an errno value. It is smaller than any empty socket buffer: sent whole or not at all. Exactly `bytes` are
 * received, for frames follow: *got is how many have come so far, 0 again after the last. */
int mc_socket_send(int fd, const void *data, size_t bytes);
int mc_socket_receive(int fd, uint8_t *data, size_t bytes, size_t *got);
/* --- net/shared.c */
bool mc_waker_take(struct mc_loop *loop); /* false: there is no descriptor, so it cannot be woken */
void mc_waker_give_back(struct mc_loop *loop);
void mc_loop_wake(struct mc_loop *loop); /* from any thread: does not sleep on */
/* --- net/listener.c */
void mc_listener_deafen(struct mc_net *n); /* sets has_told */
/* Takes what was handed to the channel into its connections. */
void mc_listener_fetch(struct mc_loop *loop);
/* --- net/connector.c */
void mc_connect(struct mc_conn *conn);                             /* wants a connection, from now on; the other end makes it: watches that one */
struct mc_conn *mc_connect_to(struct mc_loop *loop, uint32_t peer, uint32_t stream); /* the one that this rank makes; NULL: no memory */
void mc_connect_step(struct mc_loop *loop, struct mc_conn *conn);  /* one step of connecting and the hello */
bool mc_connect_refused(const struct mc_conn *conn, uint64_t now); /* refused for too long */
/* This process has had no descriptor for it for so long, by either end. */
bool mc_connect_lacks_fd(const struct mc_loop *loop, const struct mc_conn *conn, uint64_t for_ns);
bool mc_no_descriptor(int error);
/* --- net/connection.c */
struct mc_conn *mc_conn_new(struct mc_loop *loop, uint32_t peer, uint32_t stream, bool accepted);
void mc_conn_up(struct mc_conn *conn, int fd);
void mc_conn_reset(struct mc_conn *conn); /* as if it had never been */
void mc_conn_free(struct mc_conn *conn);
struct mc_send_desc *mc_send_desc_new(uint8_t kind, const void *data, uint64_t bytes);
void mc_send_desc_free(struct mc_send_desc *out);
void mc_conn_send(struct mc_loop *loop, struct mc_conn *conn);
void mc_conn_lost(struct mc_conn *conn, int error);
void mc_conn_probe(struct mc_conn *conn, uint64_t now); /* once a second: it is lost where its host has gone silent */
void mc_conn_drop_queue(struct mc_conn *conn, bool also_begun);
/* --- net/read.c */
void mc_conn_read(struct mc_loop *loop, struct mc_conn *conn);
void mc_conn_drain(struct mc_loop *loop, struct mc_conn *conn); /* the other end has ended: takes all that is left */
void mc_conn_fault(struct mc_loop *loop, struct mc_conn *conn, int code);
/* --- net/event_loop.c */
int mc_loop_open(struct mc_loop *loop, struct mc_net *n, uint32_t which, const struct mc_handler *handler);
void mc_loop_close(struct mc_loop *loop);
void mc_loop_flush(struct mc_loop *loop, uint64_t until_ns);
/* Dials and sends without being asked to by poll, and fills loop->polls. Returns how long poll may wait: up to wait_ns, not
 * at all where something could be moved, and no longer than until something is due. */
uint64_t mc_loop_prepare(struct mc_loop *loop, uint64_t wait_ns);
void mc_loop_polled(struct mc_loop *loop, int said); /* deals with what poll has said, in loop->polls */
bool mc_loop_turn(struct mc_loop *loop, uint64_t wait_ns); /* both, and poll between them */
/* --- net/control.c */
void mc_control_heartbeat(struct mc_loop *loop, const uint8_t *rank_status);
void mc_control_abort(struct mc_loop *loop, const struct mc_failure *failure);
void mc_control_goodbye(struct mc_loop *loop);
void mc_control_read(struct mc_loop *loop, struct mc_conn *conn, const uint8_t *payload);
/* --- net/abort.c */
void mc_net_abort_end(struct mc_net *n);
/* --- net/receives.c */
extern const struct mc_handler mc_collective_handler;
void mc_conn_differs(struct mc_loop *loop, const struct mc_conn *conn); /* its frame is of another call */
/* MC_OK, or what is wrong: a report of another node, a foul frame, a loss. */
int mc_loop_status(struct mc_loop *loop, struct mc_failure *loss);
uint64_t mc_ticket_new(struct mc_loop *loop, uint32_t parts); /* done when mc_ticket_done has been called for each */
void mc_ticket_done(struct mc_loop *loop, uint64_t ticket);
#endif
