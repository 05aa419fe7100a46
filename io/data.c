#include "config.h"
#include "data.h"
#include "tokens.h"
#include "rng.h"   /* integers only: rng_permute */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURNS = 65536, MAX_PARTS = 4096 };

struct part {
  struct tokens t;
  double weight;         /* as asked; 0: by size */
  int64_t first, n;      /* windows in use */
  int64_t share;         /* turns of a period */
};

struct data {
  struct part *part;
  int parts;
  int64_t period;        /* of the table of turns */
  uint16_t *turn;        /* [period] whose turn it is */
  uint32_t *nth;         /* [period] which of its turns in this period */
  int64_t vocab, seq;
  int32_t *row;          /* [seq + 1] scratch of data_batch */
  uint8_t *row_mask;     /* [seq + 1] */
  struct data_info info;
};

/* --- the blend --- */

/* "0.7:a.h5" into weight and path; a piece whose front is no number is all path. */
static int piece (struct part *p, char *text, const char **path, struct err *e)
{
  char *end, *colon = strchr (text, ':');
  p->weight = 0;
  *path = text;
  if (!colon || (strtod (text, &end), end != colon)) return 0;
  p->weight = strtod (text, NULL);
  *path = colon + 1;
  if (!(p->weight > 0 && p->weight < 1e30)) return user_err (e, "data: the weight of %s must be a number above 0", *path);
  return 0;
}

static int open_piece (struct data *d, char *text, const char *format, struct err *e)
{
  struct part *p = &d->part[d->parts];
  const char *path;
  if (piece (p, text, &path, e)) return -1;
  if (!*path) return user_err (e, "data: a file has no name in the list of files");
  if (tokens_open (&p->t, path, format, d->vocab, e)) return -1;
  d->parts++;
  return 0;
}

/* A file of just that name wins over a blend: names may hold commas. */
static int open_pieces (struct data *d, const char *spec, const char *format, struct err *e)
{
  bool one = !access (spec, F_OK);
  int rc = 0, n = 1;
  for (const char *s = spec; *s && !one; s++) n += *s == ',';
  if (n > MAX_PARTS) return user_err (e, "data: %d files are more than a blend can have (%d)", n, MAX_PARTS);
  d->part = xalloc (n * sizeof *d->part, "data");
  char *text = xstrdup (spec, "data"), *rest = text;
  while (!rc && rest) {
    char *item = one ? rest : strsep (&rest, ",");
    if (one) rest = NULL;
    rc = open_piece (d, item, format, e);
  }
  xfree (text);
  return rc;
}

static int cut_windows (struct data *d, struct part *p, double lo, double hi, struct err *e)
{
  if (p->t.count < d->seq + 1)
    return user_err (e, "%s: its %lld tokens are fewer than one sample of %lld + 1", p->t.path, (long long) p->t.count,
                     (long long) d->seq);
  int64_t w = (p->t.count - 1) / d->seq, end = hi >= 1 ? w : (int64_t) (hi * (double) w);
  p->first = (int64_t) (lo * (double) w);
  p->n = end - p->first;
  if (p->n <= 0)
    return user_err (e, "%s: the part from %g to %g of its %lld samples of %lld tokens holds not one", p->t.path, lo, hi,
                     (long long) w, (long long) d->seq);
  return 0;
}

static int same_tokenizer (struct data *d, const struct tokens *t, struct err *e)
{
  if (!t->tokenizer[0]) return 0;
  if (d->info.tokenizer[0] && strcmp (d->info.tokenizer, t->tokenizer))
    return user_err (e, "%s was made with tokenizer %s, but an earlier file of the blend with %s", t->path, t->tokenizer,
                     d->info.tokenizer);
  memcpy (d->info.tokenizer, t->tokenizer, sizeof t->tokenizer);
  return 0;
}

static int look_at_parts (struct data *d, double lo, double hi, struct err *e)
{
  struct data_info *info = &d->info;
  info->files = d->parts;
  info->eod = d->part[0].t.eod;
  info->documents = true;
  int weighted = 0;
  for (int i = 0; i < d->parts; i++) {
    struct part *p = &d->part[i];
    if (cut_windows (d, p, lo, hi, e) || same_tokenizer (d, &p->t, e)) return -1;
    info->samples += p->n;
    info->tokens += p->t.count;
    info->vocab = MAX (info->vocab, p->t.vocab);
    info->documents &= tokens_has_documents (&p->t);
    weighted += p->weight > 0;
  }
  if (weighted && weighted < d->parts)
    return user_err (e, "data: either all files of a blend have a weight or none (%d of %d have)", weighted, d->parts);
  for (int i = 0; !weighted && i < d->parts; i++) d->part[i].weight = (double) d->part[i].n;
  return 0;
}

/* Give or take one turn where the share is farthest from what was asked. */
static void adjust (struct data *d, double sum, int by)
{
  int best = -1;
  double most = 0;
  for (int i = 0; i < d->parts; i++) {
    double miss = by * (d->part[i].weight / sum * TURNS - (double) d->part[i].share);
    if (d->part[i].share + by >= 1 && (best < 0 || miss > most)) best = i, most = miss;
  }
  d->part[best].share += by;
}

static int64_t gcd (int64_t a, int64_t b) { return b ? gcd (b, a % b) : a; }

static void make_shares (struct data *d)
{
  double sum = 0;
  int64_t left = TURNS, divisor = 0;
  for (int i = 0; i < d->parts; i++) sum += d->part[i].weight;
  for (int i = 0; i < d->parts; i++) {
    int64_t share = (int64_t) (d->part[i].weight / sum * TURNS);
    left -= d->part[i].share = MAX (share, 1);
  }
  for (; left; left += left > 0 ? -1 : 1) adjust (d, sum, left > 0 ? 1 : -1);
  for (int i = 0; i < d->parts; i++) divisor = gcd (d->part[i].share, divisor);
  for (int i = 0; i < d->parts; i++) d->part[i].share /= divisor;
  d->period = TURNS / divisor;
}

static void make_turns (struct data *d)
{
  int64_t *had = xalloc (d->parts * sizeof *had, "data");
  d->turn = xalloc (d->period * sizeof *d->turn, "data");
  d->nth = xalloc (d->period * sizeof *d->nth, "data");
  for (int64_t p = 0; p < d->period; p++) {
    int best = 0;
    int64_t most = INT64_MIN;
    for (int i = 0; i < d->parts; i++) {
      int64_t deficit = d->part[i].share * (p + 1) - d->period * had[i];
      if (deficit > most) best = i, most = deficit;
    }
    d->turn[p] = (uint16_t) best;
    d->nth[p] = (uint32_t) had[best]++;
  }
  xfree (had);
}

int data_open (struct data **out, const char *spec, const char *format, int64_t vocab, int64_t seq_len, double lo, double hi,
               struct err *e)
{
  assert_ (vocab > 0 && vocab <= INT32_MAX && seq_len > 0);
  *out = NULL;
  if (!(lo >= 0 && lo < hi && hi <= 1))
    return user_err (e, "data: the part from %g to %g of a file is empty or outside of it", lo, hi);
  if (!spec || !*spec) return user_err (e, "data: no token file is named");
  struct data *d = xalloc (sizeof *d, "data");
  d->vocab = vocab;
  d->seq = seq_len;
  if (open_pieces (d, spec, format, e) || look_at_parts (d, lo, hi, e)) {
    data_close (d);
    return -1;
  }
  make_shares (d);
  make_turns (d);
  d->row = xalloc ((seq_len + 1) * sizeof *d->row, "data");
  d->row_mask = xalloc (seq_len + 1, "data");
  *out = d;
  return 0;
}

void data_close (struct data *d)
{
  if (!d) return;
  for (int i = 0; i < d->parts; i++) tokens_close (&d->part[i].t);
  xfree (d->part);
  xfree (d->turn);
  xfree (d->nth);
  xfree (d->row);
  xfree (d->row_mask);
  xfree (d);
}

const struct data_info *data_info (const struct data *d) { return &d->info; }

char *data_text (const struct data *d)
{
  char *all = xprintf ("%s", "");
  for (int i = 0; i < d->parts; i++) {
    char *line = tokens_text (&d->part[i].t), *longer = xprintf ("%s%s\n", all, line);
    xfree (line);
    xfree (all);
    all = longer;
  }
  return all;
}

/* --- samples --- */

/* How many of the first J samples are of file I. */
static int64_t samples_of (const struct data *d, int i, int64_t j)
{
  int64_t p = j % d->period, before = 0;
  for (int64_t q = 0; q < p; q++) before += d->turn[q] == i;
  return j / d->period * d->part[i].share + before;
}

double data_epochs (const struct data *d, int64_t samples)
{
  double most = 0;
  for (int i = 0; i < d->parts; i++) {
    double passes = (double) samples_of (d, i, samples) / (double) d->part[i].n;
    most = MAX (most, passes);
  }
  return most;
}

/* The file of sample J and its first token there. */
static const struct part *locate (const struct data *d, uint64_t seed, int64_t j, int64_t *token)
{
  int64_t p = j % d->period;
  int i = d->turn[p];
  const struct part *part = &d->part[i];
  uint64_t n = (uint64_t) part->n, k = (uint64_t) (j / d->period * part->share + d->nth[p]);
  seed ^= (uint64_t) i * 0x9e3779b97f4a7c15u;
  *token = (part->first + (int64_t) rng_permute (seed, k / n, k % n, n)) * d->seq;
  return part;
}

static int read_at (const struct data *d, const struct part *p, int64_t token, int32_t *tokens, uint8_t *mask, struct err *e)
{
  int64_t n = d->seq + 1;
  for (int64_t i = 0; mask && i < n; i++) mask[i] = !p->t.mask || p->t.mask[token + i];
  return tokens_read (&p->t, token, n, d->vocab, tokens, e);
}

int data_sample (struct data *d, uint64_t seed, int64_t j, int32_t *tokens, uint8_t *mask, struct err *e)
{
  int64_t token;
  assert_ (j >= 0);
  const struct part *p = locate (d, seed, j, &token);
  return read_at (d, p, token, tokens, mask, e);
}

/* doc and pos of one sequence whose ids are ROW and whose first token is token AT of the file. */
static void bounds (const struct tokens *t, int64_t at, const int32_t *row, int64_t n, bool documents, int32_t *doc, int32_t *pos)
{
  bool by_eod = documents && t->eod >= 0;
  int64_t next = documents && !by_eod ? tokens_next_document (t, at) : INT64_MAX, start = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i && by_eod && row[i - 1] == t->eod) start = i;
    if (at + i == next) {
      start = i;
      next = tokens_next_document (t, at + i);
    }
    if (doc) doc[i] = (int32_t) start;
    if (pos) pos[i] = (int32_t) (i - start);
  }
}

int64_t data_batch (struct data *d, uint64_t seed, int64_t first, int64_t mb, bool documents, int32_t *ids, int32_t *targets,
                    int32_t *doc, int32_t *pos, struct err *e)
{
  int64_t token, valid = 0;
  assert_ (first >= 0 && mb > 0);
  for (int64_t b = 0; b < mb; b++) {
    const struct part *p = locate (d, seed, first + b, &token);
    tokens_want (&p->t, token, d->seq + 1);
  }
  for (int64_t b = 0; b < mb; b++) {
    int64_t at = b * d->seq;
    const struct part *p = locate (d, seed, first + b, &token);
    if (read_at (d, p, token, d->row, d->row_mask, e)) return -1;
    if (ids) memcpy (ids + at, d->row, d->seq * sizeof *ids);
    for (int64_t i = 0; i < d->seq; i++) {
      if (targets) targets[at + i] = d->row_mask[i + 1] ? d->row[i + 1] : -1;
      valid += d->row_mask[i + 1];
    }
    if (doc || pos) bounds (&p->t, token, d->row, d->seq, documents, doc ? doc + at : NULL, pos ? pos + at : NULL);
  }
  return valid;
}

int data_scan (struct data *d, struct err *e)
{
  for (int i = 0; i < d->parts; i++)
    if (tokens_scan (&d->part[i].t, d->vocab, e)) return -1;
  return 0;
}
