#include "config.h"
#include "cpu_ops.h"

static void embed_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_embed *o = arg;
  int64_t bytes = o->dim * dtype_size (o->t);
  for (int64_t i = lo; i < hi; i++) {
    int64_t row = o->ids[i] - o->v0;
    void *out = at_bytes (o->out, i * bytes);
    if (row >= 0 && row < o->rows) memcpy (out, at_bytes (o->table, row * bytes), (size_t) bytes);
    else memset (out, 0, (size_t) bytes);
  }
}

void cpu_embed (const struct op *op)
{
  struct op_embed o = op->embed;
  o.ids = cpu_at (o.ids);
  o.table = cpu_at (o.table);
  o.out = cpu_at (o.out);
  cpu_for (o.n, 5 + (double) o.dim * 0.4, embed_part, &o);
}

/* work = start [rows + 1] and token [n], sorted by row, in order within a row: each row sums its own tokens, whoever does it. */
static void sort_tokens (const struct op_embed_bwd *o, int32_t *start, int32_t *token)
{
  memset (start, 0, (size_t) (o->rows + 1) * sizeof *start);
  for (int64_t i = 0; i < o->n; i++) {
    int64_t row = o->ids[i] - o->v0;
    if (row >= 0 && row < o->rows) start[row + 1]++;
  }
  for (int64_t r = 0; r < o->rows; r++) start[r + 1] += start[r];
  for (int64_t i = 0; i < o->n; i++) {
    int64_t row = o->ids[i] - o->v0;
    if (row >= 0 && row < o->rows) token[start[row]++] = (int32_t) i;
  }
  memmove (start + 1, start, (size_t) o->rows * sizeof *start);   /* each start had moved to its end */
  start[0] = 0;
}

INLINE void sum_row (const struct op_embed_bwd *o, void *d, const int32_t *token, int64_t tokens, enum dtype t, enum dtype gt)
{
  for (int64_t c = 0; c < o->dim; c += VL) {
    vf s = o->beta != 0 ? o->beta * v_ldn (d, c, o->dim, gt, 0) : v_set (0);
    for (int64_t i = 0; i < tokens; i++) s += v_ldn (at_elem (o->dy, token[i] * o->dim, t), c, o->dim, t, 0);
    v_stn (d, c, o->dim, gt, s);
  }
}

static void embed_bwd_part (const void *arg, int64_t lo, int64_t hi)
{
  const struct op_embed_bwd *o = arg;
  const int32_t *start = o->work, *token = o->work + o->rows + 1;
  for (int64_t r = lo; r < hi; r++) {
    int64_t n = start[r + 1] - start[r];
    void *d = at_elem (o->dtable, r * o->dim, o->gt);
    if (n || (o->beta != 0 && o->beta != 1)) WITH_TYPE (o->t, T, WITH_TYPE (o->gt, G, sum_row (o, d, token + start[r], n, T, G)));
    else if (o->beta == 0) memset (d, 0, (size_t) (o->dim * dtype_size (o->gt)));
  }
}

void cpu_embed_bwd (const struct op *op)
{
  struct op_embed_bwd o = op->embed_bwd;
  o.ids = cpu_at (o.ids);
  o.dy = cpu_at (o.dy);
  o.dtable = cpu_at (o.dtable);
  o.work = cpu_at (o.work);
  sort_tokens (&o, o.work, o.work + o.rows + 1);
  double tokens = (double) o.n / (double) MAX (o.rows, 1);
  cpu_for (o.rows, 5 + (double) o.dim * (0.4 + 0.4 * tokens), embed_bwd_part, &o);
}
