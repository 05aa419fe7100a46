/* The file without its elements, made by rank 0 alone: no collective creation that a rank could miss. HDF5 writes to memory (ckpt_image.c),
   and what it wrote goes to the disk by plain writes. */
#define _GNU_SOURCE
#include "config.h"
#include "ckpt_saving.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

static int make_folder (const char *path, struct err *e)
{
  if (!mkdir (path, 0777) || errno == EEXIST) return 0;
  return world_err (e, "cannot create the folder %s: %s", path, strerror (errno));
}

/* --- structure --- */

static int attributes (hid_t f, const struct ckpt_saving *v)
{
  static const char *const axis[AXIS_N] = { [AXIS_TP] = "tp", [AXIS_PP] = "pp", [AXIS_DP_SHARD] = "dp_shard", [AXIS_DP_REPLICATE] = "dp_replicate" };
  const struct mesh_shape *m = &v->s.mesh->shape;
  int64_t version = CKPT_VERSION;
  int32_t complete = 0;
  char mesh[200];
  int n = snprintf (mesh, sizeof mesh, "dp_replicate %d, dp_shard %d, pp %d, tp %d, order ", m->dim[AXIS_DP_REPLICATE], m->dim[AXIS_DP_SHARD],
                    m->dim[AXIS_PP], m->dim[AXIS_TP]);
  for (int i = 0; i < AXIS_N; i++) n += snprintf (mesh + n, sizeof mesh - n, "%s%s", i ? "-" : "", axis[m->order[i]]);
  return h5_attr_text (f, "format", CKPT_FORMAT) || h5_attr_text (f, "program", "pretrain (Tessera) " PACKAGE_VERSION)
         || h5_attr (f, "version", H5T_STD_I64LE, -1, &version)
         || h5_attr (f, "step", H5T_STD_I64LE, -1, &v->s.step) || h5_attr (f, "tokens", H5T_STD_I64LE, -1, &v->s.tokens)
         || h5_attr (f, "updates", H5T_IEEE_F64LE, -1, &v->s.updates) || h5_attr_text (f, "mesh", mesh)
         || h5_attr_text (f, "config", v->s.config ? v->s.config : "") || (v->s.spike && h5_attr_text (f, "spike", v->s.spike)) || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
}

static int make_dataset (hid_t group, hid_t type, const struct row_rank *r, int dp_shard, int64_t *where)
{
  char name[32];
  const int32_t at[3] = { r->dp_replicate * dp_shard + r->dp_shard, r->pp, r->tp };
  snprintf (name, sizeof name, "rank%05d", (int) r->rank);
  hid_t d = h5_dataset (group, name, type, r->count);
  int bad = d < 0 || h5_attr (d, "dp_pp_tp", H5T_STD_I32LE, 3, at);
  haddr_t first = bad || !r->count ? 0 : H5Dget_offset (d);
  *where = (int64_t) first;
  if (d >= 0) H5Dclose (d);
  return bad || first == HADDR_UNDEF;
}

static int make_content (hid_t f, struct ckpt_saving *v)
{
  v->index.where = xalloc ((size_t) v->index.ranks * CKPT_KINDS * sizeof *v->index.where, "ckpt");
  int bad = attributes (f, v) || h5_index_create (f, &v->index);
  for (int k = 0; k < CKPT_KINDS && !bad; k++) {
    hid_t g = H5Gcreate2 (f, ckpt_group[k], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), type = h5_type (k == CKPT_MASTER ? DT_F32 : v->s.moments);
    bad = g < 0;
    for (int64_t i = 0; i < v->index.ranks && !bad; i++)
      bad = make_dataset (g, type, &v->index.rank[i], v->s.mesh->shape.dim[AXIS_DP_SHARD], &v->index.where[i * CKPT_KINDS + k]);
    H5Tclose (type);
    if (g >= 0) H5Gclose (g);
  }
  return bad;
}

/* What HDF5 holds back goes to the image. */
static int image_flush (struct ckpt_saving *v, struct err *e)
{
  v->bytes = h5_image_size (v->h5);
  return v->bytes < 0 ? world_err (e, "cannot make the structure of %s (%s)", v->tmp, h5_why ()) : 0;
}

static int make_image (struct ckpt_saving *v, struct err *e)
{
  v->h5 = h5_image (e);
  if (v->h5 < 0) return -1;
  if (make_content (v->h5, v)) return world_err (e, "cannot make the structure of %s (%s)", v->tmp, h5_why ());
  return image_flush (v, e);
}

/* --- from memory to the disk --- */

struct extent { int64_t from, to; };

static int by_from (const void *a, const void *b)
{
  const struct extent *p = a, *q = b;
  return p->from < q->from ? -1 : p->from > q->from;
}

/* Where elements lie, in order; *list is xalloc'd. */
static int64_t list_extents (const struct ckpt_saving *v, struct extent **list)
{
  const struct index *x = &v->index;
  int64_t n = 0;
  *list = xalloc ((size_t) (x->ranks * CKPT_KINDS + 1) * sizeof **list, "ckpt");
  for (int64_t r = 0; r < x->ranks; r++)
    for (int k = 0; k < CKPT_KINDS; k++) {
      int64_t from = x->where[r * CKPT_KINDS + k], bytes = x->rank[r].count * (k == CKPT_MASTER ? 4 : dtype_size (v->s.moments));
      if (bytes) (*list)[n++] = (struct extent) { from, from + bytes };
    }
  qsort (*list, (size_t) n, sizeof **list, by_from);
  return n;
}

static int copy_bytes (const struct ckpt_saving *v, int fd, int64_t at, const char *p, int64_t n, struct err *e)
{
  for (ssize_t k; n > 0; p += k, at += k, n -= k) {
    k = pwrite (fd, p, (size_t) n, at);
    if (k < 0 && errno == EINTR) k = 0;
    else if (k <= 0) return world_err (e, "cannot write %s: %s", v->tmp, strerror (k ? errno : ENOSPC));
  }
  return 0;
}

/* All that HDF5 wrote and no element. */
static int copy_image (const struct ckpt_saving *v, int fd, struct err *e)
{
  struct extent *x;
  const char *p;
  int64_t n = list_extents (v, &x), i = 0, from = 0, to = 0;
  int rc = 0;
  while (!rc && (p = h5_image_next (v->h5, &from, &to)))
    for (int64_t at = from, end; !rc && at < to; at = i < n && x[i].from <= end ? MAX (end, x[i].to) : end) {
      while (i < n && x[i].to <= at) i++;
      end = i < n ? MAX (at, MIN (to, x[i].from)) : to;
      rc = copy_bytes (v, fd, at, p + (at - from), end - at, e);
    }
  xfree (x);
  return rc;
}

/* Lustre lays a file out when it is created, and MPI-IO knows how; other file systems let the hints pass. */
static int make_striped (const struct ckpt_saving *v, struct err *e)
{
  char text[32];
  MPI_Info info;
  MPI_File f;
  if (v->s.stripes <= 0 && v->s.stripe_bytes <= 0) return 0;
  MPI_Info_create (&info);
  snprintf (text, sizeof text, "%lld", (long long) v->s.stripes);
  if (v->s.stripes > 0) MPI_Info_set (info, "striping_factor", text);
  snprintf (text, sizeof text, "%lld", (long long) v->s.stripe_bytes);
  if (v->s.stripe_bytes > 0) MPI_Info_set (info, "striping_unit", text);
  char name[sizeof v->tmp + 8];
  snprintf (name, sizeof name, "%s%s", strchr (v->tmp, ':') ? "ufs:" : "", v->tmp);   /* MPI-IO takes what stands before a colon for the kind of file system */
  int bad = MPI_File_open (MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_WRONLY, info, &f) != MPI_SUCCESS;
  if (!bad) MPI_File_close (&f);
  MPI_Info_free (&info);
  return bad ? world_err (e, "cannot create %s with the stripes of run.stripe_count and run.stripe_size", v->tmp) : 0;
}

/* A file system in memory reserves by filling with zeros, which takes as long as the writing, and training would wait for it. */
static bool in_memory (int fd)
{
  struct statfs f;
  return !fstatfs (fd, &f) && f.f_type == TMPFS_MAGIC;
}

/* Blocks for the whole file before anything is written. Where a file system cannot reserve, what it says is free must do. */
static int reserve (const struct ckpt_saving *v, int fd, struct err *e)
{
  struct statvfs f;
  char need[24];
  int cause;
  do cause = in_memory (fd) ? EOPNOTSUPP : fallocate (fd, 0, 0, v->bytes) ? errno : 0; while (cause == EINTR);
  if (cause == EOPNOTSUPP || cause == ENOSYS) {
    cause = !fstatvfs (fd, &f) && (double) f.f_bavail * (double) f.f_frsize < (double) v->bytes ? ENOSPC : 0;
    if (!cause && ftruncate (fd, v->bytes)) cause = errno;
  }
  if (!cause) return 0;
  bytes_text (v->bytes, need);
  return world_err (e, "no room for the checkpoint: %s of %s cannot be reserved: %s", need, v->tmp, strerror (cause));
}

int make_file (struct ckpt_saving *v, const char *run_dir, struct err *e)
{
  if (make_folder (run_dir, e) || make_folder (v->folder, e) || make_image (v, e)) return -1;
  if (unlink (v->tmp) && errno != ENOENT) return world_err (e, "cannot remove %s: %s", v->tmp, strerror (errno));
  if (make_striped (v, e)) return -1;
  int fd = open (v->tmp, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return world_err (e, "cannot create %s: %s", v->tmp, strerror (errno));
  int rc = reserve (v, fd, e) || copy_image (v, fd, e) ? -1 : 0;
  if (close (fd) && !rc) rc = world_err (e, "cannot write %s: %s", v->tmp, strerror (errno));
  return rc;
}

int make_complete (struct ckpt_saving *v, struct err *e)
{
  int32_t complete = 1;
  if (h5_index_ranks (v->h5, &v->index) || h5_attr (v->h5, "complete", H5T_STD_I32LE, -1, &complete))
    return world_err (e, "cannot make the structure of %s (%s)", v->tmp, h5_why ());
  return image_flush (v, e) || copy_image (v, v->fd, e) ? -1 : 0;
}
