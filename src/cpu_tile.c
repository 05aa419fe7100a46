#include "config.h"
#include "cpu_tile.h"

#define MADD v_fma
#include "cpu_kernel.h"

void tile_gemm (int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c,
  int64_t ldc, bool add)
{
  kernels (m, n, k, a, rs, cs, b, ldb, c, ldc, add);
}

enum { AHEAD = 12 };   /* rows; beyond the last the caller's next tile begins, if any */

INLINE void load_as (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t cols_pad,
  enum dtype t, float alpha)
{
  for (int64_t r = 0; r < rows; r++) {
    int64_t c = 0;
    tile_fetch (at_elem (src, (r + AHEAD) * src_ld, t), src_ld, 1, cols, t);
    for (; c + VL <= cols; c += VL) v_st (dst, r * ld + c, DT_F32, v_ld (src, r * src_ld + c, t) * alpha);
    if (c < cols) v_st (dst, r * ld + c, DT_F32, v_ldn (src, r * src_ld + c, r * src_ld + cols, t, 0) * alpha), c += VL;
    for (; c < cols_pad; c += VL) v_st (dst, r * ld + c, DT_F32, v_set (0));
  }
}

void tile_load (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad, enum dtype t, float alpha)
{
  WITH_OPERAND (t, T, load_as (dst, ld, src, src_ld, rows, cols, cols_pad, T, alpha));
  for (int64_t r = rows; r < rows_pad; r++) memset (dst + r * ld, 0, (size_t) cols_pad * sizeof *dst);
}

INLINE void split_as (float *dst, int64_t panel, const void *src, int64_t src_ld, int64_t rows, int64_t cols, enum dtype t)
{
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c += TILE_PANEL) {
      float *d = dst + c / TILE_PANEL * panel + r * TILE_PANEL;
      int64_t at = r * src_ld + c, end = r * src_ld + cols;
      if (cols - c >= TILE_PANEL)
        for (int i = 0; i < TILE_PANEL; i += VL) v_st (d, i, DT_F32, v_ld (src, at + i, t));
      else
        for (int i = 0; i < TILE_PANEL; i += VL) v_st (d, i, DT_F32, at + i < end ? v_ldn (src, at + i, end, t, 0) : v_set (0));
    }
}

void tile_split (float *dst, int64_t panel, const void *src, int64_t src_ld, int64_t rows, int64_t cols, enum dtype t)
{
  WITH_TYPE (t, T, split_as (dst, panel, src, src_ld, rows, cols, T));
}

INLINE void load_t_block (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, enum dtype t,
  float alpha)
{
  vf r[VL];
  if (rows >= VL && cols >= VL) {
    #pragma GCC unroll 16
    for (int i = 0; i < VL; i++) r[i] = v_ld (src, i * src_ld, t) * alpha;
  } else
    for (int i = 0; i < VL; i++) r[i] = i < rows ? v_ldn (src, i * src_ld, i * src_ld + MAX (cols, 0), t, 0) * alpha : v_set (0);
  tile_turn (r);
  #pragma GCC unroll 16
  for (int i = 0; i < VL; i++) v_st (dst, i * ld, DT_F32, r[i]);
}

void tile_load_t (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad, enum dtype t, float alpha)
{
  for (int64_t r = 0; r < rows_pad; r += VL)
    for (int64_t c = 0; c < cols_pad; c += VL) {
      for (int64_t i = r + VL + c / VL; i < r + 2 * VL; i += cols_pad / VL)
        tile_fetch (at_elem (src, i * src_ld, t), src_ld, 1, cols, t);
      const void *s = at_elem (src, r * src_ld + c, t);
      WITH_OPERAND (t, T, load_t_block (dst + c * ld + r, ld, s, src_ld, rows - r, cols - c, T, alpha));
    }
}

INLINE void store_row (void *dst, int64_t at, int64_t end, vf x, enum dtype t, bool add)
{
  if (add) x += v_ldn (dst, at, end, t, 0);
  v_stn (dst, at, end, t, x);
}

void tile_store (void *dst, int64_t dst_ld, const float *src, int64_t ld, int64_t rows, int64_t cols, enum dtype t, bool add)
{
  for (int64_t r = 0; r < rows; r++) {
    tile_own (at_elem (dst, (r + AHEAD) * dst_ld, t), dst_ld, 1, cols, t);
    for (int64_t c = 0; c < cols; c += VL)
      WITH_TYPE (t, T, store_row (dst, r * dst_ld + c, r * dst_ld + cols, v_ld (src, r * ld + c, DT_F32), T, add));
  }
}

/* Up to 16 x 16 of the transpose. */
INLINE void store_t_block (void *dst, int64_t dst_ld, const float *src, int64_t ld, int64_t rows, int64_t cols, enum dtype t,
  bool add)
{
  vf r[VL];
  #pragma GCC unroll 16
  for (int i = 0; i < VL; i++) r[i] = v_ld (src, i * ld, DT_F32);
  tile_turn (r);
  if (rows >= VL && cols >= VL) {
    #pragma GCC unroll 16
    for (int i = 0; i < VL; i++) v_st (dst, i * dst_ld, t, add ? r[i] + v_ld (dst, i * dst_ld, t) : r[i]);
  } else
    for (int i = 0; i < MIN (VL, rows); i++) store_row (dst, i * dst_ld, i * dst_ld + MIN (VL, cols), r[i], t, add);
}

void tile_store_t (void *dst, int64_t dst_ld, const float *src, int64_t ld, int64_t rows, int64_t cols, enum dtype t, bool add)
{
  for (int64_t r = 0; r < rows; r += VL)
    for (int64_t c = 0; c < cols; c += VL) {
      void *d = at_elem (dst, r * dst_ld + c, t);
      WITH_TYPE (t, T, store_t_block (d, dst_ld, src + c * ld + r, ld, rows - r, cols - c, T, add));
    }
}
