/* The empty file, made by rank 0 alone: no collective creation that a rank could miss, and no MPI-IO that hangs on a full disk. */
#include "config.h"
#include "ckpt_saving.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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
         || h5_attr_text (f, "config", v->s.config ? v->s.config : "") || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
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

static int make_content (hid_t f, const struct ckpt_saving *v, int64_t *at)
{
  int bad = attributes (f, v) || h5_index_create (f, &v->index);
  for (int k = 0; k < CKPT_KINDS && !bad; k++) {
    hid_t g = H5Gcreate2 (f, ckpt_group[k], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), type = h5_type (k == CKPT_MASTER ? DT_F32 : v->s.moments);
    bad = g < 0;
    for (int64_t i = 0; i < v->index.ranks && !bad; i++)
      bad = make_dataset (g, type, &v->index.rank[i], v->s.mesh->shape.dim[AXIS_DP_SHARD], &at[i * CKPT_KINDS + k]);
    H5Tclose (type);
    if (g >= 0) H5Gclose (g);
  }
  return bad;
}

/* --- room --- */

/* Blocks for BYTES of the file. Where a file system cannot reserve, what it says is free must do. */
static int reserve (const char *path, const char *folder, int mode, int64_t bytes, struct err *e)
{
  struct statvfs f;
  char need[24];
  int fd = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), cause = errno;
  if (fd < 0) return world_err (e, "cannot create %s: %s", path, strerror (cause));
  do cause = fallocate (fd, mode, 0, bytes) ? errno : 0; while (cause == EINTR);
  close (fd);
  if (cause == EOPNOTSUPP || cause == ENOSYS) cause = !statvfs (folder, &f) && (double) f.f_bavail * (double) f.f_frsize < (double) bytes ? ENOSPC : 0;
  if (!cause) return 0;
  bytes_text (bytes, need);
  return world_err (e, "no room for the checkpoint: %s of %s cannot be reserved: %s", need, path, strerror (cause));
}

/* No less than the file will have: each dataset may begin at the next block. */
static int64_t file_bytes (const struct ckpt_saving *v)
{
  const struct index *x = &v->index;
  int64_t element = 4 + (CKPT_KINDS - 1) * dtype_size (v->s.moments);
  int64_t n = x->ranks * CKPT_KINDS * (1024 + CKPT_ALIGN) + x->tensors * (int64_t) sizeof *x->tensor + x->slices * (int64_t) sizeof *x->slice + 65536;
  for (int64_t i = 0; i < x->ranks; i++) n += x->rank[i].count * element;
  return n;
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

static int write_structure (struct ckpt_saving *v, int64_t *at, struct err *e)
{
  int64_t bytes = file_bytes (v);
  hid_t f = h5_create (v->tmp, e);
  if (f < 0) return -1;
  if (reserve (v->tmp, v->folder, FALLOC_FL_KEEP_SIZE, bytes, e)) return H5Fclose (f), -1;
  int bad = make_content (f, v, at);
  if (bad) world_err (e, "cannot write %s (%s)", v->tmp, h5_why ());
  if (H5Fclose (f) < 0 && !bad) bad = world_err (e, "cannot write %s (%s)", v->tmp, h5_why ());
  return bad ? -1 : reserve (v->tmp, v->folder, FALLOC_FL_KEEP_SIZE, bytes, e);   /* closing may have cut the file */
}

/* The blocks of the whole file are taken before anything is written: HDF5 can never close a file whose metadata cannot be flushed. Creating the file anew gives the first
   reservation back, so that it is taken again. */
int make_file (struct ckpt_saving *v, const char *run_dir, int64_t *at, struct err *e)
{
  struct stat st;
  if (make_folder (run_dir, e) || make_folder (v->folder, e)) return -1;
  if (unlink (v->tmp) && errno != ENOENT) return world_err (e, "cannot remove %s: %s", v->tmp, strerror (errno));
  if (make_striped (v, e) || reserve (v->tmp, v->folder, 0, file_bytes (v), e) || write_structure (v, at, e)) return -1;
  if (stat (v->tmp, &st)) return world_err (e, "%s: %s", v->tmp, strerror (errno));
  v->bytes = (int64_t) st.st_size;
  return 0;
}

int make_complete (struct ckpt_saving *v, struct err *e)
{
  int32_t complete = 1;
  hid_t f = h5_open (v->tmp, true, e);
  if (f < 0) return -1;
  int bad = h5_index_ranks (f, &v->index) || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
  bad |= H5Fclose (f) < 0;
  return bad ? world_err (e, "cannot write %s (%s)", v->tmp, h5_why ()) : 0;
}
