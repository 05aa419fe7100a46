#include "config.h"
#include "cpu_ops.h"

/* ---- sum of squares ---- */
typedef double vd __attribute__ ((vector_size (64)));
typedef float vf8 __attribute__ ((vector_size (32)));

#define PARTS 256   /* the sum's own partition, whatever the threads */
struct sumsq { const void *x; int64_t n, part; enum dtype t; double sum[PARTS], bad[PARTS]; };

INLINE void sumsq_as (struct sumsq *s, int64_t p, enum dtype t)
{
  int64_t lo = p * s->part, hi = MIN (lo + s->part, s->n);
  union { vf v; vf8 h[2]; } x;
  vd a = {}, b = {};
  vi bad = {};
  double count = 0, sum = 0;
  for (int64_t i = lo; i < hi; i += VL) {
    x.v = v_ldn (s->x, i, hi, t, 0);
    bad += ((vi) x.v & 0x7f800000) == 0x7f800000;
    vd u = __builtin_convertvector (x.h[0], vd), v = __builtin_convertvector (x.h[1], vd);
    a += u * u;
    b += v * v;
  }
  for (int i = 0; i < VL; i++) count -= bad[i];
  a += b;
  for (int i = 0; i < 8; i++) sum += a[i];
  s->sum[p] = sum;
  s->bad[p] = count;
}

static void sumsq_part (const void *arg, int64_t lo, int64_t hi)
{
  struct sumsq *s = (struct sumsq *) arg;
  for (int64_t p = lo; p < hi; p++) WITH_TYPE (s->t, T, sumsq_as (s, p, T));
}

void cpu_sumsq (const struct op *op)
{
  const struct op_sumsq *o = &op->sumsq;
  struct sumsq s = { .x = cpu_at (o->x), .n = o->n, .part = round_up (MAX (ceil_div (o->n, PARTS), 4096), VL), .t = o->t };
  int64_t parts = ceil_div (o->n, s.part);
  cpu_for (parts, (double) s.part * 0.5, sumsq_part, &s);
  double sum = 0, bad = 0, *acc = cpu_at (o->acc);
  for (int64_t p = 0; p < parts; p++) sum += s.sum[p], bad += s.bad[p];
  if (o->weight != 0) acc[0] += o->weight * sum;
  acc[1] += bad;
}

/* ---- amax ---- */
struct amax { const void *x; int64_t n, part; enum dtype t; float max[PARTS]; };

INLINE void amax_as (struct amax *s, int64_t p, enum dtype t)
{
  int64_t lo = p * s->part, hi = MIN (lo + s->part, s->n);
  vf m = v_set (0);
  for (int64_t i = lo; i < hi; i += VL) m = v_max ((vf) ((vi) v_ldn (s->x, i, hi, t, 0) & 0x7fffffff), m);
  s->max[p] = v_hmax (m);
}

static void amax_part (const void *arg, int64_t lo, int64_t hi)
{
  struct amax *s = (struct amax *) arg;
  for (int64_t p = lo; p < hi; p++) WITH_TYPE (s->t, T, amax_as (s, p, T));
}

void cpu_amax (const struct op *op)
{
  const struct op_amax *o = &op->amax;
  struct amax s = { .x = cpu_at (o->x), .n = o->n, .part = round_up (MAX (ceil_div (o->n, PARTS), 4096), VL), .t = o->t };
  int64_t parts = ceil_div (o->n, s.part);
  cpu_for (parts, (double) s.part * 0.3, amax_part, &s);
  float max = 0;
  for (int64_t p = 0; p < parts; p++) max = MAX (max, s.max[p]);
  *(float *) cpu_at (o->dst) = max;
}

/* ---- the scalars of a step ---- */
void cpu_step_vars (const struct op *op)
{
  const struct op_step_vars *o = &op->step_vars;
  struct step_vars *v = cpu_at (o->vars);
  v->norm = v->tokens > 0 ? sqrt (v->sumsq) / v->tokens : 0;
  v->skip = v->bad > 0 || !isfinite (v->norm) || !(v->tokens > 0);
  if (!v->skip && ((v->loss_limit > 0 && v->loss / v->tokens > v->loss_limit) || (v->norm_limit > 0 && v->norm > v->norm_limit))) v->skip = STEP_SPIKE;
  v->scale = v->skip ? 0 : (v->clip > 0 && v->norm > v->clip ? v->clip / v->norm : 1) / v->tokens;
  if (v->skip) return;
  v->b1t *= o->beta1;
  v->b2t *= o->beta2;
  v->updates++;
}

/* ---- AdamW ---- */
#define BLOCK 4096
struct adamw { struct op_adamw o; float lr, scale, b1, b2, d1, d2, c1, c2, eps, decay; bool skip; };   /* d 1 - b, c 1 / (1 - b^t) */

INLINE void adamw_as (const struct adamw *a, int64_t lo, int64_t hi, enum dtype gt)
{
  const struct op_adamw *o = &a->o;
  for (int64_t i = lo; i < hi; i += VL) {
    vf g = v_ldn (o->grad, i, hi, gt, 0) * a->scale, w = v_ldn (o->master, i, hi, DT_F32, 0);
    vf m = v_ldn (o->m, i, hi, DT_F32, 0), v = v_ldn (o->v, i, hi, DT_F32, 0);
    m = a->b1 * m + a->d1 * g;
    v = a->b2 * v + a->d2 * g * g;
    w -= a->lr * (m * a->c1 / (v_sqrt (v * a->c2) + a->eps) + a->decay * w);
    v_stn (o->m, i, hi, DT_F32, m);
    v_stn (o->v, i, hi, DT_F32, v);
    v_stn (o->master, i, hi, DT_F32, w);
    if (!o->weight) continue;
    if (o->wt == DT_F32) v_stn (o->weight, i, hi, DT_F32, w);
    else v_stn (o->weight, i, hi, DT_BF16, w);
  }
}

INLINE void weight_as (const struct op_adamw *o, int64_t lo, int64_t hi, enum dtype wt)
{
  for (int64_t i = lo; i < hi; i += VL) v_stn (o->weight, i, hi, wt, v_ldn (o->master, i, hi, DT_F32, 0));
}

static void adamw_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct adamw *a = arg;
  int64_t i = lo * BLOCK, end = MIN (hi * BLOCK, a->o.n);
  if (!a->skip) WITH_TYPE (a->o.gt, G, adamw_as (a, i, end, G));
  else if (a->o.weight) WITH_TYPE (a->o.wt, W, weight_as (&a->o, i, end, W));
}

void cpu_adamw (const struct op *op)
{
  struct adamw a = { .o = op->adamw };
  const struct step_vars *s = cpu_at (a.o.vars);
  a.o.master = cpu_at (a.o.master);
  a.o.m = cpu_at (a.o.m);
  a.o.v = cpu_at (a.o.v);
  a.o.grad = cpu_at (a.o.grad);
  a.o.weight = cpu_at (a.o.weight);
  a.skip = s->skip != 0;
  a.lr = (float) s->lr;
  a.scale = (float) s->scale;
  a.b1 = (float) a.o.beta1;
  a.b2 = (float) a.o.beta2;
  a.d1 = (float) (1 - a.o.beta1);   /* rounded once: 1 - 0.999f is off by 1e-5 */
  a.d2 = (float) (1 - a.o.beta2);
  a.c1 = (float) (1 / (1 - s->b1t));
  a.c2 = (float) (1 / (1 - s->b2t));
  a.eps = (float) a.o.eps;
  a.decay = (float) a.o.decay;
  cpu_for (ceil_div (a.o.n, BLOCK), BLOCK * 3.0, adamw_part, &a);
}
