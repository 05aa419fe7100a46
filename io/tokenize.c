#include "config.h"
#include "tokenize.h"
#include "hdf.h"
#include "tokenize_int.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The byte tokenizer: ids 0 to 255 are bytes, EOD ends a document. */
enum { EOD = 256, VOCAB = 257, BLOCK = 1 << 18 };

struct sink {
  int fd;                 /* -1: count only */
  const char *path;
  int64_t tokens, documents;
  int n;                  /* ids in buf */
  uint16_t buf[BLOCK];
  struct err *e;
  bool failed;
};

/* Where a cutter stands in its input. */
struct cut { bool inside, line_start, held_cr; };

struct input { const char *name; int fd; int64_t bytes; };   /* fd >= 0: a spooled copy; else opened when it is read */

struct job {
  const struct cutter *cutter;
  struct input *in;
  int inputs;
  const char *out, *tokenizer, *eod;
  char *tmp;
  bool made;              /* tmp exists */
  int64_t tokens, documents, text_bytes;
};

/* --- ids out --- */

static void flush (struct sink *s)
{
  const char *p = (const char *) s->buf;
  size_t left = s->n * sizeof *s->buf;
  s->n = 0;
  while (left && s->fd >= 0 && !s->failed) {
    ssize_t k = write (s->fd, p, left);
    if (k > 0) p += k, left -= (size_t) k;
    else if (k < 0 && errno != EINTR) s->failed = true, world_err (s->e, "cannot write %s: %s", s->path, strerror (errno));
  }
}

static inline void put (struct sink *s, int id)
{
  s->buf[s->n++] = (uint16_t) id;
  s->tokens++;
  if (s->n == BLOCK) flush (s);
}

static void end_document (struct sink *s)
{
  put (s, EOD);
  s->documents++;
}

/* --- where documents end: each cutter eats a block of a file's bytes; all end the open document at the end of the file --- */

static void cut_none (struct sink *s, struct cut *c, const unsigned char *p, int64_t n)
{
  c->inside |= n > 0;
  while (n) {
    int64_t k = MIN (n, BLOCK - s->n);
    for (int64_t i = 0; i < k; i++) s->buf[s->n + i] = p[i];
    p += k, n -= k, s->n += (int) k, s->tokens += k;
    if (s->n == BLOCK) flush (s);
  }
}

/* A line is a document, without its newline (or CR and newline); empty lines are none. */
static void cut_lines (struct sink *s, struct cut *c, const unsigned char *p, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    if (c->held_cr && p[i] != '\n') put (s, '\r'), c->inside = true;
    if ((c->held_cr = p[i] == '\r')) continue;
    if (p[i] != '\n') put (s, p[i]), c->inside = true;
    else if (c->inside) end_document (s), c->inside = false;
  }
}

/* Empty lines (of a newline, or CR and newline) end a document and belong to none. */
static void cut_blank (struct sink *s, struct cut *c, const unsigned char *p, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    if (c->line_start && !c->held_cr && p[i] == '\r') {
      c->held_cr = true;
      continue;
    }
    if (c->line_start && p[i] == '\n') {
      if (c->inside) end_document (s);
      c->inside = c->held_cr = false;
      continue;
    }
    if (c->held_cr) put (s, '\r');
    put (s, p[i]);
    c->inside = true;
    c->held_cr = false;
    c->line_start = p[i] == '\n';
  }
}

static const struct cutter {
  const char *name;
  void (*cut) (struct sink *, struct cut *, const unsigned char *, int64_t);
} cutters[] = {
  [DOC_NONE] = { "none", cut_none }, [DOC_LINES] = { "lines", cut_lines }, [DOC_BLANK] = { "blank", cut_blank },
};

/* --- text in --- */

static ssize_t read_some (const struct input *in, int fd, unsigned char *p, int64_t at, struct err *e)
{
  ssize_t n;
  while ((n = pread (fd, p, BLOCK, at)) < 0 && errno == EINTR);
  if (n < 0) world_err (e, "cannot read %s at byte %lld: %s", in->name, (long long) at, strerror (errno));
  if (!n) user_err (e, "%s became shorter while it was read (%lld of %lld bytes)", in->name, (long long) at,
                    (long long) in->bytes);
  return n;
}

/* One whole input through the cutter. */
static int stream (const struct job *job, const struct input *in, struct sink *s)
{
  static unsigned char block[BLOCK];
  struct cut c = { .line_start = true };
  ssize_t n = 1;
  int fd = in->fd >= 0 ? in->fd : open (in->name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return user_err (s->e, "cannot open %s: %s", in->name, strerror (errno));
  for (int64_t at = 0; n > 0 && !s->failed && at < in->bytes; at += n)
    if ((n = read_some (in, fd, block, at, s->e)) > 0) job->cutter->cut (s, &c, block, MIN (n, in->bytes - at));
  if (in->fd < 0) close (fd);
  if (c.held_cr) put (s, '\r'), c.inside = true;
  if (c.inside) end_document (s);
  return s->failed || n <= 0 ? -1 : 0;
}

/* Copy what can be read only once into a file without a name in the folder of OUT. */
static int spool (struct input *in, int from, const char *out, struct err *e)
{
  static unsigned char block[BLOCK];
  char *name = xprintf ("%s.XXXXXX", out);
  int rc = 0;
  if ((in->fd = mkstemp (name)) < 0) rc = world_err (e, "cannot make a temporary file %s: %s", name, strerror (errno));
  else unlink (name);
  xfree (name);
  while (!rc) {
    ssize_t n = read (from, block, BLOCK), done = 0;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) rc = world_err (e, "cannot read %s: %s", in->name, strerror (errno));
    if (n <= 0) break;
    for (ssize_t k = 0; done < n && k >= 0; done += k)
      if ((k = write (in->fd, block + done, (size_t) (n - done))) < 0)
        rc = world_err (e, "cannot write a temporary copy of %s beside %s: %s", in->name, out, strerror (errno));
    in->bytes += n;
  }
  return rc;
}

static int look_at (struct input *in, const char *out, struct err *e)
{
  struct stat st;
  bool standard = !strcmp (in->name, "-");
  if (standard) in->name = "standard input";
  int rc = 0, fd = standard ? dup (0) : open (in->name, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat (fd, &st)) return user_err (e, "cannot open %s: %s", in->name, strerror (errno));
  if (S_ISDIR (st.st_mode)) rc = user_err (e, "%s is a folder, not a text file", in->name);
  else if (standard || !S_ISREG (st.st_mode)) rc = spool (in, fd, out, e);
  else in->bytes = st.st_size;
  close (fd);
  return rc;
}

/* How many tokens and documents there will be. */
static int measure (struct job *job, struct sink *s)
{
  for (int i = 0; i < job->inputs; i++) {
    const struct input *in = &job->in[i];
    job->text_bytes += in->bytes;
    if (job->cutter->cut != cut_none) {
      if (stream (job, in, s)) return -1;
    } else if (in->bytes) s->tokens += in->bytes + 1, s->documents++;
  }
  job->tokens = s->tokens;
  job->documents = s->documents;
  if (!s->tokens) return user_err (s->e, "there is no text in %s%s", job->in[0].name, job->inputs > 1 ? " and the others" : "");
  return 0;
}

/* --- the file --- */

int tokenize_reserve (const char *path, int fd, int64_t bytes, struct err *e)
{
  int rc;
  while ((rc = fallocate (fd, 0, 0, bytes)) && errno == EINTR);
  if (!rc || errno == EOPNOTSUPP || errno == ENOSYS) return 0;
  return world_err (e, "cannot reserve %lld bytes for %s: %s", (long long) bytes, path, strerror (errno));
}

int tokenize_make (const char *path, const struct token_file *f, int64_t *offset)
{
  hsize_t dim = (hsize_t) f->count;
  hid_t root = H5Pcreate (H5P_FILE_CREATE);
  H5Pset_obj_track_times (root, false);   /* the same text is the same file, whenever */
  hid_t file = H5Fcreate (path, H5F_ACC_TRUNC, root, hdf_fapl ());
  H5Pclose (root);
  if (file < 0) return -1;
  hid_t plist = H5Pcreate (H5P_DATASET_CREATE);
  H5Pset_layout (plist, H5D_CONTIGUOUS);
  H5Pset_alloc_time (plist, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time (plist, H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times (plist, false);
  hid_t space = H5Screate_simple (1, &dim, NULL);
  hid_t set = H5Dcreate2 (file, "tokens", f->bytes == 2 ? H5T_STD_U16LE : H5T_STD_U32LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  int bad = set < 0 || hdf_put_int (file, "format", 1) || hdf_put_int (file, "vocab", f->vocab) || hdf_put_int (file, "eod", f->eod)
            || hdf_put_text (file, "tokenizer", f->tokenizer) || (f->file && hdf_put_text (file, "tokenizer_file", f->file));
  *offset = set < 0 ? 0 : (int64_t) H5Dget_offset (set);
  if (set >= 0) H5Dclose (set);
  H5Sclose (space);
  H5Pclose (plist);
  return H5Fclose (file) < 0 || bad ? -1 : 0;
}

static int create (struct job *job, struct sink *s)
{
  int64_t offset = 0, room = job->tokens * (int64_t) sizeof *s->buf;
  int rc = 0, fd = open (job->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return world_err (s->e, "cannot create %s: %s", job->tmp, strerror (errno));
  job->made = true;
  rc = tokenize_reserve (job->tmp, fd, room + 65536, s->e);
  close (fd);
  hdf_quiet ();
  if (!rc && tokenize_make (job->tmp, &(struct token_file) { job->tokens, VOCAB, EOD, 2, "bytes", NULL }, &offset)) rc = world_err (s->e, "HDF5 cannot create %s: %s", job->tmp, hdf_why ());
  if (rc) return -1;
  if ((s->fd = open (job->tmp, O_WRONLY | O_CLOEXEC)) < 0 || lseek (s->fd, offset, SEEK_SET) < 0)
    return world_err (s->e, "cannot open %s: %s", job->tmp, strerror (errno));
  return tokenize_reserve (job->tmp, s->fd, offset + room, s->e);
}

/* All ids are in the file: on the disk with them, then under the name. */
static int finish (struct job *job, struct sink *s)
{
  flush (s);
  if (s->failed) return -1;
  if (s->tokens != job->tokens)
    return user_err (s->e, "the text changed while it was read: %lld tokens, then %lld", (long long) job->tokens,
                     (long long) s->tokens);
  int bad = fsync (s->fd);
  bad |= close (s->fd);
  s->fd = -1;
  if (bad || rename (job->tmp, job->out)) return world_err (s->e, "cannot finish %s: %s", job->out, strerror (errno));
  return 0;
}

static int write_all (struct job *job, struct sink *s)
{
  s->tokens = s->documents = s->n = 0;
  if (create (job, s)) return -1;
  for (int i = 0; i < job->inputs; i++)
    if (stream (job, &job->in[i], s)) return -1;
  return finish (job, s);
}

static int run (struct job *job, struct err *e)
{
  double start = now ();
  struct sink *s = xalloc (sizeof *s, "tokenize");
  s->fd = -1;
  s->path = job->tmp;
  s->e = e;
  int rc = 0;
  for (int i = 0; !rc && i < job->inputs; i++) rc = look_at (&job->in[i], job->out, e);
  if (!rc) rc = measure (job, s) || write_all (job, s) ? -1 : 0;
  if (rc && job->made) unlink (job->tmp);
  if (s->fd >= 0) close (s->fd);
  for (int i = 0; i < job->inputs; i++)
    if (job->in[i].fd >= 0) close (job->in[i].fd);
  xfree (s);
  double seconds = now () - start;
  if (!rc)
    say (SAY_INFO, "%s: %lld tokens, %lld document%s, vocabulary %d, %.2f s (%.0f MB/s)", job->out, (long long) job->tokens,
         (long long) job->documents, job->documents == 1 ? "" : "s", VOCAB, seconds, (double) job->text_bytes / 1e6 / seconds);
  return rc;
}

/* --- the command line --- */

static const char help[] =
  "usage: pretrain tokenize [--tokenizer bytes] [--documents none|lines|blank] IN.txt... OUT.h5\n"
  "       [mpiexec -n N] pretrain tokenize --tokenizer FILE [--documents none|lines|blank] [--eod TOKEN] IN.txt... OUT.h5\n"
  "\n"
  "Turns text into a token file that data.train can name. IN may be - (standard input).\n"
  "\n"
  "  --tokenizer NAME   bytes (default): each byte is a token, id 256 ends a document; vocabulary 257\n"
  "                     or a file: Hugging Face's tokenizer.json (byte-level BPE: GPT-2, Llama 3, Qwen) or a SentencePiece model;\n"
  "                     ranks share the documents, which with --documents none are whole files\n"
  "  --eod TOKEN        the token of that file that ends a document (left out: <|endoftext|>, <|end_of_text|> or </s>)\n"
  "  --documents MODE   where documents end, beside at the end of each input:\n"
  "                     none (default)  nowhere\n"
  "                     lines           each line is a document; line ends and empty lines are dropped\n"
  "                     blank           empty lines stand between documents and are dropped\n"
  "  --help             this\n"
  "\n"
  "OUT.h5 holds /tokens (uint16 or uint32, contiguous) and the attributes format, vocab, eod and tokenizer (kind and hash of the file). It appears when it is whole.\n";

static bool ends (const char *s, const char *end)
{
  size_t n = strlen (s), m = strlen (end);
  return n >= m && !strcmp (s + n - m, end);
}

static int check_documents (const char *name, struct job *job, struct err *e)
{
  for (int i = 0; i < LEN (cutters); i++)
    if (!strcmp (name, cutters[i].name)) return job->cutter = &cutters[i], 0;
  return user_err (e, "tokenize: --documents %s is not known: none, lines or blank", name);
}

/* 1: help was asked for and given. */
static int parse (int argc, char **argv, struct job *job, struct err *e)
{
  static const struct option options[] = { { "tokenizer", 1, 0, 't' }, { "documents", 1, 0, 'd' }, { "eod", 1, 0, 'e' }, { "help", 0, 0, 'h' }, { 0 } };
  int c;
  optind = 0;   /* GNU: start afresh; the caller may have read options of its own */
  opterr = 0;
  while ((c = getopt_long (argc, argv, ":h", options, NULL)) != -1) {
    if (c == 'h') return fputs (help, stdout), 1;
    if (c == ':') return user_err (e, "tokenize: %s needs a value", argv[optind - 1]);
    if (c == '?') return user_err (e, "tokenize: option %s is not known; see pretrain tokenize --help", argv[optind - 1]);
    if (c == 't') job->tokenizer = optarg;
    if (c == 'e') job->eod = optarg;
    if (c == 'd' && check_documents (optarg, job, e)) return -1;
  }
  job->inputs = argc - optind - 1;
  if (job->inputs < 1)
    return user_err (e, "tokenize: name at least one text file and the output: pretrain tokenize IN.txt... OUT.h5");
  job->out = argv[argc - 1];
  if (!ends (job->out, ".h5") && !ends (job->out, ".hdf5"))
    return user_err (e, "tokenize: the last name is the output and must end in .h5, not %s", job->out);
  if (strcmp (job->tokenizer, "bytes") && access (job->tokenizer, R_OK))
    return user_err (e, "tokenize: cannot open the tokenizer %s: %s; it is bytes or a file", job->tokenizer, strerror (errno));
  if (!strcmp (job->tokenizer, "bytes") && job->eod) return user_err (e, "tokenize: --eod goes with a tokenizer's file; of bytes it is 256");
  return 0;
}

/* Bytes need one process; where a launcher started several, the others have nothing to do. */
static bool is_first (void)
{
  static const char *const rank[] = { "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PALS_RANKID" };
  for (int i = 0; i < LEN (rank); i++) {
    const char *s = getenv (rank[i]);
    if (s && *s) return !strcmp (s, "0");
  }
  return true;
}

int tokenize_main (int argc, char **argv)
{
  struct job job = { .cutter = &cutters[0], .tokenizer = "bytes" };
  struct err e = { 0 };
  signal (SIGXFSZ, SIG_IGN);   /* a limit on file sizes becomes an error with a sentence */
  int rc = parse (argc, argv, &job, &e);
  if (rc > 0) return EXIT_DONE;
  bool bytes = !strcmp (job.tokenizer, "bytes");
  if (!is_first () && (rc || bytes)) return rc ? EXIT_USER : EXIT_DONE;
  if (!rc && !bytes)
    return tokenize_text (&(struct text_job) { job.tokenizer, job.eod, (enum documents) (job.cutter - cutters), argv + argc - 1 - job.inputs, job.inputs, job.out }, &argc, &argv);
  if (!rc) {
    job.in = xalloc (job.inputs * sizeof *job.in, "tokenize");
    job.tmp = xprintf ("%s.tmp", job.out);
    for (int i = 0; i < job.inputs; i++) job.in[i] = (struct input) { .name = argv[argc - 1 - job.inputs + i], .fd = -1 };
    rc = run (&job, &e);
    xfree (job.tmp);
    xfree (job.in);
  }
  if (rc) say (SAY_ERROR, "%s", e.msg);
  return rc ? e.code ? e.code : EXIT_USER : EXIT_DONE;
}
