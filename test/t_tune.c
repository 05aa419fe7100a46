/* One table of measured algorithms for all ranks: merged by shape with the lowest rank first, kept in the run's folder, read again. The device is a stand-in. np: 1 4 */
#include "config.h"
#include "tap.h"
#include "tune.h"
#include "wait.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;
static char told[4096];      /* what the device was told */
static int used;
static const char *mine;

static char *tuned (struct dev *d)
{
  (void) d;
  if (!mine) return NULL;
  char *t = xalloc (strlen (mine) + 1, "test");
  return strcpy (t, mine);
}
static void tune (struct dev *d, const char *text, bool use)
{
  (void) d;
  snprintf (told, sizeof told, "%s", text ? text : "nothing");
  used = use;
}

/* Bytes that this rank gave when the tables were gathered. */
static int gave;
int MPI_Igatherv (const void *in, int n, MPI_Datatype t, void *out, const int *len, const int *at, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *q)
{
  gave = n;
  return PMPI_Igatherv (in, n, t, out, len, at, u, root, c, q);
}

int main (int argc, char **argv)
{
  static struct job j;
  char dir[200], path[240];
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  wait_init (size);
  struct dev_ops ops = dev_cpu;
  ops.tuned = tuned;
  ops.tune = tune;
  j.d.ops = &ops;
  j.m.world = MPI_COMM_WORLD;
  j.m.rank = rank;
  j.m.size = size;
  snprintf (dir, sizeof dir, "%s/t_tune.XXXXXX", tap_tmp ());
  if (!rank && !mkdtemp (dir)) return 1;
  MPI_Bcast (dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
  snprintf (j.c.run.dir, sizeof j.c.run.dir, "%s", dir);
  snprintf (path, sizeof path, "%s/gemm.txt", dir);

  tune_load (&j, false);
  tap_ok (!strcmp (told, "nothing") && !used, "no file: nothing is known, nothing counts");
  told[0] = 0;
  mine = NULL;
  tune_share (&j);
  tap_ok (!told[0] && access (path, F_OK), "a device that measures nothing is asked nothing and leaves no file");

  /* rank 0 has nothing of its own where there are several; ranks 1 and 2 differ in b; rank 3 is other hardware */
  static const char *const text[] = { "lib 1 on X\na: 01\nbb: 02\n", "lib 1 on X\na: 01\nbb: 02\n", "lib 1 on X\nbb: 03\nb: 04\n", "lib 2 on Y\na: 09\nz: 09\n" };
  mine = size > 1 && !rank ? NULL : text[rank];
  tune_share (&j);
  const char *want = size > 1 ? "lib 1 on X\na: 01\nbb: 02\nb: 04\n" : text[0];
  tap_ok (!strcmp (told, want) && used, "each shape once, the lowest rank's, of one library and GPU; it counts on all ranks");
  told[0] = 0;
  tune_load (&j, true);
  tap_ok (!strcmp (told, want) && used, "the file says the same to a run that goes on");
  mine = size > 1 && rank == 1 ? "lib 1 on X\na: 77\nc: 05\n" : NULL;
  if (size == 1) mine = "lib 1 on X\nc: 05\n";
  tune_share (&j);
  tap_ok (strstr (told, "c: 05") != NULL, "what is shared later is what ranks have then");
  static const char *const more[] = { "lib 1 on X\na: 01\nbb: 02\n", "lib 1 on X\na: 07\nlonger: 06\nbb: 02\nd: 05\n", "lib 1 on X\nbb: 02\na: 01\n", "lib 2 on Y\nz: 09\n" };
  mine = more[rank];
  tune_share (&j);
  want = size > 1 ? "lib 1 on X\na: 01\nbb: 02\nlonger: 06\nd: 05\n" : more[0];
  int sent = rank == 1 ? (int) strlen ("lib 1 on X\nlonger: 06\nd: 05\n") + 1 : rank ? 0 : (int) strlen (more[0]) + 1;
  tap_ok (!strcmp (told, want) && gave == sent, "ranks give what rank 0 lacks, and nothing else");
  if (!rank) unlink (path), rmdir (dir);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
