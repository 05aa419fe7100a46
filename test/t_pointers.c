/* No address of device memory reaches MPI, which may not be able to read it: standing between the program and MPI, this looks at every buffer of a training run with
   initial weights, steps and evaluation. (The cpu device, whose collectives are MPI's, gives MPI another mapping of the same memory.) np: 4
   TEST_DEVICE=cuda on a host with a GPU. */
#include "tap.h"
#include "tiny_run.h"
#include <math.h>

/* ---- device memory, as it is reserved ---- */

enum { RANGES = 256 };
static struct { const char *p; int64_t bytes; } range[RANGES];
static int ranges;
static const struct dev_ops *real;

static void *reserve (struct dev *d, enum space s, int64_t bytes, struct err *e)
{
  void *p = real->reserve (d, s, bytes, e);
  if (s != SPACE_DEVICE || !p) return p;
  must (ranges < RANGES, "too many arenas");
  range[ranges].p = p;
  range[ranges++].bytes = bytes;
  return p;
}

static struct dev_ops watched;
static void watch (struct dev *d)
{
  real = d->ops;
  watched = *real;
  watched.reserve = reserve;
  d->ops = &watched;
}

/* ---- MPI ---- */

static int64_t calls, device;

static void see (const void *p)
{
  calls++;
  for (int i = 0; i < ranges; i++) device += (const char *) p >= range[i].p && (const char *) p < range[i].p + range[i].bytes;
}

#define ONE(NAME, PARAMETERS, ...) int MPI_##NAME PARAMETERS { see (b); return PMPI_##NAME (__VA_ARGS__); }
#define TWO(NAME, PARAMETERS, ...) int MPI_##NAME PARAMETERS { see (a); see (b); return PMPI_##NAME (__VA_ARGS__); }
#define SEND(NAME) ONE (NAME, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), b, n, t, to, tag, c)
#define ISEND(NAME) ONE (NAME, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r), b, n, t, to, tag, c, r)
SEND (Send) SEND (Ssend) SEND (Bsend) SEND (Rsend)
ISEND (Isend) ISEND (Issend) ISEND (Ibsend) ISEND (Irsend)
ONE (Recv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s), b, n, t, from, tag, c, s)
ONE (Irecv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r), b, n, t, from, tag, c, r)
ONE (Send_c, (const void *b, MPI_Count n, MPI_Datatype t, int to, int tag, MPI_Comm c), b, n, t, to, tag, c)
ONE (Isend_c, (const void *b, MPI_Count n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r), b, n, t, to, tag, c, r)
ONE (Issend_c, (const void *b, MPI_Count n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r), b, n, t, to, tag, c, r)
ONE (Irecv_c, (void *b, MPI_Count n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r), b, n, t, from, tag, c, r)
ONE (Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), b, n, t, root, c)
ONE (Ibcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r), b, n, t, root, c, r)
TWO (Reduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, int root, MPI_Comm c), a, b, n, t, op, root, c)
TWO (Ireduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, int root, MPI_Comm c, MPI_Request *r), a, b, n, t, op, root, c, r)
TWO (Allreduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c), a, b, n, t, op, c)
TWO (Iallreduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request *r), a, b, n, t, op, c, r)
TWO (Gather, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, int root, MPI_Comm c), a, n, t, b, m, u, root, c)
TWO (Igather, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *r), a, n, t, b, m, u, root, c, r)
TWO (Allgather, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c), a, n, t, b, m, u, c)
TWO (Iallgather, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *r), a, n, t, b, m, u, c, r)
TWO (Alltoall, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c), a, n, t, b, m, u, c)
TWO (Ialltoall, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *r), a, n, t, b, m, u, c, r)
TWO (Reduce_scatter_block, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c), a, b, n, t, op, c)
TWO (Ireduce_scatter_block, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request *r), a, b, n, t, op, c, r)
TWO (Sendrecv, (const void *a, int n, MPI_Datatype t, int to, int tag, void *b, int m, MPI_Datatype u, int from, int gat, MPI_Comm c, MPI_Status *s),
     a, n, t, to, tag, b, m, u, from, gat, c, s)
#define FILE_AT(NAME, CONST) ONE (NAME, (MPI_File f, MPI_Offset at, CONST void *b, int n, MPI_Datatype t, MPI_Status *s), f, at, b, n, t, s)
FILE_AT (File_write_at, const) FILE_AT (File_write_at_all, const) FILE_AT (File_read_at, ) FILE_AT (File_read_at_all, )

/* ---- a run ---- */

static void run (const char *options)
{
  struct conf c;
  struct tiny t;
  struct step_result r;
  int64_t sum[2], all[2];
  ranges = 0;
  calls = device = 0;
  tiny_options (&c, "", options);
  tiny_open_with (&t, &c, MPI_COMM_WORLD, 0, watch);
  for (int64_t i = 1; i <= 2; i++) tiny_step (&t, i, &r);
  tiny_eval (&t, 1);
  sum[0] = calls, sum[1] = device;
  int had = ranges;
  MPI_Bcast ((void *) range[had - 1].p, 0, MPI_BYTE, 0, MPI_COMM_SELF);   /* of no bytes: that the eye sees */
  bool sees = device == sum[1] + 1;
  tiny_close (&t);
  PMPI_Allreduce (sum, all, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  tap_ok (had > 0 && all[0] > 0 && all[1] == 0 && sees && isfinite (r.loss), "%d arenas, %lld buffers of MPI, %lld of them in device memory: %s",
          had, (long long) all[0], (long long) all[1], options);
}

int main (int argc, char **argv)
{
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  run ("--mesh.dp_shard 4 --sharding.strategy FULL_SHARD");
  run ("--mesh.dp_shard 2 --mesh.pp 2 --train.micro_batch 1");
  run ("--mesh.tp 2 --mesh.pp 2 --model.tied true");
  run ("--mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
