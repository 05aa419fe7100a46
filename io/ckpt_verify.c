#include "ckpt_int.h"
#include <stdio.h>
#include <string.h>

int ckpt_head_read (const char *path, struct ckpt_head *h, struct err *e)
{
  struct index x = { 0 };
  *h = (struct ckpt_head) { 0 };
  h5_begin ();
  hid_t f = h5_open (path, false, e);
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
  *h = (struct ckpt_head) { 0 };
}

/* --- is all of it there and sound? --- */

struct check { const char *path; int kind, rank; int64_t bad; int64_t at; };

/* Bits, not isnan: this must hold whatever the compiler may assume of floats. */
static int count_bad (void *ctx, int64_t at, int64_t n, const float *p)
{
  struct check *c = ctx;
  for (int64_t i = 0; i < n; i++) {
    uint32_t u;
    memcpy (&u, p + i, 4);
    if ((u & 0x7f800000u) != 0x7f800000u) continue;
    if (!c->bad++) c->at = at + i;
  }
  return 0;
}

/* The tensor that element AT of a writer's datasets belongs to. */
static const char *tensor_at (const struct index *x, int rank, int64_t at)
{
  for (int64_t i = 0; i < x->slices; i++) {
    const struct row_slice *t = &x->slice[i];
    if (t->rank == rank && t->offset <= at && at < t->offset + t->count) return x->tensor[t->tensor].name;
  }
  return "?";
}

static int verify_data (struct ckpt_file *f, struct err *e)
{
  for (int k = 0; k < CKPT_KINDS; k++)
    for (int r = 0; r < f->index.ranks; r++) {
      struct check c = { f->path, k, r, 0, 0 };
      if (file_stream (f, k, r, count_bad, &c, e)) return -1;
      if (c.bad) return world_err (e, "%s: /%s/rank%05d has %lld values that are not finite, the first at element %lld, in %s", f->path, ckpt_group[k], r, (long long) c.bad,
                                   (long long) c.at, tensor_at (&f->index, r, c.at));
    }
  return 0;
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
  printf ("%s is good: step %lld, %s tokens, written by %d ranks (%s)\n", path, (long long) h.step, tokens, h.ranks, h.mesh ? h.mesh : "?");
  ckpt_head_free (&h);
  return EXIT_DONE;
}

int verify_main (int argc, char **argv)
{
  static const char usage[] = "usage: pretrain verify CHECKPOINT...\n"
                              "  Checks format, index, sizes and all checksums. Exit code: 0 good, 2 no checkpoint of this program, 4 damaged.\n";
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
  return code;
}
