/* What one rank reads of a checkpoint: block by block into a buffer that stays in its core's cache, summed while it goes from there to its place. */
#include "ckpt_loading.h"
#include <stdatomic.h>
#include <string.h>

enum { CALL = 1024 };             /* elements that could be read in the time of a call: rows that lie further apart are read one by one */

struct fetch { struct loader *l; atomic_llong next; struct err err[TEAM_MAX]; };
/* One thread's, and what it is at: elements [at, at + n) of a dataset. buf: a block, at the beginning of a page, where copies by the system are fastest. */
struct hand { struct loader *l; float *buf; struct sum *whole; int kind, rank; int64_t at, n; struct err *e; };

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

static int from_file (struct hand *h, void *ctx, const struct take *t, int64_t off, int64_t a, int64_t n)
{
  float *to = place (h, t, a);
  (void) ctx;
  if (file_get (&h->l->f, h->kind, h->rank, off, n, to ? to : h->buf, h->e)) return -1;
  if (!to) bring (h, t, a, n, h->buf);
  return 0;
}

static int whole_block (struct hand *h, int64_t b, const struct sight *s)
{
  bool wide = file_type (&h->l->f, h->kind) == DT_F32, straight = wide && s->only && s->sum == h->n;
  char *to = wide ? (char *) h->buf : (char *) h->buf + 2 * h->n;
  if (file_block (&h->l->f, h->kind, h->rank, b, to, straight ? s->only : NULL, h->whole, h->e)) return -1;
  if (straight || !s->n) return 0;
  if (!wide) h5_widen (h->buf, h->n);
  return stretches (h, from_buf, &h->at);
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
  for (int64_t b = t->from; b < t->to; b++) {
    struct sight s = { 0 };
    h->at = b * x->block, h->n = MIN (x->block, x->rank[t->rank].count - h->at);
    stretches (h, look, &s);
    if (t->check ? whole_block (h, b, &s) : part_block (h, &s)) return -1;
  }
  return t->check ? file_whole (&h->l->f, t->kind, t->rank, h->whole, h->e) : 0;
}

static int fetch_some (void *ctx, int who)
{
  struct fetch *f = ctx;
  char *room = xalloc ((size_t) f->l->f.index.block * 4 + CKPT_ALIGN, "ckpt stage");
  struct hand h = { .l = f->l, .buf = (float *) (room + -(uintptr_t) room % CKPT_ALIGN), .whole = sum_new (), .e = &f->err[who] };
  int rc = 0;
  for (int64_t i; !rc && (i = f->next++) < f->l->tasks; ) rc = do_task (&h, &f->l->task[i]);
  copy_end ();
  if (rc) f->next = f->l->tasks;
  sum_free (h.whole);
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
