/* A dataset from its first element to its last, with its checksum: by a thread that reads ahead where a core is to spare, so that the disk, the checksum and what is done
   with the elements overlap. */
#include "ckpt_int.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#define XXH_INLINE_ALL   /* for this machine's vectors: half as fast again as the library */
#include <xxhash.h>

/* Elements read and summed at once, little enough for a core's own cache; of a window where a thread reads ahead and copies to a device should be few. */
enum { BITE = 1 << 15, WINDOW = CKPT_STAGE / 4 };
enum { RING = 4, WORTH = 16 };    /* windows read ahead; windows below which no thread is worth it */

struct stream {
  struct ckpt_file *f;
  int kind, rank;
  int64_t window;                /* elements */
  XXH3_state_t *hash;
  float *ring[RING];
  pthread_mutex_t lock;
  pthread_cond_t moved;
  int64_t filled, taken;         /* windows */
  bool stop;                     /* the reader shall end; or has failed */
  struct err err;
};


static int64_t count (const struct stream *s) { return s->f->index.rank[s->rank].count; }
static int64_t windows (const struct stream *s) { return ceil_div (count (s), s->window); }
static int64_t window_at (const struct stream *s, int64_t i) { return i * s->window; }
static int64_t window_n (const struct stream *s, int64_t i) { return MIN (s->window, count (s) - i * s->window); }

/* Window I into BUF: as it lies in the file at its end, so that it can be widened in place. */
static int fill (struct stream *s, int64_t i, float *buf)
{
  int64_t n = window_n (s, i), size = dtype_size (file_type (s->f, s->kind));
  char *raw = (char *) buf + n * (4 - size);
  for (int64_t at = 0, k; at < n; at += k) {
    k = MIN (BITE, n - at);
    if (file_plain (s->f, s->kind, s->rank, window_at (s, i) + at, k, raw + at * size, &s->err)) return -1;
    XXH3_64bits_update (s->hash, raw + at * size, (size_t) (k * size));
  }
  return 0;
}

static int show (const struct stream *s, int64_t i, float *buf, file_see *see, void *ctx)
{
  if (!see) return 0;
  if (file_type (s->f, s->kind) == DT_BF16) h5_widen (buf, window_n (s, i));
  return see (ctx, window_at (s, i), window_n (s, i), buf);
}

static int stream_here (struct stream *s, file_see *see, void *ctx)
{
  for (int64_t i = 0; i < windows (s); i++)
    if (fill (s, i, s->f->buf) || show (s, i, s->f->buf, see, ctx)) return -1;
  return 0;
}

/* --- with a reader --- */

static void *reader (void *p)
{
  struct stream *s = p;
  for (int64_t i = 0; i < windows (s); i++) {
    pthread_mutex_lock (&s->lock);
    while (i - s->taken >= RING && !s->stop) pthread_cond_wait (&s->moved, &s->lock);
    bool stop = s->stop;
    pthread_mutex_unlock (&s->lock);
    if (stop) break;
    int bad = fill (s, i, s->ring[i % RING]);
    pthread_mutex_lock (&s->lock);
    s->filled += !bad;
    s->stop |= bad;
    pthread_cond_signal (&s->moved);
    pthread_mutex_unlock (&s->lock);
  }
  return NULL;
}

/* Is window I there? Waits for it. */
static bool ready (struct stream *s, int64_t i)
{
  pthread_mutex_lock (&s->lock);
  while (s->filled <= i && !s->stop) pthread_cond_wait (&s->moved, &s->lock);
  bool there = s->filled > i;
  pthread_mutex_unlock (&s->lock);
  return there;
}

static void release (struct stream *s, bool stop)
{
  pthread_mutex_lock (&s->lock);
  s->taken++;
  s->stop |= stop;
  pthread_cond_signal (&s->moved);
  pthread_mutex_unlock (&s->lock);
}

static int stream_ahead (struct stream *s, file_see *see, void *ctx)
{
  pthread_t t;
  sigset_t all, old;
  int bad = 0;
  pthread_mutex_init (&s->lock, NULL);
  pthread_cond_init (&s->moved, NULL);
  for (int i = 0; i < RING; i++) s->ring[i] = xalloc ((size_t) CKPT_STAGE, "ckpt stage");
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  bool threaded = !pthread_create (&t, NULL, reader, s);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  if (!threaded) bad = stream_here (s, see, ctx);
  for (int64_t i = 0; i < windows (s) && threaded && !bad; i++) {
    bad = !ready (s, i) || show (s, i, s->ring[i % RING], see, ctx);
    release (s, bad);
  }
  if (threaded) pthread_join (t, NULL);
  for (int i = 0; i < RING; i++) xfree (s->ring[i]);
  pthread_cond_destroy (&s->moved);
  pthread_mutex_destroy (&s->lock);
  return bad;
}

int file_stream (struct ckpt_file *f, int kind, int rank, file_see *see, void *ctx, struct err *e)
{
  struct stream s = { .f = f, .kind = kind, .rank = rank, .window = WINDOW, .hash = XXH3_createState () };
  must (s.hash, "out of host memory");
  XXH3_64bits_reset (s.hash);
  bool ahead = f->spare && windows (&s) >= WORTH;
  if (!ahead) s.window = BITE;
  int bad = ahead ? stream_ahead (&s, see, ctx) : stream_here (&s, see, ctx);
  uint64_t sum = XXH3_64bits_digest (s.hash), kept = f->index.rank[rank].sum[kind];
  XXH3_freeState (s.hash);
  if (bad) return s.err.msg[0] ? world_err (e, "%s", s.err.msg) : -1;
  if (sum == kept) return 0;
  return world_err (e, "%s is damaged: /%s/rank%05d has checksum %016llx, kept was %016llx", f->path, ckpt_group[kind], rank, (unsigned long long) sum,
                    (unsigned long long) kept);
}
