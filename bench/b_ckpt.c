/* Checkpoints against the disk itself: saves, verifies by loading, then times saving, loading and raw pwrite of the same bytes by the same ranks; the median of some rounds.
   usage: mpiexec -n N bench/b_ckpt FOLDER [MB a rank [rounds]] */
#define _GNU_SOURCE
#include "ckpt.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHUNK ((int64_t) 64 << 20)

struct bench {
  struct conf conf;
  struct mesh mesh;
  struct units units;
  struct ckpt_state s;
  struct ckpt_cost cost;
  float **part[2];              /* [0] saved, [1] loaded: [unit * kinds + kind][shard] */
  int into;
  char dir[1000];
};

static void get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  struct bench *b = ctx;
  memcpy (dst, b->part[0][unit * CKPT_KINDS + k] + lo, (size_t) n * 4);
}

static void put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  struct bench *b = ctx;
  memcpy (b->part[b->into][unit * CKPT_KINDS + k] + lo, src, (size_t) n * 4);
}

static void fill (struct bench *b)
{
  int n = b->units.count * CKPT_KINDS;
  for (int w = 0; w < 2; w++) b->part[w] = xalloc ((size_t) n * sizeof (float *), "bench");
  for (int i = 0; i < n; i++) {
    int64_t len = b->units.unit[i / CKPT_KINDS].shard;
    for (int w = 0; w < 2; w++) b->part[w][i] = xalloc ((size_t) len * 4, "bench");
    for (int64_t j = 0; j < len; j++) b->part[0][i][j] = (float) (b->mesh.rank * 131 + i) + (float) (j & 1023) * 0x1p-12f;
  }
}

static void open_bench (struct bench *b, const char *dir, int64_t mb)
{
  struct err e = { 0 };
  must (!mesh_open (&b->mesh, MPI_COMM_WORLD, &e), "%s", e.msg);
  wait_init (b->mesh.local_size);
  struct mesh_shape shape = { .dim = { 1, 1, b->mesh.size, 1 }, .order = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE }, .kv_rep = 1 };
  must (!mesh_split (&b->mesh, &shape, false, &e), "%s", e.msg);
  conf_default (&b->conf);
  b->conf.arch = (struct arch) { .dim = 512, .heads = 8, .kv_heads = 8, .head_dim = 64, .ffn = 2048, .vocab = 1024, .layers = 1, .norm_eps = 1e-5, .rope_theta = 1e4 };
  int64_t layer = (4 * 512 * 512 + 3 * 512 * 2048) * 12;
  b->conf.arch.layers = MAX (1, (mb << 20) * b->mesh.size / layer);
  struct unit_place p = { 1, 0, 1, 0, 1, b->mesh.size, b->mesh.rank, 64 };
  must (!units_make (&b->units, &b->conf, &p, &e), "%s", e.msg);
  fill (b);
  snprintf (b->dir, sizeof b->dir, "%s", dir);
  b->s = (struct ckpt_state) { .conf = &b->conf, .mesh = &b->mesh, .units = &b->units, .get = get, .put = put, .ctx = b, .cost = &b->cost };
}

/* The slowest rank's seconds of each. */
static void slowest (const struct bench *b, double *t, int n)
{
  MPI_Request r;
  MPI_Iallreduce (MPI_IN_PLACE, t, n, MPI_DOUBLE, MPI_MAX, b->mesh.world, &r);
  wait_all (1, &r);
}

/* All my parts to PATH from offset AT on, straight from where they are. */
static void write_parts (const struct bench *b, int fd, int64_t at)
{
  for (int i = 0; i < b->units.count * CKPT_KINDS; i++) {
    const char *p = (const char *) b->part[0][i];
    int64_t bytes = b->units.unit[i / CKPT_KINDS].shard * 4;
    for (int64_t n; bytes; bytes -= n, p += n, at += n) {
      n = MIN (CHUNK, bytes);
      must (pwrite (fd, p, (size_t) n, at) == n, "pwrite: %m");
    }
  }
}

/* What the same ranks do to the same disk without us: t[0] writing, t[1] all of it. */
static void raw (const struct bench *b, const char *path, int64_t bytes, double t[2])
{
  mesh_barrier (b->mesh.world);
  double t0 = now ();
  if (!b->mesh.rank) {
    int fd = open (path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    must (fd >= 0, "%s: %m", path);
    if (fallocate (fd, 0, 0, bytes * b->mesh.size)) say (SAY_WARN, "%s: cannot reserve", path);
    close (fd);
  }
  mesh_barrier (b->mesh.world);
  double t1 = now ();
  int fd = open (path, O_RDWR);
  must (fd >= 0, "%s: %m", path);
  write_parts (b, fd, b->mesh.rank * bytes);
  mesh_barrier (b->mesh.world);
  t[0] = now () - t1;
  if (!b->mesh.local_rank) must (!fsync (fd), "%s: %m", path);
  close (fd);
  mesh_barrier (b->mesh.world);
  t[1] = now () - t0;
}

static void check (struct bench *b, const char *path)
{
  struct err e = { 0 };
  b->into = 1;
  must (!ckpt_load (&b->s, path, false, &e), "%s", e.msg);
  for (int i = 0; i < b->units.count * CKPT_KINDS; i++) {
    const struct unit *u = &b->units.unit[i / CKPT_KINDS];
    int64_t mine = u->shard * b->mesh.rank;
    for (int k = 0; k < u->slots; k++) {
      int64_t lo = MAX (u->slot[k].off, mine), hi = MIN (u->slot[k].off + u->slot[k].count, mine + u->shard);
      if (lo < hi) must (!memcmp (b->part[0][i] + lo - mine, b->part[1][i] + lo - mine, (size_t) (hi - lo) * 4), "what was loaded is not what was saved");
    }
  }
}

static double cpu (void)
{
  struct timespec t;
  clock_gettime (CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

enum { SAVE, WRITE, RAW_WRITE, RAW, LOAD, SAVE_CPU, RAW_CPU, TIMES };   /* CPU: of one rank; tells more where the machine is shared */

static void one_round (struct bench *b, int step, double t[TIMES])
{
  struct err e = { 0 };
  char path[1200], old[1200], rawpath[1200];
  snprintf (path, sizeof path, "%s/checkpoints/step_%08d.h5", b->dir, step);
  snprintf (old, sizeof old, "%s/checkpoints/step_%08d.h5", b->dir, step - 1);
  snprintf (rawpath, sizeof rawpath, "%s/raw", b->dir);
  b->s.step = step;
  mesh_barrier (b->mesh.world);
  t[SAVE] = now ();
  t[SAVE_CPU] = cpu ();
  must (!ckpt_save (&b->s, b->dir, &e), "%s", e.msg);
  t[SAVE] = now () - t[SAVE];
  t[SAVE_CPU] = cpu () - t[SAVE_CPU];
  t[WRITE] = b->cost.write;
  t[RAW_CPU] = cpu ();
  raw (b, rawpath, b->cost.bytes, t + RAW_WRITE);   /* and RAW */
  t[RAW_CPU] = cpu () - t[RAW_CPU];
  if (!b->mesh.rank) unlink (rawpath), unlink (old);
  if (step == 1) check (b, path);
  mesh_barrier (b->mesh.world);
  t[LOAD] = now ();
  must (!ckpt_load (&b->s, path, false, &e), "%s", e.msg);
  t[LOAD] = now () - t[LOAD];
  slowest (b, t, TIMES);
}

static double median (double (*all)[TIMES], int n, int i)
{
  for (int a = 1; a < n; a++)
    for (int k = a; k > 0 && all[k][i] < all[k - 1][i]; k--) {
      double t = all[k][i];
      all[k][i] = all[k - 1][i];
      all[k - 1][i] = t;
    }
  return all[n / 2][i];
}

int main (int argc, char **argv)
{
  struct bench b = { 0 };
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  if (argc < 2) return fprintf (stderr, "usage: mpiexec -n N %s FOLDER [MB a rank [rounds]]\n", argv[0]), 2;
  int rounds = MAX (1, argc > 3 ? atoi (argv[3]) : 5);
  open_bench (&b, argv[1], argc > 2 ? atoll (argv[2]) : 64);
  base_rank (b.mesh.rank, b.mesh.size, NULL);
  double (*all)[TIMES] = xalloc ((size_t) rounds * sizeof *all, "bench"), mid[TIMES];
  for (int step = 1; step <= rounds; step++) {
    double *t = all[step - 1];
    one_round (&b, step, t);
    say (SAY_INFO, "save %.3f s (create %.3f write %.3f sync %.3f seal %.3f), raw %.3f s (write %.3f), load %.3f s, cpu %.3f and %.3f s", t[SAVE], b.cost.create, b.cost.write, b.cost.sync,
         b.cost.seal, t[RAW], t[RAW_WRITE], t[LOAD], t[SAVE_CPU], t[RAW_CPU]);
  }
  for (int i = 0; i < TIMES; i++) mid[i] = median (all, rounds, i);
  double gb = 1e-9 * (double) b.cost.bytes * b.mesh.size;
  say (SAY_INFO, "{\"bench\": \"ckpt\", \"ranks\": %d, \"gb\": %.3f, \"save_gb_s\": %.3f, \"write_gb_s\": %.3f, \"raw_gb_s\": %.3f, \"raw_write_gb_s\": %.3f, \"load_gb_s\": %.3f, "
       "\"write_ratio\": %.3f, \"whole_ratio\": %.3f, \"cpu_ratio\": %.3f}", b.mesh.size, gb, gb / mid[SAVE], gb / mid[WRITE], gb / mid[RAW], gb / mid[RAW_WRITE], gb / mid[LOAD],
       mid[RAW_WRITE] / mid[WRITE], mid[RAW] / mid[SAVE], mid[RAW_CPU] / mid[SAVE_CPU]);
  MPI_Finalize ();
  return 0;
}
