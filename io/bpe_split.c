/* bpe_split: text into words: added tokens apart, NFC, then one step after the other, each on the pieces of the one before. */
#include "config.h"
#include "bpe.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_UTF8PROC
#include <utf8proc.h>
#endif

/* --- NFC --- */

#ifdef HAVE_UTF8PROC
/* Is the first character at P one that NFC changes under no circumstances, whatever stands beside it? Of those above U+02FF just the many: ideographs, their punctuation. */
static bool settled (const unsigned char *p, int *len)
{
  *len = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
  if (*p < 0xcc) return true;                                             /* up to U+02FF: composed already, or plain */
  if (*p == 0xe3) return p[1] == 0x80 && p[2] < 0xaa;                     /* U+3000 to U+3029 */
  return (*p >= 0xe4 && *p <= 0xe9) || (*p == 0xef && p[1] >= 0xbc);      /* U+4000 to U+9FFF, U+FF00 and above */
}

/* A line of which some character needs a look: in NFC, appended. */
static void compose (const char *p, int64_t n, char **out, int64_t *size)
{
  utf8proc_uint8_t *made = NULL;
  utf8proc_ssize_t k = utf8proc_map ((const utf8proc_uint8_t *) p, n, &made, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  must (k >= 0, "utf8proc: %s", utf8proc_errmsg (k));
  *out = xrealloc (*out, (size_t) (*size + k + 1), "nfc");
  memcpy (*out + *size, made, (size_t) k);
  *size += k;
  free (made);
}

/* TEXT itself if it is in NFC as far as a quick look tells, else *made. A newline is a border that no composition crosses. */
static const char *nfc (const char *text, int64_t *n, char **made)
{
  int64_t size = 0, done = 0;
  int len;
  *made = NULL;
  for (int64_t at = 0; at < *n;) {
    int64_t line = at;
    bool good = true;
    const char *end = memchr (text + at, '\n', (size_t) (*n - at));
    int64_t stop = end ? end - text + 1 : *n;
    for (; at < stop; at += len) good &= settled ((const unsigned char *) text + at, &len);
    at = stop;
    if (good) continue;
    *made = xrealloc (*made, (size_t) (size + line - done + 1), "nfc");
    memcpy (*made + size, text + done, (size_t) (line - done));
    size += line - done;
    compose (text + line, stop - line, made, &size);
    done = stop;
  }
  if (!*made) return text;
  *made = xrealloc (*made, (size_t) (size + *n - done + 1), "nfc");
  memcpy (*made + size, text + done, (size_t) (*n - done));
  *n = size + *n - done;
  return *made;
}
#else
static const char *nfc (const char *text, int64_t *n, char **made) { return (void) n, *made = NULL, text; }
#endif

/* --- patterns --- */

#ifdef HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Oniguruma, which the reference uses, and PCRE2 mean the same by what these patterns contain, but for \s: PCRE2's has U+180E. So it is written out. */
#define SPACES "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

static char *translate (const struct bpe *b, const char *s, struct err *e)
{
  size_t room = strlen (s) * 120 + 1, n = 0;
  char *out = xalloc (room, "pattern");
  int set = 0;   /* inside of [...] */
  for (; *s; s++) {
    if (*s == '\\' && s[1]) {
      char c = *++s;
      if (strchr ("wWbBhHRXG", c) || (c == 'S' && set)) {
        user_err (e, "%s: its pattern has \\%c%s, which the reference and PCRE2 understand differently", b->path, c, set ? " in a set" : "");
        xfree (out);
        return NULL;
      }
      if (c == 's' && set) n += (size_t) sprintf (out + n, SPACES);
      else if (c == 's' || c == 'S') n += (size_t) sprintf (out + n, "[%s" SPACES "]", c == 'S' ? "^" : "");
      else out[n++] = '\\', out[n++] = c;
      continue;
    }
    if (*s == '[') set++;
    if (*s == ']' && set) set--;
    out[n++] = *s;
  }
  out[n] = 0;
  return out;
}

enum { LIMIT = 10000000 };

int bpe_pattern (struct bpe *b, struct step *s, const char *pattern, struct err *e)
{
  int why = 0;
  PCRE2_SIZE at = 0;
  *s = (struct step) { .kind = STEP_SPLIT };
  char *ours = translate (b, pattern, e);
  if (!ours) return -1;
  s->code = pcre2_compile ((PCRE2_SPTR) ours, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &why, &at, NULL);
  xfree (ours);
  if (!s->code) {
    PCRE2_UCHAR text[160];
    pcre2_get_error_message (why, text, sizeof text);
    return user_err (e, "%s: PCRE2 does not understand its pattern %.300s: %s", b->path, pattern, (char *) text);
  }
  pcre2_jit_compile (s->code, PCRE2_JIT_COMPLETE);   /* where it fails, the interpreter does the work */
  if (b->context) return 0;
  b->context = pcre2_match_context_create (NULL);
  b->stack = pcre2_jit_stack_create (64 << 10, 16 << 20, NULL);
  b->match = pcre2_match_data_create (1, NULL);
  must (b->context && b->match, "out of host memory");
  pcre2_set_match_limit (b->context, LIMIT);
  if (b->stack) pcre2_jit_stack_assign (b->context, NULL, b->stack);
  return 0;
}

void bpe_split_free (struct bpe *b)
{
  for (int i = 0; i < b->steps; i++) pcre2_code_free (b->step[i].code);
  pcre2_match_data_free (b->match);
  pcre2_match_context_free (b->context);
  pcre2_jit_stack_free (b->stack);
}

/* The next match at or after AT: 1, *from and *to; 0 if there is none, -1. */
static int next_match (struct bpe *b, const struct step *s, const char *p, int64_t n, int64_t at, int64_t *from, int64_t *to, struct err *e)
{
  int rc = pcre2_match (s->code, (PCRE2_SPTR) p, (PCRE2_SIZE) n, (PCRE2_SIZE) at, PCRE2_NO_UTF_CHECK, b->match, b->context);
  if (rc == PCRE2_ERROR_NOMATCH) return 0;
  if (rc < 0) {
    PCRE2_UCHAR text[160];
    pcre2_get_error_message (rc, text, sizeof text);
    return user_err (e, "%s: its pattern fails at a piece of text that begins with \"%.40s\": %s", b->path, p + at, (char *) text);
  }
  PCRE2_SIZE *v = pcre2_get_ovector_pointer (b->match);
  *from = (int64_t) v[0];
  *to = (int64_t) v[1];
  return 1;
}
#else
int bpe_pattern (struct bpe *b, struct step *s, const char *pattern, struct err *e)
{
  (void) s, (void) pattern;
  return user_err (e, "%s needs a split pattern, and this program was built without PCRE2: install libpcre2-dev and configure anew", b->path);
}
void bpe_split_free (struct bpe *b) { (void) b; }
static int next_match (struct bpe *b, const struct step *s, const char *p, int64_t n, int64_t at, int64_t *from, int64_t *to, struct err *e)
{
  (void) b, (void) s, (void) p, (void) n, (void) at, (void) from, (void) to, (void) e;
  return 0;
}
#endif

/* --- steps --- */

struct walk { struct bpe *b; const struct bpe_sink *s; struct err *e; };
static int run_step (struct walk *w, int i, const char *p, int64_t n);

static int go_on (struct walk *w, int i, const char *p, int64_t n) { return n ? run_step (w, i + 1, p, n) : 0; }

/* Matches and what lies between them are pieces. */
static int by_pattern (struct walk *w, int i, const char *p, int64_t n)
{
  int64_t done = 0, at = 0, from = 0, to = 0;
  int found;
  while (at < n && (found = next_match (w->b, &w->b->step[i], p, n, at, &from, &to, w->e))) {
    if (found < 0) return -1;
    if (to == from) {   /* an empty match separates, and the search goes on a character further */
      for (at = from + 1; at < n && (p[at] & 0xc0) == 0x80;) at++;
      if (go_on (w, i, p + done, from - done)) return -1;
      done = from;
      continue;
    }
    if (go_on (w, i, p + done, from - done) || go_on (w, i, p + from, to - from)) return -1;
    at = done = to;
  }
  return go_on (w, i, p + done, n - done);
}

static bool is_digit (char c) { return c >= '0' && c <= '9'; }

static int by_digits (struct walk *w, int i, const char *p, int64_t n)
{
  for (int64_t at = 0, end; at < n; at = end) {
    bool digit = is_digit (p[at]);
    for (end = at + 1; end < n && is_digit (p[end]) == digit && !(digit && w->b->step[i].each);) end++;
    if (go_on (w, i, p + at, end - at)) return -1;
  }
  return 0;
}

static int run_step (struct walk *w, int i, const char *p, int64_t n)
{
  const struct step *s = &w->b->step[i];
  char *spaced = NULL;
  int rc = 0;
  if (i == w->b->steps) return w->s->word (w->b, p, n, w->s->out), 0;
  if (s->kind == STEP_DIGITS) return by_digits (w, i, p, n);
  if (s->prefix && *p != ' ') {
    spaced = xalloc ((size_t) n + 2, "text");
    spaced[0] = ' ';
    memcpy (spaced + 1, p, (size_t) n++);
    p = spaced;
  }
  rc = s->code ? by_pattern (w, i, p, n) : go_on (w, i, p, n);
  xfree (spaced);
  return rc;
}

/* --- added tokens: the leftmost, of those the longest --- */

static const struct added *added_at (const struct added_set *s, const char *p, int64_t left)
{
  unsigned char c = (unsigned char) *p;
  for (int i = s->first[c]; i < s->first[c + 1]; i++)
    if (s->list[i].len <= left && !memcmp (s->list[i].text, p, (size_t) s->list[i].len)) return &s->list[i];
  return NULL;
}

typedef int section (struct walk *w, const char *p, int64_t n);

static int each_section (struct walk *w, const struct added_set *s, const char *p, int64_t n, section *f)
{
  int64_t done = 0;
  for (int64_t at = 0; at < n && s->n; at++) {
    unsigned char c = (unsigned char) p[at];
    if (s->first[c] == s->first[c + 1]) continue;
    const struct added *a = added_at (s, p + at, n - at);
    if (!a) continue;
    if (at > done && f (w, p + done, at - done)) return -1;
    ids_put (w->s->out, a->id);
    done = at + a->len;
    at = done - 1;
  }
  return done < n ? f (w, p + done, n - done) : 0;
}

static int words (struct walk *w, const char *p, int64_t n) { return run_step (w, 0, p, n); }

static int normalise (struct walk *w, const char *p, int64_t n)
{
  char *made = NULL;
  if (w->b->nfc) p = nfc (p, &n, &made);
  int rc = each_section (w, &w->b->normal, p, n, words);
  xfree (made);
  return rc;
}

int bpe_split (struct bpe *b, const char *text, int64_t n, const struct bpe_sink *s, struct err *e)
{
  struct walk w = { b, s, e };
  return each_section (&w, &b->raw, text, n, normalise);
}
