/* checksum: whole numbers modulo 2^64, whose sum is the same in any order: the value of the cpu device whatever the launch. */
#include "common.cuh"
#include "checksum.h"

#define BLOCK 256
#define MOST_BLOCKS 1056

typedef unsigned long long ull;

template <class T> __global__ void __launch_bounds__ (BLOCK) checksum (const T *x, int64_t n, ull *sum)
{
  const int U = 4;
  const int64_t step = (int64_t) gridDim.x * BLOCK;
  int64_t i = (int64_t) blockIdx.x * BLOCK + threadIdx.x;
  ull s = 0;
  for (; i + (U - 1) * step < n; i += U * step) {
    T v[U];
    #pragma unroll
    for (int u = 0; u < U; u++) v[u] = x[i + u * step];
    #pragma unroll
    for (int u = 0; u < U; u++) s += checksum_term (v[u], (uint64_t) (i + u * step));
  }
  for (; i < n; i += step) s += checksum_term (x[i], (uint64_t) i);
  #pragma unroll
  for (int k = 16; k; k /= 2) s += __shfl_xor_sync (FULL, s, k);
  if (threadIdx.x % 32 == 0) atomicAdd (sum, s);
}

cudaError_t k_checksum (const struct op_checksum *o, cudaStream_t s)
{
  if (o->n <= 0) return cudaGetLastError ();
  unsigned blocks = (unsigned) min64 (MOST_BLOCKS, ceil_div (o->n, BLOCK));
  ull *sum = (ull *) o->sum;
  switch (dtype_size (o->t)) {
  case 1: checksum<<<blocks, BLOCK, 0, s>>> ((const uint8_t *) o->x, o->n, sum); break;
  case 2: checksum<<<blocks, BLOCK, 0, s>>> ((const uint16_t *) o->x, o->n, sum); break;
  case 4: checksum<<<blocks, BLOCK, 0, s>>> ((const uint32_t *) o->x, o->n, sum); break;
  default: checksum<<<blocks, BLOCK, 0, s>>> ((const uint64_t *) o->x, o->n, sum); break;
  }
  return cudaGetLastError ();
}
