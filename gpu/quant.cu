/* quant: codes of 8 bits of a matrix, as it lies and turned, in one pass.

   A block takes a square of 128. A thread reads pieces of 4 rows x 8 columns, turns each in registers, 4 x 4 bytes at a time, and puts
   words of 4 rows into shared memory, from where the turned rows leave as 128 bytes in a line. A word's place there is xored with twice the
   thread's group of columns: writes and reads of a warp then meet all banks. */
#include "common.cuh"
#include <cuda_fp8.h>

#define BLOCK 256
#define SIDE 128

/* struct op_quant's unit as its exponent: the largest codes are 0.875 2^9 and 0.875 2^16. */
template <bool FIVE> DEV int exponent_of (float max)
{
  int e;
  float f = frexpf (max, &e);
  e += (f > 0.875f) - (FIVE ? 16 : 9);
  return e < -126 ? -126 : e > 126 ? 126 : e;
}
DEV float power (int e) { return __uint_as_float ((uint32_t) (127 + e) << 23); }

/* Four codes in a word. */
template <bool FIVE> DEV uint32_t code4 (const float *x, float inverse)
{
  const __nv_fp8_interpretation_t T = FIVE ? __NV_E5M2 : __NV_E4M3;
  uint32_t lo = __nv_cvt_float2_to_fp8x2 (make_float2 (x[0] * inverse, x[1] * inverse), __NV_SATFINITE, T);
  uint32_t hi = __nv_cvt_float2_to_fp8x2 (make_float2 (x[2] * inverse, x[3] * inverse), __NV_SATFINITE, T);
  return lo | hi << 16;
}

/* Rows of 4 bytes become columns. */
DEV void turn (const uint32_t r[4], uint32_t c[4])
{
  uint32_t a = __byte_perm (r[0], r[1], 0x5140), b = __byte_perm (r[2], r[3], 0x5140);
  uint32_t d = __byte_perm (r[0], r[1], 0x7362), e = __byte_perm (r[2], r[3], 0x7362);
  c[0] = __byte_perm (a, b, 0x5410), c[1] = __byte_perm (a, b, 0x7632);
  c[2] = __byte_perm (d, e, 0x5410), c[3] = __byte_perm (d, e, 0x7632);
}

template <bool FIVE, class T> __global__ void __launch_bounds__ (BLOCK) quant (const T *x, uint8_t *q, uint8_t *qt, float *s,
  int64_t rows, int64_t cols)
{
  __shared__ __align__ (16) uint32_t tile[SIDE][SIDE / 4];
  float max = s[0], inverse = 1, unit = 1;
  if (!isfinite (max)) inverse = unit = __uint_as_float (0x7fffffff);
  else if (max > 0) {
    int e = exponent_of<FIVE> (max);
    unit = power (e), inverse = power (-e);
  }
  if (blockIdx.x + blockIdx.y + threadIdx.x == 0) s[OP_UNIT] = unit;

  int64_t r0 = (int64_t) blockIdx.y * SIDE, c0 = (int64_t) blockIdx.x * SIDE;
  int group = threadIdx.x % 16, c = group * 8;
  bool in = c0 + c < cols;
  pack<T, 8> p[2][4];
  #pragma unroll
  for (int h = 0; h < 2; h++)
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      int64_t r = r0 + h * 64 + threadIdx.x / 16 * 4 + i;
      if (in && r < rows) p[h][i] = load<8> (x + r * cols + c0 + c);
    }
  #pragma unroll
  for (int h = 0; h < 2; h++) {
    int word = h * 16 + threadIdx.x / 16;
    uint32_t k[2][4], t[2][4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      float f[8];
      unpack (p[h][i], f);
      k[0][i] = code4<FIVE> (f, inverse);
      k[1][i] = code4<FIVE> (f + 4, inverse);
      int64_t r = r0 + word * 4 + i;
      if (q && in && r < rows) *(uint2 *) (q + r * cols + c0 + c) = make_uint2 (k[0][i], k[1][i]);
    }
    turn (k[0], t[0]);
    turn (k[1], t[1]);
    #pragma unroll
    for (int j = 0; j < 8; j++) tile[c + j][word ^ 2 * group] = t[j / 4][j % 4];
  }
  if (!qt) return;
  __syncthreads ();
  #pragma unroll
  for (int i = 0; i < SIDE; i += BLOCK / 16) {
    int column = i + threadIdx.x / 16, word = threadIdx.x % 16 * 2;
    if (c0 + column < cols && r0 + word * 4 < rows)
      *(uint2 *) (qt + (c0 + column) * rows + r0 + word * 4) = *(uint2 *) &tile[column][word ^ 2 * (column / 8)];
  }
}

cudaError_t k_quant (const struct op_quant *o, cudaStream_t s)
{
  dim3 grid ((unsigned) ceil_div (o->cols, SIDE), (unsigned) ceil_div (o->rows, SIDE));
  if (o->rows % 16 || o->cols % 16 || !fits (o->x, 8, o->t) || (uintptr_t) o->q % 8 || (uintptr_t) o->qt % 8) return cudaErrorInvalidValue;
  if (!o->rows || !o->cols) return cudaGetLastError ();
  WITH_TYPE (o->t, T,
    if (o->to == DT_E5M2) quant<true><<<grid, BLOCK, 0, s>>> ((const T *) o->x, (uint8_t *) o->q, (uint8_t *) o->qt, o->s, o->rows, o->cols);
    else quant<false><<<grid, BLOCK, 0, s>>> ((const T *) o->x, (uint8_t *) o->q, (uint8_t *) o->qt, o->s, o->rows, o->cols));
  return cudaGetLastError ();
}
