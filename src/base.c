#include "config.h"
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <stdatomic.h>
#include <xxhash.h>

static int my_rank, my_size = 1;
static void (*end_job) (int);
static void (*last_words) (int, const char *);
static void (*give_up) (void);
static enum say max_level = SAY_INFO;
static char phase_own[BASE_PHASE] = "start", *phase_now = phase_own;
static _Atomic int64_t live_blocks, live_bytes;

static int fill (struct err *e, int code, const char *fmt, va_list ap)
{
  if (e && !e->msg[0]) {
    e->code = code;
    vsnprintf (e->msg, sizeof e->msg, fmt, ap);
  }
  return -1;
}

int user_err (struct err *e, const char *fmt, ...)
{
  va_list ap;
  va_start (ap, fmt);
  fill (e, EXIT_USER, fmt, ap);
  va_end (ap);
  return -1;
}

int world_err (struct err *e, const char *fmt, ...)
{
  va_list ap;
  va_start (ap, fmt);
  fill (e, EXIT_WORLD, fmt, ap);
  va_end (ap);
  return -1;
}

void base_rank (int rank, int size, void (*abort_fn) (int))
{
  my_rank = rank;
  my_size = size;
  end_job = abort_fn;
}

void base_last_words (void (*fn) (int code, const char *sentence)) { last_words = fn; }

void base_give_up (void (*fn) (void)) { give_up = fn; }

int base_rank_get (void) { return my_rank; }

const char *base_host (void)
{
  static char name[64];
  if (!name[0]) {
    if (gethostname (name, sizeof name - 1)) strcpy (name, "?");
    name[strcspn (name, ".")] = 0;
  }
  return name;
}

void base_phase (const char *phase) { snprintf (phase_now, BASE_PHASE, "%s", phase); }
const char *base_phase_get (void) { return phase_now; }

void base_phase_at (char *text)
{
  char *to = text ? text : phase_own;
  if (to != phase_now) memcpy (to, phase_now, BASE_PHASE);
  phase_now = to;
}

void say_level (enum say max) { max_level = max; }

static const char *const level_word[] = { "pretrain: ", "pretrain: warning: ", "", "" };

static bool drawn;   /* a progress line stands on the terminal */

void say_progress (const char *line, int width)
{
  if (my_rank || max_level < SAY_INFO || (!line && !drawn)) return;
  if (line) printf ("\r%.*s\033[K", width - 1, line);
  else putchar ('\n');
  drawn = line != NULL;
  fflush (stdout);
}

/* One write a line, so that lines of several ranks do not mix. */
static void emit (FILE *f, const char *head, const char *fmt, va_list ap)
{
  char line[8192];
  if (drawn) {
    fputs ("\r\033[K", stdout);
    fflush (stdout);
    drawn = false;
  }
  int n = snprintf (line, sizeof line, "%s", head);
  n += vsnprintf (line + n, sizeof line - n - 1, fmt, ap);
  if (n > (int) sizeof line - 2) n = sizeof line - 2;
  line[n++] = '\n';
  fwrite (line, 1, n, f);
  fflush (f);
}

void say (enum say level, const char *fmt, ...)
{
  if (my_rank || level > max_level) return;
  va_list ap;
  va_start (ap, fmt);
  emit (level <= SAY_WARN ? stderr : stdout, level_word[level], fmt, ap);
  va_end (ap);
}

void say_all (enum say level, const char *fmt, ...)
{
  if (level > max_level) return;
  char head[64];
  snprintf (head, sizeof head, "%srank %d: ", level_word[level], my_rank);
  va_list ap;
  va_start (ap, fmt);
  emit (stderr, head, fmt, ap);
  va_end (ap);
}

void die_at (const char *file, int line, int code, const char *fmt, ...)
{
  char head[320];
  const char *base = strrchr (file, '/');
  snprintf (head, sizeof head, "pretrain: rank %d of %d on %s, during %s (%s:%d): ", my_rank, my_size, base_host (), phase_now,
            base ? base + 1 : file, line);
  va_list ap;
  va_start (ap, fmt);
  emit (stderr, head, fmt, ap);
  va_end (ap);
  if (last_words) {
    char text[2048];
    void (*fn) (int, const char *) = last_words;
    last_words = NULL;
    va_start (ap, fmt);
    vsnprintf (text, sizeof text, fmt, ap);
    va_end (ap);
    fn (code, text);
  }
  fflush (NULL);
  if (give_up) {
    void (*fn) (void) = give_up;
    give_up = NULL;
    fn ();
  }
  if (end_job) end_job (code);
  _exit (code);
}

/* Each block carries its size in front, so that the count of bytes is exact. */
struct head { size_t bytes; size_t pad; };

static void *counted (struct head *h, size_t bytes, const char *tag)
{
  if (!h) die ("out of host memory: %zu bytes for %s", bytes, tag);
  h->bytes = bytes;
  atomic_fetch_add (&live_blocks, 1);
  atomic_fetch_add (&live_bytes, (int64_t) bytes);
  return h + 1;
}

void *xalloc (size_t bytes, const char *tag) { return counted (calloc (1, sizeof (struct head) + bytes), bytes, tag); }

void *xrealloc (void *p, size_t bytes, const char *tag)
{
  struct head *h = p ? (struct head *) p - 1 : NULL;
  if (h) {
    atomic_fetch_add (&live_blocks, -1);
    atomic_fetch_add (&live_bytes, -(int64_t) h->bytes);
  }
  return counted (realloc (h, sizeof (struct head) + bytes), bytes, tag);
}

char *xstrdup (const char *s, const char *tag)
{
  char *p = xalloc (strlen (s) + 1, tag);
  strcpy (p, s);
  return p;
}

char *xprintf (const char *fmt, ...)
{
  va_list ap, aq;
  va_start (ap, fmt);
  va_copy (aq, ap);
  int n = vsnprintf (NULL, 0, fmt, ap);
  char *p = xalloc ((size_t) n + 1, "text");
  vsnprintf (p, (size_t) n + 1, fmt, aq);
  va_end (ap);
  va_end (aq);
  return p;
}

void xfree (void *p)
{
  if (!p) return;
  struct head *h = (struct head *) p - 1;
  atomic_fetch_add (&live_blocks, -1);
  atomic_fetch_add (&live_bytes, -(int64_t) h->bytes);
  free (h);
}

int64_t base_live (void) { return live_blocks; }
int64_t base_live_bytes (void) { return live_bytes; }

int64_t mul_exact (int64_t a, int64_t b)
{
  int64_t r;
  if (__builtin_mul_overflow (a, b, &r)) die ("%lld x %lld does not fit in 64 bits", (long long) a, (long long) b);
  return r;
}

double now (void)
{
  struct timespec t;
  clock_gettime (CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

uint64_t hash_bytes (const void *p, size_t n, uint64_t seed) { return XXH3_64bits_withSeed (p, n, seed); }

static void scaled (double x, double step, const char *const *unit, int n, char out[static 24])
{
  int i = 0;
  while (x >= step && i < n - 1) x /= step, i++;
  snprintf (out, 24, i ? "%.2f%s" : "%.0f%s", x, unit[i]);
}

void bytes_text (int64_t bytes, char out[static 24])
{
  static const char *const unit[] = { " B", " KiB", " MiB", " GiB", " TiB", " PiB" };
  scaled ((double) bytes, 1024, unit, LEN (unit), out);
}

void count_text (int64_t n, char out[static 24])
{
  static const char *const unit[] = { "", "K", "M", "B", "T" };
  scaled ((double) n, 1000, unit, LEN (unit), out);
}

size_t file_text (const char *path, char *text, size_t size)
{
  size_t n = 0;
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  for (ssize_t got; fd >= 0 && n < size - 1 && (got = read (fd, text + n, size - 1 - n)) > 0;) n += (size_t) got;
  if (fd >= 0) close (fd);
  text[n] = 0;
  return n;
}

int64_t file_number (const char *path, const char *key)
{
  char text[8192], *rest = text, *end;
  size_t n = strlen (key);
  file_text (path, text, sizeof text);
  for (char *line; (line = strsep (&rest, "\n"));) {
    if (strncmp (line, key, n)) continue;
    long long x = strtoll (line + n, &end, 10);
    if (end != line + n) return strstr (end, "kB") ? x * 1024 : x;
  }
  return -1;
}
