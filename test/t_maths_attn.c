/* The cpu device's attention against plain binary64, its gradients against finite differences. np: 1 */
#include "config.h"
#include "maths.h"

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
    bool sees = key <= pos && key >= (o->doc ? (int64_t) get (o->doc, b * o->sq + i, DT_I32) : 0)
      && (!o->window || pos - key < o->window);
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
  { 2, 1, 1, 1, 1, 2 }, { 1, 70, 70, 2, 2, 64 }, { 2, 40, 40, 4, 2, 24, .doc = true }, { 1, 150, 150, 3, 1, 40, .window = 33,
    .pad = 8 }, { 1, 33, 80, 2, 1, 80, .q0 = 47 },
  { 1, 200, 130, 2, 2, 16, .q0 = 60, .k0 = 90, .doc = true, .window = 100 }, { 1, 300, 300, 2, 1, 64, .doc = true, .pad = 3 },
    { 1, 20, 20, 1, 1, 128 }, { 1, 5, 30, 2, 2, 6, .q0 = 2, .k0 = 4 },
  { 1, 260, 260, 1, 1, 256 },
};

static void att_make (struct att *a, const struct acase *c, enum dtype t)
{
  struct op_attn *o = &a->o;
  *o = (struct op_attn) { c->batch, c->sq, c->sk, c->heads, c->kv_heads, c->head_dim, c->heads * c->head_dim + c->pad,
    c->kv_heads * c->head_dim + 2 * c->pad, c->heads * c->head_dim + 3 * c->pad,
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
      for (int64_t c = 0; c < a.o.head_dim;
      c++) err = fmax (err, fabs (get (a.o.o, r * a.o.o_stride + h * a.o.head_dim + c, t) - want[c]));
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
  for (int64_t h = kv * group; h < (kv + 1) * group; h++) for (int64_t i = only < 0 ? 0 : only;
  i < (only < 0 ? o->sq : only + 1); i++) {
    att_row (a, b, h, i, out);
    for (int64_t c = 0; c < o->head_dim; c++) loss += out[c] * d_o[(b * o->sq + i) * o->o_stride + h * o->head_dim + c];
  }
  return loss;
}

/* Gradients at sampled elements of x (q: only its own row changes). */
static int att_grad (const struct att *a, const double *d_o, double *x, bool is_q, int64_t stride, const void *got,
  int64_t got_stride, const double *before, const char *what)
{
  const struct op_attn *o = &a->o;
  int64_t at[60], rows = is_q ? o->sq : o->sk, heads = is_q ? o->heads : o->kv_heads;
  double want[60], h = 1e-4;
  for (int i = 0; i < 60; i++) {
    int64_t b = (int64_t) (fabs (uniform ()) * (double) o->batch), r = (int64_t) (fabs (uniform ()) * (double) rows),
      hd = (int64_t) (fabs (uniform ()) * (double) heads);
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
  void *d_o = filled (nq * o->o_stride, t, 1), *dq = filled (nq * qs, t, 1), *dk = filled (nk * ks, t, 1),
    *dv = filled (nk * ks, t, 1), *delta = tensor (o->batch * o->heads * o->sq, DT_F32);
  void *dq2 = copy_of (dq, nq * qs, t), *dk2 = copy_of (dk, nk * ks, t), *dv2 = copy_of (dv, nk * ks, t);
  double *g = values (d_o, nq * o->o_stride, t), *bq = accumulate ? values (dq, nq * qs, t) : doubles (nq * qs),
    *bk = accumulate ? values (dk, nk * ks, t) : doubles (nk * ks),
    *bv = accumulate ? values (dv, nk * ks, t) : doubles (nk * ks);
  run (&(struct op) { .kind = OP_ATTN, .attn = *o });
  struct op w = { .kind = OP_ATTN_BWD, .attn_bwd = { *o, d_o, dq, dk, dv, qs, ks, delta, accumulate } };
  run (&w);
  rounding = 3, floor_bf16 = 5e-4, floor_f32 = 2e-7;   /* o is an input too, and rounded; the reference has it exact */
  int good = att_grad (&a, g, a.q, true, o->q_stride, dq, qs, bq, "dq") & att_grad (&a, g, a.k, false, o->kv_stride, dk, ks, bk,
    "dk") & att_grad (&a, g, a.v, false, o->kv_stride, dv, ks, bv, "dv");
  rounding = 1.5, floor_bf16 = floor_f32 = 0;
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

int main (int argc, char **argv)
{
  static void (*const test[]) (void) = { test_attn, test_attn_bwd };
  return maths_main (argc, argv, test, LEN (test));
}
