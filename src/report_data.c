/* The curves of a run, thinned out, as JSON. */
#include "config.h"
#include "report.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* TEXT as a string of JSON in which nothing can end a script of HTML. What is no printable ASCII goes through, but for control characters. */
static void put_text (FILE *f, const char *text)
{
  fputc ('"', f);
  for (const unsigned char *s = (const unsigned char *) text; *s; s++)
    if (*s < 32 || *s == '<' || *s == '>' || *s == '&' || *s == '"' || *s == '\\' || *s == 127) fprintf (f, "\\u%04x", *s);
    else fputc (*s, f);
  fputc ('"', f);
}

static void put_number (FILE *f, double x, int digits)
{
  if (isfinite (x)) fprintf (f, "%.*g", digits, x);
  else fputs ("null", f);
}

/* Point K of N stands for steps [*from, *to). */
static void point (const struct past *p, int k, int n, int64_t *from, int64_t *to)
{
  *from = p->steps * k / n;
  *to = p->steps * (k + 1) / n;
}

enum what { MEAN, LEAST, MOST };

static double value (const struct past *p, enum past_figure f, int64_t from, int64_t to, enum what w)
{
  double sum = 0, lo = INFINITY, hi = -INFINITY;
  int64_t n = 0;
  for (int64_t i = from; i < to; i++) {
    double x = p->step[i].v[f];
    if (!isfinite (x)) continue;
    sum += x;
    lo = MIN (lo, x);
    hi = MAX (hi, x);
    n++;
  }
  return !n ? NAN : w == MEAN ? sum / (double) n : w == LEAST ? lo : hi;
}

static bool known (const struct past *p, enum past_figure f)
{
  for (int64_t i = 0; i < p->steps; i++)
    if (isfinite (p->step[i].v[f])) return true;
  return false;
}

static void curves (const struct past *p, int n, enum what w, FILE *f)
{
  const char *comma = "";
  for (int k = 0; k < PAST_N; k++) {
    if (k == PAST_EVAL || !known (p, k) || (w != MEAN && (n == p->steps || k >= PAST_PARTS))) continue;
    fprintf (f, "%s\"%s\":[", comma, past_key[k].name);
    for (int i = 0; i < n; i++) {
      int64_t from, to;
      point (p, i, n, &from, &to);
      if (i) fputc (',', f);
      put_number (f, value (p, k, from, to, w), 6);
    }
    fputc (']', f);
    comma = ",";
  }
}

static void xs (const struct past *p, int n, FILE *f)
{
  static const char *const name[] = { "step", "tokens", "hours" };
  for (int k = 0; k < LEN (name); k++) {
    fprintf (f, "\"%s\":[", name[k]);
    for (int i = 0; i < n; i++) {
      int64_t from, to;
      point (p, i, n, &from, &to);
      const struct past_step *s = &p->step[to - 1];
      if (i) fputc (',', f);
      if (k < 2) fprintf (f, "%" PRId64, k ? s->tokens : s->step);
      else put_number (f, (double) (s->time - p->step[0].time) / 3600, 7);
    }
    fputs ("],", f);
  }
}

/* Validations, all unless they are very many. */
static void evals (const struct past *p, int points, FILE *f)
{
  int64_t n = 0, each;
  for (int64_t i = 0; i < p->steps; i++) n += isfinite (p->step[i].v[PAST_EVAL]);
  each = MAX (ceil_div (n, points), 1);
  for (int k = 0; k < 2; k++) {
    int64_t at = 0, put = 0;
    fprintf (f, k ? "],\"loss\":[" : "\"eval\":{\"step\":[");
    for (int64_t i = 0; i < p->steps; i++) {
      if (!isfinite (p->step[i].v[PAST_EVAL])) continue;
      if (++at % each && at < n) continue;
      if (put++) fputc (',', f);
      if (k) put_number (f, p->step[i].v[PAST_EVAL], 6);
      else fprintf (f, "%" PRId64, p->step[i].step);
    }
  }
  fputs ("]}", f);
}

static void marks (const struct past *p, FILE *f)
{
  struct incident *list;
  int n = report_incidents (p, &list), put = 0;
  fputs ("\"marks\":[", f);
  for (int i = 0; i < n; i++) {
    if (!list[i].word) continue;
    if (put++) fputc (',', f);
    fprintf (f, "{\"step\":%" PRId64 ",\"word\":", list[i].step);
    put_text (f, list[i].word);
    fputc ('}', f);
  }
  fputs ("]", f);
  xfree (list);
}

void report_data (const struct past *p, int n, int points, FILE *f)
{
  fputs ("{\"parts\":[", f);
  for (int k = PAST_PARTS; k < PAST_N; k++) fprintf (f, "%s[\"%s\",\"%s\"]", k > PAST_PARTS ? "," : "", past_key[k].name, past_key[k].says);
  fputs ("],\"runs\":[", f);
  for (int i = 0; i < n; i++) {
    int m = (int) MIN (p[i].steps, points);
    fputs (i ? ",\n{\"name\":" : "\n{\"name\":", f);
    put_text (f, p[i].name);
    fprintf (f, ",\"crowded\":%s,", past_crowded (&p[i]) ? "true" : "false");
    xs (&p[i], m, f);
    fputs ("\"v\":{", f);
    curves (&p[i], m, MEAN, f);
    fputs ("},\"lo\":{", f);
    curves (&p[i], m, LEAST, f);
    fputs ("},\"hi\":{", f);
    curves (&p[i], m, MOST, f);
    fputs ("},", f);
    evals (&p[i], points, f);
    fputc (',', f);
    marks (&p[i], f);
    fputc ('}', f);
  }
  fputs ("]}", f);
}
