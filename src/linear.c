#include "linear.h"

#define OP(KIND, field, ...) dev_op (b->d, b->q, KIND, field, __VA_ARGS__)

static void largest (struct blocks *b, const void *x, int64_t width, float *s)
{
  OP (OP_AMAX, amax, .x = x, .n = b->g.n * width, .t = b->g.t, .dst = s);
}

static void quantise (struct blocks *b, const void *x, int64_t width, void *q, void *qt, float *s, enum dtype to)
{
  OP (OP_QUANT, quant, .rows = b->g.n, .cols = width, .x = x, .q = q, .qt = qt, .s = s, .t = b->g.t, .to = to);
}

void linear_rows (struct blocks *b, struct operand x, const struct weights *w, enum pid id, void *y, int64_t out, struct rows r)
{
  const struct geom *g = &b->g;
  const void *bias = id == P_Q ? w->w[P_QB] : NULL;
  if (!g->fp8) {
    OP (OP_GEMM, gemm, .m = r.rows, .n = out, .k = x.width, .a = at_elem (x.x, r.row0 * x.width, g->t), .b = w->w[id], .tb = true, .c = at_elem (y, r.row0 * out, g->t), .bias = bias,
        .ab = g->t, .ct = g->t);
    return;
  }
  assert_ (r.rows == g->n);
  largest (b, x.x, x.width, x.s);
  quantise (b, x.x, x.width, b->code, x.turned, x.s, DT_E4M3);
  OP (OP_GEMM_FP8, gemm_fp8, .m = b->g.n, .n = out, .k = x.width, .a = b->code, .b = w->code[id].q, .a_unit = x.s + OP_UNIT, .b_unit = w->code[id].unit, .c = y, .bias = bias, .at = DT_E4M3,
      .bt = DT_E4M3, .ct = b->g.t);
}

void linear (struct blocks *b, struct operand x, const struct weights *w, enum pid id, void *y, int64_t out)
{
  linear_rows (b, x, w, id, y, out, (struct rows) { 0, b->g.n });
}

void linear_turn (struct blocks *b, struct operand x)
{
  if (b->g.fp8) quantise (b, x.x, x.width, NULL, x.turned, x.s, DT_E4M3);
}

void linear_grad (struct blocks *b, const void *dy, int64_t width, enum part_of part)
{
  if (!b->g.fp8) return;
  largest (b, dy, width, b->s);
  quantise (b, dy, width, part & PART_INPUT ? b->code : NULL, part & PART_WEIGHT ? b->turned : NULL, b->s, DT_E5M2);
}

void linear_input_rows (struct blocks *b, const void *dy, int64_t width, const struct weights *w, enum pid id, void *dx, int64_t in, struct rows r)
{
  const struct geom *g = &b->g;
  if (!g->fp8) {
    OP (OP_GEMM, gemm, .m = r.rows, .n = in, .k = width, .a = at_elem (dy, r.row0 * width, g->t), .b = w->w[id], .c = at_elem (dx, r.row0 * in, g->t), .ab = g->t, .ct = g->t);
    return;
  }
  assert_ (r.rows == g->n);
  OP (OP_GEMM_FP8, gemm_fp8, .m = g->n, .n = in, .k = width, .a = b->code, .b = w->code[id].qt, .a_unit = b->s + OP_UNIT, .b_unit = w->code[id].unit, .c = dx, .at = DT_E5M2, .bt = DT_E4M3,
      .ct = g->t);
}

void linear_input (struct blocks *b, const void *dy, int64_t width, const struct weights *w, enum pid id, void *dx, int64_t in)
{
  linear_input_rows (b, dy, width, w, id, dx, in, (struct rows) { 0, b->g.n });
}

void linear_weight (struct blocks *b, const void *dy, int64_t width, struct operand x, const struct weights *w, enum pid id)
{
  if (b->g.fp8)
    OP (OP_GEMM_FP8, gemm_fp8, .m = width, .n = x.width, .k = b->g.n, .a = b->turned, .b = x.turned, .a_unit = b->s + OP_UNIT, .b_unit = x.s + OP_UNIT, .c = w->g[id], .beta = w->beta[id],
        .at = DT_E5M2, .bt = DT_E4M3, .ct = b->g.gt);
  else OP (OP_GEMM, gemm, .m = width, .n = x.width, .k = b->g.n, .a = dy, .ta = true, .b = x.x, .c = w->g[id], .beta = w->beta[id], .ab = b->g.t, .ct = b->g.gt);
}
