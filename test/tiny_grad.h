/* tiny_grad: all tensors of a small run as one array, and how far two such arrays are apart. */
#ifndef TINY_GRAD_H
#define TINY_GRAD_H
#include "tiny_run.h"
#include <math.h>

/* All tensors of the model in block order as one array on every rank of the mesh, from what each rank owns. */
static inline void tiny_collect (struct step *s, struct mesh *m, bool grad, double scale, float **out, int64_t *count)
{
  const struct arch *a = &s->c->arch;
  int64_t off[64][P_N], n = 0, rows, cols;
  for (int64_t b = 0; b < a->layers + 2; b++) {
    enum pid ids[P_N];
    int k = block_params (a, b, ids);
    for (int i = 0; i < k; i++) param_shape (a, ids[i], &rows, &cols), off[b][ids[i]] = n, n += rows * cols;
  }
  float *x = calloc ((size_t) n, 4);
  struct piece *list;
  int pieces = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < pieces; i++) {
    struct piece p = units_owned (&list[i], s->tp, s->tp_rank, s->sh.replicas, s->sh.replica);
    const struct part *part = &p.slot->part;
    param_shape (a, p.slot->id, &rows, &cols);
    float *v = malloc ((size_t) (p.hi - p.lo) * 4 + 4);
    if (p.hi > p.lo) dev_get (s->d, s->q, v, (grad ? (float *) s->sh.u[p.unit].grad : s->sh.u[p.unit].master) + p.lo, (p.hi - p.lo) * 4);
    for (int64_t k = 0; k < p.hi - p.lo; k++) {
      int64_t l = p.start + k;
      x[off[p.slot->block][p.slot->id] + (part->row0 + l / part->cols) * cols + part->col0 + l % part->cols] = (float) (v[k] * scale);
    }
    free (v);
  }
  xfree (list);
  *out = malloc ((size_t) n * 4);
  *count = n;
  MPI_Allreduce (x, *out, (int) n, MPI_FLOAT, MPI_SUM, m->world);
  free (x);
}

/* Largest relative L2 difference of a tensor's gradient. */
static inline double tiny_worst (const struct conf *c, const float *a, const float *b, char name[96])
{
  int64_t at = 0, rows, cols;
  double worst = 0;
  for (int64_t blk = 0; blk < c->arch.layers + 2; blk++) {
    enum pid ids[P_N];
    int k = block_params (&c->arch, blk, ids);
    for (int i = 0; i < k; i++) {
      double diff = 0, norm = 0;
      param_shape (&c->arch, ids[i], &rows, &cols);
      for (int64_t j = 0; j < rows * cols; j++, at++) {
        diff += (a[at] - b[at]) * (double) (a[at] - b[at]);
        norm += b[at] * (double) b[at];
      }
      double r = sqrt (diff / norm);
      if (!(r <= worst)) worst = r, param_name (&c->arch, blk, ids[i], name);
    }
  }
  return worst;
}
#endif
