/* The maths of the cpu device at the shape of b124m (dim 768, 12 heads of 64, ffn 2048, vocabulary 50304), 4096 tokens in
   sequences of 512: each
   operation is verified at some places,
     then timed (the best of several runs) and set against the limits of the same run: a product of 1024^3 for
   what computes, memcpy for what moves. Usage: b_ops [threads] [word in the name] */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include "dev_cpu.h"

uintptr_t cpu_base, cpu_span, cpu_delta;
int cpu_threads = 1;
void cpu_poll (void) {}

enum { TOKENS = 4096, SEQ = 512, DIM = 768, HEADS = 12, HEAD = 64, FFN = 2048, VOCAB = 50304, PART = 512 };

static void *room (int64_t n, enum dtype t, double scale)
{
  static uint64_t seed = 1;
  size_t bytes = (size_t) round_up (n * dtype_size (t), 2 << 20);
  void *p = aligned_alloc (2 << 20, bytes);
  must (p, "out of memory");
  madvise (p, bytes, MADV_HUGEPAGE);   /* as the device's arenas are */
  for (int64_t i = 0; i < n; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    float x = (float) (scale * (double) (int64_t) seed * 0x1p-63);
    if (t == DT_F32) ((float *) p)[i] = x;
    else ((bf16 *) p)[i] = f32_to_bf16 (x);
  }
  return p;
}
static double get (const void *p, int64_t i, enum dtype t) { return t == DT_F32 ? ((const float *) p)[i]
  : bf16_to_f32 (((const bf16 *) p)[i]); }
static double tol (enum dtype t) { return t == DT_F32 ? 1e-4 : 3e-2; }

/* With one thread its own processor time, which neighbours disturb less. */
static double seconds (void)
{
  struct timespec t;
  if (cpu_threads > 1) return now ();
  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static double best_of (const struct op *o)
{
  double best = 1e9, total = 0;
  for (int i = 0; i < 100 && (i < 3 || total < 0.6); i++) {
    double t = seconds ();
    cpu_maths[o->kind] (o);
    t = seconds () - t;
    best = MIN (best, t);
    total += t;
  }
  return best;
}

static double peak, copy;   /* GFLOP/s, GB/s */
static const char *only;

static void report (const char *name, enum dtype t, const struct op *o, double flop, double bytes, bool right)
{
  double s = best_of (o);
  printf ("%-28s %-5s %9.3f ms", name, dtype_name (t), s * 1e3);
  if (flop > 0) printf ("  %7.1f GFLOP/s  %4.2f of gemm", flop / s * 1e-9, flop / s * 1e-9 / peak);
  else printf ("  %7.1f GB/s     %4.2f of copy", bytes / s * 1e-9, bytes / s * 1e-9 / copy);
  printf ("%s\n", right ? "" : "  WRONG");
  fflush (stdout);
  if (!right) exit (1);
}
static bool wanted (const char *name) { return !only || strstr (name, only); }

static void limits (void)
{
  int64_t n = (int64_t) 64 << 20;
  void *a = room (1024 * 1024, DT_F32, 1), *b = room (1024 * 1024, DT_F32, 1), *c = room (1024 * 1024, DT_F32, 1),
    *x = room (n / 4, DT_F32, 1), *y = room (n / 4, DT_F32, 1);
  peak = 2.0 * 1024 * 1024 * 1024 * 1e-9 / best_of (&(struct op) { .kind = OP_GEMM, .gemm = { .m = 1024, .n = 1024, .k = 1024,
    .a = a, .b = b, .c = c } });
  copy = 2.0 * (double) n * 1e-9 / best_of (&(struct op) { .kind = OP_COPY, .copy = { .dst = y, .src = x, .bytes = n } });
  printf ("threads %d: fp32 gemm %.0f GFLOP/s, copy %.1f GB/s (read and written)\n", cpu_threads, peak, copy);
  free (a), free (b), free (c), free (x), free (y);
}

static bool gemm_right (const struct op_gemm *g)
{
  double err = 0, size = 0;
  for (int s = 0; s < 40; s++) {
    int64_t i = s * 7919 % g->m, j = s * 104729 % g->n;
    double sum = 0;
    for (int64_t k = 0; k < g->k; k++) sum += get (g->a, g->ta ? k * g->m + i : i * g->k + k, g->ab) * get (g->b,
      g->tb ? j * g->k + k : k * g->n + j, g->ab);
    err += pow (get (g->c, i * g->n + j, g->ct) - sum, 2);
    size += sum * sum;
  }
  return sqrt (err) < tol (g->ct) * sqrt (size);
}

static void gemms (enum dtype t)
{
  static const struct { const char *name; int64_t m, n, k; bool ta, tb, wide; } c[] = {
    { "gemm qkv", TOKENS, 3 * DIM, DIM, 0, 1, 0 }, { "gemm up", TOKENS, 2 * FFN, DIM, 0, 1, 0 }, { "gemm down", TOKENS, DIM,
      FFN, 0, 1, 0 }, { "gemm head", PART, VOCAB, DIM, 0, 1, 0 },
    { "gemm up, input", TOKENS, DIM, 2 * FFN, 0, 0, 0 }, { "gemm head, input", PART, DIM, VOCAB, 0, 0, 0 },
      { "gemm up, weight", 2 * FFN, DIM, TOKENS, 1, 0, 1 }, { "gemm head, weight", VOCAB, DIM, PART, 1, 0, 1 } };
  for (int i = 0; i < LEN (c); i++) if (wanted (c[i].name)) {
    struct op o = { .kind = OP_GEMM, .gemm = { .m = c[i].m, .n = c[i].n, .k = c[i].k, .ta = c[i].ta, .tb = c[i].tb, .ab = t,
      .ct = c[i].wide ? DT_F32 : t } };
    o.gemm.a = room (c[i].m * c[i].k, t, 1), o.gemm.b = room (c[i].k * c[i].n, t, 1), o.gemm.c = room (c[i].m * c[i].n,
      o.gemm.ct, 1);
    cpu_maths[OP_GEMM] (&o);
    bool right = gemm_right (&o.gemm);
    report (c[i].name, t, &o, 2.0 * (double) c[i].m * (double) c[i].n * (double) c[i].k, 0, right);
    free ((void *) o.gemm.a), free ((void *) o.gemm.b), free (o.gemm.c);
  }
}

/* The last query of the first sequence and head. */
static bool attn_right (const struct op_attn *a)
{
  double s[SEQ], sum = 0, out = 0, i = SEQ - 1;
  for (int j = 0; j < SEQ; j++) {
    s[j] = 0;
    for (int c = 0; c < HEAD; c++) s[j] += get (a->q, (int64_t) i * a->q_stride + c, a->t) * get (a->k, j * a->kv_stride + c,
      a->t);
    sum += s[j] = exp (s[j] / sqrt (HEAD));
  }
  for (int j = 0; j < SEQ; j++) out += s[j] / sum * get (a->v, j * a->kv_stride, a->t);
  return fabs (out - get (a->o, (int64_t) i * a->o_stride, a->t)) < tol (a->t) && fabs (log (sum) - a->lse[SEQ - 1]) < 1e-4;
}

static void attention (enum dtype t)
{
  if (!wanted ("attention")) return;
  int64_t w = 3 * DIM, n = TOKENS;
  char *qkv = room (n * w, t, 1), *d = room (n * w, t, 1);
  struct op o = { .kind = OP_ATTN, .attn = { .batch = n / SEQ, .sq = SEQ, .sk = SEQ, .heads = HEADS, .kv_heads = HEADS,
    .head_dim = HEAD, .q_stride = w, .kv_stride = w, .o_stride = DIM, .t = t } };
  o.attn.q = qkv, o.attn.k = at_elem (qkv, DIM, t), o.attn.v = at_elem (qkv, 2 * DIM, t), o.attn.o = room (n * DIM, t, 1),
    o.attn.lse = room (n * HEADS, DT_F32, 1);
  double flop = 4.0 * HEADS * HEAD * (double) n * SEQ / 2;   /* causal half */
  cpu_maths[OP_ATTN] (&o);
  bool right = attn_right (&o.attn);
  report ("attention", t, &o, flop, 0, right);
  struct op b = { .kind = OP_ATTN_BWD, .attn_bwd = { .f = o.attn, .d_o = room (n * DIM, t, 1), .dq = d,
    .dk = at_elem (d, DIM, t), .dv = at_elem (d, 2 * DIM, t), .dq_stride = w, .dkv_stride = w,
    .delta = room (n * HEADS, DT_F32, 1) } };
  report ("attention, backward", t, &b, 2.5 * flop, 0, right);
}

/* Run once, look at a value, then time. */
#define ROW(NAME, BYTES, RIGHT, KIND, field, ...) \
  if (wanted (NAME)) { \
    struct op o_ = { .kind = KIND, .field = { __VA_ARGS__ } }; \
    cpu_maths[KIND] (&o_); \
    report (NAME, t, &o_, 0, BYTES, RIGHT); \
  }

static bool near (double a, double b, enum dtype t) { return fabs (a - b) <= tol (t) * (fabs (b) + 0.01); }
static double silu (double x) { return x / (1 + exp (-x)); }

static void norms (enum dtype t)
{
  int64_t n = TOKENS;
  void *x = room (n * DIM, t, 1), *y = room (n * DIM, t, 1), *z = room (n * DIM, t, 1), *s = room (n * DIM, t, 1);
  void *w = room (DIM, t, 1), *dw = room (DIM, DT_F32, 1);
  float *rstd = room (n, DT_F32, 1);
  double act = (double) (n * DIM * dtype_size (t)), q = 0, sum = 0;
  for (int i = 0; i < DIM; i++) q += pow (get (x, i, t), 2) / DIM;
  ROW ("norm", 2 * act, near (get (y, 0, t), get (x, 0, t) / sqrt (q) * get (w, 0, t), t), OP_NORM, norm, .rows = n, .inner = 1,
    .dim = DIM, .x = x, .w = w, .y = y, .rstd = rstd, .eps = 1e-5f, .t = t, .wt = t);
  ROW ("norm, residual", 4 * act, near (get (s, 3, t), get (x, 3, t) + get (z, 3, t), t), OP_NORM, norm, .rows = n, .inner = 1,
    .dim = DIM, .x = x, .res = z, .sum = s, .w = w, .y = y, .rstd = rstd, .eps = 1e-5f, .t = t, .wt = t);
  for (int64_t i = 0; i < n; i++) sum += get (y, i * DIM, t) * get (x, i * DIM, t) * rstd[i];
  ROW ("norm, backward", 4 * act, near (get (dw, 0, DT_F32), sum, t), OP_NORM_BWD, norm_bwd, .rows = n, .inner = 1, .dim = DIM,
    .dy = y, .x = x, .w = w, .dres = z, .rstd = rstd, .dx = s, .dw = dw, .t = t, .wt = t, .gt = DT_F32);
  sum = 0;
  for (int64_t i = 0; i < n; i++) sum += get (x, i * DIM + 5, t);
  ROW ("colsum", act, near (get (dw, 5, DT_F32), sum, DT_BF16), OP_COLSUM, colsum, .rows = n, .cols = DIM, .stride = DIM, .x = x,
    .dst = dw, .t = t);
  free (x), free (y), free (z), free (s), free (w), free (dw), free (rstd);
}

static void elementwise (enum dtype t)
{
  int64_t n = TOKENS, e = dtype_size (t);
  void *x = room (n * DIM, t, 1), *y = room (n * DIM, t, 1), *gu = room (n * 2 * FFN, t, 1), *dgu = room (n * 2 * FFN, t, 1);
  void *f = room (n * FFN, t, 1);
  float *table = room (SEQ * HEAD, DT_F32, 1);
  double act = (double) (n * DIM * e), fb = (double) (n * FFN * e), a = get (y, 0, t), b = get (y, HEAD / 2, t);
  for (int64_t i = 0; i < SEQ * HEAD; i++) table[i] = i / (HEAD / 2) % 2 ? 0.6f : 0.8f;   /* a rotation keeps values as large */
  ROW ("rope", 2 * act, near (get (y, 0, t), a * 0.8 - b * 0.6, t), OP_ROPE, rope, .x = y, .n = n, .heads = HEADS,
    .head_dim = HEAD, .stride = DIM, .seq = SEQ, .table = table, .t = t);
  ROW ("axpby", 2 * act, near (get (y, 9, t), 2 * get (x, 9, t), t), OP_AXPBY, axpby, .y = y, .x = x, .n = n * DIM, .yt = t,
    .xt = t, .alpha = 2);
  a = get (gu, 1, t), b = get (gu, FFN + 1, t);
  ROW ("swiglu", 3 * fb, near (get (f, 1, t), silu (a) * b, t), OP_SWIGLU, swiglu, .n = n, .f = FFN, .gu = gu, .out = f, .t = t);
  ROW ("swiglu, backward", 5 * fb, near (get (dgu, FFN + 1, t), get (f, 1, t) * silu (a), t), OP_SWIGLU_BWD, swiglu_bwd, .n = n,
    .f = FFN, .gu = gu, .d_out = f, .dgu = dgu, .t = t);
  free (x), free (y), free (gu), free (dgu), free (f), free (table);
}

static void vocabulary (enum dtype t)
{
  int64_t n = TOKENS, p = PART, v = VOCAB;
  void *y = room (n * DIM, t, 1), *emb = room (v * DIM, t, 1), *demb = room (v * DIM, DT_F32, 1), *logits = room (p * v, t, 4);
  int32_t *ids = calloc ((size_t) n, 4), *work = calloc ((size_t) (2 * n + 2 * v + 2), 4);
  float *max = room (p, DT_F32, 1), *st = room (2 * p, DT_F32, 1);
  double act = (double) (n * DIM * dtype_size (t)), lb = (double) (p * v * dtype_size (t));
  double acc[2] = { 0 }, sum = 0, m = -1e9, first;
  for (int64_t i = 0; i < n; i++) ids[i] = (int32_t) (i * i * 7919 % v);
  for (int64_t i = 0; i < v; i++) m = MAX (m, get (logits, i, t));
  for (int64_t i = 0; i < v; i++) sum += exp (get (logits, i, t) - m);
  first = exp (get (logits, 1, t) - m) / sum;
  ROW ("embed", 2 * act, near (get (y, DIM, t), get (emb, ids[1] * (int64_t) DIM, t), t), OP_EMBED, embed, .n = n, .dim = DIM,
    .rows = v, .ids = ids, .table = emb, .out = y, .t = t);
  ROW ("embed, backward", act + 4.0 * (double) v * DIM, isfinite (get (demb, 0, DT_F32)), OP_EMBED_BWD, embed_bwd, .n = n,
    .dim = DIM, .rows = v, .ids = ids, .dy = y, .dtable = demb, .work = work, .t = t);
#define XENT(NAME, BYTES, RIGHT, KIND, G) \
  ROW (NAME, BYTES, RIGHT, KIND, xent, .n = p, .ld = v, .cols = v, .logits = logits, .target = ids, .max = max, .st = st, \
    .acc = acc, .grad = G, .t = t)
  XENT ("xent max", lb, max[0] == (float) m, OP_XENT_MAX, false);
  XENT ("xent sum", lb, near (st[0], sum, DT_F32), OP_XENT_SUM, false);
  XENT ("xent grad", 2 * lb, fabs (get (logits, 1, t) - first) < tol (t) * first, OP_XENT_GRAD, true);
  free (y), free (emb), free (demb), free (logits), free (ids), free (work), free (max), free (st);
}

static void optimizer (enum dtype t)
{
  int64_t n = 7 << 20;   /* a layer of b124m */
  float *w = room (n, DT_F32, 1), *m = room (n, DT_F32, 0), *v = room (n, DT_F32, 0), *g = room (n, DT_F32, 1);
  void *out = room (n, t, 1);
  struct step_vars vars = { .lr = 1e-5, .scale = 1, .b1t = 0.9, .b2t = 0.95 };
  double acc[2] = { 0 }, sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double) g[i] * g[i];
  ROW ("sum of squares", 4.0 * (double) n, fabs (acc[0] - sum) < 1e-9 * sum, OP_SUMSQ, sumsq, .x = g, .n = n, .weight = 1,
    .acc = acc);
  ROW ("adamw", 28.0 * (double) n + (double) (n * dtype_size (t)), near (m[1], 0.1 * g[1], DT_F32), OP_ADAMW, adamw, .n = n,
    .master = w, .m = m, .v = v, .grad = g, .weight = out, .vars = &vars, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1,
    .wt = t);
  ROW ("init", 4.0 * (double) n, isfinite (w[0]), OP_INIT, init, .dst = w, .n = n, .cols = DIM, .rows = n, .gcols = DIM,
    .normal = true, .std = 0.02f, .seed = 1, .key = 2);
  free (w), free (m), free (v), free (g), free (out);
}

int main (int argc, char **argv)
{
  MPI_Init (NULL, NULL);
  if (argc > 1) cpu_threads = atoi (argv[1]);
  if (argc > 2) only = argv[2];
  limits ();
  for (int i = 0; i < 2; i++) {
    enum dtype t = i ? DT_BF16 : DT_F32;
    gemms (t);
    attention (t);
    norms (t);
    elementwise (t);
    vocabulary (t);
    optimizer (t);
  }
  MPI_Finalize ();
  return 0;
}
