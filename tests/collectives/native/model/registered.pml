/* Registered memory (csrc/shm/registered.c): an all-reduce in which every rank sums its part of all vectors and writes
 * the sum into all of them.
 *
 * Each call begins with a round in which ranks say where their vector is registered, or that it is not. If all have one, they
 * work in each other's memory, and a second round says that all are done; else they go by slots, as a call does that has no
 * region. The caller writes its vector before each call and reads it after it. Rounds are one step here: rounds.pml has how
 * they are made.
 *
 * Checked: after each call every rank has the sum of what all had given, and all come to their end. Built with one of these the
 * checker must find it:
 * ERROR_ASK     nobody waits for the others first    ERROR_END     nor at the end
 * ERROR_ALL     who has a region takes it            ERROR_PART    parts are not apart
 * ERROR_PARITY  what is said has one place           ERROR_FIRST   the own vector first, then those of others
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifdef ERROR_PARITY
#define PLACE(rank, round) ((rank) * 2)
#else
#define PLACE(rank, round) ((rank) * 2 + (round) % 2)
#endif
#define AT(rank, part) ((rank) * RANKS + (part))
#define GIVEN(rank, call) ((rank) + 1 + 10 * (call))

byte flag[RANKS];
bool said[2 * RANKS];
byte vector[RANKS * RANKS], slot[RANKS * RANKS];

/* A round that says nothing of a region says that there is none. */
inline publish(what) { round++; said[PLACE(me, round)] = what; flag[me] = round }

inline await() {
  other = 0;
  do
  :: other < RANKS -> flag[other] >= round; other++
  :: else -> break
  od;
  other = 0
}

inline check() {
  other = 0;
  do
  :: other < RANKS -> assert(vector[AT(me, other)] == due); other++
  :: else -> break
  od;
  other = 0
}

proctype rank(byte me) {
  byte round = 0, other = 0, call = 0, sum = 0, due = 0, part = 0;
  bool has = false, all = false;
  do
  :: call < CALLS ->
     d_step { /* the caller's own: nobody else is to look at it */
       due = 0; other = 0;
       do
       :: other < RANKS -> vector[AT(me, other)] = GIVEN(me, call); due = due + GIVEN(other, call); other++
       :: else -> break
       od;
       other = 0
     };
     if :: has = true :: has = false fi;
     publish(has);
#ifndef ERROR_ASK
     await();
#endif
     all = true;
     do
     :: other < RANKS -> if :: !said[PLACE(other, round)] -> all = false :: else fi; other++
     :: else -> other = 0; break
     od;
#ifdef ERROR_ALL
     all = has;
#endif
     if
     :: all ->
        part = me;
#ifdef ERROR_PART
        part = 0;
#endif
        sum = 0;
        do
        :: other < RANKS ->
           sum = sum + vector[AT(other, part)];
#ifdef ERROR_FIRST
           vector[AT(me, part)] = sum;
#endif
           other++
        :: else -> other = 0; break
        od;
        do
        :: other < RANKS -> vector[AT(other, part)] = sum; other++
        :: else -> other = 0; break
        od;
        publish(false);
#ifndef ERROR_END
        await()
#endif
     :: else ->
        d_step {
          do
          :: other < RANKS -> slot[AT(me, other)] = vector[AT(me, other)]; other++
          :: else -> other = 0; break
          od
        };
        publish(false);
        await();
        d_step {
          do
          :: other < RANKS -> vector[AT(me, other)] = 0; other++
          :: else -> other = 0; break
          od;
          part = 0;
          do
          :: part < RANKS ->
             do
             :: other < RANKS -> vector[AT(me, part)] = vector[AT(me, part)] + slot[AT(other, part)]; other++
             :: else -> other = 0; break
             od;
             part++
          :: else -> part = 0; break
          od
        };
        publish(false);
        await()
     fi;
     check();
     call++
  :: else -> break
  od
}

init {
  byte each = 0;
  atomic {
    do
    :: each < RANKS -> run rank(each); each++
    :: else -> break
    od
  }
}
