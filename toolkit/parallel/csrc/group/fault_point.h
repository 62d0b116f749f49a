/* Fault points: the steps of the protocol at which a test breaks a rank. Nothing of it is in a core that is
 * compiled without -DMC_FAULT_POINTS.
 *
 * MC_FAULT=point:nth:signal   at the nth passing (from 1) of `point` this process sends itself the signal
 * MC_FAULT=point:nth:-us      from the nth passing on each takes so many microseconds longer: what can come
 *                             between two steps comes between them
 * MC_FAULT_RECORD=file        gets a line "point nanoseconds" (CLOCK_MONOTONIC) just before a signal
 *
 * Both are read once. Every point is listed here, and each is passed somewhere: the tests have a case for each. */
#ifndef MUSTER_FAULT_POINT_H
#define MUSTER_FAULT_POINT_H

#define MC_FAULT_LIST(POINT) \
  /* a group is made, a rank leaves it: group/segment.c */ \
  POINT(attach_mapped) POINT(attach_locked) POINT(attach_announced) POINT(attach_complete) POINT(detach_left) \
  /* epochs of a node: group/epoch.c */ \
  POINT(epoch_described) POINT(epoch_raised) POINT(wait_counted) POINT(epoch_reached) \
  /* verbs of a node: shm/reduce.c, shm/parts.c, shm/move.c */ \
  POINT(one_shot_copied_in) POINT(one_shot_reading) \
  POINT(staged_copied_in) POINT(staged_summed) POINT(staged_next_in) POINT(staged_reading) \
  POINT(parts_copied_in) POINT(parts_summed) POINT(streams_copied_in) POINT(streams_spread) \
  POINT(gather_copied_in) POINT(gather_published) POINT(gather_reading) \
  POINT(alltoall_counted) POINT(alltoall_copied_in) POINT(alltoall_reading) \
  /* registered memory: shm/registered.c, shm/adopt.c */ \
  POINT(registered_agreed) POINT(registered_writing) POINT(registered_gathered) POINT(registered_scattered) \
  POINT(adopt_offered) POINT(adopt_mapped) \
  /* a failure becomes that of all: group/failure.c, net/control.c */ \
  POINT(error_claimed) POINT(error_filled) POINT(error_written) POINT(error_adopted) POINT(error_propagated) \
  /* messages of a node: p2p/post.c, p2p/ring.c, p2p/progress.c */ \
  POINT(post_begun) POINT(ring_head_written) POINT(ring_piece_written) POINT(ring_writer_blocked) POINT(ring_filled) \
  POINT(ring_noted) POINT(ring_head_read) POINT(ring_piece_read) \
  POINT(thread_armed) POINT(thread_moved) \
  /* large messages of a node: p2p/give.c, p2p/take.c, p2p/ring.c */ \
  POINT(offer_written) POINT(offer_withdrawn) POINT(offer_copying) POINT(offer_ended) \
  POINT(offer_arrived) POINT(offer_reading) POINT(offer_piece_read) POINT(offer_wanted) POINT(offer_taken) \
  /* between nodes, small: inter/run.c, inter/leaders.c, inter/exchange.c */ \
  POINT(barrier_node_in) POINT(barrier_nodes_in) POINT(exchange_posted) POINT(exchange_received) \
  POINT(leaders_summed) POINT(leaders_collected) \
  POINT(leaders_halved) POINT(leaders_joined) POINT(leaders_scatter_posted) POINT(leaders_scattered) \
  POINT(leaders_gathered) POINT(leaders_exchanged) \
  /* between nodes, large: inter/reduce.c, inter/rail.c, inter/rounds.c */ \
  POINT(segment_reduced) POINT(segment_arrived) POINT(rail_rs_started) POINT(rail_summed) POINT(rail_ag_started) POINT(rail_finished) \
  POINT(round_posted) POINT(round_summed) \
  /* between nodes, verbs that move: inter/broadcast.c, inter/gather.c, inter/scatter.c, inter/alltoall.c */ \
  POINT(tree_received) POINT(tree_sent) POINT(chain_received) POINT(chain_passed) POINT(chain_shared) \
  POINT(blocks_posted) POINT(blocks_arrived) POINT(apart_posted) \
  POINT(sums_sent) POINT(sums_arrived) POINT(scatter_nodes_sent) POINT(scatter_node_arrived) \
  POINT(nodes_alltoall_posted) POINT(nodes_alltoall_in_node) \
  /* connections: net/connector.c, net/listener.c */ \
  POINT(connector_connecting) POINT(connector_hello_sent) POINT(connector_finished_sent) POINT(connector_accepted) \
  POINT(listener_accepted) POINT(listener_answered) POINT(listener_handed_over) POINT(listener_fetched) POINT(abort_heard) \
  /* frames and control messages: net/connection.c, net/read.c, net/receives.c, net/control.c, p2p/remote.c */ \
  POINT(frames_sent) POINT(frames_part_sent) POINT(header_read) POINT(payload_part_read) POINT(frame_landed) \
  POINT(heartbeat_sent) POINT(goodbye_sent) \
  POINT(message_queued) POINT(message_arriving) POINT(message_landed) POINT(message_sent)

#ifdef MC_FAULT_POINTS
enum mc_fault_point {
#define MC_FAULT_MEMBER(name) MC_FAULT_##name,
  MC_FAULT_LIST(MC_FAULT_MEMBER)
#undef MC_FAULT_MEMBER
  MC_FAULTS
};
void mc_fault_pass(enum mc_fault_point point);
#define MC_FAULT_POINT(name) mc_fault_pass(MC_FAULT_##name)
#else
#define MC_FAULT_POINT(name) ((void)0)
#endif
#endif
