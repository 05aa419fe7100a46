/* conf_print: the table as a YAML file, as --help and as a piece of the man page. */
#include "conf_int.h"
#include <stdlib.h>
#include <string.h>

/* Text as YAML: quoted wherever a reader could take it for something else. */
static void put_text (FILE *f, const char *s)
{
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  if (*s && *s != '-' && !s[strspn (s, plain)] && strcmp (s, "null")) { fputs (s, f); return; }
  fputc ('"', f);
  for (; *s; s++) {
    if (*s == '"' || *s == '\\') fprintf (f, "\\%c", *s);
    else if ((unsigned char) *s < 32 || *s == 127) fprintf (f, "\\x%02x", (unsigned char) *s);
    else fputc (*s, f);
  }
  fputc ('"', f);
}

/* Open the sections of NAME that LAST has not opened. Returns the depth of the key itself. */
static int put_sections (FILE *f, const char *name, const char *last)
{
  int depth = 0;
  const char *s = name;
  bool same = true;
  for (const char *dot; (dot = strchr (s, '.')); s = dot + 1, depth++) {
    same = same && last && !strncmp (name, last, dot - name + 1);
    if (!same) fprintf (f, "%*s%.*s:\n", 2 * depth, "", (int) (dot - s), s);
  }
  return depth;
}

/* Rows of C that differ from BASE (NULL: all). */
static void dump (const struct conf *c, const struct conf *base, FILE *f)
{
  char text[STR], other[STR];
  const char *last = NULL;
  for (int i = 0; i < conf_rows; i++) {
    const struct row *r = &conf_row[i];
    if (r->type == T_MODEL) continue;
    row_get (r, c, text);
    if (base) row_get (r, base, other);
    if (base && !strcmp (text, other)) continue;
    int depth = put_sections (f, r->name, last);
    fprintf (f, "%*s%s: ", 2 * depth, "", strrchr (r->name, '.') + 1);
    if (r->type == T_STR) put_text (f, text);
    else fputs (text, f);
    fputc ('\n', f);
    last = r->name;
  }
}

void conf_dump (const struct conf *c, FILE *f) { dump (c, NULL, f); }

/* Is C's model the one in share/models under its name? Then BASE gets it. */
static bool known_model (const struct conf *c, struct conf *base)
{
  struct err e = { 0 };
  char *argv[] = { "--model", (char *) c->model }, differs[600];
  conf_default (base);
  if (!*c->model || strchr (c->model, '(') || conf_load (base, NULL, 2, argv, &e)) return false;
  struct conf *a = xalloc (sizeof *a, "dump");
  *a = *base;
  a->arch = c->arch;
  bool same = !conf_differ (a, base, differs, sizeof differs);
  xfree (a);
  return same;
}

void conf_dump_said (const struct conf *c, FILE *f)
{
  struct conf *base = xalloc (sizeof *base, "dump");
  if (known_model (c, base)) fprintf (f, "model: %s\n", c->model);
  else conf_default (base);
  base->schedule = c->schedule;   /* what follows from the steps is filled in again when it is read, unless it was said */
  struct conf *plain = xalloc (sizeof *plain, "dump");
  conf_default (plain);
  if (conf_given (c, "schedule.warmup")) base->schedule.warmup = plain->schedule.warmup;
  if (conf_given (c, "schedule.min_lr")) base->schedule.min_lr = plain->schedule.min_lr;
  if (conf_given (c, "schedule.decay")) base->schedule.decay = plain->schedule.decay;
  base->schedule.type = plain->schedule.type;
  base->schedule.steps = plain->schedule.steps;
  dump (c, base, f);
  xfree (plain);
  xfree (base);
}

char *conf_text (const struct conf *c)
{
  char *text = NULL, *copy;
  size_t size;
  FILE *f = open_memstream (&text, &size);
  must (f, "out of host memory for the configuration's text");
  conf_dump (c, f);
  must (!fclose (f), "out of host memory for the configuration's text");
  copy = xstrdup (text, "configuration text");
  free (text);
  return copy;
}

/* Limit, default and unit: ", in [0,1) [0.9]", " [100 steps]". */
static void tail (const struct row *r, char out[static 256])
{
  bool plain = !strcmp (r->limit, ">0") || !strcmp (r->limit, ">=0") || !strcmp (r->limit, ">=-1");
  const char *def = row_optional (r) ? r->def : "";
  int at = snprintf (out, 256, "%s%s", *r->limit && !plain ? *r->limit == '>' ? ", " : ", in " : "", plain ? "" : r->limit);
  if (*def || *r->unit) snprintf (out + at, 256 - at, " [%s%s%s]", def, *def && *r->unit ? " " : "", r->unit);
}

void conf_help (FILE *f)
{
  char takes[256], head[400], end[256];
  for (int i = 0; i < conf_rows; i++) {
    const struct row *r = &conf_row[i];
    row_takes (r, takes);
    tail (r, end);
    snprintf (head, sizeof head, "--%s %s", r->name, takes);
    fprintf (f, strlen (head) > 36 ? "  %s\n%40s%s%s\n" : "  %-36s%2s%s%s\n", head, "", r->help, end);
  }
}

/* A text of the man page: no word may start a request or an escape. */
static void put_roff (FILE *f, const char *s)
{
  for (; *s; s++) fprintf (f, *s == '\\' ? "\\e" : *s == '-' ? "\\-" : "%c", *s);
}

/* "model.vocab_size vocab_size" as people type them: --model.vocab_size, --vocab-size. */
static void put_aliases (FILE *f, const char *s)
{
  if (*s) fputs (".\nAlso: ", f);
  while (*s) {
    size_t n = strcspn (s, " ");
    bool dots = memchr (s, '.', n);
    put_roff (f, "--");
    for (; n; n--, s++) put_roff (f, (char[2]) { *s == '_' && !dots ? '-' : *s });
    if (*s) fputs (", ", f), s++;
  }
}

/* What Megatron's flags and accelerate's keys become. */
static void man_foreign (FILE *f)
{
  fputs (".SH OPTIONS OF OTHER SYSTEMS\nMegatron's options and the keys of accelerate's files are understood; "
         "these have no option of the same meaning:\n", f);
  for (int i = 0; i < foreign_rows; i++) {
    const struct foreign *r = &foreign_table[i];
    fputs (".TP\n.B ", f);
    put_roff (f, r->key);
    fputs ("\n", f);
    if (r->target) fprintf (f, "sets %s:\n", r->target);
    for (const char *s = r->map; *s; s += *s == '|') {
      size_t n = strcspn (s, "="), end = strcspn (s, "|");
      char text[300], mark = s[n + 1];
      bool plain = end > n + 1 && mark != '!' && mark != '~';
      const char *does = end == n + 1 || mark == '~' ? ": no effect" : plain ? ": " : ": refused";
      snprintf (text, sizeof text, "%s%.*s%s%.*s", s == r->map ? "" : ", ", (int) n, s, does, plain ? (int) (end - n - 1) : 0, s + n + 1);
      put_roff (f, text);
      s += end;
    }
    fputs (".\n", f);
  }
}

void conf_man (FILE *f)
{
  char takes[256], end[256];
  fputs (".SH OPTIONS\n", f);
  for (int i = 0; i < conf_rows; i++) {
    const struct row *r = &conf_row[i];
    row_takes (r, takes);
    tail (r, end);
    fputs (".TP\n.B ", f);
    put_roff (f, "--");
    put_roff (f, r->name);
    fputs (" \\fI", f);
    put_roff (f, takes);
    fputs ("\\fR\n", f);
    put_roff (f, r->help);
    put_roff (f, end);
    put_aliases (f, r->aliases);
    fputs (".\n", f);
  }
  man_foreign (f);
}
