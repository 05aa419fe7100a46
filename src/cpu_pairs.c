#include "config.h"
#if defined __x86_64__ && defined __AVX512F__
#pragma GCC target ("avx512bf16")   /* for this file alone: pairs_fast asks the processor */
#include "cpu_pairs.h"

/* Sapphire Rapids and its kin take two cycles for what Zen 4 and Cooper Lake do in one: 95 GFLOP/s against 195 in F32. */
bool pairs_fast (void)
{
  return __builtin_cpu_supports ("avx512bf16") && (__builtin_cpu_is ("amd") || __builtin_cpu_is ("cooperlake"));
}

INLINE vf v_dot (vf a, vf b, vf c) { return (vf) _mm512_dpbf16_ps ((__m512) c, (__m512bh) a, (__m512bh) b); }
#else
#include "cpu_pairs.h"

bool pairs_fast (void) { return false; }

INLINE vf high (vf x) { return (vf) ((vu) x & 0xffff0000u); }
INLINE vf low (vf x) { return (vf) ((vu) x << 16); }
INLINE vf v_dot (vf a, vf b, vf c) { return v_fma (low (a), low (b), v_fma (high (a), high (b), c)); }
#endif

#define MADD v_dot
#include "cpu_kernel.h"

void pairs_gemm (int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c,
  int64_t ldc, bool add)
{
  kernels (m, n, k, a, rs, cs, b, ldb, c, ldc, add);
}

enum { AHEAD = 12 };   /* rows */

void pairs_load (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad)
{
  for (int64_t r = 0; r < rows; r++) {
    tile_fetch (at_elem (src, (r + AHEAD) * src_ld, DT_BF16), src_ld, 1, cols, DT_BF16);
    memcpy (dst + r * ld, at_elem (src, r * src_ld, DT_BF16), (size_t) (2 * cols));
    memset ((char *) (dst + r * ld) + 2 * cols, 0, (size_t) (4 * cols_pad - 2 * cols));
  }
  for (int64_t r = rows; r < rows_pad; r++) memset (dst + r * ld, 0, (size_t) (4 * cols_pad));
}

/* Up to 16 words of a row that has BYTES left. */
INLINE vf words (const void *src, int64_t bytes)
{
  vf x = {};
  if (bytes >= (int64_t) sizeof x) memcpy (&x, src, sizeof x);
  else if (bytes > 0) memcpy (&x, src, (size_t) bytes);
  return x;
}

void pairs_load_t (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad)
{
  for (int64_t r = 0; r < rows_pad; r += VL)
    for (int64_t c = 0; c < cols_pad; c += VL) {
      vf x[VL];
      for (int64_t i = r + VL + c / VL; i < r + 2 * VL; i += cols_pad / VL)
        tile_fetch (at_elem (src, i * src_ld, DT_BF16), src_ld, 1, cols, DT_BF16);
      #pragma GCC unroll 16
      for (int i = 0; i < VL; i++)
        x[i] = words (at_elem (src, (r + i) * src_ld + 2 * c, DT_BF16), r + i < rows ? 2 * (cols - 2 * c) : 0);
      tile_turn (x);
      #pragma GCC unroll 16
      for (int i = 0; i < VL; i++) v_st (dst, (c + i) * ld + r, DT_F32, x[i]);
    }
}

INLINE vu halves (const void *row, int64_t at, int64_t n)
{
  vh h = {};
  if (row && n - at >= VL) memcpy (&h, (const bf16 *) row + at, sizeof h);
  else if (row && n > at) memcpy (&h, (const bf16 *) row + at, (size_t) (2 * (n - at)));
  return v_widen (h);
}

void pairs_split (float *dst, int64_t panel, const void *src, int64_t src_ld, int64_t rows, int64_t cols)
{
  for (int64_t r = 0; r < rows; r += 2) {
    const void *low = at_elem (src, r * src_ld, DT_BF16), *high = r + 1 < rows ? at_elem (low, src_ld, DT_BF16) : NULL;
    for (int64_t c = 0; c < cols; c += TILE_PANEL)
      for (int64_t i = c; i < c + TILE_PANEL; i += VL)
        v_st (dst + c / TILE_PANEL * panel, r / 2 * TILE_PANEL + i - c, DT_F32,
          (vf) (halves (low, i, cols) | halves (high, i, cols) << 16));
  }
}
