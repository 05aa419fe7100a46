#include "config.h"
#include "conf_int.h"
#include "share.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct setting *settings_add (struct settings *s, const char *key, const char *value, int line)
{
  s->at = xrealloc (s->at, (s->n + 1) * sizeof *s->at, "settings");
  s->at[s->n] = (struct setting) { xstrdup (key, "setting"), xstrdup (value, "setting"), line };
  return &s->at[s->n++];
}

void settings_free (struct settings *s)
{
  for (int i = 0; i < s->n; i++) {
    xfree (s->at[i].key);
    xfree (s->at[i].value);
  }
  xfree (s->at);
  s->at = NULL;
  s->n = 0;
}

const char *setting_where (const struct settings *s, const struct setting *t, char out[static 512])
{
  const char *key = t->from ? t->from : t->key;
  if (t->line) snprintf (out, 512, "%s line %d: %.120s", s->source, t->line, key);
  else snprintf (out, 512, "--%.120s", key);
  return out;
}

bool conf_deterministic (const struct conf *c)
{
  return c->run.deterministic == AUTO ? c->arch.head_dim >= 96 : c->run.deterministic == YES;
}

void conf_default (struct conf *c)
{
  char want[256];
  memset (c, 0, sizeof *c);
  for (int i = 0; i < conf_rows; i++)
    must (!row_set (&conf_row[i], c, conf_row[i].def, false, want), "default of %s is not %s", conf_row[i].name, want);
  c->train.dtype = c->train.precision == PREC_FP32 ? DT_F32 : DT_BF16;
}

/* The command line. */

static bool is_bool (const char *s)
{
  static const char *const word[] = { "true", "false", "yes", "no", "on", "off" };
  for (int i = 0; s && i < LEN (word); i++) if (!strcmp (s, word[i])) return true;
  return false;
}

/* May KEY stand alone, meaning true? */
static bool alone (const char *key)
{
  int row = row_find (key);
  const struct foreign *f = row < 0 ? foreign_find (key, false) : NULL;
  return row >= 0 ? conf_row[row].type == T_BOOL : f && f->flag;
}

static int argv_settings (struct settings *s, int argc, char **argv, struct err *e)
{
  for (int i = 0; i < argc; i++) {
    char key[128];
    const char *arg = argv[i], *eq = strchr (arg, '=');
    size_t n = eq ? (size_t) (eq - arg) : strlen (arg);
    if (strncmp (arg, "--", 2) || n < 3)
      return user_err (e, "`%.100s` is not an option: options look like --train.steps 100", arg);
    snprintf (key, sizeof key, "%.*s", (int) n - 2, arg + 2);
    const char *next = i + 1 < argc ? argv[i + 1] : NULL;
    bool known = row_find (key) >= 0 || foreign_find (key, false);
    if (!known) return key_unknown (s, &(struct setting) { .key = key }, e);
    if (eq) settings_add (s, key, eq + 1, 0);
    else if (alone (key) && !is_bool (next)) settings_add (s, key, "true", 0);
    else if (!next || !strncmp (next, "--", 2)) return user_err (e, "--%s needs a value", key);
    else settings_add (s, key, argv[++i], 0);
  }
  return 0;
}

/* Applying a source. */

/* Not twice: a file may say a thing once; the command line may repeat itself. */
static int check_twice (const struct settings *s, struct err *e)
{
  for (int i = 0; i < s->n; i++)
    for (int k = 0; k < i; k++) {
      const struct setting *a = &s->at[k], *b = &s->at[i];
      char first[512], second[512];
      if (row_find (a->key) < 0 || row_find (a->key) != row_find (b->key)) continue;
      bool may = !*s->source || a->from || b->from;
      if (may && !strcmp (a->value, b->value)) continue;
      setting_where (s, a, first);
      setting_where (s, b, second);
      if (strcmp (a->from ? a->from : a->key, b->from ? b->from : b->key))
        return user_err (e, "%s and %s both set %s, to `%.100s` and `%.100s`", first, second, conf_row[row_find (a->key)].name,
                         a->value, b->value);
      if (*s->source) return user_err (e, "%s is given a second time, first at line %d", second, a->line);
      return user_err (e, "%s is given twice, as `%.100s` and as `%.100s`", first, a->value, b->value);
    }
  return 0;
}

static int apply_one (struct conf *c, const struct settings *s, const struct setting *t, struct err *e)
{
  char where[512], want[256];
  int row = row_find (t->key);
  setting_where (s, t, where);
  if (row < 0 && t->null && key_is_section (t->key)) return 0;
  if (row < 0) return key_unknown (s, t, e);
  const struct row *r = &conf_row[row];
  const char *name = strcmp (t->key, r->name) ? r->name : "";
  if (t->null) return user_err (e, "%s has no value", where);
  if (t->list && !r->list) return user_err (e, "%s%s%s expects one value, not a list", where, *name ? " = " : "", name);
  if (row_set (r, c, t->value, true, want))
    return user_err (e, "%s%s%s expects %s, not `%.200s`", where, *name ? " = " : "", name, want, t->value);
  return 0;
}

static int load_model (struct conf *c, const struct settings *s, const struct setting *t, struct err *e);

static bool is_model (const struct setting *t) { return row_find (t->key) == 0; }

/* The model's name first, then all the rest on top. */
static int apply (struct conf *c, const struct settings *s, bool *given, struct err *e)
{
  if (check_twice (s, e)) return -1;
  for (int i = 0; i < s->n; i++)
    if (is_model (&s->at[i]) && load_model (c, s, &s->at[i], e)) return -1;
  for (int i = 0; i < s->n; i++) {
    if (is_model (&s->at[i])) continue;
    if (apply_one (c, s, &s->at[i], e)) return -1;
    if (row_find (s->at[i].key) >= 0) given[row_find (s->at[i].key)] = true;
  }
  return 0;
}

/* Models. */

struct names { int n; char at[64][64]; };

static void add_name (void *ctx, const char *name)
{
  struct names *s = ctx;
  if (s->n < LEN (s->at) && strlen (name) < sizeof s->at[0]) strcpy (s->at[s->n++], name);
}

static int by_name (const void *a, const void *b) { return strcmp (a, b); }

/* There is no model NAME: which are there, and which is nearest? */
static int model_unknown (const char *where, const char *name, struct err *e)
{
  struct names s = { 0 };
  char all[1024] = "";
  int near = 0, at = 0;
  share_each ("models", ".yaml", add_name, &s);
  if (!s.n)
    return user_err (e, "%s: no model `%.200s`, and no models are installed: TESSERA_SHARE may name their folder", where, name);
  qsort (s.at, s.n, sizeof s.at[0], by_name);
  for (int i = 0; i < s.n; i++) {
    if (key_distance (name, s.at[i]) < key_distance (name, s.at[near])) near = i;
    if ((i == 0 || strcmp (s.at[i], s.at[i - 1])) && at < 900)
      at += snprintf (all + at, sizeof all - at, "%s%s", at ? ", " : "", s.at[i]);
  }
  return user_err (e, "%s: no model `%.200s`; the nearest is %s; known are %s, or a path to a .yaml file", where, name,
                   s.at[near], all);
}

static bool file_path (const struct settings *s, const char *name, char path[static STR])
{
  const char *dot = strrchr (name, '.');
  if (!strchr (name, '/') && !(dot && (!strcmp (dot, ".yaml") || !strcmp (dot, ".yml")))) {
    char file[STR];
    snprintf (file, sizeof file, "%.1000s.yaml", name);
    return share_find ("models", file, path, STR);
  }
  snprintf (path, STR, "%s", name);
  const char *slash = s->path ? strrchr (s->path, '/') : NULL;
  if (*name == '/' || access (path, F_OK) == 0 || !slash) return access (path, F_OK) == 0;
  int n = snprintf (path, STR, "%.*s/%s", (int) (slash - s->path), s->path, name);   /* beside the run's file */
  return n < STR && access (path, F_OK) == 0;
}

/* NAME's file onto the architecture's defaults. */
static int load_model (struct conf *c, const struct settings *s, const struct setting *t, struct err *e)
{
  char path[STR], where[512], want[256];
  struct settings m = { 0 };
  setting_where (s, t, where);
  if (t->null || t->list || !*t->value) return user_err (e, "%s expects a name, a path or a mapping", where);
  if (!file_path (s, t->value, path)) return model_unknown (where, t->value, e);
  for (int i = 0; i < conf_rows; i++)
    if (!strncmp (conf_row[i].name, "model.", 6)) row_set (&conf_row[i], c, conf_row[i].def, false, want);
  int rc = yaml_settings (&m, path, "model.", e);
  if (!rc) rc = check_twice (&m, e);
  for (int i = 0; i < m.n && !rc; i++) {
    if (is_model (&m.at[i]))
      rc = user_err (e, "%s: a model's file stands alone, without `base`", setting_where (&m, &m.at[i], where));
    else rc = apply_one (c, &m, &m.at[i], e);
  }
  if (!rc && !c->model[0]) snprintf (c->model, sizeof c->model, "%s", t->value);
  settings_free (&m);
  return rc;
}

/* A model named on the command line takes the place of all that the file says of its own. */
static void say_replaced (const struct settings *file, const struct settings *line)
{
  bool named = false;
  for (int i = 0; i < line->n; i++) named |= is_model (&line->at[i]);
  for (int i = 0; i < file->n; i++)
    if (named && !strncmp (file->at[i].key, "model", 5)) {
      say (SAY_INFO, "%s line %d: %s gives way to --model", file->source, file->at[i].line, file->at[i].key);
      return;
    }
}

static int check_model (struct conf *c, const struct settings *file, struct err *e)
{
  static const char *const key[] = { "dim", "layers", "heads", "ffn", "vocab" };
  const int64_t value[] = { c->arch.dim, c->arch.layers, c->arch.heads, c->arch.ffn, c->arch.vocab };
  int missing = -1, n = 0;
  for (int i = 0; i < LEN (key); i++) if (!value[i]) missing = i, n++;
  const char *in = *file->source ? file->source : "the command line";
  if (n == LEN (key)) return user_err (e, "%s names no model: say model: tiny, a path to a model's file, or a mapping", in);
  if (n) return user_err (e, "%s: the model lacks model.%s; to start from a known model write `model: {base: NAME}`", in,
                          key[missing]);
  if (!c->model[0]) snprintf (c->model, sizeof c->model, "(mapping)");
  return 0;
}

int conf_load_from (struct conf *c, struct settings *files, int n, int argc, char **argv, struct err *e)
{
  struct settings line = { 0 }, none = { 0 };
  bool *given = c->given;
  must (conf_rows <= LEN (c->given), "conf.h: room for %d rows", LEN (c->given));
  memset (given, 0, sizeof c->given);
  int rc = -1;
  if (argv_settings (&line, argc, argv, e)) goto out;
  for (int i = 0; i < n; i++) if (foreign_translate (&files[i], e)) goto out;
  if (foreign_translate (&line, e)) goto out;
  for (int i = 0; i < n; i++) {
    if (apply (c, &files[i], given, e)) goto out;
    say_replaced (&files[i], &line);
  }
  if (apply (c, &line, given, e)) goto out;
  if (check_model (c, n ? &files[0] : &none, e) || conf_settle (c, given, e) || conf_check (c, e)) goto out;
  rc = 0;
 out:
  settings_free (&line);
  return rc;
}

int conf_load (struct conf *c, const char *yaml_path, int argc, char **argv, struct err *e)
{
  struct settings file = { 0 };
  int rc = yaml_path ? yaml_settings (&file, yaml_path, "", e) : 0;
  rc = rc || conf_load_from (c, &file, yaml_path != NULL, argc, argv, e) ? -1 : 0;
  settings_free (&file);
  return rc;
}

bool conf_given (const struct conf *c, const char *name)
{
  int row = row_find (name);
  must (row >= 0, "no option %s", name);
  return c->given[row];
}

const char *conf_differ (const struct conf *a, const struct conf *b, char *out, size_t size)
{
  char x[STR], y[STR];
  for (int i = 0; i < conf_rows; i++) {
    row_get (&conf_row[i], a, x);
    row_get (&conf_row[i], b, y);
    if (!strcmp (x, y)) continue;
    snprintf (out, size, "%s %s vs %s", conf_row[i].name, x, y);
    return out;
  }
  return NULL;
}
