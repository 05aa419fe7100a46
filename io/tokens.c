#include "config.h"
#include "tokens_int.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little-endian and are mapped as they are");

/* Unaligned on purpose: HDF5 promises no alignment. The compilers make vector loads of it. */
#define READER(name, type)                                                          \
  static uint64_t read_##name (const unsigned char *p, int64_t n, int32_t *out)     \
  {                                                                                 \
    uint64_t top = 0;                                                               \
    for (int64_t i = 0; i < n; i++) {                                               \
      type v;                                                                       \
      memcpy (&v, p + i * (int64_t) sizeof v, sizeof v);                            \
      uint64_t u = (uint64_t) (int64_t) v;                                          \
      top = u > top ? u : top;                                                      \
      out[i] = (int32_t) v;                                                         \
    }                                                                               \
    return top;                                                                     \
  }
READER (u8, uint8_t)
READER (u16, uint16_t)
READER (u32, uint32_t)
READER (i32, int32_t)
READER (i64, int64_t)

const struct token_kind token_u8 = { "uint8", 1, UINT8_MAX, read_u8 }, token_u16 = { "uint16", 2, UINT16_MAX, read_u16 }, token_u32 = { "uint32", 4, INT32_MAX, read_u32 };
static const struct token_kind I32 = { "int32", 4, INT32_MAX, read_i32 },
  I64 = { "int64", 8, INT32_MAX, read_i64 };

static int map_file (struct map *m, const char *path, struct err *e)
{
  struct stat st;
  int rc = -1, fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return user_err (e, "cannot open %s: %s", path, strerror (errno));
  if (fstat (fd, &st)) world_err (e, "cannot look at %s: %s", path, strerror (errno));
  else if (!S_ISREG (st.st_mode)) user_err (e, "%s is not a regular file, so it cannot be mapped", path);
  else if (!st.st_size) user_err (e, "%s is empty (0 bytes)", path);
  else {
    void *p = mmap (NULL, (size_t) st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) world_err (e, "cannot map %s (%lld bytes): %s", path, (long long) st.st_size, strerror (errno));
    else *m = (struct map) { p, st.st_size }, rc = 0;
  }
  close (fd);
  /* Windows are read in a random order: the system's own reading ahead would fetch what nobody wants; tokens_want asks. */
  if (!rc) madvise ((void *) m->at, (size_t) m->bytes, MADV_RANDOM);
  return rc;
}

static void unmap (struct map *m)
{
  if (m->at) munmap ((void *) m->at, (size_t) m->bytes);
  *m = (struct map) { 0 };
}

/* --- a file that is cut short under our feet, or a disk that fails, is a SIGBUS: said as any failure of the world is --- */

static struct tokens *mapped;   /* all open files */

static void on_bus (int sig, siginfo_t *info, void *context)
{
  (void) context;
  for (const struct tokens *t = mapped; t; t = t->next)
    for (int i = 0; i < 2; i++) {
      const struct map *m = i ? &t->index : &t->file;
      int64_t at = (const unsigned char *) info->si_addr - m->at;
      if (m->at && at >= 0 && at < m->bytes)
        die ("%s%s cannot be read at byte %lld: it was cut short since it was opened, or its disk failed", t->path,
             i ? " (its .idx)" : "", (long long) at);
    }
  signal (sig, SIG_DFL);   /* not ours: the instruction faults again */
}

static void watch (struct tokens *t)
{
  struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
  if (!mapped) sigaction (SIGBUS, &action, NULL);
  t->next = mapped;
  mapped = t;
}

static void unwatch (const struct tokens *t)
{
  for (struct tokens **p = &mapped; *p; p = &(*p)->next)
    if (*p == t) {
      *p = t->next;
      return;
    }
}

/* --- HDF5 --- */

static int open_hdf5 (struct tokens *t, const char *path, struct err *e)
{
  t->path = xstrdup (path, "tokens");
  return map_file (&t->file, path, e) ? -1 : tokens_hdf5 (t, e);
}

/* --- Megatron: "MMIDIDX\0\0", version, code of the type, numbers of sequences and documents, then int32 lengths [sequences],
   int64 byte offsets [sequences], int64 first sequences [documents] and, for several modes, int8 modes [sequences] --- */

enum { IDX_VERSION = 9, IDX_CODE = 17, IDX_SEQUENCES = 18, IDX_DOCUMENTS = 26, IDX_TABLES = 34 };

static int64_t idx_i64 (const struct tokens *t, int64_t at)
{
  int64_t v;
  memcpy (&v, t->index.at + at, 8);
  return v;
}
static int64_t idx_length (const struct tokens *t, int64_t i)
{
  int32_t v;
  memcpy (&v, t->index.at + IDX_TABLES + 4 * i, 4);
  return v;
}
static int64_t idx_start (const struct tokens *t, int64_t i) { return idx_i64 (t, IDX_TABLES + 4 * t->sequences + 8 * i); }
static int64_t idx_document (const struct tokens *t, int64_t k) { return idx_i64 (t, IDX_TABLES + 12 * t->sequences + 8 * k); }

static int idx_header (struct tokens *t, const char *idx, struct err *e)
{
  static const struct token_kind *const kind[] = { [1] = &token_u8, [4] = &I32, [5] = &I64, [8] = &token_u16 };
  if (t->index.bytes < IDX_TABLES || memcmp (t->index.at, "MMIDIDX\0\0", 9))
    return user_err (e, "%s is not a Megatron index (no MMIDIDX at byte 0)", idx);
  if (idx_i64 (t, IDX_VERSION) != 1)
    return user_err (e, "%s: index version %lld at byte %d is not known; this pretrain reads version 1", idx,
                     (long long) idx_i64 (t, IDX_VERSION), IDX_VERSION);
  int code = t->index.at[IDX_CODE];
  if (code >= LEN (kind) || !kind[code])
    return user_err (e, "%s: type code %d at byte %d is none of uint8 (1), int32 (4), int64 (5), uint16 (8)", idx, code,
                     IDX_CODE);
  t->kind = kind[code];
  t->sequences = idx_i64 (t, IDX_SEQUENCES);
  t->documents = idx_i64 (t, IDX_DOCUMENTS);
  int64_t n = t->sequences, d = t->documents, rest = t->index.bytes - IDX_TABLES;
  if (n < 0 || d < 0 || n > rest / 12 || d > rest / 8 || (rest != 12 * n + 8 * d && rest != 13 * n + 8 * d))
    return user_err (e, "%s: %lld bytes do not fit its %lld sequences and %lld documents", idx, (long long) t->index.bytes,
                     (long long) n, (long long) d);
  if (!n) return user_err (e, "%s has no sequences", idx);
  return 0;
}

static int open_megatron (struct tokens *t, const char *path, struct err *e)
{
  size_t n = strlen (path);
  int stem = n > 4 && (!strcmp (path + n - 4, ".bin") || !strcmp (path + n - 4, ".idx")) ? (int) n - 4 : (int) n;
  t->path = xprintf ("%.*s.bin", stem, path);
  char *idx = xprintf ("%.*s.idx", stem, path);
  int rc = map_file (&t->index, idx, e) || idx_header (t, idx, e) || map_file (&t->file, t->path, e) ? -1 : 0;
  if (!rc) {
    int64_t last = t->sequences - 1, end;
    if (__builtin_add_overflow (idx_start (t, last), idx_length (t, last) * t->kind->bytes, &end)) end = -1;
    t->count = t->file.bytes / t->kind->bytes;
    if (idx_start (t, 0) || end != t->file.bytes)
      rc = user_err (e, "%s has %lld bytes, but %s says that its sequences lie at bytes %lld to %lld", t->path,
                     (long long) t->file.bytes, idx, (long long) idx_start (t, 0), (long long) end);
    else if (t->file.bytes % t->kind->bytes)
      rc = user_err (e, "%s: %lld bytes are not a whole number of %s tokens", t->path, (long long) t->file.bytes, t->kind->name);
  }
  xfree (idx);
  return rc;
}

/* Token at which document K starts: the end of the file where the table points behind the last sequence. */
static int64_t document_start (const struct tokens *t, int64_t k)
{
  int64_t s = idx_document (t, k);
  return s < 0 || s >= t->sequences ? t->count : idx_start (t, s) / t->kind->bytes;
}

int64_t tokens_next_document (const struct tokens *t, int64_t at)
{
  int64_t lo = 0, hi = t->documents;
  while (lo < hi) {
    int64_t mid = lo + (hi - lo) / 2;
    if (document_start (t, mid) > at) hi = mid;
    else lo = mid + 1;
  }
  return lo < t->documents ? document_start (t, lo) : INT64_MAX;
}

bool tokens_has_documents (const struct tokens *t) { return t->eod >= 0 || t->documents > 0; }

static int scan_index (const struct tokens *t, struct err *e)
{
  int64_t at = 0, before = 0;
  for (int64_t i = 0; i < t->sequences; i++) {
    if (idx_start (t, i) != at || idx_length (t, i) < 0)
      return user_err (e, "%s: its index puts sequence %lld (%lld tokens) at byte %lld, "
                       "not at byte %lld where the one before ends", t->path, (long long) i, (long long) idx_length (t, i),
                       (long long) idx_start (t, i), (long long) at);
    at += idx_length (t, i) * t->kind->bytes;
  }
  for (int64_t k = 0; k < t->documents; k++) {
    int64_t s = idx_document (t, k);
    if (s < before || s > t->sequences)
      return user_err (e, "%s: its index lets document %lld start at sequence %lld, not between %lld and %lld", t->path,
                       (long long) k, (long long) s, (long long) before, (long long) t->sequences);
    before = s;
  }
  return 0;
}

/* --- flat --- */

static int open_flat (struct tokens *t, const char *path, const struct token_kind *kind, struct err *e)
{
  t->path = xstrdup (path, "tokens");
  t->kind = kind;
  if (map_file (&t->file, path, e)) return -1;
  if (t->file.bytes % kind->bytes)
    return user_err (e, "%s: %lld bytes are not a whole number of %s tokens", path, (long long) t->file.bytes, kind->name);
  t->count = t->file.bytes / kind->bytes;
  return 0;
}
static int open_u16 (struct tokens *t, const char *path, struct err *e) { return open_flat (t, path, &token_u16, e); }
static int open_u32 (struct tokens *t, const char *path, struct err *e) { return open_flat (t, path, &token_u32, e); }

/* --- which format --- */

static const struct format {
  const char *name, *ends[3];
  int (*open) (struct tokens *, const char *, struct err *);
} formats[] = {
  { "hdf5", { ".h5", ".hdf5" }, open_hdf5 },
  { "megatron", { ".idx" }, open_megatron },
  { "u16", { ".u16" }, open_u16 },
  { "u32", { ".u32" }, open_u32 },
};
enum { HDF5, MEGATRON };

static bool ends (const char *path, const char *end)
{
  size_t n = strlen (path), m = strlen (end);
  return n > m && !strcmp (path + n - m, end);
}

/* Does STEM (CUT bytes less at its end) have a file END beside it? */
static bool beside (const char *path, int cut, const char *end)
{
  char *other = xprintf ("%.*s%s", (int) strlen (path) - cut, path, end);
  bool there = !access (other, F_OK);
  xfree (other);
  return there;
}

static const struct format *guess (const char *path, struct err *e)
{
  char head[8] = "";
  for (int i = 0; i < LEN (formats); i++)
    for (int k = 0; formats[i].ends[k]; k++)
      if (ends (path, formats[i].ends[k])) return &formats[i];
  if (ends (path, ".bin") && beside (path, 4, ".idx")) return &formats[MEGATRON];
  if (access (path, F_OK) && beside (path, 0, ".idx")) return &formats[MEGATRON];
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return user_err (e, "cannot open %s: %s", path, strerror (errno)), NULL;
  ssize_t n = read (fd, head, sizeof head);
  close (fd);
  if (n == sizeof head && !memcmp (head, "\211HDF\r\n\032\n", sizeof head)) return &formats[HDF5];
  user_err (e, "%s: its name does not tell the format; set data.format to hdf5, megatron (a .bin with its .idx), u16 or u32",
            path);
  return NULL;
}

static const struct format *choose (const char *path, const char *format, struct err *e)
{
  if (!format || !*format || !strcmp (format, "auto")) return guess (path, e);
  for (int i = 0; i < LEN (formats); i++)
    if (!strcmp (format, formats[i].name)) return &formats[i];
  user_err (e, "data.format %s is not known: auto, hdf5, megatron, u16 or u32", format);
  return NULL;
}

/* A file that does not say how many ids its tokenizer has is taken to have as many as the model: its type must hold them all. */
static int check_vocab (const struct tokens *t, int64_t vocab, struct err *e)
{
  int64_t own = t->vocab ? t->vocab : vocab;
  if (t->vocab > vocab)
    return user_err (e, "%s: its vocabulary of %lld ids is larger than the model's %lld", t->path, (long long) t->vocab,
                     (long long) vocab);
  if (own - 1 > t->kind->top)
    return user_err (e, "%s: its type %s holds ids up to %lld, too narrow for a vocabulary of %lld", t->path, t->kind->name,
                     (long long) t->kind->top, (long long) own);
  if (t->eod >= own)
    return user_err (e, "%s: attribute eod %lld is outside the vocabulary of %lld", t->path, (long long) t->eod, (long long) own);
  return 0;
}

int tokens_open (struct tokens *t, const char *path, const char *format, int64_t vocab, struct err *e)
{
  *t = (struct tokens) { .eod = -1 };
  const struct format *f = choose (path, format, e);
  if (!f) return -1;
  t->format = f->name;
  if (f->open (t, path, e) || check_vocab (t, vocab, e)) {
    tokens_close (t);
    return -1;
  }
  t->ids = t->file.at + t->offset;
  watch (t);
  return 0;
}

void tokens_close (struct tokens *t)
{
  unwatch (t);
  unmap (&t->file);
  unmap (&t->index);
  xfree (t->path);
  t->path = NULL;
}

/* --- reading --- */

static void want (const struct tokens *t, const unsigned char *p, int64_t bytes)
{
  int64_t page = sysconf (_SC_PAGESIZE), from = (p - t->file.at) / page * page, to = (p - t->file.at) + bytes;
  madvise ((void *) (t->file.at + from), (size_t) (to - from), MADV_WILLNEED);
}

void tokens_want (const struct tokens *t, int64_t first, int64_t n)
{
  want (t, t->ids + first * t->kind->bytes, n * t->kind->bytes);
  if (t->mask) want (t, t->mask + first, n);
}

/* The sentence for the first of N ids at FIRST that is not below BOUND, widened from its own type. */
static int outside (const struct tokens *t, int64_t first, int64_t n, int64_t bound, const char *whose, struct err *e)
{
  int32_t narrow;
  for (int64_t i = first; i < first + n; i++) {
    int64_t at = t->offset + i * t->kind->bytes;
    uint64_t u = t->kind->read (t->file.at + at, 1, &narrow);
    if (u >= (uint64_t) bound)
      return user_err (e, "%s: token %lld at byte %lld (token %lld) is outside %s vocabulary of %lld", t->path, (long long) u,
                       (long long) at, (long long) i, whose, (long long) bound);
  }
  return 0;
}

int tokens_read (const struct tokens *t, int64_t first, int64_t n, int64_t vocab, int32_t *out, struct err *e)
{
  uint64_t top = t->kind->read (t->ids + first * t->kind->bytes, n, out);
  if (top >= (uint64_t) vocab) return outside (t, first, n, vocab, "the", e);
  if (t->vocab && top >= (uint64_t) t->vocab) return outside (t, first, n, t->vocab, "the file's own", e);
  return 0;
}

int tokens_scan (const struct tokens *t, int64_t vocab, struct err *e)
{
  enum { BLOCK = 1 << 18 };
  int32_t *row = xalloc (BLOCK * sizeof *row, "scan");
  int rc = scan_index (t, e);
  madvise ((void *) t->file.at, (size_t) t->file.bytes, MADV_SEQUENTIAL);
  for (int64_t i = 0; !rc && i < t->count; i += BLOCK) rc = tokens_read (t, i, MIN (BLOCK, t->count - i), vocab, row, e);
  madvise ((void *) t->file.at, (size_t) t->file.bytes, MADV_RANDOM);
  xfree (row);
  return rc;
}

/* Small files whole; of large ones 64 pages at even distances, the first and the last among them. */
static uint64_t sample_hash (const struct map *m)
{
  enum { PIECE = 4096, PIECES = 64 };
  uint64_t h = 0;
  if (m->bytes <= 16 * PIECE * PIECES) return m->at ? hash_bytes (m->at, (size_t) m->bytes, 0) : 0;
  for (int64_t i = 0; i < PIECES; i++) {
    int64_t at = (m->bytes - PIECE) / PIECE * i / (PIECES - 1) * PIECE;
    if (i == PIECES - 1) at = m->bytes - PIECE;
    h = hash_bytes (m->at + at, PIECE, h);
  }
  return h;
}

char *tokens_text (const struct tokens *t)
{
  return xprintf ("%s: %s, %lld bytes, %lld tokens of %s from byte %lld, vocabulary %lld, eod %lld, content %016llx %016llx",
                  t->path, t->format, (long long) t->file.bytes, (long long) t->count, t->kind->name, (long long) t->offset,
                  (long long) t->vocab, (long long) t->eod,
                  (unsigned long long) sample_hash (&t->file), (unsigned long long) sample_hash (&t->index));
}
