/* opt: sum of squares, the scalars of a step, AdamW. */
#include "common.cuh"

/* ---- sum of squares in fp64: each of at most PARTS blocks takes a fixed share, one block adds up the shares ---- */
#define SUM_BLOCK 512
#define PARTS 264

struct partial { double sum, bad; };

DEV void add_sumsq (double weight, double sum, double bad, double *acc)
{
  if (weight != 0) acc[0] += weight * sum;
  acc[1] += bad;
}

template <int V, class T> __global__ void __launch_bounds__ (SUM_BLOCK, 2) sumsq (const T *x, int64_t n, double weight,
  double *acc, struct partial *part)
{
  const int U = 4;
  const int64_t step = (int64_t) gridDim.x * SUM_BLOCK * V;
  double s[2] = {};
  int bad = 0;
  auto take = [&] (float f, int k) {
    bad += (__float_as_uint (f) & 0x7f800000u) == 0x7f800000u;
    double d = f;
    s[k & 1] += d * d;
  };
  int64_t i = ((int64_t) blockIdx.x * SUM_BLOCK + threadIdx.x) * V;
  for (; i + (U - 1) * step + V <= n; i += U * step) {
    pack<T, V> p[U];
    #pragma unroll
    for (int u = 0; u < U; u++) p[u] = load<V> (x + i + u * step);
    #pragma unroll
    for (int u = 0; u < U; u++) {
      float f[V];
      unpack (p[u], f);
      #pragma unroll
      for (int k = 0; k < V; k++) take (f[k], k);
    }
  }
  for (; i < n; i += step)
    for (int64_t k = i; k < n && k < i + V; k++) take (to_f32 (x[k]), 0);
  double sum = block_fold<SUM_BLOCK> (s[0] + s[1], op_sum ()), many = block_fold<SUM_BLOCK> ((double) bad, op_sum ());
  if (threadIdx.x) return;
  if (part) part[blockIdx.x] = { sum, many };
  else add_sumsq (weight, sum, many, acc);
}

__global__ void __launch_bounds__ (SUM_BLOCK) sumsq_end (const struct partial *part, int parts, double weight, double *acc)
{
  struct partial p = {};
  if (threadIdx.x < parts) p = part[threadIdx.x];
  double sum = block_fold<SUM_BLOCK> (p.sum, op_sum ()), bad = block_fold<SUM_BLOCK> (p.bad, op_sum ());
  if (!threadIdx.x) add_sumsq (weight, sum, bad, acc);
}

static int64_t sumsq_parts (const struct op_sumsq *o) { return max64 (1, min64 (PARTS, ceil_div (o->n, SUM_BLOCK * 8))); }

int64_t k_sumsq_work (const struct op_sumsq *o) { return sumsq_parts (o) * (int64_t) sizeof (struct partial); }

cudaError_t k_sumsq (const struct op_sumsq *o, void *work, cudaStream_t s)
{
  int parts = (int) sumsq_parts (o);
  struct partial *part = parts > 1 ? (struct partial *) work : NULL;
  if (o->n <= 0) return cudaGetLastError ();
  WITH_TYPE (o->t, T,
    const T *x = (const T *) o->x;
    if (fits (x, 16 / sizeof (T), o->t)) sumsq<16 / sizeof (T)><<<parts, SUM_BLOCK, 0, s>>> (x, o->n, o->weight, o->acc, part);
    else sumsq<1><<<parts, SUM_BLOCK, 0, s>>> (x, o->n, o->weight, o->acc, part));
  if (part) sumsq_end<<<1, SUM_BLOCK, 0, s>>> (part, parts, o->weight, o->acc);
  return cudaGetLastError ();
}

/* ---- the scalars of a step ---- */
__global__ void step_vars (struct step_vars *v, double beta1, double beta2)
{
  v->norm = v->tokens > 0 ? sqrt (v->sumsq) / v->tokens : 0;
  v->skip = v->bad > 0 || !isfinite (v->norm) || !(v->tokens > 0);
  if (!v->skip && ((v->loss_limit > 0 && v->loss / v->tokens > v->loss_limit) || (v->norm_limit > 0 && v->norm > v->norm_limit))) v->skip = STEP_SPIKE;
  v->scale = v->skip ? 0 : (v->clip > 0 && v->norm > v->clip ? v->clip / v->norm : 1) / v->tokens;
  if (v->skip) return;
  v->b1t *= beta1;
  v->b2t *= beta2;
  v->updates++;
}

cudaError_t k_step_vars (const struct op_step_vars *o, cudaStream_t s)
{
  step_vars<<<1, 1, 0, s>>> (o->vars, o->beta1, o->beta2);
  return cudaGetLastError ();
}

/* ---- AdamW: the bits of the cpu device, every product and sum rounded by itself ---- */
#define BLOCK 256

struct rates { float lr, scale, b1, b2, d1, d2, c1, c2, eps, decay; };   /* d = 1 - b, rounded once */

DEV void adamw_one (const struct rates &r, float grad, float &w, float &m, float &v)
{
  float g = mul (grad, r.scale);
  m = add (mul (r.b1, m), mul (r.d1, g));
  v = add (mul (r.b2, v), mul (mul (r.d2, g), g));
  float d = __fdiv_rn (mul (m, r.c1), add (__fsqrt_rn (mul (v, r.c2)), r.eps));
  w = add (w, -mul (r.lr, add (d, mul (r.decay, w))));
}

template <int V, class G, class W> __global__ void __launch_bounds__ (BLOCK) adamw (const struct op_adamw o, struct rates r)
{
  const int U = 2;
  int64_t at = ((int64_t) blockIdx.x * (BLOCK * U) + threadIdx.x) * V;
  W *weight = (W *) o.weight;
  pack<G, V> pg[U];
  pack<float, V> w[U], m[U], v[U];
  #pragma unroll
  for (int u = 0; u < U; u++) {
    int64_t i = at + u * BLOCK * V;
    if (i + V > o.n) continue;
    w[u] = load<V> (o.master + i);
    m[u] = load<V> (o.m + i);
    v[u] = load<V> (o.v + i);
    pg[u] = load<V> ((const G *) o.grad + i);
  }
  bool skip = o.vars->skip != 0;
  r.lr = (float) o.vars->lr;
  r.scale = (float) o.vars->scale;
  r.c1 = (float) (1 / (1 - o.vars->b1t));
  r.c2 = (float) (1 / (1 - o.vars->b2t));
  #pragma unroll
  for (int u = 0; u < U; u++) {
    int64_t i = at + u * BLOCK * V;
    float g[V], x[V], y[V], z[V];
    if (i + V > o.n) continue;
    unpack (pg[u], g);
    unpack (w[u], x);
    unpack (m[u], y);
    unpack (v[u], z);
    if (!skip) {
      #pragma unroll
      for (int k = 0; k < V; k++) adamw_one (r, g[k], x[k], y[k], z[k]);
      store_f32 (o.master + i, x);
      store_f32 (o.m + i, y);
      store_f32 (o.v + i, z);
    }
    if (weight) store_f32 (weight + i, x);
  }
  int64_t k = tail_of (o.n, V);
  if (k < 0) return;
  if (!skip) adamw_one (r, to_f32 (((const G *) o.grad)[k]), o.master[k], o.m[k], o.v[k]);
  if (weight) from_f32 (o.master[k], &weight[k]);
}

cudaError_t k_adamw (const struct op_adamw *o, cudaStream_t s)
{
  struct rates r = {};
  if (o->n <= 0) return cudaGetLastError ();
  r.b1 = (float) o->beta1;
  r.b2 = (float) o->beta2;
  r.d1 = (float) (1 - o->beta1);
  r.d2 = (float) (1 - o->beta2);
  r.eps = (float) o->eps;
  r.decay = (float) o->decay;
  bool ok = fits (o->master, 4, DT_F32) && fits (o->m, 4, DT_F32) && fits (o->v, 4, DT_F32) && fits (o->grad, 4, o->gt)
    && fits (o->weight, 4, o->wt);
  unsigned blocks = (unsigned) ceil_div (o->n, BLOCK * 2 * (ok ? 4 : 1));
  WITH_TYPE (o->gt, G, WITH_TYPE (o->wt, W,
    if (ok) adamw<4, G, W><<<blocks, BLOCK, 0, s>>> (*o, r);
    else adamw<1, G, W><<<blocks, BLOCK, 0, s>>> (*o, r)));
  return cudaGetLastError ();
}
