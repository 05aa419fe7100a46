/* Any mesh from any other. Each dataset of the file is dealt to one rank, which streams all of it for its checksum and takes from the stream what it holds; what a rank
   needs of the others it reads by itself. On the mesh that wrote, that is one pass over the rank's own dataset. */
#include "ckpt_int.h"
#include <stdlib.h>
#include <string.h>

#define SEEN 10.0                 /* seconds in which a file that rank 0 sees must be seen everywhere */
#define WINDOW (CKPT_STAGE / 4)   /* elements */

/* Elements [offset, offset + n) of RANK's datasets are elements [at, at + n) of my piece. */
struct take { int rank, piece; int64_t offset, n, at; };

struct loader {
  const struct ckpt_state *s;
  MPI_Comm world;
  struct ckpt_file f;
  struct index mine;             /* of this model: tensors only */
  int32_t *map;                  /* my tensor -> the file's */
  int kinds, kind;               /* to load; in work */
  struct piece *piece;
  int pieces;
  bool *windowed;                /* [pieces] its rows lie scattered: put together window by window, not from takes */
  struct take *take, *from;      /* by rank, offset; of the rank that is streamed */
  int64_t takes, room, from_n;
  float *buf;                    /* WINDOW */
};

/* --- rank 0 reads what all must know --- */

static int read_head (struct loader *l, const char *path, struct err *e)
{
  struct err why = { 0 };
  if (file_open (&l->f, path, e)) return -1;
  if (index_match (&l->f.index, &l->mine, l->kinds == 1, l->map, &why)) return user_err (e, "cannot load %s: %s", path, why.msg);
  return 0;
}

/* A table and its length from rank 0. */
static void share_rows (MPI_Comm c, void *rows, int64_t *n, size_t row)
{
  void **p = rows;
  int rank;
  MPI_Comm_rank (c, &rank);
  ckpt_bcast (c, n, sizeof *n);
  if (rank) *p = xalloc ((size_t) *n * row, "ckpt");
  ckpt_bcast (c, *p, *n * (int64_t) row);
}

static int share_head (struct loader *l, const char *path, struct err *e)
{
  struct index *x = &l->f.index;
  struct ckpt_head *h = &l->f.head;
  int rank = l->s->mesh->rank, bad = rank ? 0 : read_head (l, path, e);
  if (ckpt_agree (l->world, bad, e)) return -1;
  ckpt_bcast (l->world, &h->step, sizeof h->step);
  ckpt_bcast (l->world, &h->tokens, sizeof h->tokens);
  ckpt_bcast (l->world, &h->updates, sizeof h->updates);
  ckpt_bcast (l->world, &h->moments, sizeof h->moments);
  share_rows (l->world, &x->tensor, &x->tensors, sizeof *x->tensor);
  share_rows (l->world, &x->slice, &x->slices, sizeof *x->slice);
  share_rows (l->world, &x->rank, &x->ranks, sizeof *x->rank);
  int64_t sets = x->ranks * CKPT_KINDS;
  share_rows (l->world, &x->where, &sets, sizeof *x->where);
  ckpt_bcast (l->world, l->map, l->mine.tensors * (int64_t) sizeof *l->map);
  bad = rank ? file_join (&l->f, path, SEEN, e) : 0;
  l->f.spare = wait_cores (l->s->mesh->local_size) >= 2 * l->s->mesh->local_size;
  return ckpt_agree (l->world, bad, e);
}

/* --- who reads what --- */

static struct strip strip_of_piece (const struct piece *p)
{
  const struct part *t = &p->slot->part;
  bool flat = param_ndim (p->slot->id) == 1;
  return (struct strip) { flat ? t->row0 + t->col0 : t->row0, flat ? 0 : t->col0, flat ? 1 : t->cols, p->start, p->hi - p->lo };
}

static int32_t tensor_of (const struct loader *l, const struct piece *p) { return l->map[index_find (&l->s->conf->arch, p->slot->block, p->slot->id)]; }

static void add_take (struct loader *l, const struct take *t)
{
  if (l->takes == l->room) {
    l->room = l->room ? 2 * l->room : 64;
    l->take = xrealloc (l->take, (size_t) l->room * sizeof *t, "ckpt");
  }
  l->take[l->takes++] = *t;
}

static int by_place (const void *a, const void *b)
{
  const struct take *p = a, *q = b;
  return p->at < q->at ? -1 : p->at > q->at;
}

static int by_source (const void *a, const void *b)
{
  const struct take *p = a, *q = b;
  if (p->rank != q->rank) return p->rank < q->rank ? -1 : 1;
  return p->offset < q->offset ? -1 : p->offset > q->offset;
}

/* Takes of one piece: do they hold each element once? */
static int check_takes (const struct loader *l, struct take *t, int64_t n, const struct piece *p, struct err *e)
{
  const char *name = l->f.index.tensor[tensor_of (l, p)].name;
  int64_t at = 0;
  if (n) qsort (t, (size_t) n, sizeof *t, by_place);
  for (int64_t i = 0; i < n; at += t[i++].n) {
    if (t[i].at < at) return world_err (e, "%s holds elements of tensor %s twice", l->f.path, name);
    if (t[i].at > at) break;
  }
  return at == p->hi - p->lo ? 0 : world_err (e, "%s lacks elements of tensor %s", l->f.path, name);
}

static int plan_piece (struct loader *l, int i, struct err *e)
{
  const struct index *x = &l->f.index;
  const struct piece *p = &l->piece[i];
  struct strip w = strip_of_piece (p);
  int32_t tensor = tensor_of (l, p);
  int64_t before = l->takes;
  struct run run[RUNS_MAX];
  for (int64_t k = x->first[tensor]; k < x->first[tensor + 1]; k++) {
    const struct row_slice *t = &x->slice[x->order[k]];
    struct strip from = strip_of_slice (t);
    int n = strips_meet (&w, &from, run);
    for (int j = 0; j < n; j++) {
      if (run[j].rows > 1) l->windowed[i] = true;
      add_take (l, &(struct take) { t->rank, i, t->offset + run[j].b, run[j].width, run[j].a });
    }
  }
  if (!l->windowed[i]) return check_takes (l, l->take + before, l->takes - before, p, e);
  l->takes = before;
  return 0;
}

static int plan (struct loader *l, struct err *e)
{
  l->pieces = units_pieces (l->s->units, &l->piece);
  l->windowed = xalloc ((size_t) l->pieces + 1, "ckpt");
  for (int i = 0; i < l->pieces; i++) if (plan_piece (l, i, e)) return -1;
  if (l->takes) qsort (l->take, (size_t) l->takes, sizeof *l->take, by_source);
  return 0;
}

/* Which rank verifies a dataset: where the file has as many writers as the world has ranks, the one at the same place. */
static int dealt_to (const struct loader *l, int kind, int64_t rank)
{
  int64_t size = l->s->mesh->size, n = l->f.index.ranks;
  return (int) (rank * size / n + (size > n ? kind % (size / n) : 0));
}

/* --- the elements --- */

static void put (struct loader *l, const struct piece *p, int64_t at, int64_t n, const float *src)
{
  l->s->put (l->s->ctx, l->kind, p->unit, p->lo + at, n, src);
}

/* What takes have of the stretch [at, at + n) of the dataset that is streamed. Two may want the same elements: a head that was tied, and the embedding. */
static int take_stretch (void *ctx, int64_t at, int64_t n, const float *p)
{
  struct loader *l = ctx;
  for (int64_t i = 0; i < l->from_n && l->from[i].offset < at + n; i++) {
    const struct take *t = &l->from[i];
    int64_t lo = MAX (t->offset, at), hi = MIN (t->offset + t->n, at + n);
    if (lo < hi) put (l, &l->piece[t->piece], t->at + lo - t->offset, hi - lo, p + lo - at);
  }
  for (; l->from_n && l->from->offset + l->from->n <= at + n; l->from++) l->from_n--;
  return 0;
}

static int take_directly (struct loader *l, const struct take *t, struct err *e)
{
  for (int64_t i = 0, n; i < t->n; i += n) {
    n = MIN (WINDOW, t->n - i);
    if (file_get (&l->f, l->kind, t->rank, t->offset + i, n, l->buf, e)) return -1;
    put (l, &l->piece[t->piece], t->at + i, n, l->buf);
  }
  return 0;
}

static int read_windows (struct loader *l, const struct piece *p, struct err *e)
{
  struct strip w = strip_of_piece (p);
  int64_t all = w.count;
  for (int64_t at = 0; at < all; at += w.count) {
    w.start = p->start + at;
    w.count = MIN (WINDOW, all - at);
    if (ckpt_read (&l->f, l->kind, tensor_of (l, p), &w, l->buf, e)) return -1;
    put (l, p, at, w.count, l->buf);
  }
  return 0;
}

static int read_kind (struct loader *l, struct err *e)
{
  int64_t t = 0;
  for (int64_t r = 0; r < l->f.index.ranks; r++) {
    int64_t n = 0;
    while (t + n < l->takes && l->take[t + n].rank == r) n++;
    l->from = l->take + t;
    l->from_n = n;
    if (dealt_to (l, l->kind, r) == l->s->mesh->rank) {
      if (file_stream (&l->f, l->kind, (int) r, take_stretch, l, e)) return -1;
    } else
      for (int64_t i = 0; i < n; i++) if (take_directly (l, &l->take[t + i], e)) return -1;
    t += n;
  }
  for (int i = 0; i < l->pieces; i++)
    if (l->windowed[i] && read_windows (l, &l->piece[i], e)) return -1;
  return 0;
}

static int read_all (struct loader *l, struct err *e)
{
  for (l->kind = 0; l->kind < l->kinds; l->kind++) if (read_kind (l, e)) return -1;
  return 0;
}

static int load_steps (struct loader *l, const char *path, struct err *e)
{
  if (share_head (l, path, e) || ckpt_agree (l->world, plan (l, e), e)) return -1;
  return ckpt_agree (l->world, read_all (l, e), e);
}

int ckpt_load (struct ckpt_state *s, const char *path, bool weights_only, struct err *e)
{
  struct loader l = { .s = s, .world = s->mesh->world, .kinds = weights_only ? 1 : CKPT_KINDS, .f = { .fd = -1 } };
  struct err local = { 0 };
  index_of_arch (&l.mine, &s->conf->arch);
  l.map = xalloc ((size_t) l.mine.tensors * sizeof *l.map, "ckpt");
  l.buf = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
  h5_begin ();
  int rc = load_steps (&l, path, e ? e : &local);
  if (!rc) s->step = l.f.head.step, s->tokens = l.f.head.tokens, s->updates = l.f.head.updates;
  file_close (&l.f);
  h5_end ();
  xfree (l.map);
  xfree (l.buf);
  xfree (l.piece);
  xfree (l.windowed);
  xfree (l.take);
  index_free (&l.mine);
  return rc;
}
