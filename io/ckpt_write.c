/* What one rank writes: its elements by plain writes at the places that the file's structure gave them. System calls only, so that a thread of its own may do it. */
#include "ckpt_saving.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL   /* for this machine's vectors: half as fast again as the library */
#include <xxhash.h>

#define WINDOW (CKPT_STAGE / 4)   /* elements */

static enum dtype type_of (const struct ckpt_saving *v, int kind) { return kind == CKPT_MASTER ? DT_F32 : v->s.moments; }

static int put_out (struct ckpt_saving *v, const void *buf, int64_t bytes, int64_t at)
{
  for (const char *p = buf; bytes; ) {
    ssize_t n = pwrite (v->fd, p, (size_t) bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return world_err (&v->err, "cannot write %s: %s", v->tmp, strerror (n ? errno : ENOSPC));
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

/* All of one kind through a buffer that stays in the core's cache: filled, narrowed, summed, written. */
static int write_kind (struct ckpt_saving *v, enum ckpt_kind kind)
{
  enum dtype type = type_of (v, kind);
  int64_t used = 0, at = v->at[kind], left = v->me.count;
  XXH3_state_t *h = XXH3_createState ();
  if (!h) return world_err (&v->err, "out of host memory");
  XXH3_64bits_reset (h);
  int bad = 0;
  for (int i = 0; i < v->slices && !bad; i++)
    for (int64_t lo = 0, n; lo < v->source[i].n && !bad; lo += n) {
      n = MIN (v->source[i].n - lo, WINDOW - used);
      v->s.get (v->s.ctx, kind, v->source[i].unit, v->source[i].lo + lo, n, v->buf + used);
      used += n, left -= n;
      if (used < WINDOW && left) continue;
      int64_t bytes = used * dtype_size (type);
      if (type == DT_BF16) narrow (v->buf, used);
      XXH3_64bits_update (h, v->buf, (size_t) bytes);
      bad = put_out (v, v->buf, bytes, at);
      at += bytes;
      used = 0;
    }
  v->me.sum[kind] = XXH3_64bits_digest (h);
  XXH3_freeState (h);
  return bad;
}

int save_write (struct ckpt_saving *v)
{
  for (int k = 0; k < CKPT_KINDS; k++) if (write_kind (v, k)) return -1;
  return 0;
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

/* The blocks taken beyond the end go back; a file of another size than HDF5 made was written over by somebody else. */
static int check_size (struct ckpt_saving *v)
{
  struct stat st;
  if (fstat (v->fd, &st)) return world_err (&v->err, "%s: %s", v->tmp, strerror (errno));
  if (st.st_size != v->bytes) return world_err (&v->err, "%s has %lld bytes and should have %lld", v->tmp, (long long) st.st_size, (long long) v->bytes);
  if (ftruncate (v->fd, st.st_size)) return world_err (&v->err, "cannot cut %s: %s", v->tmp, strerror (errno));
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
