/* Attention of the cuda device against the cpu device: cuDNN where it offers the shape, and our own kernels. np: 1

   Documents that all start at 0 change nothing but are not offered by cuDNN: with them the device runs our kernels, without them
   cuDNN's where it has the shape. fp32: 1e-5 (relative L2). bf16: RMS error at most 1.5 times that of rounding the exact result
   (references are fp32 from the same bf16 inputs), but for cuDNN's dk and dv of grouped heads: it rounds those of each query
   head to bf16 before it adds them. */
#include "config.h"
#include <mpi.h>
#include "mesh.h"
#include "tap.h"
#include "gpu_attn.h"

struct shape { int64_t b, sq, sk, h, hk, d, q0, k0, window; int docs; enum dtype t; };

#define CUDNN_GROUPED 1.9
enum { GAP = 8 };   /* elements at the end of each row that nobody may touch */

/* One operation's tensors on one rig. Gradients lie as q, k, v do. */
struct set { struct rig *r; struct shape s; enum dtype t; struct vec q, k, v, o, lse, doc, d_o, delta, dq, dk, dv; };
/* Host copies of inputs. */
struct input { float *q, *k, *v, *d_o, *o, *lse; int32_t *doc; };

static int64_t q_stride (const struct shape *s) { return s->h * s->d + GAP; }
static int64_t kv_stride (const struct shape *s) { return s->hk * s->d + GAP; }
static int64_t q_count (const struct shape *s) { return s->b * s->sq * q_stride (s); }
static int64_t kv_count (const struct shape *s) { return s->b * s->sk * kv_stride (s); }
static int64_t stat_count (const struct shape *s) { return s->b * s->h * s->sq; }

static struct set set_new (struct rig *r, const struct shape *s, enum dtype t, const struct input *in)
{
  int64_t nq = q_count (s), nk = kv_count (s), ns = stat_count (s);
  struct set x = { r, *s, t, vec_new (r, nq, t), vec_new (r, nk, t), vec_new (r, nk, t), vec_new (r, nq, t),
      vec_new (r, ns, DT_F32), vec_new (r, s->b * s->sq, DT_I32),
                   vec_new (r, nq, t), vec_new (r, ns, DT_F32), vec_new (r, nq, t), vec_new (r, nk, t), vec_new (r, nk, t) };
  vec_put (&x.q, in->q), vec_put (&x.k, in->k), vec_put (&x.v, in->v), vec_put (&x.d_o, in->d_o);
  dev_put (&r->d, r->q, x.doc.p, in->doc, s->b * s->sq * 4);
  return x;
}
static void set_free (struct set *x)
{
  struct vec *all[] = { &x->q, &x->k, &x->v, &x->o, &x->lse, &x->doc, &x->d_o, &x->delta, &x->dq, &x->dk, &x->dv };
  for (int i = 0; i < LEN (all); i++) vec_free (all[i]);
}
static void poison (struct vec *v)
{
  void *h = malloc ((size_t) (v->n * dtype_size (v->t)));
  memset (h, 0xff, (size_t) (v->n * dtype_size (v->t)));
  dev_put (&v->r->d, v->r->q, v->p, h, v->n * dtype_size (v->t));
  free (h);
}

static struct op_attn attn_of (const struct set *x, bool doc)
{
  const struct shape *s = &x->s;
  return (struct op_attn) { .batch = s->b, .sq = s->sq, .sk = s->sk, .heads = s->h, .kv_heads = s->hk, .head_dim = s->d,
      .q_stride = q_stride (s), .kv_stride = kv_stride (s),
    .o_stride = q_stride (s), .q0 = s->q0, .k0 = s->k0, .window = s->window, .q = x->q.p, .k = x->k.p, .v = x->v.p, .o = x->o.p,
        .lse = x->lse.p,
    .doc = doc ? x->doc.p : NULL, .t = x->t };
}
static void forward (struct set *x, bool doc)
{
  poison (&x->o), poison (&x->lse);
  dev_issue (&x->r->d, x->r->q, &(struct op) { .kind = OP_ATTN, .attn = attn_of (x, doc) });
}
static void backward (struct set *x, bool doc, bool accumulate)
{
  struct op_attn_bwd w = { .f = attn_of (x, doc), .d_o = x->d_o.p, .dq = x->dq.p, .dk = x->dk.p, .dv = x->dv.p,
      .dq_stride = q_stride (&x->s), .dkv_stride = kv_stride (&x->s),
                           .delta = x->delta.p, .accumulate = accumulate };
  if (!accumulate) poison (&x->dq), poison (&x->dk), poison (&x->dv);
  dev_issue (&x->r->d, x->r->q, &(struct op) { .kind = OP_ATTN_BWD, .attn_bwd = w });
}

/* ---- comparing: rows of W elements and GAP behind ---- */

struct error { double err, ideal, norm; bool gaps, finite; };
static struct error compare (struct vec *got, const float *want, int64_t w)
{
  struct error e = { 0, 0, 0, true, true };
  float *x = malloc ((size_t) got->n * sizeof *x);
  vec_get (got, x);
  for (int64_t i = 0; i < got->n; i++) {
    if (i % (w + GAP) >= w) { if (!isnan (x[i])) e.gaps = false; continue; }
    if (!isfinite (x[i])) { e.finite = false; continue; }
    double y = want[i], r = bf16_to_f32 (f32_to_bf16 (want[i]));
    e.err += (x[i] - y) * (x[i] - y), e.ideal += (r - y) * (r - y), e.norm += y * y;
  }
  free (x);
  return e;
}
static double worst;   /* of bf16 errors over the ideal */
static bool good (const char *name, struct vec *got, const float *want, int64_t w, double slack)
{
  struct error e = compare (got, want, w);
  double ratio = sqrt (e.err / (e.ideal + 1e-30)), rel = sqrt (e.err / (e.norm + 1e-30));
  bool ok = e.gaps && e.finite && (got->t == DT_BF16 ? ratio <= slack : rel <= 1e-5);
  if (got->t == DT_BF16 && ratio > worst) worst = ratio;
  if (!ok) printf ("# %s: relative error %.3g, %.2f of the ideal, gaps %s, %s\n", name, rel, ratio, e.gaps ? "kept" : "WRITTEN",
      e.finite ? "finite" : "NOT FINITE");
  return ok;
}
static bool good_lse (struct vec *got, const float *want)
{
  float *x = malloc ((size_t) got->n * sizeof *x);
  double most = 0;
  vec_get (got, x);
  for (int64_t i = 0; i < got->n; i++) {
    bool none = want[i] == -INFINITY, same = x[i] == want[i] || fabs (x[i] - want[i]) <= most;
    if (!same) most = none || isnan (x[i]) ? INFINITY : fabs (x[i] - want[i]);
  }
  free (x);
  if (most > 1e-4) printf ("# lse: greatest error %g\n", most);
  return most <= 1e-4;
}
static bool same_bits (struct vec *a, const void *b, void *room)
{
  vec_raw (a, room);
  return !memcmp (room, b, (size_t) (a->n * dtype_size (a->t)));
}

/* ---- one shape ---- */

static struct input inputs (const struct shape *s)
{
  struct input in = { numbers (q_count (s), 1), numbers (kv_count (s), 1), numbers (kv_count (s), 1), numbers (q_count (s), 1),
      NULL, NULL, calloc ((size_t) (s->b * s->sq), 4) };
  for (int64_t i = 0; s->docs && i < s->b * s->sq; i++) {   /* documents of uneven length, cut at other places in each sequence */
    int64_t len = 37 + 61 * s->docs + 13 * (i / s->sq), pos = s->q0 + i % s->sq;
    in.doc[i] = (int32_t) (pos / len * len);
  }
  return in;
}

struct answer { float *o, *lse, *dq, *dk, *dv; };
/* By the cpu device in fp32. The backward's o is what a bf16 device has: rounded. */
static struct answer answers (struct rig *cpu, const struct shape *s, enum dtype t, const struct input *in)
{
  struct set x = set_new (cpu, s, DT_F32, in);
  struct answer a = { malloc ((size_t) q_count (s) * 4), malloc ((size_t) stat_count (s) * 4), malloc ((size_t) q_count (s) * 4),
      malloc ((size_t) kv_count (s) * 4),
                      malloc ((size_t) kv_count (s) * 4) };
  forward (&x, true);
  vec_get (&x.o, a.o), vec_get (&x.lse, a.lse);
  if (t == DT_BF16) {
    float *r = malloc ((size_t) q_count (s) * 4);
    for (int64_t i = 0; i < q_count (s); i++) r[i] = bf16_to_f32 (f32_to_bf16 (a.o[i]));
    vec_put (&x.o, r);
    free (r);
  }
  backward (&x, true, false);
  vec_get (&x.dq, a.dq), vec_get (&x.dk, a.dk), vec_get (&x.dv, a.dv);
  set_free (&x);
  return a;
}

/* Gradients of one way (documents or none) against the answers; with `twice` the same bits again. */
static void check_backward (struct set *x, const struct answer *a, bool doc, double kv_slack, const char *who, const char *what)
{
  int64_t qw = x->s.h * x->s.d, kw = x->s.hk * x->s.d;
  struct vec *g[3] = { &x->dq, &x->dk, &x->dv };
  void *first[3], *room = malloc ((size_t) MAX (q_count (&x->s), kv_count (&x->s)) * 4);
  backward (x, doc, false);
  bool ok = good ("dq", &x->dq, a->dq, qw, 1.5) & good ("dk", &x->dk, a->dk, kw, kv_slack) & good ("dv", &x->dv, a->dv, kw,
      kv_slack), again = true;
  tap_ok (ok, "backward, %s: %s", who, what);
  for (int i = 0; i < 3; i++) vec_raw (g[i], first[i] = malloc ((size_t) (g[i]->n * dtype_size (g[i]->t))));
  for (int n = 0; n < 3; n++) {
    backward (x, doc, false);
    for (int i = 0; i < 3; i++) again = again && same_bits (g[i], first[i], room);
  }
  tap_ok (again, "backward, %s: %s: the same bits each time", who, what);
  for (int i = 0; i < 3; i++) free (first[i]);
  free (room);
}

static bool bits_differ (struct vec *a, const void *b)
{
  void *room = malloc ((size_t) (a->n * dtype_size (a->t)));
  bool r = !same_bits (a, b, room);
  free (room);
  return r;
}

static void check_shape (struct rig *cpu, struct rig *gpu, const struct shape *s)
{
  char what[160];
  snprintf (what, sizeof what, "%s, %lld x %lld/%lld heads of %lld, %lld queries at %lld, %lld keys at %lld%s%s",
      dtype_name (s->t), (long long) s->b, (long long) s->h,
            (long long) s->hk, (long long) s->d, (long long) s->sq, (long long) s->q0, (long long) s->sk, (long long) s->k0,
                s->window ? ", window" : "", s->docs ? ", documents" : "");
  struct input in = inputs (s);
  struct answer a = answers (cpu, s, s->t, &in);
  struct set x = set_new (gpu, s, s->t, &in);
  int64_t w = s->h * s->d;
  worst = 0;
  forward (&x, true);
  tap_ok (good ("o", &x.o, a.o, w, 1.5) & good_lse (&x.lse, a.lse), "forward, ours: %s", what);
  void *ours = malloc ((size_t) (x.o.n * dtype_size (s->t)));
  vec_raw (&x.o, ours);
  vec_put (&x.o, a.o), vec_put (&x.lse, a.lse);
  check_backward (&x, &a, true, 1.5, "ours", what);
  if (!s->docs && s->t == DT_BF16) {
    forward (&x, false);
    bool other = bits_differ (&x.o, ours);
    const char *who = other ? "cuDNN" : "ours without documents";
    tap_ok (good ("o", &x.o, a.o, w, 1.5) & good_lse (&x.lse, a.lse), "forward, %s: %s", who, what);
    vec_put (&x.o, a.o), vec_put (&x.lse, a.lse);
    double slack = other && s->h > s->hk ? CUDNN_GROUPED : 1.5;
    check_backward (&x, &a, false, slack, other ? "cuDNN if offered, deterministic" : who, what);
    gpu->d.conf.deterministic = false;
    backward (&x, false, false);
    tap_ok (good ("dq", &x.dq, a.dq, w, 1.5) & good ("dk", &x.dk, a.dk, s->hk * s->d, slack) & good ("dv", &x.dv, a.dv,
        s->hk * s->d, slack), "backward, %s, any order: %s", who, what);
    gpu->d.conf.deterministic = true;
  }
  if (s->t == DT_BF16) printf ("# worst error over the ideal: %.2f\n", worst);
  free (ours);
  set_free (&x);
}

/* Keys in two parts, the second merged into the first; and gradients added to what is there. */
static void check_merge (struct rig *cpu, struct rig *gpu, enum dtype t)
{
  struct shape s = { 2, 150, 150, 4, 2, 64, .t = t };
  struct input in = inputs (&s);
  struct answer a = answers (cpu, &s, t, &in);
  struct set x = set_new (gpu, &s, t, &in);
  forward (&x, false);   /* poisons; then by parts */
  struct op_attn o = attn_of (&x, false);
  o.sk = 150;
  for (int part = 0; part < 2; part++) {   /* keys of one sequence are a buffer of their own: take sequences one by one */
    for (int64_t b = 0; b < s.b; b++) {
      struct op_attn p = o;
      int64_t k0 = part ? 70 : 0, at = b * s.sq * o.q_stride, kat = (b * s.sk + k0) * o.kv_stride;
      p.batch = 1, p.sk = part ? 80 : 70, p.k0 = k0, p.merge = part;
      p.q = at_elem (o.q, at, t), p.o = at_elem (o.o, at, t), p.k = at_elem (o.k, kat, t), p.v = at_elem (o.v, kat, t),
          p.lse = o.lse + b * s.h * s.sq;
      dev_issue (&gpu->d, gpu->q, &(struct op) { .kind = OP_ATTN, .attn = p });
    }
  }
  tap_ok (good ("o", &x.o, a.o, s.h * s.d, 2.2) & good_lse (&x.lse, a.lse), "forward in two parts merged, %s", dtype_name (t));
  vec_put (&x.o, a.o), vec_put (&x.lse, a.lse);
  backward (&x, false, false);
  backward (&x, false, true);
  float *twice[3] = { a.dq, a.dk, a.dv };
  int64_t n[3] = { q_count (&s), kv_count (&s), kv_count (&s) };
  for (int i = 0; i < 3; i++) for (int64_t j = 0; j < n[i]; j++) twice[i][j] *= 2;
  tap_ok (good ("dq", &x.dq, a.dq, s.h * s.d, 2.2) & good ("dk", &x.dk, a.dk, s.hk * s.d, 2.2) & good ("dv", &x.dv, a.dv,
      s.hk * s.d, 2.2),
          "backward added to what is there, %s", dtype_name (t));
  set_free (&x);
}

static const struct shape shapes[] = {
  { 2, 200, 200, 4, 2, 64, .t = DT_F32 }, { 1, 77, 77, 3, 3, 80, .t = DT_F32, .window = 20 },
      { 2, 90, 133, 4, 1, 128, 43, 0, .docs = 1, .t = DT_F32 },
  { 2, 256, 256, 4, 4, 128, .t = DT_BF16 }, { 2, 384, 384, 4, 2, 64, .t = DT_BF16 }, { 1, 1000, 1000, 4, 1, 128, .t = DT_BF16 },
      { 3, 65, 65, 2, 2, 128, .t = DT_BF16 },
  { 2, 300, 300, 4, 2, 80, .t = DT_BF16 }, { 2, 300, 300, 4, 2, 96, .t = DT_BF16 }, { 1, 333, 333, 4, 2, 192, .t = DT_BF16 },
      { 1, 257, 257, 4, 4, 256, .t = DT_BF16 },
  { 2, 500, 500, 4, 2, 128, .window = 100, .t = DT_BF16 }, { 2, 700, 700, 4, 2, 64, .docs = 1, .t = DT_BF16 },
      { 2, 700, 700, 4, 2, 128, .docs = 2, .window = 90, .t = DT_BF16 },
  { 1, 150, 260, 4, 2, 128, 100, 37, .t = DT_BF16 }, { 2, 130, 100, 4, 2, 64, 40, 90, .t = DT_BF16 },
      { 1, 1, 300, 4, 2, 128, 299, 0, .t = DT_BF16 },
  { 1, 3, 3, 2, 1, 64, .t = DT_BF16 }, { 1, 2048, 2048, 2, 2, 128, .t = DT_BF16 }, { 2, 100, 100, 2, 2, 36, .t = DT_BF16 },
};

int main (int argc, char **argv)
{
  struct rig cpu, gpu;
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  base_rank (0, 1, NULL);
  wait_init (1);
  if (!rig_open (&gpu, "cuda", 0, (int64_t) 1 << 30)) {
    printf ("1..0 # SKIP %s\n", rig_err.msg);
    MPI_Finalize ();
    return 0;
  }
  if (!rig_open (&cpu, "cpu", 0, 0)) die ("%s", rig_err.msg);
  int first = argc > 1 ? atoi (argv[1]) : 0, last = argc > 1 ? first + 1 : LEN (shapes);   /* one shape alone */
  for (int i = first; i < last; i++) check_shape (&cpu, &gpu, &shapes[i]);
  if (argc == 1) check_merge (&cpu, &gpu, DT_F32), check_merge (&cpu, &gpu, DT_BF16);
  rig_close (&cpu);
  rig_close (&gpu);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
