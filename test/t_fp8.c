/* 8 bits on the cpu device: the conversions against a search through all codes, quantising (both layouts, units), products with units against binary64. np: 1 */
#include "config.h"
#include "maths.h"

/* ---- conversions ---- */

static const struct { const char *name; enum dtype t; int exponent, fraction, bias; double most, least; } kinds[] = {
  { "e4m3", DT_E4M3, 4, 3, 7, 448, 0x1p-9 }, { "e5m2", DT_E5M2, 5, 2, 15, 57344, 0x1p-16 } };
#define EACH_KIND(k) for (int k = 0; k < 2; k++)

/* What a code means, from the format's definition. */
static double meaning (int kind, int code)
{
  int f = code & ((1 << kinds[kind].fraction) - 1), e = code >> kinds[kind].fraction & ((1 << kinds[kind].exponent) - 1), top = (1 << kinds[kind].exponent) - 1;
  double sign = code & 0x80 ? -1 : 1;
  if (kind == 0 && e == top && f == 7) return NAN;
  if (kind == 1 && e == top) return f ? NAN : sign * INFINITY;
  if (!e) return sign * ldexp (f, 1 - kinds[kind].bias - kinds[kind].fraction);
  return sign * ldexp ((1 << kinds[kind].fraction) + f, e - kinds[kind].bias - kinds[kind].fraction);
}

/* Nearest finite code of X, of two equally near the even one. */
static int nearest (int kind, double x)
{
  int best = 0;
  if (isnan (x)) return 0x7f;
  for (int c = 0; c < 0x80; c++) {
    double m = meaning (kind, c), d = fabs (fabs (x) - m), b = fabs (fabs (x) - meaning (kind, best));
    if (isfinite (m) && (d < b || (d == b && !(c & 1)))) best = c;
  }
  if (fabs (x) >= kinds[kind].most) best = kind ? 0x7b : 0x7e;   /* far above, all are equally far in binary64 */
  return best | (signbit (x) ? 0x80 : 0);
}

static float from_bits (uint32_t u)
{
  float f;
  memcpy (&f, &u, 4);
  return f;
}

static void test_conversions (void)
{
  EACH_KIND (k) {
    enum dtype t = kinds[k].t;
    int codes = 0, back = 0, middle = 0, any = 0, vector = 0;
    double most = 0;
    void *p = tensor (256, DT_U8), *y = tensor (256, DT_F32);
    for (int c = 0; c < 256; c++) {
      double m = meaning (k, c);
      float f = f8_to_f32 ((uint8_t) c, t);
      codes += isnan (m) ? isnan (f) : f == m && !signbit (f) == !signbit (m);
      back += isnan (m) ? f32_to_f8 (f, t) == 0x7f : f32_to_f8 (f, t) == (isinf (m) ? (c & 0x80) | 0x7b : c);
      ((uint8_t *) cpu_at (p))[c] = (uint8_t) c;
      if (isfinite (m)) most = fmax (most, m);
    }
    tap_ok (codes == 256 && back == 256 && most == kinds[k].most, "%s: all 256 codes mean what the format says, and come back", kinds[k].name);
    for (int c = 0; c < 0x7f && isfinite (meaning (k, c + 1)); c++) {   /* half-way, and a hair to each side */
      float h = (float) ((meaning (k, c) + meaning (k, c + 1)) / 2);
      for (int s = 0; s < 6; s++) {
        float x = s % 3 == 1 ? nextafterf (h, 0) : s % 3 == 2 ? nextafterf (h, INFINITY) : h;
        if (s > 2) x = -x;
        if (f32_to_f8 (x, t) != nearest (k, x)) middle++;
      }
    }
    tap_ok (!middle, "%s: ties to even, what is next to them to the nearest", kinds[k].name);
    for (int i = 0; i < 200000; i++) {
      float x = from_bits ((uint32_t) (int64_t) (uniform () * 0x1p31));
      if (i % 2) x = (float) (kinds[k].most * 1.2 * uniform () * exp2 (-12 * fabs (uniform ())));
      any += f32_to_f8 (x, t) != nearest (k, x);
    }
    static const float special[] = { 0, -0.f, INFINITY, -INFINITY, NAN, 1e-45f, 3.4e38f, -3.4e38f, 449, 464, 480, 57345, 61440, 65536 };
    for (int i = 0; i < LEN (special); i++) any += f32_to_f8 (special[i], t) != nearest (k, special[i]);
    tap_ok (!any, "%s: any float goes to the nearest code, what is too large to the largest", kinds[k].name);

    /* the vectors' own way: codes times one */
    void *one = tensor (256 * 16, DT_U8), *u = tensor (1, DT_F32), *a = tensor (16 * 16, DT_U8);
    set (u, 0, DT_F32, 1);
    for (int i = 0; i < 256; i++) ((uint8_t *) cpu_at (a))[i] = i % 17 == 0 ? f32_to_f8 (1, DT_E4M3) : 0;
    memset (cpu_at (one), 0, 256 * 16);
    for (int c = 0; c < 256; c++) if (isfinite (meaning (k, c))) ((uint8_t *) cpu_at (one))[c * 16] = (uint8_t) c;
    y = tensor (16 * 256, DT_F32);
    OP (OP_GEMM_FP8, gemm_fp8, .m = 16, .n = 256, .k = 16, .a = a, .b = one, .a_unit = u, .b_unit = u, .c = y, .at = DT_E4M3, .bt = t, .ct = DT_F32);
    for (int c = 0; c < 256; c++) vector += get (y, c, DT_F32) == (isfinite (meaning (k, c)) ? meaning (k, c) : 0) && get (y, 256 + c, DT_F32) == 0;
    tap_ok (vector == 256, "%s: the same in products", kinds[k].name);
  }
}

/* ---- quantising ---- */

static double unit_by_search (int kind, double max)
{
  double u = 0x1p-126;
  if (!isfinite (max)) return NAN;
  if (max == 0) return 1;
  while (max / u > kinds[kind].most && u < 0x1p126) u *= 2;
  return u;
}

static void test_quant (void)
{
  static const struct { int64_t rows, cols; double scale; } c[] = { { 16, 16, 1 }, { 16, 208, 1e-6 }, { 80, 48, 300 }, { 144, 96, 1e-30 }, { 64, 64, 0 }, { 32, 16, 7e30 } };
  EACH_KIND (k) EACH_TYPE (t) {
    int good = 1;
    for (int i = 0; i < LEN (c); i++) for (int some = 0; some < 3; some++) {
      int64_t n = c[i].rows * c[i].cols;
      void *x = filled (n, t, c[i].scale), *q = tensor (n, DT_U8), *qt = tensor (n, DT_U8), *s = tensor (8, DT_F32);
      if (i == 0) set (x, 5, t, kinds[k].most);   /* not one unit more for the largest code itself */
      OP (OP_AMAX, amax, .x = x, .n = n, .t = t, .dst = s);
      OP (OP_QUANT, quant, .rows = c[i].rows, .cols = c[i].cols, .x = x, .q = some == 1 ? NULL : q, .qt = some == 2 ? NULL : qt, .s = s, .t = t, .to = kinds[k].t);
      double unit = unit_by_search (k, get (s, 0, DT_F32));
      good &= get (s, OP_UNIT, DT_F32) == unit && zones (q, n, DT_U8) && zones (qt, n, DT_U8) && zones (s, 8, DT_F32);
      const uint8_t *a = cpu_at (q), *b = cpu_at (qt);
      for (int64_t j = 0; j < n; j++) {
        int want = nearest (k, get (x, j, t) / unit);
        good &= (some == 1 ? a[j] == 0xff : a[j] == want) && (some == 2 || b[j % c[i].cols * c[i].rows + j / c[i].cols] == want);
      }
      used = 0;
    }
    tap_ok (good, "%s of %s: codes as they lie and turned, the smallest unit that holds the largest", kinds[k].name, dtype_name (t));
  }
  EACH_KIND (k) {
    void *x = filled (256, DT_F32, 1), *q = tensor (256, DT_U8), *s = tensor (8, DT_F32);
    int good = 1;
    set (x, 7, DT_F32, INFINITY), set (x, 9, DT_F32, NAN);
    OP (OP_AMAX, amax, .x = x, .n = 256, .t = DT_F32, .dst = s);
    OP (OP_QUANT, quant, .rows = 16, .cols = 16, .x = x, .q = q, .s = s, .t = DT_F32, .to = kinds[k].t);
    good &= isnan (get (s, OP_UNIT, DT_F32)) && ((uint8_t *) cpu_at (q))[9] == 0x7f;
    set (x, 7, DT_F32, 1);
    OP (OP_AMAX, amax, .x = x, .n = 256, .t = DT_F32, .dst = s);
    OP (OP_QUANT, quant, .rows = 16, .cols = 16, .x = x, .q = q, .s = s, .t = DT_F32, .to = kinds[k].t);
    good &= isfinite (get (s, OP_UNIT, DT_F32)) && ((uint8_t *) cpu_at (q))[9] == 0x7f;
    tap_ok (good, "%s: infinity spoils the unit, NaN stays", kinds[k].name);
  }
}

/* ---- products ---- */

static int product (int64_t m, int64_t n, int64_t k, int ka, int kb, double ua, double ub, enum dtype ct, bool beta, bool bias)
{
  void *a = tensor (m * k, DT_U8), *b = tensor (n * k, DT_U8), *u = tensor (2, DT_F32);
  uint8_t *ha = cpu_at (a), *hb = cpu_at (b);
  for (int64_t i = 0; i < m * k; i++) ha[i] = f32_to_f8 ((float) uniform (), kinds[ka].t);
  for (int64_t i = 0; i < n * k; i++) hb[i] = f32_to_f8 ((float) uniform (), kinds[kb].t);
  set (u, 0, DT_F32, ua), set (u, 1, DT_F32, ub);
  struct op_gemm_fp8 g = { m, n, k, a, b, u, at_elem (u, 1, DT_F32), filled (m * n, ct, ua * ub), bias ? filled (n, DT_BF16, ua * ub) : NULL, kinds[ka].t, kinds[kb].t, ct, beta };
  double *r = doubles (m * n);
  for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) {
    double s = 0;
    for (int64_t p = 0; p < k; p++) s += meaning (ka, ha[i * k + p]) * meaning (kb, hb[j * k + p]);
    r[i * n + j] = s * ua * ub + (beta ? get (g.c, i * n + j, ct) : 0) + (bias ? get (g.bias, j, DT_BF16) : 0);
  }
  run (&(struct op) { .kind = OP_GEMM_FP8, .gemm_fp8 = g });
  return close_to (g.c, ct, r, m * n, "gemm fp8") && zones (g.c, m * n, ct);
}

static void test_products (void)
{
  static const int64_t shape[][3] = { { 16, 16, 16 }, { 48, 80, 32 }, { 400, 16, 64 }, { 16, 976, 48 }, { 32, 48, 2128 } };
  for (int v = 0; v < 3; v++) EACH_TYPE (ct) {   /* v: which operand is e5m2 */
    int good = 1;
    for (int s = 0; s < LEN (shape); s++) for (int w = 0; w < 4; w++) {
      good &= product (shape[s][0], shape[s][1], shape[s][2], v == 1, v == 2, 0x1p-20, 0x1p7, ct, w & 1, (w & 2) && ct == DT_BF16);
      forget ();
    }
    tap_ok (good, "products %s x %s -> %s", kinds[v == 1].name, kinds[v == 2].name, dtype_name (ct));
  }
  cpu_threads = 2;
  tap_ok (product (96, 1200, 128, 1, 0, 1, 1, DT_F32, true, false), "products on two threads");
  cpu_threads = 1;
  void *a = tensor (256, DT_U8), *u = tensor (1, DT_F32), *c = filled (256, DT_F32, 1);
  memset (cpu_at (a), 0x38, 256);
  set (u, 0, DT_F32, NAN);
  OP (OP_GEMM_FP8, gemm_fp8, .m = 16, .n = 16, .k = 16, .a = a, .b = a, .a_unit = u, .b_unit = u, .c = c, .at = DT_E4M3, .bt = DT_E4M3, .ct = DT_F32);
  tap_ok (isnan (get (c, 0, DT_F32)) && isnan (get (c, 255, DT_F32)), "a spoilt unit spoils the product");
}

int main (int argc, char **argv)
{
  static void (*const test[]) (void) = { test_conversions, test_quant, test_products };
  return maths_main (argc, argv, test, LEN (test));
}
