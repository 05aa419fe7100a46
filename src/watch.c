#include "config.h"
#include "watch.h"
#include "metrics.h"
#include <pthread.h>
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

static void fire (double idle)
{
  char why[256], stuck[600], line[1024];
  snprintf (why, sizeof why, "no progress for %.0f s (run.watchdog) during %s on rank %d of host %s: another rank is dead or frozen, or a link or disk hangs", idle,
            base_phase_get (), base_rank_get (), base_host ());
  dev_stuck (w.d, stuck, sizeof stuck);
  int n = snprintf (line, sizeof line, "pretrain: %s; its collectives under way: %s\n", why, stuck);
  if (w.dir[0]) exit_write (w.dir, EXIT_WORLD, why, w.step);
  if (write (2, line, (size_t) n) < 0) _exit (EXIT_WORLD);
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

void watch_step (int64_t step) { w.step = step; }

void watch_stop (void)
{
  if (!w.on) return;
  pthread_mutex_lock (&w.lock);
  w.stopping = true;
  pthread_cond_signal (&w.stop);
  pthread_mutex_unlock (&w.lock);
  pthread_join (w.thread, NULL);
  w.on = false;
}
