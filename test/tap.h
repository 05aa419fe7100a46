/* tap: the Test Anything Protocol for programs under MPI. */
#ifndef TAP_H
#define TAP_H
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int tap_count;

/* Where temporary files go: test/run removes them. */
static inline const char *tap_tmp (void)
{
  const char *dir = getenv ("TMPDIR");
  return dir && dir[0] ? dir : "/tmp";
}

/* Collective: true only if COND holds on every rank; rank 0 prints. */
static inline int tap_ok (int cond, const char *fmt, ...)
{
  int all = cond, rank = 0, up = 0;
  MPI_Initialized (&up);
  if (up) {
    MPI_Allreduce (&cond, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    MPI_Comm_rank (MPI_COMM_WORLD, &rank);
    if (!cond) fprintf (stderr, "# rank %d fails the next point\n", rank);
  }
  if (rank == 0) {
    va_list ap;
    va_start (ap, fmt);
    printf ("%sok %d - ", all ? "" : "not ", ++tap_count);
    vprintf (fmt, ap);
    printf ("\n");
    fflush (stdout);
    va_end (ap);
  }
  return all;
}
static inline void tap_done (void)
{
  int rank = 0, up = 0;
  MPI_Initialized (&up);
  if (up) MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  if (rank == 0) printf ("1..%d\n", tap_count);
}
#endif
