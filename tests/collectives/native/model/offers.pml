/* Offers of csrc/p2p (give.c, take.c): messages of one pair that stay with their sender until they are read.
 *
 * The sender posts MESSAGES one after another through one slot, so that each has another turn; the ring keeps their order.
 * A request ends well when its message is taken or its copy is in the ring, or by its deadline; from then on its memory is the
 * caller's, who writes something else there. The receiver takes what comes with a receive for each, piece by piece, gives up at
 * any time, or may not read and asks for a copy. One step is what the lock or a compare-and-swap makes one.
 *
 * Checked: all come to their end; a receive that ended well has its message whole, every message is received once at most and
 * in order, one whose send ended well by none but a receive that gave up; nothing is read that is not the sender's memory any
 * more, unless the reader stood still (STILL), and then it does not count. With DEATH the sender may die at any step (its number
 * may be another process's by then), or the receiver. Built with one of these the checker must find it:
 * ERROR_TAKE      the receiver looks, then writes READING    ERROR_WITHDRAW  the sender looks, then writes FREE
 * ERROR_TURN      the turn of a slot is not compared         ERROR_RETURN    a send ends while it is read
 * ERROR_DONE      TAKEN is written, not swapped (STILL)      ERROR_BACK      a receive that began is posted again (STILL)
 * ERROR_ALIVE     whose memory it was is not asked (DEATH)   ERROR_GONE      a sender misses the receiver's death (DEATH)
 * ERROR_DROP      a receive that gives up leaves READING     ERROR_COPY      nobody sends what is wanted
 * ERROR_BELL      who has taken a message rings nobody
 */
#define MESSAGES 2
#define FREE 0
#define OPEN 1
#define READING 2
#define WANTED 3
#define TAKEN 4
#define OFFER 0
#define COPY 1
#define FOREIGN 99

byte state, turn;
byte rung, heard;       /* the sender looks when it is rung for: once for a message */
chan ring = [2 * MESSAGES] of { byte, byte, byte }; /* what, message, turn or bytes */
byte memory[MESSAGES];
bool returned[MESSAGES], well[MESSAGES], got[MESSAGES], gave_up[MESSAGES];
bool stood_still;
bool gone[2], dead[2];  /* sender, receiver */

#define PATTERN(m) ((m) + 1)

inline tell_sender() {
#ifdef ERROR_BELL
  skip
#else
  rung++
#endif
}

inline may_die(who) {
#ifdef DEATH
  if
  :: atomic { !dead[1 - who] -> dead[who] = true; gone[who] = true; if :: who == 0 -> memory[0] = FOREIGN; memory[1] = FOREIGN :: else fi }; goto the_end
  :: skip
  fi
#else
  skip
#endif
}

inline free_slot() { turn++; state = FREE }

/* The request is over, the caller goes on. */
inline end_send(ended_well) { well[message] = ended_well; returned[message] = true; memory[message] = FOREIGN }

proctype sender() {
  byte message = 0;
  bool over = false, seen = false;
  do
  :: message < MESSAGES ->
     atomic { memory[message] = PATTERN(message); state = OPEN };
     may_die(0);
     ring ! OFFER(message, turn);
     may_die(0);
     over = false;
     do
     :: over -> break
     :: atomic { !over && state == TAKEN && rung != heard -> heard = rung; free_slot(); end_send(true); over = true }
#ifndef ERROR_COPY
     :: atomic { !over && state == WANTED && rung != heard -> heard = rung; ring ! COPY(message, memory[message]); free_slot(); end_send(true); over = true }
#endif
     :: !over && state == OPEN -> /* its deadline, or a close */
#ifdef ERROR_WITHDRAW
        may_die(0);
        atomic { free_slot(); end_send(false); over = true }
#else
        atomic { if :: state == OPEN -> free_slot(); end_send(false); over = true :: else fi }
#endif
#ifdef STILL
     :: atomic { !over && state == READING -> /* of who stands still: a copy, at once */
          stood_still = true; state = WANTED; rung++ }
#endif
#ifdef ERROR_RETURN
     :: atomic { !over && state == READING -> free_slot(); end_send(false); over = true }
#endif
#ifndef ERROR_GONE
     :: atomic { !over && gone[1] -> heard = rung; end_send(state == TAKEN); free_slot(); over = true }
#endif
     od;
     may_die(0);
     message++
  :: else -> break
  od;
the_end:
  gone[0] = true
}

/* After READING: the message is this receive's, or nobody's. */
inline received(bytes) {
  assert(bytes == PATTERN(message));
  assert(!got[message]);
  got[message] = true;
  assert(last == 255 || message > last);
  last = message
}

inline read_piece() {
  atomic {
    if
    :: dead[0] -> bytes = FOREIGN /* the system says so, or it is another process's by now */
    :: else ->
       assert(!returned[message] || stood_still);
       bytes = memory[message]
    fi;
    if :: bytes != PATTERN(message) -> good = false :: else fi
  }
}

proctype receiver() {
  byte receive = 0, what = 0, message = 0, its_turn = 0, bytes = 0, last = 255, piece = 0;
  bool begun = false, good = true, dropped[MESSAGES], ok = false;
  do
  :: receive < MESSAGES ->
     begun = false;
again:
     do
     :: ring ? what(message, its_turn) ->
        if
        :: what == COPY -> assert(dropped[message]) /* of a receive that gave up */
        :: else ->
#ifdef ERROR_TAKE
           if :: state == OPEN && turn == its_turn -> may_die(1); state = READING; begun = true :: else fi;
#else
           atomic {
             if
#ifdef ERROR_TURN
             :: state == OPEN -> state = READING; begun = true
#else
             :: state == OPEN && turn == its_turn -> state = READING; begun = true
#endif
             :: else
             fi
           };
#endif
           if :: begun -> break :: else fi
        fi
     :: atomic { gone[0] && empty(ring) -> break }
     :: break /* its deadline */
     od;
     may_die(1);
     if :: !begun -> receive++; goto next :: else fi;
     good = true; piece = 0;
     do
     :: piece < 2 && state == READING && turn == its_turn ->
        read_piece(); piece++;
        may_die(1)
     :: atomic { piece < 2 && state == READING && turn == its_turn -> state = WANTED }; may_die(1); tell_sender(); break /* it may not read */
     :: piece < 2 && state == READING && turn == its_turn -> /* the receive gives up */
        gave_up[message] = true;
#ifndef ERROR_DROP
        atomic {
          if
          :: state == READING && turn == its_turn -> state = TAKEN; tell_sender()
          :: else -> dropped[message] = true
          fi
        };
#endif
        receive++; goto next
     :: !(state == READING && turn == its_turn) -> break
     :: piece == 2 ->
#ifndef ERROR_ALIVE
        if :: dead[0] -> dropped[message] = true; receive++; goto next :: else fi;
#endif
#ifdef ERROR_DONE
        atomic { ok = true; state = TAKEN };
#else
        atomic { if :: state == READING && turn == its_turn -> ok = true; state = TAKEN :: else -> ok = false fi };
#endif
        if :: ok -> may_die(1); tell_sender(); assert(good); received(PATTERN(message)); receive++; goto next :: else fi;
        break
     od;
#ifdef ERROR_BACK
     if :: stood_still -> dropped[message] = true; begun = false; goto again :: else fi;
#endif
     /* taken back, or asked for: the copy comes, or the sender has gone */
     do
     :: ring ? what(message, bytes) ->
        if
        :: what == COPY -> received(bytes); break
        :: else -> assert(false) /* nothing else can be under way: one slot */
        fi
     :: atomic { gone[0] && empty(ring) -> break }
     :: gave_up[message] = true; dropped[message] = true; break
     od;
     receive++;
next:
     may_die(1)
  :: else -> break
  od;
  if :: true -> gone[0] :: true fi; /* it may close before the sender has ended, or not */
the_end:
  gone[1] = true
}

/* What the receiver has said that it has, the sender has said that it sent. */
proctype judge() {
  byte each = 0;
  gone[0] && gone[1];
  do
  :: each < MESSAGES ->
     assert(!well[each] || got[each] || gave_up[each] || dead[0] || dead[1]);
     assert(!got[each] || well[each] || dead[0] || dead[1]);
     each++
  :: else -> break
  od
}

init { atomic { run sender(); run receiver(); run judge() } }
