/* elem: one element at a time, and sums down columns. */
#include "common.cuh"

#define BLOCK 256

/* ---- axpby ---- */
template <int V, class Y, class X> __global__ void __launch_bounds__ (BLOCK) axpby (Y *y, const X *x, int64_t n, float alpha,
  float beta)
{
  const int U = 4;
  int64_t at = ((int64_t) blockIdx.x * (BLOCK * U) + threadIdx.x) * V;
  pack<X, V> px[U];
  pack<Y, V> py[U];
  #pragma unroll
  for (int u = 0; u < U; u++) {
    int64_t i = at + u * BLOCK * V;
    if (i + V > n) continue;
    px[u] = load<V> (x + i);
    if (beta != 0) py[u] = load<V> (y + i);
  }
  #pragma unroll
  for (int u = 0; u < U; u++) {
    int64_t i = at + u * BLOCK * V;
    float a[V], b[V];
    if (i + V > n) continue;
    unpack (px[u], a);
    if (beta != 0) unpack (py[u], b);
    #pragma unroll
    for (int k = 0; k < V; k++) a[k] = beta != 0 ? add (mul (a[k], alpha), mul (beta, b[k])) : mul (a[k], alpha);
    store_f32 (y + i, a);
  }
  int64_t k = tail_of (n, V);
  if (k < 0) return;
  float f = mul (to_f32 (x[k]), alpha);
  from_f32 (beta != 0 ? add (f, mul (beta, to_f32 (y[k]))) : f, &y[k]);
}

template <class Y, class X> static void axpby_of (const struct op_axpby *o, cudaStream_t s)
{
  const int V = sizeof (Y) + sizeof (X) == 4 ? 8 : 4;
  bool ok = fits (o->y, V, o->yt) && fits (o->x, V, o->xt);
  int64_t blocks = ceil_div (o->n, BLOCK * 4 * (ok ? V : 1));
  if (ok) axpby<V><<<(unsigned) blocks, BLOCK, 0, s>>> ((Y *) o->y, (const X *) o->x, o->n, o->alpha, o->beta);
  else axpby<1><<<(unsigned) blocks, BLOCK, 0, s>>> ((Y *) o->y, (const X *) o->x, o->n, o->alpha, o->beta);
}

cudaError_t k_axpby (const struct op_axpby *o, cudaStream_t s)
{
  if (o->n > 0) WITH_TYPE (o->yt, Y, WITH_TYPE (o->xt, X, axpby_of<Y, X> (o, s)));
  return cudaGetLastError ();
}

/* ---- fold: pieces of several ranks ---- */
template <int V, class T, class O> __global__ void __launch_bounds__ (BLOCK) fold (struct fold f)
{
  int64_t at = ((int64_t) blockIdx.x * BLOCK + threadIdx.x) * V;
  if (at >= f.count) return;
  const T *x = (const T *) f.src + at;
  O *out = (O *) f.out + at;
  float a[V], b[V];
  load_f32 (x, a);
  for (int r = 1; r < f.n; r++) {
    load_f32 (x + r * f.stride, b);
    #pragma unroll
    for (int k = 0; k < V; k++) a[k] = !f.max ? add (a[k], b[k]) : b[k] > a[k] || b[k] != b[k] ? b[k] : a[k];
  }
  if (f.beta != 0) {
    load_f32 (out, b);
    #pragma unroll
    for (int k = 0; k < V; k++) a[k] = add (mul (f.beta, b[k]), a[k]);
  }
  store_f32 (out, a);
}

template <class T, class O> static void fold_of (const struct fold *f, cudaStream_t s)
{
  const int V = 4;
  bool ok = fits (f->src, V, f->t) && fits (f->out, V, f->ot) && f->stride % V == 0 && f->count % V == 0;
  if (ok) fold<V, T, O><<<(unsigned) ceil_div (f->count, BLOCK * V), BLOCK, 0, s>>> (*f);
  else fold<1, T, O><<<(unsigned) ceil_div (f->count, BLOCK), BLOCK, 0, s>>> (*f);
}

cudaError_t k_fold (const struct fold *f, cudaStream_t s)
{
  if (f->count > 0) WITH_TYPE (f->t, T, WITH_TYPE (f->ot, O, fold_of<T, O> (f, s)));
  return cudaGetLastError ();
}

/* ---- amax: each of at most AMAX_PARTS blocks takes a fixed share, one block the shares ---- */
#define AMAX_BLOCK 512
#define AMAX_PARTS 264

template <int V, class T> __global__ void __launch_bounds__ (AMAX_BLOCK, 2) amax (const T *x, int64_t n, float *part)
{
  const int U = 4;
  const int64_t step = (int64_t) gridDim.x * AMAX_BLOCK * V;
  float m = 0;
  int64_t i = ((int64_t) blockIdx.x * AMAX_BLOCK + threadIdx.x) * V;
  for (; i + (U - 1) * step + V <= n; i += U * step) {
    pack<T, V> p[U];
    #pragma unroll
    for (int u = 0; u < U; u++) p[u] = load<V> (x + i + u * step);
    #pragma unroll
    for (int u = 0; u < U; u++) {
      float f[V];
      unpack (p[u], f);
      #pragma unroll
      for (int k = 0; k < V; k++) m = fmaxf (m, fabsf (f[k]));
    }
  }
  for (; i < n; i += step)
    for (int64_t k = i; k < n && k < i + V; k++) m = fmaxf (m, fabsf (to_f32 (x[k])));
  m = block_fold<AMAX_BLOCK> (m, op_max ());
  if (!threadIdx.x) part[blockIdx.x] = m;
}

static int64_t amax_parts (const struct op_amax *o) { return max64 (1, min64 (AMAX_PARTS, ceil_div (o->n, AMAX_BLOCK * 8))); }

int64_t k_amax_work (const struct op_amax *o) { return amax_parts (o) * (int64_t) sizeof (float); }

cudaError_t k_amax (const struct op_amax *o, void *work, cudaStream_t s)
{
  int parts = (int) amax_parts (o);
  float *part = parts > 1 ? (float *) work : o->dst;
  WITH_TYPE (o->t, T,
    const T *x = (const T *) o->x;
    if (fits (x, 16 / sizeof (T), o->t)) amax<16 / sizeof (T)><<<parts, AMAX_BLOCK, 0, s>>> (x, o->n, part);
    else amax<1><<<parts, AMAX_BLOCK, 0, s>>> (x, o->n, part));
  if (parts > 1) amax<1><<<1, AMAX_BLOCK, 0, s>>> ((const float *) part, (int64_t) parts, o->dst);
  return cudaGetLastError ();
}

/* ---- sums of columns: rows in slices of a fixed size, then the slices ---- */
#define TILE_ROWS 8          /* rows that a block reads at once, a warp each */
#define COLSUM_BLOCKS 528   /* what an H200 holds at once */

struct slices { int64_t tiles, parts, rows; };   /* column tiles; slices; rows of a slice */

static int colsum_v (const struct op_colsum *o)
{
  int v = 16 / (int) dtype_size (o->t);
  int64_t stride = o->stride ? o->stride : o->cols;
  return fits (o->x, v, o->t) && stride % v == 0 && o->cols % v == 0 ? v : 1;
}

static struct slices colsum_slices (const struct op_colsum *o)
{
  struct slices c;
  c.tiles = ceil_div (o->cols, 32 * colsum_v (o));
  c.parts = max64 (1, min64 (ceil_div (COLSUM_BLOCKS, c.tiles), ceil_div (o->rows, 64)));
  c.rows = max64 (1, ceil_div (o->rows, c.parts));
  c.parts = max64 (1, ceil_div (o->rows, c.rows));
  return c;
}

template <int V, class T> __global__ void __launch_bounds__ (32 * TILE_ROWS) colsum (const T *x, int64_t rows, int64_t cols,
  int64_t stride, struct slices c, float *part)
{
  const int U = 4;
  __shared__ float sum[TILE_ROWS][32 * V + 1];
  int64_t tile = blockIdx.x % c.tiles, slice = blockIdx.x / c.tiles, col = (tile * 32 + threadIdx.x) * V;
  int64_t end = (slice + 1) * c.rows < rows ? (slice + 1) * c.rows : rows;
  float a[V] = {};
  if (col < cols)
    for (int64_t r = slice * c.rows + threadIdx.y; r < end; r += U * TILE_ROWS) {
      pack<T, V> p[U];
      #pragma unroll
      for (int u = 0; u < U; u++)
        if (r + u * TILE_ROWS < end) p[u] = load<V> (x + (r + u * TILE_ROWS) * stride + col);
      #pragma unroll
      for (int u = 0; u < U; u++) {
        if (r + u * TILE_ROWS >= end) continue;
        float f[V];
        unpack (p[u], f);
        #pragma unroll
        for (int k = 0; k < V; k++) a[k] += f[k];
      }
    }
  #pragma unroll
  for (int k = 0; k < V; k++) sum[threadIdx.y][threadIdx.x * V + k] = a[k];
  __syncthreads ();
  for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * V; i += 32 * TILE_ROWS) {
    float s = 0;
    for (int k = 0; k < TILE_ROWS; k++) s += sum[k][i];
    if (tile * 32 * V + i < cols) part[slice * cols + tile * 32 * V + i] = s;
  }
}

template <class G> __global__ void __launch_bounds__ (1024) parts_sum (const float *part, int64_t parts, int64_t n, G *dst,
  float beta)
{
  __shared__ float sum[32][33];
  int64_t c = (int64_t) blockIdx.x * 32 + threadIdx.x;
  float s = 0;
  if (c < n)
    #pragma unroll 4
    for (int64_t p = threadIdx.y; p < parts; p += 32) s += part[p * n + c];
  sum[threadIdx.y][threadIdx.x] = s;
  __syncthreads ();
  if (threadIdx.y || c >= n) return;
  s = 0;
  for (int i = 0; i < 32; i++) s += sum[i][threadIdx.x];
  if (beta != 0) s += beta * to_f32 (dst[c]);
  from_f32 (s, &dst[c]);
}

cudaError_t sum_parts (const float *part, int64_t parts, int64_t n, void *dst, float beta, enum dtype gt, cudaStream_t s)
{
  WITH_TYPE (gt, G, parts_sum<<<(unsigned) ceil_div (n, 32), dim3 (32, 32), 0, s>>> (part, parts, n, (G *) dst, beta));
  return cudaGetLastError ();
}

int64_t k_colsum_work (const struct op_colsum *o) { return colsum_slices (o).parts * o->cols * (int64_t) sizeof (float); }

cudaError_t k_colsum (const struct op_colsum *o, void *work, cudaStream_t s)
{
  struct slices c = colsum_slices (o);
  int64_t stride = o->stride ? o->stride : o->cols;
  unsigned blocks = (unsigned) (c.tiles * c.parts);
  dim3 threads (32, TILE_ROWS);
  WITH_TYPE (o->t, T,
    const T *x = (const T *) o->x;
    const int V = 16 / sizeof (T);
    if (colsum_v (o) > 1) colsum<V><<<blocks, threads, 0, s>>> (x, o->rows, o->cols, stride, c, (float *) work);
    else colsum<1><<<blocks, threads, 0, s>>> (x, o->rows, o->cols, stride, c, (float *) work));
  return sum_parts ((const float *) work, c.parts, o->cols, o->dst, o->beta, o->gt, s);
}
