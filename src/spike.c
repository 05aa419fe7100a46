#include "config.h"
#include "spike.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranges of batches ---- */

static int by_first (const void *a, const void *b)
{
  const struct batch_range *x = a, *y = b;
  return x->first < y->first ? -1 : x->first > y->first;
}

/* In order, those that overlap or touch made one. */
static void put_in_order (struct batch_range *r, int *n)
{
  int k = 0;
  if (*n) qsort (r, (size_t) *n, sizeof *r, by_first);
  for (int i = 1; i < *n; i++) {
    if (r[i].first <= r[k].last + 1) r[k].last = MAX (r[k].last, r[i].last);
    else r[++k] = r[i];
  }
  *n = *n ? k + 1 : 0;
}

static void add_range (struct batch_range **r, int *n, int64_t first, int64_t last)
{
  *r = xrealloc (*r, (size_t) (*n + 1) * sizeof **r, "batches left out");
  (*r)[(*n)++] = (struct batch_range) { first, last };
}

int spike_ranges (const char *text, struct batch_range **list, int *n, struct err *e)
{
  *list = NULL;
  *n = 0;
  for (const char *s = text; *s;) {
    char *end;
    long long first = strtoll (s, &end, 10), last = first;
    bool bad = end == s;
    if (!bad && *end == '-') s = end + 1, last = strtoll (s, &end, 10), bad = end == s;
    while (*end == ' ') end++;
    if (bad || first < 1 || last < first || last > INT64_C (1) << 40 || (*end && *end != ',')) {
      xfree (*list);
      *list = NULL;
      *n = 0;
      return user_err (e, "data.skip expects global batches, from 1, such as 120-180,300, not `%.100s`", text);
    }
    add_range (list, n, first, last);
    s = *end ? end + 1 : end;
    while (*s == ' ') s++;
  }
  put_in_order (*list, n);
  return 0;
}

int64_t spike_batch (const struct spike *s, int64_t step)
{
  struct batch_range all[s->givens + s->owns + 1];
  int n = 0;
  for (int i = 0; i < s->givens; i++) all[n++] = s->given[i];
  for (int i = 0; i < s->owns; i++) all[n++] = s->own[i];
  put_in_order (all, &n);
  int64_t b = step;
  for (int i = 0; i < n && all[i].first <= b; i++) b += all[i].last - all[i].first + 1;
  return b;
}

void spike_leave_out (struct spike *s, int64_t first, int64_t last)
{
  add_range (&s->own, &s->owns, first, last);
  put_in_order (s->own, &s->owns);
}

/* ---- the window ---- */

int spike_open (struct spike *s, const struct conf *c, struct err *e)
{
  *s = (struct spike) { .c = c };
  if (spike_ranges (c->data.skip, &s->given, &s->givens, e)) return -1;
  s->loss = xalloc ((size_t) c->spike.window * sizeof *s->loss, "spikes");
  s->norm = xalloc ((size_t) c->spike.window * sizeof *s->norm, "spikes");
  s->hit = xalloc ((size_t) (c->spike.max + 1) * sizeof *s->hit, "spikes");
  return 0;
}

void spike_close (struct spike *s)
{
  xfree (s->loss);
  xfree (s->norm);
  xfree (s->hit);
  xfree (s->given);
  xfree (s->own);
  memset (s, 0, sizeof *s);
}

struct spread { double mean, dev; };

static struct spread spread_of (const double *x, int64_t n)
{
  double sum = 0, sq = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i];
  double mean = sum / (double) n;
  for (int64_t i = 0; i < n; i++) sq += (x[i] - mean) * (x[i] - mean);
  return (struct spread) { mean, fmax (sqrt (sq / (double) n), 1e-3 * fabs (mean)) };
}

static bool full (const struct spike *s) { return s->c->spike.action != SPIKE_NONE && s->n == s->c->spike.window; }

void spike_limits (const struct spike *s, double *loss, double *norm)
{
  *loss = *norm = 0;
  if (!full (s)) return;
  struct spread a = spread_of (s->loss, s->n), b = spread_of (s->norm, s->n);
  if (s->c->spike.watch != SPIKE_NORM) *loss = a.mean + s->c->spike.zscore * a.dev;
  if (s->c->spike.watch != SPIKE_LOSS) *norm = b.mean + s->c->spike.zscore * b.dev;
}

void spike_scores (const struct spike *s, double loss, double norm, double *z_loss, double *z_norm)
{
  struct spread a = spread_of (s->loss, s->n), b = spread_of (s->norm, s->n);
  *z_loss = (loss - a.mean) / a.dev;
  *z_norm = (norm - b.mean) / b.dev;
}

void spike_add (struct spike *s, double loss, double norm)
{
  if (s->c->spike.action == SPIKE_NONE) return;
  if (s->n == s->c->spike.window) {
    s->n--;
    memmove (s->loss, s->loss + 1, (size_t) s->n * sizeof *s->loss);
    memmove (s->norm, s->norm + 1, (size_t) s->n * sizeof *s->norm);
  }
  s->loss[s->n] = loss;
  s->norm[s->n++] = norm;
}

int spike_hit (struct spike *s, int64_t batch, struct err *e)
{
  int64_t max = s->c->spike.max;
  int k = 0;
  for (int i = 0; i < s->hits; i++)
    if (s->hit[i] > batch - s->c->spike.window) s->hit[k++] = s->hit[i];
  s->hits = k;
  if (k >= max) {
    user_err (e, "diverged: %lld spikes of the loss within %lld batches are more than spike.max %lld", (long long) k + 1, (long long) s->c->spike.window, (long long) max);
    return e->code = EXIT_DIVERGED, -1;
  }
  s->hit[s->hits++] = batch;
  return 0;
}

/* ---- in a checkpoint: "window N loss norm ... hits N batch ... skips N first last ...", numbers in full ---- */

char *spike_text (const struct spike *s)
{
  size_t room = 100 + (size_t) s->n * 64 + (size_t) (s->hits + 2 * s->owns) * 24, at = 0;
  if (!s->owns && (s->c->spike.action == SPIKE_NONE || (!s->n && !s->hits))) return NULL;
  char *t = xalloc (room, "spikes");
  at += (size_t) snprintf (t + at, room - at, "window %lld", (long long) s->n);
  for (int64_t i = 0; i < s->n; i++) at += (size_t) snprintf (t + at, room - at, " %a %a", s->loss[i], s->norm[i]);
  at += (size_t) snprintf (t + at, room - at, " hits %d", s->hits);
  for (int i = 0; i < s->hits; i++) at += (size_t) snprintf (t + at, room - at, " %lld", (long long) s->hit[i]);
  at += (size_t) snprintf (t + at, room - at, " skips %d", s->owns);
  for (int i = 0; i < s->owns; i++) at += (size_t) snprintf (t + at, room - at, " %lld %lld", (long long) s->own[i].first, (long long) s->own[i].last);
  return t;
}

/* " WORD N" at *T, which goes on behind it; -1: something else. */
static int64_t count_of (const char **t, const char *word)
{
  size_t n = strlen (word);
  char *end;
  while (**t == ' ') ++*t;
  if (strncmp (*t, word, n)) return -1;
  int64_t k = strtoll (*t + n, &end, 10);
  if (end == *t + n || k < 0 || k > 1 << 20) return -1;
  *t = end;
  return k;
}

static double number (const char **t, bool *bad)
{
  char *end;
  double x = strtod (*t, &end);
  *bad |= end == *t || !isfinite (x);
  *t = end;
  return x;
}

static int64_t whole (const char **t, bool *bad)
{
  char *end;
  int64_t x = strtoll (*t, &end, 10);
  *bad |= end == *t || x < 1;
  *t = end;
  return x;
}

static int take_rest (struct spike *s, const char *t)
{
  bool bad = false;
  int64_t hits = count_of (&t, "hits"), skips;
  s->hits = s->owns = 0;
  for (int64_t i = 0; i < hits; i++) {
    int64_t b = whole (&t, &bad);
    if (s->hits <= s->c->spike.max) s->hit[s->hits++] = b;
  }
  skips = count_of (&t, "skips");
  for (int64_t i = 0; i < skips && !bad; i++) {
    int64_t first = whole (&t, &bad), last = whole (&t, &bad);
    if (!bad && first <= last) add_range (&s->own, &s->owns, first, last);
  }
  put_in_order (s->own, &s->owns);
  return bad || hits < 0 || skips < 0 ? -1 : 0;
}

int spike_take (struct spike *s, const char *text, bool window_alone)
{
  bool bad = false;
  const char *t = text ? text : "window 0 hits 0 skips 0";
  int64_t n = count_of (&t, "window");
  s->n = 0;
  for (int64_t i = 0; i < n && !bad; i++) {
    double loss = number (&t, &bad), norm = number (&t, &bad);
    if (!bad) spike_add (s, loss, norm);
  }
  if (bad || n < 0) return -1;
  return window_alone ? 0 : take_rest (s, t);
}
