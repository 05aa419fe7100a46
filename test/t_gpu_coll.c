/* Reductions of the cuda device whose wire has another type than memory, against the cpu device to the bit: shares are rounded to the wire, sums are taken in rank
   order in fp32 and rounded once. Staging small enough for many rounds, counts that fit nothing. Ranks share a GPU. np: 2 3 8 */
#include "config.h"
#include <stdlib.h>
#include "dev.h"
#include "mesh.h"
#include "tap.h"

enum { CPU, GPU };
static struct dev D[2];
static struct queue *Q[2], *C[2];
static struct group *G[2];
static struct event *E[2];
static char *in[2], *out[2];
static int rank, size;
enum { MOST = 300000 };

static double value (int64_t i)
{
  uint32_t h = (uint32_t) (i * 2654435761u) ^ (uint32_t) (rank * 40503 + 977);
  h = (h ^ h >> 15) * 2246822519u;
  return ((double) (int) (h >> 8) - 0x1p23) * 0x1p-23 * (double) (1 << (h & 7));
}

static void fill (char *p[2], int64_t n, enum dtype t)
{
  char *h = xalloc ((size_t) (n * 4), "test");
  for (int64_t i = 0; i < n; i++)
    if (t == DT_F32) ((float *) h)[i] = (float) value (i);
    else ((bf16 *) h)[i] = f32_to_bf16 ((float) value (i));
  for (int d = 0; d < 2; d++) dev_put (&D[d], Q[d], p[d], h, n * dtype_size (t));
  xfree (h);
}

/* The operation on both devices; do the first BYTES of their results agree? */
static bool same (enum op_kind k, struct op_coll c, bool in_place, int64_t bytes)
{
  char *h[2];
  for (int d = 0; d < 2; d++) {
    c.g = G[d];
    c.in = in_place ? NULL : in[d];
    c.out = out[d];
    dev_issue (&D[d], C[d], &(struct op) { .kind = k, .coll = c });
    D[d].ops->record (&D[d], C[d], E[d]);
    D[d].ops->wait (&D[d], Q[d], E[d]);
    h[d] = xalloc ((size_t) bytes, "test");
    dev_get (&D[d], Q[d], h[d], out[d], bytes);
  }
  bool ok = !memcmp (h[CPU], h[GPU], (size_t) bytes);
  xfree (h[0]);
  xfree (h[1]);
  return ok;
}

/* On the GPU little staging: many rounds. */
static void open_all (void)
{
  struct err e = { 0 };
  for (int d = 0; d < 2; d++) {
    int64_t stage = d == GPU ? 1 << 20 : D[d].ops->limits->comm_stage;
    struct group_spec s = { .kind = GROUP_SHARD, .comm = MPI_COMM_WORLD, .n = size, .rank = rank, .tag = d, .stage_bytes = stage };
    s.stage = dev_reserve (&D[d], MEM_COMM, SPACE_DEVICE, stage, &e);
    in[d] = dev_reserve (&D[d], MEM_WORK, SPACE_DEVICE, MOST * 4 * size, &e);
    out[d] = dev_reserve (&D[d], MEM_WORK, SPACE_DEVICE, MOST * 4 + 256, &e);
    if (!s.stage || !in[d] || !out[d]) die ("%s", e.msg);
    Q[d] = D[d].ops->queue_open (&D[d], QUEUE_COMPUTE, "compute", NULL, 0);
    C[d] = D[d].ops->queue_open (&D[d], QUEUE_COMM, "comm", NULL, 0);
    E[d] = D[d].ops->event_open (&D[d]);
    G[d] = D[d].ops->group_open (&D[d], &s);
  }
}

int main (int argc, char **argv)
{
  static const int64_t counts[] = { 1, 7, 129, 1023, 4097, MOST - 3 };
  struct err e = { 0 };
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  wait_init (size);
  struct dev_conf dc = { .local_rank = rank, .local_size = size, .threads = 1, .shared_gpu = true };
  if (dev_open (&D[GPU], "cuda", &dc, &e)) {
    if (!rank) printf ("1..0 # SKIP no GPU: %s\n", e.msg);
    MPI_Finalize ();
    return 0;
  }
  if (dev_open (&D[CPU], "cpu", &dc, &e)) die ("%s", e.msg);
  open_all ();
  for (int m = 0; m < 4; m++) {
    enum dtype it = m & 1 ? DT_F32 : DT_BF16, t = m & 1 ? DT_BF16 : DT_F32, ot = m & 2 ? DT_F32 : DT_BF16;
    bool scatter = true, reduce = true;
    for (int j = 0; j < LEN (counts); j++)
      for (int beta = 0; beta < 2; beta++) {
        fill (in, counts[j] * size, it);
        fill (out, counts[j], ot);
        scatter &= same (OP_REDUCE_SCATTER, (struct op_coll) { .count = counts[j], .t = t, .it = it, .ot = ot, .beta = (float) beta }, false, counts[j] * dtype_size (ot));
        fill (out, counts[j] + 1, it);   /* what lies behind is not to be written */
        reduce &= same (OP_ALL_REDUCE, (struct op_coll) { .count = counts[j], .t = t, .it = it, .ot = it, .max = beta }, m & 2, (counts[j] + 1) * dtype_size (it));
      }
    tap_ok (scatter, "reduce-scatter of %s, %s on the wire, into %s", dtype_name (it), dtype_name (t), dtype_name (ot));
    tap_ok (reduce, "all-reduce and maximum of %s, %s on the wire%s", dtype_name (it), dtype_name (t), m & 2 ? ", in place" : "");
  }
  for (int d = 0; d < 2; d++) D[d].ops->group_close (&D[d], G[d]);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
