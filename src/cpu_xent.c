#include "config.h"
#include "cpu_ops.h"

/* Loss of a row is log (sum exp (x - max)) - (x[target] - max); softmax comes from the same max and sum. */

static void xent_at (struct op_xent *o, const struct op *op)
{
  *o = op->xent;
  o->logits = cpu_at (o->logits);
  o->target = cpu_at (o->target);
  o->max = cpu_at (o->max);
  o->st = cpu_at (o->st);
  o->acc = cpu_at (o->acc);
}

INLINE float row_max (const void *x, int64_t n, enum dtype t)
{
  vf m[2] = { v_set (-INFINITY), v_set (-INFINITY) };
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL)
    for (int j = 0; j < 2; j++) m[j] = v_max (v_ld (x, i + j * VL, t), m[j]);
  for (; i < n; i += VL) m[0] = v_max (v_ldn (x, i, n, t, -INFINITY), m[0]);
  return v_hmax (v_max (m[0], m[1]));
}

static void max_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_xent *o = arg;
  for (int64_t r = lo; r < hi; r++) WITH_TYPE (o->t, T, o->max[r] = row_max (at_elem (o->logits, r * o->ld, T), o->cols, T));
}

void cpu_xent_max (const struct op *op)
{
  struct op_xent o;
  xent_at (&o, op);
  cpu_for (o.n, 5 + (double) o.cols * 0.3, max_part, &o);
}

INLINE float row_sum (const void *x, int64_t n, float max, enum dtype t)
{
  vf s[2] = { v_set (0), v_set (0) };
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL)
    for (int j = 0; j < 2; j++) s[j] += v_exp (v_ld (x, i + j * VL, t) - max);
  for (; i < n; i += VL) s[0] += v_exp (v_ldn (x, i, n, t, -INFINITY) - max);
  return v_sum (s[0] + s[1]);
}

static void sum_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_xent *o = arg;
  for (int64_t r = lo; r < hi; r++) {
    const void *x = at_elem (o->logits, r * o->ld, o->t);
    int64_t at = o->target[r] - o->v0;
    WITH_TYPE (o->t, T, o->st[r] = row_sum (x, o->cols, o->max[r], T));
    o->st[o->n + r] = o->target[r] >= 0 && at >= 0 && at < o->cols ? s_ld (x, at, o->t) - o->max[r] : 0;
  }
}

void cpu_xent_sum (const struct op *op)
{
  struct op_xent o;
  xent_at (&o, op);
  cpu_for (o.n, 5 + (double) o.cols * 0.6, sum_part, &o);
}

/* A row's maximum, then its sum while it is near. */
static void stats_part (const void *arg, int64_t lo, int64_t hi)
{
  for (int64_t r = lo; r < hi; r++) {
    max_part (arg, r, r + 1);
    sum_part (arg, r, r + 1);
  }
}

void cpu_xent_stats (const struct op *op)
{
  struct op_xent o;
  xent_at (&o, op);
  cpu_for (o.n, 5 + (double) o.cols * 0.9, stats_part, &o);
}

INLINE void row_grad (const struct op_xent *o, int64_t r, enum dtype t)
{
  void *x = at_elem (o->logits, r * o->ld, t);
  int64_t at = o->target[r] - o->v0;
  if (o->target[r] < 0) { memset (x, 0, (size_t) (o->ld * dtype_size (t))); return; }
  float scale = 1 / o->st[r], hit = at >= 0 && at < o->cols ? expf (s_ld (x, at, t) - o->max[r]) * scale - 1 : 0;
  for (int64_t i = 0; i < o->cols; i += VL) v_stn (x, i, o->cols, t, v_exp (v_ldn (x, i, o->cols, t, 0) - o->max[r]) * scale);
  if (at >= 0 && at < o->cols) s_st (x, at, t, hit);
  memset (at_elem (x, o->cols, t), 0, (size_t) ((o->ld - o->cols) * dtype_size (t)));
}

static void grad_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_xent *o = arg;
  for (int64_t r = lo; r < hi; r++) WITH_TYPE (o->t, T, row_grad (o, r, T));
}

void cpu_xent_grad (const struct op *op)
{
  struct op_xent o;
  xent_at (&o, op);
  double loss = 0, valid = 0;
  for (int64_t r = 0; r < o.n; r++)
    if (o.target[r] >= 0) loss += log (o.st[r]) - o.st[o.n + r], valid++;
  if (o.acc) o.acc[0] += loss, o.acc[1] += valid;
  if (o.grad) cpu_for (o.n, 5 + (double) o.ld * 0.7, grad_part, &o);
}
