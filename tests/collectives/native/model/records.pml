/* The node's error record (csrc/group/failure.c): who finds a failure claims a try, fills the place of that try, and
 * says that it is done. Who waits too long for a writer claims the next try, which has a place of its own.
 *
 * Every rank finds a failure of its own. A record is two words, written one by one; memory is weak as far as it matters: what was
 * written before a release is there for who has seen it. A writer may stand still between any two steps, and with DEATH die.
 *
 * Checked: whoever reads a record reads one whole one, the same as all others, and all come to their end. Built with one of
 * these the checker must find it:
 * ERROR_STORE  done is written, not swapped    ERROR_PLACE  one place for all tries
 * ERROR_EARLY  done is said before it is       ERROR_WAIT   nobody takes a try over (DEATH)
 * ERROR_OWN    who has lost keeps its own      ERROR_WAKE   who is done wakes nobody
 */
#ifndef RANKS
#define RANKS 3
#endif
#define PLACES 4
#define NOBODY 255
#ifdef ERROR_PLACE
#define PLACE(try) 0
#else
#define PLACE(try) (((try) - 1) % PLACES)
#endif

byte try, writer = NOBODY; /* the state: number of the try, whose it is, ... */
bool done;                 /* ... and whether it is done */
byte first[PLACES], second[PLACES];
byte adopted = NOBODY;
bool asleep[RANKS], dead[RANKS];
byte patience = 1;         /* so often a writer that lives is not waited for: with two deaths PLACES tries in all */

inline may_die() {
#ifdef DEATH
  if :: atomic { dead[0] + dead[1] + dead[2] < 2 -> dead[me] = true }; goto the_end :: skip fi
#else
  skip
#endif
}

inline look() {
  byte_first = first[PLACE(try)];
  may_die();
  byte_second = second[PLACE(try)];
  assert(byte_first == byte_second);
  atomic {
    assert(adopted == NOBODY || adopted == byte_first);
    adopted = byte_first
  }
}

proctype rank(byte me) {
  byte mine = 0, seen = 0, byte_first = 0, byte_second = 0;
  bool claimed = false, is_done = false;
  do
  :: true ->
     /* claim */
     claimed = false;
     atomic { if :: try == 0 -> try = 1; writer = me; mine = 1; claimed = true :: else -> seen = try fi };
     do
     :: claimed || done -> break
#ifndef ERROR_WAIT
     :: atomic { !claimed && !done && try == seen && (patience > 0 || dead[writer]) -> /* it has waited long enough */
          if :: dead[writer] :: else -> patience-- fi;
          try = seen + 1; writer = me; mine = try; claimed = true }
#endif
     :: atomic { !claimed && !done && try == seen -> asleep[me] = true };
#if defined(ERROR_WAKE) || defined(ERROR_WAIT)
        !asleep[me]
#else
        !asleep[me] || (dead[writer] && !done) /* in slices */
#endif
        ; asleep[me] = false
     :: atomic { !claimed && !done && try != seen -> seen = try }
     od;
     if :: !claimed -> break :: else fi;
     may_die();
#ifdef ERROR_EARLY
     atomic { if :: try == mine && writer == me -> done = true :: else fi };
#endif
     first[PLACE(mine)] = me;
     may_die();
     second[PLACE(mine)] = me;
     may_die();
#ifdef ERROR_STORE
     atomic { try = mine; writer = me; done = true; is_done = true };
#else
     atomic { if :: try == mine && writer == me -> done = true; is_done = true :: else -> is_done = false fi };
#endif
     if
     :: is_done ->
#ifndef ERROR_WAKE
        atomic { asleep[0] = false; asleep[1] = false; asleep[2] = false };
#endif
        break
     :: else ->
#ifdef ERROR_OWN
        atomic { assert(adopted == NOBODY || adopted == me); adopted = me };
        goto the_end
#else
        skip
#endif
     fi
  :: try == 255 -> skip
  od;
  look();
the_end:
  skip
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
