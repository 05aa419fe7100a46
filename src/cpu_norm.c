#include "config.h"
#include "cpu_ops.h"

INLINE void norm_vec (const struct op_norm *o, int64_t at, int64_t to, float *rstd, enum dtype t, enum dtype wt)
{
  const void *x = at_elem (o->x, at, t), *res = o->res ? at_elem (o->res, at, t) : NULL;
  void *sum = at_elem (o->sum, at, t), *y = at_elem (o->y, to, t);
  vf q = v_set (0);
  for (int64_t i = 0; i < o->dim; i += VL) {
    vf s = v_ldn (x, i, o->dim, t, 0);
    if (res) {
      s += v_ldn (res, i, o->dim, t, 0);
      v_stn (sum, i, o->dim, t, s);
      s = v_ldn (sum, i, o->dim, t, 0);   /* as rounded: backward sees the same */
    }
    q += s * s;
  }
  *rstd = 1 / sqrtf (v_sum (q) / (float) o->dim + o->eps);
  const void *s = res ? sum : x;
  for (int64_t i = 0; i < o->dim; i += VL)
    v_stn (y, i, o->dim, t, v_ldn (s, i, o->dim, t, 0) * *rstd * v_ldn (o->w, i, o->dim, wt, 0));
}

static void norm_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_norm *o = arg;
  for (int64_t r = lo; r < hi; r++)
    for (int64_t i = 0; i < o->inner; i++) {
      int64_t x = r * o->x_stride + i * o->dim, y = r * o->y_stride + i * o->dim;
      WITH_TYPE (o->t, T, WITH_TYPE (o->wt, W, norm_vec (o, x, y, o->rstd + r * o->inner + i, T, W)));
    }
}

void cpu_norm (const struct op *op)
{
  struct op_norm o = op->norm;
  int64_t dense = o.inner * o.dim;
  o.x = cpu_at (o.x);
  o.res = cpu_at (o.res);
  o.w = cpu_at (o.w);
  o.sum = cpu_at (o.sum);
  o.y = cpu_at (o.y);
  o.rstd = cpu_at (o.rstd);
  if (!o.x_stride) o.x_stride = dense;
  if (!o.y_stride) o.y_stride = dense;
  cpu_for (o.rows, 10 + (double) dense * 0.8, norm_part, &o);
}

/* ---- backward: sums over rows are taken in blocks of rows cut by the shape alone, then over the blocks in order ---- */
/* Rows of a block: about 64 blocks, none below 8 rows or above two million elements (5 ms). */
static int64_t block_rows (int64_t rows, int64_t width)
{
  return MIN (MAX (8, ceil_div (rows, 64)), MAX (1, ((int64_t) 2 << 20) / MAX (width, 1)));
}

struct norm_bwd { struct op_norm_bwd o; int64_t block, blocks; float *part; };   /* part [blocks, dim] */

INLINE void norm_bwd_vec (const struct op_norm_bwd *o, int64_t r, int64_t i, float *dw, enum dtype t, enum dtype wt)
{
  int64_t in = i * o->dim, n = o->dim;
  const void *x = at_elem (o->x, r * o->x_stride + in, t), *dy = at_elem (o->dy, r * o->y_stride + in, t);
  void *dx = at_elem (o->dx, r * o->dx_stride + in, t);
  const void *dres = o->dres ? at_elem (o->dres, r * o->dx_stride + in, t) : NULL;
  float rstd = o->rstd[r * o->inner + i];
  vf dot = v_set (0);
  for (int64_t c = 0; c < n; c += VL) {
    vf xs = v_ldn (x, c, n, t, 0) * rstd, g = v_ldn (dy, c, n, t, 0), d = xs * g;
    dot += d * v_ldn (o->w, c, n, wt, 0);
    v_stn (dw, c, round_up (n, VL), DT_F32, v_ld (dw, c, DT_F32) + d);
  }
  float mean = v_sum (dot) / (float) n;
  for (int64_t c = 0; c < n; c += VL) {
    vf xs = v_ldn (x, c, n, t, 0) * rstd, g = v_ldn (dy, c, n, t, 0) * v_ldn (o->w, c, n, wt, 0), d = rstd * (g - xs * mean);
    if (dres) d += v_ldn (dres, c, n, t, 0);
    v_stn (dx, c, n, t, d);
  }
}

static void norm_bwd_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct norm_bwd *a = arg;
  const struct op_norm_bwd *o = &a->o;
  for (int64_t b = lo; b < hi; b++) {
    float *dw = a->part + b * round_up (o->dim, VL);
    memset (dw, 0, (size_t) round_up (o->dim, VL) * sizeof *dw);
    for (int64_t r = b * a->block; r < MIN ((b + 1) * a->block, o->rows); r++)
      for (int64_t i = 0; i < o->inner; i++) WITH_TYPE (o->t, T, WITH_TYPE (o->wt, W, norm_bwd_vec (o, r, i, dw, T, W)));
  }
}

/* dst = beta dst + the blocks' partial sums [blocks, ld], in order. */
static void add_blocks (const float *part, int64_t blocks, int64_t ld, int64_t n, void *dst, float beta, enum dtype gt)
{
  for (int64_t c = 0; c < n; c += VL) {
    vf s = v_set (0);
    for (int64_t b = 0; b < blocks; b++) s += v_ld (part, b * ld + c, DT_F32);
    if (beta != 0) s += beta * v_ldn (dst, c, n, gt, 0);
    v_stn (dst, c, n, gt, s);
  }
}

void cpu_norm_bwd (const struct op *op)
{
  struct norm_bwd a = { .o = op->norm_bwd };
  struct op_norm_bwd *o = &a.o;
  int64_t dense = o->inner * o->dim, ld = round_up (o->dim, VL);
  o->dy = cpu_at (o->dy);
  o->x = cpu_at (o->x);
  o->w = cpu_at (o->w);
  o->dres = cpu_at (o->dres);
  o->rstd = cpu_at (o->rstd);
  o->dx = cpu_at (o->dx);
  o->dw = cpu_at (o->dw);
  if (!o->x_stride) o->x_stride = dense;
  if (!o->y_stride) o->y_stride = dense;
  if (!o->dx_stride) o->dx_stride = dense;
  a.block = block_rows (o->rows, dense);
  a.blocks = ceil_div (o->rows, a.block);
  cpu_claim ();
  a.part = cpu_scratch (0, a.blocks * ld * (int64_t) sizeof (float));
  cpu_for (a.blocks, (double) (a.block * dense) * 1.5, norm_bwd_part, &a);
  add_blocks (a.part, a.blocks, ld, o->dim, o->dw, o->dw_beta, o->gt);
  cpu_yield ();
}

/* ---- column sums ---- */
struct colsum { struct op_colsum o; int64_t block, blocks; float *part; };

INLINE void colsum_as (const struct colsum *a, int64_t b, enum dtype t)
{
  const struct op_colsum *o = &a->o;
  int64_t n = o->cols, ld = round_up (n, VL);
  float *sum = a->part + b * ld;
  memset (sum, 0, (size_t) ld * sizeof *sum);
  for (int64_t r = b * a->block; r < MIN ((b + 1) * a->block, o->rows); r++)
    for (int64_t c = 0; c < n; c += VL)
      v_st (sum, c, DT_F32, v_ld (sum, c, DT_F32) + v_ldn (at_elem (o->x, r * o->stride, t), c, n, t, 0));
}

static void colsum_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct colsum *a = arg;
  for (int64_t b = lo; b < hi; b++) WITH_TYPE (a->o.t, T, colsum_as (a, b, T));
}

void cpu_colsum (const struct op *op)
{
  struct colsum a = { .o = op->colsum };
  int64_t ld = round_up (a.o.cols, VL);
  a.o.x = cpu_at (a.o.x);
  a.o.dst = cpu_at (a.o.dst);
  if (!a.o.stride) a.o.stride = a.o.cols;
  a.block = block_rows (a.o.rows, a.o.cols);
  a.blocks = ceil_div (a.o.rows, a.block);
  cpu_claim ();
  a.part = cpu_scratch (0, a.blocks * ld * (int64_t) sizeof (float));
  cpu_for (a.blocks, (double) (a.block * a.o.cols) * 0.5, colsum_part, &a);
  add_blocks (a.part, a.blocks, ld, a.o.cols, a.o.dst, a.o.beta, a.o.gt);
  cpu_yield ();
}
