/* Readers of files that others wrote, on inputs that nobody wrote. FUZZ_TARGET names the reader. With -fsanitize=fuzzer libFuzzer drives; with FUZZ_MAIN this file's own
   main does: each file of the corpus, then SECONDS of changes to them that depend on a counter alone. Whatever the bytes are, a reader returns 0, or -1 with a sentence. */
#include "config.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "hf_config.h"
#include "safetensors.h"
#include "tokenizer.h"
#include "tokens.h"

static char dir[64];

/* One of this process's own; removed at the end. */
static const char *place (const char *name)
{
  static char path[4][160];
  static int k;
  if (!dir[0]) {
    strcpy (dir, "/dev/shm/fuzz.XXXXXX");   /* on a disk a file that is cut and written again costs more than all else */
    if (!mkdtemp (dir)) strcpy (dir, "/tmp/fuzz.XXXXXX");
    if (dir[1] == 't' && !mkdtemp (dir)) abort ();
  }
  k = (k + 1) % 4;
  snprintf (path[k], sizeof path[k], "%s/%s", dir, name);
  return path[k];
}

static const char *put (const char *name, const void *p, size_t n)
{
  const char *path = place (name);
  int fd = open (path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write (fd, p, n) != (ssize_t) n || close (fd)) abort ();
  return path;
}

static void clean (void)
{
  static const char *const name[] = { "config.json", "model.safetensors", "model.safetensors.index.json", "x.idx", "x.bin", "x.u16", "x.h5" };
  if (!dir[0]) return;
  for (int i = 0; i < LEN (name); i++) unlink (place (name[i]));
  rmdir (dir);
}

/* A failure says why; success says nothing. */
static void told (int rc, const struct err *e)
{
  if ((rc != 0) != (e->msg[0] != 0) || (rc && rc != -1)) abort ();
}

static void try_safetensors (const uint8_t *p, size_t n)
{
  struct st s;
  struct err e = { 0 };
  float x[64];
  int rc = st_open (&s, put ("model.safetensors", p, n), &e);
  told (rc, &e);
  for (int64_t i = 0; !rc && i < s.n; i++) {
    const struct st_tensor *t = &s.tensor[i];
    if (st_find (&s, t->name) != t) abort ();
    if (!wire_row[t->type].real || !t->count) continue;
    struct err why = { 0 };
    told (wire_get (s.fd[t->file], "x", t->at, t->type, MAX (t->count - 64, 0), MIN (t->count, 64), x, &why), &why);
    if (why.msg[0]) abort ();   /* the header was checked against the file */
  }
  st_close (&s);
}

/* The index of several files, beside one that is right. */
static void try_index (const uint8_t *p, size_t n)
{
  static const char file[] = "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}    xy";
  struct st s;
  struct err e = { 0 };
  put ("model.safetensors", file, sizeof file - 1);
  put ("model.safetensors.index.json", p, n);
  told (st_open (&s, dir, &e), &e);
  st_close (&s);
}

static void try_config (const uint8_t *p, size_t n)
{
  struct hf_config h;
  struct err e = { 0 };
  int rc = hf_config_read (&h, put ("config.json", p, n), NULL, NULL, &e);
  told (rc, &e);
  if (rc) return;
  char *text = hf_config_text (&h, &e);
  if (text) {   /* what was read is written, and reads back as the same */
    struct hf_config again;
    if (hf_config_read (&again, put ("config.json", text, strlen (text)), NULL, NULL, &e)) fprintf (stderr, "%s\n", e.msg), abort ();
    if (again.arch.dim != h.arch.dim || again.arch.vocab != h.arch.vocab || again.arch.rope_theta != h.arch.rope_theta) abort ();
  }
  xfree (text);
}

static void try_tokenizer (const uint8_t *p, size_t n)
{
  static const char text[] = "Hello, world's  12345\r\n\n  \xe4\xbd\xa0\xe5\xa5\xbd e\xcc\x81 \xf0\x9f\x91\x8d\xff\xc3 <|endoftext|><tool>x";
  struct err e = { 0 };
  struct tokenizer *t = bpe_open ("x", (const char *) p, (int64_t) n, NULL, &e);
  told (t ? 0 : -1, &e);
  if (!t) return;
  struct ids ids = { 0 };
  char *back = NULL;
  int64_t size = 0;
  told (tokenizer_encode (t, text, sizeof text - 1, &ids, &e), &e);
  for (int64_t i = 0; i < ids.n; i++) if (ids.at[i] < 0 || ids.at[i] >= t->vocab) abort ();
  tokenizer_decode (t, ids.at, ids.n, &back, &size);
  xfree (back);
  xfree (ids.at);
  tokenizer_close (t);
}

static void scan (const char *path, const char *format)
{
  struct tokens t;
  struct err e = { 0 };
  int32_t id[4];
  int rc = tokens_open (&t, path, format, 1000, &e);
  told (rc, &e);
  if (rc) return;
  rc = tokens_scan (&t, 1000, &e);
  told (rc, &e);
  if (!rc && t.count >= 4) told (tokens_read (&t, t.count - 4, 4, 1000, id, &e), &e);
  if (!rc) for (int64_t at = 0, k = 0; k < 100 && (at = tokens_next_document (&t, at)) < t.count; k++);
  xfree (tokens_text (&t));
  tokens_close (&t);
}

/* The .idx beside 64 bytes of ids; the input also as plain ids. */
static void try_megatron (const uint8_t *p, size_t n)
{
  static const uint8_t zero[64];
  put ("x.bin", zero, sizeof zero);
  scan (put ("x.idx", p, n), "megatron");
  scan (put ("x.u16", p, n), "u16");
}

static void try_hdf5 (const uint8_t *p, size_t n) { scan (put ("x.h5", p, n), "hdf5"); }

static const struct { const char *name; void (*run) (const uint8_t *, size_t); } target[] = {
  { "safetensors", try_safetensors }, { "index", try_index }, { "config", try_config }, { "tokenizer", try_tokenizer }, { "megatron", try_megatron }, { "hdf5", try_hdf5 },
};

/* Not what is tried here. */
struct tokenizer *spm_open (const char *path, const char *eod, struct err *e) { (void) eod; user_err (e, "%s", path); return NULL; }

int LLVMFuzzerTestOneInput (const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput (const uint8_t *p, size_t n)
{
  static int which = -1;
  if (which < 0) {
    const char *name = getenv ("FUZZ_TARGET");
    for (which = 0; which < LEN (target) && (!name || strcmp (name, target[which].name)); which++);
    if (which == LEN (target)) fprintf (stderr, "FUZZ_TARGET?\n"), exit (2);
    atexit (clean);
  }
  int64_t before = base_live ();
  target[which].run (p, n);
  if (base_live () != before) fprintf (stderr, "%lld blocks are left\n", (long long) (base_live () - before)), abort ();
  return 0;
}

#ifdef FUZZ_MAIN
#include <dirent.h>
#include <time.h>

static uint64_t state = 1;
static uint64_t chance (uint64_t n)
{
  state = state * 6364136223846793005 + 1442695040888963407;
  return (state >> 33) % n;
}

/* A few changes: bits, bytes of weight, pieces moved, doubled and taken out, digits that grow. */
static size_t change (uint8_t *p, size_t n, size_t room)
{
  for (int k = (int) chance (4) + 1; k > 0 && n; k--) {
    size_t at = chance (n), len = chance (MIN (n - at, 40)) + 1, to = chance (n);
    static const uint8_t odd[] = { 0, 0xff, 0x80, '"', '{', '[', '}', ']', ',', ':', '-', '9', '\\' };
    switch (chance (7)) {
    case 0: p[at] ^= (uint8_t) (1 << chance (8)); break;
    case 1: p[at] = odd[chance (sizeof odd)]; break;
    case 2: memmove (p + to, p + at, MIN (len, n - to)); break;
    case 3: memmove (p + at, p + at + len, n - at - len), n -= len; break;
    case 4: if (n + len <= room) memmove (p + at + len, p + at, n - at), n += len; break;
    case 5: for (size_t i = at; i < n && i < at + len; i++) if (p[i] >= '0' && p[i] <= '9') p[i] = '9'; break;
    case 6: if (n >= 8 && at <= n - 8) { uint64_t v = chance (2) ? UINT64_MAX >> chance (64) : chance (1000); memcpy (p + at, &v, 8); } break;
    }
  }
  return n;
}

int main (int argc, char **argv)
{
  enum { FILES = 256, ROOM = 1 << 20 };
  static uint8_t *file[FILES];
  static size_t size[FILES];
  uint8_t *p = malloc (ROOM);
  int n = 0;
  long runs = 0;
  for (int i = 2; i < argc; i++) {
    DIR *d = opendir (argv[i]);
    for (struct dirent *t; d && (t = readdir (d)) && n < FILES;) {
      char path[1024];
      snprintf (path, sizeof path, "%s/%s", argv[i], t->d_name);
      FILE *f = t->d_name[0] == '.' ? NULL : fopen (path, "rb");
      if (!f) continue;
      file[n] = malloc (ROOM);
      size[n] = fread (file[n], 1, ROOM / 2, f);
      fclose (f);
      LLVMFuzzerTestOneInput (file[n], size[n]);
      n++;
    }
    if (d) closedir (d);
  }
  if (!n) return fprintf (stderr, "no corpus\n"), 2;
  for (double end = now () + strtod (argv[1], NULL); now () < end; runs++) {
    int k = (int) chance ((uint64_t) n);
    memcpy (p, file[k], size[k]);
    LLVMFuzzerTestOneInput (p, change (p, size[k], ROOM));
  }
  printf ("%d files, %ld changes of them\n", n, runs);
  for (int i = 0; i < n; i++) free (file[i]);
  free (p);
  return 0;
}
#endif
