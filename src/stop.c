#include "config.h"
#include "stop.h"
#include "watch.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ONE_WISH_SECONDS = 2 };

static volatile sig_atomic_t caught;
static char file[1100];
static double began, limit, job_end;   /* of now (); seconds; Unix time; 0: none */

static void on_signal (int sig)
{
  static double first;
  if (caught && now () - first > ONE_WISH_SECONDS) {
    watch_leave ();
    _exit (128 + sig);
  }
  if (!caught) first = now ();
  caught = sig;
}

void stop_signals (void)
{
  static const int sig[] = { SIGTERM, SIGINT, SIGUSR1 };
  struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
  for (int i = 0; i < LEN (sig); i++) sigaction (sig[i], &a, NULL);
  began = now ();
}

void stop_open (const char *dir, double max_minutes)
{
  const char *end = getenv ("SLURM_JOB_END_TIME");
  snprintf (file, sizeof file, "%s/stop", dir);
  limit = 60 * max_minutes;
  job_end = end ? atof (end) : 0;
}

enum stop_why stop_wish (const struct mesh *m, double need)
{
  if (caught) return STOP_SIGNAL;
  if (m->rank || !file[0]) return STOP_NO;
  if (!access (file, F_OK)) return STOP_FILE;
  if (need < 0) return STOP_NO;
  if (limit > 0 && now () - began > limit) return STOP_MINUTES;
  return job_end > 0 && (double) time (NULL) + need > job_end ? STOP_JOB_END : STOP_NO;
}

enum stop_why stop_agreed (struct mesh *m, double need)
{
  int why = stop_wish (m, need);
  MPI_Request q;
  MPI_Iallreduce (MPI_IN_PLACE, &why, 1, MPI_INT, MPI_MAX, m->world, &q);
  wait_all (1, &q);
  return why;
}

const char *stop_text (enum stop_why why)
{
  static const char *const text[] = { "", "a signal", "the file stop in run.dir", "run.max_minutes", "the batch job's time is nearly over" };
  return text[why];
}

void stop_done (enum stop_why why)
{
  if (why == STOP_FILE) unlink (file);
}
