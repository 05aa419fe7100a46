#include "config.h"
#include "keep.h"
#include <string.h>

static const char *const part[] = { "norms", "swiglu", "gate_up", "qkv", "attention", "residual" };

static int find (const char *s, size_t n)
{
  for (int i = 0; i < LEN (part); i++)
    if (strlen (part[i]) == n && !strncmp (part[i], s, n)) return 1 << i;
  if (n == 3 && !strncmp (s, "all", n)) return KEEP_ALL;
  return n == 4 && !strncmp (s, "none", n) ? 0 : -1;
}

int keep_parse (const char *text, int *set, struct err *e)
{
  *set = 0;
  for (const char *s = text; *s;) {
    size_t n = strcspn (s, ", ");
    int bit = n ? find (s, n) : 0;
    if (bit < 0) return user_err (e, "recompute.keep knows norms, swiglu, gate_up, qkv, attention and residual (or none, all), not `%.*s`", (int) n, s);
    *set |= bit;
    s += n + (s[n] != 0);
  }
  return 0;
}

void keep_text (int set, char out[static 96])
{
  int n = 0;
  if (set == KEEP_ALL) strcpy (out, "everything");
  else if (!set) strcpy (out, "nothing but its input");
  else
    for (int i = 0; i < LEN (part); i++)
      if (set & 1 << i) n += snprintf (out + n, 96 - (size_t) n, "%s%s", n ? ", " : "", part[i]);
}

int keep_of (const struct conf *c, int64_t layer)
{
  int set = 0;
  struct err e;
  if (c->recompute.mode == RECOMPUTE_NONE || (layer - 1) % MAX (1, c->recompute.every)) return KEEP_ALL;
  if (c->recompute.mode == RECOMPUTE_SELECTIVE) keep_parse (c->recompute.keep, &set, &e);
  return keep_usable (c, set) ? set : set & ~KEEP_NORMS;
}

bool keep_usable (const struct conf *c, int set)
{
  return c->train.precision != PREC_FP8 || !(set & KEEP_NORMS) || !(~set & (KEEP_QKV | KEEP_GATE_UP));
}
