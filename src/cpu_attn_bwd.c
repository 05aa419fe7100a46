#include "config.h"
#include <omp.h>
#include "cpu_attn.h"
#include "cpu_ops.h"

/* One thread does all of one KV head of one sequence: for each query head of its group and each block of queries, the tiles of
   keys. The scores come again from lse; dK and dV gather in F32 in the thread's scratch, so every sum has one order. */
struct bwd { struct op_attn_bwd o; int64_t blocks, keys, d; float scale; int64_t x0, x1, s0, s1; };   /* s: steps of a slice */

struct work {
  float qt[ATT_DIM_MAX * ATT_Q], gt[ATT_DIM_MAX * ATT_Q], dqt[ATT_DIM_MAX * ATT_Q];   /* [dim, queries]: q, d_o, dq */
  float q[ATT_Q * ATT_DIM_MAX], g[ATT_Q * ATT_DIM_MAX];                               /* [queries, dim] */
  float p[ATT_K * ATT_Q], ds[ATT_K * ATT_Q];                                          /* [keys, queries] */
  float lse[ATT_Q], delta[ATT_Q];
  struct att_seen seen;
  float rows[] __attribute__ ((aligned (64)));                                        /* [4, keys, dim]: k, v, dk, dv */
};

/* p = exp (scores - lse), 0 where not seen; ds = p (dp - delta) scale. */
static void grade (struct work *w, int64_t j0, int64_t c0, bool full, float scale)
{
  for (int64_t c = c0; c < w->seen.cols; c += VL) {
    vf lse = v_ld (w->lse, c, DT_F32), delta = v_ld (w->delta, c, DT_F32);
    vi lo, hi;
    memcpy (&lo, w->seen.lo + c, sizeof lo);
    memcpy (&hi, w->seen.hi + c, sizeof hi);
    for (int j = 0; j < ATT_K; j++) {
      float *s = w->p + j * ATT_Q + c, *g = w->ds + j * ATT_Q + c;
      int32_t key = (int32_t) j0 + j;
      vf p = v_exp (v_ld (s, 0, DT_F32) - lse);
      if (!full) p = v_sel ((lo <= key) & (hi > key), p, v_set (0));
      v_st (s, 0, DT_F32, p);
      v_st (g, 0, DT_F32, p * ((v_ld (g, 0, DT_F32) - delta) * scale));
    }
  }
}

static void tile (struct work *w, const struct bwd *a, int64_t j0)
{
  int64_t c0, d = a->d, n = a->keys * d, dim = a->o.f.head_dim, cols = w->seen.cols;
  float *k = w->rows + j0 * d, *v = k + n, *dk = v + n, *dv = dk + n;
  bool full = att_tile_full (&w->seen, j0, &c0);
  if (c0 == cols) return;
  tile_gemm (ATT_K, cols - c0, dim, k, d, 1, w->qt + c0, ATT_Q, w->p + c0, ATT_Q, false);
  tile_gemm (ATT_K, cols - c0, dim, v, d, 1, w->gt + c0, ATT_Q, w->ds + c0, ATT_Q, false);
  grade (w, j0, c0, full, a->scale);
  tile_gemm (ATT_K, d, cols - c0, w->p + c0, ATT_Q, 1, w->g + c0 * d, d, dv, d, true);
  tile_gemm (ATT_K, d, cols - c0, w->ds + c0, ATT_Q, 1, w->q + c0 * d, d, dk, d, true);
  tile_gemm (d, cols - c0, ATT_K, k, 1, d, w->ds + c0, ATT_Q, w->dqt + c0, ATT_Q, true);
}

/* Block i0 of queries of head h. */
static void block (struct work *w, const struct bwd *a, int64_t b, int64_t h, int64_t i0)
{
  const struct op_attn *o = &a->o.f;
  int64_t n = MIN ((int64_t) ATT_Q, o->sq - i0), d = a->d, at = (b * o->heads + h) * o->sq + i0, dim = o->head_dim;
  const void *q = at_elem (o->q, (b * o->sq + i0) * o->q_stride + h * dim, o->t),
    *g = at_elem (a->o.d_o, (b * o->sq + i0) * o->o_stride + h * dim, o->t);
  att_see (&w->seen, o, b, i0, n);
  void *dq = at_elem (a->o.dq, (b * o->sq + i0) * a->o.dq_stride + h * dim, o->t);
  tile_own (dq, a->o.dq_stride, n, dim, o->t);
  tile_load (w->q, d, q, o->q_stride, n, dim, w->seen.cols, d, o->t, 1);
  tile_load (w->g, d, g, o->o_stride, n, dim, w->seen.cols, d, o->t, 1);
  tile_load_t (w->qt, ATT_Q, q, o->q_stride, n, dim, w->seen.cols, d, o->t, a->scale);
  tile_load_t (w->gt, ATT_Q, g, o->o_stride, n, dim, w->seen.cols, d, o->t, 1);
  memset (w->dqt, 0, (size_t) (d * ATT_Q) * sizeof (float));
  for (int c = 0; c < ATT_Q; c++) {
    w->lse[c] = c < n && w->seen.hi[c] ? o->lse[at + c] : INFINITY;   /* a query that sees nothing: p = 0 */
    w->delta[c] = c < n ? a->o.delta[at + c] : 0;
  }
  for (int64_t j0 = w->seen.first / ATT_K * ATT_K; j0 < w->seen.end; j0 += ATT_K) tile (w, a, j0);
  tile_store_t (dq, a->o.dq_stride, w->dqt, ATT_Q, n, dim, o->t, a->o.accumulate);
}

static void begin (struct work *w, const struct bwd *a, int64_t b, int64_t kv)
{
  const struct op_attn *o = &a->o.f;
  int64_t at = b * o->sk * o->kv_stride + kv * o->head_dim, n = a->keys * a->d;
  tile_load (w->rows, a->d, at_elem (o->k, at, o->t), o->kv_stride, o->sk, o->head_dim, a->keys, a->d, o->t, 1);
  tile_load (w->rows + n, a->d, at_elem (o->v, at, o->t), o->kv_stride, o->sk, o->head_dim, a->keys, a->d, o->t, 1);
  memset (w->rows + 2 * n, 0, (size_t) (2 * n) * sizeof (float));
}

static void end (struct work *w, const struct bwd *a, int64_t b, int64_t kv)
{
  const struct op_attn *o = &a->o.f;
  int64_t at = b * o->sk * a->o.dkv_stride + kv * o->head_dim, n = a->keys * a->d;
  tile_store (at_elem (a->o.dk, at, o->t), a->o.dkv_stride, w->rows + 2 * n, a->d, o->sk, o->head_dim, o->t, a->o.accumulate);
  tile_store (at_elem (a->o.dv, at, o->t), a->o.dkv_stride, w->rows + 3 * n, a->d, o->sk, o->head_dim, o->t, a->o.accumulate);
}

/* Steps s0 .. s1 - 1 of each item of x0 .. x1 - 1; thread t has item x0 + t throughout. */
static void slice (const struct bwd *a)
{
  #pragma omp parallel for num_threads (cpu_threads) schedule (static, 1)
  for (int64_t x = a->x0; x < a->x1; x++) {
    const struct op_attn *o = &a->o.f;
    struct work *w = cpu_scratch ((int) (x - a->x0), (int64_t) sizeof *w + 4 * a->keys * a->d * (int64_t) sizeof (float));
    int64_t b = x / o->kv_heads, kv = x % o->kv_heads, group = o->heads / o->kv_heads;
    if (a->s0 == 0) begin (w, a, b, kv);
    for (int64_t s = a->s0; s < a->s1; s++) block (w, a, b, kv * group + s / a->blocks, s % a->blocks * ATT_Q);
    if (a->s1 == group * a->blocks) end (w, a, b, kv);
  }
  cpu_poll ();
}

/* delta = sum over a head of o * d_o, by rows. */
INLINE void delta_row (const struct op_attn_bwd *o, int64_t r, enum dtype t)
{
  for (int64_t h = 0; h < o->f.heads; h++) {
    vf s = v_set (0);
    int64_t at = r * o->f.o_stride + h * o->f.head_dim, end = at + o->f.head_dim;
    for (int64_t c = at; c < end; c += VL) s = v_fma (v_ldn (o->f.o, c, end, t, 0), v_ldn (o->d_o, c, end, t, 0), s);
    o->delta[(r / o->f.sq * o->f.heads + h) * o->f.sq + r % o->f.sq] = v_sum (s);
  }
}

static void delta_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_attn_bwd *o = arg;
  for (int64_t r = lo; r < hi; r++) WITH_TYPE (o->f.t, T, delta_row (o, r, T));
}

void cpu_attn_bwd (const struct op *op)
{
  const struct op_attn *f = &op->attn_bwd.f;
  struct bwd a = { .o = op->attn_bwd, .blocks = ceil_div (f->sq, ATT_Q), .keys = round_up (f->sk, ATT_K),
    .d = att_pad (f->head_dim), .scale = 1 / sqrtf ((float) f->head_dim) };
  struct op_attn *o = &a.o.f;
  att_addresses (o);
  a.o.d_o = cpu_at (a.o.d_o);
  a.o.dq = cpu_at (a.o.dq);
  a.o.dk = cpu_at (a.o.dk);
  a.o.dv = cpu_at (a.o.dv);
  a.o.delta = cpu_at (a.o.delta);
  must (o->head_dim <= ATT_DIM_MAX, "attention on the cpu has heads of at most %d", ATT_DIM_MAX);
  cpu_for (o->batch * o->sq, (double) (o->heads * o->head_dim) * 0.3, delta_part, &a.o);
  int64_t items = o->batch * o->kv_heads, steps = o->heads / o->kv_heads * a.blocks;
  int64_t some = MAX (1, (int64_t) (4e6 / (ATT_Q * (double) o->sk * (double) a.d * 0.06)));
  cpu_claim ();
  for (a.x0 = 0; a.x0 < items; a.x0 = a.x1) {
    a.x1 = MIN (a.x0 + cpu_threads, items);
    for (a.s0 = 0; a.s0 < steps; a.s0 = a.s1) {
      a.s1 = MIN (a.s0 + some, steps);
      slice (&a);
    }
  }
  cpu_yield ();
}
