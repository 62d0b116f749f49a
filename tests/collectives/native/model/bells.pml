/* Doorbells and rings of csrc/p2p: a message goes from rank 0 to rank 1 through a ring that holds less than it.
 *
 * Each rank is its program and its thread at the doorbell, under one lock. The program posts, then waits (it moves the
 * ring itself) or computes until its request is over (the thread moves it), then closes. Sleeping has no time limit
 * but where a rank has died or left (in the code: 50 ms), so a lost wake-up is an end that is none. All that ranks
 * share is sequentially consistent.
 *
 * Checked: all ranks come to their end, and what a receive without an error has taken is whole. Compiled with
 * BUSY that rank computes and the other waits, with DEATH rank 0 may die at any step, with LEAVE either may close early. Built with one of the errors
 * below, the checker must find it:
 * ERROR_ORDER    the thread moves, then listens               ERROR_ENTRUST  the same of who posts or has waited
 * ERROR_CALLS    the thread reads `calls` after it has moved  ERROR_NEWS     `listens` is in a buffer when `news` is read
 * ERROR_ROOM     the reader does not ring for room            ERROR_SLEEPERS sleepers are looked at before the ring
 * ERROR_WAITER   a waiter reads `rings` after it has moved    ERROR_CLOSE    a close does not call the thread
 * ERROR_IDLE     a post does not call the idle thread (DEATH) ERROR_SWEEP    nobody looks for deaths (DEATH)
 * ERROR_LAST     a death is dealt with before the last bytes are taken (DEATH)
 */
#ifndef UNITS
#define UNITS 2
#endif
#ifndef ROOM
#define ROOM 1
#endif
#define MAIN 0
#define THREAD 1
#define OTHER (1 - me)

byte tail, head;
bool writer_blocked;
bool news;           /* of the reader */
byte rings[2], sleepers[2], calls[2];
bool listens[2], listens_due[2];  /* due: in the buffer, on its way to 1 */
bool gone[2];        /* died or left */
bool dead[2];
/* under a rank's lock */
bool locked[2], pending[2], over[2], failed[2], waits[2], idle[2], stop[2], stopped[2];
byte moved, got;     /* of rank 0: written; of rank 1: taken */
bool limit[4];       /* its sleep has ended by time: once for a request is enough */
/* what each of a rank's two sleeps on: 0 awake, 1 rings, 2 calls, 3 calls without a limit */
byte sleeps_on[4];
#define ME (me * 2 + part)

inline lock() { atomic { !locked[me] || dead[me] -> if :: dead[me] -> goto end_dead :: else -> locked[me] = true fi } }
inline unlock() { locked[me] = false }
#define NEXT(number) (((number) + 1) % 8) /* far fewer rings than that fall into one sleep */

inline wake(whose, least) {
  d_step {
    if :: least == 1 && sleeps_on[whose * 2] == 1 -> sleeps_on[whose * 2] = 0 :: else fi;
    if :: least == 2 && sleeps_on[whose * 2 + 1] >= 2 -> sleeps_on[whose * 2 + 1] = 0 :: else fi
  }
}

inline call(whose) {
  atomic { calls[whose] = NEXT(calls[whose]); wake(whose, 2) }
}

inline ring(whose) {
#ifdef ERROR_SLEEPERS
  some = sleepers[whose];
  rings[whose] = NEXT(rings[whose]);
#else
  rings[whose] = NEXT(rings[whose]);
  some = sleepers[whose];
#endif
  atomic { if :: some -> wake(whose, 1) :: else fi; some = false };
  if :: listens[whose] -> call(whose) :: else fi
}

/* Asleep until it is woken; where the other rank has gone a slice ends, unless there is no limit. */
inline asleep() {
  atomic {
    if
    :: sleeps_on[ME] == 0 || dead[me]
    :: gone[OTHER] && sleeps_on[ME] != 3 && !limit[ME] -> limit[ME] = true; sleeps_on[ME] = 0
    fi;
    if :: dead[me] -> goto end_dead :: else fi
  }
}

inline finish() {
  atomic { pending[me] = false; over[me] = true };
  if :: waits[me] -> ring(me) :: else fi
}

inline may_die() {
#ifdef DEATH
  if :: me == 0 -> atomic { dead[0] = true; gone[0] = true }; goto end_dead :: skip fi
#else
  skip
#endif
}

inline fill() {
  d_step {
    do
    :: moved < UNITS && tail - head < ROOM -> tail++; moved++
    :: else -> break
    od
  };
  may_die()
}

inline push() {
  if
  :: pending[me] ->
     before = tail;
     fill();
     if
     :: moved < UNITS ->
        writer_blocked = true;
        fill();
        if :: moved == UNITS -> writer_blocked = false :: else fi
     :: else
     fi;
     if :: tail != before -> news = true; may_die(); ring(OTHER) :: else fi;
     if :: moved == UNITS -> finish() :: else fi;
     before = 0
  :: else
  fi
}

inline pull() {
  d_step { got = got + tail - head; head = tail };
  if :: pending[me] && got == UNITS -> finish() :: else fi;
  atomic { was_blocked = writer_blocked; writer_blocked = false };
#ifndef ERROR_ROOM
  if :: was_blocked -> ring(OTHER) :: else fi;
#endif
  was_blocked = false
}

inline move() {
  if
  :: me == 0 -> push()
  :: else ->
     atomic { seen_news = news; news = false };
     if :: seen_news -> seen_news = false; pull() :: else fi
  fi
}

/* Deaths and departures: what had been sent completely still counts. */
inline sweep() {
#ifndef ERROR_SWEEP
  if
  :: gone[OTHER] && pending[me] ->
#ifndef ERROR_LAST
     if :: me == 1 -> pull() :: else fi;
#endif
     if :: pending[me] -> failed[me] = true; finish() :: else fi
  :: else
  fi
#else
  skip
#endif
}

inline listen() {
#ifdef ERROR_NEWS
  listens_due[me] = true
#else
  listens[me] = true
#endif
}

inline listen_no_more() { atomic { listens[me] = false; listens_due[me] = false } }

inline entrust() {
  if
  :: pending[me] && !waits[me] ->
#ifdef ERROR_ENTRUST
     move(); listen();
#else
     listen(); move();
#endif
#ifndef ERROR_IDLE
     if :: pending[me] && idle[me] -> call(me) :: else fi
#endif
  :: else
  fi
}

inline wait() {
  lock();
  waits[me] = true; listen_no_more();
  do
  :: over[me] -> break
  :: else ->
#ifndef ERROR_WAITER
     seen = rings[me];
#endif
     move();
#ifdef ERROR_WAITER
     seen = rings[me];
#endif
     sweep();
     if
     :: over[me] -> break
     :: else ->
        unlock();
        sleepers[me]++;
        atomic { if :: rings[me] == seen -> sleeps_on[ME] = 1 :: else fi };
        asleep();
        sleepers[me]--;
        lock()
     fi
  od;
  waits[me] = false; seen = 0;
  entrust();
  unlock()
}

proctype program(byte me) {
  byte part = MAIN, seen = 0, before = 0;
  bool seen_news = false, was_blocked = false, some = false;
  lock();
  atomic { pending[me] = true; limit[me * 2 + THREAD] = false };
  move(); entrust();
  unlock();
  if
#ifdef BUSY
  :: me != BUSY -> wait()
  :: me == BUSY -> over[me] || dead[me] /* computes */
#else
  :: true -> wait()
  :: true -> over[me] || dead[me]
#endif
#ifdef LEAVE
  :: true                         /* closes early */
#endif
  fi;
  lock();
  assert(me == 0 || !over[me] || failed[me] || got == UNITS);
#ifdef DEATH
  assert(me == 0 || !over[me] || !failed[me] || head == tail);
#endif
  pending[me] = false; stop[me] = true;
#ifndef ERROR_CLOSE
  call(me);
#endif
  unlock();
  stopped[me] || dead[me];
  gone[me] = true;
end_dead:
  skip
}

proctype thread(byte me) {
  byte part = THREAD, seen = 0, before = 0;
  bool seen_news = false, was_blocked = false, some = false;
  lock();
  do
  :: stop[me] -> break
  :: else ->
#ifndef ERROR_CALLS
     seen = calls[me];
#endif
#ifdef ERROR_ORDER
     if :: pending[me] && !waits[me] -> move() :: else fi;
     seen = calls[me];
     if :: pending[me] && !waits[me] -> listen() :: else -> listen_no_more() fi;
     if :: me == 1 && news -> unlock(); goto again :: else fi; /* it looked for news, not for room */
#else
     if :: pending[me] && !waits[me] -> listen(); move() :: else -> listen_no_more() fi;
#endif
#ifdef ERROR_CALLS
     seen = calls[me];
#endif
     sweep();
     if :: !pending[me] -> idle[me] = true :: true -> idle[me] = false fi; /* it lingers before it is idle */
     unlock();
     atomic {
       if
       :: calls[me] == seen -> if :: idle[me] -> sleeps_on[ME] = 3 :: else -> sleeps_on[ME] = 2 fi
       :: else
       fi
     };
     asleep();
again:
     lock();
     idle[me] = false
  od;
  unlock();
  seen = 0;
  stopped[me] = true;
end_dead:
  skip
}

#ifdef ERROR_NEWS
proctype buffer(byte me) {
end:
  do
  :: atomic { listens_due[me] -> listens[me] = true; listens_due[me] = false }
  od
}
#endif

init {
  atomic {
#ifdef ERROR_NEWS
    run buffer(0); run buffer(1);
#endif
    run program(0); run thread(0);
    run program(1); run thread(1)
  }
}
