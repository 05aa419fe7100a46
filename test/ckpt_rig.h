/* ckpt_rig: ranks of some mesh with parts of a state in host memory, every element known, for the tests of checkpoints. */
#ifndef CKPT_RIG_H
#define CKPT_RIG_H
#include "tap.h"
#include "ckpt_int.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size;
static char dir[160];

/* --- a rank of some mesh with its part of the state in host memory --- */

struct rig {
  struct conf conf;
  struct mesh mesh;
  struct units units;
  float *part[CKPT_KINDS][64];   /* [unit][shard]; NaN where nothing was put */
  bool in;                       /* is this process a rank of it? */
  struct ckpt_state s;
};

struct shape { int dp_replicate, dp_shard, pp, tp; bool no_shard; const char *wrap; };

static void get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  struct rig *r = ctx;
  memcpy (dst, r->part[k][unit] + lo, (size_t) n * 4);
}

static inline float *lay (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return ((struct rig *) ctx)->part[k][unit] + lo; }
static inline const float *see (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return lay (ctx, k, unit, lo); }

static void put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  memcpy (((struct rig *) ctx)->part[k][unit] + lo, src, (size_t) n * 4);
}

static void rig_open (struct rig *r, const struct arch *a, const struct shape *h, int64_t align)
{
  memset (r, 0, sizeof *r);
  r->conf.arch = *a;
  strcpy (r->conf.sharding.wrap, h->wrap);
  struct mesh_shape *m = &r->mesh.shape;
  *m = (struct mesh_shape) { .dim = { h->tp, h->pp, h->dp_shard, h->dp_replicate }, .order = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE },
                             .kv_rep = 1, .no_shard = h->no_shard };
  int world = mesh_world (m);
  r->in = rank < world;
  MPI_Comm_split (MPI_COMM_WORLD, r->in ? 0 : MPI_UNDEFINED, rank, &r->mesh.world);
  if (!r->in) return;
  r->mesh.rank = r->mesh.local_rank = rank;
  r->mesh.size = r->mesh.local_size = world;
  mesh_coord (m, rank, r->mesh.coord);
  struct unit_place p = { h->tp, r->mesh.coord[AXIS_TP], h->pp, r->mesh.coord[AXIS_PP], 1, h->no_shard ? 1 : h->dp_shard,
                          h->no_shard ? 0 : r->mesh.coord[AXIS_DP_SHARD], align };
  struct err e = { 0 };
  must (!units_make (&r->units, &r->conf, &p, &e), "%s", e.msg);
  must (r->units.count <= 64, "units");
  for (int k = 0; k < CKPT_KINDS; k++)
    for (int u = 0; u < r->units.count; u++) {
      r->part[k][u] = xalloc ((size_t) r->units.unit[u].shard * 4, "part");
      memset (r->part[k][u], 0xff, (size_t) r->units.unit[u].shard * 4);
    }
  r->s = (struct ckpt_state) { .conf = &r->conf, .config = "model: test\n", .mesh = &r->mesh, .units = &r->units, .get = get, .put = put, .ctx = r };
}

static void rig_close (struct rig *r)
{
  if (!r->in) return;
  for (int k = 0; k < CKPT_KINDS; k++)
    for (int u = 0; u < r->units.count; u++) xfree (r->part[k][u]);
  units_free (&r->units);
  MPI_Comm_free (&r->mesh.world);
}

/* The element that kind K of tensor NAME (its hash) has at global index I: any bits but those of NaN and infinity. test/t_ckpt.py has the same. */
static uint64_t name_hash (const char *name)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (; *name; name++) h = (h ^ (uint8_t) *name) * 0x100000001b3u;
  return h;
}
static uint32_t element (uint64_t name, int k, int64_t i)
{
  uint64_t h = ((name + (uint64_t) k) * 0x9e3779b97f4a7c15u + (uint64_t) i) * 0xbf58476d1ce4e5b9u;
  return (uint32_t) (h >> 32) & 0xbfffffffu;
}

/* Fill all that this rank holds, or count what is not as it must be. */
static int64_t visit (struct rig *r, bool fill, int kinds)
{
  int64_t wrong = 0;
  struct piece *p;
  int n = units_pieces (&r->units, &p);
  for (int k = 0; k < kinds; k++)
    for (int i = 0; i < n; i++) {
      const struct slot *t = p[i].slot;
      int64_t rows, cols;
      char name[96];
      param_shape (&r->conf.arch, t->id, &rows, &cols);
      param_name (&r->conf.arch, t->block, t->id, name);
      uint64_t hash = name_hash (name);
      for (int64_t j = 0; j < p[i].hi - p[i].lo; j++) {
        int64_t at = p[i].start + j, g = (t->part.row0 + at / t->part.cols) * cols + t->part.col0 + at % t->part.cols;
        uint32_t bits = element (hash, k, g);
        float *f = r->part[k][p[i].unit] + p[i].lo + j;
        if (fill) memcpy (f, &bits, 4);
        else wrong += memcmp (f, &bits, 4) != 0;
      }
    }
  xfree (p);
  return wrong;
}

/* --- helpers --- */

static const struct arch gqa = { .dim = 20, .layers = 4, .heads = 8, .kv_heads = 2, .head_dim = 2, .ffn = 24, .vocab = 37, .qkv_bias = true, .qk_norm = true,
                                 .norm_eps = 1e-5, .rope_theta = 1e4, .init_std = 0.02 };
static const struct arch tied = { .dim = 12, .layers = 5, .heads = 4, .kv_heads = 4, .head_dim = 4, .ffn = 40, .vocab = 51, .tied = true,
                                  .norm_eps = 1e-5, .rope_theta = 1e4, .init_std = 0.02 };
static const struct arch little = { .dim = 2, .layers = 2, .heads = 4, .kv_heads = 1, .head_dim = 2, .ffn = 4, .vocab = 5,
                                    .norm_eps = 1e-5, .rope_theta = 1e4, .init_std = 0.02 };

static const struct shape shapes[] = {
  { 1, 1, 1, 1, false, "layer" }, { 1, 2, 1, 1, false, "layer" }, { 1, 1, 1, 2, false, "model" }, { 1, 1, 2, 1, false, "layer" },
  { 1, 3, 1, 1, false, "size:500" }, { 1, 4, 1, 1, false, "model" }, { 1, 1, 1, 4, false, "layer" }, { 1, 2, 1, 2, false, "layer" },
  { 1, 1, 2, 2, false, "model" }, { 2, 2, 1, 1, false, "layer" }, { 1, 2, 2, 1, false, "size:300" }, { 1, 4, 1, 1, true, "layer" },
  { 2, 1, 1, 2, true, "layer" }, { 1, 1, 4, 1, false, "layer" },
  { 1, 2, 2, 2, false, "layer" }, { 1, 8, 1, 1, false, "layer" }, { 2, 1, 1, 4, false, "layer" }, { 2, 2, 1, 2, false, "model" }, { 1, 1, 1, 8, false, "layer" },
  { 1, 2, 4, 1, false, "layer" },
};
static bool fits (const struct shape *h, const struct arch *a)
{
  struct err e = { 0 };
  return h->dp_replicate * h->dp_shard * h->pp * h->tp <= size && h->pp <= a->layers && !arch_check_tp (a, h->tp, &e);
}

static void ckpt_path (int64_t step, char *out) { ckpt_name (dir, step, out); }
static void fresh (void)
{
  char cmd[2 * sizeof dir + 32];
  MPI_Barrier (MPI_COMM_WORLD);
  snprintf (cmd, sizeof cmd, "rm -rf %s && mkdir %s", dir, dir);
  if (!rank) must (!system (cmd), "%s", cmd);
  MPI_Barrier (MPI_COMM_WORLD);
}

static int save_step (struct rig *r, int64_t step, struct err *e)
{
  if (!r->in) return 0;
  r->s.step = step;
  r->s.tokens = step << 33;
  r->s.updates = step - 0.5;
  return ckpt_save (&r->s, dir, e);
}

/* --- files --- */

static inline long file_size (const char *path)
{
  struct stat st;
  return stat (path, &st) ? -1 : (long) st.st_size;
}

static void copy_file (const char *from, const char *to)
{
  char cmd[2 * CKPT_PATH + 16];
  snprintf (cmd, sizeof cmd, "cp %s %s", from, to);
  must (!system (cmd), "%s", cmd);
}

static void flip (const char *path, long at)
{
  uint8_t b;
  int fd = open (path, O_RDWR);
  must (fd >= 0 && pread (fd, &b, 1, at) == 1, "%s", path);
  b ^= 0x10;
  must (pwrite (fd, &b, 1, at) == 1, "%s", path);
  close (fd);
}

/* First byte in PATH of the data of dataset NAME. */
static long data_at (const char *path, const char *name)
{
  struct err e = { 0 };
  h5_begin ();
  hid_t f = h5_open (path, false, 0, &e), d = H5Dopen2 (f, name, H5P_DEFAULT);
  long at = (long) H5Dget_offset (d);
  H5Dclose (d);
  H5Fclose (f);
  h5_end ();
  return at;
}

static inline void set_attr (const char *path, const char *name, int64_t v)
{
  struct err e = { 0 };
  h5_begin ();
  hid_t f = h5_open (path, true, 0, &e);
  must (f >= 0 && !h5_attr (f, name, H5T_NATIVE_INT64, -1, &v) && H5Fclose (f) >= 0, "%s", path);
  h5_end ();
}
#endif
