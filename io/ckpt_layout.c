#include "ckpt_int.h"
#include <stdlib.h>
#include <string.h>

void index_free (struct index *x)
{
  xfree (x->tensor);
  xfree (x->slice);
  xfree (x->rank);
  xfree (x->where);
  xfree (x->sum);
  xfree (x->sum_at);
  xfree (x->first);
  xfree (x->order);
  *x = (struct index) { 0 };
}

/* --- the tensors of a model --- */

static int tp_axis (enum pid id)
{
  static const int axis[] = { [CUT_NONE] = -1, [CUT_ROWS] = 0, [CUT_COLS] = 1, [CUT_KV] = 0, [CUT_VOCAB] = 0 };
  return axis[param_table[id].cut];
}

static void add_tensor (struct index *x, const struct arch *a, int64_t block, enum pid id)
{
  int64_t rows = 0, cols = 0;
  param_shape (a, id, &rows, &cols);
  struct row_tensor t = { .ndim = param_ndim (id), .shape = { rows, cols }, .tp_axis = tp_axis (id), .dtype = "fp32", .moments = "fp32" };
  if (t.ndim == 1) t.shape[0] = rows * cols, t.shape[1] = 0;
  char name[96];
  param_name (a, block, id, name);
  memcpy (t.name, name, strnlen (name, CKPT_NAME - 1));
  x->tensor[x->tensors++] = t;
}

void index_of_arch (struct index *x, const struct arch *a)
{
  enum pid ids[P_N];
  *x = (struct index) { 0 };
  x->tensor = xalloc ((size_t) (a->layers + 2) * P_N * sizeof *x->tensor, "ckpt");
  for (int64_t b = 0; b < a->layers + 2; b++) {
    int n = block_params (a, b, ids);
    for (int i = 0; i < n; i++) add_tensor (x, a, b, ids[i]);
  }
}

const char *index_tensor_at (const struct index *x, int64_t rank, int64_t at)
{
  for (int64_t i = 0; i < x->slices; i++) {
    const struct row_slice *t = &x->slice[i];
    if (t->rank == rank && t->offset <= at && at < t->offset + t->count) return x->tensor[t->tensor].name;
  }
  return "?";
}

int index_find (const struct arch *a, int64_t block, enum pid id)
{
  enum pid ids[P_N];
  int n_first = block_params (a, 0, ids), at = 0;
  if (block > 0) at = n_first + (int) (block - 1) * block_params (a, 1, ids);   /* all layers are alike; the head follows them */
  int n = block_params (a, block, ids);
  for (int i = 0; i < n; i++) if (ids[i] == id) return at + i;
  return -1;
}

/* --- is an index possible? --- */

static int64_t grid_rows (const struct row_tensor *t) { return t->shape[0]; }
static int64_t grid_cols (const struct row_tensor *t) { return t->ndim == 1 ? 1 : t->shape[1]; }
static int64_t elements (const struct row_tensor *t) { return grid_rows (t) * grid_cols (t); }

static bool tensor_ok (const struct row_tensor *t)
{
  int64_t n;
  return memchr (t->name, 0, CKPT_NAME) && t->name[0] && (t->ndim == 1 || t->ndim == 2) && t->shape[0] > 0
         && (t->ndim == 1 || t->shape[1] > 0) && !strncmp (t->dtype, "fp32", 8) && (!strncmp (t->moments, "fp32", 8) || !strncmp (t->moments, "bf16", 8)) && !__builtin_mul_overflow (grid_rows (t), grid_cols (t), &n);
}

static bool slice_ok (const struct index *x, const struct row_slice *s)
{
  if (s->tensor < 0 || s->tensor >= x->tensors || s->rank < 0 || s->rank >= x->ranks) return false;
  const struct row_tensor *t = &x->tensor[s->tensor];
  int64_t most = elements (t);
  return s->count > 0 && s->count <= most && s->start >= 0 && s->start <= most && s->offset >= 0
         && s->offset <= x->rank[s->rank].count - s->count && s->row0 >= 0 && s->row0 < grid_rows (t) && s->col0 >= 0 && s->cols > 0
         && s->cols <= grid_cols (t) && s->col0 <= grid_cols (t) - s->cols
         && (s->start + s->count - 1) / s->cols < grid_rows (t) - s->row0;
}

int index_check (const struct index *x, struct err *e)
{
  int64_t all = 0;
  for (int64_t i = 0; i < x->ranks; i++)
    if (x->rank[i].rank != i || x->rank[i].count < 0 || __builtin_add_overflow (all, x->rank[i].count, &all) || all > INT64_MAX / 16)
      return world_err (e, "row %lld of /index/ranks is impossible", (long long) i);
  for (int64_t i = 0; i < x->tensors; i++)
    if (!tensor_ok (&x->tensor[i]) || memcmp (x->tensor[i].moments, x->tensor[0].moments, 8)) return world_err (e, "row %lld of /index/tensors is impossible", (long long) i);
  for (int64_t i = 0; i < x->slices; i++)
    if (!slice_ok (x, &x->slice[i])) return world_err (e, "row %lld of /index/slices is impossible", (long long) i);

  int rc = 0;
  int64_t *sum = xalloc ((size_t) x->tensors * sizeof *sum, "ckpt");
  for (int64_t i = 0; i < x->slices; i++)
    if (__builtin_add_overflow (sum[x->slice[i].tensor], x->slice[i].count, &sum[x->slice[i].tensor])) sum[x->slice[i].tensor] = -1;
  for (int64_t t = 0; t < x->tensors && !rc; t++)
    if (sum[t] != elements (&x->tensor[t]))
      rc = world_err (e, "the slices of tensor %s hold %lld elements and it has %lld", x->tensor[t].name, (long long) sum[t],
                      (long long) elements (&x->tensor[t]));
  xfree (sum);
  return rc;
}

void index_sort (struct index *x)
{
  xfree (x->first);
  xfree (x->order);
  xfree (x->sum_at);
  x->sum_at = xalloc ((size_t) (x->ranks + 1) * sizeof (int64_t), "ckpt");
  for (int64_t r = 0; r < x->ranks; r++) x->sum_at[r + 1] = x->sum_at[r] + CKPT_KINDS * index_blocks (x, r);
  x->first = xalloc ((size_t) (x->tensors + 2) * sizeof (int64_t), "ckpt");
  x->order = xalloc ((size_t) (x->slices + 1) * sizeof (int64_t), "ckpt");
  int64_t *first = x->first + 1;   /* first[t + 1] runs from the beginning of t to its end, which leaves x->first right */
  for (int64_t i = 0; i < x->slices; i++) if (x->slice[i].tensor + 1 < x->tensors) first[x->slice[i].tensor + 1]++;
  for (int64_t t = 1; t < x->tensors; t++) first[t] += first[t - 1];
  for (int64_t i = 0; i < x->slices; i++) x->order[first[x->slice[i].tensor]++] = i;
}

const uint64_t *index_sums (const struct index *x, int kind, int64_t rank) { return x->sum ? x->sum + x->sum_at[rank] + kind * index_blocks (x, rank) : NULL; }

int64_t index_sums_all (const struct index *x)
{
  int64_t n = 0;
  for (int64_t r = 0; r < x->ranks; r++)
    if (__builtin_add_overflow (n, x->rank[r].count / x->block + 1, &n) || n > INT32_MAX) return -1;
  n = 0;
  for (int64_t r = 0; r < x->ranks; r++) n += CKPT_KINDS * index_blocks (x, r);
  return n;
}

bool index_sums_good (const struct index *x)
{
  const uint64_t *sum = x->sum;
  for (int64_t r = 0; r < x->ranks; r++)
    for (int k = 0; k < CKPT_KINDS; k++, sum += index_blocks (x, r))
      if (x->rank[r].sum[k] != hash_bytes (sum, (size_t) index_blocks (x, r) * sizeof *sum, 0)) return false;
  return true;
}

static int overlap_of (const struct index *x, int64_t t, struct err *e)
{
  struct run run[RUNS_MAX];
  for (int64_t i = x->first[t]; i < x->first[t + 1]; i++)
    for (int64_t k = x->first[t]; k < i; k++) {
      const struct row_slice *p = &x->slice[x->order[i]], *q = &x->slice[x->order[k]];
      struct strip a = strip_of_slice (p), b = strip_of_slice (q);
      if (strips_meet (&a, &b, run))
        return world_err (e, "elements of tensor %s are held by rank %d and by rank %d", x->tensor[t].name, (int) q->rank, (int) p->rank);
    }
  return 0;
}

int index_overlap (const struct index *x, struct err *e)
{
  for (int64_t t = 0; t < x->tensors; t++) if (overlap_of (x, t, e)) return -1;
  return 0;
}

uint64_t index_hash (const struct index *x)
{
  uint64_t h = hash_bytes (x->tensor, (size_t) x->tensors * sizeof *x->tensor, 0);
  h = hash_bytes (x->slice, (size_t) x->slices * sizeof *x->slice, h);
  return hash_bytes (x->rank, (size_t) x->ranks * sizeof *x->rank, h);
}

/* --- is it this model? --- */

struct name { const char *name; int64_t i; };
static int by_name (const void *a, const void *b) { return strcmp (((const struct name *) a)->name, ((const struct name *) b)->name); }

static struct name *sorted_names (const struct index *x)
{
  struct name *n = xalloc ((size_t) (x->tensors + 1) * sizeof *n, "ckpt");
  for (int64_t i = 0; i < x->tensors; i++) n[i] = (struct name) { x->tensor[i].name, i };
  qsort (n, (size_t) x->tensors, sizeof *n, by_name);
  return n;
}

/* "missing a, b, c and 12 more": the first few names, all counted. */
struct list { const char *head; char text[360]; size_t used; int n, shown; };

static void list_add (struct list *l, const char *what)
{
  l->n++;
  if (l->shown == 4 || l->used + strlen (what) + 4 > sizeof l->text) return;
  l->used += (size_t) snprintf (l->text + l->used, sizeof l->text - l->used, "%s%s", l->shown++ ? ", " : "", what);
}

static void list_text (const struct list *l, char *out, size_t size)
{
  size_t at = strlen (out);
  if (!l->n) return;
  at += (size_t) snprintf (out + at, size - at, "%s %s: %s", at ? ";" : "", l->head, l->text);
  if (l->n > l->shown && at < size) snprintf (out + at, size - at, " and %d more", l->n - l->shown);
}

static void shape_text (const struct row_tensor *t, char out[static 64])
{
  snprintf (out, 64, t->ndim == 1 ? "[%lld]" : "[%lld, %lld]", (long long) t->shape[0], (long long) t->shape[1]);
}

static bool same_shape (const struct row_tensor *a, const struct row_tensor *b)
{
  return a->ndim == b->ndim && a->shape[0] == b->shape[0] && (a->ndim == 1 || a->shape[1] == b->shape[1]);
}

static bool is_head (const struct row_tensor *t) { return !strcmp (t->name, param_table[P_HEAD].name); }

int index_match (const struct index *file, const struct index *mine, bool untie, int32_t *map, struct err *e)
{
  struct list missing = { .head = "not in the checkpoint" }, unexpected = { .head = "not in the model" }, other = { .head = "of another shape" };
  struct name *in_file = sorted_names (file), *in_mine = sorted_names (mine);
  for (int64_t i = 0; i < mine->tensors; i++) {
    const struct row_tensor *m = &mine->tensor[i];
    const struct name *f = bsearch (&(struct name) { m->name, 0 }, in_file, (size_t) file->tensors, sizeof *f, by_name);
    bool tied = !f && is_head (m);
    if (tied && untie) f = bsearch (&(struct name) { param_table[P_EMBED].name, 0 }, in_file, (size_t) file->tensors, sizeof *f, by_name);
    map[i] = f ? (int32_t) f->i : -1;
    if (!f) list_add (&missing, tied ? "lm_head.weight (tied there; load.weights_only gives the head the embedding)" : m->name);
    else if (!same_shape (m, &file->tensor[f->i])) {
      char a[64], b[64], text[CKPT_NAME + 160];
      shape_text (&file->tensor[f->i], a);
      shape_text (m, b);
      snprintf (text, sizeof text, "%s %s, the model has %s", m->name, a, b);
      list_add (&other, text);
    }
  }
  for (int64_t i = 0; i < file->tensors; i++)
    if (!bsearch (&(struct name) { file->tensor[i].name, 0 }, in_mine, (size_t) mine->tensors, sizeof *in_mine, by_name))
      list_add (&unexpected, file->tensor[i].name);
  xfree (in_file);
  xfree (in_mine);
  if (!missing.n && !unexpected.n && !other.n) return 0;
  char text[1300] = "";
  list_text (&missing, text, sizeof text);
  list_text (&unexpected, text, sizeof text);
  list_text (&other, text, sizeof text);
  return user_err (e, "it is of another model:%s", text);
}

/* --- where pieces meet --- */

struct rect { int64_t r0, r1, c0, c1; };   /* global rows and columns, ends excluded */

/* The partial first row, the whole rows and the partial last row of a strip. */
static int strip_rects (const struct strip *s, struct rect out[static 3])
{
  int n = 0;
  int64_t at = s->start, end = s->start + s->count, c = s->cols;
  while (at < end) {
    int64_t row = at / c, col = at % c, rows = col ? 0 : (end - at) / c;
    struct rect r = { s->row0 + row, s->row0 + row + MAX (rows, 1), s->col0 + col, s->col0 + (rows ? c : MIN (c, col + end - at)) };
    out[n++] = r;
    at += rows ? rows * c : r.c1 - r.c0;
  }
  return n;
}

static int64_t strip_at (const struct strip *s, int64_t row, int64_t col) { return (row - s->row0) * s->cols + (col - s->col0) - s->start; }

static struct run run_of (const struct strip *a, const struct strip *b, const struct rect *r)
{
  struct run u = { .a = strip_at (a, r->r0, r->c0), .b = strip_at (b, r->r0, r->c0), .width = r->c1 - r->c0, .rows = r->r1 - r->r0,
                   .a_stride = a->cols, .b_stride = b->cols };
  if (u.width == a->cols && u.width == b->cols) u.width *= u.rows, u.rows = 1;
  return u;
}

int strips_meet (const struct strip *a, const struct strip *b, struct run run[static RUNS_MAX])
{
  if (a->cols == b->cols && a->col0 == b->col0) {   /* one stretch of the same matrix */
    int64_t shift = (b->row0 - a->row0) * a->cols;  /* b's local index + shift = a's */
    int64_t lo = MAX (a->start, b->start + shift), hi = MIN (a->start + a->count, b->start + b->count + shift);
    if (lo >= hi) return 0;
    run[0] = (struct run) { lo - a->start, lo - shift - b->start, hi - lo, 1, a->cols, b->cols };
    return 1;
  }
  struct rect p[3], q[3];
  int n = 0, np = strip_rects (a, p), nq = strip_rects (b, q);
  for (int i = 0; i < np; i++)
    for (int k = 0; k < nq; k++) {
      struct rect r = { MAX (p[i].r0, q[k].r0), MIN (p[i].r1, q[k].r1), MAX (p[i].c0, q[k].c0), MIN (p[i].c1, q[k].c1) };
      if (r.r0 < r.r1 && r.c0 < r.c1) run[n++] = run_of (a, b, &r);
    }
  return n;
}

/* A row of the one, moved by some rows, would have to meet a row of the other: k stride + p.width > d and k stride < d + q.width. */
bool runs_collide (const struct run *p, const struct run *q)
{
  int64_t stride = p->rows > 1 ? p->a_stride : q->a_stride, d = q->a - p->a, most = d - p->width;
  int64_t k = most >= 0 ? most / stride + 1 : -((-most - 1) / stride);   /* the first that fulfils the one */
  k = MAX (k, 1 - q->rows);
  return k < p->rows && k * stride < d + q->width;
}
