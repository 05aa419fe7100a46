/* Collectives of a device: verified, then timed.
   usage: mpiexec -n N bench/b_coll [MIB] [STAGE_KIB] [cpu|cuda]: one line each, milliseconds (least and median of 20) and the bytes that a rank sends in a second at the least,
   beside a memcpy of the same buffer. */
#include "config.h"
#include "mesh.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPS = 20 };
static int rank, size;
static struct dev d;
static struct queue *q, *cq;
static struct event *ev;
static struct group *g;
static float *a, *b;       /* usable addresses are not ours to know: put and get */

static int by_value (const void *x, const void *y)
{
  double l = *(const double *) x, r = *(const double *) y;
  return (l > r) - (l < r);
}

static void report (const char *what, int64_t bytes, double *t)
{
  char volume[24];
  qsort (t, REPS, sizeof *t, by_value);
  bytes_text (bytes, volume);
  if (rank == 0) printf ("ranks %d  %-28s sends %-12s least %9.3f ms  median %9.3f ms  %8.2f GB/s\n", size, what, volume, 1e3 * t[0], 1e3 * t[REPS / 2],
                         1e-9 * (double) bytes / t[0]);
}

static void barrier_mpi (void) { MPI_Barrier (MPI_COMM_WORLD); }
static void barrier_mesh (void) { mesh_barrier (MPI_COMM_WORLD); }

static void time_call (const char *what, int64_t bytes, void (*f) (void))
{
  double t[REPS];
  for (int i = 0; i < REPS; i++) {
    mesh_barrier (MPI_COMM_WORLD);
    double start = now ();
    f ();
    t[i] = now () - start;
  }
  report (what, bytes, t);
}

static enum op_kind kind;
static int64_t count;

static void collective (void)
{
  dev_op (&d, cq, kind, coll, .g = g, .in = a, .out = b, .count = count, .t = DT_F32, .it = DT_F32, .ot = DT_F32);
  d.ops->record (&d, cq, ev);
  d.ops->wait (&d, q, ev);
  d.ops->sync (&d, ev);
}

/* Every kind gives at its last element what one can see without running it: the input is the rank at every place. */
static void verify (void)
{
  float want = kind == OP_ALL_GATHER ? (float) (size - 1) : (float) (size * (size - 1) / 2), got;
  dev_get (&d, q, &got, b + (kind == OP_ALL_GATHER ? size * count : count) - 1, 4);
  must (got == want, "%s of %lld gives %g, not %g", op_name (kind), (long long) count, got, want);
}

static void time_kind (enum op_kind k, int64_t n)
{
  char what[64];
  kind = k;
  count = n;
  collective ();
  verify ();
  snprintf (what, sizeof what, "%s %lld", op_name (k), (long long) n);
  time_call (what, coll_bytes (k, size, n, 4), collective);
}

static void copy (void) { dev_op (&d, q, OP_COPY, copy, .dst = b, .src = a, .bytes = count * 4), d.ops->drain (&d); }

static void *reserve (int64_t bytes)
{
  struct err e = { 0 };
  void *p = dev_reserve (&d, MEM_ACT, SPACE_DEVICE, bytes, &e);
  must (p, "%s", e.msg);
  return p;
}

int main (int argc, char **argv)
{
  struct err e = { 0 };
  double start = now ();
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  wait_init (size);
  if (rank == 0) printf ("ranks %d  MPI_Init %.2f s\n", size, now () - start);
  int64_t bytes = (argc > 1 ? atoll (argv[1]) : 8) << 20, stage = (argc > 2 ? atoll (argv[2]) : 4096) << 10, n = bytes / 4;
  must (!dev_open (&d, argc > 3 ? argv[3] : "cpu", &(struct dev_conf) { .local_size = size, .local_rank = rank }, &e), "%s", e.msg);
  q = d.ops->queue_open (&d, QUEUE_COMPUTE, "compute", NULL, 0);
  cq = d.ops->queue_open (&d, QUEUE_COMM, "comm", NULL, 0);
  ev = d.ops->event_open (&d);
  a = reserve (bytes);
  b = reserve (bytes);
  g = d.ops->group_open (&d, &(struct group_spec) { .comm = MPI_COMM_WORLD, .n = size, .rank = rank, .tag = 3, .stage = reserve (stage), .stage_bytes = stage });
  float mine = (float) rank;
  for (int64_t i = 0; i < n; i = i ? 2 * i : 1)
    if (i == 0) dev_put (&d, q, a, &mine, 4);
    else dev_op (&d, q, OP_COPY, copy, .dst = a + i, .src = a, .bytes = 4 * MIN (i, n - i));
  time_call ("MPI_Barrier", 0, barrier_mpi);
  time_call ("mesh_barrier", 0, barrier_mesh);
  time_kind (OP_ALL_REDUCE, 64);
  time_kind (OP_ALL_REDUCE, n / 8);
  time_kind (OP_REDUCE_SCATTER, n / size);
  time_kind (OP_ALL_GATHER, n / size);
  count = n;
  time_call ("memcpy of the buffer", bytes, copy);
  d.ops->group_close (&d, g);
  d.ops->event_close (&d, ev);
  dev_close (&d);
  MPI_Finalize ();
  return 0;
}
