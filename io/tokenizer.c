#include "config.h"
#include "tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- UTF-8 --- */

/* Bytes of the character at P, of which LEFT are there; 0: none, *skip: its maximal part (Unicode 3.9, table 3-7). */
static int64_t character (const unsigned char *p, int64_t left, int64_t *skip)
{
  unsigned char c = p[0], lo = 0x80, hi = 0xbf;
  int64_t need = c < 0x80 ? 1 : c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
  if (c == 0xe0) lo = 0xa0;
  if (c == 0xed) hi = 0x9f;
  if (c == 0xf0) lo = 0x90;
  if (c == 0xf4) hi = 0x8f;
  *skip = 1;
  if (!need) return 0;
  for (int64_t i = 1; i < need; i++, lo = 0x80, hi = 0xbf) {
    *skip = i;
    if (i >= left || p[i] < lo || p[i] > hi) return 0;
  }
  return need;
}

int64_t utf8_bad (const char *text, int64_t at, int64_t n, int64_t *skip)
{
  const unsigned char *p = (const unsigned char *) text;
  while (at < n) {
    uint64_t eight;
    for (; at + 8 <= n; at += 8) {
      memcpy (&eight, p + at, 8);
      if (eight & 0x8080808080808080) break;
    }
    if (at >= n) break;
    int64_t k = character (p + at, n - at, skip);
    if (!k) return at;
    at += k;
  }
  return n;
}

const char *utf8_whole (const char *text, int64_t *n, char **fixed)
{
  int64_t skip = 0, bad = utf8_bad (text, 0, *n, &skip), from = 0, out = 0;
  *fixed = NULL;
  if (bad == *n) return text;
  char *copy = *fixed = xalloc ((size_t) *n * 3 + 1, "text");   /* a part of one byte becomes three */
  for (;;) {
    memcpy (copy + out, text + from, (size_t) (bad - from));
    out += bad - from;
    if (bad == *n) break;
    memcpy (copy + out, "\xef\xbf\xbd", 3);
    out += 3;
    from = bad + skip;
    bad = utf8_bad (text, from, *n, &skip);
  }
  *n = out;
  return copy;
}

/* --- bytes --- */

static int bytes_encode (struct tokenizer *t, const char *text, int64_t n, struct ids *out, struct err *e)
{
  (void) t, (void) e;
  for (int64_t i = 0; i < n; i++) ids_put (out, (unsigned char) text[i]);
  return 0;
}

static void bytes_decode (struct tokenizer *t, const int32_t *ids, int64_t count, char **text, int64_t *n)
{
  (void) t;
  *text = xrealloc (*text, (size_t) (*n + count + 1), "text");
  for (int64_t i = 0; i < count; i++) if (ids[i] >= 0 && ids[i] < 256) (*text)[(*n)++] = (char) ids[i];
}

static void bytes_close (struct tokenizer *t) { xfree (t); }

static const struct tokenizer_ops bytes_ops = { bytes_encode, bytes_decode, bytes_close };

/* --- files --- */

enum { LARGEST = 512 << 20 };

/* The whole file, xalloc'd with a zero behind it. */
static char *read_file (const char *path, int64_t *n, struct err *e)
{
  struct stat st;
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  char *p = NULL;
  if (fd < 0 || fstat (fd, &st)) user_err (e, "cannot open the tokenizer %s: %s", path, strerror (errno));
  else if (!S_ISREG (st.st_mode)) user_err (e, "the tokenizer %s is no file; a folder of Hugging Face's has tokenizer.json in it", path);
  else if (st.st_size > LARGEST) user_err (e, "the tokenizer %s has %lld bytes: too large to be believed", path, (long long) st.st_size);
  else {
    int64_t done = 0, k = 1;
    p = xalloc ((size_t) st.st_size + 1, "tokenizer");
    for (; done < st.st_size && k > 0; done += k) if ((k = read (fd, p + done, (size_t) (st.st_size - done))) < 0) k = errno == EINTR ? 1 : -1, done -= k > 0;
    *n = st.st_size;
    if (done < st.st_size) world_err (e, "cannot read the tokenizer %s: %s", path, strerror (errno)), xfree (p), p = NULL;
  }
  if (fd >= 0) close (fd);
  return p;
}

/* JSON begins with a brace; SentencePiece's protocol buffer with a field. */
static bool is_json (const char *p, int64_t n)
{
  int64_t i = 0;
  if (n >= 3 && !memcmp (p, "\xef\xbb\xbf", 3)) i = 3;
  while (i < n && strchr (" \t\r\n", p[i]) && p[i]) i++;
  return i < n && p[i] == '{';
}

static void name_of (const char *p, int64_t n, char out[static TOKENIZER_NAME])
{
  snprintf (out, TOKENIZER_NAME, "%s %016llx", is_json (p, n) ? "bpe" : "sentencepiece", (unsigned long long) hash_bytes (p, (size_t) n, 0));
}

int tokenizer_name (const char *path, char out[static TOKENIZER_NAME], struct err *e)
{
  int64_t n = 0;
  if (!strcmp (path, "bytes")) return strcpy (out, "bytes"), 0;
  char *p = read_file (path, &n, e);
  if (!p) return -1;
  name_of (p, n, out);
  xfree (p);
  return 0;
}

struct tokenizer *tokenizer_open (const char *path, const char *eod, struct err *e)
{
  int64_t n = 0;
  struct tokenizer *t = NULL;
  if (!strcmp (path, "bytes")) {
    t = xalloc (sizeof *t, "tokenizer");
    *t = (struct tokenizer) { &bytes_ops, 257, 256, "bytes" };
    return t;
  }
  char *p = read_file (path, &n, e);
  if (p) t = is_json (p, n) ? bpe_open (path, p, n, eod, e) : spm_open (path, eod, e);
  if (t) name_of (p, n, t->name);
  xfree (p);
  return t;
}

void tokenizer_close (struct tokenizer *t)
{
  if (t) t->ops->close (t);
}
