/* dtype: element types that tensors have, their sizes, names and conversions. Pure.

   E4M3 and E5M2 are the 8-bit types of OCP's FP8: a sign, 4 or 5 bits of exponent (bias 7, 15), 3 or 2 of fraction. E4M3 has no infinity and one NaN (S.1111.111),
   and reaches 448; E5M2 is the upper half of a binary16 and reaches 57344. */
#ifndef DTYPE_H
#define DTYPE_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum dtype { DT_F32, DT_BF16, DT_F64, DT_I32, DT_I64, DT_U8, DT_E4M3, DT_E5M2, DT_N };

static inline int64_t dtype_size (enum dtype t)
{
  static const int8_t size[DT_N] = { 4, 2, 8, 4, 8, 1, 1, 1 };
  return size[t];
}
static inline const char *dtype_name (enum dtype t)
{
  static const char *const name[DT_N] = { "fp32", "bf16", "fp64", "int32", "int64", "uint8", "e4m3", "e5m2" };
  return name[t];
}

typedef uint16_t bf16;   /* the bits of a bfloat16: the upper half of a binary32 */

static inline float bf16_to_f32 (bf16 h)
{
  uint32_t u = (uint32_t) h << 16;
  float f;
  memcpy (&f, &u, 4);
  return f;
}
/* Round to nearest, ties to even; NaN stays NaN (quiet). */
static inline bf16 f32_to_bf16 (float f)
{
  uint32_t u;
  memcpy (&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (bf16) ((u >> 16) | 0x40u);
  return (bf16) ((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
/* Code of 8 bits: round to nearest, ties to even; what is above the largest (infinity too) becomes the largest, NaN 0x7f. T: E4M3 or E5M2. */
static inline uint8_t f32_to_f8 (float f, enum dtype t)
{
  /* largest value; smallest normal one; what must be added to a smaller one so that its code stands in the low bits; fraction's place; exponents' difference */
  static const struct { uint32_t most, least, magic; int shift, bias; } type[2] = { { 0x43e00000u, 0x3c800000u, 0x46800000u, 20, 120 }, { 0x47600000u, 0x38800000u, 0x43000000u, 21, 112 } };
  uint32_t u, a, sign, magic;
  float x, m;
  int k = t == DT_E5M2;
  memcpy (&u, &f, 4);
  a = u & 0x7fffffffu;
  sign = u >> 24 & 0x80u;
  if (a > 0x7f800000u) return 0x7f;
  if (a >= type[k].most) a = type[k].most;
  if (a >= type[k].least) {
    a += ((1u << (type[k].shift - 1)) - 1) + (a >> type[k].shift & 1u);
    return (uint8_t) (sign | ((a >> type[k].shift) - ((uint32_t) type[k].bias << (23 - type[k].shift))));
  }
  magic = type[k].magic;
  memcpy (&x, &a, 4);
  memcpy (&m, &magic, 4);
  x += m;
  memcpy (&a, &x, 4);
  return (uint8_t) (sign | (a - magic));
}
static inline float f8_to_f32 (uint8_t c, enum dtype t)
{
  bool five = t == DT_E5M2;
  uint32_t u = (uint32_t) (c & 0x7f) << (five ? 21 : 20), scale = five ? 0x77800000u : 0x7b800000u, sign = (uint32_t) (c & 0x80) << 24;   /* 2^112, 2^120 */
  float f, s;
  if (five ? (c & 0x7f) >= 0x7c : (c & 0x7f) == 0x7f) u = five && (c & 3) == 0 ? 0x7f800000u : 0x7fc00000u;
  memcpy (&f, &u, 4);
  memcpy (&s, &scale, 4);
  f *= s;
  memcpy (&u, &f, 4);
  u |= sign;
  memcpy (&f, &u, 4);
  return f;
}
#endif
