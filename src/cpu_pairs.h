/* cpu_pairs: products of BF16 by the instruction that multiplies two pairs and adds both products to an F32 (VDPBF16PS). A pair
   is two neighbours along k in one word of 32 bits, the first in the low half; packed matrices have words where those of cpu_tile.h
   have floats, and an odd k ends with half a pair of zero. Sums are F32; denormals count as 0 there. */
#ifndef CPU_PAIRS_H
#define CPU_PAIRS_H
#include "cpu_tile.h"

/* Has this processor the instruction, faster than widening to F32? Where it has not, pairs_gemm may not be called. */
bool pairs_fast (void);

/* As tile_gemm, k in pairs: an element sums its pairs in order from 0, then adds what C held. */
void pairs_gemm (int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t cs, const float *b, int64_t ldb, float *c,
  int64_t ldc, bool add);

/* As tile_load, rows of cols elements along k; ld and cols_pad count words. */
void pairs_load (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad);
/* The transpose of the same, as tile_load_t. */
void pairs_load_t (float *dst, int64_t ld, const void *src, int64_t src_ld, int64_t rows, int64_t cols, int64_t rows_pad,
  int64_t cols_pad);
/* As tile_split, rows lie along k: two become one of words. */
void pairs_split (float *dst, int64_t panel, const void *src, int64_t src_ld, int64_t rows, int64_t cols);
#endif
