#include "ckpt_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- HDF5's own words --- */

static int depth;
static H5E_auto2_t old_print;
static void *old_data;
static char why[200];

/* Of a failed system call only what the system said. */
static herr_t take_first (unsigned n, const H5E_error2_t *err, void *unused)
{
  static const char mark[] = "error message = '";
  (void) unused;
  if (n) return 0;
  const char *text = err->desc ? err->desc : "?", *said = strstr (text, mark);
  if (said) text = said + strlen (mark);
  snprintf (why, sizeof why, "%.*s", said ? (int) strcspn (text, "'") : (int) sizeof why - 1, text);
  for (char *c = why; *c; c++) if (*c == '\n') *c = ' ';
  return 0;
}

/* Called by HDF5 as a call fails: the next call would clear its stack. */
static herr_t keep_words (hid_t stack, void *unused)
{
  (void) unused;
  H5Ewalk2 (stack, H5E_WALK_UPWARD, take_first, NULL);
  return 0;
}

void h5_begin (void)
{
  if (depth++) return;
  setenv ("HDF5_USE_FILE_LOCKING", "FALSE", 0);   /* for versions whose property list cannot say it; a file system without locks is no reason to fail */
  H5dont_atexit ();   /* all is closed by hand; after a damaged file HDF5's own clean-up complains about itself */
  H5open ();
  H5Eget_auto2 (H5E_DEFAULT, &old_print, &old_data);
  H5Eset_auto2 (H5E_DEFAULT, keep_words, NULL);
  why[0] = 0;
}

void h5_end (void)
{
  if (--depth) return;
  H5Eset_auto2 (H5E_DEFAULT, old_print, old_data);
}

const char *h5_why (void) { return why[0] ? why : "HDF5 gives no cause"; }

/* --- files --- */

static hid_t serial_access (void)
{
  hid_t p = H5Pcreate (H5P_FILE_ACCESS);
#if H5_VERSION_GE (1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  H5Pset_file_locking (p, false, true);
#endif
  H5Pset_libver_bounds (p, H5F_LIBVER_V18, H5F_LIBVER_V18);
  return p;
}

int h5_plain (const char *path, int flags, double wait, struct err *e)
{
  for (double end = now () + wait;;) {
    int fd = open (path, flags | O_CLOEXEC), why = errno;
    if (fd >= 0) return fd;
    if (why == EINTR) continue;
    if (why == ENOENT && now () < end) {
      usleep (20000);
      continue;
    }
    return why == ENOENT && !wait ? user_err (e, "%s: %s", path, strerror (why)) : world_err (e, "%s: %s", path, strerror (why));
  }
}

hid_t h5_open (const char *path, bool writable, double wait, struct err *e)
{
  int fd = h5_plain (path, writable ? O_RDWR : O_RDONLY, wait, e);   /* for the system's own words */
  if (fd < 0) return -1;
  close (fd);
  hid_t access = serial_access ();
  hid_t f = H5Fopen (path, writable ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access);
  H5Pclose (access);
  if (f < 0) return world_err (e, "%s is no whole HDF5 file (%s)", path, h5_why ());
  return f;
}

hid_t h5_create (const char *path, struct err *e)
{
  hid_t access = serial_access ();
  hid_t f = H5Fcreate (path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
  H5Pclose (access);
  if (f < 0) return world_err (e, "cannot create %s (%s)", path, h5_why ());
  return f;
}

/* --- attributes --- */

int h5_attr (hid_t obj, const char *name, hid_t type, int64_t n, const void *p)
{
  hsize_t dim = (hsize_t) n;
  hid_t space = n < 0 ? H5Screate (H5S_SCALAR) : H5Screate_simple (1, &dim, NULL);
  hid_t a = H5Aexists (obj, name) > 0 ? H5Aopen (obj, name, H5P_DEFAULT) : H5Acreate2 (obj, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  int bad = a < 0 || H5Awrite (a, type, p) < 0;
  if (a >= 0) bad |= H5Aclose (a) < 0;
  H5Sclose (space);
  return -bad;
}

int h5_attr_text (hid_t obj, const char *name, const char *text)
{
  hid_t type = H5Tcopy (H5T_C_S1);
  H5Tset_size (type, strlen (text) + 1);
  int rc = h5_attr (obj, name, type, -1, text);
  H5Tclose (type);
  return rc;
}

int h5_get (hid_t obj, const char *name, hid_t type, void *p)
{
  if (H5Aexists (obj, name) <= 0) return -1;
  hid_t a = H5Aopen (obj, name, H5P_DEFAULT);
  if (a < 0) return -1;
  hid_t space = H5Aget_space (a);
  int bad = H5Sget_simple_extent_npoints (space) != 1 || H5Aread (a, type, p) < 0;
  H5Sclose (space);
  H5Aclose (a);
  return -bad;
}

char *h5_get_text (hid_t obj, const char *name)
{
  if (H5Aexists (obj, name) <= 0) return NULL;
  hid_t a = H5Aopen (obj, name, H5P_DEFAULT);
  if (a < 0) return NULL;
  hid_t type = H5Aget_type (a), space = H5Aget_space (a);
  size_t size = H5Tget_size (type);
  char *text = NULL;
  if (H5Tget_class (type) == H5T_STRING && H5Tis_variable_str (type) <= 0 && size < (16u << 20) && H5Sget_simple_extent_npoints (space) == 1) {
    text = xalloc (size + 1, "ckpt");
    if (H5Aread (a, type, text) < 0) xfree (text), text = NULL;
  }
  H5Sclose (space);
  H5Tclose (type);
  H5Aclose (a);
  return text;
}

/* --- datasets --- */

hid_t h5_dataset (hid_t group, const char *name, hid_t type, int64_t n)
{
  hsize_t dim = (hsize_t) n;
  hid_t space = H5Screate_simple (1, &dim, NULL), make = H5Pcreate (H5P_DATASET_CREATE);
  H5Pset_layout (make, H5D_CONTIGUOUS);
  H5Pset_alloc_time (make, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time (make, H5D_FILL_TIME_NEVER);
  hid_t d = H5Dcreate2 (group, name, type, space, H5P_DEFAULT, make, H5P_DEFAULT);
  H5Pclose (make);
  H5Sclose (space);
  return d;
}

/* IEEE's fields in this order, or HDF5 refuses; h5dump and h5py read it right (predefined float16 would be another type). */
hid_t h5_type (enum dtype t)
{
  hid_t h = H5Tcopy (H5T_IEEE_F32LE);
  if (t == DT_F32) return h;
  H5Tset_fields (h, 15, 7, 8, 0, 7);
  H5Tset_size (h, 2);
  H5Tset_ebias (h, 127);
  return h;
}

/* HDF5 would do it at 23 MB/s. */
void h5_widen (float *p, int64_t n)
{
  const char *from = (const char *) p + 2 * n;
  for (int64_t i = 0; i < n; i++) {
    bf16 x;
    memcpy (&x, from + 2 * i, 2);
    p[i] = bf16_to_f32 (x);
  }
}

const char *const ckpt_group[CKPT_KINDS] = { [CKPT_MASTER] = "param", [CKPT_M] = "exp_avg", [CKPT_V] = "exp_avg_sq" };

hid_t h5_rank_dataset (hid_t file, int kind, int64_t rank)
{
  char name[64];
  snprintf (name, sizeof name, "/%s/rank%05lld", ckpt_group[kind], (long long) rank);
  return H5Dopen2 (file, name, H5P_DEFAULT);
}

void ckpt_library (char out[static 32])
{
  unsigned a = 0, b = 0, c = 0;
  H5get_libversion (&a, &b, &c);
  snprintf (out, 32, "%u.%u.%u", a, b, c);
}
