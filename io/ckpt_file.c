/* One checkpoint open for reading: whatever stretch of whatever tensor, from the pieces that ranks wrote. Local. */
#include "ckpt_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int get_ready (struct ckpt_file *f, double wait, struct err *e)
{
  index_sort (&f->index);
  list_tensors (f);
  f->mark = xalloc ((size_t) ceil_div (WINDOW, 64) * 8, "ckpt stage");
  f->buf = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
  f->fd = h5_plain (f->path, O_RDONLY, wait, e);
  return f->fd < 0 ? -1 : 0;
}

int file_open (struct ckpt_file *f, const char *path, struct err *e)
{
  *f = (struct ckpt_file) { .fd = -1 };
  snprintf (f->path, sizeof f->path, "%s", path);
  hid_t h = h5_open (path, false, 0, e);
  int rc = h < 0 ? -1 : h5_head (h, path, &f->head, &f->index, e);
  if (h >= 0) H5Fclose (h);
  return rc ? -1 : get_ready (f, 0, e);
}

int file_join (struct ckpt_file *f, const char *path, double wait, struct err *e)
{
  snprintf (f->path, sizeof f->path, "%s", path);
  return get_ready (f, wait, e);
}

void file_close (struct ckpt_file *f)
{
  if (f->fd >= 0) close (f->fd);
  xfree (f->list);
  xfree (f->mark);
  xfree (f->buf);
  index_free (&f->index);
  ckpt_head_free (&f->head);
}

/* --- stretches of a dataset --- */

enum dtype file_type (const struct ckpt_file *f, int kind) { return kind == CKPT_MASTER ? DT_F32 : f->head.moments; }

int file_plain (const struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, void *dst, struct err *e)
{
  int64_t size = dtype_size (file_type (f, kind)), from = f->index.where[rank * CKPT_KINDS + kind] + at * size;
  char *p = dst;
  for (int64_t left = n * size; left; ) {
    ssize_t k = pread (f->fd, p, (size_t) MIN (left, 1 << 30), from);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0)
      return world_err (e, "%s: /%s/rank%05d cannot be read: %s", f->path, ckpt_group[kind], rank, k ? strerror (errno) : "the file ends before it");
    p += k, from += k, left -= k;
  }
  return 0;
}

int file_get (const struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, float *dst, struct err *e)
{
  bool wide = file_type (f, kind) == DT_F32;
  if (file_plain (f, kind, rank, at, n, wide ? (char *) dst : (char *) dst + 2 * n, e)) return -1;
  if (!wide) h5_widen (dst, n);
  return 0;
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
