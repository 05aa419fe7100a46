#include "config.h"
#include "cpu_ops.h"

#define BLOCK 4096   /* elements (bytes for copies) of an item */

/* ---- copy, zero ---- */
static void copy_flat (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_copy *c = arg;
  int64_t a = lo * BLOCK, b = MIN (hi * BLOCK, c->bytes);
  memcpy ((char *) c->dst + a, (const char *) c->src + a, (size_t) (b - a));
}

static void copy_rows (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_copy *c = arg;
  for (int64_t r = lo; r < hi; r++)
    memcpy ((char *) c->dst + r * c->dst_pitch, (const char *) c->src + r * c->src_pitch, (size_t) c->bytes);
}

void cpu_copy (const struct op *o)
{
  struct op_copy c = o->copy;
  c.dst = cpu_at (c.dst);
  c.src = cpu_at (c.src);
  if (c.bytes <= 0) return;
  if (c.rows <= 1) cpu_for (ceil_div (c.bytes, BLOCK), BLOCK * 0.1, copy_flat, &c);
  else cpu_for (c.rows, 5 + (double) c.bytes * 0.1, copy_rows, &c);
}

static void zero_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_zero *z = arg;
  int64_t a = lo * BLOCK, b = MIN (hi * BLOCK, z->bytes);
  memset ((char *) z->dst + a, 0, (size_t) (b - a));
}

void cpu_zero (const struct op *o)
{
  struct op_zero z = o->zero;
  z.dst = cpu_at (z.dst);
  cpu_for (ceil_div (z.bytes, BLOCK), BLOCK * 0.1, zero_part, &z);
}

/* ---- axpby ---- */
INLINE void axpby_as (const struct op_axpby *o, int64_t a, int64_t b, enum dtype yt, enum dtype xt)
{
  for (int64_t i = a; i < b; i += VL) {
    vf y = v_ldn (o->x, i, b, xt, 0) * o->alpha;
    if (o->beta != 0) y += o->beta * v_ldn (o->y, i, b, yt, 0);
    v_stn (o->y, i, b, yt, y);
  }
}

static void axpby_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_axpby *o = arg;
  int64_t a = lo * BLOCK, b = MIN (hi * BLOCK, o->n);
  WITH_TYPE (o->yt, Y, WITH_TYPE (o->xt, X, axpby_as (o, a, b, Y, X)));
}

void cpu_axpby (const struct op *op)
{
  struct op_axpby o = op->axpby;
  o.x = cpu_at (o.x);
  o.y = cpu_at (o.y);
  cpu_for (ceil_div (o.n, BLOCK), BLOCK * 0.8, axpby_part, &o);
}

/* ---- rope ---- */
INLINE void rotate (void *x, int64_t at, int64_t half, const float *cosine, float sign, enum dtype t)
{
  const float *sine = cosine + half;
  for (int64_t i = 0; i < half; i += VL) {
    vf c = v_ldn (cosine, i, half, DT_F32, 0), s = v_ldn (sine, i, half, DT_F32, 0) * sign;
    vf a = v_ldn (x, at + i, at + half, t, 0), b = v_ldn (x, at + half + i, at + 2 * half, t, 0);
    v_stn (x, at + i, at + half, t, a * c - b * s);
    v_stn (x, at + half + i, at + 2 * half, t, b * c + a * s);
  }
}

static void rope_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_rope *o = arg;
  for (int64_t i = lo; i < hi; i++) {
    const float *row = o->table + (o->pos ? o->pos[i] : o->pos0 + i % o->seq) * o->head_dim;
    for (int64_t h = 0; h < o->heads; h++)
      WITH_TYPE (o->t, T, rotate (o->x, i * o->stride + h * o->head_dim, o->head_dim / 2, row, o->inverse ? -1.f : 1.f, T));
  }
}

void cpu_rope (const struct op *op)
{
  struct op_rope o = op->rope;
  o.x = cpu_at (o.x);
  o.pos = cpu_at (o.pos);
  o.table = cpu_at (o.table);
  if (!o.seq) o.seq = MAX (1, o.n);
  cpu_for (o.n, (double) (o.heads * o.head_dim), rope_part, &o);
}

/* ---- swiglu ---- */
INLINE vf sigmoid (vf x) { return 1.f / (1.f + v_exp (-x)); }

INLINE void swiglu_as (const struct op_swiglu *o, int64_t lo, int64_t hi, enum dtype t)
{
  for (int64_t r = lo; r < hi; r++) {
    const void *g = at_elem (o->gu, r * 2 * o->f, t), *u = at_elem (g, o->f, t);
    void *out = at_elem (o->out, r * o->f, t);
    for (int64_t i = 0; i < o->f; i += VL) {
      vf x = v_ldn (g, i, o->f, t, 0);
      v_stn (out, i, o->f, t, x * sigmoid (x) * v_ldn (u, i, o->f, t, 0));
    }
  }
}

static void swiglu_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_swiglu *o = arg;
  WITH_TYPE (o->t, T, swiglu_as (o, lo, hi, T));
}

void cpu_swiglu (const struct op *op)
{
  struct op_swiglu o = op->swiglu;
  o.gu = cpu_at (o.gu);
  o.out = cpu_at (o.out);
  cpu_for (o.n, (double) o.f * 1.5, swiglu_part, &o);
}

INLINE void swiglu_bwd_as (const struct op_swiglu_bwd *o, int64_t lo, int64_t hi, enum dtype t)
{
  for (int64_t r = lo; r < hi; r++) {
    const void *g = at_elem (o->gu, r * 2 * o->f, t), *u = at_elem (g, o->f, t), *d = at_elem (o->d_out, r * o->f, t);
    void *dg = at_elem (o->dgu, r * 2 * o->f, t), *du = at_elem (dg, o->f, t);
    void *out = o->out ? at_elem (o->out, r * o->f, t) : NULL;
    for (int64_t i = 0; i < o->f; i += VL) {
      vf x = v_ldn (g, i, o->f, t, 0), y = v_ldn (u, i, o->f, t, 0), z = v_ldn (d, i, o->f, t, 0);
      vf s = sigmoid (x), silu = x * s;
      if (out) v_stn (out, i, o->f, t, silu * y);
      v_stn (dg, i, o->f, t, z * y * s * (1.f + x * (1.f - s)));
      v_stn (du, i, o->f, t, z * silu);
    }
  }
}

static void swiglu_bwd_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_swiglu_bwd *o = arg;
  WITH_TYPE (o->t, T, swiglu_bwd_as (o, lo, hi, T));
}

void cpu_swiglu_bwd (const struct op *op)
{
  struct op_swiglu_bwd o = op->swiglu_bwd;
  o.gu = cpu_at (o.gu);
  o.d_out = cpu_at (o.d_out);
  o.dgu = cpu_at (o.dgu);
  o.out = cpu_at (o.out);
  cpu_for (o.n, (double) o.f * 2.5, swiglu_bwd_part, &o);
}
