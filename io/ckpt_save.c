#include "config.h"
#include "ckpt_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL   /* for this machine's vectors: half as fast again as the library */
#include <xxhash.h>

#define WRITE_MAX ((int64_t) 1 << 28)   /* elements: an independent write above 2^31 - 1 bytes fails */
#define SEEN 10.0                       /* seconds after which a name that rank 0 made must be seen everywhere */

/* A stretch of my part, slice by slice: where the elements of my datasets come from. */
struct source { int unit; int64_t lo, n; };

struct saver {
  const struct ckpt_state *s;
  MPI_Comm world;
  struct index index;            /* rank 0: of all ranks; others: only their own row of ranks */
  struct row_rank me;
  struct row_slice *slice;       /* mine */
  struct source *source;         /* [slices] */
  int slices;
  char name[CKPT_PATH], tmp[CKPT_PATH + 8], folder[CKPT_PATH];
};

/* --- what I write --- */

static void replica_of (const struct mesh *m, int *n, int *k)
{
  const int *dim = m->shape.dim, *at = m->coord;
  *n = m->shape.no_shard ? dim[AXIS_DP_REPLICATE] * dim[AXIS_DP_SHARD] : dim[AXIS_DP_REPLICATE];
  *k = m->shape.no_shard ? at[AXIS_DP_REPLICATE] * dim[AXIS_DP_SHARD] + at[AXIS_DP_SHARD] : at[AXIS_DP_REPLICATE];
}

static void add_source (struct saver *v, const struct piece *p)
{
  const struct slot *t = p->slot;
  bool flat = param_ndim (t->id) == 1;
  v->source[v->slices] = (struct source) { p->unit, p->lo, p->hi - p->lo };
  v->slice[v->slices++] = (struct row_slice) {
    .tensor = index_find (&v->s->conf->arch, t->block, t->id), .rank = v->me.rank, .offset = v->me.count, .count = p->hi - p->lo, .start = p->start,
    .row0 = flat ? t->part.row0 + t->part.col0 : t->part.row0, .col0 = flat ? 0 : t->part.col0, .cols = flat ? 1 : t->part.cols };
  v->me.count += p->hi - p->lo;
}

static void list_sources (struct saver *v)
{
  const struct mesh *m = v->s->mesh;
  const int *at = m->coord, *dim = m->shape.dim;
  int replicas, replica;
  struct piece *piece;
  replica_of (m, &replicas, &replica);
  v->me = (struct row_rank) { m->rank, at[AXIS_DP_REPLICATE], at[AXIS_DP_SHARD], at[AXIS_PP], at[AXIS_TP], 0, { 0 } };
  int n = units_pieces (v->s->units, &piece);
  v->slice = xalloc ((size_t) n * sizeof *v->slice, "ckpt");
  v->source = xalloc ((size_t) n * sizeof *v->source, "ckpt");
  for (int i = 0; i < n; i++) {
    struct piece p = units_owned (&piece[i], dim[AXIS_TP], at[AXIS_TP], replicas, replica);
    if (p.lo < p.hi) add_source (v, &p);
  }
  xfree (piece);
}

/* --- the index on rank 0 --- */

static void gather_ranks (struct saver *v)
{
  MPI_Request r;
  MPI_Igather (&v->me, sizeof v->me, MPI_BYTE, v->index.rank, sizeof v->me, MPI_BYTE, 0, v->world, &r);
  wait_all (1, &r);
}

static void gather_slices (struct saver *v)
{
  int n = v->s->mesh->size, bytes = v->slices * (int) sizeof *v->slice, *count = xalloc ((size_t) n * sizeof (int), "ckpt"), *at = xalloc ((size_t) n * sizeof (int), "ckpt");
  int64_t sum = 0;
  MPI_Request r;
  MPI_Igather (&bytes, 1, MPI_INT, count, 1, MPI_INT, 0, v->world, &r);
  wait_all (1, &r);
  for (int i = 0; i < n; i++) {
    at[i] = (int) sum;
    sum += count[i];
    must (sum <= INT32_MAX, "the index of the checkpoint has %lld bytes", (long long) sum);
  }
  v->index.slices = sum / (int64_t) sizeof *v->slice;
  v->index.slice = xalloc ((size_t) sum, "ckpt");
  MPI_Igatherv (v->slice, bytes, MPI_BYTE, v->index.slice, count, at, MPI_BYTE, 0, v->world, &r);
  wait_all (1, &r);
  xfree (count);
  xfree (at);
}

static int make_index (struct saver *v, struct err *e)
{
  struct index *x = &v->index;
  index_of_arch (x, &v->s->conf->arch);
  x->ranks = v->s->mesh->size;
  x->rank = xalloc ((size_t) x->ranks * sizeof *x->rank, "ckpt");
  gather_ranks (v);
  gather_slices (v);
  if (v->s->mesh->rank) return 0;
  for (int64_t i = x->slices - 1; i >= 0; i--) x->tensor[x->slice[i].tensor].stage = x->rank[x->slice[i].rank].pp;
  return index_check (x, e);
}

/* --- the empty file, by rank 0 alone: no collective creation that a rank could miss --- */

static int make_folder (const char *path, struct err *e)
{
  if (!mkdir (path, 0777) || errno == EEXIST) return 0;
  return world_err (e, "cannot create the folder %s: %s", path, strerror (errno));
}

static int attributes (hid_t f, const struct saver *v)
{
  static const char *const axis[AXIS_N] = { [AXIS_TP] = "tp", [AXIS_PP] = "pp", [AXIS_DP_SHARD] = "dp_shard", [AXIS_DP_REPLICATE] = "dp_replicate" };
  const struct mesh_shape *m = &v->s->mesh->shape;
  int64_t version = CKPT_VERSION;
  int32_t complete = 0;
  char mesh[200];
  int n = snprintf (mesh, sizeof mesh, "dp_replicate %d, dp_shard %d, pp %d, tp %d, order ", m->dim[AXIS_DP_REPLICATE], m->dim[AXIS_DP_SHARD],
                    m->dim[AXIS_PP], m->dim[AXIS_TP]);
  for (int i = 0; i < AXIS_N; i++) n += snprintf (mesh + n, sizeof mesh - n, "%s%s", i ? "-" : "", axis[m->order[i]]);
  return h5_attr_text (f, "format", CKPT_FORMAT) || h5_attr_text (f, "program", "pretrain (Tessera) " PACKAGE_VERSION) || h5_attr (f, "version", H5T_STD_I64LE, -1, &version)
         || h5_attr (f, "step", H5T_STD_I64LE, -1, &v->s->step) || h5_attr (f, "tokens", H5T_STD_I64LE, -1, &v->s->tokens)
         || h5_attr (f, "updates", H5T_IEEE_F64LE, -1, &v->s->updates) || h5_attr_text (f, "mesh", mesh)
         || h5_attr_text (f, "config", v->s->config ? v->s->config : "") || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
}

static int make_dataset (hid_t group, const struct row_rank *r, int dp_shard)
{
  char name[32];
  const int32_t at[3] = { r->dp_replicate * dp_shard + r->dp_shard, r->pp, r->tp };
  snprintf (name, sizeof name, "rank%05d", (int) r->rank);
  hid_t d = h5_dataset (group, name, H5T_IEEE_F32LE, r->count);
  int bad = d < 0 || h5_attr (d, "dp_pp_tp", H5T_STD_I32LE, 3, at);
  if (d >= 0) H5Dclose (d);
  return bad;
}

static int make_content (hid_t f, const struct saver *v)
{
  int bad = attributes (f, v) || h5_index_create (f, &v->index);
  for (int k = 0; k < CKPT_KINDS && !bad; k++) {
    hid_t g = H5Gcreate2 (f, ckpt_group[k], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bad = g < 0;
    for (int64_t i = 0; i < v->index.ranks && !bad; i++) bad = make_dataset (g, &v->index.rank[i], v->s->mesh->shape.dim[AXIS_DP_SHARD]);
    if (g >= 0) H5Gclose (g);
  }
  return bad;
}

/* Blocks for BYTES of the file. Where a file system cannot reserve, what it says is free must do. */
static int reserve (const char *path, const char *folder, int mode, int64_t bytes, struct err *e)
{
  struct statvfs f;
  char need[24];
  int fd = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), cause = errno;
  if (fd < 0) return world_err (e, "cannot create %s: %s", path, strerror (cause));
  cause = fallocate (fd, mode, 0, bytes) ? errno : 0;
  close (fd);
  if (cause == EOPNOTSUPP || cause == ENOSYS) cause = !statvfs (folder, &f) && (double) f.f_bavail * (double) f.f_frsize < (double) bytes ? ENOSPC : 0;
  if (!cause) return 0;
  bytes_text (bytes, need);
  return world_err (e, "no room for the checkpoint: %s of %s cannot be reserved: %s", need, path, strerror (cause));
}

/* No less than the file will have. */
static int64_t file_bytes (const struct index *x)
{
  int64_t n = x->ranks * 3 * 1024 + x->tensors * (int64_t) sizeof *x->tensor + x->slices * (int64_t) sizeof *x->slice + 65536;
  for (int64_t i = 0; i < x->ranks; i++) n += x->rank[i].count * 4 * CKPT_KINDS;
  return n;
}

/* The blocks of the whole file are taken before HDF5 writes: where there is no room, a rank's failing write leaves the others waiting, and a file whose metadata cannot be
   flushed can never be closed. Creating the file anew gives the first reservation back, so that it is taken again. */
static int make_file (const struct saver *v, const char *run_dir, struct err *e)
{
  int64_t bytes = file_bytes (&v->index);
  if (make_folder (run_dir, e) || make_folder (v->folder, e)) return -1;
  if (unlink (v->tmp) && errno != ENOENT) return world_err (e, "cannot remove %s: %s", v->tmp, strerror (errno));
  if (reserve (v->tmp, v->folder, 0, bytes, e)) return -1;
  hid_t f = h5_create (v->tmp, e);
  if (f < 0) return -1;
  if (reserve (v->tmp, v->folder, FALLOC_FL_KEEP_SIZE, bytes, e)) return H5Fclose (f), -1;
  int bad = make_content (f, v);
  if (bad) world_err (e, "cannot write %s (%s)", v->tmp, h5_why ());
  if (H5Fclose (f) < 0 && !bad) bad = world_err (e, "cannot write %s (%s)", v->tmp, h5_why ());
  if (bad) return -1;
  return reserve (v->tmp, v->folder, FALLOC_FL_KEEP_SIZE, bytes, e);   /* closing may have cut the file */
}

/* --- the elements, by all ranks --- */

static int put_out (hid_t d, int64_t at, float *buf, int64_t n)
{
  for (int64_t i = 0; i < n; i += WRITE_MAX) {
    int64_t k = MIN (WRITE_MAX, n - i);
    if (h5_move (true, d, H5T_IEEE_F32LE, H5P_DEFAULT, at + i, 1, k, k, buf, n, i, k)) return -1;
  }
  return 0;
}

/* All of one kind, through BUF of MOST elements; the checksum on the way. */
static int write_kind (struct saver *v, hid_t d, enum ckpt_kind kind, float *buf, int64_t most)
{
  int64_t used = 0, at = 0;
  XXH3_state_t *h = XXH3_createState ();
  must (h, "out of host memory");
  XXH3_64bits_reset (h);
  int bad = 0;
  for (int i = 0; i < v->slices && !bad; i++)
    for (int64_t lo = 0, n; lo < v->source[i].n && !bad; lo += n) {
      n = MIN (v->source[i].n - lo, most - used);
      v->s->get (v->s->ctx, kind, v->source[i].unit, v->source[i].lo + lo, n, buf + used);
      XXH3_64bits_update (h, buf + used, (size_t) n * 4);
      used += n;
      if (used < most && at + used < v->me.count) continue;
      bad = put_out (d, at, buf, used);
      at += used;
      used = 0;
    }
  v->me.sum[kind] = XXH3_64bits_digest (h);
  XXH3_freeState (h);
  return bad;
}

static int write_all (struct saver *v, hid_t f, struct err *e)
{
  int64_t most = MIN (CKPT_STAGE / 4, v->me.count);
  float *buf = xalloc ((size_t) most * 4, "ckpt stage");
  int bad = 0;
  for (int k = 0; k < CKPT_KINDS && !bad; k++) {
    hid_t d = h5_rank_dataset (f, k, v->me.rank);
    bad = d < 0 || write_kind (v, d, k, buf, most);
    if (bad) world_err (e, "cannot write %s (%s)", v->tmp, h5_why ());
    if (d >= 0) H5Dclose (d);
  }
  xfree (buf);
  return -bad;
}

/* Each rank sees the file and may write it: known before MPI's collective open, which would leave the others waiting. */
static int may_write (const struct saver *v, struct err *e)
{
  for (double end = now () + SEEN;;) {
    int fd = open (v->tmp, O_RDWR);
    if (fd >= 0) return close (fd);
    if (errno != ENOENT || now () > end) return world_err (e, "%s: %s", v->tmp, strerror (errno));
    usleep (20000);
  }
}

/* MPI-IO takes what stands before a colon for the kind of file system. */
static hid_t open_together (const struct saver *v)
{
  char name[sizeof v->tmp + 8];
  snprintf (name, sizeof name, "%s%s", strchr (v->tmp, ':') ? "ufs:" : "", v->tmp);
  hid_t access = H5Pcreate (H5P_FILE_ACCESS);
  H5Pset_fapl_mpio (access, v->world, MPI_INFO_NULL);
  H5Pset_libver_bounds (access, H5F_LIBVER_V18, H5F_LIBVER_V18);
  hid_t f = H5Fopen (name, H5F_ACC_RDWR, access);
  H5Pclose (access);
  return f;
}

/* Nothing of a failed save may stay to be flushed: a file cut to nothing closes at once, one that is full or half written would hang. */
static int write_file (struct saver *v, struct err *e)
{
  if (ckpt_agree (v->world, may_write (v, e), e)) return -1;
  hid_t f = open_together (v);
  int bad = f < 0 ? world_err (e, "cannot open %s with HDF5's MPI driver (%s)", v->tmp, h5_why ()) : 0;
  bad = ckpt_agree (v->world, bad, e) || ckpt_agree (v->world, write_all (v, f, e), e);
  if (bad && !v->me.rank && truncate (v->tmp, 0)) say (SAY_WARN, "cannot empty %s: %s", v->tmp, strerror (errno));
  if (bad) mesh_barrier (v->world);
  if (f >= 0 && H5Fclose (f) < 0 && !bad) bad = world_err (e, "cannot close %s (%s)", v->tmp, h5_why ());
  return ckpt_agree (v->world, bad, e);
}

/* --- to the disk, and the name --- */

static int sync_path (const char *path, struct err *e)
{
  int fd = open (path, O_RDONLY), bad = fd < 0 || fsync (fd), why = errno;
  if (fd >= 0) close (fd);
  return bad && why != EINVAL ? world_err (e, "cannot sync %s: %s", path, strerror (why)) : 0;   /* EINVAL: this kind of folder cannot be synced */
}

/* Checksums and `complete` into the file that is on the disk already, then its name. */
static int seal (const struct saver *v, struct err *e)
{
  int32_t complete = 1;
  hid_t f = h5_open (v->tmp, true, 0, e);
  if (f < 0) return -1;
  int bad = h5_index_ranks (f, &v->index) || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
  bad |= H5Fclose (f) < 0;
  if (bad) return world_err (e, "cannot write %s (%s)", v->tmp, h5_why ());
  if (sync_path (v->tmp, e)) return -1;
  if (rename (v->tmp, v->name)) return world_err (e, "cannot rename %s: %s", v->tmp, strerror (errno));
  return sync_path (v->folder, e);
}

static int save_steps (struct saver *v, const char *run_dir, struct err *e)
{
  const struct mesh *m = v->s->mesh;
  double t[5] = { now () };
  if (ckpt_agree (v->world, make_index (v, e), e)) return -1;
  if (ckpt_agree (v->world, m->rank ? 0 : make_file (v, run_dir, e), e)) return -1;
  t[1] = now ();
  if (write_file (v, e)) return -1;
  t[2] = now ();
  if (ckpt_agree (v->world, m->local_rank ? 0 : sync_path (v->tmp, e), e)) return -1;   /* each node its own pages */
  t[3] = now ();
  gather_ranks (v);
  if (ckpt_agree (v->world, m->rank ? 0 : seal (v, e), e)) return -1;
  t[4] = now ();
  if (v->s->cost) *v->s->cost = (struct ckpt_cost) { t[1] - t[0], t[2] - t[1], t[3] - t[2], t[4] - t[3], v->me.count * 4 * CKPT_KINDS };
  return 0;
}

int ckpt_save (const struct ckpt_state *s, const char *run_dir, struct err *e)
{
  struct saver v = { .s = s, .world = s->mesh->world };
  struct err local = { 0 };
  ckpt_folder (run_dir, v.folder);
  ckpt_name (run_dir, s->step, v.name);
  snprintf (v.tmp, sizeof v.tmp, "%s.tmp", v.name);
  h5_begin ();
  list_sources (&v);
  int rc = save_steps (&v, run_dir, e ? e : &local);
  if (rc && !s->mesh->rank) unlink (v.tmp);
  h5_end ();
  index_free (&v.index);
  xfree (v.slice);
  xfree (v.source);
  return rc;
}
