#include "config.h"
#include <omp.h>
#include "cpu_attn.h"
#include "cpu_ops.h"

void att_addresses (struct op_attn *o)
{
  o->q = cpu_at (o->q);
  o->k = cpu_at (o->k);
  o->v = cpu_at (o->v);
  o->o = cpu_at (o->o);
  o->lse = cpu_at (o->lse);
  o->doc = cpu_at (o->doc);
}

void att_see (struct att_seen *s, const struct op_attn *o, int64_t b, int64_t i0, int64_t n)
{
  memset (s, 0, sizeof *s);
  s->first = o->sk;
  s->cols = att_pad (n);
  for (int64_t c = 0; c < n; c++) {
    int64_t pos = o->q0 + i0 + c, first = o->doc ? o->doc[b * o->sq + i0 + c] : 0;
    if (o->window) first = MAX (first, pos - o->window + 1);
    int64_t lo = MAX (first - o->k0, 0), hi = MIN (pos + 1 - o->k0, o->sk);
    if (lo >= hi) continue;
    s->lo[c] = (int32_t) lo;
    s->hi[c] = (int32_t) hi;
    s->first = MIN (s->first, lo);
    s->end = MAX (s->end, hi);
  }
}

bool att_tile_full (const struct att_seen *s, int64_t j0, int64_t *c0)
{
  int64_t c = 0;
  bool full = true;
  while (c < s->cols && !(s->hi[c] > j0 && s->lo[c] < j0 + ATT_K)) c++;
  *c0 = c / VL * VL;
  for (c = *c0; c < s->cols; c++) full &= s->lo[c] <= j0 && s->hi[c] >= j0 + ATT_K;
  return full;
}

/* ---- forward: one block of queries of one head, online softmax over the tiles of keys ---- */
struct fwd { struct op_attn o; int64_t blocks; };
struct work {   /* of a thread; F32 */
  float qt[ATT_DIM_MAX * ATT_Q], out[ATT_DIM_MAX * ATT_Q];   /* [dim, queries] */
  float k[ATT_K * ATT_DIM_MAX], v[ATT_K * ATT_DIM_MAX];      /* [keys, dim] */
  float s[ATT_K * ATT_Q];                                    /* [keys, queries] */
  vf max[ATT_QV], sum[ATT_QV];
  struct att_seen seen;
};

/* Scores of keys that a query does not see become -inf. */
static void hide (struct work *w, int64_t j0, int64_t c0)
{
  for (int64_t c = c0; c < w->seen.cols; c += VL) {
    vi lo, hi;
    memcpy (&lo, w->seen.lo + c, sizeof lo);
    memcpy (&hi, w->seen.hi + c, sizeof hi);
    for (int j = 0; j < ATT_K; j++) {
      float *s = w->s + j * ATT_Q + c;
      int32_t key = (int32_t) j0 + j;
      v_st (s, 0, DT_F32, v_sel ((lo <= key) & (hi > key), v_ld (s, 0, DT_F32), v_set (-INFINITY)));
    }
  }
}

/* Scores become exp (score - max); returns what the older sums and outputs of these 16 queries are to be multiplied by. */
INLINE vf soften (struct work *w, int64_t c)
{
  vf old = w->max[c / VL], max = old, sum = v_set (0);
  for (int j = 0; j < ATT_K; j++) max = v_max (v_ld (w->s, j * ATT_Q + c, DT_F32), max);
  vf base = v_sel (max > -INFINITY, max, v_set (0));   /* nothing seen yet: exp (-inf - 0) = 0 */
  for (int j = 0; j < ATT_K; j++) {
    vf p = v_exp (v_ld (w->s, j * ATT_Q + c, DT_F32) - base);
    sum += p;
    v_st (w->s, j * ATT_Q + c, DT_F32, p);
  }
  vf alpha = v_exp (old - base);
  w->max[c / VL] = max;
  w->sum[c / VL] = v_fma (w->sum[c / VL], alpha, sum);
  return alpha;
}

static void rescale (struct work *w, int64_t c, vf alpha, int64_t dim)
{
  vi same = alpha == 1.f;
  int32_t all = -1;
  for (int i = 0; i < VL; i++) all &= same[i];
  if (all) return;
  for (int64_t d = 0; d < dim; d++) v_st (w->out, d * ATT_Q + c, DT_F32, v_ld (w->out, d * ATT_Q + c, DT_F32) * alpha);
}

static void tile (struct work *w, const struct op_attn *o, int64_t b, int64_t kv, int64_t j0)
{
  int64_t c0, d = att_pad (o->head_dim), n = MIN ((int64_t) ATT_K, o->sk - j0);
  int64_t at = (b * o->sk + j0) * o->kv_stride + kv * o->head_dim;
  bool full = att_tile_full (&w->seen, j0, &c0);
  if (c0 == w->seen.cols) return;
  tile_load (w->k, d, at_elem (o->k, at, o->t), o->kv_stride, n, o->head_dim, ATT_K, d, o->t, 1);
  tile_load (w->v, d, at_elem (o->v, at, o->t), o->kv_stride, n, o->head_dim, ATT_K, d, o->t, 1);
  tile_gemm (ATT_K, w->seen.cols - c0, o->head_dim, w->k, d, 1, w->qt + c0, ATT_Q, w->s + c0, ATT_Q, false);
  if (!full) hide (w, j0, c0);
  for (int64_t c = c0; c < w->seen.cols; c += VL) rescale (w, c, soften (w, c), d);
  tile_gemm (d, w->seen.cols - c0, ATT_K, w->v, 1, d, w->s + c0, ATT_Q, w->out + c0, ATT_Q, true);
}

/* Before the first tile: nothing, or (merge) the part that o and lse hold, whose sum counts as 1 at max = lse. */
static void begin (struct work *w, const struct op_attn *o, const float *lse, const void *out, int64_t n)
{
  int64_t d = att_pad (o->head_dim);
  memset (w->out, 0, (size_t) (d * ATT_Q) * sizeof (float));
  if (o->merge) tile_load_t (w->out, ATT_Q, out, o->o_stride, n, o->head_dim, att_pad (n), d, o->t, 1);
  for (int64_t c = 0; c < w->seen.cols; c += VL) {
    w->max[c / VL] = o->merge ? v_ldn (lse, c, MAX (n, c), DT_F32, -INFINITY) : v_set (-INFINITY);
    w->sum[c / VL] = v_sel (w->max[c / VL] > -INFINITY, v_set (1), v_set (0));
  }
}

static void end (struct work *w, const struct op_attn *o, float *lse, void *out, int64_t n)
{
  for (int64_t c = 0; c < w->seen.cols; c += VL) {
    vf sum = w->sum[c / VL], inv = v_sel (sum > 0.f, 1.f / sum, v_set (0));
    rescale (w, c, v_sel (sum == sum, inv, sum), att_pad (o->head_dim));   /* NaN stays NaN */
    for (int i = 0; i < MIN (VL, n - c); i++) lse[c + i] = sum[i] == 0 ? -INFINITY : w->max[c / VL][i] + logf (sum[i]);
  }
  tile_store_t (out, o->o_stride, w->out, ATT_Q, n, o->head_dim, o->t, false);
}

static void fwd_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct fwd *f = arg;
  const struct op_attn *o = &f->o;
  struct work *w = cpu_scratch (omp_get_thread_num (), sizeof *w);
  for (int64_t x = lo; x < hi; x++) {
    /* a head's blocks in a row: K and V stay in cache */
    int64_t i0 = x % f->blocks * ATT_Q, h = x / f->blocks % o->heads, b = x / f->blocks / o->heads;
    int64_t n = MIN ((int64_t) ATT_Q, o->sq - i0), d = att_pad (o->head_dim), kv = h * o->kv_heads / o->heads;
    const void *q = at_elem (o->q, (b * o->sq + i0) * o->q_stride + h * o->head_dim, o->t);
    void *out = at_elem (o->o, (b * o->sq + i0) * o->o_stride + h * o->head_dim, o->t);
    float *lse = o->lse + (b * o->heads + h) * o->sq + i0;
    tile_load_t (w->qt, ATT_Q, q, o->q_stride, n, o->head_dim, att_pad (n), d, o->t, 1 / sqrtf ((float) o->head_dim));
    att_see (&w->seen, o, b, i0, n);
    tile_own (out, o->o_stride, n, o->head_dim, o->t);
    begin (w, o, lse, out, n);
    for (int64_t j0 = w->seen.first / ATT_K * ATT_K; j0 < w->seen.end; j0 += ATT_K) tile (w, o, b, kv, j0);
    end (w, o, lse, out, n);
  }
}

void cpu_attn (const struct op *op)
{
  struct fwd f = { op->attn, ceil_div (op->attn.sq, ATT_Q) };
  att_addresses (&f.o);
  must (f.o.head_dim <= ATT_DIM_MAX, "attention on the cpu has heads of at most %d", ATT_DIM_MAX);
  double keys = (double) MIN (f.o.sk, f.o.window ? f.o.window + ATT_Q : f.o.sk);
  cpu_claim ();
  cpu_for (f.o.batch * f.blocks * f.o.heads, 1000 + ATT_Q * keys * (double) att_pad (f.o.head_dim) * 0.025, fwd_part, &f);
  cpu_yield ();
}
