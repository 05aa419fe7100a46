/* pretrain report: the page around the curves: what the runs are, how they stand, what befell them, and what they left on the disk. */
#include "config.h"
#include "page.h"
#include "plan_page.h"
#include "report.h"
#include "share.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POINTS = 800, SKIPPED = 20 };   /* of a curve; of skipped steps in the list */

static void when (int64_t t, char out[static 32])
{
  time_t x = t;
  struct tm tm;
  out[0] = 0;
  if (t > 0 && localtime_r (&x, &tm)) strftime (out, 32, "%Y-%m-%d %H:%M:%S", &tm);
}

static void length (double s, char out[static 32])
{
  if (s < 120) snprintf (out, 32, "%.0f s", s);
  else if (s < 7200) snprintf (out, 32, "%.0f min", s / 60);
  else snprintf (out, 32, s < 172800 ? "%.1f h" : "%.1f days", s < 172800 ? s / 3600 : s / 86400);
}

/* ---- what befell it ---- */

static struct incident *add (struct incident **list, int *n)
{
  *list = xrealloc (*list, (size_t) (*n + 1) * sizeof **list, "report");
  struct incident *i = &(*list)[(*n)++];
  memset (i, 0, sizeof *i);
  i->mood = "";
  return i;
}

static void launched (const struct past *p, int k, struct incident **list, int *n)
{
  const struct past_launch *l = &p->launch[k];
  struct incident *i = add (list, n);
  char mesh[96], gap[32], more[96] = "";
  report_dims_text (l->dim, mesh);
  i->step = l->after;
  i->time = l->time;
  i->word = l->after ? "resumed" : k ? "started anew" : NULL;
  double idle = l->first ? (double) (l->time - p->step[l->first - 1].time) - p->step[l->first].v[PAST_SECONDS] : 0;
  if (idle > 1) length (idle, gap), snprintf (more, sizeof more, "; %s after the step before it", gap);
  snprintf (i->text, sizeof i->text, "%s on %d rank%s of %d node%s: %s%s", l->after ? "resumed" : "started", l->ranks, l->ranks == 1 ? "" : "s", l->nodes, l->nodes == 1 ? "" : "s", mesh, more);
}

static void skipped (const struct past *p, struct incident **list, int *n)
{
  int64_t all = 0;
  for (int64_t k = 0; k < p->steps; k++) {
    const struct past_step *s = &p->step[k];
    if ((!s->skipped && !s->back_from) || ++all > SKIPPED) continue;
    struct incident *i = add (list, n);
    *i = (struct incident) { .step = s->step, .time = s->time, .word = s->back_from ? "rolled back" : "skipped", .mood = "warm" };
    if (s->back_from) snprintf (i->text, sizeof i->text, "rolled back to step %" PRId64 ": step %" PRId64 " was a spike", s->step - 1, s->back_from);
    else snprintf (i->text, sizeof i->text, "step skipped: %s", s->spike ? "a spike of the loss or of the gradient's norm" : "the gradient was not finite");
  }
  if (all <= SKIPPED) return;
  struct incident *last = &(*list)[*n - 1];
  snprintf (last->text + strlen (last->text), sizeof last->text - strlen (last->text), "; %" PRId64 " more steps after it", all - SKIPPED);
}

static void ended (const struct past *p, struct incident **list, int *n)
{
  struct incident *i = add (list, n);
  bool runs = past_runs (p);
  i->step = runs && p->steps ? p->step[p->steps - 1].step : p->end.step;
  i->time = runs && p->steps ? p->step[p->steps - 1].time : p->end.time;
  i->mood = past_alive (p) == 1 ? "good" : !past_alive (p) ? "bad" : runs || p->end.code == 3 ? "warm" : p->end.code ? "bad" : "good";
  i->word = !past_alive (p) ? "killed" : runs || !p->end.code ? NULL : p->end.code == 3 ? "stopped" : p->end.code == 5 ? "diverged" : "failed";
  if (runs && past_alive (p) >= 0) snprintf (i->text, sizeof i->text, "%s", past_alive (p) ? "it runs" : "killed without a word: kill -9, no memory left, a lost node");
  else if (!p->end.code || runs) snprintf (i->text, sizeof i->text, "%s", p->end.reason);
  else snprintf (i->text, sizeof i->text, "ended with status %" PRId64 ", rank %" PRId64 " on %s during %s: %s", p->end.code, p->end.rank, p->end.host, p->end.phase, p->end.reason);
}

static int by_time (const void *a, const void *b)
{
  const struct incident *x = a, *y = b;
  return x->time != y->time ? (x->time > y->time) - (x->time < y->time) : (x->step > y->step) - (x->step < y->step);
}

int report_incidents (const struct past *p, struct incident **list)
{
  int n = 0;
  *list = NULL;
  for (int k = 0; k < p->launches; k++) launched (p, k, list, &n);
  skipped (p, list, &n);
  if (n) qsort (*list, (size_t) n, sizeof **list, by_time);
  if (p->end.there) ended (p, list, &n);
  struct incident *i;
  if (p->again) i = add (list, &n), i->mood = "warm", snprintf (i->text, sizeof i->text, "%" PRId64 " steps were done more than once: the later record of each stands here", p->again);
  if (p->torn) i = add (list, &n), i->mood = "warm", snprintf (i->text, sizeof i->text, "%" PRId64 " line%s of metrics.jsonl %s no record (torn when the run was killed, or still being written)", p->torn,
                                                             p->torn == 1 ? "" : "s", p->torn == 1 ? "is" : "are");
  if (p->why.msg[0]) i = add (list, &n), i->mood = "warm", snprintf (i->text, sizeof i->text, "the configuration is not known: %s", p->why.msg);
  return n;
}

static void incidents (const struct past *p, bool many, FILE *f)
{
  struct incident *list;
  int n = report_incidents (p, &list);
  char t[32], step[32];
  if (many) fputs ("<h3>", f), page_put (f, p->name), fputs ("</h3>", f);
  if (!n) fputs ("<p class='bare'>nothing is told</p>", f);
  else {
    fputs ("<div class='wide'><table class='incidents'>", f);
    page_heads (f, "#step|when|what");
    for (int i = 0; i < n; i++) {
      when (list[i].time, t);
      snprintf (step, sizeof step, list[i].time ? "%" PRId64 : "", list[i].step);
      fputs ("<tr>", f);
      page_cell (f, true, step);
      fprintf (f, "<td class='n'>%s</td><td class='%s'>", t, list[i].mood);
      page_put (f, list[i].text);
      fputs ("</td></tr>\n", f);
    }
    fputs ("</table></div>", f);
  }
  xfree (list);
}

/* ---- checkpoints ---- */

static double save_seconds (const struct past *p, int64_t step)
{
  for (int64_t i = 0; i < p->steps; i++)
    if (p->step[i].step == step + 1) return p->step[i].v[PAST_SAVE];   /* told with the next record */
  return NAN;
}

enum { CKPTS = 12 };

static void checkpoints (const struct past *p, bool many, FILE *f)
{
  char t[32], gb[24], s[24] = "", step[32];
  if (many) fputs ("<h3>", f), page_put (f, p->name), fputs ("</h3>", f);
  if (!p->ckpts) {
    fputs ("<p class='bare'>none</p>", f);
    return;
  }
  fputs ("<div class='wide'><table>", f);
  page_heads (f, "#step|file|#size|saved|#training stood still");
  if (p->ckpts > CKPTS) fprintf (f, "<tr><td></td><td colspan='4' class='sub'>%d older ones</td></tr>\n", p->ckpts - CKPTS);
  for (int i = MAX (0, p->ckpts - CKPTS); i < p->ckpts; i++) {
    const struct past_ckpt *k = &p->ckpt[i];
    double still = save_seconds (p, k->step);
    when (k->time, t);
    snprintf (step, sizeof step, "%" PRId64, k->step);
    if (isfinite (still)) page_seconds (still, s);
    fputs ("<tr>", f);
    page_cell (f, true, step);
    page_cell (f, false, k->name);
    page_cell (f, true, plan_gb ((double) k->bytes, gb));
    page_cell (f, false, t);
    page_cell (f, true, isfinite (still) ? s : "");
    fputs ("</tr>\n", f);
  }
  fputs ("</table></div>\n", f);
}

/* ---- the head ---- */

static double last_of (const struct past *p, enum past_figure f)
{
  for (int64_t i = p->steps; i-- > 0;)
    if (isfinite (p->step[i].v[f])) return p->step[i].v[f];
  return NAN;
}

static double least_of (const struct past *p, enum past_figure f)
{
  double x = NAN;
  for (int64_t i = 0; i < p->steps; i++)
    if (isfinite (p->step[i].v[f]) && !(p->step[i].v[f] >= x)) x = p->step[i].v[f];
  return x;
}

static const char *figure (double x, const char *form, char out[static 64])
{
  if (isfinite (x)) snprintf (out, 64, form, x);
  else strcpy (out, "\xe2\x80\x93");
  return out;
}

static const char *state_of (const struct past *p, const char **mood)
{
  static const char *const word[] = { "done", "failed", "a mistake", "stopped", "failed", "diverged" };
  bool runs = past_runs (p);
  if (past_alive (p) >= 0) return *mood = past_alive (p) ? "good" : "bad", past_alive (p) ? "running" : "killed";
  *mood = !p->end.there || runs || p->end.code == 3 ? "warm" : p->end.code ? "bad" : "good";
  return !p->end.there ? "not known" : runs ? "running, or killed" : p->end.code >= 0 && p->end.code < LEN (word) ? word[p->end.code] : "failed";
}

static void about (const struct past *p, FILE *f)
{
  char n[24], mesh[96];
  int dim[4], ranks = past_ranks (p, p->launches - 1);
  if (!p->why.msg[0]) {
    count_text (arch_params (&p->c.arch), n);
    if (strcmp (p->c.model, "(mapping)")) fputs ("model <b>", f), page_put (f, p->c.model), fputs ("</b>, ", f);
    fprintf (f, "<b>%s</b> parameters in %s, ", n, precision_name (&p->c));
    fprintf (f, "steps of %lld sequences of %lld tokens", (long long) p->c.train.global_batch, (long long) p->c.train.seq_len);
  }
  if (report_dims (p, dim)) {
    report_dims_text (dim, mesh);
    fprintf (f, "%son <b>%d</b> rank%s: %s", p->why.msg[0] ? "" : ", ", ranks, ranks == 1 ? "" : "s", mesh);
  }
}

static void tiles (const struct past *p, FILE *f)
{
  char t[64], u[64];
  const char *mood, *word = state_of (p, &mood);
  double rate = past_median (p, PAST_RATE, 0, p->steps), share = past_median (p, PAST_SHARE, 0, p->steps), mfu = past_median (p, PAST_MFU, 0, p->steps);
  int64_t last = p->steps ? p->step[p->steps - 1].step : 0;
  fputs ("<div class='tiles'>", f);
  page_tile (f, word, "state", mood);
  snprintf (t, sizeof t, p->why.msg[0] ? "%lld" : "%lld / %lld", (long long) last, (long long) p->c.train.steps);
  page_tile (f, t, "steps", "");
  page_tile (f, figure (last_of (p, PAST_LOSS), "%.4f", t), "training loss", "");
  if (isfinite (last_of (p, PAST_EVAL))) page_tile (f, figure (least_of (p, PAST_EVAL), "%.4f", t), "best validation", "");
  page_tile (f, isfinite (rate) ? page_grouped (rate, u) : "\xe2\x80\x93", "tokens/s (median)", "");
  if (isfinite (mfu)) page_tile (f, figure (100 * mfu, "%.1f %%", t), "MFU", "");
  if (isfinite (share)) page_tile (f, figure (100 * share, "%.1f %%", t), past_crowded (p) ? "waiting; ranks share cores" : "waiting for links", share > 0.3 && !past_crowded (p) ? "bad" : "");
  if (p->steps) page_tile (f, page_grouped ((double) p->step[p->steps - 1].tokens, u), "tokens seen", "");
  fputs ("</div>\n", f);
}

static const char *const hue[] = { "#1f6fb2", "#d35400", "#138d75", "#8e44ad", "#b7950b", "#c0392b", "#5d6d7e", "#e0559b" };   /* as report.js has them */

static void table_of_runs (const struct past *p, int n, FILE *f)
{
  char t[64], u[64], mesh[96];
  int dim[4];
  fputs ("<div class='wide'><table class='runs'>", f);
  page_heads (f, "run|state|#steps|#ranks|mesh|#training loss|#best validation|#tokens/s|#a rank|#waiting for links");
  for (int i = 0; i < n; i++) {
    const char *mood, *word = state_of (&p[i], &mood);
    int ranks = past_ranks (&p[i], p[i].launches - 1);
    double rate = past_median (&p[i], PAST_RATE, 0, p[i].steps), share = past_median (&p[i], PAST_SHARE, 0, p[i].steps);
    fprintf (f, "<tr><td><span class='swatch' style='background:%s'></span><b>", hue[i % LEN (hue)]);
    page_put (f, p[i].name);
    fprintf (f, "</b></td><td class='%s'>%s</td><td class='n'>%lld</td><td class='n'>%d</td>", mood, word, p[i].steps ? (long long) p[i].step[p[i].steps - 1].step : 0, ranks);
    page_cell (f, false, report_dims (&p[i], dim) ? (report_dims_text (dim, mesh), mesh) : "");
    page_cell (f, true, figure (last_of (&p[i], PAST_LOSS), "%.4f", t));
    page_cell (f, true, figure (least_of (&p[i], PAST_EVAL), "%.4f", t));
    page_cell (f, true, isfinite (rate) ? page_grouped (rate, u) : "");
    page_cell (f, true, isfinite (rate) && ranks ? page_grouped (rate / ranks, u) : "");
    page_cell (f, true, isfinite (share) ? figure (100 * share, "%.1f %%", t) : "");
    fputs ("</tr>\n", f);
  }
  fputs ("</table></div>\n", f);
}

static void head (const struct past *p, int n, FILE *f)
{
  char a[32], b[32], d[32];
  fputs ("<h1>", f);
  for (int i = 0; i < MIN (n, 4); i++) {
    if (i) fputs (i + 1 == n ? " and " : ", ", f);
    page_put (f, p[i].name);
  }
  if (n > 4) fprintf (f, " and %d more", n - 4);
  fputs ("</h1>\n", f);
  if (n > 1) {
    table_of_runs (p, n, f);
    return;
  }
  fputs ("<p>", f);
  about (p, f);
  if (p->steps) {
    when (p->step[0].time, a);
    when (p->step[p->steps - 1].time, b);
    length ((double) (p->step[p->steps - 1].time - p->step[0].time), d);
    fprintf (f, ". <span class='sub'>First step %s, last %s: %s</span>", a, b, d);
  }
  fputs ("</p>\n", f);
  tiles (p, f);
  if (!p->steps) fputs ("<p class='bare'>The run has no steps yet: there is nothing to draw.</p>\n", f);
}

/* ---- the page ---- */

/* A file of share/page into the page. 0 or -1. */
static int insert (const char *name, FILE *f, struct err *e)
{
  char path[PATH_MAX], buf[4096];
  FILE *in = share_find ("page", name, path, sizeof path) ? fopen (path, "r") : NULL;
  if (!in) return world_err (e, "share/page/%s is not found: TESSERA_SHARE names the folder share of this program", name);
  for (size_t n; (n = fread (buf, 1, sizeof buf, in)) > 0;) fwrite (buf, 1, n, f);
  fclose (in);
  return 0;
}

static void each (const char *title, void (*fn) (const struct past *p, bool many, FILE *f), const struct past *p, int n, FILE *f)
{
  fprintf (f, "<section><h2>%s</h2>\n", title);
  for (int i = 0; i < n; i++) fn (&p[i], n > 1, f);
  fputs ("</section>\n", f);
}

static bool has_parts (const struct past *p, int n)
{
  for (int i = 0; i < n; i++)
    if (isfinite (last_of (&p[i], PAST_FORWARD))) return true;
  return false;
}

static bool has_plan (const struct past *p, int n)
{
  for (int i = 0; i < n; i++)
    if (json_object_get (p[i].last, "plan")) return true;
  return false;
}

static int write_page (const struct past *p, int n, FILE *f, struct err *e)
{
  fputs ("<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'><link rel='icon' href='data:,'><title>", f);
  page_put (f, p->name);
  fprintf (f, "%s: report</title><style>%s\n", n > 1 ? " and others" : "", page_style);
  if (insert ("report.css", f, e)) return -1;
  fputs ("</style></head><body>\n", f);
  head (p, n, f);
  fputs ("<div class='bar' id='bar'></div><noscript><p>The curves are drawn by a script inside of this page: allow it.</p></noscript>\n<div class='charts' id='charts'></div>\n", f);
  if (has_parts (p, n)) fputs ("<section><h2>Where the time goes</h2><div class='charts' id='times'></div></section>\n", f);
  each ("The mesh and its links", report_mesh, p, n, f);
  report_memory (p, n, f);
  if (has_plan (p, n)) each ("Plan and measurement", report_plan, p, n, f);
  each ("Incidents", incidents, p, n, f);
  each ("Checkpoints", checkpoints, p, n, f);
  fputs ("<footer>Figures are those of metrics.jsonl; rates and shares are medians over steps, the first of each launch left out. Where a curve has more steps than points a band shows the least and the "
         "greatest of the steps behind a point. A byte counts once, at its sender.</footer>\n<script type='application/json' id='data'>", f);
  report_data (p, n, MAX (POINTS / n, 200), f);
  fputs ("</script>\n<script>", f);
  if (insert ("report.js", f, e)) return -1;
  fputs ("</script></body></html>\n", f);
  return 0;
}

/* Under another name first: who looks at the page while it is made again sees the old one. */
static int save_page (const struct past *p, int n, const char *path, struct err *e)
{
  char *tmp = xprintf ("%s.%d.tmp", path, (int) getpid ());
  FILE *f = fopen (tmp, "w");
  int bad = f ? write_page (p, n, f, e) : user_err (e, "cannot write %s: %s", path, strerror (errno));
  if (f) {
    bool broken = ferror (f);
    if ((fclose (f) || broken) && !bad) bad = world_err (e, "cannot write %s: %s", path, strerror (errno));
  }
  if (!bad && rename (tmp, path)) bad = world_err (e, "cannot write %s: %s", path, strerror (errno));
  if (bad && f) unlink (tmp);
  xfree (tmp);
  return bad;
}

static const char help[] =
  "usage: pretrain report RUN_DIR [RUN_DIR ...] [--output FILE.html]\n"
  "\n"
  "Draws a run, or several in the same pictures, as one page that needs nothing else: loss and validation, rate, memory, where the time of a\n"
  "step goes, the mesh with the bytes on its links, the plan beside what was measured, resumes, stops and failures, checkpoints. Without\n"
  "--output it becomes RUN_DIR/report.html of the first. A run that is still going can be drawn; nothing in its folder is changed.\n";

enum { RUNS = 32 };

int report_main (int argc, char **argv)
{
  const char *output = NULL, *dir[RUNS];
  int n = 0, bad = 0, opened = 0;
  struct err e = { 0 };
  for (int i = 1; i < argc && !bad; i++)
    if (!strcmp (argv[i], "--help") || !strcmp (argv[i], "-h")) return fputs (help, stdout), EXIT_DONE;
    else if (!strcmp (argv[i], "--output") && i + 1 < argc) output = argv[++i];
    else if (!strncmp (argv[i], "--output=", 9)) output = argv[i] + 9;
    else if (!strncmp (argv[i], "--", 2)) bad = user_err (&e, "report: `%.100s` is not understood: pretrain report RUN_DIR... [--output FILE.html]", argv[i]);
    else if (n == RUNS) bad = user_err (&e, "report: %d runs at most", RUNS);
    else dir[n++] = argv[i];
  if (!bad && !n) bad = user_err (&e, "report: name the folder of a run: pretrain report RUN_DIR... [--output FILE.html]");
  struct past *p = xalloc ((size_t) MAX (n, 1) * sizeof *p, "report");
  for (; !bad && opened < n; opened++) bad = past_open (&p[opened], dir[opened], &e);
  char *path = bad ? NULL : output ? xstrdup (output, "report") : xprintf ("%s/report.html", p->dir);
  bad = bad || save_page (p, n, path, &e);
  if (!bad) printf ("wrote %s\n", path);
  else say (SAY_ERROR, "%s", e.msg);
  xfree (path);
  for (int i = 0; i < opened; i++) past_close (&p[i]);
  xfree (p);
  return bad ? e.code ? e.code : EXIT_USER : EXIT_DONE;
}
