#include "config.h"
#include "import.h"
#include "hf_config.h"
#include <stdlib.h>
#include <string.h>

/* ---- notes and settings ---- */

void import_say (struct import *im, enum note_kind kind, const struct setting *t, const char *fmt, ...)
{
  char text[600];
  va_list ap;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  im->note = xrealloc (im->note, (im->notes + 1) * sizeof *im->note, "import");
  im->note[im->notes++] = (struct import_note) { kind, t->line, xstrdup (t->key, "import"), xstrdup (t->value, "import"), xstrdup (text, "import") };
}

/* Two settings of a source may set one option: the same value is no mistake, another is found by conf_load_from. */
void import_set (struct import *im, const struct setting *t, const char *key, const char *value)
{
  import_say (im, NOTE_SETS, t, "%s %s", key, value);
  settings_add (&im->set, key, value, t->line)->from = im->note[im->notes - 1].theirs;
}

bool import_rule (struct import *im, const struct setting *t, const struct rule *rules, int n)
{
  char ours[256];
  for (int i = 0; i < n; i++) {
    const struct rule *r = &rules[i];
    size_t m = strlen (r->key);
    if (!key_same (t->key, r->key, m) && !(r->key[m - 1] == '.' && !strncmp (t->key, r->key, m))) continue;
    if (!foreign_lookup (r->map, t->value, ours, sizeof ours)) import_say (im, NOTE_BAD, t, "%s", *r->why ? r->why : "this value is not understood");
    else if (*ours == '!') import_say (im, NOTE_BAD, t, "%s", ours + 1);
    else if (*ours == '~') import_say (im, NOTE_IDLE, t, "%s", ours + 1);
    else if (!*ours) import_say (im, NOTE_IDLE, t, "%s", *r->why ? r->why : "no meaning here");
    else import_set (im, t, r->target, ours);
    return true;
  }
  return false;
}

const char *import_value (const struct settings *s, const char *key, const struct setting **t)
{
  for (int i = 0; i < s->n; i++)
    if (key_same (s->at[i].key, key, strlen (key))) {
      if (t) *t = &s->at[i];
      return s->at[i].value;
    }
  return NULL;
}

void import_free (struct import *im)
{
  settings_free (&im->set);
  for (int i = 0; i < im->notes; i++) {
    xfree (im->note[i].theirs);
    xfree (im->note[i].value);
    xfree (im->note[i].ours);
  }
  xfree (im->note);
  *im = (struct import) { 0 };
}

/* In the order of the source; what was left out comes last. */
static int by_line (const void *a, const void *b)
{
  const struct import_note *x = *(const struct import_note *const *) a, *y = *(const struct import_note *const *) b;
  bool later_x = !strcmp (x->value, "(left out)"), later_y = !strcmp (y->value, "(left out)");
  if (later_x != later_y) return later_x - later_y;
  if (x->line != y->line) return x->line - y->line;
  return (x > y) - (x < y);
}

void import_print (const struct import *im, FILE *f)
{
  static const char mark[] = { [NOTE_SETS] = ' ', [NOTE_IDLE] = '.', [NOTE_BAD] = '!' };
  int wide = 20;
  char left[200], line[16];
  for (int i = 0; i < im->notes; i++)
    wide = MAX (wide, MIN (58, snprintf (left, sizeof left, "%s %.40s", im->note[i].theirs, im->note[i].value)));
  fprintf (f, "%s, setting by setting (. has no meaning here, ! cannot be had):\n", im->set.source);
  const struct import_note **sorted = xalloc ((im->notes + 1) * sizeof *sorted, "import");
  for (int i = 0; i < im->notes; i++) sorted[i] = &im->note[i];
  qsort (sorted, im->notes, sizeof *sorted, by_line);
  for (int i = 0; i < im->notes; i++) {
    const struct import_note *n = sorted[i];
    bool cut = strlen (n->value) > 40;
    snprintf (left, sizeof left, "%.120s %.40s%s", n->theirs, n->value, cut ? "..." : "");
    snprintf (line, sizeof line, n->line ? "%d" : "", n->line);
    fprintf (f, "%5s %c %-*s  %s\n", line, mark[n->kind], wide, left, n->ours);
  }
  xfree (sorted);
}

/* All that cannot be had, in one sentence. */
int import_refuse (const struct import *im, struct err *e)
{
  char names[900] = "";
  size_t at = 0;
  int bad = 0;
  for (int i = 0; i < im->notes; i++) {
    if (im->note[i].kind != NOTE_BAD) continue;
    if (at < sizeof names - 200)
      at += snprintf (names + at, sizeof names - at, "%s%.80s (%.80s)", bad ? ", " : "", im->note[i].theirs, im->note[i].ours);
    bad++;
  }
  if (!bad) return 0;
  return user_err (e, "%s: %d setting%s cannot be had here: %s", im->set.source, bad, bad > 1 ? "s" : "", names);
}

/* ---- Hugging Face ---- */

static void hf_note (void *ctx, const char *field, const char *value, const char *meaning)
{
  struct import *im = ctx;
  struct setting t = { (char *) field, (char *) value };
  import_say (im, !strncmp (meaning, "model.", 6) ? NOTE_SETS : NOTE_IDLE, &t, "%s", meaning);
}

int import_hf (struct import *im, const char *path, struct err *e)
{
  struct hf_config h;
  struct conf c;
  char text[STR];
  snprintf (im->set.source, sizeof im->set.source, "%.250s", path);
  if (hf_config_read (&h, path, hf_note, im, e)) return -1;
  conf_default (&c);
  c.arch = h.arch;
  for (int i = 0; i < conf_rows; i++) {
    if (strncmp (conf_row[i].name, "model.", 6)) continue;
    if (!strcmp (conf_row[i].name, "model.name")) snprintf (text, sizeof text, "%.200s", h.type);
    else row_get (&conf_row[i], &c, text);
    settings_add (&im->set, conf_row[i].name, text, 0);
  }
  im->model_told = true;
  return 0;
}

/* ---- accelerate ---- */

/* What the configuration's own table (conf_alias.c) has no row for. */
static const struct rule accelerate_rules[] = {
  { "num_processes", NULL, "*=", "as many GPUs as the plan is for" },
  { "num_machines", NULL, "*=", "the machine file says how many GPUs a node has" },
  { "deepspeed_config.", NULL, "*=!DeepSpeed's settings: sharding.strategy SHARD_OPT, SHARD_GRAD_OP or FULL_SHARD is zero_stage 1, 2 or 3", "" },
  { "megatron_lm_config.", NULL, "*=!give these as flags to --from-megatron", "" },
  { "gradient_accumulation_steps", NULL, "*=", "train.global_batch / (train.micro_batch x dp) is the number of micro-batches here" },
  { "gradient_clipping", "optimizer.clip", "*=$", "" },
};

static bool accelerate_note (struct import *im, const struct settings *s, const struct setting *t, const struct foreign *f)
{
  const char *target;
  char ours[256];
  struct err why = { 0 };
  if (foreign_meaning (s, t, f, &target, ours, &why)) import_say (im, NOTE_BAD, t, "%s", strstr (why.msg, ": ") ? strrchr (why.msg, ':') + 2 : why.msg);
  else if (*ours == '~') import_say (im, NOTE_IDLE, t, "%s", ours + 1);
  else if (!*ours) import_say (im, NOTE_IDLE, t, "no meaning here, or as it is anyway");
  else return import_set (im, t, target, ours), true;
  return false;
}

int import_accelerate (struct import *im, const char *path, struct err *e)
{
  struct settings s = { 0 };
  const struct setting *t;
  if (yaml_settings (&s, path, "", e)) return settings_free (&s), -1;
  snprintf (im->set.source, sizeof im->set.source, "%s", s.source);
  for (int i = 0; i < s.n; i++) {
    const struct setting *one = &s.at[i];
    const struct foreign *f = foreign_find (one->key, true);
    if (one->null) import_say (im, NOTE_IDLE, one, "without a value");
    else if (import_rule (im, one, accelerate_rules, LEN (accelerate_rules))) continue;
    else if (f) accelerate_note (im, &s, one, f);
    else if (row_find (one->key) > 0) import_set (im, one, conf_row[row_find (one->key)].name, one->value);
    else import_say (im, NOTE_BAD, one, "not a setting of accelerate that is known here");
  }
  const char *n = import_value (&s, "num_processes", &t), *machines = import_value (&s, "num_machines", NULL);
  im->gpus = n ? atoi (n) : 0;
  im->nodes = machines ? atoi (machines) : 0;
  if (!import_value (&s, "mixed_precision", NULL)) {
    struct setting silent = { "mixed_precision", "(left out)" };
    import_set (im, &silent, "train.dtype", "fp32");
  }
  settings_free (&s);
  return import_refuse (im, e);
}

/* ---- all of them, and the configuration ---- */

static const struct source {
  const char *option;
  int (*read) (struct import *im, const char *text, struct err *e);
} sources[] = {
  { "--from-hf", import_hf }, { "--from-accelerate", import_accelerate }, { "--from-torchtitan", import_torchtitan }, { "--from-megatron", import_megatron },
};

/* Take OPTION and its value out of ARGV: the value, or NULL. -1 when the value is missing. */
static int take (int *argc, char **argv, const char *option, const char **value, struct err *e)
{
  size_t n = strlen (option);
  *value = NULL;
  for (int i = 0; i < *argc; i++) {
    bool joined = !strncmp (argv[i], option, n) && argv[i][n] == '=';
    if (!joined && strcmp (argv[i], option)) continue;
    if (*value) return user_err (e, "%s is given twice", option);
    if (!joined && i + 1 == *argc) return user_err (e, "%s needs a value", option);
    *value = joined ? argv[i] + n + 1 : argv[i + 1];
    int gone = joined ? 1 : 2;
    memmove (argv + i, argv + i + gone, (size_t) (*argc - i - gone) * sizeof *argv);
    *argc -= gone;
    i--;
  }
  return 0;
}

static bool names_model (int argc, char **argv)
{
  for (int i = 0; i < argc; i++) if (!strncmp (argv[i], "--model", 7) && (!argv[i][7] || argv[i][7] == '=')) return true;
  return false;
}

int import_load (struct conf *c, const char *yaml_path, int *argc, char **argv, int *gpus, FILE *out, struct err *e)
{
  struct settings files[LEN (sources) + 1] = { 0 };
  struct import im[LEN (sources)] = { 0 };
  int n = 0, rc = 0, told = 0;
  bool model = yaml_path || names_model (*argc, argv);
  if (yaml_path) rc = yaml_settings (&files[n++], yaml_path, "", e);
  for (int i = 0; i < LEN (sources) && !rc; i++) {
    const char *text;
    rc = take (argc, argv, sources[i].option, &text, e);
    if (rc || !text) continue;
    im[i].model_told = model;
    im[i].world = *gpus ? *gpus : told;
    rc = sources[i].read (&im[i], text, e);
    import_print (&im[i], out);
    model |= im[i].model_told;
    if (im[i].gpus) told = im[i].gpus;
    files[n++] = im[i].set;   /* the list moves; what its settings point to stays in the import */
    im[i].set = (struct settings) { 0 };
  }
  if (!rc) rc = conf_load_from (c, files, n, *argc, argv, e);
  if (!*gpus) *gpus = told;
  for (int i = 0; i < n; i++) settings_free (&files[i]);
  for (int i = 0; i < LEN (sources); i++) import_free (&im[i]);
  return rc;
}
