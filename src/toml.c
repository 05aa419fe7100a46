#include "config.h"
#include "toml.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
  struct settings *s;
  const char *at, *start;   /* the whole text; where this statement begins */
  int line;
  char section[128];
  struct err *e;
};

static int wrong (struct parser *p, const char *why) { return user_err (p->e, "%s line %d: %s", p->s->source, p->line, why); }

static void blanks (struct parser *p) { p->at += strspn (p->at, " \t"); }

/* To the line's end, over a comment; false if something else stands there. */
static bool line_end (struct parser *p)
{
  blanks (p);
  if (*p->at == '#') p->at += strcspn (p->at, "\n");
  if (*p->at == '\r') p->at++;
  if (*p->at == '\n') return p->at++, p->line++, true;
  return !*p->at;
}

/* Blanks, comments and line ends between the items of a list. */
static void gap (struct parser *p)
{
  for (;;) {
    p->at += strspn (p->at, " \t\r");
    if (*p->at == '#') p->at += strcspn (p->at, "\n");
    if (*p->at != '\n') return;
    p->at++;
    p->line++;
  }
}

static bool is_bare (char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; }

/* A key of bare or quoted words with dots between, onto OUT. */
static int key (struct parser *p, char *out, size_t size)
{
  size_t n = strlen (out);
  for (;;) {
    blanks (p);
    char quote = *p->at == '"' || *p->at == '\'' ? *p->at : 0;
    const char *from = p->at += quote != 0;
    while (quote ? *p->at && *p->at != quote && *p->at != '\n' && *p->at != '\\' : is_bare (*p->at)) p->at++;
    size_t m = (size_t) (p->at - from);
    if (!m || (quote && *p->at != quote)) return wrong (p, "a key is expected");
    p->at += quote != 0;
    if (n + m + 2 >= size) return wrong (p, "the key is too long");
    memcpy (out + n, from, m);
    out[n += m] = 0;
    blanks (p);
    if (*p->at != '.') return 0;
    p->at++;
    out[n++] = '.';
    out[n] = 0;
  }
}

static int escape (struct parser *p, char *c)
{
  static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
  const char *at = *p->at ? strchr (from, *p->at) : NULL;
  if (!at) return wrong (p, "this escape is not understood");
  *c = to[at - from];
  p->at++;
  return 0;
}

static int string (struct parser *p, char *out, size_t size)
{
  char quote = *p->at;
  size_t n = 0;
  if (p->at[1] == quote && p->at[2] == quote) return wrong (p, "strings over several lines are not understood here");
  for (p->at++; *p->at != quote; ) {
    char c = *p->at;
    if (!c || c == '\n') return wrong (p, "the string does not end");
    if (n + 1 >= size) return wrong (p, "the text is too long");
    p->at++;
    if (c == '\\' && quote == '"' && escape (p, &c)) return -1;
    out[n++] = c;
  }
  p->at++;
  out[n] = 0;
  return 0;
}

/* A number or a truth value, as text. */
static int word (struct parser *p, char *out, size_t size)
{
  size_t n = 0;
  bool good = false;
  while (is_bare (*p->at) || *p->at == '+' || *p->at == '.' || *p->at == ':') {
    if (n + 1 >= size) return wrong (p, "the value is too long");
    if (*p->at != '_') out[n++] = *p->at;
    p->at++;
  }
  out[n] = 0;
  char *end;
  strtod (out, &end);
  good = n && !*end && !out[strspn (out, "0123456789+-.eE")];
  if (good && *out == '+') memmove (out, out + 1, n);
  if (good || !strcmp (out, "true") || !strcmp (out, "false")) return 0;
  if (*p->at == '{' || !n) return wrong (p, *p->at == '{' ? "tables in braces are not understood here" : "a value is expected");
  return user_err (p->e, "%s line %d: `%.60s` is no value: text needs quotes; dates and other kinds of number are not understood here", p->s->source,
                   p->line, out);
}

static int scalar (struct parser *p, char *out, size_t size)
{
  return *p->at == '"' || *p->at == '\'' ? string (p, out, size) : word (p, out, size);
}

static int list (struct parser *p, char *out, size_t size)
{
  size_t n = 0;
  out[0] = 0;
  p->at++;
  for (gap (p); *p->at != ']'; gap (p)) {
    if (*p->at == '[' || *p->at == '{') return wrong (p, "lists of lists or tables are not understood here");
    if (n + 2 >= size) return wrong (p, "the list is too long");
    if (n) out[n++] = ',';
    if (scalar (p, out + n, size - n)) return -1;
    n = strlen (out);
    gap (p);
    if (*p->at == ',') p->at++;
    else if (*p->at != ']') return wrong (p, "a comma or ] is expected");
  }
  p->at++;
  return 0;
}

static int header (struct parser *p)
{
  if (p->at[1] == '[') return wrong (p, "tables in double brackets are not understood here");
  p->at++;
  p->section[0] = 0;
  if (key (p, p->section, sizeof p->section)) return -1;
  if (*p->at != ']') return wrong (p, "] is expected");
  p->at++;
  return line_end (p) ? 0 : wrong (p, "nothing may follow the section's name");
}

static int assignment (struct parser *p)
{
  char name[300] = "", value[STR];
  int line = p->line;
  if (*p->section) snprintf (name, sizeof name, "%s.", p->section);
  if (key (p, name, sizeof name)) return -1;
  if (*p->at != '=') return wrong (p, "= is expected");
  p->at++;
  blanks (p);
  bool is_list = *p->at == '[';
  if (is_list ? list (p, value, sizeof value) : scalar (p, value, sizeof value)) return -1;
  for (int i = 0; i < p->s->n; i++)
    if (!strcmp (p->s->at[i].key, name)) return user_err (p->e, "%s line %d: %s is given a second time, first at line %d", p->s->source, line, name,
                                                          p->s->at[i].line);
  settings_add (p->s, name, value, line)->list = is_list;
  return line_end (p) ? 0 : wrong (p, "nothing may follow the value");
}

static int parse (struct parser *p)
{
  for (;;) {
    gap (p);
    if (!*p->at) return 0;
    if (*p->at == '[' ? header (p) : assignment (p)) return -1;
  }
}

int toml_settings (struct settings *s, const char *path, struct err *e)
{
  FILE *f = fopen (path, "rb");
  char *text = NULL;
  size_t room = 0;
  if (!f) return user_err (e, "cannot open %s: %s", path, strerror (errno));
  ssize_t n = getdelim (&text, &room, 0, f);
  bool broken = n < 0 && ferror (f), zero = !broken && !feof (f) && n > 0 && text[n - 1] == 0;
  fclose (f);
  snprintf (s->source, sizeof s->source, "%s", path);
  s->path = path;
  struct parser p = { .s = s, .at = n > 0 ? text : "", .line = 1, .e = e };
  int rc = broken ? user_err (e, "cannot read %s", path) : zero ? user_err (e, "%s: a zero byte: not a text", path) : parse (&p);
  free (text);
  return rc;
}
