/* Products of groups of rows whose extents lie on the device: one launch, no extent reaches the host. Plain fp32 arithmetic on tiles in shared
   memory; each element's sum runs over k in order. */
#include "common.cuh"

enum { TILE = 64, DEPTH = 16, THREADS = 256, EACH = 4 };   /* a thread makes EACH x EACH elements */

/* Tile `index` of all groups' row tiles, group by group: its group, or -1 after the last; row0 = its first row, end = the group's end. */
DEV int tile_group (const int32_t *off, int groups, int64_t index, int64_t *row0, int64_t *end)
{
  for (int g = 0; g < groups; g++) {
    int64_t lo = off[g], hi = off[g + 1], tiles = (hi - lo + TILE - 1) / TILE;
    if (index < tiles) {
      *row0 = lo + index * TILE;
      *end = hi;
      return g;
    }
    index -= tiles;
  }
  return -1;
}

template <class A, class C> __global__ void __launch_bounds__ (THREADS) grouped (op_gemm_grouped o)
{
  __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
  int64_t row0, end, col0 = (int64_t) blockIdx.y * TILE;
  int g = tile_group (o.off, (int) o.groups, blockIdx.x, &row0, &end);
  if (g < 0) return;
  const A *a = (const A *) o.a, *b = (const A *) o.b + g * o.n * o.k;
  int tx = threadIdx.x % (TILE / EACH), ty = threadIdx.x / (TILE / EACH);
  float sum[EACH][EACH] = {};
  for (int64_t k0 = 0; k0 < o.k; k0 += DEPTH) {
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
      int64_t r = row0 + i / DEPTH, k = k0 + i % DEPTH;   /* neighbours along k: how A lies, and B where it is transposed */
      as[i % DEPTH][i / DEPTH] = r < end && k < o.k ? to_f32 (a[r * o.k + k]) : 0;
      if (o.tb) {
        int64_t c = col0 + i / DEPTH;
        bs[i % DEPTH][i / DEPTH] = c < o.n && k < o.k ? to_f32 (b[c * o.k + k]) : 0;
      } else {
        int64_t c = col0 + i % TILE;
        k = k0 + i / TILE;
        bs[i / TILE][i % TILE] = c < o.n && k < o.k ? to_f32 (b[k * o.n + c]) : 0;
      }
    }
    __syncthreads ();
    #pragma unroll
    for (int k = 0; k < DEPTH; k++)
      #pragma unroll
      for (int i = 0; i < EACH; i++)
        #pragma unroll
        for (int j = 0; j < EACH; j++) sum[i][j] = fmaf (as[k][ty * EACH + i], bs[k][tx * EACH + j], sum[i][j]);
    __syncthreads ();
  }
  C *c = (C *) o.c;
  for (int i = 0; i < EACH; i++)
    for (int j = 0; j < EACH; j++) {
      int64_t r = row0 + ty * EACH + i, n = col0 + tx * EACH + j;
      if (r >= end || n >= o.n) continue;
      float old = o.beta == 0 ? 0 : o.beta * to_f32 (c[r * o.n + n]);
      from_f32 (sum[i][j] + old, &c[r * o.n + n]);
    }
}

cudaError_t k_gemm_grouped (const struct op_gemm_grouped *o, cudaStream_t s)
{
  /* As many row tiles as there can be: the last of each group may be short. */
  dim3 grid ((unsigned) (ceil_div (o->max_rows, TILE) + o->groups), (unsigned) ceil_div (o->n, TILE));
  WITH_TYPE (o->ab, A, WITH_TYPE (o->ct, C, grouped<A, C><<<grid, THREADS, 0, s>>> (*o)));
  return cudaGetLastError ();
}
