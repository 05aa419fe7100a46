/* common: what the kernels share. Included by our .cu files only.

   Elements are float or bf16 (the bits, as in dtype.h); all arithmetic is fp32. A thread moves packs of V elements, at most 16
   bytes an access where addresses allow and V = 1 where they do not, so that one source serves both. Sums have one order, given
   by the shape alone: lanes, warps, blocks. */
#ifndef COMMON_CUH
#define COMMON_CUH
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>
#include "kernels.h"

#define DEV static __device__ __forceinline__
#define DEV_OP __device__ __forceinline__
#define FULL 0xffffffffu
#define WITH_TYPE(t, T, ...) \
  do { if ((t) == DT_F32) { typedef float T; __VA_ARGS__; } else { typedef bf16 T; __VA_ARGS__; } } while (0)

static inline int64_t ceil_div (int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min64 (int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64 (int64_t a, int64_t b) { return a > b ? a : b; }
/* Is P fit for packs of V elements of type T? NULL is. */
static inline bool fits (const void *p, int v, enum dtype t)
{
  int64_t bytes = min64 (v * dtype_size (t), 16);
  return (uintptr_t) p % (uintptr_t) bytes == 0;
}
/* Elements of a pack that is 16 bytes of the widest of two types. */
static inline int pack_of (enum dtype a, enum dtype b) { return a == DT_BF16 && b == DT_BF16 ? 8 : 4; }

/* ---- packs: V elements as they lie in memory, in registers ---- */
template <class T, int V> struct pack {
  static const int BYTES = (int) sizeof (T) * V;
  uint32_t u[BYTES > 4 ? BYTES / 4 : 1];   /* one bf16: in the lower half */
};

template <int V, class T> DEV pack<T, V> load (const T *p)
{
  const int BYTES = pack<T, V>::BYTES;
  pack<T, V> r;
  if constexpr (BYTES == 2) r.u[0] = *(const uint16_t *) p;
  else if constexpr (BYTES == 4) r.u[0] = *(const uint32_t *) p;
  else if constexpr (BYTES == 8) {
    uint2 w = *(const uint2 *) p;
    r.u[0] = w.x, r.u[1] = w.y;
  } else
    #pragma unroll
    for (int i = 0; i < BYTES / 16; i++) {
      uint4 w = ((const uint4 *) p)[i];
      r.u[4 * i] = w.x, r.u[4 * i + 1] = w.y, r.u[4 * i + 2] = w.z, r.u[4 * i + 3] = w.w;
    }
  return r;
}
template <class T, int V> DEV void store (T *p, const pack<T, V> &r)
{
  const int BYTES = pack<T, V>::BYTES;
  if constexpr (BYTES == 2) *(uint16_t *) p = (uint16_t) r.u[0];
  else if constexpr (BYTES == 4) *(uint32_t *) p = r.u[0];
  else if constexpr (BYTES == 8) *(uint2 *) p = make_uint2 (r.u[0], r.u[1]);
  else
    #pragma unroll
    for (int i = 0; i < BYTES / 16; i++)
      ((uint4 *) p)[i] = make_uint4 (r.u[4 * i], r.u[4 * i + 1], r.u[4 * i + 2], r.u[4 * i + 3]);
}

DEV float to_f32 (float x) { return x; }
DEV float to_f32 (bf16 h) { return __uint_as_float ((uint32_t) h << 16); }
DEV void from_f32 (float x, float *y) { *y = x; }
DEV void from_f32 (float x, bf16 *y) { *y = __bfloat16_as_ushort (__float2bfloat16_rn (x)); }

template <int V> DEV void unpack (const pack<float, V> &p, float (&f)[V])
{
  #pragma unroll
  for (int i = 0; i < V; i++) f[i] = __uint_as_float (p.u[i]);
}
template <int V> DEV void unpack (const pack<bf16, V> &p, float (&f)[V])
{
  if constexpr (V == 1) f[0] = __uint_as_float (p.u[0] << 16);
  else
    #pragma unroll
    for (int i = 0; i < V / 2; i++) {
      f[2 * i] = __uint_as_float (p.u[i] << 16);
      f[2 * i + 1] = __uint_as_float (p.u[i] & 0xffff0000u);
    }
}
template <int V> DEV void repack (const float (&f)[V], pack<float, V> *p)
{
  #pragma unroll
  for (int i = 0; i < V; i++) p->u[i] = __float_as_uint (f[i]);
}
template <int V> DEV void repack (const float (&f)[V], pack<bf16, V> *p)
{
  if constexpr (V == 1) p->u[0] = __bfloat16_as_ushort (__float2bfloat16_rn (f[0]));
  else
    #pragma unroll
    for (int i = 0; i < V / 2; i++) {
      __nv_bfloat162 h = __floats2bfloat162_rn (f[2 * i], f[2 * i + 1]);
      p->u[i] = (uint32_t) __bfloat16_as_ushort (h.y) << 16 | __bfloat16_as_ushort (h.x);
    }
}
template <int V, class T> DEV void load_f32 (const T *p, float (&f)[V]) { unpack (load<V> (p), f); }
template <int V, class T> DEV void store_f32 (T *p, const float (&f)[V])
{
  pack<T, V> r;
  repack (f, &r);
  store (p, r);
}
/* A small vector that all rows share, of a type known at run time. */
template <int V> DEV void load_any (const void *p, int64_t i, enum dtype t, float (&f)[V])
{
  if (t == DT_F32) load_f32 ((const float *) p + i, f);
  else load_f32 ((const bf16 *) p + i, f);
}

/* Of the elements after the last whole pack of n, the one that this thread takes (threads of the last block do), or -1. */
DEV int64_t tail_of (int64_t n, int v)
{
  int64_t left = n % v;
  return blockIdx.x == gridDim.x - 1 && threadIdx.x < left ? n - left + threadIdx.x : -1;
}

/* Products and sums that are never fused: the bits of the cpu device. */
DEV float mul (float a, float b) { return __fmul_rn (a, b); }
DEV float add (float a, float b) { return __fadd_rn (a, b); }

/* e^x: the chip's own exponential for bf16, whose rounding hides its error (2^-21 |x|), the library's for fp32. */
template <class T> DEV float exp_for (float x) { return sizeof (T) == 2 ? __expf (x) : expf (x); }

/* ---- reductions ---- */
struct op_sum { template <class F> DEV_OP F operator() (F a, F b) const { return a + b; } };
struct op_max { DEV_OP float operator() (float a, float b) const { return fmaxf (a, b); } };

/* Over each group of 2^lg threads of the block, which every thread calls; all get the result. red: one value a warp, not in use
   by a call before the last barrier. */
template <class F, class O> DEV F group_fold (F x, int lg, F *red, O fold)
{
  for (int m = 1 << (lg < 5 ? lg : 5); m >>= 1; ) x = fold (x, __shfl_xor_sync (FULL, x, m));
  if (lg <= 5) return x;
  int warp = threadIdx.x >> 5, warps = 1 << (lg - 5), first = warp & -warps;
  if (!(threadIdx.x & 31)) red[warp] = x;
  __syncthreads ();
  x = red[first];
  for (int i = 1; i < warps; i++) x = fold (x, red[first + i]);
  return x;
}
/* Over a block of B threads, B a power of two. */
template <int B, class F, class O> DEV F block_fold (F x, O fold)
{
  __shared__ F red[B / 32];
  __syncthreads ();
  return group_fold (x, 31 - __builtin_clz (B), red, fold);
}

/* dst[c] (type gt) = beta dst[c] + sum over `parts` rows of part [parts, n], in one order. In elem.cu. */
cudaError_t sum_parts (const float *part, int64_t parts, int64_t n, void *dst, float beta, enum dtype gt, cudaStream_t s);
#endif
