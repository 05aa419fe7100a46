#include "config.h"
#include "ckpt_int.h"
#include "full.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FULL_VERSION = 1 };

/* --- what a file is --- */

static enum kind_of_file kind_of_hdf5 (const char *path)
{
  struct err e = { 0 };
  enum kind_of_file k = FILE_OTHER;
  h5_begin ();
  hid_t f = h5_open (path, false, 0, &e);
  char *format = f < 0 ? NULL : h5_get_text (f, "format");
  if (format && !strcmp (format, CKPT_FORMAT)) k = FILE_SHARDED;
  if (format && !strcmp (format, FULL_FORMAT)) k = FILE_FULL;
  xfree (format);
  if (f >= 0) H5Fclose (f);
  h5_end ();
  return k;
}

enum kind_of_file file_kind (const char *path)
{
  struct stat st;
  char *config;
  unsigned char head[8] = { 0 };
  if (stat (path, &st)) return FILE_NONE;
  if (S_ISDIR (st.st_mode)) {
    config = xprintf ("%s/config.json", path);
    bool hf = !access (config, F_OK);
    xfree (config);
    return hf ? FILE_HF : FILE_OTHER;
  }
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  bool h5 = fd >= 0 && read (fd, head, 8) == 8 && !memcmp (head, "\211HDF\r\n\032\n", 8);
  if (fd >= 0) close (fd);
  return h5 ? kind_of_hdf5 (path) : FILE_OTHER;
}

int file_wanted (const char *path, enum kind_of_file want, struct err *e)
{
  enum kind_of_file is = file_kind (path);
  static const char *const wanted[] = { [FILE_SHARDED] = "a SHARDED checkpoint (RUN_DIR/checkpoints/step_*.h5)", [FILE_FULL] = "a FULL state dict (one HDF5 dataset a tensor)",
                                        [FILE_HF] = "a Hugging Face folder (config.json and safetensors)" };
  if (is == want) return 0;
  if (is == FILE_NONE) return user_err (e, "%s: %s", path, strerror (errno));
  if (is == FILE_SHARDED)
    return user_err (e, "%s is a SHARDED checkpoint (one dataset a rank), not %s: it needs no import, a run loads it on any mesh; `pretrain export %s --to %s` makes the other",
                     path, wanted[want], path, want == FILE_FULL ? "full FILE.h5" : "hf DIR");
  if (is == FILE_FULL)
    return user_err (e, "%s is a FULL state dict (one dataset a tensor), not %s: `pretrain import %s --from full --run.dir RUN_DIR` makes a SHARDED checkpoint of it", path,
                     wanted[want], path);
  if (is == FILE_HF)
    return user_err (e, "%s is a Hugging Face folder, not %s: `pretrain import %s --from hf --run.dir RUN_DIR` makes a SHARDED checkpoint of it", path, wanted[want], path);
  return user_err (e, "%s is not %s", path, wanted[want]);
}

/* --- reading --- */

static int read_head (hid_t f, const char *path, struct full_head *h, struct err *e)
{
  int64_t version = 0;
  int32_t complete = 0;
  if (h5_get (f, "version", H5T_NATIVE_INT64, &version) || version != FULL_VERSION)
    return user_err (e, "%s has FULL format version %lld; this program reads version %d", path, (long long) version, FULL_VERSION);
  if (h5_get (f, "complete", H5T_NATIVE_INT32, &complete) || complete != 1) return world_err (e, "%s is not complete: its export was broken off", path);
  if (h5_get (f, "step", H5T_NATIVE_INT64, &h->step) || h5_get (f, "tokens", H5T_NATIVE_INT64, &h->tokens) || h5_get (f, "updates", H5T_NATIVE_DOUBLE, &h->updates)
      || h->step < 0 || h->tokens < 0 || !(h->updates >= 0))
    return world_err (e, "%s: an attribute of the root is missing or impossible (step, tokens, updates)", path);
  h->config = h5_get_text (f, "config");
  return h->config ? 0 : world_err (e, "%s: the attribute config is missing", path);
}

int full_head (const char *path, struct full_head *h, struct err *e)
{
  *h = (struct full_head) { 0 };
  if (file_wanted (path, FILE_FULL, e)) return -1;
  h5_begin ();
  hid_t f = h5_open (path, false, 0, e);
  int rc = f < 0 ? -1 : read_head (f, path, h, e);
  if (f >= 0) H5Fclose (f);
  h5_end ();
  return rc;
}

/* Is the dataset of the shape of T, fp32, contiguous and inside of SIZE bytes? Its place into *at. NULL or what it is instead. */
static const char *look (hid_t d, const struct place_tensor *t, int64_t size, struct place *at)
{
  hsize_t dim[2] = { 0, 1 };
  hid_t space = H5Dget_space (d), type = H5Dget_type (d), make = H5Dget_create_plist (d);
  int ndim = H5Sget_simple_extent_ndims (space);
  bool shape = ndim == t->ndim && H5Sget_simple_extent_dims (space, dim, NULL) >= 0 && (int64_t) dim[0] == t->shape[0] && (int64_t) dim[1] == t->shape[1];
  bool f32 = H5Tequal (type, H5T_IEEE_F32LE) > 0, flat = H5Pget_layout (make) == H5D_CONTIGUOUS && H5Pget_nfilters (make) == 0 && !H5Pget_external_count (make);
  haddr_t where = H5Dget_offset (d);
  *at = (struct place) { .fd = -1, .at = (int64_t) where, .type = W_F32 };
  H5Pclose (make);
  H5Tclose (type);
  H5Sclose (space);
  if (!shape) return "has another shape";
  if (!f32) return "is not fp32";
  if (!flat || where == HADDR_UNDEF || (int64_t) where > size - t->count * 4) return "is not contiguous, or lies outside of the file";
  return NULL;
}

static void find_one (hid_t f, struct places *p, int k, int64_t i, int64_t size, const char *path, struct differ *diff)
{
  char name[160];
  snprintf (name, sizeof name, "/%s/%s", ckpt_group[k], p->tensor[i].name);
  if (H5Lexists (f, name, H5P_DEFAULT) <= 0) {
    differ_say (path, &diff->missing, "%s is missing", name);
    return;
  }
  hid_t d = H5Dopen2 (f, name, H5P_DEFAULT);
  const char *bad = d < 0 ? "is no dataset" : look (d, &p->tensor[i], size, &p->at[k][i]);
  if (d >= 0) H5Dclose (d);
  if (bad) differ_say (path, &diff->other, "%s %s", name, bad);
}

struct seen { const struct places *p; const char *path, *group; struct differ *diff; };

static herr_t is_ours (hid_t g, const char *name, const H5L_info_t *info, void *ctx)
{
  struct seen *s = ctx;
  (void) g, (void) info;
  for (int64_t i = 0; i < s->p->n; i++) if (!strcmp (s->p->tensor[i].name, name)) return 0;
  differ_say (s->path, &s->diff->unexpected, "/%s/%.200s is not in the model", s->group, name);
  return 0;
}

static int find_all (hid_t f, struct places *p, const char *path, struct err *e)
{
  struct differ diff = { 0 };
  hsize_t size = 0;
  H5Fget_filesize (f, &size);
  for (int k = 0; k < CKPT_KINDS; k++) {
    char name[16];
    snprintf (name, sizeof name, "/%s", ckpt_group[k]);
    if (k != CKPT_MASTER && H5Lexists (f, name, H5P_DEFAULT) <= 0) continue;
    places_add (p, k);
    for (int64_t i = 0; i < p->n; i++) find_one (f, p, k, i, (int64_t) size, path, &diff);
    hid_t g = H5Gopen2 (f, name, H5P_DEFAULT);
    if (g >= 0) H5Literate (g, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, is_ours, &(struct seen) { p, path, ckpt_group[k], &diff });
    if (g >= 0) H5Gclose (g);
  }
  if (!p->at[CKPT_M] != !p->at[CKPT_V]) return user_err (e, "%s has one of exp_avg and exp_avg_sq, without the other", path);
  return differ_err (&diff, path, e);
}

int full_find (struct places *p, const char *path, struct err *e)
{
  h5_begin ();
  hid_t f = h5_open (path, false, 0, e);
  int rc = f < 0 ? -1 : find_all (f, p, path, e);
  if (f >= 0) H5Fclose (f);
  h5_end ();
  return rc;
}

/* --- writing --- */

static int make_one (hid_t group, const struct place_tensor *t, struct place *at)
{
  hid_t space = H5Screate_simple (t->ndim, (hsize_t[]) { (hsize_t) t->shape[0], (hsize_t) t->shape[1] }, NULL), make = H5Pcreate (H5P_DATASET_CREATE);
  H5Pset_layout (make, H5D_CONTIGUOUS);
  H5Pset_alloc_time (make, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time (make, H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times (make, false);   /* the same state, the same bytes */
  hid_t d = H5Dcreate2 (group, t->name, H5T_IEEE_F32LE, space, H5P_DEFAULT, make, H5P_DEFAULT);
  *at = (struct place) { .fd = -1, .at = d < 0 ? 0 : (int64_t) H5Dget_offset (d), .type = W_F32 };
  if (d >= 0) H5Dclose (d);
  H5Pclose (make);
  H5Sclose (space);
  return d < 0 ? -1 : 0;
}

static int make_all (hid_t f, struct places *p, int kinds, const struct full_head *h)
{
  int64_t version = FULL_VERSION;
  int32_t complete = 0;
  int bad = h5_attr_text (f, "format", FULL_FORMAT) || h5_attr (f, "version", H5T_STD_I64LE, -1, &version) || h5_attr (f, "step", H5T_STD_I64LE, -1, &h->step)
            || h5_attr (f, "tokens", H5T_STD_I64LE, -1, &h->tokens) || h5_attr (f, "updates", H5T_IEEE_F64LE, -1, &h->updates)
            || h5_attr_text (f, "config", h->config) || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
  for (int k = 0; k < kinds && !bad; k++) {
    hid_t g = H5Gcreate2 (f, ckpt_group[k], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    places_add (p, k);
    bad = g < 0;
    for (int64_t i = 0; i < p->n && !bad; i++) bad = make_one (g, &p->tensor[i], &p->at[k][i]);
    if (g >= 0) H5Gclose (g);
  }
  return bad;
}

int full_create (struct places *p, const char *path, int kinds, const struct full_head *h, struct err *e)
{
  int64_t bytes = 65536;
  for (int64_t i = 0; i < p->n; i++) bytes += kinds * (p->tensor[i].count * 4 + 1024);
  h5_begin ();
  hid_t f = h5_create (path, e);
  int bad = f < 0 ? -1 : make_all (f, p, kinds, h);
  if (f >= 0 && H5Fclose (f) < 0) bad = -1;
  if (bad) world_err (e, "cannot write %s (%s)", path, h5_why ());
  h5_end ();
  int fd = bad ? -1 : open (path, O_WRONLY | O_CLOEXEC);
  if (fd >= 0 && fallocate (fd, FALLOC_FL_KEEP_SIZE, 0, bytes) && errno != EOPNOTSUPP && errno != ENOSYS)
    bad = world_err (e, "cannot reserve %lld bytes for %s: %s", (long long) bytes, path, strerror (errno));
  if (fd >= 0) close (fd);
  return bad ? -1 : 0;
}

int full_finish (const char *path, const char *name, struct err *e)
{
  int32_t complete = 1;
  h5_begin ();
  hid_t f = h5_open (path, true, 0, e);
  int bad = f < 0 || h5_attr (f, "complete", H5T_STD_I32LE, -1, &complete);
  if (f >= 0) bad |= H5Fclose (f) < 0;
  if (bad) world_err (e, "cannot write %s (%s)", path, h5_why ());
  h5_end ();
  int fd = bad ? -1 : open (path, O_RDONLY | O_CLOEXEC);
  if (!bad && (fd < 0 || fsync (fd) || rename (path, name))) bad = world_err (e, "cannot finish %s: %s", name, strerror (errno));
  if (fd >= 0) close (fd);
  return bad ? -1 : 0;
}
