/* conf_near: the sentence about a key that does not exist, with the nearest that does. */
#include "conf_int.h"
#include <string.h>

enum { LONGEST = 120 };

/* Edits (insert, delete, replace, swap neighbours) between A and B; - and _ are equal. */
int key_distance (const char *a, const char *b)
{
  int row[3][LONGEST + 1];
  int n = (int) strnlen (a, LONGEST), m = (int) strnlen (b, LONGEST);
  for (int j = 0; j <= m; j++) row[0][j] = j;
  for (int i = 1; i <= n; i++) {
    int *here = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
    here[0] = i;
    for (int j = 1; j <= m; j++) {
      int best = last[j - 1] + !key_same ((char[2]) { a[i - 1] }, &b[j - 1], 1);
      best = MIN (best, MIN (last[j], here[j - 1]) + 1);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = MIN (best, before[j - 2] + 1);
      here[j] = best;
    }
  }
  return row[n % 3][m];
}

static const char *leaf (const char *key)
{
  const char *dot = strrchr (key, '.');
  return dot ? dot + 1 : key;
}

/* Twice the edits, plus one if the right word stands in another section. */
static int score (const char *key, const char *name)
{
  size_t a = leaf (key) - key, b = leaf (name) - name;
  bool same = !a || (a == b && !strncmp (key, name, a));
  return MIN (2 * key_distance (key, name), 2 * key_distance (leaf (key), leaf (name)) + !same);
}

struct nearest { const char *key, *name; int score; };

static void consider (struct nearest *n, const char *spelling, const char *name)
{
  int s = score (n->key, spelling);
  if (s < n->score) *n = (struct nearest) { n->key, name, s };
}

static void consider_row (struct nearest *n, const struct row *r)
{
  char alias[LONGEST];
  consider (n, r->name, r->name);
  for (const char *s = r->aliases; *s; ) {
    size_t len = strcspn (s, " ");
    snprintf (alias, sizeof alias, "%.*s", (int) len, s);
    consider (n, alias, r->name);
    s += len + (s[len] == ' ');
  }
}

bool key_is_section (const char *key)
{
  size_t n = strlen (key);
  for (int i = 0; i < conf_rows; i++)
    if (!strncmp (conf_row[i].name, key, n) && conf_row[i].name[n] == '.') return true;
  return !strcmp (key, "fsdp_config");
}

int key_unknown (const struct settings *s, const struct setting *t, struct err *e)
{
  char where[512];
  const char *key = t->key;
  bool fsdp = !strncmp (key, "fsdp_", 5);
  if (!strncmp (key, "fsdp_config.", 12)) key += 12;
  struct nearest n = { .key = key, .score = 1 << 30 };
  setting_where (s, t, where);
  if (key_is_section (t->key))
    return user_err (e, "%s is a section, not an option: its options go below it", where);
  if (!fsdp) for (int i = 0; i < conf_rows; i++) consider_row (&n, &conf_row[i]);
  for (int i = 0; i < foreign_rows; i++)
    if ((s->layout || !foreign_table[i].layout) && !strncmp (foreign_table[i].key, "fsdp_", 5) == fsdp)
      consider (&n, foreign_table[i].key, foreign_table[i].key);
  return user_err (e, "%s: there is no such option; the nearest is %s%s", where, *s->source ? "" : "--", n.name);
}
