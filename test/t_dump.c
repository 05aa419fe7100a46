/* np: 1 3 4
   A tensor cut into rectangles, and these into runs, is put together in one file by all ranks. */
#include "tap.h"
#include "base.h"
#include "dump.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 7, COLS = 10 };
static char dir[256];
static int rank, size;

static float value (int64_t row, int64_t col) { return (float) (1000 * row + col); }

/* The part of ROWS x COLS at (row0, col0) in runs of LEN elements; ranks take turns. */
static void dump_part (const char *name, int64_t row0, int64_t col0, int64_t rows, int64_t cols, int64_t len, int *turn)
{
  float x[ROWS * COLS];
  for (int64_t start = 0; start < rows * cols; start += len) {
    int64_t n = MIN (len, rows * cols - start);
    if ((*turn)++ % size != rank) continue;
    for (int64_t i = 0; i < n; i++) x[i] = value (row0 + (start + i) / cols, col0 + (start + i) % cols);
    dump_piece (dir, "grad", name, COLS, row0, col0, cols, start, n, x);
  }
}

static int whole (const char *name)
{
  char path[512];
  float x[ROWS * COLS + 1];
  MPI_Barrier (MPI_COMM_WORLD);
  snprintf (path, sizeof path, "%s/grad/%s.f32", dir, name);
  FILE *f = fopen (path, "rb");
  if (!f) return 0;
  size_t n = fread (x, 4, ROWS * COLS + 1, f);
  fclose (f);
  int good = n == ROWS * COLS;
  for (int i = 0; i < ROWS * COLS && good; i++) good &= x[i] == value (i / COLS, i % COLS);
  return good;
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  snprintf (dir, sizeof dir, "%s/t_dump.XXXXXX", tap_tmp ());
  if (!rank && !mkdtemp (dir)) return 99;
  MPI_Bcast (dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
  strcat (dir, "/new");
  int turn = 0;
  dump_part ("rows", 0, 0, 3, COLS, 13, &turn), dump_part ("rows", 3, 0, 4, COLS, 9, &turn);
  tap_ok (whole ("rows"), "cut by rows");
  dump_part ("columns", 0, 0, ROWS, 4, 5, &turn), dump_part ("columns", 0, 4, ROWS, 6, 17, &turn);
  tap_ok (whole ("columns"), "cut by columns");
  dump_part ("tiles", 0, 0, 3, 4, 100, &turn), dump_part ("tiles", 0, 4, 3, 6, 1, &turn);
  dump_part ("tiles", 3, 0, 4, 4, 3, &turn), dump_part ("tiles", 3, 4, 4, 6, 7, &turn);
  tap_ok (whole ("tiles"), "cut both ways");
  tap_ok (base_live () == 0, "nothing is left allocated");
  dir[strlen (dir) - strlen ("/new")] = 0;
  char command[300];
  snprintf (command, sizeof command, "rm -rf '%s'", dir);
  if (!rank && system (command)) return 99;
  tap_done ();
  MPI_Finalize ();
  return 0;
}
