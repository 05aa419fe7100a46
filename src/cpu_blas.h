/* cpu_blas: one block of a matrix product by the library that configure found. The only file that knows which: cpu_blas.c.
   Pointers are usable, leading dimensions given, shape and strides as struct op_gemm says. Uses cpu_threads threads. */
#ifndef CPU_BLAS_H
#define CPU_BLAS_H
#include "dev_cpu.h"
void blas_gemm (const struct op_gemm *g);
#endif
