/* Attention of the cuda device: checked on one sequence against the plain fp32 kernel, then timed. FLOPs are those of the causal
   half: forward 4 b h s^2 d / 2, backward 2.5 times that. Arguments: MiB of workspace, one shape (timed alone). Ours is what
   runs with documents (all from position 0), cuDNN what runs without, where it has the shape. One record a line. */
#include "config.h"
#include <mpi.h>
#include "mesh.h"
#include "../test/gpu_attn.h"
#include <stdio.h>

struct shape { int64_t b, h, hk, s, d; };
struct bench { struct shape s; enum dtype t; struct vec qkv, dqkv, o, d_o, lse, delta, doc; };

static struct op_attn_bwd op_of (const struct bench *x, bool doc)
{
  const struct shape *s = &x->s;
  int64_t w = (s->h + 2 * s->hk) * s->d, k = s->h * s->d, v = k + s->hk * s->d;
  struct op_attn f = { .batch = s->b, .sq = s->s, .sk = s->s, .heads = s->h, .kv_heads = s->hk, .head_dim = s->d, .q_stride = w,
      .kv_stride = w, .o_stride = k,
    .q = x->qkv.p, .k = at_elem (x->qkv.p, k, x->t), .v = at_elem (x->qkv.p, v, x->t), .o = x->o.p, .lse = x->lse.p, .doc = doc
        ? x->doc.p : NULL, .t = x->t };
  return (struct op_attn_bwd) { .f = f, .d_o = x->d_o.p, .dq = x->dqkv.p, .dk = at_elem (x->dqkv.p, k, x->t),
      .dv = at_elem (x->dqkv.p, v, x->t), .dq_stride = w, .dkv_stride = w,
                                .delta = x->delta.p };
}

static struct bench bench_new (struct rig *r, struct shape s, enum dtype t, const float *qkv, const float *d_o)
{
  int64_t n = s.b * s.s, w = (s.h + 2 * s.hk) * s.d;
  struct bench x = { s, t, vec_new (r, n * w, t), vec_new (r, n * w, t), vec_new (r, n * s.h * s.d, t),
      vec_new (r, n * s.h * s.d, t), vec_new (r, n * s.h, DT_F32),
                     vec_new (r, n * s.h, DT_F32), vec_new (r, n, DT_I32) };
  vec_put (&x.qkv, qkv), vec_put (&x.d_o, d_o);
  return x;
}
static void bench_free (struct bench *x)
{
  struct vec *all[] = { &x->qkv, &x->dqkv, &x->o, &x->d_o, &x->lse, &x->delta, &x->doc };
  for (int i = 0; i < LEN (all); i++) vec_free (all[i]);
}

static void issue (struct rig *r, const struct bench *x, bool doc, bool back)
{
  struct op_attn_bwd w = op_of (x, doc);
  dev_issue (&r->d, r->q, back ? &(struct op) { .kind = OP_ATTN_BWD, .attn_bwd = w }
      : &(struct op) { .kind = OP_ATTN, .attn = w.f });
}

/* Seconds of one, the median of a few batches. */
static double seconds (struct rig *r, const struct bench *x, bool doc, bool back)
{
  enum { BATCHES = 5 };
  double t[BATCHES];
  int n = 4;
  for (int i = 0; i < 2; i++) issue (r, x, doc, back);
  for (int i = 0; i < BATCHES; i++) {
    r->d.ops->drain (&r->d);
    double t0 = now ();
    for (int j = 0; j < n; j++) issue (r, x, doc, back);
    r->d.ops->drain (&r->d);
    t[i] = (now () - t0) / n;
    for (int j = i; j > 0 && t[j] < t[j - 1]; j--) { double y = t[j]; t[j] = t[j - 1], t[j - 1] = y; }
  }
  return t[BATCHES / 2];
}

static double error_of (struct vec *got, const float *want)
{
  float *x = malloc ((size_t) got->n * sizeof *x);
  double e = 0, y = 0;
  vec_get (got, x);
  for (int64_t i = 0; i < got->n; i++) e += (x[i] - want[i]) * (x[i] - want[i]), y += want[i] * want[i];
  free (x);
  return sqrt (e / y);
}

/* Errors of both ways against fp32 on one sequence of the shape. */
static void verify (struct rig *r, struct shape s)
{
  s.b = 1;
  int64_t n = s.s * (s.h + 2 * s.hk) * s.d, no = s.s * s.h * s.d;
  float *qkv = numbers (n, 1), *d_o = numbers (no, 1), *o = malloc ((size_t) no * 4), *g = malloc ((size_t) n * 4);
  struct bench f = bench_new (r, s, DT_F32, qkv, d_o), x = bench_new (r, s, DT_BF16, qkv, d_o);
  issue (r, &f, false, false), issue (r, &f, false, true);
  vec_get (&f.o, o), vec_get (&f.dqkv, g);
  for (int way = 0; way < 3; way++) {   /* ours, cuDNN, cuDNN in any order */
    r->d.conf.deterministic = way < 2;
    issue (r, &x, way == 0, false);
    issue (r, &x, way == 0, true);
    double eo = error_of (&x.o, o), eg = error_of (&x.dqkv, g);
    printf ("verify %lldx%lld/%lldx%lldx%lld %s: forward %.2e backward %.2e %s\n", (long long) s.b, (long long) s.h,
        (long long) s.hk, (long long) s.s, (long long) s.d,
            way == 0 ? "ours" : way == 1 ? "cudnn" : "cudnn any order", eo, eg, eo < 6e-3 && eg < 1e-2 ? "ok" : "WRONG");
  }
  bench_free (&f), bench_free (&x);
  free (qkv), free (d_o), free (o), free (g);
}

static void measure (struct rig *r, struct shape s)
{
  float *qkv = numbers (s.b * s.s * (s.h + 2 * s.hk) * s.d, 1), *d_o = numbers (s.b * s.s * s.h * s.d, 1);
  struct bench x = bench_new (r, s, DT_BF16, qkv, d_o);
  double flops = 4.0 * (double) (s.b * s.h * s.s * s.s * s.d) / 2;
  free (qkv), free (d_o);
  for (int way = 0; way < 3; way++) {
    r->d.conf.deterministic = way < 2;
    double f = seconds (r, &x, way == 0, false), b = seconds (r, &x, way == 0, true);
    printf ("attention (%lld MiB) %lldx%lld/%lldx%lldx%lld %s: forward %.3f ms %.0f TFLOP/s, backward %.3f ms %.0f TFLOP/s\n",
        (long long) r->work_bytes >> 20, (long long) s.b,
            (long long) s.h, (long long) s.hk, (long long) s.s, (long long) s.d, way == 0 ? "ours" : way == 1
                ? "cudnn deterministic" : "cudnn any order", f * 1e3, flops / f * 1e-12, b * 1e3, 2.5 * flops / b * 1e-12);
    fflush (stdout);
  }
  bench_free (&x);
}

int main (int argc, char **argv)
{
  static const struct shape shapes[] = { { 4, 32, 32, 4096, 128 }, { 2, 32, 8, 8192, 128 }, { 8, 32, 8, 4096, 64 }, { 4, 32, 8, 4096, 128 }, { 3, 32, 32, 4096, 128 },
      { 32, 12, 12, 1024, 64 } };
  struct rig r;
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  base_rank (0, 1, NULL);
  wait_init (1);
  if (!rig_open (&r, "cuda", 0, (int64_t) (argc > 1 ? atoi (argv[1]) : 1024) << 20)) {
    printf ("%s\n", rig_err.msg);
    MPI_Finalize ();
    return 0;
  }
  for (int i = argc > 2 ? atoi (argv[2]) : 0; i < (argc > 2 ? atoi (argv[2]) + 1 : LEN (shapes)); i++) {
    if (argc < 3) verify (&r, shapes[i]);
    measure (&r, shapes[i]);
  }
  rig_close (&r);
  MPI_Finalize ();
  return 0;
}
