/* Drawing schedules, and the share of idle time. */
#include "config.h"
#include "sched.h"
#include <stdio.h>
#include <string.h>

enum { WIDE = 132 };   /* columns of a line; longer pictures go on below */

static const char letter[] = { [ACT_F] = 'F', [ACT_B] = 'B', [ACT_B_INPUT] = 'I', [ACT_B_WEIGHT] = 'W' };

static int gcd (int a, int b) { return b ? gcd (b, a % b) : a; }
static int digits (int n) { return snprintf (NULL, 0, "%d", n); }

double sched_bubble (const struct sched *s, int tf, int tb, int tw)
{
  int64_t span = sched_times (s, true, tf, tb, tw, NULL);
  int64_t work = (int64_t) s->mbs * s->chunks * (s->forward_only ? tf : (int64_t) tf + tb + tw);
  return span > 0 ? 1.0 - (double) work / (double) span : 0.0;
}

/* The cells of a row: `F0`, with chunks `F0a`; dashes while the action goes on, dots while the stage is idle. */
static void fill_row (const struct sched *s, int stage, const int *cost, const int64_t *start, int64_t span, int cell, char *row)
{
  memset (row, ' ', (size_t) (span * cell));
  for (int64_t t = 0; t < span; t++) row[t * cell] = '.';
  for (int i = 0; i < s->count[stage]; i++) {
    const struct action *a = &s->act[stage][i];
    if (a->kind >= LEN (letter)) continue;
    char text[32], chunk[2] = { s->chunks > 1 ? (char) ('a' + a->chunk % 26) : 0 };
    size_t n = (size_t) snprintf (text, sizeof text, "%c%d%s", letter[a->kind], a->mb, chunk);
    for (int64_t t = 0; t < cost[a->kind]; t++) {
      memcpy (row + (start[i] + t) * cell, text, n);
      memset (text, '-', n);
    }
  }
}

static void put_rows (char **row, int pp, int64_t span, int cell, FILE *f)
{
  int head = 7 + digits (pp - 1) + 1, fit = MAX (1, (WIDE - head) / cell);
  for (int64_t t = 0; t < span; t += fit) {
    int n = (int) MIN (fit, span - t) * cell;
    if (span > fit) fprintf (f, "%stime %lld\n", t ? "\n" : "", (long long) t);
    for (int i = 0; i < pp; i++) {
      int used = n;
      while (used && row[i][t * cell + used - 1] == ' ') used--;
      fprintf (f, "stage %*d  %.*s\n", head - 8, i, used, row[i] + t * cell);
    }
  }
}

void sched_draw (const struct sched *s, int tf, int tb, int tw, FILE *f)
{
  int unit = gcd (gcd (tf, tb), tw), cell = 2 + digits (s->mbs - 1) + (s->chunks > 1);
  if (unit > 1) tf /= unit, tb /= unit, tw /= unit;
  int cost[] = { [ACT_F] = tf, [ACT_B] = tb + tw, [ACT_B_INPUT] = tb, [ACT_B_WEIGHT] = tw };
  int64_t **start = xalloc ((size_t) s->pp * sizeof *start, "schedule");
  for (int i = 0; i < s->pp; i++) start[i] = xalloc ((size_t) s->count[i] * sizeof **start, "schedule");
  int64_t span = MAX (sched_times (s, true, tf, tb, tw, start), 0);
  char **row = xalloc ((size_t) s->pp * sizeof *row, "schedule");
  for (int i = 0; i < s->pp; i++) {
    row[i] = xalloc ((size_t) (span * cell + 1), "schedule");
    if (span) fill_row (s, i, cost, start[i], span, cell, row[i]);
  }
  put_rows (row, s->pp, span, cell, f);
  fprintf (f, "bubble %.1f %%\n", 100 * sched_bubble (s, tf, tb, tw));
  for (int i = 0; i < s->pp; i++) {
    xfree (row[i]);
    xfree (start[i]);
  }
  xfree (row);
  xfree (start);
}
