/* What one rank reads of a checkpoint: block by block into a buffer that stays in its core's cache, summed while it goes from there to its place. */
#include "ckpt_loading.h"
#include <stdatomic.h>
#include <string.h>

enum {
  CALL = 1024,                    /* elements that could be read in the time of a call: rows that lie further apart are read one by one */
  READ = 2,                       /* blocks read at once, which a core's cache holds */
};

struct fetch { struct loader *l; atomic_llong next; struct err err[TEAM_MAX]; };
/* One thread's, and what it is at: elements [at, at + n) of a dataset. room: for READ blocks, at the beginning of a page, where copies by the system are fastest; buf: one of them. */
struct hand {
  struct loader *l;
  float *room, *buf;
  struct sum *sum;
  int kind, rank;
  int64_t at, n, summed;
  struct err *e;
};

/* --- the stretches of a block that are mine --- */

/* N elements from OFF of the dataset on are mine, from A of the take's piece on. */
typedef int stretch_fn (struct hand *h, void *ctx, const struct take *t, int64_t off, int64_t a, int64_t n);

static int rows_of (struct hand *h, const struct take *t, stretch_fn *fn, void *ctx)
{
  const struct run *u = &t->u;
  int64_t end = h->at + h->n, r = u->rows > 1 && h->at > u->b + u->width ? (h->at - u->b - u->width) / u->b_stride : 0;
  for (; r < u->rows; r++) {
    int64_t row = u->b + r * u->b_stride, lo = MAX (row, h->at), hi = MIN (row + u->width, end);
    if (row >= end) return 0;
    if (lo < hi && fn (h, ctx, t, lo, u->a + r * u->a_stride + (lo - row), hi - lo)) return -1;
  }
  return 0;
}

static int stretches (struct hand *h, stretch_fn *fn, void *ctx)
{
  const struct loader *l = h->l;
  int64_t lo = l->first[h->rank], hi = l->first[h->rank + 1], end = hi;
  while (lo < hi) {   /* the first that reaches into the block */
    int64_t mid = (lo + hi) / 2;
    if (l->take[mid].reach > h->at) hi = mid;
    else lo = mid + 1;
  }
  for (; lo < end && l->take[lo].u.b < h->at + h->n; lo++)
    if (l->take[lo].end > h->at && rows_of (h, &l->take[lo], fn, ctx)) return -1;
  return 0;
}

/* Where they go, NULL if `put` must bring them there. */
static float *place (const struct hand *h, const struct take *t, int64_t a)
{
  const struct ckpt_state *s = h->l->s;
  const struct piece *p = &h->l->piece[t->piece];
  return s->lay ? s->lay (s->ctx, (enum ckpt_kind) h->kind, p->unit, p->lo + a) : NULL;
}

static void bring (const struct hand *h, const struct take *t, int64_t a, int64_t n, const float *from)
{
  const struct ckpt_state *s = h->l->s;
  const struct piece *p = &h->l->piece[t->piece];
  float *to = place (h, t, a);
  if (to) copy_past (to, from, n * 4);
  else s->put (s->ctx, (enum ckpt_kind) h->kind, p->unit, p->lo + a, n, from);
}

/* --- a block --- */

struct sight { int64_t n, sum, lo, hi; float *only; };   /* stretches, their elements, from the first to behind the last; where the only one goes */

static int look (struct hand *h, void *ctx, const struct take *t, int64_t off, int64_t a, int64_t n)
{
  struct sight *s = ctx;
  s->only = s->n++ ? NULL : place (h, t, a);
  s->sum += n;
  s->lo = s->n == 1 ? off : MIN (s->lo, off);
  s->hi = MAX (s->hi, off + n);
  return 0;
}

/* From the buffer, whose first element is *CTX of the dataset. */
static int from_buf (struct hand *h, void *ctx, const struct take *t, int64_t off, int64_t a, int64_t n)
{
  bring (h, t, a, n, h->buf + (off - *(int64_t *) ctx));
  return 0;
}

/* The same, and summed: what lies between stretches too, in the order of the file. H->summed: one past the last element that is. */
static int sum_from_buf (struct hand *h, void *ctx, const struct take *t, int64_t off, int64_t a, int64_t n)
{
  const float *from = h->buf + (off - h->at);
  float *to = place (h, t, a);
  if (!to || off < h->summed) return from_buf (h, ctx, t, off, a, n);
  sum_add (h->sum, h->buf + (h->summed - h->at), (off - h->summed) * 4);
  sum_copy (h->sum, to, from, n * 4);
  h->summed = off + n;
  return 0;
}

static int from_file (struct hand *h, void *ctx, const struct take *t, int64_t off, int64_t a, int64_t n)
{
  float *to = place (h, t, a);
  (void) ctx;
  if (file_get (&h->l->f, h->kind, h->rank, off, n, to ? to : h->buf, h->e)) return -1;
  if (!to) bring (h, t, a, n, h->buf);
  return 0;
}

/* Block B, which is in the buffer, to where it belongs. */
static int whole_block (struct hand *h, int64_t b)
{
  bool wide = file_type (&h->l->f, h->kind) == DT_F32;
  h->summed = h->at;
  if (wide) {
    stretches (h, sum_from_buf, &h->at);
    sum_add (h->sum, h->buf + (h->summed - h->at), (h->at + h->n - h->summed) * 4);
  } else {
    sum_add (h->sum, (char *) h->buf + 2 * h->n, 2 * h->n);
    h5_widen (h->buf, h->n);
    stretches (h, from_buf, &h->at);
  }
  return file_check (&h->l->f, h->kind, h->rank, b, h->sum, h->e);
}

/* READ blocks of fp32 at a time; one of bf16, which needs twice its room. */
static int whole_blocks (struct hand *h, const struct task *t)
{
  const struct ckpt_file *f = &h->l->f;
  int64_t block = f->index.block, count = f->index.rank[t->rank].count;
  bool wide = file_type (f, t->kind) == DT_F32;
  for (int64_t b = t->from; b < t->to; b++) {
    int64_t k = wide ? (b - t->from) % READ : 0, once = wide ? MIN (READ, t->to - b) : 1;
    h->at = b * block, h->n = MIN (block, count - h->at), h->buf = h->room + k * block;
    char *to = wide ? (char *) h->buf : (char *) h->buf + 2 * h->n;
    if (!k && file_plain (f, t->kind, t->rank, h->at, MIN (once * block, count - h->at), to, h->e)) return -1;
    if (whole_block (h, b)) return -1;
  }
  return file_whole (f, t->kind, t->rank, h->sum, h->e);
}

static int part_block (struct hand *h, struct sight *s)
{
  if (!s->n) return 0;
  if (s->only || s->n * CALL + s->sum < s->hi - s->lo) return stretches (h, from_file, NULL);
  if (file_get (&h->l->f, h->kind, h->rank, s->lo, s->hi - s->lo, h->buf, h->e)) return -1;
  return stretches (h, from_buf, &s->lo);
}

static int do_task (struct hand *h, const struct task *t)
{
  const struct index *x = &h->l->f.index;
  h->kind = t->kind, h->rank = t->rank;
  if (t->check) return whole_blocks (h, t);
  h->buf = h->room;
  for (int64_t b = t->from; b < t->to; b++) {
    struct sight s = { 0 };
    h->at = b * x->block, h->n = MIN (x->block, x->rank[t->rank].count - h->at);
    stretches (h, look, &s);
    if (part_block (h, &s)) return -1;
  }
  return 0;
}

static int fetch_some (void *ctx, int who)
{
  struct fetch *f = ctx;
  char *room = xalloc ((size_t) (READ * f->l->f.index.block * 4 + CKPT_ALIGN), "ckpt stage");
  struct hand h = { .l = f->l, .room = (float *) (room + -(uintptr_t) room % CKPT_ALIGN), .sum = sum_new (), .e = &f->err[who] };
  int rc = 0;
  for (int64_t i; !rc && (i = f->next++) < f->l->tasks; ) rc = do_task (&h, &f->l->task[i]);
  copy_end ();
  if (rc) f->next = f->l->tasks;
  sum_free (h.sum);
  xfree (room);
  return rc;
}

/* --- what only `put` takes, row by row in the file --- */

static int windows (struct loader *l, int kind, const struct piece *p, float *buf, struct err *e)
{
  struct strip w = loader_strip (p);
  int64_t all = w.count;
  for (int64_t at = 0; at < all; at += w.count) {
    w.start = p->start + at;
    w.count = MIN (CKPT_STAGE / 4, all - at);
    if (ckpt_read (&l->f, (enum ckpt_kind) kind, loader_tensor (l, p), &w, buf, e)) return -1;
    l->s->put (l->s->ctx, (enum ckpt_kind) kind, p->unit, p->lo + at, w.count, buf);
  }
  return 0;
}

int loader_fetch (struct loader *l, struct err *e)
{
  struct fetch *f = xalloc (sizeof *f, "ckpt");
  f->l = l;
  int rc = team_run (l->s->lay ? ckpt_threads (l->s) : 1, fetch_some, f);
  for (int i = TEAM_MAX - 1; i >= 0; i--) if (f->err[i].msg[0]) *e = f->err[i];
  xfree (f);
  float *buf = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
  for (int k = 0; k < l->kinds; k++)
    for (int i = 0; i < l->pieces && !rc; i++)
      if (l->windowed[i]) rc = windows (l, k, &l->piece[i], buf, e);
  xfree (buf);
  return rc;
}
