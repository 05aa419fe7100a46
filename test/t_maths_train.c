/* What the cpu device does at the ends of a step: embedding, loss, norm, optimizer, initial weights, against plain binary64. np:
   1 */
#include "config.h"
#include "maths.h"

/* ---- embedding ---- */
static void test_embed (void)
{
  EACH_TYPE (t) EACH_TYPE (gt) for (int beta = 0; beta < 2; beta++) {
    int64_t n = 300, dim = 50, v0 = 10, rows = 21;
    void *ids = tensor (n, DT_I32), *table = filled (rows * dim, t, 1), *out = tensor (n * dim, t), *dy = filled (n * dim, t,
      1), *dt = filled (rows * dim, gt, 1), *work = tensor (2 * n + 2 * rows + 2, DT_I32);
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
    OP (OP_EMBED_BWD, embed_bwd, .n = n, .dim = dim, .v0 = v0, .rows = rows, .ids = ids, .dy = dy, .dtable = dt,
      .beta = (float) beta, .work = work, .t = t, .gt = gt);
    cpu_threads = 2;
    OP (OP_EMBED_BWD, embed_bwd, .n = n, .dim = dim, .v0 = v0, .rows = rows, .ids = ids, .dy = dy, .dtable = dt2,
      .beta = (float) beta, .work = work, .t = t, .gt = gt);
    cpu_threads = 1;
    tap_ok (close_to (out, t, want, n * dim, "embed") && close_to (dt, gt, grad, rows * dim, "dtable")
      && same (dt, dt2, rows * dim, gt) && zones (out, n * dim, t) &&
      zones (work, 2 * n + 2 * rows + 2, DT_I32), "embedding and its gradient, %s -> %s, beta %d", dtype_name (t),
        dtype_name (gt), beta);
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
      part[p] = filled (n * ld[p], t, 8), max[p] = tensor (n, DT_F32), st[p] = tensor (2 * n, DT_F32),
        want[p] = doubles (n * ld[p]);
      for (int64_t i = 0; i < n; i++) for (int64_t c = 0; c < cols[p];
      c++) x[i * v + p * cols[0] + c] = get (part[p], i * ld[p] + c, t);
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
#define XENT(KIND, p, ...) \
  OP (KIND, xent, .n = n, .ld = ld[p], .cols = cols[p], .v0 = p * cols[0], .logits = part[p], .target = target, .max = max[p], \
    .st = st[p], .t = t, __VA_ARGS__)
    XENT (OP_XENT_MAX, 0, .grad = false);
    XENT (OP_XENT_SUM, 0, .grad = false);
    void *max1 = copy_of (max[0], n, DT_F32), *st1 = copy_of (st[0], 2 * n, DT_F32);
    OP (OP_ZERO, zero, .dst = max[0], .bytes = n * 4);
    OP (OP_ZERO, zero, .dst = st[0], .bytes = 2 * n * 4);
    XENT (OP_XENT_STATS, 0, .grad = false);
    tap_ok (same (max1, max[0], n, DT_F32) && same (st1, st[0], 2 * n, DT_F32), "statistics of the loss in one pass are those of two, %s", dtype_name (t));
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
    tap_ok (fabs (acc[0] - 5 - loss) < 1e-6 * loss && acc[1] == 7 + valid && same (keep, part[0], n * ld[0], t),
      "loss of a vocabulary in two parts, %s; without grad the logits stay", dtype_name (t));
    for (int p = 0; p < 2; p++) XENT (OP_XENT_GRAD, p, .grad = true);
    for (int p = 0; p < 2; p++) good &= close_to (part[p], t, want[p], n * ld[p], "logits' gradient")
      && zones (part[p], n * ld[p], t);
    for (int64_t i = 0; i < n; i++) {
      double s = 0;
      for (int p = 0; p < 2; p++) for (int64_t c = 0; c < ld[p]; c++) s += get (part[p], i * ld[p] + c, t);
      worst = fmax (worst, fabs (s));
    }
    tap_ok (good && worst < (t == DT_F32 ? 2e-6 : 0.02),
      "gradient of the loss, %s: rows sum to 0, padding and rows without a target are 0", dtype_name (t));
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
    int good = fabs (get (a, 0, DT_F64) - 1 - 0.5 * want) < 1e-12 * want && get (a, 1, DT_F64) == 1 && same (a, b, 2, DT_F64)
      && get (m, 0, DT_F32) == max;
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
  tap_ok (h->norm == 5 && h->scale == 0.05 && h->skip == 0 && h->b1t == 0.9 && h->b2t == 0.95 && h->updates == 1,
    "clip and bias corrections");
  h->sumsq = 4, h->clip = 0;
  OP (OP_STEP_VARS, step_vars, .vars = v, .beta1 = 0.9, .beta2 = 0.95);
  tap_ok (h->norm == 0.5 && h->scale == 0.25 && h->updates == 2 && h->b1t == 0.9 * 0.9, "no clip");
  static const struct { double sumsq, bad, tokens; } skip[] = { { 4, 1, 4 }, { NAN, 0, 4 }, { INFINITY, 0, 4 }, { 4, 0, 0 } };
  for (int i = 0; i < LEN (skip); i++) {
    h->sumsq = skip[i].sumsq, h->bad = skip[i].bad, h->tokens = skip[i].tokens;
    OP (OP_STEP_VARS, step_vars, .vars = v, .beta1 = 0.9, .beta2 = 0.95);
    tap_ok (h->skip == 1 && h->updates == 2 && h->b1t == 0.9 * 0.9, "skip %d leaves the state alone", i);
  }
  static const struct { double loss, norm, bad, skip; } limit[] = { { 2.9, 0, 0, STEP_SPIKE }, { 3, 0, 0, 0 }, { 0, 0.49, 0, STEP_SPIKE }, { 0, 0.5, 0, 0 }, { 2.9, 0.49, 1, 1 }, { 0, 0, 0, 0 } };
  double updates = 2;
  for (int i = 0; i < LEN (limit); i++) {   /* loss 3, norm 0.5 */
    h->sumsq = 4, h->loss = 12, h->tokens = 4, h->bad = limit[i].bad, h->loss_limit = limit[i].loss, h->norm_limit = limit[i].norm;
    OP (OP_STEP_VARS, step_vars, .vars = v, .beta1 = 0.9, .beta2 = 0.95);
    updates += limit[i].skip == 0;
    tap_ok (h->skip == limit[i].skip && h->updates == updates, "limits of loss %g and norm %g, %g not finite: skip %g", limit[i].loss, limit[i].norm, limit[i].bad, limit[i].skip);
  }
}

static void adamw_case (int64_t n, enum dtype gt, enum dtype wt, bool weight)
{
  void *g = filled (n, gt, 1), *w = filled (n, DT_F32, 1), *m = filled (n, DT_F32, 0.1), *v = filled (n, DT_F32, 0.01),
    *out = weight ? tensor (n, wt) : NULL;
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
  struct op o = { .kind = OP_ADAMW, .adamw = { .n = n, .master = w, .m = m, .v = v, .grad = g, .weight = out, .vars = s,
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .gt = gt, .wt = wt } };
  run (&o);
  int good = close_to (m, DT_F32, wm, n, "m") && close_to (v, DT_F32, wv, n, "v") && close_at (w, DT_F32, NULL, ww, n, 1e-7,
    "master") && zones (w, n, DT_F32);
  for (int64_t i = 0; weight && i < n; i++) good &= get (out, i, wt) == round_to (get (w, i, DT_F32), wt);
  void *w2 = copy_of (w, n, DT_F32), *m2 = copy_of (m, n, DT_F32);
  ((struct step_vars *) cpu_at (s))->skip = 1;
  if (weight) memset (cpu_at (out), 0xff, (size_t) (n * dtype_size (wt)));
  set (g, 0, gt, NAN);
  run (&o);
  good &= same (w, w2, n, DT_F32) && same (m, m2, n, DT_F32);
  for (int64_t i = 0; weight && i < n; i++) good &= get (out, i, wt) == round_to (get (w, i, DT_F32), wt);
  tap_ok (good, "adamw of %lld, gradient %s, weight %s; skipped: nothing moves", (long long) n, dtype_name (gt),
    weight ? dtype_name (wt) : "none");
}

static void test_adamw (void)
{
  EACH_TYPE (gt) EACH_TYPE (wt) for (int i = 0; i < 2; i++) adamw_case (i ? 10001 : 3, gt, wt, i || wt == DT_F32);
  int64_t n = 20;   /* no gradient: matrices decay by 1 - lr decay a step, what has no decay stays to the bit */
  void *g = filled (n, DT_F32, 0), *w = filled (n, DT_F32, 1), *m = filled (n, DT_F32, 0), *v = filled (n, DT_F32, 0),
    *m2 = filled (n, DT_F32, 0), *v2 = filled (n, DT_F32, 0), *b = copy_of (w, n, DT_F32), *b0 = copy_of (w, n, DT_F32);
  struct step_vars *s = tensor (sizeof *s / 8, DT_F64), *h = cpu_at (s);
  double *want = values (w, n, DT_F32);
  *h = (struct step_vars) { .lr = 0.1, .clip = 1, .tokens = 8, .b1t = 1, .b2t = 1 };
  for (int i = 0; i < 10; i++) {
    OP (OP_STEP_VARS, step_vars, .vars = s, .beta1 = 0.9, .beta2 = 0.95);
    OP (OP_ADAMW, adamw, .n = n, .master = w, .m = m, .v = v, .grad = g, .vars = s, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
      .decay = 0.1);
    OP (OP_ADAMW, adamw, .n = n, .master = b, .m = m2, .v = v2, .grad = g, .vars = s, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
      .decay = 0);
  }
  for (int64_t i = 0; i < n; i++) want[i] *= 0.904382075;
  tap_ok (close_to (w, DT_F32, want, n, "decay") && same (b, b0, n, DT_F32), "decay alone: ten steps are a factor of 0.904382");
}

/* ---- initial weights ---- */
static void test_init (void)
{
  int64_t rows = 30, cols = 24, n = rows * cols;
  float *whole = tensor (n, DT_F32), *part = tensor (n, DT_F32), *h = cpu_at (whole), *p = cpu_at (part);
  OP (OP_INIT, init, .dst = whole, .n = n, .cols = cols, .rows = rows, .gcols = cols, .normal = true, .std = 0.02f, .seed = 5,
    .key = 77);
  double mean = 0, var = 0;
  for (int64_t i = 0; i < n; i++) mean += h[i] / (double) n, var += h[i] * h[i] / (double) n;
  tap_ok (fabs (mean) < 0.003 && fabs (sqrt (var) - 0.02) < 0.002 && zones (whole, n, DT_F32), "initial weights are normal");
  int good = 1;   /* rows 10..17, columns 6..19, two padding rows, elements 5.. of it */
  OP (OP_INIT, init, .dst = part, .start = 5, .n = 10 * 14 - 5, .cols = 14, .row0 = 10, .rows = 8, .col0 = 6, .gcols = cols,
    .normal = true, .std = 0.02f, .seed = 5, .key = 77);
  for (int64_t i = 5; i < 140; i++) good &= p[i - 5] == (i / 14 < 8 ? h[(10 + i / 14) * cols + 6 + i % 14] : 0);
  tap_ok (good && zones (part, 135, DT_F32), "a slice has the bits of the whole, padding is 0");
  OP (OP_INIT, init, .dst = part, .n = 20, .cols = 10, .rows = 1, .gcols = 10, .value = 1);
  tap_ok (p[0] == 1 && p[9] == 1 && p[10] == 0 && p[19] == 0, "initial value");
}

int main (int argc, char **argv)
{
  static void (*const test[]) (void) = { test_embed, test_xent, test_sumsq, test_step_vars, test_adamw, test_init };
  return maths_main (argc, argv, test, LEN (test));
}
