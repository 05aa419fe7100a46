/* One checkpoint open for reading: whatever stretch of whatever tensor, from the pieces that ranks wrote. Local. */
#include "ckpt_int.h"
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL   /* for this machine's vectors: half as fast again as the library */
#include <xxhash.h>

#define WINDOW (CKPT_STAGE / 4)   /* elements */

/* --- open and close --- */

static void list_tensors (struct ckpt_file *f)
{
  const struct index *x = &f->index;
  f->list = xalloc ((size_t) MAX (x->tensors, 1) * sizeof *f->list, "ckpt");
  for (int64_t i = 0; i < x->tensors; i++) {
    const struct row_tensor *t = &x->tensor[i];
    f->list[i] = (struct ckpt_tensor) { t->name, t->ndim, t->shape[0], t->ndim == 1 ? 1 : t->shape[1] };
  }
}

static void get_ready (struct ckpt_file *f)
{
  index_sort (&f->index);
  list_tensors (f);
  f->dset = xalloc ((size_t) MAX (f->index.ranks, 1) * sizeof *f->dset, "ckpt");
  f->mark = xalloc ((size_t) ceil_div (WINDOW, 64) * 8, "ckpt stage");
  f->buf = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
}

int file_open (struct ckpt_file *f, const char *path, struct err *e)
{
  *f = (struct ckpt_file) { .h5 = h5_open (path, false, 0, e) };
  snprintf (f->path, sizeof f->path, "%s", path);
  if (f->h5 < 0 || h5_head (f->h5, path, &f->head, &f->index, e)) return -1;
  get_ready (f);
  return 0;
}

int file_join (struct ckpt_file *f, const char *path, double wait, struct err *e)
{
  snprintf (f->path, sizeof f->path, "%s", path);
  f->h5 = h5_open (path, false, wait, e);
  get_ready (f);
  return f->h5 < 0 ? -1 : 0;
}

static void close_datasets (struct ckpt_file *f)
{
  for (int64_t r = 0; f->dset && r < f->index.ranks; r++) {
    if (f->dset[r] > 0) H5Dclose (f->dset[r]);
    f->dset[r] = 0;
  }
}

void file_close (struct ckpt_file *f)
{
  close_datasets (f);
  if (f->h5 >= 0) H5Fclose (f->h5);
  xfree (f->list);
  xfree (f->dset);
  xfree (f->mark);
  xfree (f->buf);
  index_free (&f->index);
  ckpt_head_free (&f->head);
}

/* --- stretches of a dataset --- */

static hid_t dataset (struct ckpt_file *f, int kind, int rank)
{
  if (kind != f->open) close_datasets (f);
  f->open = kind;
  if (!f->dset[rank]) f->dset[rank] = h5_rank_dataset (f->h5, kind, rank);
  return f->dset[rank];
}

static enum dtype type_of (const struct ckpt_file *f, int kind) { return kind == CKPT_MASTER ? DT_F32 : f->head.moments; }

static int cannot_read (const struct ckpt_file *f, int kind, int rank, struct err *e)
{
  return world_err (e, "%s: /%s/rank%05d cannot be read (%s)", f->path, ckpt_group[kind], rank, h5_why ());
}

/* As they lie in the file, n elements to DST. */
static int get_plain (struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, void *dst, struct err *e)
{
  hid_t d = dataset (f, kind, rank), t = h5_type (type_of (f, kind));
  int bad = d < 0 || h5_move (false, d, t, H5P_DEFAULT, at, 1, n, n, dst, n, 0, n);
  H5Tclose (t);
  return bad ? cannot_read (f, kind, rank, e) : 0;
}

int file_get (struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, float *dst, struct err *e)
{
  bool wide = type_of (f, kind) == DT_F32;
  if (get_plain (f, kind, rank, at, n, wide ? (char *) dst : (char *) dst + 2 * n, e)) return -1;
  if (!wide) h5_widen (dst, n);
  return 0;
}

int file_stream (struct ckpt_file *f, int kind, int rank, file_see *see, void *ctx, struct err *e)
{
  const struct row_rank *r = &f->index.rank[rank];
  bool wide = type_of (f, kind) == DT_F32;
  XXH3_state_t *h = XXH3_createState ();
  must (h, "out of host memory");
  XXH3_64bits_reset (h);
  int bad = 0;
  for (int64_t at = 0, n; at < r->count && !bad; at += n) {
    n = MIN (WINDOW, r->count - at);
    void *raw = wide ? (char *) f->buf : (char *) f->buf + 2 * n;
    if ((bad = get_plain (f, kind, rank, at, n, raw, e))) break;
    XXH3_64bits_update (h, raw, (size_t) (n * dtype_size (type_of (f, kind))));
    if (!wide) h5_widen (f->buf, n);
    if (see) bad = see (ctx, at, n, f->buf);
  }
  uint64_t sum = XXH3_64bits_digest (h);
  XXH3_freeState (h);
  if (bad) return -1;
  if (sum == r->sum[kind]) return 0;
  return world_err (e, "%s is damaged: /%s/rank%05d has checksum %016llx, kept was %016llx", f->path, ckpt_group[kind], rank, (unsigned long long) sum,
                    (unsigned long long) r->sum[kind]);
}

/* --- stretches of a tensor --- */

/* Bits [lo, lo + n); false if any was set. */
static bool mark (uint64_t *bits, int64_t lo, int64_t n)
{
  uint64_t seen = 0;
  for (int64_t at = lo, end = lo + n; at < end; ) {
    int64_t k = MIN (64 - at % 64, end - at);
    uint64_t b = (k == 64 ? ~UINT64_C (0) : (UINT64_C (1) << k) - 1) << at % 64;
    seen |= bits[at / 64] & b;
    bits[at / 64] |= b;
    at += k;
  }
  return !seen;
}

/* Rows that lie close together are read in one go, through f->buf, and picked from there. */
static int get_rows (struct ckpt_file *f, int kind, const struct row_slice *t, const struct run *u, float *dst, struct err *e)
{
  int64_t most = MAX (1, (WINDOW - u->width) / u->b_stride + 1);
  if (u->rows == 1 || u->width > WINDOW || u->b_stride > 8 * u->width) most = 1;
  for (int64_t r = 0, k; r < u->rows; r += k) {
    k = MIN (most, u->rows - r);
    int64_t from = t->offset + u->b + r * u->b_stride;
    float *to = dst + u->a + r * u->a_stride;
    if (k == 1 ? file_get (f, kind, t->rank, from, u->width, to, e) : file_get (f, kind, t->rank, from, (k - 1) * u->b_stride + u->width, f->buf, e)) return -1;
    for (int64_t i = 0; i < k && k > 1; i++) memcpy (to + i * u->a_stride, f->buf + i * u->b_stride, (size_t) u->width * 4);
  }
  return 0;
}

/* What slice T has of window W. Returns the elements set or -1. */
static int64_t get_slice (struct ckpt_file *f, int kind, const struct strip *w, const struct row_slice *t, float *dst, struct err *e)
{
  struct run run[RUNS_MAX];
  struct strip from = strip_of_slice (t);
  int n = strips_meet (w, &from, run);
  int64_t sum = 0;
  for (int i = 0; i < n; i++) {
    bool once = true;
    for (int64_t r = 0; r < run[i].rows; r++) once &= mark (f->mark, run[i].a + r * run[i].a_stride, run[i].width);
    if (!once) return world_err (e, "%s holds elements of tensor %s twice", f->path, f->index.tensor[t->tensor].name);
    if (get_rows (f, kind, t, &run[i], dst, e)) return -1;
    sum += run[i].rows * run[i].width;
  }
  return sum;
}

static int get_window (struct ckpt_file *f, int kind, int64_t tensor, const struct strip *w, float *dst, struct err *e)
{
  const struct index *x = &f->index;
  int64_t set = 0;
  memset (f->mark, 0, (size_t) ceil_div (w->count, 64) * 8);
  for (int64_t i = x->first[tensor]; i < x->first[tensor + 1]; i++) {
    int64_t n = get_slice (f, kind, w, &x->slice[x->order[i]], dst, e);
    if (n < 0) return -1;
    set += n;
  }
  if (set == w->count) return 0;
  return world_err (e, "%s lacks %lld elements of tensor %s", f->path, (long long) (w->count - set), x->tensor[tensor].name);
}

/* --- for others --- */

struct ckpt_file *ckpt_open (const char *path, struct err *e)
{
  struct ckpt_file *f = xalloc (sizeof *f, "ckpt");
  h5_begin ();
  if (!file_open (f, path, e)) return f;
  ckpt_close (f);
  return NULL;
}

void ckpt_close (struct ckpt_file *f)
{
  if (!f) return;
  file_close (f);
  h5_end ();
  xfree (f);
}

const struct ckpt_head *ckpt_file_head (const struct ckpt_file *f) { return &f->head; }

int64_t ckpt_tensors (const struct ckpt_file *f, const struct ckpt_tensor **list)
{
  *list = f->list;
  return f->index.tensors;
}

int64_t ckpt_find (const struct ckpt_file *f, const char *name)
{
  for (int64_t i = 0; i < f->index.tensors; i++)
    if (!strcmp (f->list[i].name, name)) return i;
  return -1;
}

int ckpt_read (struct ckpt_file *f, enum ckpt_kind k, int64_t tensor, const struct strip *s, float *dst, struct err *e)
{
  struct strip w = *s;
  for (int64_t at = 0; at < s->count; at += w.count) {
    w.start = s->start + at;
    w.count = MIN (WINDOW, s->count - at);
    if (get_window (f, k, tensor, &w, dst + at, e)) return -1;
  }
  return 0;
}

int ckpt_file_sum (struct ckpt_file *f, enum ckpt_kind k, int rank, struct err *e) { return file_stream (f, k, rank, NULL, NULL, e); }
