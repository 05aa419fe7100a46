#include "ckpt_int.h"
#include <string.h>

#define SEEN 10.0   /* seconds in which a file that rank 0 sees must be seen everywhere */

struct loader {
  const struct ckpt_state *s;
  const char *path;
  MPI_Comm world;
  struct index index;            /* the file's */
  struct index mine;             /* of this model: tensors only */
  int32_t *map;                  /* my tensor -> the file's */
  int kinds;
  hid_t file;                    /* serial driver, read-only: nothing here is collective inside HDF5 */
  hid_t *dset;                   /* [ranks] of the kind in work, opened when first needed; 0 = not */
  float *buf;                    /* a window of a piece */
  uint8_t *mark;                 /* [window]: set once */
};
#define WINDOW (CKPT_STAGE / 4)

/* --- rank 0 reads what all must know --- */

static int read_head (struct loader *l, struct ckpt_head *h, struct err *e)
{
  hid_t f = h5_open (l->path, false, 0, e);
  if (f < 0) return -1;
  int rc = h5_head (f, l->path, h, &l->index, e);
  H5Fclose (f);
  struct err why = { 0 };
  if (!rc && index_match (&l->index, &l->mine, l->map, &why)) rc = user_err (e, "cannot load %s: %s", l->path, why.msg);
  return rc;
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

static int share_head (struct loader *l, struct ckpt_head *h, struct err *e)
{
  struct index *x = &l->index;
  int bad = l->s->mesh->rank ? 0 : read_head (l, h, e);
  if (ckpt_agree (l->world, bad, e)) return -1;
  ckpt_bcast (l->world, &h->step, sizeof h->step);
  ckpt_bcast (l->world, &h->tokens, sizeof h->tokens);
  ckpt_bcast (l->world, &h->updates, sizeof h->updates);
  share_rows (l->world, &x->tensor, &x->tensors, sizeof *x->tensor);
  share_rows (l->world, &x->slice, &x->slices, sizeof *x->slice);
  share_rows (l->world, &x->rank, &x->ranks, sizeof *x->rank);
  ckpt_bcast (l->world, l->map, l->mine.tensors * (int64_t) sizeof *l->map);
  index_sort (x);
  return 0;
}

/* --- checksums: the datasets dealt out over the ranks --- */

static int verify_share (struct loader *l, struct err *e)
{
  const struct mesh *m = l->s->mesh;
  for (int k = 0; k < l->kinds; k++)
    for (int64_t r = 0; r < l->index.ranks; r++)
      if ((k * l->index.ranks + r) % m->size == m->rank && h5_sum (l->file, l->path, &l->index, k, r, l->buf, e)) return -1;
  return 0;
}

/* --- pieces --- */

static bool mark_rows (uint8_t *mark, const struct run *u)
{
  uint8_t seen = 0;
  for (int64_t r = 0; r < u->rows; r++) {
    uint8_t *m = mark + u->a + r * u->a_stride;
    for (int64_t i = 0; i < u->width; i++) seen |= m[i], m[i] = 1;
  }
  return !seen;
}

static hid_t dataset (struct loader *l, int kind, int rank)
{
  if (!l->dset[rank]) l->dset[rank] = h5_rank_dataset (l->file, kind, rank);
  return l->dset[rank];
}

static void close_datasets (struct loader *l)
{
  for (int64_t r = 0; r < l->index.ranks; r++) {
    if (l->dset[r] > 0) H5Dclose (l->dset[r]);
    l->dset[r] = 0;
  }
}

/* What slice T has of window W. Returns the elements set or -1. */
static int64_t read_slice (struct loader *l, int kind, const struct strip *w, const struct row_slice *t, struct err *e)
{
  struct run run[RUNS_MAX];
  struct strip from = strip_of_slice (t);
  int n = strips_meet (w, &from, run);
  int64_t sum = 0;
  for (int i = 0; i < n; i++) {
    const struct run *u = &run[i];
    if (!mark_rows (l->mark, u)) return world_err (e, "%s holds elements of tensor %s twice", l->path, l->index.tensor[t->tensor].name);
    hid_t d = dataset (l, kind, t->rank);
    if (d < 0 || h5_move (false, d, H5T_IEEE_F32LE, H5P_DEFAULT, t->offset + u->b, u->rows, u->width, u->b_stride, l->buf, w->count, u->a, u->a_stride))
      return world_err (e, "%s: /%s/rank%05d cannot be read (%s)", l->path, ckpt_group[kind], (int) t->rank, h5_why ());
    sum += u->rows * u->width;
  }
  return sum;
}

static int read_window (struct loader *l, int kind, int32_t tensor, const struct strip *w, struct err *e)
{
  const struct index *x = &l->index;
  int64_t set = 0;
  memset (l->mark, 0, (size_t) w->count);
  for (int64_t i = x->first[tensor]; i < x->first[tensor + 1]; i++) {
    int64_t n = read_slice (l, kind, w, &x->slice[x->order[i]], e);
    if (n < 0) return -1;
    set += n;
  }
  if (set == w->count) return 0;
  return world_err (e, "%s lacks %lld elements of tensor %s", l->path, (long long) (w->count - set), x->tensor[tensor].name);
}

static int read_piece (struct loader *l, int kind, const struct piece *p, struct err *e)
{
  const struct part *t = &p->slot->part;
  bool flat = param_ndim (p->slot->id) == 1;
  int32_t tensor = l->map[index_find (&l->s->conf->arch, p->slot->block, p->slot->id)];
  struct strip w = { flat ? t->row0 + t->col0 : t->row0, flat ? 0 : t->col0, flat ? 1 : t->cols, 0, 0 };
  for (int64_t at = p->lo; at < p->hi; at += w.count) {
    w.start = p->start + (at - p->lo);
    w.count = MIN (WINDOW, p->hi - at);
    if (read_window (l, kind, tensor, &w, e)) return -1;
    l->s->put (l->s->ctx, kind, p->unit, at, w.count, l->buf);
  }
  return 0;
}

static int read_pieces (struct loader *l, struct err *e)
{
  struct piece *piece;
  int rc = 0, n = units_pieces (l->s->units, &piece);
  for (int k = 0; k < l->kinds && !rc; k++) {
    for (int i = 0; i < n && !rc; i++) rc = read_piece (l, k, &piece[i], e);
    close_datasets (l);
  }
  xfree (piece);
  return rc;
}

static int load_steps (struct loader *l, struct ckpt_head *h, struct err *e)
{
  if (share_head (l, h, e)) return -1;
  l->dset = xalloc ((size_t) l->index.ranks * sizeof *l->dset, "ckpt");
  l->file = h5_open (l->path, false, SEEN, e);
  if (ckpt_agree (l->world, l->file < 0, e) || ckpt_agree (l->world, verify_share (l, e), e)) return -1;
  return ckpt_agree (l->world, read_pieces (l, e), e);
}

int ckpt_load (struct ckpt_state *s, const char *path, bool weights_only, struct err *e)
{
  struct loader l = { .s = s, .path = path, .world = s->mesh->world, .kinds = weights_only ? 1 : CKPT_KINDS, .file = -1 };
  struct ckpt_head h = { 0 };
  struct err local = { 0 };
  index_of_arch (&l.mine, &s->conf->arch);
  l.map = xalloc ((size_t) l.mine.tensors * sizeof *l.map, "ckpt");
  l.buf = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
  l.mark = xalloc ((size_t) WINDOW, "ckpt stage");
  h5_begin ();
  int rc = load_steps (&l, &h, e ? e : &local);
  if (!rc) s->step = h.step, s->tokens = h.tokens, s->updates = h.updates;
  ckpt_head_free (&h);
  if (l.file >= 0) H5Fclose (l.file);
  h5_end ();
  xfree (l.dset);
  xfree (l.map);
  xfree (l.buf);
  xfree (l.mark);
  index_free (&l.mine);
  index_free (&l.index);
  return rc;
}
