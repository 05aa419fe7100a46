/* tokenize_text: documents through a tokenizer, each rank its share. The text of all inputs is one stretch of bytes; rank r of N takes the documents that begin in its N-th
   part, writes their ids into a file of its own without a name, and when all have counted, to their place in the one token file. */
#include "config.h"
#include "ckpt_int.h"
#include "hdf.h"
#include "tokenize_int.h"
#include "tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 };

struct worker {
  const struct text_job *job;
  struct tokenizer *t;
  MPI_Comm world;
  int rank, size, bytes;           /* bytes: of an id in the file */
  int64_t *length;                 /* [inputs] */
  int64_t total;
  int spool;
  struct ids ids;
  int64_t tokens, documents;
  struct err *e;
};

/* --- reading: a window of one input that grows until it holds a whole document --- */

struct reader { const char *name; int fd; int64_t size, at; char *room, *buf; int64_t have, bytes; };   /* buf, inside of room[bytes], holds [at, at + have) */

/* At least WANT bytes from at on, or all there are. */
static int fill (struct reader *r, int64_t want, struct err *e)
{
  want = MIN (want, r->size - r->at);
  if (r->have >= want) return 0;
  int64_t lead = r->buf - r->room;
  if (lead + want + BLOCK > r->bytes) {   /* what is left to the front, and more room where that is not enough */
    if (lead) memmove (r->room, r->buf, (size_t) r->have);
    if (want + BLOCK > r->bytes) r->room = xrealloc (r->room, (size_t) (r->bytes = MAX (want + BLOCK, 2 * r->bytes)), "text");
    r->buf = r->room;
    lead = 0;
  }
  while (r->have < want) {
    ssize_t k = pread (r->fd, r->buf + r->have, (size_t) MIN (r->bytes - lead - r->have, r->size - r->at - r->have), r->at + r->have);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return world_err (e, "cannot read %s at byte %lld: %s", r->name, (long long) (r->at + r->have), strerror (errno));
    if (!k) return user_err (e, "%s became shorter while it was read (%lld of %lld bytes)", r->name, (long long) (r->at + r->have), (long long) r->size);
    r->have += k;
  }
  return 0;
}

static void advance (struct reader *r, int64_t n)
{
  r->buf += n;
  r->at += n;
  r->have -= n;
}

/* Bytes of the line at FROM behind at, with its newline; less only at the end of the file. -1. */
static int64_t line_at (struct reader *r, int64_t from, struct err *e)
{
  for (int64_t seen = from;;) {
    if (fill (r, seen + 1, e)) return -1;
    char *nl = memchr (r->buf + seen, '\n', (size_t) (r->have - seen));
    if (nl) return nl - (r->buf + from) + 1;
    if (r->at + r->have == r->size) return r->have - from;
    seen = r->have;
  }
}

static bool blank (const char *p, int64_t n) { return (n == 1 && *p == '\n') || (n == 2 && !memcmp (p, "\r\n", 2)); }

/* Bytes of the document at the reader's place, and of what ends it. 0: no text is left. -1. */
static int64_t next_document (struct reader *r, enum documents d, int64_t *after, struct err *e)
{
  *after = 0;
  if (d == DOC_NONE) return fill (r, r->size, e) ? -1 : r->have;
  if (d == DOC_LINES) {
    int64_t n = line_at (r, 0, e);
    if (n <= 0) return n;
    *after = r->buf[n - 1] != '\n' ? 0 : n > 1 && r->buf[n - 2] == '\r' ? 2 : 1;
    return n - *after;
  }
  for (int64_t n = 0, k;; n += k) {
    if ((k = line_at (r, n, e)) < 0) return -1;
    if (k && !blank (r->buf + n, k)) continue;
    *after = k;
    return n;
  }
}

/* To the first place at or after FROM where a document can begin. */
static int seek (struct reader *r, enum documents d, int64_t from, struct err *e)
{
  if (from <= 0) return 0;
  if (d == DOC_NONE) return r->at = r->size, r->have = 0, 0;
  r->at = MAX (from - 4, 0);   /* enough to see a newline, and an empty line, before FROM */
  bool empty = r->at == 0;     /* was the last line one? What is before the file ends documents */
  int64_t k = r->at ? line_at (r, 0, e) : 0;
  if (k < 0) return -1;
  if (r->at) empty = blank (r->buf, k) && from < 4;
  advance (r, k);
  while (r->at < r->size && (r->at < from || (d == DOC_BLANK && !empty))) {
    if ((k = line_at (r, 0, e)) < 0) return -1;
    empty = blank (r->buf, k);
    advance (r, k);
  }
  return 0;
}

/* --- ids out --- */

static int spill (struct worker *w)
{
  const char *p = (const char *) w->ids.at;
  int64_t left = w->ids.n * w->bytes;
  if (w->bytes == 2) for (int64_t i = 0; i < w->ids.n; i++) ((uint16_t *) w->ids.at)[i] = (uint16_t) w->ids.at[i];
  while (left) {
    ssize_t k = write (w->spool, p, (size_t) left);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return world_err (w->e, "cannot write ids beside %s: %s", w->job->out, strerror (errno));
    p += k, left -= k;
  }
  w->tokens += w->ids.n;
  w->ids.n = 0;
  return 0;
}

static int one_document (struct worker *w, const char *p, int64_t n)
{
  if (tokenizer_encode (w->t, p, n, &w->ids, w->e)) return -1;
  ids_put (&w->ids, (int32_t) w->t->eod);
  w->documents++;
  return w->ids.n >= BLOCK ? spill (w) : 0;
}

/* The documents of input I that begin in [lo, hi) of it. */
static int one_input (struct worker *w, int i, int64_t lo, int64_t hi)
{
  struct reader r = { .name = w->job->in[i], .size = w->length[i] };
  int64_t n = 0, after = 0;
  int rc = 0;
  if (hi <= 0 || lo >= r.size) return 0;
  if ((r.fd = open (r.name, O_RDONLY | O_CLOEXEC)) < 0) return user_err (w->e, "cannot open %s: %s", r.name, strerror (errno));
  rc = seek (&r, w->job->documents, lo, w->e);
  while (!rc && r.at < r.size && r.at < hi) {
    if ((n = next_document (&r, w->job->documents, &after, w->e)) < 0) rc = -1;
    else if (n) rc = one_document (w, r.buf, n);
    if (!rc) advance (&r, n + after);
  }
  close (r.fd);
  xfree (r.room);
  return rc;
}

static int my_share (struct worker *w)
{
  int64_t lo = (int64_t) ((__int128) w->total * w->rank / w->size), hi = (int64_t) ((__int128) w->total * (w->rank + 1) / w->size), base = 0;
  for (int i = 0; i < w->job->inputs; base += w->length[i++]) if (one_input (w, i, lo - base, hi - base)) return -1;
  return spill (w);
}

/* --- the steps that all take together --- */

static int look (struct worker *w)
{
  struct stat st;
  for (int i = 0; i < w->job->inputs; i++) {
    const char *name = w->job->in[i];
    if (!strcmp (name, "-")) return user_err (w->e, "standard input cannot be read by a tokenizer of a library: name a file");
    if (stat (name, &st)) return user_err (w->e, "cannot open %s: %s", name, strerror (errno));
    if (!S_ISREG (st.st_mode)) return user_err (w->e, "%s is no text file%s", name, S_ISDIR (st.st_mode) ? ", but a folder" : "");
    w->total += w->length[i] = st.st_size;
  }
  w->t = tokenizer_open (w->job->tokenizer, w->job->eod, w->e);
  if (!w->t) return -1;
  w->bytes = w->t->vocab <= 65536 ? 2 : 4;
  char *name = xprintf ("%s.XXXXXX", w->job->out);
  if ((w->spool = mkstemp (name)) < 0) world_err (w->e, "cannot make a temporary file %s: %s", name, strerror (errno));
  else unlink (name);
  xfree (name);
  return w->spool < 0 ? -1 : 0;
}

/* My ids from the spool to byte TO of FD. */
static int copy (struct worker *w, int fd, int64_t to)
{
  char *block = xalloc (BLOCK, "text");
  int rc = 0;
  for (int64_t at = 0, k, size = w->tokens * w->bytes; at < size && !rc; at += k) {
    if ((k = pread (w->spool, block, (size_t) MIN (BLOCK, size - at), at)) <= 0) rc = world_err (w->e, "cannot read the ids beside %s again: %s", w->job->out, strerror (errno));
    for (int64_t done = 0, d; done < k && !rc; done += d)
      if ((d = pwrite (fd, block + done, (size_t) (k - done), to + at + done)) < 0) rc = world_err (w->e, "cannot write %s: %s", w->job->out, strerror (errno));
  }
  xfree (block);
  return rc;
}

static int create (struct worker *w, const char *tmp, int64_t tokens, int64_t *offset)
{
  const char *slash = strrchr (w->job->tokenizer, '/');
  struct token_file f = { tokens, w->t->vocab, w->t->eod, w->bytes, w->t->name, slash ? slash + 1 : w->job->tokenizer };
  int fd = open (tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return world_err (w->e, "cannot create %s: %s", tmp, strerror (errno));
  int rc = tokenize_reserve (tmp, fd, tokens * w->bytes + 65536, w->e);
  close (fd);
  hdf_quiet ();
  if (!rc && tokenize_make (tmp, &f, offset)) rc = world_err (w->e, "HDF5 cannot create %s: %s", tmp, hdf_why ());
  return rc;
}

static int write_file (struct worker *w, const char *tmp, int64_t before, int64_t all)
{
  int64_t offset = 0;
  int bad = w->rank ? 0 : create (w, tmp, all, &offset), fd = -1;
  if (ckpt_agree (w->world, bad, w->e)) return -1;
  ckpt_bcast (w->world, &offset, sizeof offset);
  if ((fd = open (tmp, O_WRONLY | O_CLOEXEC)) < 0) bad = world_err (w->e, "cannot open %s: %s", tmp, strerror (errno));
  else bad = copy (w, fd, offset + before * w->bytes);
  if (fd >= 0 && fsync (fd) && !bad) bad = world_err (w->e, "cannot sync %s: %s", tmp, strerror (errno));
  if (fd >= 0) close (fd);
  if (ckpt_agree (w->world, bad, w->e)) return -1;
  bad = !w->rank && rename (tmp, w->job->out) ? world_err (w->e, "cannot rename %s: %s", tmp, strerror (errno)) : 0;
  return ckpt_agree (w->world, bad, w->e);
}

static int run (struct worker *w)
{
  double start = now ();
  MPI_Request q;
  base_phase ("tokenize");
  if (ckpt_agree (w->world, look (w), w->e) || ckpt_agree (w->world, my_share (w), w->e)) return -1;
  int64_t mine[2] = { w->tokens, w->documents }, upto[2], all[2];
  MPI_Iscan (mine, upto, 2, MPI_INT64_T, MPI_SUM, w->world, &q);
  wait_all (1, &q);
  MPI_Iallreduce (mine, all, 2, MPI_INT64_T, MPI_SUM, w->world, &q);
  wait_all (1, &q);
  if (!all[0]) return user_err (w->e, "there is no text in %s%s", w->job->in[0], w->job->inputs > 1 ? " and the others" : "");
  char *tmp = xprintf ("%s.tmp", w->job->out);
  int rc = write_file (w, tmp, upto[0] - mine[0], all[0]);
  if (rc && !w->rank) unlink (tmp);
  xfree (tmp);
  double seconds = now () - start;
  if (!rc)
    say (SAY_INFO, "%s: %lld tokens, %lld document%s, vocabulary %lld, %.2f s (%.1f MB/s)", w->job->out, (long long) all[0], (long long) all[1], all[1] == 1 ? "" : "s", (long long) w->t->vocab, seconds,
         (double) w->total / 1e6 / seconds);
  return rc;
}

static void abort_all (int code)
{
  MPI_Abort (MPI_COMM_WORLD, code);
  _exit (code);
}

int tokenize_text (const struct text_job *job, int *argc, char ***argv)
{
  struct err e = { 0 };
  struct worker w = { .job = job, .spool = -1, .e = &e };
  int have, rc;
  wait_before_mpi ();
  MPI_Init_thread (argc, argv, MPI_THREAD_FUNNELED, &have);
  w.world = MPI_COMM_WORLD;
  MPI_Comm_rank (w.world, &w.rank);
  MPI_Comm_size (w.world, &w.size);
  base_rank (w.rank, w.size, abort_all);
  w.length = xalloc ((size_t) job->inputs * sizeof *w.length, "text");
  rc = mesh_launch_check (w.size, &e) || run (&w) ? -1 : 0;
  if (rc) say (SAY_ERROR, "%s", e.msg);
  tokenizer_close (w.t);
  if (w.spool >= 0) close (w.spool);
  xfree (w.ids.at);
  xfree (w.length);
  MPI_Finalize ();
  return rc ? e.code ? e.code : EXIT_USER : EXIT_DONE;
}
