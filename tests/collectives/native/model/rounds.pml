/* The rounds of csrc/group/epoch.c: publish, await, two parities, sleepers.
 *
 * A rank writes its data into the place of the round's parity, raises its flag and wakes those that
 * sleep on it; then it waits for the flags of all others and reads their data. Memory is weak in the
 * ways that matter here: stores wait in a buffer of their rank and reach memory later, data and flag
 * each by itself. Release orders the two; sequential consistency empties the buffer before the next
 * load. Sleeping has no time limit here (it has in the code), so a lost wake-up is an end that is none.
 *
 * Checked: whoever has awaited a round reads that round's data of every rank (assertions), and all
 * ranks come to their end (no invalid end state). Built with one of the errors below, the checker
 * must find it: ERROR_STORE (flag before data), ERROR_LOAD (data read before flag), ERROR_FENCE (the
 * flag still in the buffer when the sleepers are counted), ERROR_PARITY (one place instead of two).
 *
 * With NET rank 0 waits in the other way (csrc/inter/epoch.c): it has a message to another node under way, which
 * goes in PARTS as the socket has room, and the last rank does not come to its second round before that has arrived.
 * So rank 0 moves the message on while it waits, for one rank that is missing after the other, in sleeps that have a
 * limit; then it awaits them all as the others do, and may sleep on the same flag as they. More errors then:
 * ERROR_MOVE (the wait does not move it on), ERROR_SLICE (its sleep has no limit), ERROR_FIRST (it waits for
 * the first that is missing, and for no other).
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef ROUNDS
#define ROUNDS 4
#endif
#ifdef ERROR_PARITY
#define PLACE(rank, round) ((rank) * 2)
#else
#define PLACE(rank, round) ((rank) * 2 + (round) % 2)
#endif

byte flag[RANKS];
byte sleepers[RANKS];
byte data[2 * RANKS];
byte data_due[RANKS];    /* in the buffer: the round whose data has not reached memory, 0: none */
byte flag_due[RANKS];
byte sleeps_on[RANKS];   /* 1 + the rank whose flag it sleeps on, 0: awake */
#ifdef NET
#define PARTS 2
byte sent, arrived;      /* parts of the message; the socket holds one */
#define UNDER_WAY (sent < PARTS)
#define MAY_MOVE (UNDER_WAY && sent == arrived)
#endif

inline futex_wake(whose) {
  d_step {
    sleeper = 0;
    do
    :: sleeper < RANKS -> if :: sleeps_on[sleeper] == whose + 1 -> sleeps_on[sleeper] = 0 :: else fi; sleeper++
    :: else -> break
    od;
    sleeper = 0
  }
}

/* As the kernel does: compares and goes to sleep in one step. */
inline futex_sleep(whose, value) {
  atomic { if :: flag[whose] == value -> sleeps_on[me] = whose + 1 :: else fi };
  sleeps_on[me] == 0
}

inline publish() {
  atomic { data_due[me] == 0 -> data_due[me] = round };
  atomic { flag_due[me] == 0 -> flag_due[me] = round };
#ifndef ERROR_FENCE
  data_due[me] == 0 && flag_due[me] == 0; /* store and load are sequentially consistent */
#endif
  if
  :: sleepers[me] > 0 -> futex_wake(me)
  :: else
  fi
}

inline await(whose) {
#ifdef ERROR_LOAD
  seen_data = data[PLACE(whose, round)];
#endif
  do
  :: flag[whose] >= round -> break
  :: else ->
     sleepers[whose]++;
     seen_flag = flag[whose];
     if
     :: seen_flag < round -> futex_sleep(whose, seen_flag)
     :: else
     fi;
     sleepers[whose]--;
     seen_flag = 0
  od
}

#ifdef NET
/* As the kernel, but for a limit, by which the socket may have room again. */
inline futex_sleep_a_little(whose, value) {
  atomic { if :: flag[whose] == value -> sleeps_on[me] = whose + 1 :: else fi };
#if defined(ERROR_SLICE) || defined(ERROR_MOVE) /* a look that moves nothing changes nothing */
  sleeps_on[me] == 0
#else
  if
  :: sleeps_on[me] == 0
  :: atomic { MAY_MOVE -> sleeps_on[me] = 0 }
  fi
#endif
}

inline move_on() { atomic { if :: MAY_MOVE -> sent++ :: else fi } }

inline await_moving() {
  do
  :: other < RANKS ->
     if
     :: other == me || flag[other] >= round -> other++ /* the next that is missing */
     :: else ->
#ifndef ERROR_MOVE
        move_on();
#endif
        sleepers[other]++;
        seen_flag = flag[other];
        if
        :: seen_flag < round -> futex_sleep_a_little(other, seen_flag)
        :: else
        fi;
        sleepers[other]--;
        seen_flag = 0
#ifdef ERROR_FIRST
        ; if :: flag[other] >= round -> break :: else fi
#endif
     fi
  :: else -> break
  od;
  other = 0
}
#endif

inline read(whose) {
#ifndef ERROR_LOAD
  seen_data = data[PLACE(whose, round)];
#endif
  assert(seen_data == round);
  seen_data = 0
}

proctype rank(byte me) {
  byte round = 0, other = 0, seen_flag = 0, seen_data = 0, sleeper = 0;
  do
  :: round < ROUNDS ->
     round++;
#ifdef NET
     if :: me == RANKS - 1 && round == 2 -> arrived == PARTS :: else fi;
#endif
     publish();
#ifdef NET
     if :: me == 0 && UNDER_WAY -> move_on(); await_moving() :: else fi;
#endif
     do
     :: other < RANKS ->
        if
        :: other != me -> await(other); read(other)
        :: else
        fi;
        other++
     :: else -> other = 0; break
     od
  :: else -> break
  od
}

/* The store buffer of a rank. */
proctype buffer(byte me) {
end:
  do
  :: atomic { data_due[me] > 0 -> data[PLACE(me, data_due[me])] = data_due[me]; data_due[me] = 0 }
#ifdef ERROR_STORE
  :: atomic { flag_due[me] > 0 -> flag[me] = flag_due[me]; flag_due[me] = 0 }
#else
  :: atomic { flag_due[me] > 0 && data_due[me] == 0 -> flag[me] = flag_due[me]; flag_due[me] = 0 }
#endif
  od
}

#ifdef NET
/* The other node takes what the socket holds. */
proctype wire() {
end:
  do
  :: atomic { sent > arrived -> arrived++ }
  od
}
#endif

init {
  byte each = 0;
  atomic {
#ifdef NET
    run wire();
#endif
    do
    :: each < RANKS -> run rank(each); run buffer(each); each++
    :: else -> break
    od
  }
}
