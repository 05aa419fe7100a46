#include "config.h"
#include "watch.h"
#include "metrics.h"
#include "watch_board.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK 0.5           /* seconds between looks */
#define SUSPENDED 3.0      /* a longer time between two looks: this process was stopped and goes on */
#define OTHER_NODES 3.0    /* seconds for which other nodes may say what they know */
#define LAST_TICKS 6       /* looks for which a rank that has said why it ends, or exit.json of another node, is given time */
enum { LIMIT_LAST = 9,     /* seconds for saying why: a disk that hangs must not keep the job */
  STACK = 256 << 10,       /* bytes, for texts */
  MOURNED = 2 };           /* each rank minds the next two: the launcher is quick, and the first may be late or be ended before it has spoken */

static struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t stop;
  bool on, stopping, dir_known;
  bool ending;                 /* the run's own last word is said */
  bool held;                   /* my life (watch_board.h) */
  const struct mesh *m;        /* NULL: not yet; */
  struct mesh own;             /* a copy, which outlives the run's, without communicators */
  const struct dev *volatile d;
  struct board *board, *alive;   /* alive: the same until the process ends */
  struct place *mine, alone;   /* on the board, or of one's own */
  double limit;
  char dir[1024];
  int64_t step;
} w = { .lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER };

/* A number that changes when the rank moves on. Read beside the main thread: a torn or old value only delays. */
static int64_t progress (void)
{
  int64_t n = w.d != NULL;
  const volatile int64_t *count = w.d ? w.d->op_count : NULL;
  for (int k = 0; count && k < OP_N; k++) n += count[k];
  for (const char *p = base_phase_get (); *p; p++) n = n * 31 + *p;
  return n;
}

/* ---- the end ---- */

static void end_now (int sig)
{
  (void) sig;
  _exit (EXIT_WORLD);
}

/* End those of my node that do not end by themselves: a launcher that waits for all would wait for ever. */
static void end_node (void)
{
  w.board->over = 1;
  for (int i = 0; i < 8; i++, usleep (200000)) {
    int left = 0;
    for (int k = 0; k < w.m->local_size; k++) {
      const struct place *p = &w.board->place[k];
      char state = k == w.m->local_rank || !p->pid ? 0 : board_state (p->pid);
      if (state == 'T' || (state && i == 7)) kill (p->pid, SIGKILL);
      left += state != 0;
    }
    if (!left) return;
  }
}

/* One of the node does; that it is me stays true. */
static bool i_speak (void)
{
  int32_t none = 0;
  return !w.board || w.board->speaker == 1 + w.m->local_rank || __atomic_compare_exchange_n (&w.board->speaker, &none, 1 + w.m->local_rank, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Before the ranks know each other each could only say the same: they take turns, and the launcher ends the rest after the first. */
static void fire_early (const char *what)
{
  static const char *const name[] = { "PMI_RANK", "SLURM_PROCID" };
  char line[400];
  const char *rank = NULL;
  for (int i = 0; i < LEN (name) && !rank; i++) rank = getenv (name[i]);
  usleep (400000u * (unsigned) MIN (rank ? atoi (rank) : 0, 8));
  int n = snprintf (line, sizeof line, "pretrain: %s during %s on rank %s of host %s: another rank or its host does not answer\n", what, base_phase_get (), rank ? rank : "?", base_host ());
  if (write (2, line, (size_t) n) < 0) _exit (EXIT_WORLD);
  _exit (EXIT_WORLD);
}

/* WHAT has happened: find out more, for at most OTHERS seconds from other nodes, say it once, end. */
static void fire (const char *what, double others)
{
  char why[2400], cause[1800] = "another rank is dead or frozen, or a link or disk hangs", stuck[600] = "none", line[3200], in[160] = "", bytes[24];
  static double first;
  if (!w.m) fire_early (what);
  if (!first) first = now ();
  if (!i_speak () && now () - first < LIMIT_LAST + 1) return;   /* the one who does ends this process too */
  signal (SIGALRM, end_now);
  alarm (LIMIT_LAST);
  const struct coll_note *c = &w.mine->in;
  if (w.d) dev_oldest (w.d, &w.mine->in);   /* a peer that is gone is seen early */
  bytes_text (c->bytes, bytes);
  if (c->seq) snprintf (in, sizeof in, ", in %s %s %lld of %s", group_name (c->group), op_name (c->op), (long long) c->seq, bytes);
  if (w.board) board_blame (w.board, w.m, w.mine, w.dir_known ? w.dir : "", others, cause, sizeof cause);
  snprintf (why, sizeof why, "%s during %s on rank %d of host %s%s: %s", what, base_phase_get (), base_rank_get (), base_host (), in, cause);
  if (w.d) dev_stuck (w.d, stuck, sizeof stuck);
  int n = snprintf (line, sizeof line, "pretrain: %s; its collectives under way: %s\n", why, stuck);
  int said = w.dir_known && !w.ending ? exit_tell (w.dir, EXIT_WORLD, why, w.step) : 0;   /* the launcher may end us some 20 ms after a rank has died */
  if (said <= 0 && write (2, line, (size_t) n) < 0) _exit (EXIT_WORLD);
  if (w.dir_known) exit_sync (w.dir);
  if (w.board) end_node ();   /* last: where this makes the launcher end us all, all is said */
  _exit (EXIT_WORLD);
}

/* ---- the looks ---- */

/* What this rank is doing, for all to see. */
static void look_at_me (double idle)
{
  static int64_t turns;
  struct place *p = w.mine;
  const struct dev *d = w.d;
  int64_t t = wait_turns ();
  p->waiting = t != turns || !strcmp (p->phase, PHASE_FINALIZE);   /* there MPI waits by itself */
  turns = t;
  p->idle = idle;
  p->in.seq = 0;
  if (!d) return;
  memcpy (p->issued, d->issued, sizeof p->issued);
  if (idle > 2 * TICK) dev_oldest (d, &p->in);   /* the main thread stands still */
}

/* Ranks of my node have died without a word: those that are gone by now, for the launcher may be ending all of us. */
static void fire_gone (const struct place *one)
{
  enum { TOLD = 16 };
  int rank[TOLD] = { 0 }, n = 0;
  char words[64], what[96];
  for (int k = 0; k < w.m->local_size && n < TOLD; k++) {
    const struct place *p = &w.board->place[k];
    if (p == one || board_gone (p)) rank[n++] = p->rank;
  }
  mesh_ranks_text (rank, n, words, sizeof words);
  snprintf (what, sizeof what, n > 1 ? "ranks %s are gone, seen" : "rank %s is gone, seen", words);
  fire (what, 0);
}

/* The next rank of the node has died without a word? Each minds one: of several that die, one has a neighbour that lives. It may have been about to end in order. */
static void look_at_next (void)
{
  static int gone;
  if (w.m->local_size == 1) return;
  const struct place *p = &w.board->place[(w.m->local_rank + 1) % w.m->local_size];
  if (!p->pid || p->end == LEFT || board_state (p->pid)) return;
  if (p->end == SPOKEN) {
    if (++gone > LAST_TICKS) w.board->over = 1;
    return;
  }
  if (++gone >= 2) fire_gone (p);
}

/* One of the next has died, this moment. Where somebody has spoken the launcher is ending all of us. */
static void look_at_dead (const struct place *p)
{
  if (p->end != HERE || w.board->over || (w.dir_known && !w.ending && exit_said (w.dir) >= 0)) return;
  for (int k = 0; k < w.m->local_size; k++)
    if (w.board->place[k].end == SPOKEN) return;
  fire_gone (p);
}

/* Beside the looks, and without their delay. */
static void *mourn (void *arg)
{
  struct place *p = arg;
  if (!board_mourn (w.alive, &w.own, (int) (p - w.alive->place))) return NULL;
  pthread_mutex_lock (&w.lock);
  if (w.board && !w.stopping) look_at_dead (p);
  pthread_mutex_unlock (&w.lock);
  return NULL;
}

/* Another node has said why the job ends, and the launcher did not end us. */
static void look_at_word (void)
{
  static int looks, seen;
  if (!w.dir_known || w.m->local_rank || w.m->nodes == 1 || ++looks % 4) return;
  if (exit_said (w.dir) == EXIT_WORLD && (seen += 4) > LAST_TICKS) w.board->over = 1;
}

static void *loop (void *arg)
{
  (void) arg;
  int64_t last = -1;
  double since = now (), before = since;
  pthread_mutex_lock (&w.lock);
  while (!w.stopping) {
    struct timespec t;
    clock_gettime (CLOCK_REALTIME, &t);
    t.tv_nsec += (long) (TICK * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    pthread_cond_timedwait (&w.stop, &w.lock, &t);
    if (w.stopping) break;
    if (w.board && !w.held) board_hold (w.board, w.m), w.held = true;
    int64_t p = progress ();
    double at = now (), pause = at - before;
    before = at;
    if (pause > SUSPENDED) since += pause;
    if (p != last) last = p, since = at;
    look_at_me (at - since);
    if (w.board) look_at_next (), look_at_word ();
    if (w.board && w.board->over) _exit (EXIT_WORLD);
    if (at - since <= w.limit) continue;
    char what[96];
    snprintf (what, sizeof what, "no progress for %.0f s (run.watchdog)", at - since);
    fire (what, OTHER_NODES);
  }
  if (w.held) board_let_go (w.board, w.m);
  pthread_mutex_unlock (&w.lock);
  return NULL;
}

/* ---- from outside ---- */

/* Signals are the main thread's. */
static void start_thread (pthread_t *t, void *(*run) (void *), void *arg)
{
  sigset_t all, old;
  pthread_attr_t a;
  sigfillset (&all);
  sigdelset (&all, SIGALRM);
  pthread_attr_init (&a);
  pthread_attr_setstacksize (&a, STACK);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  must (!pthread_create (t, &a, run, arg), "cannot start the watchdog's thread");
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  pthread_attr_destroy (&a);
}

void watch_start (double seconds)
{
  if (seconds <= 0) return;
  w.m = NULL;
  w.d = NULL;
  w.board = NULL;
  w.limit = seconds;
  w.stopping = w.dir_known = w.ending = w.held = false;
  w.mine = &w.alone;
  start_thread (&w.thread, loop, NULL);
  w.on = true;
}

static void copy_mesh (const struct mesh *m)
{
  size_t bytes = (size_t) m->size * sizeof *m->node_of;
  w.own = *m;
  w.own.node_of = xalloc (bytes, "watch");
  memcpy (w.own.node_of, m->node_of, bytes);
}

void watch_open (const struct mesh *m, double seconds)
{
  if (seconds <= 0) return;
  if (!w.on) watch_start (seconds);
  struct board *b = board_open (m);
  struct place *p = b ? &b->place[m->local_rank] : &w.alone;
  *p = (struct place) { .rank = m->rank, .waiting = true };
  snprintf (p->host, sizeof p->host, "%s", base_host ());
  cgroup_own ("", p->cgroup);
  p->kills = cgroup_kills (p->cgroup);
  base_phase_at (p->phase);
  p->pid = (int32_t) getpid ();
  copy_mesh (m);
  pthread_mutex_lock (&w.lock);
  w.limit = seconds;
  w.board = b;
  w.mine = p;
  w.m = &w.own;
  pthread_cond_signal (&w.stop);
  pthread_mutex_unlock (&w.lock);
  w.alive = b;
  for (int i = 1; b && i <= MIN (m->local_size - 1, MOURNED); i++) {
    pthread_t t;
    start_thread (&t, mourn, &b->place[(m->local_rank + i) % m->local_size]);
    pthread_detach (t);   /* it may wait for longer than this rank */
  }
}

void watch_device (const struct dev *d) { w.d = d; }

void watch_dir (const char *dir)
{
  snprintf (w.dir, sizeof w.dir, "%s", dir);
  if (w.on) board_clear (w.m, w.dir);
  w.dir_known = true;
}

void watch_step (int64_t step) { w.step = step; }

void watch_leave (void)
{
  if (w.on) w.mine->end = SPOKEN;
}

void watch_ending (void)
{
  pthread_mutex_lock (&w.lock);
  w.d = NULL;
  w.ending = true;
  pthread_mutex_unlock (&w.lock);
}

void watch_stop (void)
{
  if (!w.on) return;
  w.mine->end = LEFT;
  pthread_mutex_lock (&w.lock);
  w.stopping = true;
  pthread_cond_signal (&w.stop);
  pthread_mutex_unlock (&w.lock);
  pthread_join (w.thread, NULL);
  w.on = false;
  base_phase_at (NULL);
  xfree (w.own.node_of);
  w.own.node_of = NULL;
  w.board = NULL;
  w.m = NULL;
}
