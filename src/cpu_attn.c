#include "config.h"
#include "cpu_ops.h"

/* Plain form. */
struct at { struct op_attn o; float scale; };

static void attn_at (struct op_attn *o)
{
  o->q = cpu_at (o->q);
  o->k = cpu_at (o->k);
  o->v = cpu_at (o->v);
  o->o = cpu_at (o->o);
  o->lse = cpu_at (o->lse);
  o->doc = cpu_at (o->doc);
}

/* Keys [*lo, *hi) that query i of sequence b sees. */
static void keys_seen (const struct op_attn *o, int64_t b, int64_t i, int64_t *lo, int64_t *hi)
{
  int64_t pos = o->q0 + i, first = o->doc ? o->doc[b * o->sq + i] : 0;
  if (o->window && first < pos - o->window + 1) first = pos - o->window + 1;
  *lo = MIN (MAX (first - o->k0, 0), o->sk);
  *hi = MAX (MIN (pos + 1 - o->k0, o->sk), *lo);
}

static void attn_row (const struct at *a, int64_t b, int64_t h, int64_t i, float *s, float *acc)
{
  const struct op_attn *o = &a->o;
  int64_t lo, hi, d = o->head_dim, kv = h * o->kv_heads / o->heads;
  const void *q = at_elem (o->q, (b * o->sq + i) * o->q_stride + h * d, o->t);
  void *out = at_elem (o->o, (b * o->sq + i) * o->o_stride + h * d, o->t);
  float *lse = o->lse + (b * o->heads + h) * o->sq + i, max = o->merge ? *lse : -INFINITY, sum = 0;
  keys_seen (o, b, i, &lo, &hi);
  for (int64_t j = lo; j < hi; j++) {
    const void *k = at_elem (o->k, (b * o->sk + j) * o->kv_stride + kv * d, o->t);
    float x = 0;
    for (int64_t c = 0; c < d; c++) x += s_ld (q, c, o->t) * s_ld (k, c, o->t);
    s[j] = x * a->scale;
    max = MAX (max, s[j]);
  }
  float old = o->merge && *lse > -INFINITY ? expf (*lse - max) : 0;
  for (int64_t c = 0; c < d; c++) acc[c] = old > 0 ? old * s_ld (out, c, o->t) : 0;
  sum = old;
  for (int64_t j = lo; j < hi; j++) {
    const void *v = at_elem (o->v, (b * o->sk + j) * o->kv_stride + kv * d, o->t);
    float p = expf (s[j] - max);
    sum += p;
    for (int64_t c = 0; c < d; c++) acc[c] += p * s_ld (v, c, o->t);
  }
  for (int64_t c = 0; c < d; c++) s_st (out, c, o->t, sum > 0 ? acc[c] / sum : 0);
  *lse = sum > 0 ? max + logf (sum) : -INFINITY;
}

static void attn_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct at *a = arg;
  float *s = xalloc ((size_t) (a->o.sk + a->o.head_dim) * sizeof *s, "attention");
  for (int64_t x = lo; x < hi; x++)
    attn_row (a, x / a->o.sq / a->o.heads, x / a->o.sq % a->o.heads, x % a->o.sq, s, s + a->o.sk);
  xfree (s);
}

void cpu_attn (const struct op *op)
{
  struct at a = { op->attn, 1 / sqrtf ((float) op->attn.head_dim) };
  attn_at (&a.o);
  cpu_for (a.o.batch * a.o.heads * a.o.sq, (double) (a.o.sk * a.o.head_dim) * 0.5, attn_part, &a);
}

struct at_bwd { struct op_attn_bwd o; float scale; };

static float dot (const void *x, const void *y, int64_t n, enum dtype t)
{
  float s = 0;
  for (int64_t c = 0; c < n; c++) s += s_ld (x, c, t) * s_ld (y, c, t);
  return s;
}

static void add_scaled (float *y, float a, const void *x, int64_t n, enum dtype t)
{
  for (int64_t c = 0; c < n; c++) y[c] += a * s_ld (x, c, t);
}

static void put (void *y, const float *x, int64_t n, enum dtype t, bool accumulate)
{
  for (int64_t c = 0; c < n; c++) s_st (y, c, t, x[c] + (accumulate ? s_ld (y, c, t) : 0));
}

static void bwd_kv_head (const struct at_bwd *a, int64_t b, int64_t kv)
{
  const struct op_attn_bwd *w = &a->o;
  const struct op_attn *o = &w->f;
  int64_t d = o->head_dim, group = o->heads / o->kv_heads, lo, hi;
  float *dk = xalloc ((size_t) ((2 * o->sk + 1) * d) * sizeof *dk, "attention"), *dv = dk + o->sk * d, *dq = dv + o->sk * d;
  for (int64_t h = kv * group; h < (kv + 1) * group; h++)
    for (int64_t i = 0; i < o->sq; i++) {
      const void *q = at_elem (o->q, (b * o->sq + i) * o->q_stride + h * d, o->t);
      const void *out = at_elem (o->o, (b * o->sq + i) * o->o_stride + h * d, o->t), *d_o = at_elem (w->d_o, (b * o->sq + i) * o->o_stride + h * d, o->t);
      float lse = o->lse[(b * o->heads + h) * o->sq + i], delta = dot (out, d_o, d, o->t);
      memset (dq, 0, (size_t) d * sizeof *dq);
      keys_seen (o, b, i, &lo, &hi);
      for (int64_t j = lo; j < hi; j++) {
        const void *k = at_elem (o->k, (b * o->sk + j) * o->kv_stride + kv * d, o->t), *v = at_elem (o->v, (b * o->sk + j) * o->kv_stride + kv * d, o->t);
        float p = expf (dot (q, k, d, o->t) * a->scale - lse), ds = p * (dot (d_o, v, d, o->t) - delta) * a->scale;
        add_scaled (dv + j * d, p, d_o, d, o->t);
        add_scaled (dk + j * d, ds, q, d, o->t);
        add_scaled (dq, ds, k, d, o->t);
      }
      put (at_elem (w->dq, (b * o->sq + i) * w->dq_stride + h * d, o->t), dq, d, o->t, w->accumulate);
    }
  for (int64_t j = 0; j < o->sk; j++) {
    put (at_elem (w->dk, (b * o->sk + j) * w->dkv_stride + kv * d, o->t), dk + j * d, d, o->t, w->accumulate);
    put (at_elem (w->dv, (b * o->sk + j) * w->dkv_stride + kv * d, o->t), dv + j * d, d, o->t, w->accumulate);
  }
  xfree (dk);
}

static void bwd_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct at_bwd *a = arg;
  for (int64_t x = lo; x < hi; x++) bwd_kv_head (a, x / a->o.f.kv_heads, x % a->o.f.kv_heads);
}

void cpu_attn_bwd (const struct op *op)
{
  struct at_bwd a = { op->attn_bwd, 1 / sqrtf ((float) op->attn_bwd.f.head_dim) };
  attn_at (&a.o.f);
  a.o.d_o = cpu_at (a.o.d_o);
  a.o.dq = cpu_at (a.o.dq);
  a.o.dk = cpu_at (a.o.dk);
  a.o.dv = cpu_at (a.o.dv);
  cpu_for (a.o.f.batch * a.o.f.kv_heads, 1e6, bwd_part, &a);
}
