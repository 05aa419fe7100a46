#include "config.h"
#include "cpu_gemm.h"
#include "cpu_ops.h"

/* The unit and its inverse. With max = f 2^e, f in [0.5, 1), the largest codes are 0.875 2^9 and 0.875 2^16. */
static float unit_of (float max, enum dtype t, float *inverse)
{
  int e, top = t == DT_E4M3 ? 9 : 16;
  if (!isfinite (max)) return *inverse = NAN;
  if (max == 0) return *inverse = 1;
  float f = frexpf (max, &e);
  e = MAX (-126, MIN (126, e - top + (f > 0.875f)));
  *inverse = ldexpf (1, -e);
  return ldexpf (1, e);
}

#define SIDE 64   /* of a square that is turned at once */
struct quant { struct op_quant o; float inverse; };

INLINE void square (const struct quant *k, int64_t r0, int64_t c0, enum dtype t)
{
  const struct op_quant *o = &k->o;
  int64_t rows = MIN (SIDE, o->rows - r0), cols = MIN (SIDE, o->cols - c0);
  uint8_t code[SIDE][SIDE], *q = o->q, *qt = o->qt;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < cols; c++) code[r][c] = f32_to_f8 (s_ld (o->x, (r0 + r) * o->cols + c0 + c, t) * k->inverse, o->to);
    if (q) memcpy (q + (r0 + r) * o->cols + c0, code[r], (size_t) cols);
  }
  if (!qt) return;
  for (int64_t c = 0; c < cols; c++)
    for (int64_t r = 0; r < rows; r++) qt[(c0 + c) * o->rows + r0 + r] = code[r][c];
}

static void quant_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct quant *k = arg;
  int64_t across = ceil_div (k->o.cols, SIDE);
  for (int64_t i = lo; i < hi; i++) WITH_TYPE (k->o.t, T, square (k, i / across * SIDE, i % across * SIDE, T));
}

void cpu_quant (const struct op *op)
{
  struct quant k = { .o = op->quant };
  struct op_quant *o = &k.o;
  o->x = cpu_at (o->x);
  o->q = cpu_at (o->q);
  o->qt = cpu_at (o->qt);
  float *s = cpu_at (o->s);
  must (o->rows % 16 == 0 && o->cols % 16 == 0, "a matrix of %lld x %lld in 8 bits", (long long) o->rows, (long long) o->cols);
  s[OP_UNIT] = unit_of (s[0], o->to, &k.inverse);
  cpu_for (ceil_div (o->rows, SIDE) * ceil_div (o->cols, SIDE), SIDE * SIDE * 3.0, quant_part, &k);
}

void cpu_gemm_fp8 (const struct op *op)
{
  const struct op_gemm_fp8 *o = &op->gemm_fp8;
  must (o->m % 16 == 0 && o->n % 16 == 0 && o->k % 16 == 0, "a product of %lld x %lld x %lld in 8 bits", (long long) o->m, (long long) o->n, (long long) o->k);
  struct op_gemm g = { .m = o->m, .n = o->n, .k = o->k, .lda = o->k, .ldb = o->k, .ldc = o->n, .a = cpu_at (o->a), .b = cpu_at (o->b), .c = cpu_at (o->c), .bias = cpu_at (o->bias),
    .ab = o->at, .ct = o->ct, .tb = true, .beta = o->beta };
  gemm_own (&g, o->bt, DT_BF16, *(float *) cpu_at (o->a_unit) * *(float *) cpu_at (o->b_unit));
}
