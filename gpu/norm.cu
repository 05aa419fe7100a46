/* norm: RMSNorm. 2^lg threads hold a vector in registers, N packs each, so that memory is passed over once; a block holds several
   short vectors. What does not fit (odd lengths or addresses, very long vectors) takes a slow path: a block a vector, one element
   at a time, memory twice. */
#include "common.cuh"

#define FWD_PACKS 5
#define BWD_PACKS 2   /* 3 for what 2 cannot hold: it spills, and was slower (0.57 of copy for 0.82 at 768) */
#define BWD_THREADS 512
#define SLOW_BLOCK 256
#define SLOW_PARTS 132

/* How a vector is spread: n packs of each of 2^lg threads; n 0 = the slow path. Of the ways that waste fewest lanes the one with
   most packs a thread. */
struct spread { int n, lg, block; };
static struct spread spread_of (int64_t packs, int n_max, int threads_max)
{
  struct spread best = {};
  int64_t room = INT64_MAX;
  for (int n = 1; n <= n_max; n++) {
    int lg = 0;
    while ((int64_t) n << lg < packs) lg++;
    if (n > 1 && lg < 3) break;   /* 8 threads read a line of 128 bytes */
    if (1 << lg > threads_max || (int64_t) n << lg > room) continue;
    room = (int64_t) n << lg;
    best.n = n;
    best.lg = lg;
  }
  best.block = 1 << best.lg > 256 ? 1 << best.lg : 256;
  return best;
}

/* ---- forward ---- */
static int64_t stride_or (int64_t stride, int64_t dense) { return stride ? stride : dense; }

/* vec / inner; short where it can be: with short vectors a division of 64 bits is most of the work. */
DEV int64_t row_of (int64_t vec, int64_t inner)
{
  if (inner == 1) return vec;
  return (vec | inner) >> 32 ? vec / inner : (int64_t) ((uint32_t) vec / (uint32_t) inner);
}

template <int N, class T> __global__ void __launch_bounds__ (1024) norm (const struct op_norm o, int lg)
{
  const int V = 16 / sizeof (T);
  __shared__ float red[32];
  int lane = threadIdx.x & ((1 << lg) - 1), dim = (int) o.dim;
  int64_t vec = (int64_t) blockIdx.x * (blockDim.x >> lg) + (threadIdx.x >> lg), row = row_of (vec, o.inner),
    in = (vec - row * o.inner) * dim;
  bool live = row < o.rows;
  int64_t at = row * o.x_stride + in, to = row * o.y_stride + in;
  pack<T, V> s[N], r[N];
  float q = 0;
  #pragma unroll
  for (int k = 0; k < N; k++) {
    int c = ((k << lg) + lane) * V;
    if (!live || c >= dim) continue;
    s[k] = load<V> ((const T *) o.x + at + c);
    if (o.res) r[k] = load<V> ((const T *) o.res + at + c);
  }
  #pragma unroll
  for (int k = 0; k < N; k++) {
    int c = ((k << lg) + lane) * V;
    float a[V], b[V];
    if (!live || c >= dim) continue;
    unpack (s[k], a);
    if (o.res) {
      unpack (r[k], b);
      #pragma unroll
      for (int i = 0; i < V; i++) a[i] += b[i];
      repack (a, &s[k]);
      store ((T *) o.sum + at + c, s[k]);
      unpack (s[k], a);   /* as rounded: backward sees the same */
    }
    #pragma unroll
    for (int i = 0; i < V; i++) q += a[i] * a[i];
  }
  q = group_fold (q, lg, red, op_sum ());
  if (!live) return;
  float rstd = 1 / sqrtf (q / (float) dim + o.eps);
  if (!lane) o.rstd[vec] = rstd;
  #pragma unroll
  for (int k = 0; k < N; k++) {
    int c = ((k << lg) + lane) * V;
    float a[V], w[V];
    if (c >= dim) continue;
    load_any (o.w, c, o.wt, w);
    unpack (s[k], a);
    #pragma unroll
    for (int i = 0; i < V; i++) a[i] = a[i] * rstd * w[i];
    store_f32 ((T *) o.y + to + c, a);
  }
}

template <class T> __global__ void __launch_bounds__ (SLOW_BLOCK) norm_slow (const struct op_norm o)
{
  int64_t vec = blockIdx.x, row = vec / o.inner, in = (vec - row * o.inner) * o.dim;
  const T *x = (const T *) o.x + row * o.x_stride + in, *res = o.res ? (const T *) o.res + row * o.x_stride + in : NULL, *s = x;
  T *sum = (T *) o.sum + row * o.x_stride + in, *y = (T *) o.y + row * o.y_stride + in;
  float q = 0, w[1];
  if (res) s = sum;
  for (int64_t c = threadIdx.x; c < o.dim; c += SLOW_BLOCK) {
    if (res) from_f32 (to_f32 (x[c]) + to_f32 (res[c]), &sum[c]);
    float a = to_f32 (s[c]);
    q += a * a;
  }
  q = block_fold<SLOW_BLOCK> (q, op_sum ());
  float rstd = 1 / sqrtf (q / (float) o.dim + o.eps);
  if (!threadIdx.x) o.rstd[vec] = rstd;
  for (int64_t c = threadIdx.x; c < o.dim; c += SLOW_BLOCK) {
    load_any (o.w, c, o.wt, w);
    from_f32 (to_f32 (s[c]) * rstd * w[0], &y[c]);
  }
}

template <int N, class T> static void norm_n (const struct op_norm *o, struct spread p, cudaStream_t s)
{
  norm<N, T><<<(unsigned) ceil_div (o->rows * o->inner, p.block >> p.lg), p.block, 0, s>>> (*o, p.lg);
}

cudaError_t k_norm (const struct op_norm *op, cudaStream_t s)
{
  struct op_norm o = *op;
  if (o.rows <= 0 || o.inner <= 0) return cudaGetLastError ();
  o.x_stride = stride_or (o.x_stride, o.inner * o.dim);
  o.y_stride = stride_or (o.y_stride, o.inner * o.dim);
  int v = 16 / (int) dtype_size (o.t);
  bool ok = o.dim % v == 0 && o.x_stride % v == 0 && o.y_stride % v == 0 && fits (o.x, v, o.t) && fits (o.res, v, o.t)
    && fits (o.sum, v, o.t) && fits (o.y, v, o.t)
    && fits (o.w, v, o.wt);
  struct spread p = spread_of (o.dim / v, FWD_PACKS, 1024);
  WITH_TYPE (o.t, T,
    static void (*const launch[]) (const struct op_norm *, struct spread, cudaStream_t) = {
      NULL, norm_n<1, T>, norm_n<2, T>, norm_n<3, T>, norm_n<4, T>, norm_n<5, T> };
    if (ok && p.n) launch[p.n] (&o, p, s);
    else norm_slow<T><<<(unsigned) (o.rows * o.inner), SLOW_BLOCK, 0, s>>> (o));
  return cudaGetLastError ();
}

/* ---- backward: each of a fixed number of blocks goes over its share of the vectors, its part of dw in registers ---- */
/* The compiler would unpack w once, before the loop, and run out of registers. */
template <class T, int V> DEV void keep_packed (pack<T, V> *p)
{
  #pragma unroll
  for (int i = 0; i < (int) (sizeof p->u / 4); i++) asm volatile ("" : "+r" (p->u[i]));
}

template <int N, class T> struct bwd_in {   /* a thread's part of a vector */
  pack<T, 16 / sizeof (T)> x[N], dy[N], dres[N];
  int64_t dx_at;
  float rstd;
  bool live;
};
template <int N, class T> DEV void bwd_load (const struct op_norm_bwd &o, int64_t vec, int lg, int lane, struct bwd_in<N, T> *p)
{
  const int V = 16 / sizeof (T);
  int64_t row = row_of (vec, o.inner), in = (vec - row * o.inner) * o.dim;
  p->live = row < o.rows;
  if (!p->live) return;
  p->rstd = o.rstd[vec];
  p->dx_at = row * o.dx_stride + in;
  #pragma unroll
  for (int k = 0; k < N; k++) {
    int c = ((k << lg) + lane) * V;
    if (c >= o.dim) continue;
    p->x[k] = load<V> ((const T *) o.x + row * o.x_stride + in + c);
    p->dy[k] = load<V> ((const T *) o.dy + row * o.y_stride + in + c);
    if (o.dres) p->dres[k] = load<V> ((const T *) o.dres + p->dx_at + c);
  }
}

template <int N, class T, class W> __global__ void __launch_bounds__ (BWD_THREADS, N == 1 ? 2 : 1)
norm_bwd (const struct op_norm_bwd o, int lg, float *part)
{
  const int V = 16 / sizeof (T);
  __shared__ float red[2][BWD_THREADS / 32], sum[N * 128 * V];
  int lane = threadIdx.x & ((1 << lg) - 1), groups = blockDim.x >> lg, group = threadIdx.x >> lg, dim = (int) o.dim;
  float dw[N][V] = {};
  pack<W, V> pw[N];
  #pragma unroll
  for (int k = 0; k < N; k++) {
    int c = ((k << lg) + lane) * V;
    if (c < dim) pw[k] = load<V> ((const W *) o.w + c);
  }
  int64_t step = (int64_t) gridDim.x * groups;
  struct bwd_in<N, T> next;
  bwd_load (o, (int64_t) blockIdx.x * groups + group, lg, lane, &next);
  for (int64_t turn = 0, first = (int64_t) blockIdx.x * groups; first < o.rows * o.inner; first += step, turn++) {
    struct bwd_in<N, T> now = next;
    #pragma unroll
    for (int k = 0; k < N; k++) keep_packed (&pw[k]);
    bwd_load (o, first + step + group, lg, lane, &next);   /* comes in while this one is worked on */
    float dot = 0;
    #pragma unroll
    for (int k = 0; k < N; k++) {
      float a[V], g[V], w[V];
      if (!now.live || ((k << lg) + lane) * V >= dim) continue;
      unpack (pw[k], w);
      unpack (now.x[k], a);
      unpack (now.dy[k], g);
      #pragma unroll
      for (int i = 0; i < V; i++) {
        float d = a[i] * now.rstd * g[i];
        dot += d * w[i];
        dw[k][i] += d;
      }
    }
    float mean = group_fold (dot, lg, red[turn & 1], op_sum ()) / (float) dim;
    #pragma unroll
    for (int k = 0; k < N; k++) {
      int c = ((k << lg) + lane) * V;
      float a[V], g[V], r[V], w[V];
      if (!now.live || c >= dim) continue;
      unpack (pw[k], w);
      unpack (now.x[k], a);
      unpack (now.dy[k], g);
      if (o.dres) unpack (now.dres[k], r);
      #pragma unroll
      for (int i = 0; i < V; i++) {
        a[i] = now.rstd * (g[i] * w[i] - a[i] * now.rstd * mean);
        if (o.dres) a[i] += r[i];
      }
      store_f32 ((T *) o.dx + now.dx_at + c, a);
    }
  }
  /* the block's groups in order, then its row of part */
  for (int g = 0; g < groups - 1; g++) {
    if (group == g)
      #pragma unroll
      for (int k = 0; k < N; k++)
        #pragma unroll
        for (int i = 0; i < V; i++) {
          int c = ((k << lg) + lane) * V + i;
          sum[c] = g ? sum[c] + dw[k][i] : dw[k][i];
        }
    __syncthreads ();
  }
  if (group == groups - 1)
    #pragma unroll
    for (int k = 0; k < N; k++) {
      int c = ((k << lg) + lane) * V;
      if (c >= dim) continue;
      #pragma unroll
      for (int i = 0; i < V; i++) if (groups > 1) dw[k][i] = sum[c + i] + dw[k][i];
      store_f32 (part + (int64_t) blockIdx.x * dim + c, dw[k]);
    }
}

template <class T> __global__ void __launch_bounds__ (SLOW_BLOCK) norm_bwd_slow (const struct op_norm_bwd o, float *part)
{
  float *dw = part + blockIdx.x * o.dim, w[1];
  for (int64_t c = threadIdx.x; c < o.dim; c += SLOW_BLOCK) dw[c] = 0;
  for (int64_t vec = blockIdx.x; vec < o.rows * o.inner; vec += gridDim.x) {
    int64_t row = vec / o.inner, in = (vec - row * o.inner) * o.dim;
    const T *x = (const T *) o.x + row * o.x_stride + in, *dy = (const T *) o.dy + row * o.y_stride + in;
    T *dx = (T *) o.dx + row * o.dx_stride + in;
    const T *dres = o.dres ? (const T *) o.dres + row * o.dx_stride + in : NULL;
    float rstd = o.rstd[vec], dot = 0;
    for (int64_t c = threadIdx.x; c < o.dim; c += SLOW_BLOCK) {
      load_any (o.w, c, o.wt, w);
      float d = to_f32 (x[c]) * rstd * to_f32 (dy[c]);
      dot += d * w[0];
      dw[c] += d;
    }
    float mean = block_fold<SLOW_BLOCK> (dot, op_sum ()) / (float) o.dim;
    for (int64_t c = threadIdx.x; c < o.dim; c += SLOW_BLOCK) {
      load_any (o.w, c, o.wt, w);
      float d = rstd * (to_f32 (dy[c]) * w[0] - to_f32 (x[c]) * rstd * mean);
      from_f32 (dres ? d + to_f32 (dres[c]) : d, &dx[c]);
    }
  }
}

/* The partition: from the shape alone. */
static struct spread bwd_spread (const struct op_norm_bwd *o)
{
  int v = 16 / (int) dtype_size (o->t);
  bool ok = o->dim % v == 0 && o->x_stride % v == 0 && o->y_stride % v == 0 && o->dx_stride % v == 0 && fits (o->x, v, o->t)
    && fits (o->dy, v, o->t)
    && fits (o->dx, v, o->t) && fits (o->dres, v, o->t) && fits (o->w, v, o->wt);
  struct spread p = spread_of (o->dim / v, BWD_PACKS, BWD_THREADS), none = {};
  if (!p.n) p = spread_of (o->dim / v, BWD_PACKS + 1, BWD_THREADS);
  return ok ? p : none;
}
static int64_t bwd_parts (const struct op_norm_bwd *o, struct spread p)
{
  int64_t vecs = o->rows * o->inner;
  int64_t most = (p.block == 256 ? 264 : 132) * (p.n == 1 ? 2 : 1);   /* what an H200 holds at once */
  return max64 (1, p.n ? min64 (most, ceil_div (vecs, p.block >> p.lg)) : min64 (SLOW_PARTS, vecs));
}

int64_t k_norm_bwd_work (const struct op_norm_bwd *o) 
{
  return bwd_parts (o, bwd_spread (o)) * o->dim * (int64_t) sizeof (float);
}

template <int N, class T> static void norm_bwd_n (const struct op_norm_bwd *o, struct spread p, float *part, unsigned parts,
  cudaStream_t s)
{
  WITH_TYPE (o->wt, W, norm_bwd<N, T, W><<<parts, p.block, 0, s>>> (*o, p.lg, part));
}

cudaError_t k_norm_bwd (const struct op_norm_bwd *op, void *work, cudaStream_t s)
{
  struct op_norm_bwd o = *op;
  int64_t dense = o.inner * o.dim;
  o.x_stride = stride_or (o.x_stride, dense);
  o.y_stride = stride_or (o.y_stride, dense);
  o.dx_stride = stride_or (o.dx_stride, dense);
  struct spread p = bwd_spread (&o);
  unsigned parts = (unsigned) bwd_parts (&o, p);
  float *part = (float *) work;
  WITH_TYPE (o.t, T,
    static void (*const launch[]) (const struct op_norm_bwd *, struct spread, float *, unsigned, cudaStream_t) = {
      NULL, norm_bwd_n<1, T>, norm_bwd_n<2, T>, norm_bwd_n<3, T> };
    if (p.n) launch[p.n] (&o, p, part, parts, s);
    else norm_bwd_slow<T><<<parts, SLOW_BLOCK, 0, s>>> (o, part));
  return sum_parts (part, parts, o.dim, o.dw, o.dw_beta, o.gt, s);
}
