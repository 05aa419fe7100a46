#include "ckpt_int.h"
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
  *h = (struct ckpt_head) { 0 };
}

static int all_sums (hid_t f, const char *path, const struct index *x, struct err *e)
{
  int rc = 0;
  void *buf = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
  for (int k = 0; k < CKPT_KINDS && !rc; k++)
    for (int64_t r = 0; r < x->ranks && !rc; r++) rc = h5_sum (f, path, x, k, r, buf, e);
  xfree (buf);
  return rc;
}

static int verify (const char *path, struct ckpt_head *h, struct index *x, struct err *e)
{
  hid_t f = h5_open (path, false, 0, e);
  if (f < 0) return -1;
  struct err why = { 0 };
  int rc = h5_head (f, path, h, x, e);
  if (!rc) {
    index_sort (x);
    if (index_overlap (x, &why)) rc = world_err (e, "%s: %s", path, why.msg);
  }
  if (!rc) rc = all_sums (f, path, x, e);
  H5Fclose (f);
  return rc;
}

int ckpt_verify (const char *path, struct err *e)
{
  struct ckpt_head h = { 0 };
  struct index x = { 0 };
  h5_begin ();
  int rc = verify (path, &h, &x, e);
  h5_end ();
  index_free (&x);
  ckpt_head_free (&h);
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
