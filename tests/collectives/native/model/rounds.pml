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
     publish();
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

init {
  byte each = 0;
  atomic {
    do
    :: each < RANKS -> run rank(each); run buffer(each); each++
    :: else -> break
    od
  }
}
