#include "ckpt_int.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

int ckpt_head_read (const char *path, struct ckpt_head *h, struct err *e)
{
  struct index x = { 0 };
  *h = (struct ckpt_head) { 0 };
  h5_begin ();
  hid_t f = h5_open (path, false, 0, e);
  int rc = f < 0 ? -1 : h5_head (f, path, h, &x, e);
  if (f >= 0) H5Fclose (f);
  h5_end ();
  index_free (&x);
  if (rc) ckpt_head_free (h);
  return rc;
}

void ckpt_head_free (struct ckpt_head *h)
{
  xfree (h->config);
  xfree (h->mesh);
  xfree (h->program);
  xfree (h->spike);
  *h = (struct ckpt_head) { 0 };
}

/* --- is all of it there and sound? --- */

/* Threads take one dataset after the other. The first in the order of the file that is bad is told. */
struct check { struct ckpt_file *f; atomic_int next; int bad[TEAM_MAX]; struct err err[TEAM_MAX]; };

/* Bits, not isnan: this must hold whatever the compiler may assume of floats. */
static int64_t count_bad (const float *p, int64_t n, int64_t at, int64_t *first)
{
  int64_t bad = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t u;
    memcpy (&u, p + i, 4);
    if ((u & 0x7f800000u) != 0x7f800000u) continue;
    if (!bad++ && *first < 0) *first = at + i;
  }
  return bad;
}

static int verify_dataset (const struct ckpt_file *f, int kind, int rank, float *buf, struct sum *w, struct err *e)
{
  int64_t bad = 0, first = -1, block = f->index.block;
  for (int64_t b = 0; b < index_blocks (&f->index, rank); b++) {
    int64_t n = MIN (block, f->index.rank[rank].count - b * block);
    bool wide = file_type (f, kind) == DT_F32;
    char *to = wide ? (char *) buf : (char *) buf + 2 * n;
    if (file_plain (f, kind, rank, b * block, n, to, e)) return -1;
    sum_add (w, to, n * dtype_size (file_type (f, kind)));
    if (file_check (f, kind, rank, b, w, e)) return -1;
    if (!wide) h5_widen (buf, n);
    bad += count_bad (buf, n, b * block, &first);
  }
  if (file_whole (f, kind, rank, w, e)) return -1;
  if (!bad) return 0;
  return world_err (e, "%s: /%s/rank%05d has %lld values that are not finite, the first at element %lld, in %s", f->path, ckpt_group[kind], rank, (long long) bad,
                    (long long) first, index_tensor_at (&f->index, rank, first));
}

static int verify_some (void *ctx, int who)
{
  struct check *c = ctx;
  float *buf = xalloc ((size_t) c->f->index.block * 4, "verify");
  struct sum *w = sum_new ();
  int ranks = (int) c->f->index.ranks, rc = 0;
  for (int i; !rc && (i = c->next++) < ranks * CKPT_KINDS; c->bad[who] = i) rc = verify_dataset (c->f, i / ranks, i % ranks, buf, w, &c->err[who]);
  if (rc) c->next = ranks * CKPT_KINDS;
  sum_free (w);
  xfree (buf);
  return rc;
}

static int verify_data (struct ckpt_file *f, struct err *e)
{
  struct check *c = xalloc (sizeof *c, "verify");
  int first = -1;
  c->f = f;
  int bad = team_run (MIN (wait_cores (1), 4), verify_some, c);
  for (int i = 0; i < TEAM_MAX; i++)
    if (c->err[i].msg[0] && (first < 0 || c->bad[i] < c->bad[first])) first = i;
  if (first >= 0 && e) *e = c->err[first];
  xfree (c);
  return bad;
}

static int verify (struct ckpt_file *f, struct err *e)
{
  struct err why = { 0 };
  if (index_overlap (&f->index, &why)) return world_err (e, "%s: %s", f->path, why.msg);
  return verify_data (f, e);
}

int ckpt_verify (const char *path, struct err *e)
{
  struct ckpt_file *f = ckpt_open (path, e);
  int rc = f ? verify (f, e) : -1;
  ckpt_close (f);
  return rc;
}

static int verify_one (const char *path)
{
  struct ckpt_head h;
  struct err e = { 0 };
  char tokens[24];
  if (ckpt_verify (path, &e) || ckpt_head_read (path, &h, &e)) {
    say (SAY_ERROR, "%s", e.msg);
    return e.code ? e.code : EXIT_USER;
  }
  count_text (h.tokens, tokens);
  printf ("%s is good: step %lld, %s tokens, written by %d ranks (%s)%s\n", path, (long long) h.step, tokens, h.ranks, h.mesh ? h.mesh : "?",
          h.moments == DT_BF16 ? ", moments in bf16" : "");
  ckpt_head_free (&h);
  return EXIT_DONE;
}

/* --- two, tensor by tensor, whatever meshes wrote them --- */

enum { WINDOW = 1 << 18, LINES = 20 };   /* elements compared at once; lines of differences shown */
struct pair { struct ckpt_file *f[2]; float *buf[2]; int64_t tensors, differ, shown; };

static void tell (struct pair *p, const char *name, const char *what)
{
  p->differ++;
  if (p->shown++ < LINES) printf ("  %-56s %s\n", name, what);
}

static bool same_shape (const struct ckpt_tensor *a, const struct ckpt_tensor *b) { return a->ndim == b->ndim && a->rows == b->rows && a->cols == b->cols; }

/* Kind K of tensor I of the first and J of the second. -1 with the sentence: cannot be read. */
static int compare_kind (struct pair *p, int k, const struct ckpt_tensor *t, int64_t i, int64_t j, struct err *e)
{
  int64_t all = t->rows * t->cols, wrong = 0;
  double most = 0, sum = 0, of = 0;
  for (int64_t at = 0, n; at < all; at += n) {
    n = MIN (WINDOW, all - at);
    struct strip s = { 0, 0, t->cols, at, n };
    if (ckpt_read (p->f[0], k, i, &s, p->buf[0], e) || ckpt_read (p->f[1], k, j, &s, p->buf[1], e)) return -1;
    if (!memcmp (p->buf[0], p->buf[1], (size_t) n * 4)) continue;
    for (int64_t m = 0; m < n; m++) {
      double a = p->buf[0][m], b = p->buf[1][m], d = a > b ? a - b : b - a;
      wrong += memcmp (p->buf[0] + m, p->buf[1] + m, 4) != 0;
      most = MAX (most, d);
      sum += d * d, of += a * a;
    }
  }
  if (!wrong) return 0;
  char what[160];
  snprintf (what, sizeof what, "%s: %lld of %lld elements differ, by at most %.3g; relative L2 %.3g", ckpt_group[k], (long long) wrong, (long long) all, most,
            of > 0 ? sqrt (sum / of) : 0.0);
  tell (p, t->name, what);
  return 0;
}

static int compare_tensors (struct pair *p, struct err *e)
{
  const struct ckpt_tensor *a, *b;
  int64_t n = ckpt_tensors (p->f[0], &a), m = ckpt_tensors (p->f[1], &b);
  for (int64_t i = 0; i < n; i++) {
    int64_t j = ckpt_find (p->f[1], a[i].name);
    if (j < 0) tell (p, a[i].name, "only in the first");
    else if (!same_shape (&a[i], &b[j])) tell (p, a[i].name, "of another shape");
    else {
      p->tensors++;
      for (int k = 0; k < CKPT_KINDS; k++) if (compare_kind (p, k, &a[i], i, j, e)) return -1;
    }
  }
  for (int64_t j = 0; j < m; j++) if (ckpt_find (p->f[0], b[j].name) < 0) tell (p, b[j].name, "only in the second");
  return 0;
}

static void report (const struct pair *p)
{
  if (p->shown > LINES) printf ("  and %lld more\n", (long long) (p->shown - LINES));
  if (p->differ) printf ("the two differ: %lld differences over %lld tensors that both have\n", (long long) p->differ, (long long) p->tensors);
  else printf ("weights and moments of all %lld tensors are the same to the bit\n", (long long) p->tensors);
}

static int compare (char **path)
{
  struct pair p = { 0 };
  struct err e = { 0 };
  int bad = 0;
  for (int i = 0; i < 2; i++) {
    p.buf[i] = xalloc ((size_t) WINDOW * 4, "verify");
    p.f[i] = bad ? NULL : ckpt_open (path[i], &e);
    bad |= !p.f[i];
  }
  bool other = !bad && ckpt_file_head (p.f[0])->step != ckpt_file_head (p.f[1])->step;   /* two of one run */
  if (!bad && !other) bad = compare_tensors (&p, &e);
  if (bad) say (SAY_ERROR, "%s", e.msg);
  else if (other) printf ("they are of different steps, and not compared\n");
  else report (&p);
  for (int i = 0; i < 2; i++) {
    ckpt_close (p.f[i]);
    xfree (p.buf[i]);
  }
  return bad ? EXIT_WORLD : p.differ ? 1 : EXIT_DONE;
}

int verify_main (int argc, char **argv)
{
  static const char usage[] = "usage: pretrain verify CHECKPOINT...\n"
                              "  Checks format, index, sizes, all checksums, that each element is there once and that all values are finite. Two of the same step are\n"
                              "  also compared, tensor by tensor, whatever meshes wrote them. Exit code: 0 good (and the same), 1 good but different, 2 no checkpoint of this program, 4 damaged.\n";
  int code = EXIT_DONE;
  bool help = argc > 1 && !strcmp (argv[1], "--help");
  if (argc < 2 || help) {
    fputs (usage, help ? stdout : stderr);
    return help ? EXIT_DONE : EXIT_USER;
  }
  for (int i = 1; i < argc; i++) {
    int one = verify_one (argv[i]);
    code = MAX (code, one);
  }
  return code == EXIT_DONE && argc == 3 ? compare (argv + 1) : code;
}
