/* What one rank writes: its elements by plain writes at the places that the file's structure gave them. System calls only, so that threads of its own may do it. */
#define _GNU_SOURCE
#include "ckpt_saving.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUN = SAVE_RUN, LENT = 16 };  /* pieces of memory that a run may lie in; more are copied together */
#define EAGER ((int64_t) 32 << 20)   /* bytes written before the disk is told */

static enum dtype type_of (const struct ckpt_saving *v, int kind) { return kind == CKPT_MASTER ? DT_F32 : v->s.moments; }

static int put_out (struct ckpt_saving *v, const void *buf, int64_t bytes, int64_t at, struct err *e)
{
  for (const char *p = buf; bytes; ) {
    ssize_t n = pwrite (v->fd, p, (size_t) bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return world_err (e, "cannot write %s: %s", v->tmp, strerror (n ? errno : ENOSPC));
    p += n, at += n, bytes -= n;
    v->written += n;
  }
  return 0;
}

/* N fp32 become bf16 in place. */
static void narrow (float *buf, int64_t n)
{
  char *to = (char *) buf;
  for (int64_t i = 0; i < n; i++) {
    bf16 x = f32_to_bf16 (buf[i]);
    memcpy (to + 2 * i, &x, 2);
  }
}

/* --- elements: the datasets are cut into runs of blocks, which threads take one after the other in the order of the file --- */

struct writer { struct ckpt_saving *v; int64_t runs; atomic_llong next; atomic_bool stop; double disk[TEAM_MAX]; struct err err[TEAM_MAX]; };   /* disk: seconds to start it */
struct lent { const void *p; int64_t bytes; };

/* The slice that holds element AT of my datasets. */
static int slice_at (const struct ckpt_saving *v, int64_t at)
{
  int lo = 0, hi = v->slices - 1;
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (v->slice[mid].offset <= at) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

/* Elements [at, at + n) where they lie, if that can be seen, needs no rounding and is in few pieces; else in BUF. */
static int lend (const struct ckpt_saving *v, enum ckpt_kind kind, int64_t at, int64_t n, float *buf, struct lent out[static LENT])
{
  const struct ckpt_state *s = &v->s;
  bool seen = s->see && type_of (v, kind) == DT_F32;
  int first = slice_at (v, at), last = slice_at (v, at + n - 1), pieces = 0;
  if (last - first >= LENT) seen = false;
  for (int64_t i = first, done = 0, k; done < n; i++, done += k) {
    const struct source *from = &v->source[i];
    int64_t skip = at + done - v->slice[i].offset, lo = from->lo + skip;
    k = MIN (n - done, from->n - skip);
    if (seen) out[pieces++] = (struct lent) { s->see (s->ctx, kind, from->unit, lo), k * 4 };
    else if (s->see) memcpy (buf + done, s->see (s->ctx, kind, from->unit, lo), (size_t) k * 4);
    else s->get (s->ctx, kind, from->unit, lo, k, buf + done);
  }
  if (seen) return pieces;
  if (type_of (v, kind) == DT_BF16) narrow (buf, n);
  out[0] = (struct lent) { buf, n * dtype_size (type_of (v, kind)) };
  return 1;
}

/* The checksums of blocks of BLOCK bytes (the last has fewer) that lie in pieces of memory. */
static void sum_blocks (const struct lent *piece, int pieces, int64_t block, struct sum *h, uint64_t *sum)
{
  int64_t have = 0;   /* bytes of the block at hand that are in h */
  for (int i = 0; i < pieces; i++)
    for (int64_t k = 0, n; k < piece[i].bytes; k += n) {
      const char *p = (const char *) piece[i].p + k;
      n = MIN (block - have, piece[i].bytes - k);
      bool ends = have + n == block || (k + n == piece[i].bytes && i == pieces - 1);
      if (ends && !have) *sum++ = sum_of (p, n);
      else {
        sum_add (h, p, n);
        if (ends) *sum++ = sum_end (h);
      }
      have = ends ? 0 : have + n;
    }
}

/* After run I of a dataset: the disk starts on what is written while the rest is; at the end there is less to wait for. Some file systems do not know it, and need not. */
static void start_disk (struct writer *w, enum ckpt_kind kind, int64_t i, int64_t run, int who)
{
  int64_t stretch = MAX (1, EAGER / run), from = i / stretch * stretch;
  double t = now ();
  if ((i + 1) % stretch && i + 1 < w->runs) return;
  sync_file_range (w->v->fd, w->v->at[kind] + from * run, (i + 1 - from) * run, SYNC_FILE_RANGE_WRITE);
  w->disk[who] += now () - t;
}

static int write_run (struct writer *w, enum ckpt_kind kind, int64_t i, int who, struct sum *h)
{
  struct ckpt_saving *v = w->v;
  struct lent piece[LENT];
  int64_t size = dtype_size (type_of (v, kind)), run = RUN * v->index.block, lo = i * run, n = MIN (run, v->me.count - lo), at = v->at[kind] + lo * size;
  int pieces = lend (v, kind, lo, n, v->buf + who * run, piece);
  sum_blocks (piece, pieces, v->index.block * size, h, v->sum + kind * v->blocks + i * RUN);
  for (int p = 0; p < pieces; at += piece[p++].bytes)
    if (put_out (v, piece[p].p, piece[p].bytes, at, &w->err[who])) return -1;
  start_disk (w, kind, i, run * size, who);
  return 0;
}

static int write_some (void *ctx, int who)
{
  struct writer *w = ctx;
  struct sum *h = sum_new ();
  for (int64_t i; !w->stop && (i = w->next++) < w->runs * CKPT_KINDS; )
    if (write_run (w, (enum ckpt_kind) (i / w->runs), i % w->runs, who, h)) w->stop = true;
  sum_free (h);
  return w->err[who].msg[0] ? -1 : 0;
}

/* What only `get` gives, one thread asks for. */
int save_write (struct ckpt_saving *v)
{
  struct writer *w = xalloc (sizeof *w, "ckpt");
  w->v = v;
  w->runs = ceil_div (v->me.count, RUN * v->index.block);
  int bad = team_run (v->s.see ? v->threads : 1, write_some, w);
  for (int i = TEAM_MAX - 1; i >= 0; i--) {
    if (w->err[i].msg[0]) v->err = w->err[i];
    v->disk = MAX (v->disk, w->disk[i]);
  }
  xfree (w);
  v->wrote = now ();
  for (int k = 0; k < CKPT_KINDS && !bad; k++) v->me.sum[k] = hash_bytes (v->sum + k * v->blocks, (size_t) v->blocks * sizeof *v->sum, 0);
  return bad;
}

/* --- to the disk, and the name --- */

/* EINVAL: this kind of folder cannot be synced. */
static int sync_fd (int fd, const char *path, struct err *e)
{
  while (fsync (fd))
    if (errno != EINTR) return errno == EINVAL ? 0 : world_err (e, "cannot sync %s: %s", path, strerror (errno));
  return 0;
}

int save_sync (struct ckpt_saving *v) { return v->local_rank ? 0 : sync_fd (v->fd, v->tmp, &v->err); }

static int sync_folder (const char *path, struct err *e)
{
  int fd = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return world_err (e, "cannot sync %s: %s", path, strerror (errno));
  int rc = sync_fd (fd, path, e);
  close (fd);
  return rc;
}

/* HDF5 may give back bytes at the end when it comes to rest. */
static int check_size (struct ckpt_saving *v)
{
  struct stat st;
  if (fstat (v->fd, &st)) return world_err (&v->err, "%s: %s", v->tmp, strerror (errno));
  if (st.st_size < v->bytes) return world_err (&v->err, "%s has %lld bytes and should have %lld", v->tmp, (long long) st.st_size, (long long) v->bytes);
  if (ftruncate (v->fd, v->bytes)) return world_err (&v->err, "cannot cut %s: %s", v->tmp, strerror (errno));
  return 0;
}

int save_name (struct ckpt_saving *v)
{
  if (v->rank) return 0;
  if (check_size (v) || sync_fd (v->fd, v->tmp, &v->err)) return -1;
  if (rename (v->tmp, v->name)) return world_err (&v->err, "cannot rename %s: %s", v->tmp, strerror (errno));
  return sync_folder (v->folder, &v->err);
}

/* --- a thread for it --- */

static void *work (void *p)
{
  struct ckpt_saving *v = p;
  v->rc = v->work (v);
  v->done = true;
  return NULL;
}

/* Signals are the main thread's. Where there is no thread to be had, the main thread does the work when it comes to wait for it. */
void save_start (struct ckpt_saving *v, int (*f) (struct ckpt_saving *v))
{
  sigset_t all, old;
  v->work = f;
  v->done = false;
  if (!v->behind) return;
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  v->running = !pthread_create (&v->thread, NULL, work, v);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
}

static void tell_watchdog (const struct ckpt_saving *v)
{
  char text[64], n[24];
  bytes_text (v->written, n);
  snprintf (text, sizeof text, "save, %s written", n);
  base_phase (text);
}

int save_wait (struct ckpt_saving *v)
{
  if (!v->running) work (v);
  for (int64_t seen = -1; v->running && !v->done; usleep (2000))
    if (v->written != seen) seen = v->written, tell_watchdog (v);
  if (v->running) pthread_join (v->thread, NULL);
  v->running = false;
  return v->rc;
}
