/* cpu_gemm: the ways to a matrix product. Pointers are usable, leading dimensions given, shape and strides as struct op_gemm
   says; all use cpu_threads threads. */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H
#include "dev_cpu.h"

/* Our own, from cpu_tile: F32 arithmetic on any type, any size, polls; the bits of an element depend on k alone. B has type bt and the bias type bias_t; alpha
   multiplies A's elements (1 where ta). */
void gemm_own (const struct op_gemm *g, enum dtype bt, enum dtype bias_t, float alpha);
/* The same for BF16 by cpu_pairs, where pairs_fast. */
void gemm_pairs (const struct op_gemm *g);

/* One block by the library that configure found; cpu_blas.c is the only file that knows which. */
void blas_gemm (const struct op_gemm *g);
/* Does it multiply BF16 by tiles (AMX), faster than anything here? */
bool blas_bf16_fast (void);
#endif
