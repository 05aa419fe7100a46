/* The cpu device's operations on matrices and rows against plain binary64. np: 1 */
#include "config.h"
#include "maths.h"
#include "cpu_gemm.h"
#include "cpu_pairs.h"

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
  for (int r = 0; r < 5; r++) good &= !memcmp (cpu_at (b + r * 40), cpu_at (a + r * 101), 33)
    && ((unsigned char *) cpu_at (b))[r * 40 + 33] == 0xff;
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
        s += get (g->a, g->ta ? k * g->lda + i : i * g->lda + k, g->ab) * get (g->b, g->tb ? j * g->ldb + k : k * g->ldb + j,
          g->ab);
      r[i * g->ldc + j] = s;
    }
  return r;
}

/* What the operation chose, on one and two threads, and the library, whichever that was. */
static int gemm_case (int64_t m, int64_t n, int64_t k, int pad, bool ta, bool tb, bool beta, bool bias, enum dtype ab,
  enum dtype ct)
{
  struct op_gemm g = { m, n, k, (ta ? m : k) + pad, (tb ? k : n) + pad, n + pad, .ab = ab, .ct = ct, .ta = ta, .tb = tb,
    .beta = beta };
  g.a = filled ((ta ? k : m) * g.lda, ab, 1);
  g.b = filled ((tb ? n : k) * g.ldb, ab, 1);
  g.c = filled (m * g.ldc, ct, 1);
  g.bias = bias ? filled (n, ab, 1) : NULL;
  double *r = gemm_ref (&g);
  for (int64_t i = 0; i < m; i++) for (int64_t j = n; j < g.ldc; j++) r[i * g.ldc + j] = get (g.c, i * g.ldc + j, ct);
  struct op_gemm two = g, lib = g;
  two.c = copy_of (g.c, m * g.ldc, ct);
  lib.c = cpu_at (copy_of (g.c, m * g.ldc, ct));
  lib.a = cpu_at (g.a), lib.b = cpu_at (g.b), lib.bias = cpu_at (g.bias);
  blas_gemm (&lib);
  if (!pad) g.lda = g.ldb = g.ldc = 0;
  run (&(struct op) { .kind = OP_GEMM, .gemm = g });
  cpu_threads = 2;
  run (&(struct op) { .kind = OP_GEMM, .gemm = two });
  cpu_threads = 1;
  return close_to (g.c, ct, r, m * (n + pad), "gemm") && close_to (two.c, ct, r, m * (n + pad), "two threads")
    && close_to (lib.c, ct, r, m * (n + pad), "library") && zones (g.c, m * (n + pad), ct);
}

static void test_gemm (void)
{
  static const int64_t shape[][3] = { { 1, 1, 1 }, { 3, 5, 7 }, { 33, 65, 17 }, { 64, 48, 40 }, { 1, 100, 64 }, { 130, 1, 30 } };
  EACH_TYPE (ab) for (int ct = 0; ct <= (ab == DT_BF16); ct++) for (int tr = 0; tr < 4; tr++) {
    int good = 1;
    for (int s = 0; s < LEN (shape); s++) for (int v = 0; v < 8; v++)
      good &= gemm_case (shape[s][0], shape[s][1], shape[s][2], v & 1 ? 3 : 0, tr & 1, tr & 2, v & 2, v & 4, ab,
        ct ? DT_BF16 : DT_F32);
    tap_ok (good, "gemm %s -> %s%s%s", dtype_name (ab), ct ? "bf16" : "fp32", tr & 1 ? ", A transposed" : "",
      tr & 2 ? ", B transposed" : "");
  }
  int64_t before = polls;
  int good = gemm_case (700, 650, 1100, 0, true, false, true, false, DT_F32, DT_F32);
  tap_ok (good && polls - before > 1, "a long product is cut into slices");
  static const int64_t big[][3] = { { 30, 1100, 40 }, { 20, 70, 2500 }, { 450, 50, 30 } };
  for (int i = 0; i < LEN (big); i++)
    for (int tr = 0; tr < 4; tr++)
      EACH_TYPE (t) good &= gemm_case (big[i][0], big[i][1], big[i][2], 1, tr & 1, tr & 2, tr & 1, tr & 2, t, t);
  tap_ok (good, "products larger than a block in each direction");
}

/* dst [cols, rows] = the transpose of src [rows, cols]. */
static void *turned (const void *src, int64_t rows, int64_t cols, enum dtype t)
{
  void *dst = tensor (rows * cols, t);
  for (int64_t r = 0; r < rows; r++) for (int64_t c = 0; c < cols; c++) set (dst, c * rows + r, t, get (src, r * cols + c, t));
  return dst;
}

static void own (const struct op_gemm *g, bool pairs)
{
  if (pairs) gemm_pairs (g);
  else gemm_own (g, g->ab, g->ab, 1);
}

/* Our own products in one arithmetic: an element's bits are the same whatever the layouts, the threads and the part of C. */
static int bits_case (int64_t m, int64_t n, int64_t k, enum dtype t, bool pairs)
{
  enum { I = 41, J = 53, M = 7, N = 29 };
  void *a = filled (m * k, t, 1), *b = filled (k * n, t, 1), *c = tensor (m * n, DT_F32), *d = tensor (m * n, DT_F32);
  void *at[] = { cpu_at (a), cpu_at (turned (a, m, k, t)) }, *bt[] = { cpu_at (b), cpu_at (turned (b, k, n, t)) };
  void *nan = cpu_at (tensor (k * (m + n), DT_F32));
  int good = 1;
  /* what an earlier product left in the copies of the operands does no harm */
  gemm_own (&(struct op_gemm) { m, n, k, k, n, n, .a = nan, .b = nan, .c = cpu_at (c), .ab = DT_F32, .ct = DT_F32 }, DT_F32, DT_F32, 1);
  for (int v = 0; v < 8; v++) {
    struct op_gemm g = { m, n, k, v & 1 ? m : k, v & 2 ? k : n, n, .a = at[v & 1], .b = bt[v / 2 & 1], .c = cpu_at (v ? d : c),
      .ab = t, .ct = DT_F32, .ta = v & 1, .tb = v & 2 }, part = g;
    cpu_threads = v & 4 ? 2 : 1;
    own (&g, pairs);
    cpu_threads = 1;
    if (v) good &= same (c, d, m * n, DT_F32);
    part.m = M, part.n = N;
    part.a = at_elem (g.a, v & 1 ? I : I * k, t), part.b = at_elem (g.b, v & 2 ? J * k : J, t);
    part.c = cpu_at (memset (cpu_at (d), 0xff, (size_t) (m * n) * 4));
    own (&part, pairs);
    for (int64_t i = 0; i < M; i++) for (int64_t j = 0; j < N; j++)
      good &= get (d, i * n + j, DT_F32) == get (c, (I + i) * n + J + j, DT_F32);
  }
  double *r = gemm_ref (&(struct op_gemm) { m, n, k, k, n, n, .a = a, .b = b, .ab = t });
  return good && close_to (c, DT_F32, r, m * n, "own") && zones (c, m * n, DT_F32);
}

static void test_bits (void)
{
  if (!TILE_WIDE) { tap_ok (1, "bits of our own products # SKIP a library makes all products here"); return; }
  static const int64_t shape[][3] = { { 101, 1010, 37 }, { 410, 84, 1111 }, { 97, 90, 640 } };
  for (int i = 0; i < 3; i++) {
    enum dtype t = i ? DT_BF16 : DT_F32;
    if (i == 2 && !pairs_fast ()) { tap_ok (1, "bits of products of pairs # SKIP no fast VDPBF16PS here"); break; }
    int good = 1;
    for (int j = 0; j < LEN (shape); j++) good &= bits_case (shape[j][0], shape[j][1], shape[j][2], t, i == 2);
    tap_ok (good, "the bits of %s depend on k and the operands alone", i == 2 ? "pairs" : i ? "bf16, widened" : "fp32");
  }
}

static void test_grouped (void)
{
  EACH_TYPE (t) for (int v = 0; v < 4; v++) {
    bool tb = v & 1;
    float beta = (float) (v / 2);
    int64_t off[] = { 0, 5, 5, 310, 333 }, n = 40, k = 24, groups = 4;
    void *o = tensor (5, DT_I32), *a = filled (400 * k, t, 1), *b = filled (groups * n * k, t, 1), *c = filled (333 * n, t, 1);
    double *want[4];
    int good = 1;
    for (int i = 0; i < 5; i++) set (o, i, DT_I32, (double) off[i]);
    for (int g = 0; g < groups; g++)
      want[g] = gemm_ref (&(struct op_gemm) { off[g + 1] - off[g], n, k, k, tb ? k : n, n, at_elem (a, off[g] * k, t),
        at_elem (b, g * n * k, t), at_elem (c, off[g] * n, t), .ab = t, .ct = t, .tb = tb, .beta = beta });
    OP (OP_GEMM_GROUPED, grouped, .groups = groups, .max_rows = 400, .n = n, .k = k, .off = o, .a = a, .b = b, .c = c, .ab = t,
      .ct = t, .tb = tb, .beta = beta);
    for (int g = 0; g < groups; g++) good &= close_to (at_elem (c, off[g] * n, t), t, want[g], (off[g + 1] - off[g]) * n, "grouped");
    tap_ok (good && zones (c, 333 * n, t), "grouped gemm %s tb %d beta %g", dtype_name (t), tb, beta);
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
  double *want_y = values (y, ny, t), *want_r = doubles (rows * inner), *want_s = res ? values (sum, nx, t) : NULL,
    *wd = values (w, dim, wt), *s = doubles (dim);
  OP (OP_NORM, norm, .rows = rows, .inner = inner, .dim = dim, .x_stride = pad ? xs : 0, .y_stride = pad ? ys : 0, .x = x,
    .res = add, .w = w, .sum = sum, .y = y,
    .rstd = rstd, .eps = 1e-5f, .t = t, .wt = wt);
  for (int64_t r = 0; r < rows; r++) for (int64_t i = 0; i < inner; i++) {
    int64_t at = r * xs + i * dim;
    for (int64_t c = 0; c < dim; c++) {
      s[c] = get (x, at + c, t) + (res ? get (add, at + c, t) : 0);
      if (res) want_s[at + c] = s[c], s[c] = round_to (s[c], t);
    }
    norm_loss (s, wd, NULL, dim, 1e-5, want_y + r * ys + i * dim, want_r + r * inner + i);
  }
  tap_ok (close_to (y, t, want_y, ny, "y") && close_to (rstd, DT_F32, want_r, rows * inner, "rstd")
    && (!res || close_to (sum, t, want_s, nx, "sum")) && zones (y, ny, t),
    "norm %lld x %lld x %lld + %d, %s, w %s%s", (long long) rows, (long long) inner, (long long) dim, pad, dtype_name (t),
      dtype_name (wt), res ? ", residual" : "");
}

/* dx and dw by central differences of the binary64 forward. */
static void norm_bwd_case (int64_t rows, int64_t inner, int64_t dim, int pad, enum dtype t, enum dtype gt, bool res, float beta)
{
  int64_t dense = inner * dim, xs = dense + pad, ys = dense + 2 * pad, ds = dense + 3 * pad, nd = rows * ds;
  void *x = filled (rows * xs, t, 2), *w = filled (dim, t, 1), *dy = filled (rows * ys, t, 1), *dres = res ? filled (nd, t, 1)
    : NULL, *dw = filled (dim, gt, 1), *dx = filled (nd, t, 1);
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
  struct op o = { .kind = OP_NORM_BWD, .norm_bwd = { .rows = rows, .inner = inner, .dim = dim, .x_stride = pad ? xs : 0,
    .y_stride = pad ? ys : 0, .dx_stride = pad ? ds : 0, .dy = dy, .x = x,
    .w = w, .dres = dres, .rstd = rstd, .dx = dx, .dw = dw, .dw_beta = beta, .t = t, .wt = t, .gt = gt } };
  run (&o);
  int good = close_at (dx, t, NULL, want_dx, nd, 2e-6, "dx") && close_to (dw, gt, want_dw, dim, "dw");
  o.norm_bwd.dw = dw2, o.norm_bwd.dx = dx2, cpu_threads = 2;
  run (&o);
  cpu_threads = 1;
  good &= same (dw, dw2, dim, gt) && same (dx, dx2, nd, t);
  tap_ok (good && zones (dx, nd, t) && zones (dw, dim, gt), "norm backward %lld x %lld x %lld + %d, %s, dw %s%s",
    (long long) rows, (long long) inner, (long long) dim, pad, dtype_name (t),
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
  struct op o = { .kind = OP_ROPE, .rope = { .x = x, .n = n, .heads = heads, .head_dim = dim, .stride = stride, .seq = 5,
    .pos0 = 3, .pos = with_pos ? pos : NULL, .table = table, .t = t } };
  run (&o);
  int good = close_to (x, t, want, n * stride, "rope") && zones (x, n * stride, t);
  o.rope.inverse = true;
  run (&o);
  for (int64_t i = 0; i < n * stride; i++) worst = fmax (worst, fabs (get (x, i, t) - get (keep, i, t)));
  good &= worst < (t == DT_F32 ? 5e-7 : 0.02);
  tap_ok (good, "rope head_dim %lld, %s%s, and its inverse", (long long) dim, dtype_name (t),
    with_pos ? ", positions up to 131071" : "");
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

/* ---- swiglu, column sums ---- */
static double silu (double x) { return x / (1 + exp (-x)); }

static void test_swiglu (void)
{
  EACH_TYPE (t) {
    int good = 1;
    for (int64_t f = 1; f < 200; f = f * 3 + 2) {
      int64_t n = 7;
      void *gu = filled (n * 2 * f, t, 4), *out = tensor (n * f, t), *d = filled (n * f, t, 1), *dgu = tensor (n * 2 * f, t),
        *again = tensor (n * f, t);
      double *want = doubles (n * f), *back = doubles (n * 2 * f), h = 1e-4;
      for (int64_t r = 0; r < n; r++) for (int64_t i = 0; i < f; i++) {
        double g = get (gu, r * 2 * f + i, t), u = get (gu, r * 2 * f + f + i, t), z = get (d, r * f + i, t);
        want[r * f + i] = silu (g) * u;
        back[r * 2 * f + i] = (silu (g + h) - silu (g - h)) / (2 * h) * u * z;
        back[r * 2 * f + f + i] = silu (g) * z;
      }
      OP (OP_SWIGLU, swiglu, .n = n, .f = f, .gu = gu, .out = out, .t = t);
      OP (OP_SWIGLU_BWD, swiglu_bwd, .n = n, .f = f, .gu = gu, .d_out = d, .dgu = dgu, .out = again, .t = t);
      good &= close_to (out, t, want, n * f, "swiglu") && close_to (dgu, t, back, n * 2 * f, "dgu") && same (out, again, n * f,
        t) && zones (dgu, n * 2 * f, t);
      OP (OP_SWIGLU_BWD, swiglu_bwd, .n = n, .f = f, .gu = gu, .d_out = d, .dgu = gu, .t = t);
      good &= same (gu, dgu, n * 2 * f, t);
    }
    tap_ok (good, "swiglu and its backward, %s, in place too", dtype_name (t));
    void *gu = tensor (4, t), *out = tensor (2, t), *d = tensor (2, t), *dgu = tensor (4, t);
    set (gu, 0, t, -1000), set (gu, 1, t, 1000), set (gu, 2, t, 1), set (gu, 3, t, 1), set (d, 0, t, 1), set (d, 1, t, 1);
    OP (OP_SWIGLU, swiglu, .n = 1, .f = 2, .gu = gu, .out = out, .t = t);
    OP (OP_SWIGLU_BWD, swiglu_bwd, .n = 1, .f = 2, .gu = gu, .d_out = d, .dgu = dgu, .t = t);
    tap_ok (get (out, 0, t) == 0 && get (out, 1, t) == get (gu, 1, t) && get (dgu, 0, t) == 0 && get (dgu, 1, t) == 1,
      "swiglu saturates, %s", dtype_name (t));
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
    tap_ok (close_to (d, gt, want, cols, "colsum") && same (d, d2, cols, gt) && zones (d, cols, gt),
      "column sums %lld x %lld, %s -> %s", (long long) rows, (long long) cols, dtype_name (t),
      dtype_name (gt));
  }
}

int main (int argc, char **argv)
{
  static void (*const test[]) (void) = { test_memory, test_axpby, test_gemm, test_bits, test_grouped, test_norm, test_rope, test_swiglu,
    test_colsum };
  return maths_main (argc, argv, test, LEN (test));
}
