/* What one rank writes: its elements by plain writes at the places that the file's structure gave them. System calls only, so that a thread of its own may do it. */
#define _GNU_SOURCE
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
#define EAGER ((int64_t) 32 << 20)  /* bytes written before the disk is told */

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

/* --- elements --- */

/* The disk starts on what is written while the rest is: at the end there is less to wait for. Some file systems do not know it, and need not. */
static void start_disk (struct ckpt_saving *v, int64_t at, int64_t *begun, bool all)
{
  if (at - *begun < EAGER && !all) return;
  sync_file_range (v->fd, *begun, at - *begun, SYNC_FILE_RANGE_WRITE);
  *begun = at;
}

/* Bytes of a dataset as they come: summed (HASH not NULL) and written from AT on. */
struct sink { struct ckpt_saving *v; XXH3_state_t *hash; int64_t at, begun; bool write; };

static int sink_put (struct sink *k, const void *p, int64_t bytes)
{
  for (const char *c = p; bytes; ) {
    int64_t n = MIN (bytes, CKPT_STAGE / 2);   /* in the core's cache from the sum to the write */
    if (k->hash) XXH3_64bits_update (k->hash, c, (size_t) n);
    if (k->write && put_out (k->v, c, n, k->at)) return -1;
    c += n, k->at += n, bytes -= n;
    if (k->write) start_disk (k->v, k->at, &k->begun, false);
  }
  return 0;
}

/* All of one kind: long stretches from where they lie, if that can be seen and needs no rounding; else through a buffer that stays in the core's cache. */
static int pour (struct ckpt_saving *v, enum ckpt_kind kind, struct sink *k)
{
  enum dtype type = type_of (v, kind);
  int64_t used = 0, left = v->me.count;
  for (int i = 0; i < v->slices; i++) {
    const struct source *s = &v->source[i];
    if (v->s.see && type == DT_F32 && (s->n >= WINDOW || !k->write)) {
      if (sink_put (k, v->buf, used * 4) || sink_put (k, v->s.see (v->s.ctx, kind, s->unit, s->lo), s->n * 4)) return -1;
      left -= s->n, used = 0;
      continue;
    }
    for (int64_t lo = 0, n; lo < s->n; lo += n) {
      n = MIN (s->n - lo, WINDOW - used);
      v->s.get (v->s.ctx, kind, s->unit, s->lo + lo, n, v->buf + used);
      used += n, left -= n;
      if (used < WINDOW && left) continue;
      if (type == DT_BF16) narrow (v->buf, used);
      if (sink_put (k, v->buf, used * dtype_size (type))) return -1;
      used = 0;
    }
  }
  if (sink_put (k, v->buf, used * dtype_size (type))) return -1;
  if (k->write) start_disk (v, k->at, &k->begun, true);
  return 0;
}

static int do_kind (struct ckpt_saving *v, enum ckpt_kind kind, bool hash, bool write)
{
  struct sink k = { v, hash ? XXH3_createState () : NULL, v->at[kind], v->at[kind], write };
  if (hash && !k.hash) return world_err (&v->err, "out of host memory");
  if (hash) XXH3_64bits_reset (k.hash);
  int bad = pour (v, kind, &k);
  if (hash) v->me.sum[kind] = XXH3_64bits_digest (k.hash);
  XXH3_freeState (k.hash);
  return bad;
}

static int do_all (struct ckpt_saving *v, bool hash, bool write)
{
  for (int k = 0; k < CKPT_KINDS; k++) if (do_kind (v, k, hash, write)) return -1;
  return 0;
}

static void *sum_beside (void *v) { return do_all (v, true, false) ? v : NULL; }

/* With a core to spare and nothing to copy or round, the checksums are made beside the writing. */
int save_write (struct ckpt_saving *v)
{
  pthread_t t;
  bool beside = v->spare && v->s.see && v->s.moments == DT_F32 && v->me.count >= 4 * WINDOW && !pthread_create (&t, NULL, sum_beside, v);
  if (!beside) return do_all (v, true, true);
  void *failed;
  int bad = do_all (v, false, true);
  pthread_join (t, &failed);
  return bad || failed ? -1 : 0;
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
