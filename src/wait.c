#include "config.h"
#include "mesh.h"
#include "yield.h"
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Turns of waiting without progress: first spin, then yield, then sleep ever longer. Constant short sleeps of many waiting ranks would starve the few that work. */
enum { SPIN_TURNS = 50, YIELD_TURNS = 30, SLEEP_US = 50, SLEEP_MAX_US = 1000, SPIN_LONG = 200 };
enum { CROWD_UNKNOWN, CROWD_NO, CROWD_YES };

static int crowd;
static volatile int64_t turns;
static bool (*driver) (void);

/* MPICH's temporaries come from the heap and stay there: mapped afresh each time they cost 3 to 10 times the collective. */
void wait_before_mpi (void)
{
  mallopt (M_MMAP_MAX, 0);
  mallopt (M_TRIM_THRESHOLD, INT_MAX);
  mallopt (M_TOP_PAD, 16 << 20);
}

static int mask_cores (pid_t pid)
{
  cpu_set_t set;
  return sched_getaffinity (pid, sizeof set, &set) ? 0 : CPU_COUNT (&set);
}

int wait_cores (int ranks)
{
  int mine = mask_cores (0), online = (int) sysconf (_SC_NPROCESSORS_ONLN);
  if (mine < 1) return MAX (online, 1);
  /* The launcher bound this rank to cores of its own if it gave it fewer than it has itself and all ranks find room in the node. */
  bool own = mine < mask_cores (getppid ()) && (int64_t) mine * ranks <= online;
  return own ? mine * ranks : mine;
}

/* Before MPI is up the launcher's environment tells: hydra, Slurm. */
static int ranks_by_environment (void)
{
  static const char *const name[] = { "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE" };
  for (int i = 0; i < LEN (name); i++) {
    const char *s = getenv (name[i]);
    if (s && atoi (s) > 0) return atoi (s);
  }
  return 1;
}

void wait_init (int ranks)
{
  crowd = ranks > wait_cores (ranks) ? CROWD_YES : CROWD_NO;
  if (crowd == CROWD_YES) prctl (PR_SET_TIMERSLACK, 10000UL);   /* ns: a sleep of 50 us is one */
}

void wait_drive (bool (*poll) (void)) { driver = poll; }

static void spin (void)
{
#if defined __x86_64__
  __builtin_ia32_pause ();
#else
  __asm__ volatile ("" ::: "memory");
#endif
}

int64_t wait_turns (void) { return turns; }

bool wait_idle (int *state)
{
  if (crowd == CROWD_UNKNOWN) wait_init (ranks_by_environment ());
  turns++;
  int turn = *state;
  if (turn < 1 << 20) *state = turn + 1;
  if (turn < (crowd == CROWD_NO ? SPIN_LONG : SPIN_TURNS)) { spin (); return false; }
  if (crowd == CROWD_NO) { sched_yield (); return true; }   /* costs nothing where the core is ours, helps where other programs run */
  turn -= SPIN_TURNS;
  if (turn < YIELD_TURNS) { sched_yield (); return true; }
  turn -= YIELD_TURNS;
  struct timespec t = { .tv_nsec = 1000L * MIN (SLEEP_US + (turn / 4) * SLEEP_US, SLEEP_MAX_US) };
  nanosleep (&t, NULL);
  return true;
}

/* gcc takes MPICH's constant for an array without elements. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

bool wait_test (int n, MPI_Request *r)
{
  int done;
  yield_hold (true);
  MPI_Testall (n, r, &done, MPI_STATUSES_IGNORE);
  yield_hold (false);
  return done;
}

void wait_all (int n, MPI_Request *r)
{
  for (int state = 0; !wait_test (n, r); ) {
    if (driver && driver ()) state = 0;
    else wait_idle (&state);
  }
}

void mesh_barrier (MPI_Comm c)
{
  MPI_Request r;
  MPI_Ibarrier (c, &r);
  wait_all (1, &r);
}
