/* attn_fwd: forward of our attention on Hopper; see attn_hopper.cuh. */
#include "attn_hopper.cuh"

/* G: guests of a tile, N: stages, W: warpgroups that compute, 64 rows each. */
template <int D, int G, int N, int W> struct forward_memory {
  static const int HOME_BYTES = W * 64 * D * 2, TILE_BYTES = G * D * 2, K = HOME_BYTES, V = K + N * TILE_BYTES;
  static const int BARS = V + N * TILE_BYTES, BYTES = BARS + 8 * (1 + 4 * N) + 1024;
};
struct forward_bars { uint32_t home, full_k, full_v, free_k, free_v; };

template <int D, int G, int N, int W> FN void forward_copy (const args &a, uint32_t mem, forward_bars bars, int lo, int hi,
    int i0, const tensor_map *mq, const tensor_map *mk, const tensor_map *mv)
{
  typedef forward_memory<D, G, N, W> M;
  int h = blockIdx.y, b = blockIdx.z, kv = h * a.kv_heads / a.heads;
  ring<N> s;
  bar_expect (bars.home, M::HOME_BYTES);
  copy_tile<D, W * 64> (mem, mq, bars.home, h, i0, b);
  for (int t = lo; t < hi; t++, s.next ()) {
    bar_wait (bars.free_k + 8 * s.at, s.phase ^ 1);
    bar_expect (bars.full_k + 8 * s.at, M::TILE_BYTES);
    copy_tile<D, G> (mem + M::K + s.at * M::TILE_BYTES, mk, bars.full_k + 8 * s.at, kv, t * G, b);
    bar_wait (bars.free_v + 8 * s.at, s.phase ^ 1);
    bar_expect (bars.full_v + 8 * s.at, M::TILE_BYTES);
    copy_tile<D, G> (mem + M::V + s.at * M::TILE_BYTES, mv, bars.full_v + 8 * s.at, kv, t * G, b);
  }
}

/* Scores of a tile to probabilities against the running maximum (both in units of log 2), and the sums and maxima of two rows
   brought up to date. */
template <int G> FN void softmax (float (&s)[G / 2], float scale2, float *m, float *l, float *fade)
{
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = -INFINITY;
    #pragma unroll
    for (int i = 0; i < G / 8; i++) top = fmaxf (top, fmaxf (s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
    top = fmaxf (top, __shfl_xor_sync (0xffffffffu, top, 1));
    top = fmaxf (top, __shfl_xor_sync (0xffffffffu, top, 2));
    float now = fmaxf (m[r], top * scale2), at = now == -INFINITY ? 0 : now, sum = 0;
    fade[r] = exp2_fast (m[r] - at);
    m[r] = now;
    #pragma unroll
    for (int i = 0; i < G / 8; i++) {
      float &x = s[4 * i + 2 * r], &y = s[4 * i + 2 * r + 1];
      x = exp2_fast (fmaf (x, scale2, -at)), y = exp2_fast (fmaf (y, scale2, -at));
      sum += x + y;
    }
    l[r] = l[r] * fade[r] + sum;
  }
}

/* -inf where a row's query does not see the column's key. */
template <int G> FN void mask_keys (float (&s)[G / 2], int first, const int *lo, const int *hi)
{
  if (first >= max (lo[0], lo[1]) && first + G <= min (hi[0], hi[1])) return;
  int col = first + 2 * (threadIdx.x % 4);
  #pragma unroll
  for (int i = 0; i < G / 2; i++) {
    int j = col + 8 * (i / 4) + i % 2, r = i / 2 % 2;
    if (j < lo[r] || j >= hi[r]) s[i] = -INFINITY;
  }
}

/* Two rows of results; merge: with what is there. */
template <int D> FN void forward_store (const args &a, const float (&o)[D / 2], const float *m, const float *l, int row)
{
  int h = blockIdx.y, b = blockIdx.z;
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = row + 8 * r;
    float *lse = a.lse + ((int64_t) b * a.heads + h) * a.sq + i, sum = l[r], was = a.merge && i < a.sq ? *lse : -INFINITY;
    sum += __shfl_xor_sync (0xffffffffu, sum, 1);
    sum += __shfl_xor_sync (0xffffffffu, sum, 2);
    if (i >= a.sq) continue;
    float mine = sum > 0 ? (m[r] + log2f (sum)) * 0.69314718056f : -INFINITY, all = mine, old = 0;
    float now = sum > 0 ? 1 / sum : 0;
    if (a.merge) {
      float top = fmaxf (was, mine);
      all = top > -INFINITY ? top + logf (expf (was - top) + expf (mine - top)) : -INFINITY;
      old = was > -INFINITY ? expf (was - all) : 0;
      now *= mine > -INFINITY ? expf (mine - all) : 0;
    }
    if (threadIdx.x % 4 == 0) *lse = all;
    bf16 *out = a.o + ((int64_t) b * a.sq + i) * a.o_stride + (int64_t) h * a.head_dim;
    #pragma unroll
    for (int c = 0; c < D / 8; c++) {
      int x = 8 * c + 2 * (threadIdx.x % 4);
      if (x >= a.head_dim) continue;
      uint32_t *at = (uint32_t *) (out + x), there = old > 0 ? *at : 0;
      *at = pair (fmaf (o[4 * c + 2 * r], now, old * low_of (there)), fmaf (o[4 * c + 2 * r + 1], now, old * high_of (there)));
    }
  }
}

/* The product of a tile's probabilities with V and that of the next scores run while the softmax of those scores is taken. */
template <int D, int G, int N, int W> FN void forward_compute (const args &a, uint32_t mem, forward_bars bars, int t, int end,
    int i0)
{
  typedef forward_memory<D, G, N, W> M;
  int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, lo[2], hi[2];
  int row = i0 + wg * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
  float o[D / 2], s[G / 2], m[2] = { -INFINITY, -INFINITY }, l[2] = { 0, 0 }, fade[2];
  uint32_t p[G / 4], q = mem + wg * 64 * 128;
  ring<N> k, v;
  #pragma unroll
  for (int i = 0; i < D / 2; i++) o[i] = 0;
  for (int r = 0; r < 2; r++) keys_of (a, blockIdx.z, row + 8 * r, &lo[r], &hi[r]);
  bar_wait (bars.home, 0);
  if (t < end) {
    bar_wait (bars.full_k, 0);
    mma_begin ();
    mma_rows<D, G> (s, q, W * 64 * 128, mem + M::K, G * 128);
    mma_commit ();
    mma_wait<0> ();
    keep (s);
    if (lane == 0) bar_arrive (bars.free_k);
    mask_keys<G> (s, t * G, lo, hi);
    softmax<G> (s, a.scale2, m, l, fade);
    pack (p, s);
    for (k.next (), t++; t < end; t++, k.next (), v.next ()) {
      bar_wait (bars.full_k + 8 * k.at, k.phase);
      mma_begin ();
      mma_rows<D, G> (s, q, W * 64 * 128, mem + M::K + k.at * M::TILE_BYTES, G * 128);
      mma_commit ();
      bar_wait (bars.full_v + 8 * v.at, v.phase);
      mma_begin ();
      mma_cols<D, G> (o, p, mem + M::V + v.at * M::TILE_BYTES, G * 128);
      mma_commit ();
      mma_wait<1> ();
      keep (s);
      if (lane == 0) bar_arrive (bars.free_k + 8 * k.at);
      mask_keys<G> (s, t * G, lo, hi);
      softmax<G> (s, a.scale2, m, l, fade);
      mma_wait<0> ();
      keep (o);
      if (lane == 0) bar_arrive (bars.free_v + 8 * v.at);
      #pragma unroll
      for (int i = 0; i < D / 2; i++) o[i] *= fade[i / 2 % 2];
      pack (p, s);
    }
    bar_wait (bars.full_v + 8 * v.at, v.phase);
    mma_begin ();
    mma_cols<D, G> (o, p, mem + M::V + v.at * M::TILE_BYTES, G * 128);
    mma_commit ();
    mma_wait<0> ();
    keep (o);
  }
  forward_store<D> (a, o, m, l, row);
}

template <int D, int G, int N, int W> __global__ __launch_bounds__ (128 * (W + 1), 1)
void forward_kernel (const args a, const __grid_constant__ tensor_map mq, const __grid_constant__ tensor_map mk,
    const __grid_constant__ tensor_map mv)
{
  typedef forward_memory<D, G, N, W> M;
  extern __shared__ char raw[];
  uint32_t mem = (shared_of (raw) + 1023) & ~1023u, at = mem + M::BARS;
  forward_bars bars = { at, at + 8, at + 8 + 8 * N, at + 8 + 16 * N, at + 8 + 24 * N };
  int i0 = (gridDim.x - 1 - blockIdx.x) * W * 64, lo, hi;   /* long rows of the triangle first */
  if (threadIdx.x == 0) {
    bar_init (bars.home, 1);
    for (int i = 0; i < N; i++) {
      bar_init (bars.full_k + 8 * i, 1), bar_init (bars.full_v + 8 * i, 1);
      bar_init (bars.free_k + 8 * i, 4 * W), bar_init (bars.free_v + 8 * i, 4 * W);
    }
    bar_init_done ();
  }
  __syncthreads ();
  keys_of_home (a, blockIdx.z, i0, W * 64, &lo, &hi);
  lo /= G, hi = (hi + G - 1) / G;
  if (threadIdx.x < 128) {
    fewer_registers<W == 2 ? 24 : 32> ();
    if (threadIdx.x == 0) forward_copy<D, G, N, W> (a, mem, bars, lo, hi, i0, &mq, &mk, &mv);
  } else {
    more_registers<W == 2 ? 240 : 160> ();
    forward_compute<D, G, N, W> (a, mem, bars, lo, hi, i0);
  }
}

/* ---- launching ---- */

template <int D, int G, int N, int W> static cudaError_t forward (const struct op_attn *o, cudaStream_t s)
{
  typedef forward_memory<D, G, N, W> M;
  static_assert (M::BYTES <= 232448, "shared memory");
  tensor_map q, k, v;
  if (!map_make (&q, o->q, o->batch, o->sq, o->heads, o->head_dim, o->q_stride)
      || !map_make (&k, o->k, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride)
      || !map_make (&v, o->v, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride)) return cudaErrorInvalidValue;
  cudaError_t e = cudaFuncSetAttribute (forward_kernel<D, G, N, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, M::BYTES);
  if (e != cudaSuccess) return e;
  dim3 grid ((unsigned) ((o->sq + W * 64 - 1) / (W * 64)), (unsigned) o->heads, (unsigned) o->batch);
  forward_kernel<D, G, N, W> <<<grid, 128 * (W + 1), M::BYTES, s>>> (args_of (o), q, k, v);
  return cudaGetLastError ();
}

extern "C" cudaError_t k_attn (const struct op_attn *o, cudaStream_t s)
{
  if (!fast (o)) return plain_attn (o, s);
  return o->head_dim <= 64 ? forward<64, 128, 2, 3> (o, s) : o->head_dim <= 128 ? forward<128, 128, 2, 2> (o, s)
         : o->head_dim <= 192 ? forward<192, 64, 2, 2> (o, s) : forward<256, 64, 2, 2> (o, s);
}
