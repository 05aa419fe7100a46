/* Counts around 2^31 bytes, where MPI libraries err: each collective moves 2^31 - 100 and 2^31 + 7 bytes; make bigcheck, 16 GiB. np: 2 */
#include "cpu_bed.h"

static uint64_t word (int r, int64_t i) { return ((uint64_t) i + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t) (r + 1) << 56; }

/* The value of byte I of rank R's buffer: cheap to make, different in each place and rank. */
static void fill (uint8_t *p, int r, int64_t bytes)
{
  for (int64_t i = 0; i < bytes / 8; i++) ((uint64_t *) p)[i] = word (r, i);
  for (int64_t i = bytes / 8 * 8; i < bytes; i++) p[i] = (uint8_t) i;
}
static bool same (const uint8_t *p, int r, int64_t bytes)
{
  bool good = true;
  for (int64_t i = 0; i < bytes / 8; i++) {
    uint64_t x;
    memcpy (&x, p + 8 * i, 8);
    good &= x == word (r, i);
  }
  for (int64_t i = bytes / 8 * 8; i < bytes; i++) good &= p[i] == (uint8_t) i;
  return good;
}

static struct dev d;
static struct queue *cq;
static struct group *g, *link[2];
static int64_t room;
static uint8_t *a, *b;   /* device addresses */

static void go (enum op_kind k, struct op_coll c)
{
  if (!c.g) c.g = g;
  dev_issue (&d, cq, &(struct op) { .kind = k, .coll = c });
  d.ops->drain (&d);
}

static void bytes_of (int64_t n)
{
  uint8_t *in = cpu_at (a), *out = cpu_at (b);
  int other = 1 - rank;
  fill (in, rank, n);
  go (OP_ALL_GATHER, (struct op_coll) { .in = a, .out = b, .count = n, .t = DT_U8 });
  tap_ok (same (out, 0, n) && same (out + n, 1, n), "all-gather of %lld bytes a rank", (long long) n);
  memcpy (out, in, (size_t) n);
  go (OP_BROADCAST, (struct op_coll) { .out = b, .count = n, .t = DT_U8, .root = 1 });
  tap_ok (same (out, 1, n), "broadcast of %lld bytes", (long long) n);
  memset (out, 0, (size_t) n);
  for (int from = 0; from < 2; from++)
    go (rank == from ? OP_SEND : OP_RECV, (struct op_coll) { .g = link[from], .in = a, .out = b, .count = n, .t = DT_U8 });
  tap_ok (same (out, other, n), "send and receive of %lld bytes", (long long) n);
  memcpy (in + n, in, (size_t) n);
  go (OP_ALL_TO_ALL, (struct op_coll) { .in = a, .out = b, .count = n, .t = DT_U8 });
  tap_ok (same (out, 0, n) && same (out + n, 1, n), "all-to-all of %lld bytes a rank", (long long) n);
}

static float term (int r, int64_t i) { return (float) ((i * 7 + r * 3) % 1021); }

/* The nearest numbers of fp32 elements. */
static void sums_of (int64_t n)
{
  float *in = cpu_at (a), *out = cpu_at (b);
  bool good = true;
  for (int64_t i = 0; i < 2 * n; i++) in[i] = term (rank, i);
  go (OP_REDUCE_SCATTER, (struct op_coll) { .in = a, .out = b, .count = n, .t = DT_F32, .it = DT_F32, .ot = DT_F32 });
  for (int64_t i = 0; i < n; i++) good &= out[i] == term (0, rank * n + i) + term (1, rank * n + i);
  tap_ok (good, "reduce-scatter of %lld bytes a rank", (long long) n * 4);
  good = true;
  go (OP_ALL_REDUCE, (struct op_coll) { .out = a, .count = n, .t = DT_F32 });
  for (int64_t i = 0; i < n; i++) good &= in[i] == term (0, i) + term (1, i);
  tap_ok (good && in[n] == term (rank, n), "all-reduce of %lld bytes", (long long) n * 4);
}

int main (int argc, char **argv)
{
  bed_begin (&argc, &argv);
  room = ((int64_t) 2 << 31) + 64;
  if (size != 2 || dev_open (&d, "cpu", &(struct dev_conf) { .threads = 1, .local_size = 2 }, &e)) die ("%s", e.msg);
  a = dev_reserve (&d, MEM_ACT, SPACE_DEVICE, room, &e);
  b = dev_reserve (&d, MEM_ACT, SPACE_DEVICE, room, &e);
  void *stage = dev_reserve (&d, MEM_COMM, SPACE_DEVICE, 4 << 20, &e);
  if (tap_ok (a && b && stage, "two buffers of 4 GiB for each of two ranks %s", e.msg)) {
    struct group_spec s = { .comm = MPI_COMM_WORLD, .n = 2, .rank = rank, .tag = 1, .stage = stage, .stage_bytes = 4 << 20 };
    cq = d.ops->queue_open (&d, QUEUE_COMM, "comm", NULL, 0);
    g = d.ops->group_open (&d, &s);
    for (int i = 0; i < 2; i++) s.tag = 2 + i, link[i] = d.ops->group_open (&d, &s);
    bytes_of (((int64_t) 1 << 31) - 100);
    bytes_of (((int64_t) 1 << 31) + 7);
    sums_of (((int64_t) 1 << 29) - 25);
    sums_of (((int64_t) 1 << 29) + 2);
    for (int i = 0; i < 2; i++) d.ops->group_close (&d, link[i]);
    d.ops->group_close (&d, g);
  }
  dev_close (&d);
  bed_end ();
  return 0;
}
