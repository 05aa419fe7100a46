/* init: initial weights, the same bits as the cpu device's (src/rng.h). */
#include "common.cuh"
#include "rng.h"

#define BLOCK 256

/* A thread makes one block of four numbers of the global tensor: those of its row, column b * 4 and on, counted from the block
   that holds the row's first. */
__global__ void __launch_bounds__ (BLOCK) init (const struct op_init o, int64_t first_row, int64_t blocks_row, int64_t n)
{
  int64_t t = (int64_t) blockIdx.x * BLOCK + threadIdx.x;
  if (t >= n) return;
  int64_t row = first_row + t / blocks_row, from = (o.row0 + row) * o.gcols + o.col0,
    at = ((from >> 2) + t % blocks_row) * 4 - from;
  float z[4] = { o.value, o.value, o.value, o.value };
  if (row >= o.rows) z[0] = z[1] = z[2] = z[3] = 0;
  else if (o.normal) {
    rng_normal4 (o.seed, o.key, (uint64_t) (from + at) >> 2, z);
    for (int j = 0; j < 4; j++) z[j] = rng_scale (o.std, z[j]);
  }
  for (int j = 0; j < 4; j++) {
    int64_t col = at + j, i = row * o.cols + col - o.start;
    if (col >= 0 && col < o.cols && i >= 0 && i < o.n) o.dst[i] = z[j];
  }
}

cudaError_t k_init (const struct op_init *o, cudaStream_t s)
{
  if (o->n <= 0) return cudaGetLastError ();
  int64_t first = o->start / o->cols, rows = (o->start + o->n - 1) / o->cols - first + 1, blocks_row = (o->cols + 2) / 4 + 1,
    n = rows * blocks_row;
  init<<<(unsigned) ceil_div (n, BLOCK), BLOCK, 0, s>>> (*o, first, blocks_row, n);
  return cudaGetLastError ();
}
