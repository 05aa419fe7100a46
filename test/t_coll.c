/* Collectives of the cpu device against a serial computation, to the bit, and their bytes. np: 1 2 3 4 8 */
#include "cpu_bed.h"
#include <math.h>

/* ---- serial computations ---- */

/* What rank r holds at element i: exact in bf16, signs and sizes mixed, so that the order of sums shows. */
static double value (int r, int64_t i)
{
  uint32_t h = (uint32_t) (i * 2654435761u) ^ (uint32_t) (r * 40503 + 977);
  h = (h ^ h >> 15) * 2246822519u;
  return ldexp ((double) (int) (h >> 24 & 255) - 127, (int) (h >> 8 & 15) - 8);
}
static void put (void *p, enum dtype t, int64_t i, double x)
{
  if (t == DT_F32) ((float *) p)[i] = (float) x;
  else if (t == DT_F64) ((double *) p)[i] = x;
  else ((bf16 *) p)[i] = f32_to_bf16 ((float) x);
}
/* Values that are not exact in bf16, to see the rounding for the wire. */
static double fine (int r, int64_t i) { return value (r, i) * (1 + ldexp (1, -9) * (double) (i % 3)); }
static double as_wire (double x, enum dtype t) { return t == DT_BF16 ? bf16_to_f32 (f32_to_bf16 ((float) x)) : t == DT_F32 ? (float) x : x; }
static double sum_of (int n, int64_t i, enum dtype it, enum dtype t, bool max)
{
  double d = 0;
  float f = 0;
  for (int r = 0; r < n; r++) {
    double x = as_wire (as_wire (fine (r, i), it), t);
    if (r == 0 || (max && x > d)) d = x;
    else if (!max) d += x;
    if (r == 0 || (max && x > f)) f = (float) x;
    else if (!max) f += (float) x;
  }
  return t == DT_F64 ? d : f;
}

static void settle (struct bed *b)
{
  b->d.ops->record (&b->d, b->cq, b->ev[0]);
  b->d.ops->wait (&b->d, b->q, b->ev[0]);
}
static int64_t volume_of (struct bed *b, enum op_kind k, int64_t count, enum dtype t) { return coll_bytes (k, b->n, count, dtype_size (t)); }

/* Runs one collective: true if MPI, the group's statistics and the closed form agree on the bytes. */
static bool run_one (struct bed *b, enum op_kind k, struct op_coll c)
{
  int64_t before = sent, stat = group_stat (b->g, k)->bytes, calls = group_stat (b->g, k)->calls;
  c.g = b->g;
  dev_issue (&b->d, b->cq, &(struct op) { .kind = k, .coll = c });
  settle (b);
  int64_t want = volume_of (b, k, c.count, c.t);
  bool counted = group_stat (b->g, k)->bytes - stat == want && group_stat (b->g, k)->calls == calls + 1;
  return counted && (k == OP_BROADCAST || sent - before == want);
}

static bool gather_case (struct bed *b, enum dtype t, int64_t count, bool in_place)
{
  char *in = cpu_at (b->buf[0]), *out = cpu_at (b->buf[1]), want[64];
  void *own = in_place ? at_elem (out, b->me * count, t) : in;
  memset (out, 0xee, (size_t) (b->n * count * dtype_size (t)));
  for (int64_t i = 0; i < count; i++) put (own, t, i, value (b->me, i));
  bool good = run_one (b, OP_ALL_GATHER, (struct op_coll) { .in = in_place ? NULL : b->buf[0], .out = b->buf[1], .count = count, .t = t });
  for (int64_t i = 0; i < b->n * count; i++) {
    put (want, t, 0, value ((int) (i / count), i % count));
    good &= !memcmp (want, at_elem (out, i, t), (size_t) dtype_size (t));
  }
  return good;
}

/* beta: out is an accumulator; alias: out is the own piece of in. */
static bool scatter_case (struct bed *b, enum dtype it, enum dtype t, enum dtype ot, int64_t count, bool accumulate, bool alias)
{
  char *in = cpu_at (b->buf[0]), *out = alias ? at_elem (in, b->me * count, it) : cpu_at (b->buf[1]), want[16];
  for (int64_t i = 0; i < b->n * count; i++) put (in, it, i, fine (b->me, i));
  if (!alias) for (int64_t i = 0; i < count; i++) put (out, ot, i, value (9, i));
  bool good = run_one (b, OP_REDUCE_SCATTER, (struct op_coll) { .in = b->buf[0], .out = alias ? at_elem (b->buf[0], b->me * count, it) : b->buf[1],
                       .count = count, .t = t, .it = it, .ot = ot, .beta = accumulate });
  for (int64_t i = 0; i < count; i++) {
    double s = sum_of (b->n, b->me * count + i, it, t, false);
    if (accumulate) s = t == DT_F64 ? value (9, i) + s : (float) value (9, i) + (float) s;
    put (want, ot, 0, s);
    good &= !memcmp (want, at_elem (out, i, ot), (size_t) dtype_size (ot));
  }
  return good;
}

/* it: the buffers' type; shares, and the sums of large ones, are rounded to t on the wire. */
static bool reduce_case (struct bed *b, enum dtype it, enum dtype t, int64_t count, bool max, bool in_place)
{
  char *in = cpu_at (b->buf[in_place ? 1 : 0]), *out = cpu_at (b->buf[1]), want[16];
  for (int64_t i = 0; i < count; i++) put (in, it, i, fine (b->me, i));
  put (out, it, count, 77);
  bool good = run_one (b, OP_ALL_REDUCE, (struct op_coll) { .in = in_place ? NULL : b->buf[0], .out = b->buf[1], .count = count, .t = t, .it = it, .max = max });
  for (int64_t i = 0; i < count; i++) {
    double sum = sum_of (b->n, i, it, t, max);
    put (want, it, 0, count * dtype_size (t) <= 1024 || b->n == 1 ? sum : as_wire (sum, t));
    good &= !memcmp (want, at_elem (out, i, it), (size_t) dtype_size (it));
  }
  put (want, it, 0, 77);   /* nothing beyond the end was written */
  return good && !memcmp (want, at_elem (out, count, it), (size_t) dtype_size (it));
}

/* The bytes of a broadcast are a mean over the ranks: only their sum can be held against MPI. */
static bool broadcast_case (struct bed *b, enum dtype t, int64_t count, int root)
{
  char *out = cpu_at (b->buf[1]), want[16];
  int64_t before = sent, mine[2], all[2];
  for (int64_t i = 0; i < count; i++) put (out, t, i, value (b->me, i));
  bool good = run_one (b, OP_BROADCAST, (struct op_coll) { .out = b->buf[1], .count = count, .t = t, .root = root });
  for (int64_t i = 0; i < count; i++) {
    put (want, t, 0, value (root, i));
    good &= !memcmp (want, at_elem (out, i, t), (size_t) dtype_size (t));
  }
  mine[0] = sent - before;
  mine[1] = coll_bytes (OP_BROADCAST, b->n, count, dtype_size (t));
  MPI_Allreduce (mine, all, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return good && all[0] <= all[1] && all[1] - all[0] < b->n * size;
}

static int64_t pair_count (int from, int to, int64_t base) { return (from * 5 + to * 3) % 4 * base; }

static bool to_all_case (struct bed *b, enum dtype t, int64_t base, bool uneven)
{
  int64_t sc[64], rc[64], k = 0, want_bytes = 0;
  char *in = cpu_at (b->buf[0]), *out = cpu_at (b->buf[1]), want[16];
  for (int r = 0; r < b->n; r++) {
    sc[r] = uneven ? pair_count (b->me, r, base) : base;
    rc[r] = uneven ? pair_count (r, b->me, base) : base;
    for (int64_t i = 0; i < sc[r]; i++) put (in, t, k++, value (b->me, 1000 * r + i));
    if (r != b->me) want_bytes += sc[r] * dtype_size (t);
  }
  int64_t before = sent, stat = group_stat (b->g, OP_ALL_TO_ALL)->bytes;
  dev_op (&b->d, b->cq, OP_ALL_TO_ALL, coll, .g = b->g, .in = b->buf[0], .out = b->buf[1], .count = base, .t = t,
          .send_count = uneven ? sc : NULL, .recv_count = uneven ? rc : NULL);
  settle (b);
  bool good = sent - before == want_bytes && group_stat (b->g, OP_ALL_TO_ALL)->bytes - stat == want_bytes;
  k = 0;
  for (int r = 0; r < b->n; r++)
    for (int64_t i = 0; i < rc[r]; i++, k++) {
      put (want, t, 0, value (r, 1000 * b->me + i));
      good &= !memcmp (want, at_elem (out, k, t), (size_t) dtype_size (t));
    }
  return good;
}

static const enum dtype types[] = { DT_F32, DT_BF16, DT_F64 };
static const int64_t counts[] = { 1, 7, 100, 1023, 4097 };

static void all_kinds (struct bed *b, const char *how)
{
  bool gather = true, scatter = true, mixed = true, reduce = true, max = true, cast = true, to_all = true, wire = true;
  for (int i = 0; i < LEN (types); i++)
    for (int j = 0; j < LEN (counts); j++) {
      enum dtype t = types[i];
      int64_t n = counts[j];
      gather &= gather_case (b, t, n, false) & gather_case (b, t, n, true);
      scatter &= scatter_case (b, t, t, t, n, false, false) & scatter_case (b, t, t, t, n, true, false) & scatter_case (b, t, t, t, n, false, true);
      reduce &= reduce_case (b, t, t, n, false, false) & reduce_case (b, t, t, n, false, true);
      max &= reduce_case (b, t, t, n, true, false) & reduce_case (b, t, t, n, true, true);
      cast &= broadcast_case (b, t, n, (int) n % b->n);
      to_all &= to_all_case (b, t, n, false) & to_all_case (b, t, n, true);
    }
  for (int j = 0; j < LEN (counts); j++)
    for (int m = 0; m < 8; m++) {
      enum dtype it = m & 1 ? DT_F32 : DT_BF16, t = m & 2 ? DT_F32 : DT_BF16, ot = m & 4 ? DT_F32 : DT_BF16;
      mixed &= scatter_case (b, it, t, ot, counts[j], false, false) & scatter_case (b, it, t, ot, counts[j], true, false);
    }
  for (int j = 0; j < LEN (counts); j++)
    wire &= reduce_case (b, DT_F32, DT_BF16, counts[j], false, false) & reduce_case (b, DT_F32, DT_BF16, counts[j], false, true)
            & reduce_case (b, DT_BF16, DT_F32, counts[j], false, false) & reduce_case (b, DT_F32, DT_BF16, counts[j], true, true);
  tap_ok (wire, "%s: all-reduce with another type on the wire", how);
  tap_ok (gather, "%s: all-gather", how);
  tap_ok (scatter, "%s: reduce-scatter", how);
  tap_ok (mixed, "%s: reduce-scatter with other types in, on the wire and out", how);
  tap_ok (reduce, "%s: all-reduce", how);
  tap_ok (max, "%s: maximum", how);
  tap_ok (cast, "%s: broadcast", how);
  tap_ok (to_all, "%s: all-to-all", how);
}

static void collectives (void)
{
  static const struct { const char *how; struct dev_conf c; int64_t stage; } way[] = {
    { "whole", { .threads = 1 }, 4 << 20 }, { "two threads", { .threads = 2 }, 4 << 20 }, { "cut at 250", { .threads = 1, .comm_chunk = 250 }, 4 << 20 },
    { "cut at 3", { .threads = 1, .comm_chunk = 3 }, 4 << 20 }, { "synchronous", { .threads = 1, .sync_send = true }, 4 << 20 },
  };
  for (int i = 0; i < LEN (way); i++) {
    struct bed b = { 0 };
    if (i == 3 && size > 3) continue;   /* many messages */
    synchronous = 0;
    bed_open (&b, &way[i].c, size, rank, NULL, way[i].stage);
    all_kinds (&b, way[i].how);
    tap_ok (way[i].c.sync_send ? size == 1 || synchronous : !synchronous, "%s: sends are of the kind asked for", way[i].how);
    bed_close (&b);
  }
}

/* A value that is no number must not get lost in a maximum or a sum, whichever rank has it. */
static void not_numbers (void)
{
  struct bed b = { 0 };
  bool good = true;
  bed_open (&b, &(struct dev_conf) { .threads = 1 }, size, rank, NULL, 4 << 20);
  for (int bad = 0; bad < size; bad++)
    for (int max = 0; max < 2; max++) {
      float *x = cpu_at (b.buf[0]);
      for (int i = 0; i < 2000; i++) x[i] = rank == bad && i % 2 ? NAN : -INFINITY;
      run_one (&b, OP_ALL_REDUCE, (struct op_coll) { .out = b.buf[0], .count = 2000, .t = DT_F32, .max = max });
      for (int i = 0; i < 2000; i++) good &= i % 2 ? isnan (x[i]) : isinf (x[i]);
    }
  tap_ok (good, "NaN and infinity pass through sums and maxima");
  bed_close (&b);
}

int main (int argc, char **argv)
{
  bed_begin (&argc, &argv);
  collectives ();
  not_numbers ();
  bed_end ();
  return 0;
}
