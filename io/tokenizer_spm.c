#include "config.h"
#include "spm.h"
#include "tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_SENTENCEPIECE
struct spm { struct tokenizer t; void *m; char *path; };

static int encode (struct tokenizer *t, const char *text, int64_t n, struct ids *out, struct err *e)
{
  struct spm *s = (struct spm *) t;
  char why[300] = "", *fixed;
  int32_t *ids = NULL;
  text = utf8_whole (text, &n, &fixed);
  int64_t k = spm_encode (s->m, text, n, &ids, why, sizeof why);
  xfree (fixed);
  if (k < 0) return user_err (e, "%s: %s", s->path, why);
  for (int64_t i = 0; i < k; i++) ids_put (out, ids[i]);
  free (ids);
  return 0;
}

static void decode (struct tokenizer *t, const int32_t *ids, int64_t count, char **text, int64_t *n)
{
  char *p = NULL;
  int64_t k = spm_decode (((struct spm *) t)->m, ids, count, &p);
  if (k > 0) {
    *text = xrealloc (*text, (size_t) (*n + k + 1), "text");
    memcpy (*text + *n, p, (size_t) k);
    *n += k;
  }
  free (p);
}

static void spm_close (struct tokenizer *t)
{
  struct spm *s = (struct spm *) t;
  spm_free (s->m);
  xfree (s->path);
  xfree (s);
}

static const struct tokenizer_ops ops = { encode, decode, spm_close };

struct tokenizer *spm_open (const char *path, const char *eod, struct err *e)
{
  char why[300] = "";
  void *m = spm_load (path, why, sizeof why);
  if (!m) return user_err (e, "%s is neither a tokenizer.json nor a SentencePiece model: %s", path, why), NULL;
  int end = eod ? spm_piece (m, eod) : spm_eos (m);
  if (end < 0) {
    spm_free (m);
    if (eod) user_err (e, "%s has no piece %.100s", path, eod);
    else user_err (e, "%s has no piece that ends a text: name one by --eod PIECE", path);
    return NULL;
  }
  struct spm *s = xalloc (sizeof *s, "sentencepiece");
  s->t = (struct tokenizer) { .ops = &ops, .vocab = spm_pieces (m), .eod = end };
  s->m = m;
  s->path = xstrdup (path, "sentencepiece");
  return &s->t;
}
#else
struct tokenizer *spm_open (const char *path, const char *eod, struct err *e)
{
  (void) eod;
  return user_err (e, "%s is no tokenizer.json, and SentencePiece models need a program that is built with it: install libsentencepiece-dev and configure anew", path), NULL;
}
#endif
