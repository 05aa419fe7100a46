/* cpu_kernel: the inner loop of all matrix products, for the files that define MADD (a, b, c): a b + c on vectors of 16 words.
   cpu_tile.h and cpu_pairs.h say what a word is and what the arguments are. */
#ifndef CPU_KERNEL_H
#define CPU_KERNEL_H
#include "cpu_tile.h"

/* 16 times the word at p, whatever it means. */
INLINE vf v_word (const float *p)
{
  uint32_t w;
  memcpy (&w, p, sizeof w);
  return (vf) (w - (vu) {});
}

/* TILE_M rows of V vectors. */
INLINE void kernel (int V, int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c,
  int64_t ldc, bool add)
{
  vf s[TILE_M][TILE_V] = {};
  #pragma GCC unroll 16
  for (int i = 0; i < TILE_M; i++)
    #pragma GCC unroll 4
    for (int j = 0; j < V; j++) __builtin_prefetch (c + i * ldc + j * VL, 1);
  for (int64_t p = 0; p < k; p++) {
    vf x[TILE_V];
    #pragma GCC unroll 4
    for (int j = 0; j < V; j++) x[j] = v_ld (b, p * ldb + j * VL, DT_F32);
    #pragma GCC unroll 16
    for (int i = 0; i < TILE_M; i++) {
      vf y = v_word (a + i * rs + p * cs);
      #pragma GCC unroll 4
      for (int j = 0; j < V; j++) s[i][j] = MADD (y, x[j], s[i][j]);
    }
  }
  #pragma GCC unroll 16
  for (int i = 0; i < TILE_M; i++)
    #pragma GCC unroll 4
    for (int j = 0; j < V; j++) v_st (c, i * ldc + j * VL, DT_F32, add ? v_ld (c, i * ldc + j * VL, DT_F32) + s[i][j] : s[i][j]);
}

typedef void kernel_fn (int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c, int64_t ldc,
  bool add);
#define KERNEL(V) \
  static void kernel##V (int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c, int64_t ldc, \
    bool add) { kernel (V, k, a, rs, cs, b, ldb, c, ldc, add); }
KERNEL (1)
#ifdef __AVX512F__
KERNEL (2)
KERNEL (3)
#else
#define kernel2 kernel1   /* never called */
#define kernel3 kernel1
#endif

static void kernels (int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb,
  float *c, int64_t ldc, bool add)
{
  static kernel_fn *const kern[] = { NULL, kernel1, kernel2, kernel3 };
  int64_t left = n / VL;
  while (left > 0) {
    int64_t v = MIN (left, (int64_t) TILE_V), j = n - left * VL;
    if (left == TILE_V + 1 && TILE_V > 2) v = 2;   /* two and two rather than three and one */
    for (int64_t i = 0; i < m; i += TILE_M) kern[v] (k, a + i * rs, rs, cs, b + j, ldb, c + i * ldc + j, ldc, add);
    left -= v;
  }
}
#endif
