#include "config.h"
#include "cpu_ops.h"
#include "rng.h"

/* Local elements [i, end) of one local row. */
static void init_run (const struct op_init *o, int64_t i, int64_t end)
{
  float *dst = o->dst + (i - o->start);
  int64_t row = i / o->cols, n = end - i;
  if (row >= o->rows) memset (dst, 0, (size_t) n * sizeof *dst);
  else if (o->normal) rng_fill (o->seed, o->key, (uint64_t) ((o->row0 + row) * o->gcols + o->col0 + i % o->cols), n, o->std, dst);
  else for (int64_t j = 0; j < n; j++) dst[j] = o->value;
}

static void init_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_init *o = arg;
  int64_t end = o->start + o->n;
  for (int64_t r = lo; r < hi; r++) {
    int64_t row = o->start / o->cols + r, a = MAX (row * o->cols, o->start), b = MIN ((row + 1) * o->cols, end);
    init_run (o, a, b);
  }
}

void cpu_init (const struct op *op)
{
  struct op_init o = op->init;
  must (rng_exact (), "cpu_init.c was built with contraction of products and sums: weights would depend on the compiler");
  o.dst = cpu_at (o.dst);
  if (o.n <= 0) return;
  int64_t rows = (o.start + o.n - 1) / o.cols - o.start / o.cols + 1;
  cpu_for (rows, (double) MIN (o.cols, o.n) * (o.normal ? 20 : 0.5), init_part, &o);
}
