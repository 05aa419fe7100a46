/* cpu_vec: vectors of 16 floats for the maths of the cpu device, and the loop that all of it runs in. Included by src/cpu_*.c
   only.

   The vectors are the compiler's own (they become two or four registers where the machine has narrower ones), so every machine
   runs the same source; four primitives have a form for AVX-512. Every kernel loads F32 or BF16, computes in F32 and rounds once.
   Files that include this are built with -ffp-contract=off: only v_fma fuses, so that bits depend on no choice
   of the compiler. */
#ifndef CPU_VEC_H
#define CPU_VEC_H
#include <math.h>
#include "dev_cpu.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#pragma GCC diagnostic ignored "-Wpsabi"

#define VL 16
#define INLINE static inline __attribute__ ((always_inline))
typedef float    vf __attribute__ ((vector_size (64)));
typedef int32_t  vi __attribute__ ((vector_size (64)));
typedef uint32_t vu __attribute__ ((vector_size (64)));
typedef uint16_t vh __attribute__ ((vector_size (32)));
typedef uint8_t  vb __attribute__ ((vector_size (16)));

/* Run STMT with T a constant: one copy of the code for each element type. */
#define WITH_TYPE(t, T, ...) do { \
  if ((t) == DT_F32) { const enum dtype T = DT_F32; __VA_ARGS__; } \
  else { const enum dtype T = DT_BF16; __VA_ARGS__; } } while (0)

/* The same for what the operand of a product may be. */
#define WITH_OPERAND(t, T, ...) do { \
  if ((t) == DT_E4M3) { const enum dtype T = DT_E4M3; __VA_ARGS__; } \
  else if ((t) == DT_E5M2) { const enum dtype T = DT_E5M2; __VA_ARGS__; } \
  else WITH_TYPE (t, T, __VA_ARGS__); } while (0)

/* body (arg, lo, hi) for parts of the items [0, n), of which one takes about NS nanoseconds on one thread; cuts into slices of
   less than 5 ms
   by n and ns alone, polls after each. The result of an item must not depend on the part that it comes in. */
typedef void cpu_body (const void *arg, int64_t lo, int64_t hi);
void cpu_for (int64_t n, double ns, cpu_body *body, const void *arg);

/* Scratch of thread TID (0 .. cpu_threads - 1), 64-byte aligned, at least BYTES: kept, grows only. Not in a parallel region for
   a tid but one's own. */
void *cpu_scratch (int tid, int64_t bytes);
#define CPU_THREADS_MAX 256

/* What uses scratch or other static room runs alone: between claim and yield a poll may run other operations (those of communication and copy
   queues), but none of these. Ends the job if one does. */
void cpu_claim (void);
void cpu_yield (void);

INLINE vf v_set (float x) { return x - (vf) {}; }
INLINE vf v_sel (vi m, vf a, vf b) { return (vf) ((m & (vi) a) | (~m & (vi) b)); }

#ifdef __AVX512F__
INLINE vf v_fma (vf a, vf b, vf c) { return (vf) _mm512_fmadd_ps ((__m512) a, (__m512) b, (__m512) c); }   /* a b + c */
INLINE vf v_max (vf a, vf b) { return (vf) _mm512_max_ps ((__m512) a, (__m512) b); }   /* b if one is NaN */
INLINE vf v_sqrt (vf a) { return (vf) _mm512_sqrt_ps ((__m512) a); }
INLINE vu v_widen (vh h) { return (vu) _mm512_cvtepu16_epi32 ((__m256i) h); }
INLINE vh v_narrow (vu u) { return (vh) _mm512_cvtepi32_epi16 ((__m512i) u); }
#else
INLINE vf v_fma (vf a, vf b, vf c)
{
#ifdef FP_FAST_FMAF
  for (int i = 0; i < VL; i++) a[i] = __builtin_fmaf (a[i], b[i], c[i]);
  return a;
#else
  return a * b + c;
#endif
}
INLINE vf v_max (vf a, vf b) { return v_sel (a > b, a, b); }
INLINE vf v_sqrt (vf a)
{
  for (int i = 0; i < VL; i++) a[i] = sqrtf (a[i]);
  return a;
}
INLINE vu v_widen (vh h) { return __builtin_convertvector (h, vu); }
INLINE vh v_narrow (vu u) { return __builtin_convertvector (u, vh); }
#endif

INLINE vf v_from_bf16 (vh h) { return (vf) (v_widen (h) << 16); }
/* Nearest even, NaN stays NaN; by integers, since the machine's own instruction flushes denormals. */
INLINE vh v_to_bf16 (vf x)
{
  vu u = (vu) x, r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return v_narrow ((vu) v_sel (x == x, (vf) r, (vf) ((u >> 16) | 0x40u)));
}

/* Exact: exponent and fraction in their places, then the bias made good (f8_to_f32). */
INLINE vf v_from_f8 (vb c, enum dtype t)
{
  vu u = __builtin_convertvector (c, vu), a = u & 0x7f;
  vf x = (vf) (a << (t == DT_E5M2 ? 21 : 20)) * (t == DT_E5M2 ? 0x1p112f : 0x1p120f);
  x = t == DT_E5M2 ? v_sel (a >= 0x7c, v_sel (a == 0x7c, v_set (INFINITY), v_set (NAN)), x) : v_sel (a == 0x7f, v_set (NAN), x);
  return (vf) ((vu) x | (u & 0x80) << 24);
}

INLINE vf v_ld (const void *p, int64_t i, enum dtype t)
{
  if (t == DT_E4M3 || t == DT_E5M2) {
    vb c;
    memcpy (&c, (const uint8_t *) p + i, sizeof c);
    return v_from_f8 (c, t);
  }
  if (t == DT_F32) {
    vf x;
    memcpy (&x, (const float *) p + i, sizeof x);
    return x;
  }
  vh h;
  memcpy (&h, (const bf16 *) p + i, sizeof h);
  return v_from_bf16 (h);
}
INLINE void v_st (void *p, int64_t i, enum dtype t, vf x)
{
  if (t == DT_F32) memcpy ((float *) p + i, &x, sizeof x);
  else {
    vh h = v_to_bf16 (x);
    memcpy ((bf16 *) p + i, &h, sizeof h);
  }
}

INLINE float s_ld (const void *p, int64_t i, enum dtype t)
{
  if (t == DT_E4M3 || t == DT_E5M2) return f8_to_f32 (((const uint8_t *) p)[i], t);
  return t == DT_F32 ? ((const float *) p)[i] : bf16_to_f32 (((const bf16 *) p)[i]);
}
INLINE void s_st (void *p, int64_t i, enum dtype t, float x)
{
  if (t == DT_F32) ((float *) p)[i] = x;
  else ((bf16 *) p)[i] = f32_to_bf16 (x);
}

/* Elements i .. n - 1 of a row of n, at most VL of them; lanes beyond are FILL, and not stored. */
INLINE vf v_ldn (const void *p, int64_t i, int64_t n, enum dtype t, float fill)
{
  if (n - i >= VL) return v_ld (p, i, t);
  vf x = v_set (fill);
  for (int j = 0; j < n - i; j++) x[j] = s_ld (p, i + j, t);
  return x;
}
INLINE void v_stn (void *p, int64_t i, int64_t n, enum dtype t, vf x)
{
  if (n - i >= VL) v_st (p, i, t, x);
  else for (int j = 0; j < n - i; j++) s_st (p, i + j, t, x[j]);
}

INLINE float v_sum (vf x)
{
  float s[VL];
  memcpy (s, &x, sizeof s);
  for (int w = VL / 2; w; w /= 2)
    for (int i = 0; i < w; i++) s[i] += s[i + w];
  return s[0];
}
INLINE float v_hmax (vf x)
{
  float m = x[0];
  for (int i = 1; i < VL; i++) m = x[i] > m ? x[i] : m;
  return m;
}

/* e^x: relative error below 1.2e-7; 0 below -87.3, inf above 88.7, NaN stays NaN. x = n ln 2 + r, |r| <= 0.35, then Taylor's
   series to r^7. */
INLINE vf v_exp (vf x)
{
  const vf magic = v_set (12582912.f);   /* 1.5 * 2^23: adding it rounds to an integer, which stays in the low bits */
  vf t = v_fma (x, v_set (1.44269504f), magic), n = t - magic;
  vf r = v_fma (n, v_set (-0.693145752f), x);
  r = v_fma (n, v_set (-1.42860677e-6f), r);
  vf p = v_fma (v_set (1.f / 5040), r, v_set (1.f / 720));
  p = v_fma (p, r, v_set (1.f / 120));
  p = v_fma (p, r, v_set (1.f / 24));
  p = v_fma (p, r, v_set (1.f / 6));
  p = v_fma (p, r, v_set (0.5f));
  p = v_fma (p, r, v_set (1.f));
  p = v_fma (p, r, v_set (1.f));
  p = (vf) ((vi) p + ((vi) t << 23));
  p = v_sel (x < -87.3f, v_set (0), p);
  return v_sel (x <= 88.7f, p, x * INFINITY);
}
#endif
