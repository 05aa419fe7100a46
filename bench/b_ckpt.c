/* Checkpoints against the disk itself. In each round the same ranks write bytes raw and read them, then save the same bytes, load on the mesh that wrote and load on
   another, from the same memory and into the same; the figures are raw time over ours, the median over the rounds (NAME_ratio) and the least of each (NAME_best).
   The first round is not counted: it verifies what was loaded, to the byte.
   usage: mpiexec -n N bench/b_ckpt FOLDER [MB in all [rounds [warm|cold]]]   cold: files leave the page cache before they are read. bench/b_ckpt.sh runs the cases that count. */
#define _GNU_SOURCE
#include "ckpt.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHUNK ((int64_t) 1 << 20)
enum { ROUNDS = 100, HUGE = 2 << 20 };

/* A mesh with its parts in host memory, which is of the kind that the cpu device gives: huge pages, where there are. */
struct rig { struct mesh mesh; struct units units; struct ckpt_state s; float **part; };   /* part[unit * kinds + kind][shard] */

struct bench {
  struct conf conf;
  struct mesh world;
  struct rig from, to, other, narrow;   /* written; loaded on the same mesh, on one cut along all axes, on one whose rows are as short as they get */
  struct ckpt_cost cost;
  char dir[1000];
  bool cold, others, narrows;    /* there are such meshes */
  int64_t wrote;                 /* bytes that this rank gave to write calls in the last save */
};

static void get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  memcpy (dst, ((struct rig *) ctx)->part[unit * CKPT_KINDS + k] + lo, (size_t) n * 4);
}

static const float *see (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return ((struct rig *) ctx)->part[unit * CKPT_KINDS + k] + lo; }

static float *lay (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return ((struct rig *) ctx)->part[unit * CKPT_KINDS + k] + lo; }

static void put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  memcpy (((struct rig *) ctx)->part[unit * CKPT_KINDS + k] + lo, src, (size_t) n * 4);
}

static void open_rig (struct bench *b, struct rig *r, int dp, int pp, int tp)
{
  struct err e = { 0 };
  struct mesh_shape shape = { .dim = { tp, pp, dp, 1 }, .order = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE }, .kv_rep = 1 };
  must (!mesh_open (&r->mesh, MPI_COMM_WORLD, &e) && !mesh_split (&r->mesh, &shape, true, &e), "%s", e.msg);
  struct unit_place p = { tp, r->mesh.coord[AXIS_TP], pp, r->mesh.coord[AXIS_PP], 1, dp, r->mesh.coord[AXIS_DP_SHARD], 64 };
  must (!units_make (&r->units, &b->conf, &p, &e), "%s", e.msg);
  int n = r->units.count * CKPT_KINDS;
  r->part = xalloc ((size_t) n * sizeof (float *), "bench");
  for (int i = 0; i < n; i++) {
    size_t bytes = (size_t) r->units.unit[i / CKPT_KINDS].shard * 4;
    r->part[i] = aligned_alloc (HUGE, (size_t) round_up ((int64_t) bytes, HUGE));
    must (r->part[i], "out of memory");
    madvise (r->part[i], bytes, MADV_HUGEPAGE);
    memset (r->part[i], 0xff, bytes);
  }
  r->s = (struct ckpt_state) { .conf = &b->conf, .mesh = &r->mesh, .units = &r->units, .get = get, .see = see, .put = put,
                               .lay = getenv ("PUT") ? NULL : lay, .ctx = r, .cost = &b->cost };
}

/* The value of an element does not depend on the mesh. Fill, or count what is not as it must be. */
static int64_t visit (struct rig *r, bool fill)
{
  int64_t wrong = 0;
  struct piece *list;
  int n = units_pieces (&r->units, &list);
  for (int i = 0; i < n; i++)
    for (int k = 0; k < CKPT_KINDS; k++) {
      const struct part *t = &list[i].slot->part;
      float *p = r->part[list[i].unit * CKPT_KINDS + k] + list[i].lo;
      for (int64_t j = 0; j < list[i].hi - list[i].lo; j++) {
        int64_t at = list[i].start + j, row = t->row0 + at / t->cols, col = t->col0 + at % t->cols;
        float x = (float) ((row * 8191 + col * 3 + list[i].slot->block * 131 + list[i].slot->id * 17 + k) & 0xffffff);
        if (fill) p[j] = x;
        else wrong += p[j] != x;
      }
    }
  xfree (list);
  return wrong;
}

static void open_bench (struct bench *b, const char *dir, int64_t mb)
{
  struct err e = { 0 };
  int size = b->world.size, tp = MIN (size, 8);
  snprintf (b->dir, sizeof b->dir, "%s", dir);
  conf_default (&b->conf);
  strcpy (b->conf.sharding.wrap, "layer");
  int64_t dim = mb >= 256 ? 1024 : 128;
  b->conf.arch = (struct arch) { .dim = dim, .heads = 8, .kv_heads = 8, .head_dim = dim / 8, .ffn = 4 * dim, .vocab = 1024, .layers = 1, .norm_eps = 1e-5, .rope_theta = 1e4 };
  int64_t layer = 16 * dim * dim * 12;
  b->conf.arch.layers = MAX (2, ((mb << 20) - 2 * 1024 * dim * 12) / layer);
  b->others = size > 1 && size % 2 == 0;
  b->narrows = size > 2 && size % tp == 0 && !arch_check_tp (&b->conf.arch, tp, &e);
  open_rig (b, &b->from, size, 1, 1);
  open_rig (b, &b->to, size, 1, 1);
  if (b->others) open_rig (b, &b->other, size % 8 ? size / 2 : size / 4, size % 8 ? 1 : 2, 2);
  if (b->narrows) open_rig (b, &b->narrow, size / tp, 1, tp);
  visit (&b->from, true);
}

static void slowest (const struct bench *b, double *t, int n)
{
  MPI_Request r;
  MPI_Iallreduce (MPI_IN_PLACE, t, n, MPI_DOUBLE, MPI_MAX, b->world.world, &r);
  wait_all (1, &r);
}

/* All my parts to PATH from offset AT on, straight from where they are, or into them. */
static void move_parts (const struct rig *r, bool write, int fd, int64_t at)
{
  for (int i = 0; i < r->units.count * CKPT_KINDS; i++) {
    char *p = (char *) r->part[i];
    int64_t bytes = r->units.unit[i / CKPT_KINDS].shard * 4;
    for (int64_t n; bytes; bytes -= n, p += n, at += n) {
      n = write ? pwrite (fd, p, (size_t) MIN (CHUNK, bytes), at) : pread (fd, p, (size_t) MIN (CHUNK, bytes), at);
      must (n > 0, "raw: %m");
    }
  }
}

/* CPU: of one rank; tells more where the machine is shared */
enum { SAVE, WRITE, RAW, RAW_WRITE, LOAD, RAW_READ, OTHER, NARROW, SAVE_CPU, RAW_CPU, LOAD_CPU, READ_CPU, OTHER_CPU, NARROW_CPU, TIMES };

static double cpu (void)
{
  struct timespec t;
  clock_gettime (CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

/* Bytes that this process gave to write calls so far. */
static int64_t written (void)
{
  long long n = -1;
  FILE *f = fopen ("/proc/self/io", "r");
  for (char line[80]; f && n < 0 && fgets (line, sizeof line, f);) sscanf (line, "wchar: %lld", &n);
  if (f) fclose (f);
  return n;
}

/* What the same ranks do to the same disk without us: t[RAW_WRITE] writing, t[RAW] with create, sync and close. */
static void time_raw (const struct bench *b, const char *path, int64_t bytes, double *t)
{
  mesh_barrier (b->world.world);
  double t0 = now (), c0 = cpu ();
  if (!b->world.rank) {
    int fd = open (path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    must (fd >= 0, "%s: %m", path);
    if (fallocate (fd, 0, 0, bytes * b->world.size)) say (SAY_WARN, "%s: cannot reserve", path);
    close (fd);
  }
  mesh_barrier (b->world.world);
  double t1 = now ();
  int fd = open (path, O_RDWR);
  must (fd >= 0, "%s: %m", path);
  move_parts (&b->from, true, fd, b->world.rank * bytes);
  mesh_barrier (b->world.world);
  t[RAW_WRITE] = now () - t1;
  if (!b->world.local_rank) must (!fsync (fd), "%s: %m", path);
  close (fd);
  mesh_barrier (b->world.world);
  t[RAW] = now () - t0, t[RAW_CPU] = cpu () - c0;
}

static void time_save (struct bench *b, double *t)
{
  struct err e = { 0 };
  mesh_barrier (b->world.world);
  t[SAVE] = now (), t[SAVE_CPU] = cpu ();
  must (!ckpt_save (&b->from.s, b->dir, &e), "%s", e.msg);
  t[SAVE_CPU] = cpu () - t[SAVE_CPU], t[SAVE] = now () - t[SAVE];
  t[WRITE] = b->cost.write;
}

static void forget (const struct bench *b, const char *path)
{
  if (!b->cold) return;
  mesh_barrier (b->world.world);
  int fd = open (path, O_RDONLY);
  if (fd < 0 || posix_fadvise (fd, 0, 0, POSIX_FADV_DONTNEED)) say (SAY_WARN, "%s: stays in memory", path);
  close (fd);
}

static void time_load (struct bench *b, struct rig *r, const char *path, double *t, double *c)
{
  struct err e = { 0 };
  forget (b, path);
  mesh_barrier (b->world.world);
  *t = now (), *c = cpu ();
  must (!ckpt_load (&r->s, path, false, &e), "%s", e.msg);
  *c = cpu () - *c, *t = now () - *t;
}

static void time_read (struct bench *b, const char *path, int64_t bytes, double *t, double *c)
{
  forget (b, path);
  mesh_barrier (b->world.world);
  *t = now (), *c = cpu ();
  int fd = open (path, O_RDONLY);
  must (fd >= 0, "%s: %m", path);
  move_parts (&b->to, false, fd, b->world.rank * bytes);
  close (fd);
  mesh_barrier (b->world.world);
  *c = cpu () - *c, *t = now () - *t;
}

static void drop (const struct bench *b, const char *path)
{
  mesh_barrier (b->world.world);
  if (!b->world.rank) unlink (path);
  mesh_barrier (b->world.world);
}

static void raw_half (struct bench *b, const char *path, int64_t bytes, double *t)
{
  time_raw (b, path, bytes, t);
  time_read (b, path, bytes, &t[RAW_READ], &t[READ_CPU]);
  drop (b, path);
}

/* One file at a time, and in turn the first: each writer gets the pages of the cache that the other's file left, for on a virtual machine a page that is new to it costs several
   times the write. Where the guest reports free pages to its host, one that was free for a while is new again, and whoever gets it pays in processor time: then the median over
   rounds says little, and the fastest of each say more. */
static void one_round (struct bench *b, int step, double t[TIMES])
{
  char path[1200], rawpath[1200];
  int64_t bytes = 0;
  for (int i = 0; i < b->from.units.count; i++) bytes += b->from.units.unit[i].shard * 4 * CKPT_KINDS;
  snprintf (path, sizeof path, "%s/checkpoints/step_%08d.h5", b->dir, step);
  snprintf (rawpath, sizeof rawpath, "%s/raw", b->dir);
  b->from.s.step = step;
  if (step % 2) raw_half (b, rawpath, bytes, t);
  int64_t before = written ();
  time_save (b, t);
  b->wrote = written () - before;
  time_load (b, &b->to, path, &t[LOAD], &t[LOAD_CPU]);
  if (b->others) time_load (b, &b->other, path, &t[OTHER], &t[OTHER_CPU]);
  if (b->narrows) time_load (b, &b->narrow, path, &t[NARROW], &t[NARROW_CPU]);
  must (step > 1 || !visit (&b->to, false), "what was loaded is not what was saved");
  must (!b->others || step > 1 || !visit (&b->other, false), "what was loaded on another mesh is not what was saved");
  must (!b->narrows || step > 1 || !visit (&b->narrow, false), "what was loaded on a third mesh is not what was saved");
  drop (b, path);
  if (step % 2 == 0) raw_half (b, rawpath, bytes, t);
  slowest (b, t, TIMES);
}

static int by_size (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* The median over rounds of t[a] / t[c]. The first round, which warms the machine and verifies, counts only where it is alone. */
static double ratio (double (*all)[TIMES], int n, int a, int c)
{
  double r[ROUNDS];
  int m = 0;
  for (int i = n > 1; i < n; i++) r[m++] = all[i][c] > 0 ? all[i][a] / all[i][c] : 0;
  qsort (r, (size_t) m, sizeof *r, by_size);
  return m % 2 ? r[m / 2] : (r[m / 2 - 1] + r[m / 2]) / 2;
}

/* The same of the least t[a] and the least t[c]. */
static double best (double (*all)[TIMES], int n, int a, int c)
{
  double x = all[n - 1][a], y = all[n - 1][c];
  for (int i = n > 1; i < n; i++) x = MIN (x, all[i][a]), y = MIN (y, all[i][c]);
  return y > 0 ? x / y : 0;
}

static void report (struct bench *b, double (*all)[TIMES], int n)
{
  static const struct { const char *name; int raw, ours; } figure[] = {
    { "write", RAW_WRITE, WRITE }, { "save", RAW, SAVE }, { "load", RAW_READ, LOAD }, { "other", RAW_READ, OTHER }, { "narrow", RAW_READ, NARROW },
    { "save_cpu", RAW_CPU, SAVE_CPU }, { "load_cpu", READ_CPU, LOAD_CPU }, { "other_cpu", READ_CPU, OTHER_CPU }, { "narrow_cpu", READ_CPU, NARROW_CPU },
  };
  double payload = (double) arch_params (&b->conf.arch) * 12;
  int64_t wrote;
  char text[1000];
  int at = 0;
  MPI_Allreduce (&b->wrote, &wrote, 1, MPI_INT64_T, MPI_SUM, b->world.world);
  for (int i = 0; i < LEN (figure); i++)
    at += snprintf (text + at, sizeof text - (size_t) at, "\"%s_ratio\": %.3f, \"%s_best\": %.3f, ", figure[i].name, ratio (all, n, figure[i].raw, figure[i].ours),
                    figure[i].name, best (all, n, figure[i].raw, figure[i].ours));
  say (SAY_INFO, "{\"bench\": \"ckpt\", \"ranks\": %d, \"gb\": %.3f, \"reads\": \"%s\", \"rounds\": %d, %s\"bytes_ratio\": %.4f, \"save_s\": %.3f}", b->world.size, 1e-9 * payload,
       b->cold ? "cold" : "warm", MAX (1, n - 1), text, (double) wrote / payload, all[n - 1][SAVE]);
}

int main (int argc, char **argv)
{
  struct bench b = { 0 };
  struct err e = { 0 };
  double all[ROUNDS][TIMES] = { 0 };
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  if (argc < 2) return fprintf (stderr, "usage: mpiexec -n N %s FOLDER [MB in all [rounds [warm|cold]]]\n", argv[0]), 2;
  int rounds = MIN (ROUNDS, MAX (1, argc > 3 ? atoi (argv[3]) : 6));
  b.cold = argc > 4 && !strcmp (argv[4], "cold");
  must (!mesh_open (&b.world, MPI_COMM_WORLD, &e), "%s", e.msg);
  base_rank (b.world.rank, b.world.size, NULL);
  wait_init (b.world.local_size);
  open_bench (&b, argv[1], argc > 2 ? atoll (argv[2]) : 256);
  for (int step = 1; step <= rounds; step++) {
    double *t = all[step - 1];
    one_round (&b, step, t);
    say (SAY_INFO, "save %.3f s (create %.3f write %.3f sync %.3f seal %.3f), raw %.3f s (write %.3f), load %.3f s, raw read %.3f s, other mesh %.3f s, narrow %.3f; "
         "cpu %.3f %.3f %.3f %.3f %.3f %.3f s", t[SAVE],
         b.cost.create, b.cost.write, b.cost.sync, b.cost.seal, t[RAW], t[RAW_WRITE], t[LOAD], t[RAW_READ], t[OTHER], t[NARROW],
         t[SAVE_CPU], t[RAW_CPU], t[LOAD_CPU], t[READ_CPU], t[OTHER_CPU], t[NARROW_CPU]);
  }
  report (&b, all, rounds);
  MPI_Finalize ();
  return 0;
}
