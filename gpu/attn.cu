/* attn: our own attention for bf16 on Hopper: flash attention on warpgroup matrix products, fed by the copy engine. attn_plain.cu has the form for everything else.

   A block of 384 threads: one warp copies, two warpgroups of 64 rows each compute, so that one's softmax hides behind the other's products. Rows that stay are
   "home" (a tile of 128), rows that stream past are "guests" (tiles of 64 or 128). Head sizes are padded with zeros to a multiple of 64 by the copy engine.

   Backward without atomics, hence the same bits each time: one kernel with keys at home makes dk and dv (over the queries of all heads of its group), one with
   queries at home makes dq. Both make the scores again from lse. Head sizes above 128 make dk and dv in two passes for want of registers. */
#include <math.h>
#include "kernels.h"
#include "attn.cuh"
#include "hopper.cuh"

enum { HOME = 128, BLOCK = 384, TILE = 64 };   /* TILE: rows of a copied box and of the tables below */

/* What the kernels know of the operation. Rows and columns of one sequence are ints, memory is addressed with 64 bits. */
struct args {
  int sq, sk, heads, kv_heads, head_dim, shift, window, k0, tiles;   /* shift: q0 - k0; tiles: of TILE queries */
  const int *doc;
  float scale, scale2;                     /* scale2 = scale log2 (e) */
  const bf16 *o_in, *d_o;
  bf16 *o, *dq, *dk, *dv;
  int64_t o_stride, dq_stride, dkv_stride;
  float *lse;
  bool merge, accumulate;
  float *stat;                             /* [batch, heads, tiles, 2, TILE]: lse log2 (e) (+inf where the query sees nothing or is none), delta */
  int *first;                              /* [batch, tiles, TILE]: first key that the query sees by documents and window */
  int *range;                              /* [batch, tiles, 2]: least and greatest of them over the queries that are */
};

/* ---- what a query sees: keys [lo, hi) ---- */

FN int first_key (const args &a, int b, int i)
{
  int lo = 0;
  if (a.doc) lo = max (lo, a.doc[(int64_t) b * a.sq + i] - a.k0);
  if (a.window) lo = max (lo, i + a.shift - a.window + 1);
  return lo;
}
FN void keys_of (const args &a, int b, int i, int *lo, int *hi)
{
  *lo = *hi = 0;
  if (i >= a.sq) return;
  *lo = first_key (a, b, i);
  *hi = min (i + a.shift + 1, a.sk);
}
/* Keys that some query of [i0, i0 + HOME) sees, computed by each warp for itself. */
FN void keys_of_home (const args &a, int b, int i0, int *lo, int *hi)
{
  int l = INT_MAX, h = 0;
  for (int r = threadIdx.x % 32; r < HOME; r += 32) {
    int x, y;
    keys_of (a, b, i0 + r, &x, &y);
    if (x < y) l = min (l, x), h = max (h, y);
  }
  *lo = __reduce_min_sync (0xffffffffu, l);
  *hi = __reduce_max_sync (0xffffffffu, h);
  if (*lo >= *hi) *lo = *hi = 0;
}

/* ---- copying ---- */

/* ROWS rows from ROW on, of a head, as a tile. */
template <int D, int ROWS> FN void copy_tile (uint32_t dst, const tensor_map *map, uint32_t bar, int head, int row, int b)
{
  #pragma unroll
  for (int x = 0; x < D / 64; x++)
    #pragma unroll
    for (int r = 0; r < ROWS / TILE; r++) copy_box (dst + (uint32_t) (x * ROWS + r * TILE) * 128, map, bar, x * 64, head, row + r * TILE, b);
}

/* Stage and phase of a ring of N. */
template <int N> struct ring {
  int at = 0, phase = 0;
  __device__ __forceinline__ void next () { if (++at == N) at = 0, phase ^= 1; }
};

/* ---- forward ---- */

template <int D, int G, int N> struct forward_memory {   /* G: guests of a tile, N: stages */
  static const int HOME_BYTES = HOME * D * 2, TILE_BYTES = G * D * 2, K = HOME_BYTES, V = K + N * TILE_BYTES, BARS = V + N * TILE_BYTES, BYTES = BARS + 8 * (1 + 4 * N) + 1024;
};
struct forward_bars { uint32_t home, full_k, full_v, free_k, free_v; };

template <int D, int G, int N> FN void forward_copy (const args &a, uint32_t mem, forward_bars bars, int lo, int hi, int i0,
                                                     const tensor_map *mq, const tensor_map *mk, const tensor_map *mv)
{
  typedef forward_memory<D, G, N> M;
  int h = blockIdx.y, b = blockIdx.z, kv = h * a.kv_heads / a.heads;
  ring<N> s;
  bar_expect (bars.home, M::HOME_BYTES);
  copy_tile<D, HOME> (mem, mq, bars.home, h, i0, b);
  for (int t = lo; t < hi; t++, s.next ()) {
    bar_wait (bars.free_k + 8 * s.at, s.phase ^ 1);
    bar_expect (bars.full_k + 8 * s.at, M::TILE_BYTES);
    copy_tile<D, G> (mem + M::K + s.at * M::TILE_BYTES, mk, bars.full_k + 8 * s.at, kv, t * G, b);
    bar_wait (bars.free_v + 8 * s.at, s.phase ^ 1);
    bar_expect (bars.full_v + 8 * s.at, M::TILE_BYTES);
    copy_tile<D, G> (mem + M::V + s.at * M::TILE_BYTES, mv, bars.full_v + 8 * s.at, kv, t * G, b);
  }
}

/* Scores of a tile to probabilities against the running maximum (both in units of log 2), and the sums and maxima of two rows brought up to date. */
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

/* Accumulators as the left operand of a product. */
template <int N> FN void pack (uint32_t (&p)[N / 2], const float (&s)[N])
{
  #pragma unroll
  for (int i = 0; i < N / 2; i++) p[i] = pair (s[2 * i], s[2 * i + 1]);
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
template <int D, int G, int N> FN void forward_compute (const args &a, uint32_t mem, forward_bars bars, int t, int end, int i0)
{
  typedef forward_memory<D, G, N> M;
  int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = i0 + wg * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, lo[2], hi[2];
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
    mma_rows<D, G> (s, q, HOME * 128, mem + M::K, G * 128);
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
      mma_rows<D, G> (s, q, HOME * 128, mem + M::K + k.at * M::TILE_BYTES, G * 128);
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

template <int D, int G, int N> __global__ __launch_bounds__ (BLOCK, 1)
void forward_kernel (const args a, const __grid_constant__ tensor_map mq, const __grid_constant__ tensor_map mk, const __grid_constant__ tensor_map mv)
{
  typedef forward_memory<D, G, N> M;
  extern __shared__ char raw[];
  uint32_t mem = (shared_of (raw) + 1023) & ~1023u, at = mem + M::BARS;
  forward_bars bars = { at, at + 8, at + 8 + 8 * N, at + 8 + 16 * N, at + 8 + 24 * N };
  int i0 = (gridDim.x - 1 - blockIdx.x) * HOME, lo, hi;   /* long rows of the triangle first */
  if (threadIdx.x == 0) {
    bar_init (bars.home, 1);
    for (int i = 0; i < N; i++) bar_init (bars.full_k + 8 * i, 1), bar_init (bars.full_v + 8 * i, 1), bar_init (bars.free_k + 8 * i, 8), bar_init (bars.free_v + 8 * i, 8);
    bar_init_done ();
  }
  __syncthreads ();
  keys_of_home (a, blockIdx.z, i0, &lo, &hi);
  lo /= G, hi = (hi + G - 1) / G;
  if (threadIdx.x < 128) {
    fewer_registers<24> ();
    if (threadIdx.x == 0) forward_copy<D, G, N> (a, mem, bars, lo, hi, i0, &mq, &mk, &mv);
  } else {
    more_registers<240> ();
    forward_compute<D, G, N> (a, mem, bars, lo, hi, i0);
  }
}

/* ---- backward: what both kernels need, made once ---- */

/* A block of 8 warps takes TILE queries of a head: delta = sum of o d_o, and lse in units of log 2. */
__global__ void stat_kernel (const args a)
{
  int h = blockIdx.y, b = blockIdx.z, lane = threadIdx.x % 32;
  float *out = a.stat + (((int64_t) b * a.heads + h) * a.tiles + blockIdx.x) * 2 * TILE;
  for (int r = threadIdx.x / 32; r < TILE; r += 8) {
    int i = blockIdx.x * TILE + r;
    float sum = 0, lse = INFINITY;
    if (i < a.sq) {
      int64_t at = ((int64_t) b * a.sq + i) * a.o_stride + (int64_t) h * a.head_dim;
      for (int x = 2 * lane; x < a.head_dim; x += 64) {
        uint32_t o = *(const uint32_t *) (a.o_in + at + x), g = *(const uint32_t *) (a.d_o + at + x);
        sum += low_of (o) * low_of (g) + high_of (o) * high_of (g);
      }
      lse = a.lse[((int64_t) b * a.heads + h) * a.sq + i] * 1.44269504089f;
      if (lse == -INFINITY) lse = INFINITY;
    }
    for (int m = 16; m; m /= 2) sum += __shfl_xor_sync (0xffffffffu, sum, m);
    if (lane == 0) out[r] = lse, out[TILE + r] = sum;
  }
}

__global__ void first_kernel (const args a)
{
  int b = blockIdx.y, i = blockIdx.x * TILE + threadIdx.x, lo = i < a.sq ? first_key (a, b, i) : 0;
  int64_t at = (int64_t) b * a.tiles + blockIdx.x;
  __shared__ int least[2], most[2];
  a.first[at * TILE + threadIdx.x] = lo;
  int l = __reduce_min_sync (0xffffffffu, i < a.sq ? lo : INT_MAX), m = __reduce_max_sync (0xffffffffu, lo);
  if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = l, most[threadIdx.x / 32] = m;
  __syncthreads ();
  if (threadIdx.x == 0) a.range[2 * at] = min (least[0], least[1]), a.range[2 * at + 1] = max (most[0], most[1]);
}

/* ---- backward ---- */

enum { FOR_DQ = 1, FOR_DK = 2, FOR_DV = 4 };   /* what a kernel makes: dq with queries at home, or dk, dv or both with keys at home */

template <int D, int N, int WHAT> struct backward_memory {
  static const int HOME_BYTES = HOME * D * 2, TILE_BYTES = TILE * D * 2, HOMES = WHAT == FOR_DV ? 1 : 2, VECTOR_BYTES = WHAT == FOR_DQ ? 0 : 3 * TILE * 4;
  static const int GUEST = HOMES * HOME_BYTES, VECTORS = GUEST + 2 * N * TILE_BYTES, BARS = VECTORS + N * VECTOR_BYTES, BYTES = BARS + 8 * (1 + 2 * N) + 1024;
};
struct backward_bars { uint32_t home, full, free; };
struct backward_maps { tensor_map home[2], guest[2]; };

/* The tiles of guests that a block meets, in order: key tiles of one head, or query tiles of each head of the group. */
template <int WHAT> struct walk {
  int h, h_end, t, t0, t_end;
  __device__ __forceinline__ bool seen (const args &a) const
  {
    return WHAT == FOR_DQ || a.range[2 * ((int64_t) blockIdx.z * a.tiles + t)] < (int) (blockIdx.x + 1) * HOME;
  }
  __device__ __forceinline__ bool settle (const args &a)
  {
    for (; h < h_end; h++, t = t0)
      for (; t < t_end; t++) if (seen (a)) return true;
    return false;
  }
  __device__ __forceinline__ bool start (const args &a, int n0)
  {
    if constexpr (WHAT == FOR_DQ) {
      int lo, hi;
      keys_of_home (a, blockIdx.z, n0, &lo, &hi);
      h = blockIdx.y, h_end = h + 1, t0 = lo / TILE, t_end = (hi + TILE - 1) / TILE;
    } else {
      int group = a.heads / a.kv_heads;
      h = blockIdx.y * group, h_end = h + group, t0 = max (0, n0 - a.shift) / TILE, t_end = a.tiles;
    }
    t = t0;
    return settle (a);
  }
  __device__ __forceinline__ bool next (const args &a) { return t++, settle (a); }
};

template <int D, int N, int WHAT> FN void backward_copy (const args &a, uint32_t mem, backward_bars bars, int n0, walk<WHAT> w, bool more, const backward_maps *maps)
{
  typedef backward_memory<D, N, WHAT> M;
  int b = blockIdx.z, kv = w.h * a.kv_heads / a.heads;
  ring<N> s;
  bar_expect (bars.home, M::HOMES * M::HOME_BYTES);
  for (int i = 0; i < M::HOMES; i++) copy_tile<D, HOME> (mem + i * M::HOME_BYTES, &maps->home[i], bars.home, WHAT == FOR_DQ ? w.h : kv, n0, b);
  for (; more; more = w.next (a), s.next ()) {
    uint32_t bar = bars.full + 8 * s.at, vec = mem + M::VECTORS + s.at * M::VECTOR_BYTES;
    bar_wait (bars.free + 8 * s.at, s.phase ^ 1);
    bar_expect (bar, 2 * M::TILE_BYTES + M::VECTOR_BYTES);
    for (int i = 0; i < 2; i++)
      copy_tile<D, TILE> (mem + M::GUEST + (2 * s.at + i) * M::TILE_BYTES, &maps->guest[i], bar, WHAT == FOR_DQ ? kv : w.h, w.t * TILE, b);
    if (WHAT == FOR_DQ) continue;
    copy_bytes (vec, a.stat + (((int64_t) b * a.heads + w.h) * a.tiles + w.t) * 2 * TILE, 2 * TILE * 4, bar);
    copy_bytes (vec + 2 * TILE * 4, a.first + ((int64_t) b * a.tiles + w.t) * TILE, TILE * 4, bar);
  }
}

FN float2 shared_pair (uint32_t at)
{
  float2 r;
  asm volatile ("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f" (r.x), "=f" (r.y) : "r" (at));
  return r;
}

/* Keys at home: scores x [64 keys, TILE queries] of queries from i0 on to probabilities. vec: the tile's lse, delta, first keys. */
FN void probabilities_of_keys (const args &a, float (&x)[TILE / 2], uint32_t vec, int row, int i0, bool whole)
{
  int lane = threadIdx.x % 4;
  #pragma unroll
  for (int c = 0; c < TILE / 8; c++) {
    float2 lse = shared_pair (vec + (8 * c + 2 * lane) * 4);
    #pragma unroll
    for (int e = 0; e < 4; e++) x[4 * c + e] = exp2_fast (fmaf (x[4 * c + e], a.scale2, -(e % 2 ? lse.y : lse.x)));
    if (whole) continue;
    float2 f = shared_pair (vec + (2 * TILE + 8 * c + 2 * lane) * 4);
    #pragma unroll
    for (int e = 0; e < 4; e++) {
      int i = i0 + 8 * c + 2 * lane + e % 2, j = row + e / 2 * 8;
      if (j > i + a.shift || j < __float_as_int (e % 2 ? f.y : f.x)) x[4 * c + e] = 0;
    }
  }
}
/* Queries at home. */
FN void probabilities_of_queries (const args &a, float (&x)[TILE / 2], const float *lse, const int *lo, const int *hi, int j0)
{
  bool whole = j0 >= max (lo[0], lo[1]) && j0 + TILE <= min (hi[0], hi[1]);
  #pragma unroll
  for (int i = 0; i < TILE / 2; i++) {
    int j = j0 + 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2, r = i / 2 % 2;
    float p = exp2_fast (fmaf (x[i], a.scale2, -lse[r]));
    x[i] = whole || (j >= lo[r] && j < hi[r]) ? p : 0;
  }
}

template <int D> FN void backward_store (const args &a, const float (&g)[D / 2], bf16 *out, int64_t stride, int row, int rows, int head, float scale)
{
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = row + 8 * r;
    if (i >= rows) continue;
    bf16 *to = out + ((int64_t) blockIdx.z * rows + i) * stride + (int64_t) head * a.head_dim;
    #pragma unroll
    for (int c = 0; c < D / 8; c++) {
      int x = 8 * c + 2 * (threadIdx.x % 4);
      if (x >= a.head_dim) continue;
      uint32_t *at = (uint32_t *) (to + x), was = a.accumulate ? *at : 0;
      *at = pair (fmaf (g[4 * c + 2 * r], scale, low_of (was)), fmaf (g[4 * c + 2 * r + 1], scale, high_of (was)));
    }
  }
}

template <int D, int N, int WHAT> FN void backward_compute (const args &a, uint32_t mem, backward_bars bars, int n0, walk<WHAT> w, bool more)
{
  typedef backward_memory<D, N, WHAT> M;
  int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = n0 + wg * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, lo[2], hi[2], head = blockIdx.y;
  float g1[WHAT == FOR_DV ? 2 : D / 2], g2[WHAT & FOR_DV ? D / 2 : 2], x[TILE / 2], y[WHAT == FOR_DV ? 2 : TILE / 2], lse[2], delta[2];
  uint32_t p[TILE / 4], home = mem + wg * 64 * 128;
  ring<N> s;
  #pragma unroll
  for (int i = 0; i < D / 2; i++) {
    if constexpr (WHAT != FOR_DV) g1[i] = 0;
    if constexpr (WHAT & FOR_DV) g2[i] = 0;
  }
  if constexpr (WHAT == FOR_DQ)
    for (int r = 0; r < 2; r++) {
      int i = row + 8 * r, in = i < a.tiles * TILE;
      const float *at = a.stat + ((int64_t) blockIdx.z * a.heads + blockIdx.y) * a.tiles * 2 * TILE + (int64_t) (i / TILE) * 2 * TILE + i % TILE;
      lse[r] = in ? at[0] : INFINITY, delta[r] = in ? at[TILE] : 0;
      keys_of (a, blockIdx.z, i, &lo[r], &hi[r]);
    }
  bar_wait (bars.home, 0);
  for (; more; more = w.next (a), s.next ()) {
    uint32_t b1 = mem + M::GUEST + 2 * s.at * M::TILE_BYTES, b2 = b1 + M::TILE_BYTES, vec = mem + M::VECTORS + s.at * M::VECTOR_BYTES;
    bar_wait (bars.full + 8 * s.at, s.phase);
    mma_begin ();
    mma_rows<D, TILE> (x, home, HOME * 128, b1, TILE * 128);
    mma_commit ();
    if constexpr (WHAT != FOR_DV) {
      mma_rows<D, TILE> (y, home + M::HOME_BYTES, HOME * 128, b2, TILE * 128);
      mma_commit ();
      mma_wait<1> ();
    } else mma_wait<0> ();
    keep (x);
    if constexpr (WHAT == FOR_DQ) probabilities_of_queries (a, x, lse, lo, hi, w.t * TILE);
    else {
      const int *range = a.range + 2 * ((int64_t) blockIdx.z * a.tiles + w.t);
      probabilities_of_keys (a, x, vec, row, w.t * TILE, w.t * TILE + a.shift >= n0 + HOME - 1 && range[1] <= n0);
    }
    if constexpr (WHAT & FOR_DV) {
      pack (p, x);
      mma_begin ();
      mma_cols<D, TILE> (g2, p, b2, TILE * 128);
      mma_commit ();
    }
    if constexpr (WHAT != FOR_DV) {
      uint32_t ds[TILE / 4];
      if constexpr (WHAT & FOR_DV) mma_wait<1> ();
      else mma_wait<0> ();
      keep (y);
      #pragma unroll
      for (int i = 0; i < TILE / 4; i++) {
        float2 d = WHAT == FOR_DQ ? make_float2 (delta[i % 2], delta[i % 2]) : shared_pair (vec + (TILE + 8 * (i / 2) + 2 * (lane % 4)) * 4);
        ds[i] = pair (x[2 * i] * (y[2 * i] - d.x), x[2 * i + 1] * (y[2 * i + 1] - d.y));
      }
      mma_begin ();
      mma_cols<D, TILE> (g1, ds, b1, TILE * 128);
      mma_commit ();
    }
    mma_wait<0> ();
    if constexpr (WHAT != FOR_DV) keep (g1);
    if constexpr (WHAT & FOR_DV) keep (g2);
    if (lane == 0) bar_arrive (bars.free + 8 * s.at);
  }
  if constexpr (WHAT == FOR_DQ) backward_store<D> (a, g1, a.dq, a.dq_stride, row, a.sq, head, a.scale);
  if constexpr (WHAT & FOR_DK) backward_store<D> (a, g1, a.dk, a.dkv_stride, row, a.sk, head, a.scale);
  if constexpr (WHAT & FOR_DV) backward_store<D> (a, g2, a.dv, a.dkv_stride, row, a.sk, head, 1);
}

template <int D, int N, int WHAT> __global__ __launch_bounds__ (BLOCK, 1) void backward_kernel (const args a, const __grid_constant__ backward_maps maps)
{
  typedef backward_memory<D, N, WHAT> M;
  extern __shared__ char raw[];
  uint32_t mem = (shared_of (raw) + 1023) & ~1023u, at = mem + M::BARS;
  backward_bars bars = { at, at + 8, at + 8 + 8 * N };
  int n0 = (WHAT == FOR_DQ ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * HOME;
  if (threadIdx.x == 0) {
    bar_init (bars.home, 1);
    for (int i = 0; i < N; i++) bar_init (bars.full + 8 * i, 1), bar_init (bars.free + 8 * i, 8);
    bar_init_done ();
  }
  __syncthreads ();
  walk<WHAT> w;
  bool more = w.start (a, n0);
  if (threadIdx.x < 128) {
    fewer_registers<24> ();
    if (threadIdx.x == 0) backward_copy<D, N, WHAT> (a, mem, bars, n0, w, more, &maps);
  } else {
    more_registers<240> ();
    backward_compute<D, N, WHAT> (a, mem, bars, n0, w, more);
  }
}

/* ---- launching ---- */

/* cuTensorMapEncodeTiled (map, type, rank, address, extents, strides in bytes, box, element strides, interleave, swizzle, promotion to L2, fill), its enums as ints. */
typedef int encode_fn (tensor_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int);
enum { TYPE_BF16 = 9, NOT_INTERLEAVED = 0, SWIZZLE_128 = 3, PROMOTE_256 = 3, FILL_ZERO = 0 };

/* Boxes of TILE rows and 64 columns of a tensor [batch, rows, heads, head_dim] whose rows are STRIDE apart; beyond its ends there are zeros. */
static bool map_make (tensor_map *m, const void *p, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim, int64_t stride)
{
  static encode_fn *encode;
  if (!encode) {
    void *f = NULL;
    cudaDriverEntryPointQueryResult how;
    if (cudaGetDriverEntryPointByVersion ("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &how) != cudaSuccess || how != cudaDriverEntryPointSuccess) return false;
    encode = (encode_fn *) f;
  }
  uint64_t dim[4] = { (uint64_t) head_dim, (uint64_t) heads, (uint64_t) rows, (uint64_t) batch };
  uint64_t step[3] = { (uint64_t) head_dim * 2, (uint64_t) stride * 2, (uint64_t) (rows * stride) * 2 };
  uint32_t box[4] = { 64, 1, TILE, 1 }, one[4] = { 1, 1, 1, 1 };
  return encode (m, TYPE_BF16, 4, (void *) p, dim, step, box, one, NOT_INTERLEAVED, SWIZZLE_128, PROMOTE_256, FILL_ZERO) == 0;
}

static bool aligned (const void *p, int64_t stride) { return (uintptr_t) p % 16 == 0 && stride % 8 == 0; }

/* What the Hopper kernels take: bf16, rows that the copy engine can address, positions that are ints. */
static bool fast (const struct op_attn *o)
{
  static int major;
  if (!major) {
    int gpu;
    if (cudaGetDevice (&gpu) != cudaSuccess || cudaDeviceGetAttribute (&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess) major = -1;
  }
  const int64_t most = 1 << 30;
  return major == 9 && o->t == DT_BF16 && o->head_dim <= 256 && o->head_dim % 8 == 0 && o->heads % o->kv_heads == 0 && aligned (o->q, o->q_stride)
         && aligned (o->k, o->kv_stride) && aligned (o->v, o->kv_stride) && aligned (o->o, o->o_stride) && o->sq + o->sk + o->window < most
         && o->q0 < most && o->k0 < most && o->batch < 65536 && o->heads < 65536;
}

static args args_of (const struct op_attn *o)
{
  float scale = 1 / sqrtf ((float) o->head_dim);
  return { .sq = (int) o->sq, .sk = (int) o->sk, .heads = (int) o->heads, .kv_heads = (int) o->kv_heads, .head_dim = (int) o->head_dim, .shift = (int) (o->q0 - o->k0),
           .window = (int) o->window, .k0 = (int) o->k0, .tiles = (int) ((o->sq + TILE - 1) / TILE), .doc = o->doc, .scale = scale, .scale2 = scale * 1.44269504089f,
           .o_in = (const bf16 *) o->o, .o = (bf16 *) o->o, .o_stride = o->o_stride, .lse = o->lse, .merge = o->merge };
}

template <int D, int G, int N> static cudaError_t forward (const struct op_attn *o, cudaStream_t s)
{
  typedef forward_memory<D, G, N> M;
  static_assert (M::BYTES <= 232448, "shared memory");
  tensor_map q, k, v;
  if (!map_make (&q, o->q, o->batch, o->sq, o->heads, o->head_dim, o->q_stride) || !map_make (&k, o->k, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride)
      || !map_make (&v, o->v, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride)) return cudaErrorInvalidValue;
  cudaError_t e = cudaFuncSetAttribute (forward_kernel<D, G, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, M::BYTES);
  if (e != cudaSuccess) return e;
  dim3 grid ((unsigned) ((o->sq + HOME - 1) / HOME), (unsigned) o->heads, (unsigned) o->batch);
  forward_kernel<D, G, N> <<<grid, BLOCK, M::BYTES, s>>> (args_of (o), q, k, v);
  return cudaGetLastError ();
}

extern "C" cudaError_t k_attn (const struct op_attn *o, cudaStream_t s)
{
  if (!fast (o)) return plain_attn (o, s);
  return o->head_dim <= 64 ? forward<64, 128, 3> (o, s) : o->head_dim <= 128 ? forward<128, 128, 2> (o, s)
         : o->head_dim <= 192 ? forward<192, 64, 2> (o, s) : forward<256, 64, 2> (o, s);
}

template <int D, int N, int WHAT> static cudaError_t backward (const args &a, const struct op_attn_bwd *w, cudaStream_t s)
{
  typedef backward_memory<D, N, WHAT> M;
  static_assert (M::BYTES <= 232448, "shared memory");
  const struct op_attn *o = &w->f;
  backward_maps m;
  tensor_map *q = m.guest, *k = m.home;   /* q and d_o, k and v */
  if (WHAT == FOR_DQ) q = m.home, k = m.guest;
  if (!map_make (&q[0], o->q, o->batch, o->sq, o->heads, o->head_dim, o->q_stride) || !map_make (&q[1], w->d_o, o->batch, o->sq, o->heads, o->head_dim, o->o_stride)
      || !map_make (&k[0], o->k, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride) || !map_make (&k[1], o->v, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride))
    return cudaErrorInvalidValue;
  cudaError_t e = cudaFuncSetAttribute (backward_kernel<D, N, WHAT>, cudaFuncAttributeMaxDynamicSharedMemorySize, M::BYTES);
  if (e != cudaSuccess) return e;
  int64_t rows = WHAT == FOR_DQ ? o->sq : o->sk;
  dim3 grid ((unsigned) ((rows + HOME - 1) / HOME), (unsigned) (WHAT == FOR_DQ ? o->heads : o->kv_heads), (unsigned) o->batch);
  backward_kernel<D, N, WHAT> <<<grid, BLOCK, M::BYTES, s>>> (a, m);
  return cudaGetLastError ();
}

static int64_t tiles_of (const struct op_attn *o) { return (o->sq + TILE - 1) / TILE; }
extern "C" int64_t k_attn_bwd_work (const struct op_attn_bwd *w)
{
  const struct op_attn *o = &w->f;
  return o->t == DT_BF16 ? o->batch * tiles_of (o) * (o->heads * 2 * TILE + TILE + 2) * 4 : 0;
}

extern "C" cudaError_t k_attn_bwd (const struct op_attn_bwd *w, void *work, cudaStream_t s)
{
  const struct op_attn *o = &w->f;
  if (!fast (o) || !aligned (w->d_o, o->o_stride) || !aligned (w->dq, w->dq_stride) || !aligned (w->dk, w->dkv_stride) || !aligned (w->dv, w->dkv_stride)
      || !aligned (work, 0)) return plain_attn_bwd (w, s);
  args a = args_of (o);
  a.d_o = (const bf16 *) w->d_o, a.dq = (bf16 *) w->dq, a.dk = (bf16 *) w->dk, a.dv = (bf16 *) w->dv;
  a.dq_stride = w->dq_stride, a.dkv_stride = w->dkv_stride, a.accumulate = w->accumulate;
  a.stat = (float *) work;
  a.first = (int *) (a.stat + o->batch * o->heads * a.tiles * 2 * TILE);
  a.range = a.first + o->batch * a.tiles * TILE;
  stat_kernel<<<dim3 ((unsigned) a.tiles, (unsigned) o->heads, (unsigned) o->batch), 256, 0, s>>> (a);
  first_kernel<<<dim3 ((unsigned) a.tiles, (unsigned) o->batch), TILE, 0, s>>> (a);
  cudaError_t e = cudaGetLastError ();
  #define DO(D, N, WHAT) if (e == cudaSuccess) e = backward<D, N, WHAT> (a, w, s)
  if (o->head_dim <= 64) { DO (64, 3, FOR_DK | FOR_DV); DO (64, 3, FOR_DQ); }
  else if (o->head_dim <= 128) { DO (128, 2, FOR_DK | FOR_DV); DO (128, 2, FOR_DQ); }
  else if (o->head_dim <= 192) { DO (192, 2, FOR_DK); DO (192, 2, FOR_DV); DO (192, 2, FOR_DQ); }
  else { DO (256, 1, FOR_DK); DO (256, 1, FOR_DV); DO (256, 1, FOR_DQ); }
  #undef DO
  return e;
}
