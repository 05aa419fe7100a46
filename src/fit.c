#include "config.h"
#include "fit.h"
#include <stdlib.h>

/* ---- a layer: bytes and seconds of each set ---- */

int64_t fit_bytes (const struct blocks *b, int keep, bool split)
{
  struct arenas A;
  struct layer_acts l;
  arenas_init (&A, b->d);
  layer_layout (b, &l, &A, keep, split);
  return A.a[SPACE_DEVICE][MEM_ACT].used;
}

static double gemm (const struct blocks *b, double m, double n, double k)
{
  return 2 * m * n * k / b->d->ops->limits->rate.gemm[b->g.t];
}
static double moved (const struct blocks *b, double elements) { return elements * (double) dtype_size (b->g.t) / b->d->ops->limits->rate.copy; }
/* [n, dim] gathered or scattered over tp. */
static double sent (const struct blocks *b)
{
  return (double) (b->g.n - b->g.nt) * (double) b->g.dim * (double) dtype_size (b->g.t) / b->d->ops->limits->rate.link;
}

static double attention (const struct blocks *b)
{
  const struct geom *g = &b->g;
  struct op o = { .kind = OP_ATTN, .attn = { .batch = g->batch, .sq = g->seq, .sk = g->seq, .heads = g->heads, .head_dim = g->head_dim, .window = b->a->window } };
  return dev_flops (&o) / b->d->ops->limits->rate.attn[g->t];
}

double fit_seconds (const struct blocks *b, int keep)
{
  const struct geom *g = &b->g;
  double n = (double) g->n, nt = (double) g->nt, dim = (double) g->dim, t = 0;
  bool norms = keep & KEEP_NORMS;
  if (!norms) t += moved (b, 2 * nt * dim);
  if (!norms || !(keep & KEEP_RESIDUAL)) t += moved (b, 2 * nt * dim);
  if (!(keep & KEEP_SWIGLU)) t += moved (b, n * (double) g->ffn);
  if (!(keep & KEEP_GATE_UP)) t += gemm (b, n, 2 * (double) g->ffn, dim);
  if (!(keep & KEEP_QKV)) t += gemm (b, n, (double) g->qkv, dim) + moved (b, (b->a->qk_norm ? 6 : 2) * n * (double) g->qkv) + sent (b);
  if (!(keep & KEEP_ATTN)) t += attention (b);
  if (!(keep & KEEP_RESIDUAL)) t += gemm (b, n, dim, (double) g->att) + moved (b, 2 * nt * dim) + sent (b);
  return t;
}

/* ---- sets on the lower convex hull of bytes and seconds: those that no mixture of others beats ---- */

struct point { int keep; int64_t bytes; double seconds; };

static int by_bytes (const void *a, const void *b)
{
  const struct point *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return x->seconds != y->seconds ? (x->seconds < y->seconds ? -1 : 1) : x->keep - y->keep;
}

static double slope (const struct point *a, const struct point *b) { return (b->seconds - a->seconds) / (double) (b->bytes - a->bytes); }

/* All sets that are allowed, the least bytes first, into ALL [KEEP_ALL + 1]. */
static int all_sets (const struct step *s, struct point *all)
{
  int n = 0;
  for (int k = 0; k <= KEEP_ALL; k++)
    if ((!s->split || !(~k & KEEP_SPLIT)) && keep_usable (s->c, k)) all[n++] = (struct point) { k, fit_bytes (&s->b, k, s->split), fit_seconds (&s->b, k) };
  qsort (all, (size_t) n, sizeof *all, by_bytes);
  return n;
}

/* Those of ALL on the hull: how many, each larger and faster than the one before. */
static int hull (const struct point *all, int n_all, struct point *p)
{
  int n = 0;
  for (int i = 0; i < n_all; i++) {
    if (n && all[i].seconds >= p[n - 1].seconds) continue;
    while (n > 1 && slope (&p[n - 2], &p[n - 1]) >= slope (&p[n - 1], &all[i])) n--;
    p[n++] = all[i];
  }
  return n;
}

/* ---- the stage ---- */

/* My layers, those of the first chunk first, whose activations live longest. */
static int my_layers (const struct step *s, int64_t *layer)
{
  int n = 0;
  for (int k = 0; k < s->chunks; k++)
    for (int l = 0; l < s->chunk[k].layers; l++) layer[n++] = MAX (s->chunk[k].first, 1) + l;
  return n;
}

/* Choice A of those from the least memory to the most: the last A % n layers have the set after that of the others. */
static void assign (struct step *s, const struct point *p, const int64_t *layer, int n, int a)
{
  for (int i = 0; i < n; i++) s->keep[layer[i]] = p[a / n + (i >= n - a % n)].keep;
}

/* What is left of ROOM goes to single layers: each takes the fastest set that fits. */
static void fill (struct step *s, const struct point *all, int n_all, const int64_t *layer, int n, int64_t room, int64_t (*bytes) (struct step *))
{
  for (int i = n - 1; i >= 0; i--) {
    int *keep = &s->keep[layer[i]];
    int64_t left = room - bytes (s), has = fit_bytes (&s->b, *keep, s->split);
    for (int k = n_all - 1; k >= 0; k--) {
      int was = *keep;
      if (all[k].bytes - has > left || all[k].seconds >= fit_seconds (&s->b, was)) continue;
      *keep = all[k].keep;
      if (bytes (s) > room) *keep = was;
    }
  }
}

/* The fastest choice that fits in ROOM, else the smallest. Seconds a step. */
static double choose_sets (struct step *s, int64_t room, int64_t (*bytes) (struct step *))
{
  struct point all[KEEP_ALL + 1], p[KEEP_ALL + 1];
  int64_t *layer = xalloc ((size_t) (s->c->arch.layers + 1) * sizeof *layer, "layers");
  int n = my_layers (s, layer), n_all = all_sets (s, all), low = 0, high = n * (hull (all, n_all, p) - 1);
  double t = 0;
  while (low < high) {
    int mid = (low + high + 1) / 2;
    assign (s, p, layer, n, mid);
    if (bytes (s) <= room) low = mid;
    else high = mid - 1;
  }
  if (n) assign (s, p, layer, n, low);
  fill (s, all, n_all, layer, n, room, bytes);
  for (int i = 0; i < n; i++) t += fit_seconds (&s->b, s->keep[layer[i]]);
  xfree (layer);
  return t * s->mbs;
}

/* Whole weights in the compute type for the step, or cast unit by unit: twice a micro-batch where they are not kept, written by the optimizer where they are. */
static double cast_seconds (const struct step *s, bool kept)
{
  const struct shard *h = &s->sh;
  double w = (double) dtype_size (h->t), times = kept ? 1 : 2 * s->mbs;
  return (double) h->units.total * times * (kept ? w : 4 + w) / s->d->ops->limits->rate.copy;
}

void fit (struct step *s, int64_t (*bytes) (struct step *))
{
  bool sets = s->c->recompute.mode == RECOMPUTE_AUTO, fits = false;
  int64_t room = s->d->memory ? s->d->memory - dev_outside (s->d, s->group_n) : 0;
  double t[2];
  if (shard_may_keep (&s->sh)) {
    for (int kept = 0; kept < 2; kept++) {
      shard_keep (&s->sh, kept);
      t[kept] = cast_seconds (s, kept) + (sets ? choose_sets (s, room, bytes) : 0);
      fits = bytes (s) <= room;
    }
    shard_keep (&s->sh, fits && t[1] <= t[0]);
  }
  if (sets) choose_sets (s, room, bytes);
}
