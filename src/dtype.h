/* dtype: element types that tensors have, their sizes, names and conversions. Pure. */
#ifndef DTYPE_H
#define DTYPE_H
#include <stdint.h>
#include <string.h>

enum dtype { DT_F32, DT_BF16, DT_F64, DT_I32, DT_I64, DT_U8, DT_N };

static inline int64_t dtype_size (enum dtype t)
{
  static const int8_t size[DT_N] = { 4, 2, 8, 4, 8, 1 };
  return size[t];
}
static inline const char *dtype_name (enum dtype t)
{
  static const char *const name[DT_N] = { "fp32", "bf16", "fp64", "int32", "int64", "uint8" };
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
#endif
