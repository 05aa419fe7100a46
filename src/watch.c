#include "config.h"
#include "watch.h"
#include "metrics.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t stop;
  bool on, stopping;
  const struct dev *d;
  double limit;
  char dir[1024];
  int64_t step;
  struct peer { int pid, rank; } *peer;   /* [peers] the ranks of this node, this one too */
  int peers;
} w = { .lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER };

/* A number that changes when the rank moves on. Read beside the main thread: a torn or old value only delays. */
static int64_t progress (void)
{
  int64_t n = 0;
  const volatile int64_t *count = w.d->op_count;
  for (int k = 0; k < OP_N; k++) n += count[k];
  for (const char *p = base_phase_get (); *p; p++) n = n * 31 + *p;
  return n;
}

/* Is process PID one of this program, and stopped (SIGSTOP)? A debugger's is not: its state is t. */
static bool frozen (int pid)
{
  char path[64], mine[1024], its[1024], text[512];
  snprintf (path, sizeof path, "/proc/%d/exe", pid);
  ssize_t a = readlink ("/proc/self/exe", mine, sizeof mine), b = readlink (path, its, sizeof its);
  if (a <= 0 || a != b || memcmp (mine, its, (size_t) a)) return false;
  snprintf (path, sizeof path, "/proc/%d/stat", pid);
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read (fd, text, sizeof text - 1);
  if (fd >= 0) close (fd);
  text[MAX (n, 0)] = 0;
  const char *name_end = strrchr (text, ')');
  return name_end && !strncmp (name_end, ") T", 3);
}

/* The first peer on this node that is stopped, NULL if none. */
static const struct peer *find_frozen (void)
{
  for (int i = 0; i < w.peers; i++)
    if (frozen (w.peer[i].pid)) return &w.peer[i];
  return NULL;
}

/* End the peers that cannot end themselves: a launcher that waits for all would wait for ever. */
static void end_frozen (void)
{
  for (int i = 0; i < w.peers; i++)
    if (frozen (w.peer[i].pid)) kill (w.peer[i].pid, SIGKILL);
}

static void fire (double idle)
{
  char why[320], cause[96] = "another rank is dead or frozen, or a link or disk hangs", stuck[600], line[1024];
  const struct peer *still = find_frozen ();
  if (still) snprintf (cause, sizeof cause, "rank %d, process %d on this host, stands still (SIGSTOP)", still->rank, still->pid);
  snprintf (why, sizeof why, "no progress for %.0f s (run.watchdog) during %s on rank %d of host %s: %s", idle, base_phase_get (), base_rank_get (), base_host (),
            cause);
  dev_stuck (w.d, stuck, sizeof stuck);
  int n = snprintf (line, sizeof line, "pretrain: %s; its collectives under way: %s\n", why, stuck);
  if (w.dir[0]) exit_write (w.dir, EXIT_WORLD, why, w.step);
  if (write (2, line, (size_t) n) < 0) _exit (EXIT_WORLD);
  end_frozen ();   /* last: where this makes the launcher end us all, all is said */
  _exit (EXIT_WORLD);
}

static void *loop (void *arg)
{
  (void) arg;
  int64_t last = -1;
  double since = now ();
  pthread_mutex_lock (&w.lock);
  while (!w.stopping) {
    struct timespec t;
    clock_gettime (CLOCK_REALTIME, &t);
    t.tv_sec++;
    pthread_cond_timedwait (&w.stop, &w.lock, &t);
    int64_t p = progress ();
    if (p != last) last = p, since = now ();
    else if (now () - since > w.limit) fire (now () - since);
  }
  pthread_mutex_unlock (&w.lock);
  return NULL;
}

void watch_start (const struct dev *d, double seconds, const char *dir)
{
  if (seconds <= 0) return;
  w.d = d;
  w.limit = seconds;
  w.stopping = false;
  snprintf (w.dir, sizeof w.dir, "%s", dir ? dir : "");
  must (!pthread_create (&w.thread, NULL, loop, NULL), "cannot start the watchdog's thread");
  w.on = true;
}

void watch_peers (const struct mesh *m)
{
  struct peer mine = { (int) getpid (), m->rank };
  MPI_Request q;
  w.peer = xalloc ((size_t) m->local_size * sizeof *w.peer, "watch");
  MPI_Iallgather (&mine, sizeof mine, MPI_BYTE, w.peer, sizeof mine, MPI_BYTE, m->node_comm, &q);
  wait_all (1, &q);
  w.peers = m->local_size;
}

void watch_step (int64_t step) { w.step = step; }

void watch_stop (void)
{
  if (w.on) {
    pthread_mutex_lock (&w.lock);
    w.stopping = true;
    pthread_cond_signal (&w.stop);
    pthread_mutex_unlock (&w.lock);
    pthread_join (w.thread, NULL);
  }
  w.on = false;
  xfree (w.peer);
  w.peer = NULL;
  w.peers = 0;
}
