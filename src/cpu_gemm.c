#include "config.h"
#include "cpu_gemm.h"
#include "cpu_ops.h"
#include "cpu_pairs.h"

/* For a library C is cut into blocks of about 0.6 GFLOP, nearly square, by the shape alone. */
#define SLICE_FLOP 0.6e9

static void cut (const struct op_gemm *g, int64_t *mb, int64_t *nb)
{
  double side = sqrt (SLICE_FLOP / 2 / (double) MAX (g->k, 1));
  *mb = g->m;
  *nb = g->n;
  if (2.0 * (double) g->m * (double) g->n * (double) g->k <= SLICE_FLOP) return;
  *mb = MIN (g->m, MAX (64, (int64_t) (side / 64) * 64));
  *nb = MIN (g->n, MAX (64, (int64_t) (side * side / (double) *mb / 64) * 64));
  *mb = MIN (g->m, MAX (*mb, (int64_t) (side * side / (double) *nb / 64) * 64));
}

/* Rows [i, i + m), columns [j, j + n) of C. */
static struct op_gemm block_of (const struct op_gemm *g, int64_t i, int64_t j, int64_t m, int64_t n)
{
  struct op_gemm b = *g;
  b.m = m;
  b.n = n;
  b.a = at_elem (g->a, g->ta ? i : i * g->lda, g->ab);
  b.b = at_elem (g->b, g->tb ? j * g->ldb : j, g->ab);
  b.c = at_elem (g->c, i * g->ldc + j, g->ct);
  b.bias = g->bias ? at_elem (g->bias, j, g->ab) : NULL;
  return b;
}

static void by_library (const struct op_gemm *g)
{
  int64_t mb, nb;
  cut (g, &mb, &nb);
  for (int64_t j = 0; j < g->n; j += nb)
    for (int64_t i = 0; i < g->m; i += mb) {
      struct op_gemm b = block_of (g, i, j, MIN (mb, g->m - i), MIN (nb, g->n - j));
      blas_gemm (&b);
      cpu_poll ();
    }
}

static void gemm (struct op_gemm *g)
{
  if (!g->lda) g->lda = g->ta ? g->m : g->k;
  if (!g->ldb) g->ldb = g->tb ? g->k : g->n;
  if (!g->ldc) g->ldc = g->n;
  if (TILE_WIDE && g->ab == DT_BF16 && pairs_fast ()) gemm_pairs (g);
  else if (TILE_WIDE && (g->ab == DT_F32 || !blas_bf16_fast ())) gemm_own (g, g->ab, g->ab, 1);
  else by_library (g);
}

void cpu_gemm (const struct op *op)
{
  struct op_gemm g = op->gemm;
  g.a = cpu_at (g.a);
  g.b = cpu_at (g.b);
  g.c = cpu_at (g.c);
  g.bias = cpu_at (g.bias);
  gemm (&g);
}

/* Row counts change from call to call: blocks of 256 rows, then falling powers of two, so that few shapes occur. */
static void grouped_rows (const struct op_gemm_grouped *o, int64_t g, int64_t row, int64_t rows)
{
  while (rows > 0) {
    int64_t m = 256;
    while (m > rows) m /= 2;
    struct op_gemm one = { .m = m, .n = o->n, .k = o->k, .ab = o->ab, .ct = o->ct, .tb = o->tb, .beta = o->beta,
      .a = at_elem (o->a, row * o->k, o->ab), .b = at_elem (o->b, g * o->k * o->n, o->ab),
      .c = at_elem (o->c, row * o->n, o->ct) };
    gemm (&one);
    row += m;
    rows -= m;
  }
}

void cpu_gemm_grouped (const struct op *op)
{
  struct op_gemm_grouped o = op->grouped;
  o.off = cpu_at (o.off);
  o.a = cpu_at (o.a);
  o.b = cpu_at (o.b);
  o.c = cpu_at (o.c);
  for (int64_t g = 0; g < o.groups; g++) grouped_rows (&o, g, o.off[g], o.off[g + 1] - o.off[g]);
}
