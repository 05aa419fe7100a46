/* Every operation of the cpu device against a plain binary64 computation. np: 1

   The tables below belong to the test: it stands in for the device, and hands out addresses of an inaccessible range as the device does. */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "dev_cpu.h"
#include "tap.h"

uintptr_t cpu_base, cpu_span, cpu_delta;
int cpu_threads = 1;
static int64_t polls;
void cpu_poll (void) { polls++; }

#define SPAN ((size_t) 512 << 20)
static size_t used;

static void device_open (void)
{
  char *hidden = mmap (NULL, SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *bytes = mmap (NULL, SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  cpu_base = (uintptr_t) hidden;
  cpu_span = SPAN;
  cpu_delta = (uintptr_t) bytes - cpu_base;
}

/* ---- tensors ---- */
static uint64_t seed = 1;
static double uniform (void)   /* [-1, 1) */
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double) (int64_t) seed * 0x1p-63;
}

/* n elements of type t on the device, red zones of NaN bytes around them. */
static void *tensor (int64_t n, enum dtype t)
{
  size_t bytes = (size_t) round_up (n * dtype_size (t) + 256, 64);
  char *p = (char *) cpu_base + used;
  used += bytes;
  if (used > SPAN) { fprintf (stderr, "test memory is too small\n"); exit (1); }
  memset (cpu_at (p), 0xff, bytes);
  return p + 64;
}
static double get (const void *p, int64_t i, enum dtype t)
{
  const void *h = cpu_at (p);
  return t == DT_F64 ? ((const double *) h)[i] : t == DT_I32 ? ((const int32_t *) h)[i] : t == DT_F32 ? ((const float *) h)[i] : bf16_to_f32 (((const bf16 *) h)[i]);
}
static void set (void *p, int64_t i, enum dtype t, double x)
{
  void *h = cpu_at (p);
  if (t == DT_F64) ((double *) h)[i] = x;
  else if (t == DT_I32) ((int32_t *) h)[i] = (int32_t) x;
  else if (t == DT_F32) ((float *) h)[i] = (float) x;
  else ((bf16 *) h)[i] = f32_to_bf16 ((float) x);
}
static void *filled (int64_t n, enum dtype t, double scale)
{
  void *p = tensor (n, t);
  for (int64_t i = 0; i < n; i++) set (p, i, t, scale * uniform ());
  return p;
}
static void *copy_of (const void *p, int64_t n, enum dtype t)
{
  void *q = tensor (n, t);
  memcpy (cpu_at (q), cpu_at (p), (size_t) (n * dtype_size (t)));
  return q;
}
static int same (const void *a, const void *b, int64_t n, enum dtype t) { return !memcmp (cpu_at (a), cpu_at (b), (size_t) (n * dtype_size (t))); }
static int zones (const void *p, int64_t n, enum dtype t)
{
  const unsigned char *h = cpu_at (p);
  for (int i = 1; i <= 64; i++) if (h[-i] != 0xff) return 0;
  for (int64_t i = n * dtype_size (t); i < n * dtype_size (t) + 64; i++) if (h[i] != 0xff) return 0;
  return 1;
}

static void run (const struct op *o) { cpu_maths[o->kind] (o); }
#define OP(KIND, field, ...) run (&(struct op) { .kind = KIND, .field = { __VA_ARGS__ } })

/* ---- what is close enough ---- */
static double round_to (double x, enum dtype t) { return t == DT_F32 ? (float) x : t == DT_BF16 ? bf16_to_f32 (f32_to_bf16 ((float) x)) : x; }

/* got[at[i]] (type t) against ref[i], i < n (at NULL: all). F32: RMS error within TOL of the RMS value. BF16: within `rounding` times what rounding the result costs,
   1.5 where nothing but inputs is rounded. */
static double rounding = 1.5;
static int close_at (const void *got, enum dtype t, const int64_t *at, const double *ref, int64_t n, double tol, const char *what)
{
  double err = 0, ideal = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    double e = get (got, at ? at[i] : i, t) - ref[i], r = round_to (ref[i], t) - ref[i];
    err += e * e;
    ideal += r * r;
    size += ref[i] * ref[i];
  }
  double bound = t == DT_BF16 ? rounding * sqrt (ideal) + 1e-6 * sqrt (size) : tol * sqrt (size) + 1e-30;
  int good = sqrt (err) <= bound;
  if (!good) fprintf (stderr, "# %s: error %g, bound %g, size %g\n", what, sqrt (err), bound, sqrt (size));
  return good;
}
static int close_to (const void *got, enum dtype t, const double *ref, int64_t n, const char *what) { return close_at (got, t, NULL, ref, n, 1e-6, what); }

/* Zeros, alive until the end of the test. */
static struct block { struct block *next; double x[]; } *blocks;
static double *doubles (int64_t n)
{
  struct block *b = calloc (1, sizeof *b + ((size_t) n + 1) * sizeof (double));
  b->next = blocks;
  blocks = b;
  return b->x;
}
static void forget (void)
{
  for (struct block *b; (b = blocks);) blocks = b->next, free (b);
  used = 0;
}
static double *values (const void *p, int64_t n, enum dtype t)
{
  double *v = doubles (n);
  for (int64_t i = 0; i < n; i++) v[i] = get (p, i, t);
  return v;
}

static const enum dtype types[] = { DT_F32, DT_BF16 };
#define EACH_TYPE(t) for (int t##_ = 0; t##_ < 2; t##_++) for (enum dtype t = types[t##_], t##1 = 1; t##1; t##1 = 0)

/* ---- memory ---- */
static void test_memory (void)
{
  int64_t n = 10007;
  char *a = filled (n, DT_F32, 1), *b = tensor (n, DT_F32);
  OP (OP_COPY, copy, .dst = b, .src = a, .bytes = n * 4);
  tap_ok (same (a, b, n, DT_F32) && zones (b, n, DT_F32), "copy");
  b = tensor (40 * 5, DT_U8);
  OP (OP_COPY, copy, .dst = b, .src = a, .bytes = 33, .rows = 5, .dst_pitch = 40, .src_pitch = 101);
  int good = 1;
  for (int r = 0; r < 5; r++) good &= !memcmp (cpu_at (b + r * 40), cpu_at (a + r * 101), 33) && ((unsigned char *) cpu_at (b))[r * 40 + 33] == 0xff;
  tap_ok (good, "copy with pitches");
  b = filled (n, DT_F32, 1);
  OP (OP_ZERO, zero, .dst = b + 4, .bytes = n * 4 - 8);
  good = get (b, 0, DT_F32) != 0 && get (b, n - 1, DT_F32) != 0;
  for (int64_t i = 1; i < n - 1; i++) good &= get (b, i, DT_F32) == 0;
  tap_ok (good, "zero");
}

static void test_axpby (void)
{
  int good = 1;
  EACH_TYPE (xt) EACH_TYPE (yt) for (int64_t n = 1; n < 10000; n = n * 7 + 3) for (int beta = 0; beta < 2; beta++) {
    void *x = filled (n, xt, 1), *y = beta ? filled (n, yt, 1) : tensor (n, yt);
    double *r = doubles (n);
    for (int64_t i = 0; i < n; i++) r[i] = 0.75 * get (x, i, xt) + (beta ? -1.5 * get (y, i, yt) : 0);
    OP (OP_AXPBY, axpby, .y = y, .x = x, .n = n, .yt = yt, .xt = xt, .alpha = 0.75f, .beta = beta ? -1.5f : 0);
    good &= close_to (y, yt, r, n, "axpby") && zones (y, n, yt);
  }
  tap_ok (good, "axpby: all types, beta 0 does not read y");
  void *b = tensor (4, DT_BF16), *f = tensor (4, DT_F32);
  ((uint32_t *) cpu_at (f))[0] = 0x7f800001;
  set (f, 1, DT_F32, 1.00390625), set (f, 2, DT_F32, 1.01171875), set (f, 3, DT_F32, 1e-40);
  OP (OP_AXPBY, axpby, .y = b, .x = f, .n = 4, .yt = DT_BF16, .xt = DT_F32, .alpha = 1);
  tap_ok (isnan (get (b, 0, DT_BF16)) && get (b, 1, DT_BF16) == 1 && get (b, 2, DT_BF16) == 1.015625 && get (b, 3, DT_BF16) > 0,
    "rounding to bf16: NaN stays, ties to even, denormals stay");
}

/* ---- matrix products ---- */
static double *gemm_ref (const struct op_gemm *g)
{
  double *r = doubles (g->m * g->ldc);
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = 0; j < g->n; j++) {
      double s = (g->beta != 0 ? get (g->c, i * g->ldc + j, g->ct) : 0) + (g->bias ? get (g->bias, j, g->ab) : 0);
      for (int64_t k = 0; k < g->k; k++)
        s += get (g->a, g->ta ? k * g->lda + i : i * g->lda + k, g->ab) * get (g->b, g->tb ? j * g->ldb + k : k * g->ldb + j, g->ab);
      r[i * g->ldc + j] = s;
    }
  return r;
}

static int gemm_case (int64_t m, int64_t n, int64_t k, int pad, bool ta, bool tb, bool beta, bool bias, enum dtype ab, enum dtype ct)
{
  struct op_gemm g = { m, n, k, (ta ? m : k) + pad, (tb ? k : n) + pad, n + pad, .ab = ab, .ct = ct, .ta = ta, .tb = tb, .beta = beta };
  g.a = filled ((ta ? k : m) * g.lda, ab, 1);
  g.b = filled ((tb ? n : k) * g.ldb, ab, 1);
  g.c = filled (m * g.ldc, ct, 1);
  g.bias = bias ? filled (n, ab, 1) : NULL;
  double *r = gemm_ref (&g);
  for (int64_t i = 0; i < m; i++) for (int64_t j = n; j < g.ldc; j++) r[i * g.ldc + j] = get (g.c, i * g.ldc + j, ct);
  if (!pad) g.lda = g.ldb = g.ldc = 0;
  run (&(struct op) { .kind = OP_GEMM, .gemm = g });
  return close_to (g.c, ct, r, m * (n + pad), "gemm") && zones (g.c, m * (n + pad), ct);
}

static void test_gemm (void)
{
  static const int64_t shape[][3] = { { 1, 1, 1 }, { 3, 5, 7 }, { 33, 65, 17 }, { 64, 48, 40 }, { 1, 100, 64 }, { 130, 1, 30 } };
  EACH_TYPE (ab) for (int ct = 0; ct <= (ab == DT_BF16); ct++) for (int tr = 0; tr < 4; tr++) {
    int good = 1;
    for (int s = 0; s < LEN (shape); s++) for (int v = 0; v < 8; v++)
      good &= gemm_case (shape[s][0], shape[s][1], shape[s][2], v & 1 ? 3 : 0, tr & 1, tr & 2, v & 2, v & 4, ab, ct ? DT_BF16 : DT_F32);
    tap_ok (good, "gemm %s -> %s%s%s", dtype_name (ab), ct ? "bf16" : "fp32", tr & 1 ? ", A transposed" : "", tr & 2 ? ", B transposed" : "");
  }
  int64_t before = polls;
  int good = gemm_case (700, 650, 1100, 0, true, false, true, false, DT_F32, DT_F32);
  tap_ok (good && polls - before > 1, "a long product is cut into slices");
}

static void test_grouped (void)
{
  EACH_TYPE (t) for (int tb = 0; tb < 2; tb++) {
    int64_t off[] = { 0, 5, 5, 310, 333 }, n = 40, k = 24, groups = 4;
    void *o = tensor (5, DT_I32), *a = filled (400 * k, t, 1), *b = filled (groups * n * k, t, 1), *c = tensor (333 * n, t);
    for (int i = 0; i < 5; i++) set (o, i, DT_I32, (double) off[i]);
    OP (OP_GEMM_GROUPED, grouped, .groups = groups, .max_rows = 400, .n = n, .k = k, .off = o, .a = a, .b = b, .c = c, .ab = t, .ct = t, .tb = tb);
    int good = zones (c, 333 * n, t);
    for (int g = 0; g < groups; g++) if (off[g + 1] > off[g]) {
      struct op_gemm one = { off[g + 1] - off[g], n, k, k, tb ? k : n, n, at_elem (a, off[g] * k, t), at_elem (b, g * n * k, t), .ab = t, .ct = t, .tb = tb };
      good &= close_to (at_elem (c, off[g] * n, t), t, gemm_ref (&one), one.m * n, "grouped");
    }
    tap_ok (good, "grouped gemm %s tb %d", dtype_name (t), tb);
  }
}

/* ---- norm ---- */
static double norm_loss (const double *s, const double *w, const double *dy, int64_t dim, double eps, double *y, double *rstd)
{
  double q = 0, loss = 0;
  for (int64_t i = 0; i < dim; i++) q += s[i] * s[i];
  double r = 1 / sqrt (q / (double) dim + eps);
  for (int64_t i = 0; i < dim; i++) {
    if (y) y[i] = s[i] * r * w[i];
    if (dy) loss += s[i] * r * w[i] * dy[i];
  }
  if (rstd) *rstd = r;
  return loss;
}

static void norm_case (int64_t rows, int64_t inner, int64_t dim, int pad, enum dtype t, enum dtype wt, bool res)
{
  int64_t dense = inner * dim, xs = dense + pad, ys = dense + 2 * pad, nx = rows * xs, ny = rows * ys;
  void *x = filled (nx, t, 2), *w = filled (dim, wt, 1), *y = filled (ny, t, 1), *rstd = tensor (rows * inner, DT_F32);
  void *add = res ? filled (nx, t, 2) : NULL, *sum = res ? filled (nx, t, 1) : NULL;
  double *want_y = values (y, ny, t), *want_r = doubles (rows * inner), *want_s = res ? values (sum, nx, t) : NULL, *wd = values (w, dim, wt), *s = doubles (dim);
  OP (OP_NORM, norm, .rows = rows, .inner = inner, .dim = dim, .x_stride = pad ? xs : 0, .y_stride = pad ? ys : 0, .x = x, .res = add, .w = w, .sum = sum, .y = y,
    .rstd = rstd, .eps = 1e-5f, .t = t, .wt = wt);
  for (int64_t r = 0; r < rows; r++) for (int64_t i = 0; i < inner; i++) {
    int64_t at = r * xs + i * dim;
    for (int64_t c = 0; c < dim; c++) {
      s[c] = get (x, at + c, t) + (res ? get (add, at + c, t) : 0);
      if (res) want_s[at + c] = s[c], s[c] = round_to (s[c], t);
    }
    norm_loss (s, wd, NULL, dim, 1e-5, want_y + r * ys + i * dim, want_r + r * inner + i);
  }
  tap_ok (close_to (y, t, want_y, ny, "y") && close_to (rstd, DT_F32, want_r, rows * inner, "rstd") && (!res || close_to (sum, t, want_s, nx, "sum")) && zones (y, ny, t),
    "norm %lld x %lld x %lld + %d, %s, w %s%s", (long long) rows, (long long) inner, (long long) dim, pad, dtype_name (t), dtype_name (wt), res ? ", residual" : "");
}

/* dx and dw by central differences of the binary64 forward. */
static void norm_bwd_case (int64_t rows, int64_t inner, int64_t dim, int pad, enum dtype t, enum dtype gt, bool res, float beta)
{
  int64_t dense = inner * dim, xs = dense + pad, ys = dense + 2 * pad, ds = dense + 3 * pad, nd = rows * ds;
  void *x = filled (rows * xs, t, 2), *w = filled (dim, t, 1), *dy = filled (rows * ys, t, 1), *dres = res ? filled (nd, t, 1) : NULL, *dw = filled (dim, gt, 1), *dx = filled (nd, t, 1);
  void *rstd = tensor (rows * inner, DT_F32), *dw2 = copy_of (dw, dim, gt), *dx2 = copy_of (dx, nd, t);
  double *want_dx = values (dx, nd, t), *want_dw = values (dw, dim, gt), *wd = values (w, dim, t), h = 1e-4;
  for (int64_t c = 0; c < dim; c++) want_dw[c] *= beta;
  for (int64_t r = 0; r < rows; r++) for (int64_t i = 0; i < inner; i++) {
    double *s = values (at_elem (x, r * xs + i * dim, t), dim, t), *g = values (at_elem (dy, r * ys + i * dim, t), dim, t), q;
    norm_loss (s, wd, NULL, dim, 1e-5, NULL, &q);
    set (rstd, r * inner + i, DT_F32, q);
    for (int64_t c = 0; c < dim; c++) {
      double keep = s[c], up, down;
      s[c] = keep + h, up = norm_loss (s, wd, g, dim, 1e-5, NULL, NULL);
      s[c] = keep - h, down = norm_loss (s, wd, g, dim, 1e-5, NULL, NULL);
      s[c] = keep;
      want_dx[r * ds + i * dim + c] = (up - down) / (2 * h) + (res ? get (dres, r * ds + i * dim + c, t) : 0);
      want_dw[c] += s[c] * q * g[c];
    }
  }
  struct op o = { .kind = OP_NORM_BWD, .norm_bwd = { .rows = rows, .inner = inner, .dim = dim, .x_stride = pad ? xs : 0, .y_stride = pad ? ys : 0, .dx_stride = pad ? ds : 0, .dy = dy, .x = x,
    .w = w, .dres = dres, .rstd = rstd, .dx = dx, .dw = dw, .dw_beta = beta, .t = t, .wt = t, .gt = gt } };
  run (&o);
  int good = close_at (dx, t, NULL, want_dx, nd, 2e-6, "dx") && close_to (dw, gt, want_dw, dim, "dw");
  o.norm_bwd.dw = dw2, o.norm_bwd.dx = dx2, cpu_threads = 2;
  run (&o);
  cpu_threads = 1;
  good &= same (dw, dw2, dim, gt) && same (dx, dx2, nd, t);
  tap_ok (good && zones (dx, nd, t) && zones (dw, dim, gt), "norm backward %lld x %lld x %lld + %d, %s, dw %s%s", (long long) rows, (long long) inner, (long long) dim, pad, dtype_name (t),
    dtype_name (gt), res ? ", residual" : "");
}

static void test_norm (void)
{
  EACH_TYPE (t) EACH_TYPE (wt) {
    norm_case (5, 1, 50, 0, t, wt, false);
    norm_case (3, 4, 24, 7, t, wt, false);
    norm_case (7, 1, 768, 0, t, wt, true);
    norm_case (1, 1, 1, 0, t, wt, false);
    norm_bwd_case (9, 1, 50, 0, t, wt, false, 0);
    norm_bwd_case (150, 3, 24, 5, t, wt, true, 1);
    norm_bwd_case (1, 1, 96, 0, t, wt, true, 0.5f);
  }
}

/* ---- rope ---- */
static float *rope_table (int64_t positions, int64_t dim)   /* as the caller makes it: binary64, rounded once */
{
  float *dev = tensor (positions * dim, DT_F32), *t = cpu_at (dev);
  for (int64_t p = 0; p < positions; p++) for (int64_t i = 0; i < dim / 2; i++) {
    double a = (double) p * pow (10000, -2.0 * (double) i / (double) dim);
    t[p * dim + i] = (float) cos (a);
    t[p * dim + dim / 2 + i] = (float) sin (a);
  }
  return dev;
}

static void rope_case (int64_t n, int64_t heads, int64_t dim, int pad, enum dtype t, bool with_pos)
{
  int64_t stride = heads * dim + pad, half = dim / 2, positions = 140000;
  float *table = rope_table (dim <= 24 ? positions : 600, dim);
  static const int32_t far[] = { 257, 4095, 8191, 131071 };
  void *x = filled (n * stride, t, 1), *keep = copy_of (x, n * stride, t), *pos = tensor (n, DT_I32);
  double *want = values (x, n * stride, t), worst = 0;
  for (int64_t i = 0; i < n; i++) {
    set (pos, i, DT_I32, dim <= 24 ? far[i % 4] : (i * 37) % 600);
    double p = with_pos ? get (pos, i, DT_I32) : 3 + (double) (i % 5);
    for (int64_t h = 0; h < heads; h++) for (int64_t c = 0; c < half; c++) {
      double ang = p * pow (10000, -2.0 * (double) c / (double) dim), *v = want + i * stride + h * dim, a = v[c], b = v[c + half];
      v[c] = a * cos (ang) - b * sin (ang);
      v[c + half] = b * cos (ang) + a * sin (ang);
    }
  }
  struct op o = { .kind = OP_ROPE, .rope = { .x = x, .n = n, .heads = heads, .head_dim = dim, .stride = stride, .seq = 5, .pos0 = 3, .pos = with_pos ? pos : NULL, .table = table, .t = t } };
  run (&o);
  int good = close_to (x, t, want, n * stride, "rope") && zones (x, n * stride, t);
  o.rope.inverse = true;
  run (&o);
  for (int64_t i = 0; i < n * stride; i++) worst = fmax (worst, fabs (get (x, i, t) - get (keep, i, t)));
  good &= worst < (t == DT_F32 ? 5e-7 : 0.02);
  tap_ok (good, "rope head_dim %lld, %s%s, and its inverse", (long long) dim, dtype_name (t), with_pos ? ", positions up to 131071" : "");
}

static void test_rope (void)
{
  EACH_TYPE (t) {
    rope_case (12, 3, 64, 0, t, false);
    rope_case (12, 3, 24, 5, t, true);
    rope_case (9, 2, 80, 16, t, true);
    rope_case (1, 1, 2, 0, t, true);
  }
}

/* ---- attention ---- */
struct att { struct op_attn o; double *q, *k, *v; };   /* values, laid out as on the device */

/* One query of one head in binary64. o [head_dim], returns log-sum-exp. */
static double att_row (const struct att *a, int64_t b, int64_t h, int64_t i, double *out)
{
  const struct op_attn *o = &a->o;
  int64_t kv = h * o->kv_heads / o->heads, d = o->head_dim, pos = o->q0 + i;
  double *s = malloc ((size_t) o->sk * sizeof *s), max = -INFINITY, sum = 0;
  for (int64_t j = 0; j < o->sk; j++) {
    int64_t key = o->k0 + j;
    bool sees = key <= pos && key >= (o->doc ? (int64_t) get (o->doc, b * o->sq + i, DT_I32) : 0) && (!o->window || pos - key < o->window);
    const double *q = a->q + (b * o->sq + i) * o->q_stride + h * d, *k = a->k + (b * o->sk + j) * o->kv_stride + kv * d;
    s[j] = -INFINITY;
    if (!sees) continue;
    s[j] = 0;
    for (int64_t c = 0; c < d; c++) s[j] += q[c] * k[c];
    s[j] /= sqrt ((double) d);
    max = fmax (max, s[j]);
  }
  for (int64_t c = 0; c < d; c++) out[c] = 0;
  for (int64_t j = 0; j < o->sk; j++) if (s[j] > -INFINITY) {
    double p = exp (s[j] - max);
    sum += p;
    for (int64_t c = 0; c < d; c++) out[c] += p * a->v[(b * o->sk + j) * o->kv_stride + kv * d + c];
  }
  for (int64_t c = 0; c < d; c++) out[c] = sum > 0 ? out[c] / sum : 0;
  free (s);
  return sum > 0 ? max + log (sum) : -INFINITY;
}

struct acase { int64_t batch, sq, sk, heads, kv_heads, head_dim, q0, k0, window; bool doc; int pad; };
static const struct acase acases[] = {
  { 2, 1, 1, 1, 1, 2 }, { 1, 70, 70, 2, 2, 64 }, { 2, 40, 40, 4, 2, 24, .doc = true }, { 1, 150, 150, 3, 1, 40, .window = 33, .pad = 8 }, { 1, 33, 80, 2, 1, 80, .q0 = 47 },
  { 1, 200, 130, 2, 2, 16, .q0 = 60, .k0 = 90, .doc = true, .window = 100 }, { 1, 300, 300, 2, 1, 64, .doc = true, .pad = 3 }, { 1, 20, 20, 1, 1, 128 }, { 1, 5, 30, 2, 2, 6, .q0 = 2, .k0 = 4 },
  { 1, 260, 260, 1, 1, 256 },
};

static void att_make (struct att *a, const struct acase *c, enum dtype t)
{
  struct op_attn *o = &a->o;
  *o = (struct op_attn) { c->batch, c->sq, c->sk, c->heads, c->kv_heads, c->head_dim, c->heads * c->head_dim + c->pad, c->kv_heads * c->head_dim + 2 * c->pad, c->heads * c->head_dim + 3 * c->pad,
    c->q0, c->k0, c->window, .t = t };
  int64_t nq = c->batch * c->sq, nk = c->batch * c->sk;
  o->q = filled (nq * o->q_stride, t, 2);
  o->k = filled (nk * o->kv_stride, t, 2);
  o->v = filled (nk * o->kv_stride, t, 1);
  o->o = tensor (nq * o->o_stride, t);
  o->lse = tensor (c->batch * c->heads * c->sq, DT_F32);
  int32_t *doc = c->doc ? tensor (nq, DT_I32) : NULL;
  for (int64_t i = 0; c->doc && i < nq; i++) set (doc, i, DT_I32, (double) ((c->q0 + i % c->sq) / 29 * 29));
  o->doc = doc;
  a->q = values (o->q, nq * o->q_stride, t);
  a->k = values (o->k, nk * o->kv_stride, t);
  a->v = values (o->v, nk * o->kv_stride, t);
}

static int att_check (const struct att *a, const char *what)
{
  const struct op_attn *o = &a->o;
  int64_t nq = o->batch * o->sq, d = o->head_dim, n = nq * o->heads * d, x = 0, y = 0, *at = malloc ((size_t) n * sizeof *at);
  double *want = doubles (n), *lse = doubles (nq * o->heads);
  int good = 1;
  for (int64_t b = 0; b < o->batch; b++) for (int64_t h = 0; h < o->heads; h++) for (int64_t i = 0; i < o->sq; i++, x += d, y++) {
    lse[y] = att_row (a, b, h, i, want + x);
    if (isinf (lse[y])) good &= get (o->lse, y, DT_F32) == -INFINITY, lse[y] = 0, set (o->lse, y, DT_F32, 0);
    for (int64_t c = 0; c < d; c++) at[x + c] = (b * o->sq + i) * o->o_stride + h * d + c;
  }
  good &= close_at (o->o, o->t, at, want, n, 1e-6, what) && close_at (o->lse, DT_F32, NULL, lse, y, 1e-6, what);
  free (at);
  return good && zones (o->o, nq * o->o_stride - (o->o_stride - o->heads * d), o->t);
}

static void test_attn (void)
{
  EACH_TYPE (t) for (int i = 0; i < LEN (acases); i++) {
    struct att a;
    att_make (&a, &acases[i], t);
    run (&(struct op) { .kind = OP_ATTN, .attn = a.o });
    tap_ok (att_check (&a, "attention"), "attention case %d, %s", i, dtype_name (t));
  }
  EACH_TYPE (t) for (int i = 1; i < 7; i++) {   /* keys in three parts, last part first */
    struct att a;
    att_make (&a, &acases[i], t);
    int64_t cut[] = { a.o.sk, a.o.sk / 2 + 3, 11, 0 };
    for (int p = 0; p < 3; p++) {
      struct op_attn o = a.o;
      if (o.batch > 1) continue;
      o.k0 += cut[p + 1], o.sk = cut[p] - cut[p + 1], o.merge = p > 0;
      o.k = at_elem (o.k, cut[p + 1] * o.kv_stride, t), o.v = at_elem (o.v, cut[p + 1] * o.kv_stride, t);
      run (&(struct op) { .kind = OP_ATTN, .attn = o });
    }
    if (a.o.batch > 1) continue;
    double *want = doubles (a.o.head_dim), err = 0;   /* rounding of the parts allowed for: compared element by element */
    int good = 1;
    for (int64_t h = 0; h < a.o.heads; h++) for (int64_t r = 0; r < a.o.sq; r++) {
      double l = att_row (&a, 0, h, r, want), got = get (a.o.lse, h * a.o.sq + r, DT_F32);
      good &= isinf (l) ? got == -INFINITY : fabs (got - l) < 1e-5;
      for (int64_t c = 0; c < a.o.head_dim; c++) err = fmax (err, fabs (get (a.o.o, r * a.o.o_stride + h * a.o.head_dim + c, t) - want[c]));
    }
    tap_ok (good && err < (t == DT_F32 ? 2e-6 : 0.01), "attention merges parts of the keys, case %d, %s", i, dtype_name (t));
  }
}

/* The loss sum (o * d_o) over the queries of one KV head's group. */
static double att_loss (const struct att *a, const double *d_o, int64_t b, int64_t kv, int64_t only)
{
  const struct op_attn *o = &a->o;
  double out[256], loss = 0;
  int64_t group = o->heads / o->kv_heads;
  for (int64_t h = kv * group; h < (kv + 1) * group; h++) for (int64_t i = only < 0 ? 0 : only; i < (only < 0 ? o->sq : only + 1); i++) {
    att_row (a, b, h, i, out);
    for (int64_t c = 0; c < o->head_dim; c++) loss += out[c] * d_o[(b * o->sq + i) * o->o_stride + h * o->head_dim + c];
  }
  return loss;
}

/* Gradients at sampled elements of x (q: only its own row changes). */
static int att_grad (const struct att *a, const double *d_o, double *x, bool is_q, int64_t stride, const void *got, int64_t got_stride, const double *before, const char *what)
{
  const struct op_attn *o = &a->o;
  int64_t at[60], rows = is_q ? o->sq : o->sk, heads = is_q ? o->heads : o->kv_heads;
  double want[60], h = 1e-4;
  for (int i = 0; i < 60; i++) {
    int64_t b = (int64_t) (fabs (uniform ()) * (double) o->batch), r = (int64_t) (fabs (uniform ()) * (double) rows), hd = (int64_t) (fabs (uniform ()) * (double) heads);
    int64_t c = (int64_t) (fabs (uniform ()) * (double) o->head_dim), kv = is_q ? hd * o->kv_heads / o->heads : hd;
    double *p = x + (b * rows + r) * stride + hd * o->head_dim + c, keep = *p, up, down;
    *p = keep + h, up = att_loss (a, d_o, b, kv, is_q ? r : -1);
    *p = keep - h, down = att_loss (a, d_o, b, kv, is_q ? r : -1);
    *p = keep;
    at[i] = (b * rows + r) * got_stride + hd * o->head_dim + c;
    want[i] = (up - down) / (2 * h) + before[at[i]];
  }
  return close_at (got, o->t, at, want, 60, 3e-6, what);
}

static void att_bwd_case (int n, enum dtype t, bool accumulate)
{
  struct att a;
  att_make (&a, &acases[n], t);
  struct op_attn *o = &a.o;
  int64_t nq = o->batch * o->sq, nk = o->batch * o->sk, qs = o->q_stride + 2, ks = o->kv_stride + 4;
  void *d_o = filled (nq * o->o_stride, t, 1), *dq = filled (nq * qs, t, 1), *dk = filled (nk * ks, t, 1), *dv = filled (nk * ks, t, 1), *delta = tensor (o->batch * o->heads * o->sq, DT_F32);
  void *dq2 = copy_of (dq, nq * qs, t), *dk2 = copy_of (dk, nk * ks, t), *dv2 = copy_of (dv, nk * ks, t);
  double *g = values (d_o, nq * o->o_stride, t), *bq = accumulate ? values (dq, nq * qs, t) : doubles (nq * qs), *bk = accumulate ? values (dk, nk * ks, t) : doubles (nk * ks),
    *bv = accumulate ? values (dv, nk * ks, t) : doubles (nk * ks);
  run (&(struct op) { .kind = OP_ATTN, .attn = *o });
  struct op w = { .kind = OP_ATTN_BWD, .attn_bwd = { *o, d_o, dq, dk, dv, qs, ks, delta, accumulate } };
  run (&w);
  rounding = 3;   /* o is an input too, and rounded; the reference has it exact */
  int good = att_grad (&a, g, a.q, true, o->q_stride, dq, qs, bq, "dq") & att_grad (&a, g, a.k, false, o->kv_stride, dk, ks, bk, "dk") & att_grad (&a, g, a.v, false, o->kv_stride, dv, ks, bv, "dv");
  rounding = 1.5;
  w.attn_bwd.dq = dq2, w.attn_bwd.dk = dk2, w.attn_bwd.dv = dv2, cpu_threads = 2;
  run (&w);
  cpu_threads = 1;
  good &= same (dq, dq2, nq * qs, t) && same (dk, dk2, nk * ks, t) && same (dv, dv2, nk * ks, t);
  tap_ok (good, "attention backward case %d, %s%s", n, dtype_name (t), accumulate ? ", accumulating" : "");
}

static void test_attn_bwd (void)
{
  EACH_TYPE (t) for (int i = 0; i < LEN (acases); i++) att_bwd_case (i, t, i & 1);
}

/* ---- swiglu, column sums ---- */
static double silu (double x) { return x / (1 + exp (-x)); }

static void test_swiglu (void)
{
  EACH_TYPE (t) {
    int good = 1;
    for (int64_t f = 1; f < 200; f = f * 3 + 2) {
      int64_t n = 7;
      void *gu = filled (n * 2 * f, t, 4), *out = tensor (n * f, t), *d = filled (n * f, t, 1), *dgu = tensor (n * 2 * f, t), *again = tensor (n * f, t);
      double *want = doubles (n * f), *back = doubles (n * 2 * f), h = 1e-4;
      for (int64_t r = 0; r < n; r++) for (int64_t i = 0; i < f; i++) {
        double g = get (gu, r * 2 * f + i, t), u = get (gu, r * 2 * f + f + i, t), z = get (d, r * f + i, t);
        want[r * f + i] = silu (g) * u;
        back[r * 2 * f + i] = (silu (g + h) - silu (g - h)) / (2 * h) * u * z;
        back[r * 2 * f + f + i] = silu (g) * z;
      }
      OP (OP_SWIGLU, swiglu, .n = n, .f = f, .gu = gu, .out = out, .t = t);
      OP (OP_SWIGLU_BWD, swiglu_bwd, .n = n, .f = f, .gu = gu, .d_out = d, .dgu = dgu, .out = again, .t = t);
      good &= close_to (out, t, want, n * f, "swiglu") && close_to (dgu, t, back, n * 2 * f, "dgu") && same (out, again, n * f, t) && zones (dgu, n * 2 * f, t);
      OP (OP_SWIGLU_BWD, swiglu_bwd, .n = n, .f = f, .gu = gu, .d_out = d, .dgu = gu, .t = t);
      good &= same (gu, dgu, n * 2 * f, t);
    }
    tap_ok (good, "swiglu and its backward, %s, in place too", dtype_name (t));
    void *gu = tensor (4, t), *out = tensor (2, t), *d = tensor (2, t), *dgu = tensor (4, t);
    set (gu, 0, t, -1000), set (gu, 1, t, 1000), set (gu, 2, t, 1), set (gu, 3, t, 1), set (d, 0, t, 1), set (d, 1, t, 1);
    OP (OP_SWIGLU, swiglu, .n = 1, .f = 2, .gu = gu, .out = out, .t = t);
    OP (OP_SWIGLU_BWD, swiglu_bwd, .n = 1, .f = 2, .gu = gu, .d_out = d, .dgu = dgu, .t = t);
    tap_ok (get (out, 0, t) == 0 && get (out, 1, t) == get (gu, 1, t) && get (dgu, 0, t) == 0 && get (dgu, 1, t) == 1, "swiglu saturates, %s", dtype_name (t));
  }
}

static void test_colsum (void)
{
  EACH_TYPE (t) EACH_TYPE (gt) for (int v = 0; v < 3; v++) {
    int64_t rows = v ? 700 : 1, cols = v == 1 ? 37 : 64, stride = cols + v;
    void *x = filled (rows * stride, t, 1), *d = filled (cols, gt, 1), *d2 = copy_of (d, cols, gt);
    double *want = doubles (cols);
    for (int64_t c = 0; c < cols; c++) {
      want[c] = v * get (d, c, gt);
      for (int64_t r = 0; r < rows; r++) want[c] += get (x, r * stride + c, t);
    }
    OP (OP_COLSUM, colsum, .rows = rows, .cols = cols, .stride = stride, .x = x, .dst = d, .beta = (float) v, .t = t, .gt = gt);
    cpu_threads = 2;
    OP (OP_COLSUM, colsum, .rows = rows, .cols = cols, .stride = stride, .x = x, .dst = d2, .beta = (float) v, .t = t, .gt = gt);
    cpu_threads = 1;
    tap_ok (close_to (d, gt, want, cols, "colsum") && same (d, d2, cols, gt) && zones (d, cols, gt), "column sums %lld x %lld, %s -> %s", (long long) rows, (long long) cols, dtype_name (t),
      dtype_name (gt));
  }
}

/* ---- embedding ---- */
static void test_embed (void)
{
  EACH_TYPE (t) EACH_TYPE (gt) for (int beta = 0; beta < 2; beta++) {
    int64_t n = 300, dim = 50, v0 = 10, rows = 21;
    void *ids = tensor (n, DT_I32), *table = filled (rows * dim, t, 1), *out = tensor (n * dim, t), *dy = filled (n * dim, t, 1), *dt = filled (rows * dim, gt, 1), *work = tensor (2 * n + 2 * rows + 2, DT_I32);
    void *dt2 = copy_of (dt, rows * dim, gt);
    double *want = doubles (n * dim), *grad = doubles (rows * dim);
    for (int64_t i = 0; i < rows * dim; i++) grad[i] = beta * get (dt, i, gt);
    for (int64_t i = 0; i < n; i++) {
      int64_t id = i * i % 35;   /* some below, some above the local rows, some rows without a token */
      set (ids, i, DT_I32, (double) id);
      for (int64_t c = 0; id >= v0 && id < v0 + rows && c < dim; c++) {
        want[i * dim + c] = get (table, (id - v0) * dim + c, t);
        grad[(id - v0) * dim + c] += get (dy, i * dim + c, t);
      }
    }
    OP (OP_EMBED, embed, .n = n, .dim = dim, .v0 = v0, .rows = rows, .ids = ids, .table = table, .out = out, .t = t);
    OP (OP_EMBED_BWD, embed_bwd, .n = n, .dim = dim, .v0 = v0, .rows = rows, .ids = ids, .dy = dy, .dtable = dt, .beta = (float) beta, .work = work, .t = t, .gt = gt);
    cpu_threads = 2;
    OP (OP_EMBED_BWD, embed_bwd, .n = n, .dim = dim, .v0 = v0, .rows = rows, .ids = ids, .dy = dy, .dtable = dt2, .beta = (float) beta, .work = work, .t = t, .gt = gt);
    cpu_threads = 1;
    tap_ok (close_to (out, t, want, n * dim, "embed") && close_to (dt, gt, grad, rows * dim, "dtable") && same (dt, dt2, rows * dim, gt) && zones (out, n * dim, t) &&
      zones (work, 2 * n + 2 * rows + 2, DT_I32), "embedding and its gradient, %s -> %s, beta %d", dtype_name (t), dtype_name (gt), beta);
  }
}

/* ---- cross-entropy ---- */
static double row_loss (const double *x, int64_t n, int64_t target)
{
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) max = fmax (max, x[i]);
  for (int64_t i = 0; i < n; i++) sum += exp (x[i] - max);
  return log (sum) + max - x[target];
}

/* The vocabulary in two parts, as two tp ranks have it. */
static void test_xent (void)
{
  EACH_TYPE (t) {
    int64_t n = 9, cols[2] = { 70, 45 }, ld[2] = { 72, 64 }, v = 115;
    void *part[2], *max[2], *st[2], *target = tensor (n, DT_I32);
    double *acc = cpu_at (tensor (2, DT_F64)), *x = doubles (n * v), *want[2], loss = 0, valid = 0, h = 1e-4, worst = 0;
    int good = 1;
    acc[0] = 5, acc[1] = 7;
    for (int p = 0; p < 2; p++) {
      part[p] = filled (n * ld[p], t, 8), max[p] = tensor (n, DT_F32), st[p] = tensor (2 * n, DT_F32), want[p] = doubles (n * ld[p]);
      for (int64_t i = 0; i < n; i++) for (int64_t c = 0; c < cols[p]; c++) x[i * v + p * cols[0] + c] = get (part[p], i * ld[p] + c, t);
    }
    for (int64_t i = 0; i < n; i++) {
      int64_t at = i % 4 == 3 ? -100 : i * 41 % v;
      double *row = x + i * v;
      set (target, i, DT_I32, (double) at);
      if (at < 0) continue;
      loss += row_loss (row, v, at), valid++;
      for (int64_t c = 0; c < v; c++) {
        double keep = row[c], up, down;
        row[c] = keep + h, up = row_loss (row, v, at);
        row[c] = keep - h, down = row_loss (row, v, at);
        row[c] = keep;
        want[c >= cols[0]][c < cols[0] ? i * ld[0] + c : i * ld[1] + c - cols[0]] = (up - down) / (2 * h);
      }
    }
#define XENT(KIND, p, ...) OP (KIND, xent, .n = n, .ld = ld[p], .cols = cols[p], .v0 = p * cols[0], .logits = part[p], .target = target, .max = max[p], .st = st[p], .t = t, __VA_ARGS__)
    for (int p = 0; p < 2; p++) XENT (OP_XENT_MAX, p, .grad = false);
    for (int64_t i = 0; i < n; i++) {
      double m = fmax (get (max[0], i, DT_F32), get (max[1], i, DT_F32));
      set (max[0], i, DT_F32, m), set (max[1], i, DT_F32, m);
    }
    for (int p = 0; p < 2; p++) XENT (OP_XENT_SUM, p, .grad = false);
    for (int64_t i = 0; i < 2 * n; i++) {
      double s = get (st[0], i, DT_F32) + get (st[1], i, DT_F32);
      set (st[0], i, DT_F32, s), set (st[1], i, DT_F32, s);
    }
    void *keep = copy_of (part[0], n * ld[0], t);
    XENT (OP_XENT_GRAD, 0, .acc = acc, .grad = false);
    tap_ok (fabs (acc[0] - 5 - loss) < 1e-6 * loss && acc[1] == 7 + valid && same (keep, part[0], n * ld[0], t), "loss of a vocabulary in two parts, %s; without grad the logits stay", dtype_name (t));
    for (int p = 0; p < 2; p++) XENT (OP_XENT_GRAD, p, .grad = true);
    for (int p = 0; p < 2; p++) good &= close_to (part[p], t, want[p], n * ld[p], "logits' gradient") && zones (part[p], n * ld[p], t);
    for (int64_t i = 0; i < n; i++) {
      double s = 0;
      for (int p = 0; p < 2; p++) for (int64_t c = 0; c < ld[p]; c++) s += get (part[p], i * ld[p] + c, t);
      worst = fmax (worst, fabs (s));
    }
    tap_ok (good && worst < (t == DT_F32 ? 2e-6 : 0.02), "gradient of the loss, %s: rows sum to 0, padding and rows without a target are 0", dtype_name (t));
  }
}

/* ---- optimizer ---- */
static void test_sumsq (void)
{
  EACH_TYPE (t) for (int64_t n = 1; n < 2000000; n = n * 11 + 5) {
    void *x = filled (n, t, 3), *a = tensor (2, DT_F64), *b = tensor (2, DT_F64), *m = tensor (1, DT_F32);
    double want = 0, max = 0;
    for (int64_t i = 0; i < n; i++) want += get (x, i, t) * get (x, i, t), max = fmax (max, fabs (get (x, i, t)));
    for (int i = 0; i < 2; i++) set (a, i, DT_F64, 1), set (b, i, DT_F64, 1);
    OP (OP_SUMSQ, sumsq, .x = x, .n = n, .t = t, .weight = 0.5, .acc = a);
    OP (OP_AMAX, amax, .x = x, .n = n, .t = t, .dst = m);
    cpu_threads = 2;
    OP (OP_SUMSQ, sumsq, .x = x, .n = n, .t = t, .weight = 0.5, .acc = b);
    cpu_threads = 1;
    int good = fabs (get (a, 0, DT_F64) - 1 - 0.5 * want) < 1e-12 * want && get (a, 1, DT_F64) == 1 && same (a, b, 2, DT_F64) && get (m, 0, DT_F32) == max;
    set (x, n / 2, t, INFINITY), set (x, 0, t, NAN);
    OP (OP_SUMSQ, sumsq, .x = x, .n = n, .t = t, .weight = 0, .acc = b);
    good &= get (b, 0, DT_F64) == get (a, 0, DT_F64) && get (b, 1, DT_F64) == (n > 1 ? 3 : 2);
    tap_ok (good, "sum of squares, finite check and largest of %lld, %s", (long long) n, dtype_name (t));
  }
}

static void test_step_vars (void)
{
  struct step_vars *v = tensor (sizeof *v / 8, DT_F64), *h = cpu_at (v);
  *h = (struct step_vars) { .lr = 0.1, .clip = 1, .sumsq = 400, .tokens = 4, .b1t = 1, .b2t = 1 };
  OP (OP_STEP_VARS, step_vars, .vars = v, .beta1 = 0.9, .beta2 = 0.95);
  tap_ok (h->norm == 5 && h->scale == 0.05 && h->skip == 0 && h->b1t == 0.9 && h->b2t == 0.95 && h->updates == 1, "clip and bias corrections");
  h->sumsq = 4, h->clip = 0;
  OP (OP_STEP_VARS, step_vars, .vars = v, .beta1 = 0.9, .beta2 = 0.95);
  tap_ok (h->norm == 0.5 && h->scale == 0.25 && h->updates == 2 && h->b1t == 0.9 * 0.9, "no clip");
  static const struct { double sumsq, bad, tokens; } skip[] = { { 4, 1, 4 }, { NAN, 0, 4 }, { INFINITY, 0, 4 }, { 4, 0, 0 } };
  for (int i = 0; i < LEN (skip); i++) {
    h->sumsq = skip[i].sumsq, h->bad = skip[i].bad, h->tokens = skip[i].tokens;
    OP (OP_STEP_VARS, step_vars, .vars = v, .beta1 = 0.9, .beta2 = 0.95);
    tap_ok (h->skip == 1 && h->updates == 2 && h->b1t == 0.9 * 0.9, "skip %d leaves the state alone", i);
  }
}

static void adamw_case (int64_t n, enum dtype gt, enum dtype wt, bool weight)
{
  void *g = filled (n, gt, 1), *w = filled (n, DT_F32, 1), *m = filled (n, DT_F32, 0.1), *v = filled (n, DT_F32, 0.01), *out = weight ? tensor (n, wt) : NULL;
  struct step_vars *s = tensor (sizeof *s / 8, DT_F64);
  *(struct step_vars *) cpu_at (s) = (struct step_vars) { .lr = 1e-2, .scale = 0.125, .b1t = 0.81, .b2t = 0.9025 };
  double *wm = doubles (n), *wv = doubles (n), *ww = doubles (n), *before = values (w, n, DT_F32), *step = doubles (n);
  for (int64_t i = 0; i < n; i++) {
    double x = get (g, i, gt) * 0.125;
    set (v, i, DT_F32, fabs (get (v, i, DT_F32)));
    wm[i] = 0.9 * get (m, i, DT_F32) + 0.1 * x;
    wv[i] = 0.95 * get (v, i, DT_F32) + 0.05 * x * x;
    ww[i] = before[i] - 1e-2 * (wm[i] / (1 - 0.81) / (sqrt (wv[i] / (1 - 0.9025)) + 1e-8) + 0.1 * before[i]);
    step[i] = ww[i] - before[i];
  }
  struct op o = { .kind = OP_ADAMW, .adamw = { .n = n, .master = w, .m = m, .v = v, .grad = g, .weight = out, .vars = s, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .gt = gt, .wt = wt } };
  run (&o);
  int good = close_to (m, DT_F32, wm, n, "m") && close_to (v, DT_F32, wv, n, "v") && close_at (w, DT_F32, NULL, ww, n, 1e-7, "master") && zones (w, n, DT_F32);
  for (int64_t i = 0; weight && i < n; i++) good &= get (out, i, wt) == round_to (get (w, i, DT_F32), wt);
  void *w2 = copy_of (w, n, DT_F32), *m2 = copy_of (m, n, DT_F32);
  ((struct step_vars *) cpu_at (s))->skip = 1;
  if (weight) memset (cpu_at (out), 0xff, (size_t) (n * dtype_size (wt)));
  set (g, 0, gt, NAN);
  run (&o);
  good &= same (w, w2, n, DT_F32) && same (m, m2, n, DT_F32);
  for (int64_t i = 0; weight && i < n; i++) good &= get (out, i, wt) == round_to (get (w, i, DT_F32), wt);
  tap_ok (good, "adamw of %lld, gradient %s, weight %s; skipped: nothing moves", (long long) n, dtype_name (gt), weight ? dtype_name (wt) : "none");
}

static void test_adamw (void)
{
  EACH_TYPE (gt) EACH_TYPE (wt) for (int i = 0; i < 2; i++) adamw_case (i ? 10001 : 3, gt, wt, i || wt == DT_F32);
  int64_t n = 20;   /* no gradient: matrices decay by 1 - lr decay a step, what has no decay stays to the bit */
  void *g = filled (n, DT_F32, 0), *w = filled (n, DT_F32, 1), *m = filled (n, DT_F32, 0), *v = filled (n, DT_F32, 0), *m2 = filled (n, DT_F32, 0), *v2 = filled (n, DT_F32, 0), *b = copy_of (w, n, DT_F32), *b0 = copy_of (w, n, DT_F32);
  struct step_vars *s = tensor (sizeof *s / 8, DT_F64), *h = cpu_at (s);
  double *want = values (w, n, DT_F32);
  *h = (struct step_vars) { .lr = 0.1, .clip = 1, .tokens = 8, .b1t = 1, .b2t = 1 };
  for (int i = 0; i < 10; i++) {
    OP (OP_STEP_VARS, step_vars, .vars = s, .beta1 = 0.9, .beta2 = 0.95);
    OP (OP_ADAMW, adamw, .n = n, .master = w, .m = m, .v = v, .grad = g, .vars = s, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1);
    OP (OP_ADAMW, adamw, .n = n, .master = b, .m = m2, .v = v2, .grad = g, .vars = s, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0);
  }
  for (int64_t i = 0; i < n; i++) want[i] *= 0.904382075;
  tap_ok (close_to (w, DT_F32, want, n, "decay") && same (b, b0, n, DT_F32), "decay alone: ten steps are a factor of 0.904382");
}

/* ---- initial weights ---- */
static void test_init (void)
{
  int64_t rows = 30, cols = 24, n = rows * cols;
  float *whole = tensor (n, DT_F32), *part = tensor (n, DT_F32), *h = cpu_at (whole), *p = cpu_at (part);
  OP (OP_INIT, init, .dst = whole, .n = n, .cols = cols, .rows = rows, .gcols = cols, .normal = true, .std = 0.02f, .seed = 5, .key = 77);
  double mean = 0, var = 0;
  for (int64_t i = 0; i < n; i++) mean += h[i] / (double) n, var += h[i] * h[i] / (double) n;
  tap_ok (fabs (mean) < 0.003 && fabs (sqrt (var) - 0.02) < 0.002 && zones (whole, n, DT_F32), "initial weights are normal");
  int good = 1;   /* rows 10..17, columns 6..19, two padding rows, elements 5.. of it */
  OP (OP_INIT, init, .dst = part, .start = 5, .n = 10 * 14 - 5, .cols = 14, .row0 = 10, .rows = 8, .col0 = 6, .gcols = cols, .normal = true, .std = 0.02f, .seed = 5, .key = 77);
  for (int64_t i = 5; i < 140; i++) good &= p[i - 5] == (i / 14 < 8 ? h[(10 + i / 14) * cols + 6 + i % 14] : 0);
  tap_ok (good && zones (part, 135, DT_F32), "a slice has the bits of the whole, padding is 0");
  OP (OP_INIT, init, .dst = part, .n = 20, .cols = 10, .rows = 1, .gcols = 10, .value = 1);
  tap_ok (p[0] == 1 && p[9] == 1 && p[10] == 0 && p[19] == 0, "initial value");
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  device_open ();
  static void (*const test[]) (void) = { test_memory, test_axpby, test_gemm, test_grouped, test_norm, test_rope, test_attn, test_attn_bwd, test_swiglu, test_colsum, test_embed, test_xent, test_sumsq,
    test_step_vars, test_adamw, test_init };
  for (int i = 0; i < LEN (test); i++) test[i] (), forget ();
  tap_done ();
  MPI_Finalize ();
  return 0;
}
