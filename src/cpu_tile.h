/* cpu_tile: products of small matrices that lie in cache, F32, and what brings tensors into that form. The fast part of
   cpu_gemm.c and cpu_attn*.c. */
#ifndef CPU_TILE_H
#define CPU_TILE_H
#include "cpu_vec.h"

/* The kernel computes TILE_M rows of up to TILE_N columns in registers. */
#ifdef __AVX512F__
#define TILE_WIDE true
enum { TILE_M = 8, TILE_V = 3, TILE_N = TILE_V * VL };
#else
#define TILE_WIDE false   /* sixteen registers of 8 floats: a library's kernels are better */
enum { TILE_M = 4, TILE_V = 1, TILE_N = TILE_V * VL };   /* and cpu_gemm_own.c is not used */
#endif

/* C[m,n] (+)= A[m,k] B[k,n]: element (i, p) of A at a[i * rs + p * cs], rows of B and C ldb and ldc apart. m is a multiple of
   TILE_M, n of VL.
   Each element sums its k products in order, fused, from 0, then adds what C held: the same bits however the matrix is cut in m
   and n. */
void tile_gemm (int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c,
  int64_t ldc, bool add);

/* The transpose of 16 x 16, bits as they are. Four rounds, each swaps blocks of s lanes between row i and row i + s. */
#define TILE_LANES(s, f) { f (0, s), f (1, s), f (2, s), f (3, s), f (4, s), f (5, s), f (6, s), f (7, s), \
  f (8, s), f (9, s), f (10, s), f (11, s), f (12, s), f (13, s), f (14, s), f (15, s) }
#define TILE_UPPER(l, s) ((l) & (s) ? 16 + (l) - (s) : (l))
#define TILE_LOWER(l, s) ((l) & (s) ? 16 + (l) : (l) + (s))
INLINE void tile_swap (vf r[VL], int s, vi up, vi low)
{
  #pragma GCC unroll 16
  for (int i = 0; i < VL; i++)
    if (!(i & s)) {
      vf x = r[i], y = r[i + s];
      r[i] = __builtin_shuffle (x, y, up);
      r[i + s] = __builtin_shuffle (x, y, low);
    }
}
#define TILE_ROUND(s) tile_swap (r, s, (vi) TILE_LANES (s, TILE_UPPER), (vi) TILE_LANES (s, TILE_LOWER))
INLINE void tile_turn (vf r[VL]) { TILE_ROUND (1); TILE_ROUND (2); TILE_ROUND (4); TILE_ROUND (8); }

/* Start to bring rows of type t into the cache: rows that lie pages apart the processor does not foresee. */
INLINE void tile_fetch (const void *src, int64_t src_ld, int64_t rows, int64_t cols, enum dtype t)
{
  for (int64_t r = 0; r < rows; r++)
    for (int64_t b = 0; b < cols * dtype_size (t); b += 64) __builtin_prefetch (at_bytes (at_elem (src, r * src_ld, t), b));
}

/* The same for rows that will be written: else each store waits for its line. */
INLINE void tile_own (void *dst, int64_t dst_ld, int64_t rows, int64_t cols, enum dtype t)
{
  for (int64_t r = 0; r < rows; r++)
    for (int64_t b = 0; b < cols * dtype_size (t); b += 64) __builtin_prefetch (at_bytes (at_elem (dst, r * dst_ld, t), b), 1);
}

/* dst[rows_pad, ld] = alpha * src[rows, cols] of type t, rows src_ld apart; zeros in columns cols .. cols_pad - 1 (a multiple of
   VL, at most ld) and rows beyond. */
void tile_load (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad, enum dtype t, float alpha);
/* The transpose of the same: dst[c * ld + r], zeros as above, rows_pad and cols_pad multiples of VL. */
void tile_load_t (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad, enum dtype t, float alpha);
/* Rows of type t cut into panels of TILE_PANEL columns: panel j's rows, TILE_PANEL apart, start at dst + j * panel; the last is
   filled up with zeros. */
enum { TILE_PANEL = 48 };
void tile_split (float *dst, int64_t panel, const void *src, int64_t src_ld, int64_t rows, int64_t cols, enum dtype t);
/* dst[rows, cols] of type t = src, rows ld apart (+ dst where add). */
void tile_store (void *dst, int64_t dst_ld, const float *src, int64_t ld, int64_t rows, int64_t cols, enum dtype t, bool add);
/* The same from a transposed source: src[c * ld + r]; src has multiples of VL of rows and columns. */
void tile_store_t (void *dst, int64_t dst_ld, const float *src, int64_t ld, int64_t rows, int64_t cols, enum dtype t, bool add);
#endif
