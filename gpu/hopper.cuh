/* hopper: the chip's own instructions that the attention kernels use (sm_90a): barriers in shared memory, the tensor copy
   engine, matrix products of warpgroups.

   A tile of R rows and D columns of bf16 lies in shared memory as D / 64 slabs of [R][64], each row 128 bytes, 16-byte chunks
   exclusive-ored with the row modulo 8: what the copy engine writes with 128-byte swizzling and what the tensor cores read.
   Slabs start at multiples of 1024 bytes. */
#ifndef HOPPER_CUH
#define HOPPER_CUH
#include <stdint.h>

#define FN static __device__ __forceinline__

/* CUtensorMap of the driver, whose header shares its name with one of ours. */
struct alignas (64) tensor_map { uint64_t opaque[16]; };

FN uint32_t shared_of (const void *p) { return (uint32_t) __cvta_generic_to_shared (p); }

/* ---- barriers: a phase ends when COUNT arrivals and the bytes expected are there ---- */
FN void bar_init (uint32_t bar, int count)
{
  asm volatile ("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r" (bar), "r" (count) : "memory");
}
FN void bar_init_done () { asm volatile ("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FN void bar_arrive (uint32_t bar) { asm volatile ("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r" (bar) : "memory"); }
FN void bar_expect (uint32_t bar, int bytes)
{
  asm volatile ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r" (bar), "r" (bytes) : "memory");
}
FN void bar_wait (uint32_t bar, int parity)
{
  asm volatile ("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                "@done bra out;\nbra again;\nout:\n}"
                :: "r" (bar), "r" (parity) : "memory");
}

/* ---- the copy engine: boxes of a tensor map, or plain bytes ---- */
FN void copy_box (uint32_t dst, const tensor_map *map, uint32_t bar, int x, int head, int token, int batch)
{
  asm volatile ("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                :: "r" (dst), "l" (map), "r" (bar), "r" (x), "r" (head), "r" (token), "r" (batch) : "memory");
}
FN void copy_bytes (uint32_t dst, const void *src, int bytes, uint32_t bar)
{
  asm volatile ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                :: "r" (dst), "l" (__cvta_generic_to_global (src)), "r" (bytes), "r" (bar) : "memory");
}

/* ---- registers between the roles of a block ---- */
template <int N> FN void more_registers () { asm volatile ("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n" (N)); }
template <int N> FN void fewer_registers () { asm volatile ("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n" (N)); }

/* ---- matrix products of a warpgroup ---- */
FN void mma_begin () { asm volatile ("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void mma_commit () { asm volatile ("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> FN void mma_wait () { asm volatile ("wgmma.wait_group.sync.aligned %0;" :: "n" (N) : "memory"); }
/* The compiler must not look at accumulators before the wait. */
template <int N> FN void keep (float (&c)[N])
{
  #pragma unroll
  for (int i = 0; i < N; i++) asm volatile ("" : "+f" (c[i]) :: "memory");
}

/* Where an operand lies: groups of 8 rows 1024 bytes apart, SLAB bytes between slabs of 64 columns (read where a product takes
   columns of more than one). */
FN uint64_t operand (uint32_t at, uint32_t slab)
{
  return (uint64_t) (at >> 4) | (uint64_t) (slab >> 4) << 16 | (uint64_t) (1024 >> 4) << 32 | (uint64_t) 1 << 62;
}

#define ACC4(c, i) "+f" (c[i]), "+f" (c[i + 1]), "+f" (c[i + 2]), "+f" (c[i + 3])
#define ACC16(c, i) ACC4 (c, i), ACC4 (c, i + 4), ACC4 (c, i + 8), ACC4 (c, i + 12)
#define ACC32(c, i) ACC16 (c, i), ACC16 (c, i + 16)
#define NAMES32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES64 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* c [64, 64 or 128] = (add ? c : 0) + a b^T: a [64, 16] and b [64 or 128, 16] both in shared memory, rows along their slabs. */
FN void mma_n64 (float *c, uint64_t a, uint64_t b, int add)
{
  asm volatile ("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                NAMES32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                : ACC32 (c, 0) : "l" (a), "l" (b), "r" (add));
}
FN void mma_n128 (float *c, uint64_t a, uint64_t b, int add)
{
  asm volatile ("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                NAMES64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                : ACC32 (c, 0), ACC32 (c, 32) : "l" (a), "l" (b), "r" (add));
}
/* c [64, 64 or 128] += a b: a [64, 16] in registers, b [16, 64 or 128] in shared memory, 16 rows of its slabs. */
FN void mma_reg_n64 (float *c, const uint32_t *a, uint64_t b)
{
  asm volatile ("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                NAMES32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                : ACC32 (c, 0) : "r" (a[0]), "r" (a[1]), "r" (a[2]), "r" (a[3]), "l" (b));
}
FN void mma_reg_n128 (float *c, const uint32_t *a, uint64_t b)
{
  asm volatile ("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                NAMES64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                : ACC32 (c, 0), ACC32 (c, 32) : "r" (a[0]), "r" (a[1]), "r" (a[2]), "r" (a[3]), "l" (b));
}

/* c [64, N] = a b^T over D columns: a at A, slabs of A_SLAB bytes; b [N rows] at B. */
template <int D, int N> FN void mma_rows (float (&c)[N / 2], uint32_t a, uint32_t a_slab, uint32_t b, uint32_t b_slab)
{
  #pragma unroll
  for (int k = 0; k < D / 16; k++) {
    uint32_t in = (uint32_t) (k % 4) * 32, slab = (uint32_t) (k / 4);
    uint64_t x = operand (a + slab * a_slab + in, 16), y = operand (b + slab * b_slab + in, 16);
    if constexpr (N == 128) mma_n128 (c, x, y, k > 0);
    else mma_n64 (c, x, y, k > 0);
  }
}
/* c [64, D] += a b over N rows of b: a [64, N] in registers, b at B. */
template <int D, int N> FN void mma_cols (float (&c)[D / 2], const uint32_t (&a)[N / 4], uint32_t b, uint32_t b_slab)
{
  #pragma unroll
  for (int k = 0; k < N / 16; k++) {
    #pragma unroll
    for (int i = 0; i < D / 128; i++) mma_reg_n128 (c + 64 * i, a + 4 * k,
        operand (b + (uint32_t) (2 * i) * b_slab + (uint32_t) k * 2048, b_slab));
    if constexpr (D % 128) mma_reg_n64 (c + D / 128 * 64, a + 4 * k,
        operand (b + (uint32_t) (D / 128 * 2) * b_slab + (uint32_t) k * 2048, 1024));
  }
}

FN float exp2_fast (float x)
{
  float y;
  asm ("ex2.approx.ftz.f32 %0, %1;" : "=f" (y) : "f" (x));
  return y;
}
/* Two fp32 to bf16, the first in the lower half. */
FN uint32_t pair (float lo, float hi)
{
  uint32_t r;
  asm ("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r" (r) : "f" (hi), "f" (lo));
  return r;
}
/* Accumulators as the left operand of a product. */
template <int N> FN void pack (uint32_t (&p)[N / 2], const float (&s)[N])
{
  #pragma unroll
  for (int i = 0; i < N / 2; i++) p[i] = pair (s[2 * i], s[2 * i + 1]);
}
FN float low_of (uint32_t p) { return __uint_as_float (p << 16); }
FN float high_of (uint32_t p) { return __uint_as_float (p & 0xffff0000u); }
#endif
