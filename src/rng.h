/* rng: counter-based random numbers for initial weights and the order of the data. Pure; the same bits on every device and mesh.

   Words come from Philox4x32-10: key = the run's seed, counter = (block, key of the tensor). A normal comes from a pair of words
   by Box-Muller in binary64 with our own logarithm, sine and cosine, made of + - * / and sqrt, then one rounding to binary32.
   An initial weight is a function of (seed, the tensor's global name, the element's global row-major index) and nothing else.

   A C file that includes this is built with -ffp-contract=off (a fused multiply-add would give other bits), without -ffast-math;
   rng_exact () tells whether it was. In CUDA the products are __dmul_rn, which is never fused, so nvcc needs no flag.
   test/rng.py is the same in NumPy; test/t_rng.c holds them together. */
#ifndef RNG_H
#define RNG_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define RNG_FN static __host__ __device__ __forceinline__
#else
#define RNG_FN static inline
#endif

RNG_FN double rng_mul (double a, double b)
{
#ifdef __CUDA_ARCH__
  return __dmul_rn (a, b);
#else
  return a * b;
#endif
}

/* Philox4x32-10 (Salmon et al., 2011): x = ten rounds of x under key k. */
RNG_FN void rng_philox (uint32_t x[4], uint64_t key)
{
  uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
  for (int r = 0; r < 10; r++) {
    uint64_t a = (uint64_t) 0xd2511f53u * x[0], b = (uint64_t) 0xcd9e8d57u * x[2];
    x[0] = (uint32_t) (b >> 32) ^ x[1] ^ k0;
    x[1] = (uint32_t) b;
    x[2] = (uint32_t) (a >> 32) ^ x[3] ^ k1;
    x[3] = (uint32_t) a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
}

/* Key of the tensor with this global name (FNV-1a, 64 bits). */
RNG_FN uint64_t rng_key (const char *name)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (; *name; name++) h = (h ^ (unsigned char) *name) * 0x100000001b3u;
  return h;
}

/* ln ((2 x + 1) / 2^33), always below 0. With m in [sqrt 1/2, sqrt 2) and s = (m - 1) / (m + 1),
   ln m = 2 (s + s^3/3 + ... + s^13/13); relative error 2e-12. */
RNG_FN double rng_log (uint32_t x)
{
  const uint64_t root_half = 0x3fe6a09e667f3bcdu;
  double m = (double) (2 * (uint64_t) x + 1);
  uint64_t bits;
  memcpy (&bits, &m, 8);
  uint64_t e = (bits - root_half) >> 52;
  bits -= e << 52;
  memcpy (&m, &bits, 8);
  double s = (m - 1) / (m + 1), q = rng_mul (s, s), p = 1.0 / 13;
  p = 1.0 / 11 + rng_mul (q, p);
  p = 1.0 / 9 + rng_mul (q, p);
  p = 1.0 / 7 + rng_mul (q, p);
  p = 1.0 / 5 + rng_mul (q, p);
  p = 1.0 / 3 + rng_mul (q, p);
  p = 1.0 + rng_mul (q, p);
  return rng_mul (0.69314718055994530942, (double) ((int64_t) e - 33)) + rng_mul (2 * s, p);
}

/* Sine and cosine of 2 pi (x + 1/2) / 2^32: the nearest quarter turn, and Taylor's series of the rest, |a| <= pi/4, 7e-12. */
RNG_FN void rng_sincos (uint32_t x, double *sine, double *cosine)
{
  uint32_t turn = (x + 0x20000000u) >> 30;
  double a = rng_mul ((double) (int32_t) (x - (turn << 30)) + 0.5, 1.46291807926715968e-9);   /* 2 pi / 2^32 */
  double q = rng_mul (a, a), s = -1.0 / 39916800, c = 1.0 / 479001600;
  s = 1.0 / 362880 + rng_mul (q, s);
  s = -1.0 / 5040 + rng_mul (q, s);
  s = 1.0 / 120 + rng_mul (q, s);
  s = -1.0 / 6 + rng_mul (q, s);
  s = rng_mul (a, 1.0 + rng_mul (q, s));
  c = -1.0 / 3628800 + rng_mul (q, c);
  c = 1.0 / 40320 + rng_mul (q, c);
  c = -1.0 / 720 + rng_mul (q, c);
  c = 1.0 / 24 + rng_mul (q, c);
  c = -0.5 + rng_mul (q, c);
  c = 1.0 + rng_mul (q, c);
  double s1 = turn & 1 ? c : s, c1 = turn & 1 ? s : c;
  *sine = turn & 2 ? -s1 : s1;
  *cosine = (turn + 1) & 2 ? -c1 : c1;
}

/* Standard normals of the four indices 4 block .. 4 block + 3 of tensor KEY. |z| <= 6.77. */
RNG_FN void rng_normal4 (uint64_t seed, uint64_t key, uint64_t block, float z[4])
{
  uint32_t x[4] = { (uint32_t) block, (uint32_t) (block >> 32), (uint32_t) key, (uint32_t) (key >> 32) };
  rng_philox (x, seed);
  for (int i = 0; i < 4; i += 2) {
    double s, c, r = sqrt (-2 * rng_log (x[i]));
    rng_sincos (x[i + 1], &s, &c);
    z[i] = (float) rng_mul (r, c);
    z[i + 1] = (float) rng_mul (r, s);
  }
}

/* The same for one index. */
RNG_FN float rng_normal (uint64_t seed, uint64_t key, uint64_t index)
{
  float z[4];
  rng_normal4 (seed, key, index >> 2, z);
  return z[index & 3];
}

/* An initial weight: the normal Z with standard deviation STD, rounded once (the product of two floats is exact in binary64). STD
   of a matrix is the float nearest to arch.init_std, of one that writes to the residual stream init_std / sqrt (2.0 * layers). */
RNG_FN float rng_scale (float std, float z)
{
  return (float) rng_mul (std, z);
}

/* N initial weights with consecutive global indices from INDEX on (any alignment) into OUT. */
RNG_FN void rng_fill (uint64_t seed, uint64_t key, uint64_t index, int64_t n, float std, float *out)
{
  for (int64_t i = 0; i < n;) {
    float z[4];
    uint64_t at = index + (uint64_t) i;
    rng_normal4 (seed, key, at >> 2, z);
    for (int j = (int) (at & 3); j < 4 && i < n; j++) out[i++] = rng_scale (std, z[j]);
  }
}

/* Where I of [0, N) goes in the order of EPOCH: a bijection of [0, N). A Feistel network of eight rounds over the next power of
   two (halves of unequal width if need be), walked until it falls below N: less than two walks on average. */
RNG_FN uint64_t rng_permute (uint64_t seed, uint64_t epoch, uint64_t i, uint64_t n)
{
  int bits = 0;
  while (bits < 64 && (n - 1) >> bits) bits++;
  int low = (bits + 1) / 2;
  uint64_t low_mask = ((uint64_t) 1 << low) - 1, high_mask = ((uint64_t) 1 << (bits - low)) - 1;
  do {
    uint64_t l = i & low_mask, h = i >> low;
    for (uint32_t r = 0; r < 8; r++) {
      uint32_t x[4] = { (uint32_t) (r & 1 ? l : h), r, (uint32_t) epoch, (uint32_t) (epoch >> 32) };
      rng_philox (x, seed ^ 0x6f72646572u);   /* "order": not the streams of the weights */
      if (r & 1) h ^= x[0] & high_mask;
      else l ^= x[0] & low_mask;
    }
    i = h << low | l;
  } while (i >= n);
  return i;
}

/* Was the including file built without contraction? (1 + 2^-30)^2 - (1 + 2^-29) is 0 if the product is rounded, 2^-60 if not. */
RNG_FN int rng_exact (void)
{
  volatile double a = 1 + 0x1p-30, c = -(1 + 0x1p-29);
  double x = a, y = c;
  return rng_mul (x, x) + y == 0;
}
#endif
