#include "config.h"
#include "places.h"
#include <stdio.h>
#include <string.h>

static void add_block (struct places *p, const struct arch *a, int64_t block)
{
  enum pid ids[P_N];
  int n = block_params (a, block, ids);
  for (int i = 0; i < n; i++) {
    struct place_tensor *t = &p->tensor[p->n++];
    param_name (a, block, ids[i], t->name);
    param_shape (a, ids[i], &t->shape[0], &t->shape[1]);
    t->ndim = param_ndim (ids[i]);
    t->count = mul_exact (t->shape[0], t->shape[1]);
  }
}

/* The place of each parameter in the list: all layers are alike. */
static int32_t number_of (const struct arch *a, int64_t block, enum pid id)
{
  enum pid ids[P_N];
  int first = block_params (a, 0, ids), layer = block_params (a, 1, ids), at = block ? first + (int) (block - 1) * layer : 0;
  int n = block_params (a, block, ids);
  for (int i = 0; i < n; i++) if (ids[i] == id) return at + i;
  die ("block %lld has no parameter %d", (long long) block, (int) id);
}

void places_make (struct places *p, const struct arch *a, const struct units *u)
{
  *p = (struct places) { .units = u };
  p->tensor = xalloc ((size_t) (a->layers + 2) * P_N * sizeof *p->tensor, "places");
  for (int64_t b = 0; b < a->layers + 2; b++) add_block (p, a, b);
  p->pieces = units_pieces (u, &p->piece);
  p->tensor_of = xalloc ((size_t) (p->pieces + 1) * sizeof *p->tensor_of, "places");
  for (int i = 0; i < p->pieces; i++) p->tensor_of[i] = number_of (a, p->piece[i].slot->block, p->piece[i].slot->id);
}

void places_free (struct places *p)
{
  for (int k = 0; k < CKPT_KINDS; k++) xfree (p->at[k]);
  xfree (p->tensor);
  xfree (p->piece);
  xfree (p->tensor_of);
  *p = (struct places) { 0 };
}

struct place *places_add (struct places *p, enum ckpt_kind k)
{
  p->at[k] = xalloc ((size_t) p->n * sizeof *p->at[k], "places");
  for (int64_t i = 0; i < p->n; i++) p->at[k][i].fd = -1;
  return p->at[k];
}

/* What piece I has of [lo, hi) of UNIT: elements [*first, *first + n) of its tensor are *skip behind lo. Returns n, 0 if none. */
static int64_t meet (const struct places *p, int i, int unit, int64_t lo, int64_t hi, int64_t *first, int64_t *skip)
{
  const struct piece *q = &p->piece[i];
  int64_t from = MAX (lo, q->lo), to = MIN (hi, q->hi);
  if (q->unit != unit || from >= to) return 0;
  *first = q->start + (from - q->lo);
  *skip = from - lo;
  return to - from;
}

void places_get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  struct places *p = ctx;
  struct err e = { 0 };
  int64_t first, skip, m;
  if (!p->at[k]) memset (dst, 0, (size_t) n * 4);
  for (int i = 0; i < p->pieces && p->at[k]; i++) {
    const struct place *at = &p->at[k][p->tensor_of[i]];
    if (!(m = meet (p, i, unit, lo, lo + n, &first, &skip))) continue;
    must (!wire_get (at->fd, at->path, at->at, at->type, first, m, dst + skip, &e), "%s", e.msg);
    p->bytes += m * wire_row[at->type].bytes;
  }
}

void places_put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  struct places *p = ctx;
  int64_t first, skip, m;
  for (int i = 0; i < p->pieces && p->at[k] && !p->err.msg[0]; i++) {
    const struct place *at = &p->at[k][p->tensor_of[i]];
    if (!(m = meet (p, i, unit, lo, lo + n, &first, &skip))) continue;
    if (wire_put (at->fd, p->tensor[p->tensor_of[i]].name, at->at, at->type, first, m, src + skip, &p->err)) return;
    p->bytes += m * wire_row[at->type].bytes;
  }
}

void differ_say (const char *file, int64_t *count, const char *fmt, ...)
{
  char text[600];
  va_list ap;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  say (SAY_WARN, "%s: %s", file, text);
  ++*count;
}

int differ_err (const struct differ *d, const char *file, struct err *e)
{
  if (!d->missing && !d->unexpected && !d->other) return 0;
  return user_err (e, "%s is of another model: %lld tensors missing, %lld unexpected, %lld of another shape or type", file, (long long) d->missing,
                   (long long) d->unexpected, (long long) d->other);
}
