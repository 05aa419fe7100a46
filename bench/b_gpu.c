/* Kernels of the cuda device at the shapes of real models: checks (tensors of more than 2^31 elements: the last row must be what
   it is alone), then times. One line an operation (of all, or with an argument of those that have it in their name):
   microseconds, GB/s counting each byte once that must be read or written, and the ratio to a copy measured in the same run. */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dev.h"
#include "mesh.h"

static struct dev D;
static struct queue *Q;
static char *arena;
static int64_t used, work_bytes;
#define ARENA ((int64_t) 24 << 30)
static int failed;

static void *take (int64_t n, enum dtype t)
{
  char *p = arena + used;
  used += round_up (n * dtype_size (t), 256);
  must (used <= ARENA, "the arena is too small");
  return p;
}

static void issue (const struct op *o) { dev_issue (&D, Q, o); }
#define OP(KIND, field, ...) issue (&(struct op) { .kind = KIND, .field = { __VA_ARGS__ } })

/* Normal numbers, made of a block of them again and again. */
static void *noise (int64_t n, enum dtype t)
{
  static float *f;
  const int64_t block = (1 << 24) + 8;
  if (!f) {
    f = take (block, DT_F32);
    OP (OP_INIT, init, .dst = f, .n = block, .cols = block, .rows = 1, .gcols = block, .normal = true, .std = 1, .seed = 1);
  }
  void *p = take (n, t);
  for (int64_t i = 0; i < n; i += block)
    OP (OP_AXPBY, axpby, .y = at_elem (p, i, t), .x = f, .n = MIN (block, n - i), .yt = t, .alpha = 1);
  return p;
}

static int64_t distinct;   /* of the last ids */

/* Ids below `rows`: uniform, or as frequent as words are (Zipf's law). */
static int32_t *ids (int64_t n, int64_t rows, bool zipf)
{
  int32_t *p = take (n, DT_I32), *h = xalloc ((size_t) n * sizeof *h, "ids");
  bool *has = xalloc ((size_t) rows, "ids");
  uint64_t s = 7;
  for (int64_t i = 0; i < n; i++) {
    s = s * 6364136223846793005u + 1442695040888963407u;
    double u = (double) (s >> 11) * 0x1p-53;
    h[i] = (int32_t) (zipf ? pow ((double) rows, u) - 1 : u * (double) rows);
    has[h[i]] = true;
  }
  dev_put (&D, Q, p, h, n * 4);
  distinct = 0;
  for (int64_t i = 0; i < rows; i++) distinct += has[i];
  xfree (has);
  xfree (h);
  return p;
}

/* ---- checks beyond 2^31 elements ---- */

static void check (bool ok, const char *what)
{
  printf ("%s %s\n", ok ? "right" : "WRONG", what);
  if (!ok) failed = 1;
}

static bool same (const void *a, const void *b, int64_t bytes)
{
  char *x = xalloc ((size_t) bytes, "check"), *y = xalloc ((size_t) bytes, "check");
  dev_get (&D, Q, x, a, bytes);
  dev_get (&D, Q, y, b, bytes);
  bool ok = !memcmp (x, y, (size_t) bytes);
  xfree (x);
  xfree (y);
  return ok;
}

static void check_flat (int64_t n)
{
  int64_t mark = used;
  bf16 *x = noise (n, DT_BF16), *y = take (n, DT_BF16);
  double *acc = take (2, DT_F64), a[2];
  float *max = take (1, DT_F32), m;
  OP (OP_AXPBY, axpby, .y = y, .x = x, .n = n, .yt = DT_BF16, .xt = DT_BF16, .alpha = 1);
  check (same (x, y, 1 << 20) && same (x + n - 5000, y + n - 5000, 10000), "axpby of more than 2^31 elements");
  OP (OP_AXPBY, axpby, .y = x + n - 1, .x = x + n - 1, .n = 1, .yt = DT_BF16, .xt = DT_BF16, .alpha = 0);
  OP (OP_AXPBY, axpby, .y = x + n - 1, .x = y, .n = 1, .yt = DT_BF16, .xt = DT_BF16, .alpha = INFINITY);
  OP (OP_ZERO, zero, .dst = acc, .bytes = 16);
  OP (OP_SUMSQ, sumsq, .x = x, .n = n, .t = DT_BF16, .acc = acc);
  dev_get (&D, Q, a, acc, 16);
  check (a[1] == 1, "sum of squares sees the last of more than 2^31 elements");
  OP (OP_AMAX, amax, .x = x, .n = n, .t = DT_BF16, .dst = max);
  dev_get (&D, Q, &m, max, 4);
  check (isinf (m), "amax sees the last of more than 2^31 elements");
  used = mark;
}

/* The last of `rows` rows in one call and the same row by itself. */
static void check_rows (void)
{
  int64_t mark = used, rows = 75000, f = 14336, vocab = 128256, n = 16760, dim = 32768, vecs = 66000;
  char *x = noise (rows * 2 * f, DT_BF16), *y = take (rows * f, DT_BF16), *z = take (f, DT_BF16);
  OP (OP_SWIGLU, swiglu, .n = rows, .f = f, .gu = x, .out = y, .t = DT_BF16);
  OP (OP_SWIGLU, swiglu, .n = 1, .f = f, .gu = x + (rows - 1) * 4 * f, .out = z, .t = DT_BF16);
  check (same (y + (rows - 1) * 2 * f, z, 2 * f), "swiglu of more than 2^31 elements");
  float *w = noise (dim, DT_F32), *rstd = take (vecs, DT_F32), *one = take (1, DT_F32);
  used = y - arena;
  y = take (vecs * dim, DT_BF16);
  w = noise (dim, DT_F32), rstd = take (vecs, DT_F32), one = take (1, DT_F32), z = take (dim, DT_BF16);
  OP (OP_NORM, norm, .rows = vecs, .inner = 1, .dim = dim, .x = x, .w = w, .y = y, .rstd = rstd, .eps = 1e-5f, .t = DT_BF16);
  OP (OP_NORM, norm, .rows = 1, .inner = 1, .dim = dim, .x = x + (vecs - 1) * dim * 2, .w = w, .y = z, .rstd = one, .eps = 1e-5f,
    .t = DT_BF16);
  check (same (y + (vecs - 1) * dim * 2, z, dim * 2) && same (rstd + vecs - 1, one, 4), "norm of more than 2^31 elements");
  used = y - arena;
  float *max = take (n, DT_F32), *st = take (2 * n, DT_F32);
  int32_t *target = ids (n, vocab, false);
  struct op_xent o = { .n = n, .ld = vocab, .cols = vocab - 100, .logits = x, .target = target, .max = max, .st = st,
    .grad = true, .t = DT_BF16 }, l = o;
  z = take (vocab, DT_BF16);
  OP (OP_COPY, copy, .dst = z, .src = x + (n - 1) * vocab * 2, .bytes = vocab * 2);
  l.n = 1;
  l.logits = z;
  l.target += n - 1;
  l.max = take (1, DT_F32);
  l.st = take (2, DT_F32);
  for (int k = OP_XENT_MAX; k <= OP_XENT_GRAD; k++) {
    issue (&(struct op) { .kind = k, .xent = o });
    issue (&(struct op) { .kind = k, .xent = l });
  }
  check (same (x + (n - 1) * vocab * 2, z, vocab * 2) && same (max + n - 1, l.max, 4), "loss of more than 2^31 logits");
  used = mark;
}

/* ---- times ---- */

static double copy_rate;
static const char *only = "";   /* time what has this in its name */

static int by_size (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* Of one launch: the median of five rows of launches. */
static double seconds (const struct op *o)
{
  struct event *ev = D.ops->event_open (&D);
  double times[5];
  for (int r = -1, n = 3; r < 5; r++) {
    D.ops->drain (&D);
    double t = now ();
    for (int i = 0; i < n; i++) issue (o);
    D.ops->record (&D, Q, ev);
    D.ops->sync (&D, ev);
    t = (now () - t) / n;
    if (r < 0) n = (int) MAX (5, MIN (500, 0.02 / t));
    else times[r] = t;
  }
  D.ops->event_close (&D, ev);
  qsort (times, LEN (times), sizeof *times, by_size);
  return times[2];
}

static void time_op (const char *what, double bytes, const struct op *o)
{
  if (copy_rate && !strstr (what, only)) return;
  double t = seconds (o), rate = bytes / t;
  if (!copy_rate) copy_rate = rate;
  printf ("%-58s %9.1f us %7.0f GB/s %5.2f\n", what, 1e6 * t, rate / 1e9, rate / copy_rate);
  fflush (stdout);
}
#define TIME(what, bytes, KIND, field, ...) time_op (what, (double) (bytes), \
  &(struct op) { .kind = KIND, .field = { __VA_ARGS__ } })

static void time_elements (void)
{
  int64_t mark = used, n = 100000000, m = 16384 * 4096;
  struct step_vars v = { .lr = 1e-4, .clip = 1, .sumsq = 1, .tokens = 10, .scale = 0.1, .b1t = 0.9, .b2t = 0.95 };
  float *a = noise (n, DT_F32), *b = noise (n, DT_F32), *c = noise (n, DT_F32), *g = noise (n, DT_F32), *f = take (1, DT_F32);
  bf16 *h = noise (n, DT_BF16), *w = noise (n, DT_BF16);
  double *acc = take (2, DT_F64);
  struct step_vars *vars = take (sizeof v, DT_U8);
  dev_put (&D, Q, vars, &v, sizeof v);
  TIME ("axpby bf16 y = x + y, 67M", 6 * m, OP_AXPBY, axpby, .y = w, .x = h, .n = m, .yt = DT_BF16, .xt = DT_BF16, .alpha = 0.5f,
    .beta = 0.5f);
  TIME ("axpby fp32 to bf16, 100M", 6 * n, OP_AXPBY, axpby, .y = w, .x = a, .n = n, .yt = DT_BF16, .alpha = 1);
  TIME ("axpby fp32 += bf16, 100M", 10 * n, OP_AXPBY, axpby, .y = a, .x = h, .n = n, .xt = DT_BF16, .alpha = 0.1f, .beta = 0.5f);
  TIME ("amax bf16, 100M", 2 * n, OP_AMAX, amax, .x = h, .n = n, .t = DT_BF16, .dst = f);
  TIME ("sum of squares bf16, 100M", 2 * n, OP_SUMSQ, sumsq, .x = h, .n = n, .t = DT_BF16, .weight = 1, .acc = acc);
  TIME ("sum of squares fp32, 100M", 4 * n, OP_SUMSQ, sumsq, .x = a, .n = n, .weight = 1, .acc = acc);
  OP (OP_AXPBY, axpby, .y = c, .x = c, .n = n, .alpha = 0);
  TIME ("adamw 100M, gradients bf16, weights bf16", 28 * n, OP_ADAMW, adamw, .n = n, .master = a, .m = b, .v = c, .grad = h,
    .weight = w, .vars = vars, .beta1 = 0.9, .beta2 = 0.95,
        .eps = 1e-8, .decay = 0.1, .gt = DT_BF16, .wt = DT_BF16);
  TIME ("adamw 100M, gradients fp32, weights bf16", 30 * n, OP_ADAMW, adamw, .n = n, .master = a, .m = b, .v = c, .grad = g,
    .weight = w, .vars = vars, .beta1 = 0.9, .beta2 = 0.95,
        .eps = 1e-8, .decay = 0.1, .wt = DT_BF16);
  TIME ("init 100M", 4 * n, OP_INIT, init, .dst = a, .n = n, .cols = 4096, .rows = n, .gcols = 4096, .normal = true, .std = 1,
    .seed = 1);
  used = mark;
}

static void time_rows (int64_t n, int64_t dim, int64_t f, int64_t heads, int64_t kv)
{
  char what[100];
  int64_t mark = used, all = n * dim, hd = 128, qkv = (heads + 2 * kv) * hd;
  bf16 *x = noise (all, DT_BF16), *r = noise (all, DT_BF16), *y = noise (all, DT_BF16), *z = noise (all, DT_BF16),
    *w = noise (dim, DT_BF16), *gu = noise (2 * n * f, DT_BF16),
    *dgu = noise (2 * n * f, DT_BF16), *act = noise (n * f, DT_BF16), *out = noise (n * f, DT_BF16),
    *q = noise (n * qkv, DT_BF16);
  float *rstd = noise (n * heads, DT_F32), *dw = take (MAX (dim, qkv), DT_F32), *table = noise (4096 * hd, DT_F32);
#define SAY(...) (snprintf (what, sizeof what, __VA_ARGS__), what)
  TIME (SAY ("norm %d x %d", (int) n, (int) dim), 4 * all, OP_NORM, norm, .rows = n, .inner = 1, .dim = dim, .x = x, .w = w,
    .y = y, .rstd = rstd, .eps = 1e-5f, .t = DT_BF16, .wt = DT_BF16);
  TIME (SAY ("norm with residual %d x %d", (int) n, (int) dim), 8 * all, OP_NORM, norm, .rows = n, .inner = 1, .dim = dim,
    .x = x, .res = r, .sum = z, .w = w, .y = y, .rstd = rstd,
        .eps = 1e-5f, .t = DT_BF16, .wt = DT_BF16);
  TIME (SAY ("norm backward %d x %d", (int) n, (int) dim), 6 * all, OP_NORM_BWD, norm_bwd, .rows = n, .inner = 1, .dim = dim,
    .dy = y, .x = x, .w = w, .rstd = rstd, .dx = z, .dw = dw,
        .t = DT_BF16, .wt = DT_BF16);
  TIME (SAY ("norm backward with residual %d x %d", (int) n, (int) dim), 8 * all, OP_NORM_BWD, norm_bwd, .rows = n, .inner = 1,
    .dim = dim, .dy = y, .x = x, .w = w, .dres = r, .rstd = rstd,
        .dx = z, .dw = dw, .t = DT_BF16, .wt = DT_BF16);
  TIME (SAY ("norm of heads %d x %d x 128", (int) n, (int) heads), 4 * n * heads * hd, OP_NORM, norm, .rows = n, .inner = heads,
    .dim = hd, .x_stride = qkv, .y_stride = qkv, .x = q, .w = w,
        .y = q, .rstd = rstd, .eps = 1e-5f, .t = DT_BF16, .wt = DT_BF16);
  TIME (SAY ("norm backward of heads %d x %d x 128", (int) n, (int) heads), 6 * n * heads * hd, OP_NORM_BWD, norm_bwd, .rows = n,
    .inner = heads, .dim = hd, .x_stride = qkv, .y_stride = qkv,
        .dx_stride = qkv, .dy = q, .x = q, .w = w, .rstd = rstd, .dx = gu, .dw = dw, .t = DT_BF16, .wt = DT_BF16);
  TIME (SAY ("rope %d x %d x 128", (int) n, (int) (heads + kv)), 4 * n * (heads + kv) * hd, OP_ROPE, rope, .x = q, .n = n,
    .heads = heads + kv, .head_dim = hd, .stride = qkv, .seq = 4096,
        .table = table, .t = DT_BF16);
  TIME (SAY ("swiglu %d x %d", (int) n, (int) f), 6 * n * f, OP_SWIGLU, swiglu, .n = n, .f = f, .gu = gu, .out = act,
    .t = DT_BF16);
  TIME (SAY ("swiglu backward %d x %d", (int) n, (int) f), 10 * n * f, OP_SWIGLU_BWD, swiglu_bwd, .n = n, .f = f, .gu = gu,
    .d_out = act, .dgu = dgu, .t = DT_BF16);
  TIME (SAY ("swiglu backward and forward %d x %d", (int) n, (int) f), 12 * n * f, OP_SWIGLU_BWD, swiglu_bwd, .n = n, .f = f,
    .gu = gu, .d_out = act, .dgu = dgu, .out = out, .t = DT_BF16);
  TIME (SAY ("column sum %d x %d", (int) n, (int) qkv), 2 * n * qkv, OP_COLSUM, colsum, .rows = n, .cols = qkv, .x = q,
    .dst = dw, .t = DT_BF16);
  used = mark;
}

static void time_vocab (int64_t n, int64_t dim, int64_t rows, int64_t chunk)
{
  char what[100];
  int64_t mark = used, all = n * dim;
  int32_t *work = take (2 * n + 2 * rows + 2, DT_I32), *one = ids (n, 1, false), *any = ids (n, rows, false);
  int64_t any_rows = distinct;
  int32_t *word = ids (n, rows, true);
  bf16 *table = noise (rows * dim, DT_BF16), *x = noise (all, DT_BF16), *dh = noise (rows * dim, DT_BF16);
  float *d = noise (rows * dim, DT_F32);
  TIME (SAY ("embedding %d x %d", (int) n, (int) dim), 4 * all, OP_EMBED, embed, .n = n, .dim = dim, .rows = rows, .ids = any,
    .table = table, .out = x, .t = DT_BF16);
#define BWD(name, which, bytes, to, type, b) TIME (SAY ("embedding backward %d x %d, %s", (int) n, (int) dim, name), bytes, \
  OP_EMBED_BWD, embed_bwd, .n = n, .dim = dim, .rows = rows, \
    .ids = which, .dy = x, .dtable = to, .beta = b, .work = work, .t = DT_BF16, .gt = type)
  BWD ("words, to fp32", word, 2 * all + 4 * rows * dim, d, DT_F32, 0);
  BWD ("words, to bf16", word, 2 * all + 2 * rows * dim, dh, DT_BF16, 0);
  BWD ("words, added to fp32", word, 2 * all + 8 * distinct * dim, d, DT_F32, 1);
  BWD ("any id, added to fp32", any, 2 * all + 8 * any_rows * dim, d, DT_F32, 1);
  BWD ("one id, added to fp32", one, 2 * all, d, DT_F32, 1);
  used = mark;
  bf16 *logits = noise (chunk * rows, DT_BF16);
  float *max = take (chunk, DT_F32), *st = take (2 * chunk, DT_F32);
  struct op_xent o = { .n = chunk, .ld = rows, .cols = rows, .logits = logits, .target = ids (chunk, rows, false), .max = max,
    .st = st, .acc = take (2, DT_F64), .grad = true, .t = DT_BF16 };
  static const char *const name[] = { "loss max", "loss sum", "loss gradient" };
  for (int k = 0; k < 3; k++)
    time_op (SAY ("%s %d x %d", name[k], (int) chunk, (int) rows), (double) (k == 2 ? 4 : 2) * (double) chunk * (double) rows,
      &(struct op) { .kind = OP_XENT_MAX + k, .xent = o });
  used = mark;
}

/* ---- 8 bits: quantising, and the three products of a linear layer beside the same in bf16 ---- */

static void time_quant (int64_t n, int64_t w, enum dtype to)
{
  char what[100];
  int64_t mark = used;
  bf16 *x = noise (n * w, DT_BF16);
  uint8_t *q = take (n * w, DT_U8), *qt = take (n * w, DT_U8);
  float *s = take (8, DT_F32);
  OP (OP_AMAX, amax, .x = x, .n = n * w, .t = DT_BF16, .dst = s);
  TIME (SAY ("quantise %s %d x %d, as it lies and turned", dtype_name (to), (int) n, (int) w), 4 * n * w, OP_QUANT, quant, .rows = n, .cols = w, .x = x, .q = q, .qt = qt,
        .s = s, .t = DT_BF16, .to = to);
  TIME (SAY ("quantise %s %d x %d, turned", dtype_name (to), (int) n, (int) w), 3 * n * w, OP_QUANT, quant, .rows = n, .cols = w, .x = x, .qt = qt, .s = s, .t = DT_BF16,
        .to = to);
  used = mark;
}

/* C [m,n] over k in bf16 and in 8 bits, of noise both times: TFLOP/s of each and the ratio. Operand A is e5m2 where it is a gradient. */
static void time_product (const char *what, int64_t m, int64_t n, int64_t k, enum dtype at, enum dtype ct, bool ta, bool tb)
{
  int64_t mark = used;
  if (!strstr (what, only)) return;
  bf16 *a = noise (m * k, DT_BF16), *b = noise (n * k, DT_BF16);
  uint8_t *qa = take (m * k, DT_U8), *qb = take (n * k, DT_U8);
  void *c = take (m * n, ct);
  float *s = take (16, DT_F32);
  OP (OP_AMAX, amax, .x = a, .n = m * k, .t = DT_BF16, .dst = s);
  OP (OP_AMAX, amax, .x = b, .n = n * k, .t = DT_BF16, .dst = s + 8);
  OP (OP_QUANT, quant, .rows = m, .cols = k, .x = a, .q = qa, .s = s, .t = DT_BF16, .to = at);
  OP (OP_QUANT, quant, .rows = n, .cols = k, .x = b, .q = qb, .s = s + 8, .t = DT_BF16, .to = DT_E4M3);
  double flop = 2e-12 * (double) m * (double) n * (double) k;
  double wide = flop / seconds (&(struct op) { .kind = OP_GEMM, .gemm = { .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ab = DT_BF16, .ct = ct, .ta = ta, .tb = tb } });
  double eight = flop / seconds (&(struct op) { .kind = OP_GEMM_FP8, .gemm_fp8 = { .m = m, .n = n, .k = k, .a = qa, .b = qb, .a_unit = s + OP_UNIT, .b_unit = s + 8 + OP_UNIT, .c = c, .at = at,
    .bt = DT_E4M3, .ct = ct } });
  printf ("%-24s %6lld x %6lld x %6lld: bf16 %5.0f, 8 bits %5.0f TFLOP/s, %.2f\n", what, (long long) m, (long long) n, (long long) k, wide, eight, eight / wide);
  fflush (stdout);
  used = mark;
}

static void time_linear (int64_t n, int64_t in, int64_t out, enum dtype gt)
{
  time_product ("product forward", n, out, in, DT_E4M3, DT_BF16, false, true);
  time_product ("product by input", n, in, out, DT_E5M2, DT_BF16, false, false);
  time_product ("product by weight", out, in, n, DT_E5M2, gt, true, false);
}

int main (int argc, char **argv)
{
  struct err e = {};
  struct dev_conf conf = { .local_size = 1 };
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  if (argc > 1) only = argv[1];
  base_rank (0, 1, NULL);
  wait_init (1);
  must (!dev_open (&D, "cuda", &conf, &e), "%s", e.msg);
  work_bytes = D.ops->limits->queue_work;
  arena = dev_reserve (&D, MEM_ACT, SPACE_DEVICE, ARENA, &e);
  void *work = dev_reserve (&D, MEM_WORK, SPACE_DEVICE, work_bytes, &e);
  must (arena && work, "%s", e.msg);
  Q = D.ops->queue_open (&D, QUEUE_COMPUTE, "bench", work, work_bytes);
  noise (1, DT_F32);
  if (!*only) {
    check_flat (((int64_t) 1 << 31) + 12347);
    check_rows ();
  }
  TIME ("copy 2 GB", 4e9, OP_COPY, copy, .dst = arena + used, .src = arena + used + 2000000256, .bytes = 2000000000);
  time_elements ();
  time_rows (16384, 4096, 14336, 32, 8);
  time_rows (32768, 768, 2048, 6, 6);
  time_vocab (16384, 4096, 128256, 4096);
  time_vocab (32768, 768, 50304, 8192);
  time_quant (16384, 4096, DT_E4M3);
  time_quant (16384, 14336, DT_E4M3);
  time_quant (16384, 28672, DT_E5M2);
  time_linear (16384, 4096, 6144, DT_F32);
  time_linear (16384, 4096, 4096, DT_F32);
  time_linear (16384, 4096, 28672, DT_F32);
  time_linear (16384, 14336, 4096, DT_F32);
  time_linear (32768, 768, 4096, DT_F32);
  D.ops->queue_close (&D, Q);
  dev_release (&D, MEM_ACT, SPACE_DEVICE, arena, ARENA);
  dev_release (&D, MEM_WORK, SPACE_DEVICE, work, work_bytes);
  dev_close (&D);
  MPI_Finalize ();
  return failed;
}
