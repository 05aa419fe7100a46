/* attn_bwd: backward of our attention on Hopper; see attn_hopper.cuh. */
#include "attn_hopper.cuh"

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

/* What a kernel makes: dq with queries at home, or dk, dv or both with keys at home. */
enum { FOR_DQ = 1, FOR_DK = 2, FOR_DV = 4 };

template <int D, int G, int N, int WHAT> struct backward_memory {
  static const int HOME_BYTES = HOME * D * 2, TILE_BYTES = G * D * 2, HOMES = WHAT == FOR_DV ? 1 : 2;
  static const int VECTOR_BYTES = WHAT == FOR_DQ ? 0 : 3 * G * 4;
  static const int GUEST = HOMES * HOME_BYTES, VECTORS = GUEST + 2 * N * TILE_BYTES, BARS = VECTORS + N * VECTOR_BYTES;
  static const int BYTES = BARS + 8 * (1 + 2 * N) + 1024;
};
struct backward_bars { uint32_t home, full, free; };
struct backward_maps { tensor_map home[2], guest[2]; };

/* The tiles of guests that a block meets, in order: key tiles of one head, or query tiles of each head of the group. */
template <int G, int WHAT> struct walk {
  int h, h_end, t, t0, t_end;
  __device__ __forceinline__ const int *range (const args &a) const
  {
    return a.range + 2 * ((int64_t) blockIdx.z * a.tiles + t * (G / TILE));
  }
  __device__ __forceinline__ bool seen (const args &a) const
  {
    if constexpr (WHAT == FOR_DQ) return true;
    const int *r = range (a);
    return (G == TILE ? r[0] : min (r[0], r[2])) < (int) (blockIdx.x + 1) * HOME;
  }
  /* Does every query of the tile see, as far as documents and window go, all keys from n0 on? */
  __device__ __forceinline__ bool open (const args &a, int n0) const
  {
    const int *r = range (a);
    return (G == TILE ? r[1] : max (r[1], r[3])) <= n0;
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
      keys_of_home (a, blockIdx.z, n0, HOME, &lo, &hi);
      h = blockIdx.y, h_end = h + 1, t0 = lo / G, t_end = (hi + G - 1) / G;
    } else {
      int group = a.heads / a.kv_heads;
      h = blockIdx.y * group, h_end = h + group, t0 = max (0, n0 - a.shift) / G, t_end = a.tiles / (G / TILE);
    }
    t = t0;
    return settle (a);
  }
  __device__ __forceinline__ bool next (const args &a) { return t++, settle (a); }
};

template <int D, int G, int N, int WHAT> FN void backward_copy (const args &a, uint32_t mem, backward_bars bars, int n0,
    walk<G, WHAT> w, bool more, const backward_maps *maps)
{
  typedef backward_memory<D, G, N, WHAT> M;
  int b = blockIdx.z, kv = w.h * a.kv_heads / a.heads;
  ring<N> s;
  bar_expect (bars.home, M::HOMES * M::HOME_BYTES);
  for (int i = 0; i < M::HOMES; i++)
    copy_tile<D, HOME> (mem + i * M::HOME_BYTES, &maps->home[i], bars.home, WHAT == FOR_DQ ? w.h : kv, n0, b);
  for (; more; more = w.next (a), s.next ()) {
    uint32_t bar = bars.full + 8 * s.at, vec = mem + M::VECTORS + s.at * M::VECTOR_BYTES;
    bar_wait (bars.free + 8 * s.at, s.phase ^ 1);
    bar_expect (bar, 2 * M::TILE_BYTES + M::VECTOR_BYTES);
    for (int i = 0; i < 2; i++)
      copy_tile<D, G> (mem + M::GUEST + (2 * s.at + i) * M::TILE_BYTES, &maps->guest[i], bar,
          WHAT == FOR_DQ ? kv : w.h, w.t * G, b);
    if (WHAT == FOR_DQ) continue;
    copy_bytes (vec, a.stat + (((int64_t) b * a.heads + w.h) * a.tiles + w.t * (G / TILE)) * 2 * TILE, 2 * G * 4, bar);
    copy_bytes (vec + 2 * G * 4, a.first + (int64_t) b * a.tiles * TILE + w.t * G, G * 4, bar);
  }
}

FN float2 shared_pair (uint32_t at)
{
  float2 r;
  asm volatile ("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f" (r.x), "=f" (r.y) : "r" (at));
  return r;
}

/* Where the lse of column pair c (of 8, this lane's) is in a tile's tables; its delta is TILE floats on. */
FN uint32_t stat_of (uint32_t vec, int c) { return vec + (uint32_t) (c / 8 * 2 * TILE + c % 8 * 8 + 2 * (threadIdx.x % 4)) * 4; }

/* Keys at home: scores x [64 keys, G queries] of queries from i0 on to probabilities. vec: the tile's tables: lse and delta by
   TILE, first keys. */
template <int G> FN void probabilities_of_keys (const args &a, float (&x)[G / 2], uint32_t vec, int row, int i0, bool whole)
{
  int lane = threadIdx.x % 4;
  #pragma unroll
  for (int c = 0; c < G / 8; c++) {
    float2 lse = shared_pair (stat_of (vec, c));
    #pragma unroll
    for (int e = 0; e < 4; e++) x[4 * c + e] = exp2_fast (fmaf (x[4 * c + e], a.scale2, -(e % 2 ? lse.y : lse.x)));
    if (whole) continue;
    float2 f = shared_pair (vec + (uint32_t) (2 * G + 8 * c + 2 * lane) * 4);
    #pragma unroll
    for (int e = 0; e < 4; e++) {
      int i = i0 + 8 * c + 2 * lane + e % 2, j = row + e / 2 * 8;
      if (j > i + a.shift || j < __float_as_int (e % 2 ? f.y : f.x)) x[4 * c + e] = 0;
    }
  }
}
/* Queries at home. */
template <int G> FN void probabilities_of_queries (const args &a, float (&x)[G / 2], const float *lse, const int *lo,
    const int *hi, int j0)
{
  bool whole = j0 >= max (lo[0], lo[1]) && j0 + G <= min (hi[0], hi[1]);
  #pragma unroll
  for (int i = 0; i < G / 2; i++) {
    int j = j0 + 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2, r = i / 2 % 2;
    float p = exp2_fast (fmaf (x[i], a.scale2, -lse[r]));
    x[i] = whole || (j >= lo[r] && j < hi[r]) ? p : 0;
  }
}

template <int D> FN void backward_store (const args &a, const float (&g)[D / 2], bf16 *out, int64_t stride, int row, int rows,
    int head, float scale)
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

template <int D, int G, int N, int WHAT> FN void backward_compute (const args &a, uint32_t mem, backward_bars bars, int n0,
    walk<G, WHAT> w, bool more)
{
  typedef backward_memory<D, G, N, WHAT> M;
  int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, lo[2], hi[2], head = blockIdx.y;
  int row = n0 + wg * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
  float g1[WHAT == FOR_DV ? 2 : D / 2], g2[WHAT & FOR_DV ? D / 2 : 2], x[G / 2], y[WHAT == FOR_DV ? 2 : G / 2], lse[2], delta[2];
  uint32_t p[G / 4], home = mem + wg * 64 * 128;
  ring<N> s;
  #pragma unroll
  for (int i = 0; i < D / 2; i++) {
    if constexpr (WHAT != FOR_DV) g1[i] = 0;
    if constexpr (WHAT & FOR_DV) g2[i] = 0;
  }
  if constexpr (WHAT == FOR_DQ)
    for (int r = 0; r < 2; r++) {
      int i = row + 8 * r, in = i < a.tiles * TILE;
      const float *at = a.stat + ((int64_t) blockIdx.z * a.heads + blockIdx.y) * a.tiles * 2 * TILE
          + (int64_t) (i / TILE) * 2 * TILE + i % TILE;
      lse[r] = in ? at[0] : INFINITY, delta[r] = in ? at[TILE] : 0;
      keys_of (a, blockIdx.z, i, &lo[r], &hi[r]);
    }
  bar_wait (bars.home, 0);
  for (; more; more = w.next (a), s.next ()) {
    uint32_t b1 = mem + M::GUEST + 2 * s.at * M::TILE_BYTES, b2 = b1 + M::TILE_BYTES;
    uint32_t vec = mem + M::VECTORS + s.at * M::VECTOR_BYTES;
    bar_wait (bars.full + 8 * s.at, s.phase);
    mma_begin ();
    mma_rows<D, G> (x, home, HOME * 128, b1, G * 128);
    mma_commit ();
    if constexpr (WHAT != FOR_DV) {
      mma_rows<D, G> (y, home + M::HOME_BYTES, HOME * 128, b2, G * 128);
      mma_commit ();
      mma_wait<1> ();
    } else mma_wait<0> ();
    keep (x);
    if constexpr (WHAT == FOR_DQ) probabilities_of_queries<G> (a, x, lse, lo, hi, w.t * G);
    else {
      probabilities_of_keys<G> (a, x, vec, row, w.t * G, w.t * G + a.shift >= n0 + HOME - 1 && w.open (a, n0));
    }
    if constexpr (WHAT & FOR_DV) {
      pack (p, x);
      mma_begin ();
      mma_cols<D, G> (g2, p, b2, G * 128);
      mma_commit ();
    }
    if constexpr (WHAT != FOR_DV) {
      uint32_t ds[G / 4];
      if constexpr (WHAT & FOR_DV) mma_wait<1> ();
      else mma_wait<0> ();
      keep (y);
      #pragma unroll
      for (int i = 0; i < G / 4; i++) {
        float2 d = WHAT == FOR_DQ ? make_float2 (delta[i % 2], delta[i % 2]) : shared_pair (stat_of (vec, i / 2) + TILE * 4);
        ds[i] = pair (x[2 * i] * (y[2 * i] - d.x), x[2 * i + 1] * (y[2 * i + 1] - d.y));
      }
      mma_begin ();
      mma_cols<D, G> (g1, ds, b1, G * 128);
      mma_commit ();
    }
    mma_wait<0> ();
    if constexpr (WHAT != FOR_DV) keep (g1);
    if constexpr (WHAT & FOR_DV) keep (g2);
    __syncwarp ();   /* every lane has read its part of the tables */
    if (lane == 0) bar_arrive (bars.free + 8 * s.at);
  }
  if constexpr (WHAT == FOR_DQ) backward_store<D> (a, g1, a.dq, a.dq_stride, row, a.sq, head, a.scale);
  if constexpr (WHAT & FOR_DK) backward_store<D> (a, g1, a.dk, a.dkv_stride, row, a.sk, head, a.scale);
  if constexpr (WHAT & FOR_DV) backward_store<D> (a, g2, a.dv, a.dkv_stride, row, a.sk, head, 1);
}

template <int D, int G, int N, int WHAT> __global__ __launch_bounds__ (BLOCK, 1)
void backward_kernel (const args a, const __grid_constant__ backward_maps maps)
{
  typedef backward_memory<D, G, N, WHAT> M;
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
  walk<G, WHAT> w;
  bool more = w.start (a, n0);
  if (threadIdx.x < 128) {
    fewer_registers<24> ();
    if (threadIdx.x == 0) backward_copy<D, G, N, WHAT> (a, mem, bars, n0, w, more, &maps);
  } else {
    more_registers<240> ();
    backward_compute<D, G, N, WHAT> (a, mem, bars, n0, w, more);
  }
}

/* ---- launching ---- */

template <int D, int G, int N, int WHAT> static cudaError_t backward (const args &a, const struct op_attn_bwd *w, cudaStream_t s)
{
  typedef backward_memory<D, G, N, WHAT> M;
  static_assert (M::BYTES <= 232448, "shared memory");
  const struct op_attn *o = &w->f;
  backward_maps m;
  tensor_map *q = m.guest, *k = m.home;   /* q and d_o, k and v */
  if (WHAT == FOR_DQ) q = m.home, k = m.guest;
  if (!map_make (&q[0], o->q, o->batch, o->sq, o->heads, o->head_dim, o->q_stride)
      || !map_make (&q[1], w->d_o, o->batch, o->sq, o->heads, o->head_dim, o->o_stride)
      || !map_make (&k[0], o->k, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride)
      || !map_make (&k[1], o->v, o->batch, o->sk, o->kv_heads, o->head_dim, o->kv_stride))
    return cudaErrorInvalidValue;
  cudaError_t e = cudaFuncSetAttribute (backward_kernel<D, G, N, WHAT>, cudaFuncAttributeMaxDynamicSharedMemorySize, M::BYTES);
  if (e != cudaSuccess) return e;
  int64_t rows = WHAT == FOR_DQ ? o->sq : o->sk;
  dim3 grid ((unsigned) ((rows + HOME - 1) / HOME), (unsigned) (WHAT == FOR_DQ ? o->heads : o->kv_heads), (unsigned) o->batch);
  backward_kernel<D, G, N, WHAT> <<<grid, BLOCK, M::BYTES, s>>> (a, m);
  return cudaGetLastError ();
}

extern "C" int64_t k_attn_bwd_work (const struct op_attn_bwd *w)
{
  const struct op_attn *o = &w->f;
  return o->t == DT_BF16 ? o->batch * tiles_of (o) * (o->heads * 2 * TILE + TILE + 2) * 4 : 0;
}

extern "C" cudaError_t k_attn_bwd (const struct op_attn_bwd *w, void *work, cudaStream_t s)
{
  const struct op_attn *o = &w->f;
  if (!fast (o) || !aligned (w->d_o, o->o_stride) || !aligned (w->dq, w->dq_stride) || !aligned (w->dk, w->dkv_stride)
      || !aligned (w->dv, w->dkv_stride)
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
  #define DO(D, G, N, WHAT) if (e == cudaSuccess) e = backward<D, G, N, WHAT> (a, w, s)
  if (o->head_dim <= 64) { DO (64, 64, 3, FOR_DK | FOR_DV); DO (64, 64, 3, FOR_DQ); }
  else if (o->head_dim <= 128) { DO (128, 64, 2, FOR_DK | FOR_DV); DO (128, 128, 2, FOR_DQ); }
  else if (o->head_dim <= 192) { DO (192, 64, 2, FOR_DK); DO (192, 64, 2, FOR_DV); DO (192, 64, 2, FOR_DQ); }
  else { DO (256, 64, 1, FOR_DK); DO (256, 64, 1, FOR_DV); DO (256, 64, 1, FOR_DQ); }
  #undef DO
  return e;
}
