/* attn_plain: attention by a warp for each row, fp32 arithmetic throughout, any shape up to 256 elements a head: the form that
   checks are made with, and the fallback. A warp takes 32 of the others at a time: a lane computes the products of one of them,
   then each lane sums its own elements over the 32. */
#include <cuda_bf16.h>
#include <math.h>
#include "attn.cuh"

#define FN static __device__ __forceinline__
enum { WARPS = 4, MOST = 256, OWN = MOST / 32 };   /* OWN: elements of a head that a lane sums */

FN float get (const float *p, int64_t i) { return p[i]; }
FN float get (const bf16 *p, int64_t i) { return __uint_as_float ((uint32_t) p[i] << 16); }
FN void set (float *p, int64_t i, float x) { p[i] = x; }
FN void set (bf16 *p, int64_t i, float x) { p[i] = __bfloat16_as_ushort (__float2bfloat16_rn (x)); }

FN float sum_of (float x)
{
  for (int m = 16; m; m /= 2) x += __shfl_xor_sync (0xffffffffu, x, m);
  return x;
}
FN float max_of (float x)
{
  for (int m = 16; m; m /= 2) x = fmaxf (x, __shfl_xor_sync (0xffffffffu, x, m));
  return x;
}

/* Keys [lo, hi) that query i of sequence b sees. */
FN void keys_of (const struct op_attn &o, int64_t b, int64_t i, int64_t *lo, int64_t *hi)
{
  int64_t pos = o.q0 + i, first = o.doc ? o.doc[b * o.sq + i] : 0;
  if (o.window && first < pos - o.window + 1) first = pos - o.window + 1;
  *lo = min (max (first - o.k0, (int64_t) 0), o.sk);
  *hi = max (min (pos + 1 - o.k0, o.sk), *lo);
}

template <class T> FN float dot (const float *x, const T *y, int n)
{
  float s = 0;
  for (int c = 0; c < n; c++) s = fmaf (x[c], get (y, c), s);
  return s;
}
/* own += sum over lanes l of w[l] times row l of X (rows STRIDE apart, n of them). */
template <class T> FN void add_rows (float *own, float w, const T *x, int64_t stride, int n, int dim)
{
  for (int l = 0; l < n; l++) {
    float f = __shfl_sync (0xffffffffu, w, l);
    for (int e = 0; e < OWN; e++)
      if (threadIdx.x + 32 * e < dim) own[e] = fmaf (f, get (x, l * stride + threadIdx.x + 32 * e), own[e]);
  }
}
template <class T> FN void load_row (float *to, const T *x, int n)
{
  for (int c = threadIdx.x; c < n; c += 32) to[c] = get (x, c);
}
template <class T> FN void store_row (T *to, const float *own, float scale, int n, bool accumulate)
{
  for (int e = 0; e < OWN; e++) {
    int c = threadIdx.x + 32 * e;
    if (c < n) set (to, c, own[e] * scale + (accumulate ? get (to, c) : 0));
  }
}

template <class T> __global__ void plain_forward (const struct op_attn o, float scale)
{
  __shared__ float rows[WARPS][MOST];
  int64_t x = (int64_t) blockIdx.x * WARPS + threadIdx.y, i = x % o.sq, h = x / o.sq % o.heads, b = x / o.sq / o.heads,
      kv = h * o.kv_heads / o.heads, lo, hi;
  int d = (int) o.head_dim;
  if (b >= o.batch) return;
  float *q = rows[threadIdx.y], own[OWN] = { 0 }, *lse = o.lse + x, max = o.merge ? *lse : -INFINITY, was = max, sum = 0;
  load_row (q, (const T *) o.q + (b * o.sq + i) * o.q_stride + h * d, d);
  __syncwarp ();
  keys_of (o, b, i, &lo, &hi);
  for (int64_t j = lo; j < hi; j += 32) {
    int n = (int) min (hi - j, (int64_t) 32);
    const T *k = (const T *) o.k + (b * o.sk + j) * o.kv_stride + kv * d, *v = (const T *) o.v + (b * o.sk + j) * o.kv_stride
        + kv * d;
    float s = threadIdx.x < n ? dot (q, k + threadIdx.x * o.kv_stride, d) * scale : -INFINITY, top = fmaxf (max, max_of (s)),
        fade = expf (max - top), p = expf (s - top);
    sum = sum * fade + sum_of (p);
    for (int e = 0; e < OWN; e++) own[e] *= fade;
    add_rows (own, p, v, o.kv_stride, n, d);
    max = top;
  }
  T *out = (T *) o.o + (b * o.sq + i) * o.o_stride + h * d;
  float old = was > -INFINITY ? expf (was - max) : 0;
  if (old > 0)
    for (int e = 0; e < OWN; e++)
      if (threadIdx.x + 32 * e < d) own[e] += old * get (out, threadIdx.x + 32 * e);
  sum += old;
  store_row (out, own, sum > 0 ? 1 / sum : 0, d, false);
  __syncwarp ();
  if (threadIdx.x == 0) *lse = sum > 0 ? max + logf (sum) : -INFINITY;
}

/* delta[b, h, i] = sum of o d_o. */
template <class T> __global__ void plain_delta (const struct op_attn_bwd w)
{
  const struct op_attn &o = w.f;
  int64_t x = (int64_t) blockIdx.x * WARPS + threadIdx.y, i = x % o.sq, h = x / o.sq % o.heads, b = x / o.sq / o.heads;
  if (b >= o.batch) return;
  const T *out = (const T *) o.o + (b * o.sq + i) * o.o_stride + h * o.head_dim, *g = (const T *) w.d_o
      + (b * o.sq + i) * o.o_stride + h * o.head_dim;
  float s = 0;
  for (int c = threadIdx.x; c < o.head_dim; c += 32) s = fmaf (get (out, c), get (g, c), s);
  s = sum_of (s);
  if (threadIdx.x == 0) w.delta[x] = s;
}

template <class T> __global__ void plain_dq (const struct op_attn_bwd w, float scale)
{
  const struct op_attn &o = w.f;
  __shared__ float rows[WARPS][2][MOST];
  int64_t x = (int64_t) blockIdx.x * WARPS + threadIdx.y, i = x % o.sq, h = x / o.sq % o.heads, b = x / o.sq / o.heads,
      kv = h * o.kv_heads / o.heads, lo, hi;
  int d = (int) o.head_dim;
  if (b >= o.batch) return;
  float *q = rows[threadIdx.y][0], *g = rows[threadIdx.y][1], own[OWN] = { 0 }, lse = o.lse[x], delta = w.delta[x];
  load_row (q, (const T *) o.q + (b * o.sq + i) * o.q_stride + h * d, d);
  load_row (g, (const T *) w.d_o + (b * o.sq + i) * o.o_stride + h * d, d);
  __syncwarp ();
  keys_of (o, b, i, &lo, &hi);
  for (int64_t j = lo; j < hi; j += 32) {
    int n = (int) min (hi - j, (int64_t) 32);
    const T *k = (const T *) o.k + (b * o.sk + j) * o.kv_stride + kv * d, *v = (const T *) o.v + (b * o.sk + j) * o.kv_stride
        + kv * d;
    float ds = 0;
    if (threadIdx.x < n) ds = expf (dot (q, k + threadIdx.x * o.kv_stride, d) * scale - lse) * (dot (g, v
        + threadIdx.x * o.kv_stride, d) - delta);
    add_rows (own, ds, k, o.kv_stride, n, d);
  }
  store_row ((T *) w.dq + (b * o.sq + i) * w.dq_stride + h * d, own, scale, d, w.accumulate);
}

template <class T> __global__ void plain_dkv (const struct op_attn_bwd w, float scale)
{
  const struct op_attn &o = w.f;
  __shared__ float rows[WARPS][2][MOST];
  int64_t x = (int64_t) blockIdx.x * WARPS + threadIdx.y, j = x % o.sk, kv = x / o.sk % o.kv_heads, b = x / o.sk / o.kv_heads,
      group = o.heads / o.kv_heads;
  int d = (int) o.head_dim;
  if (b >= o.batch) return;
  float *k = rows[threadIdx.y][0], *v = rows[threadIdx.y][1], dk[OWN] = { 0 }, dv[OWN] = { 0 };
  load_row (k, (const T *) o.k + (b * o.sk + j) * o.kv_stride + kv * d, d);
  load_row (v, (const T *) o.v + (b * o.sk + j) * o.kv_stride + kv * d, d);
  __syncwarp ();
  for (int64_t h = kv * group; h < (kv + 1) * group; h++)
    for (int64_t i0 = max (j + o.k0 - o.q0, (int64_t) 0); i0 < o.sq; i0 += 32) {
      int n = (int) min (o.sq - i0, (int64_t) 32);
      int64_t i = i0 + threadIdx.x, lo, hi, row = (b * o.heads + h) * o.sq + i;
      const T *q = (const T *) o.q + (b * o.sq + i0) * o.q_stride + h * d, *g = (const T *) w.d_o + (b * o.sq + i0) * o.o_stride
          + h * d;
      float p = 0, ds = 0;
      if (threadIdx.x < n) {
        keys_of (o, b, i, &lo, &hi);
        if (j >= lo && j < hi) {
          p = expf (dot (k, q + threadIdx.x * o.q_stride, d) * scale - o.lse[row]);
          ds = p * (dot (v, g + threadIdx.x * o.o_stride, d) - w.delta[row]);
        }
      }
      if (!__any_sync (0xffffffffu, p > 0)) continue;
      add_rows (dv, p, g, o.o_stride, n, d);
      add_rows (dk, ds, q, o.q_stride, n, d);
    }
  store_row ((T *) w.dk + (b * o.sk + j) * w.dkv_stride + kv * d, dk, scale, d, w.accumulate);
  store_row ((T *) w.dv + (b * o.sk + j) * w.dkv_stride + kv * d, dv, 1, d, w.accumulate);
}

static unsigned blocks (int64_t rows) { return (unsigned) ((rows + WARPS - 1) / WARPS); }

cudaError_t plain_attn (const struct op_attn *o, cudaStream_t s)
{
  if (o->head_dim > MOST || o->heads % o->kv_heads) return cudaErrorInvalidValue;
  dim3 block (32, WARPS);
  float scale = 1 / sqrtf ((float) o->head_dim);
  unsigned n = blocks (o->batch * o->heads * o->sq);
  if (o->t == DT_F32) plain_forward<float><<<n, block, 0, s>>> (*o, scale);
  else plain_forward<bf16><<<n, block, 0, s>>> (*o, scale);
  return cudaGetLastError ();
}

template <class T> static cudaError_t backward (const struct op_attn_bwd *w, cudaStream_t s)
{
  const struct op_attn *o = &w->f;
  dim3 block (32, WARPS);
  float scale = 1 / sqrtf ((float) o->head_dim);
  unsigned n = blocks (o->batch * o->heads * o->sq);
  plain_delta<T><<<n, block, 0, s>>> (*w);
  plain_dq<T><<<n, block, 0, s>>> (*w, scale);
  plain_dkv<T><<<blocks (o->batch * o->kv_heads * o->sk), block, 0, s>>> (*w, scale);
  return cudaGetLastError ();
}
cudaError_t plain_attn_bwd (const struct op_attn_bwd *w, cudaStream_t s)
{
  if (w->f.head_dim > MOST || w->f.heads % w->f.kv_heads) return cudaErrorInvalidValue;
  return w->f.t == DT_F32 ? backward<float> (w, s) : backward<bf16> (w, s);
}
