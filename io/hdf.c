#include "config.h"
#include "hdf.h"
#include <stdio.h>
#include <string.h>

void hdf_quiet (void) { H5Eset_auto2 (H5E_DEFAULT, NULL, NULL); }

static herr_t note (unsigned depth, const H5E_error2_t *error, void *text)
{
  if (!depth) snprintf (text, 512, "%s", error->desc ? error->desc : "no reason given");
  return 0;
}

const char *hdf_why (void)
{
  static char text[512];
  strcpy (text, "no reason given");
  H5Ewalk2 (H5E_DEFAULT, H5E_WALK_UPWARD, note, text);
  return text;
}

/* The property exists since 1.10.7, and not in 1.12.0. */
#if H5_VERSION_GE (1, 12, 1) || (H5_VERSION_GE (1, 10, 7) && !H5_VERSION_GE (1, 12, 0))
#define NO_LOCKS(fapl) H5Pset_file_locking (fapl, false, true)
#else
#define NO_LOCKS(fapl) ((void) (fapl))
#endif

hid_t hdf_fapl (void)
{
  static hid_t fapl = -1;
  if (fapl < 0) {
    fapl = H5Pcreate (H5P_FILE_ACCESS);
    NO_LOCKS (fapl);
    H5Pset_libver_bounds (fapl, H5F_LIBVER_V18, H5F_LIBVER_V18);   /* what is created has checksums over its structure, and HDF5 1.8 reads it */
  }
  return fapl;
}

/* Open attribute NAME of class WANT with one element: 1, 0 (there is none) or -1. */
static int open_one (hid_t obj, const char *name, H5T_class_t want, hid_t *attr, hid_t *type)
{
  if (H5Aexists (obj, name) <= 0) return 0;
  if ((*attr = H5Aopen (obj, name, H5P_DEFAULT)) < 0) return -1;
  *type = H5Aget_type (*attr);
  hid_t space = H5Aget_space (*attr);
  bool good = H5Tget_class (*type) == want && H5Sget_simple_extent_npoints (space) == 1;
  H5Sclose (space);
  if (good) return 1;
  H5Tclose (*type);
  H5Aclose (*attr);
  return -1;
}

int hdf_get_int (hid_t obj, const char *name, int64_t *value)
{
  hid_t attr, type;
  int found = open_one (obj, name, H5T_INTEGER, &attr, &type);
  if (found <= 0) return found;
  if (H5Aread (attr, H5T_NATIVE_INT64, value) < 0) found = -1;
  H5Tclose (type);
  H5Aclose (attr);
  return found;
}

int hdf_get_text (hid_t obj, const char *name, char *text, size_t size)
{
  hid_t attr, type;
  int found = open_one (obj, name, H5T_STRING, &attr, &type);
  if (found <= 0) return found;
  if (H5Tis_variable_str (type) > 0) {
    char *var = NULL;
    if (H5Aread (attr, type, &var) < 0) found = -1;
    else snprintf (text, size, "%s", var ? var : "");
    H5free_memory (var);
  } else {
    size_t n = H5Tget_size (type);
    char *fixed = xalloc (n + 1, "attribute");
    if (H5Aread (attr, type, fixed) < 0) found = -1;
    else snprintf (text, size, "%s", fixed);
    xfree (fixed);
  }
  H5Tclose (type);
  H5Aclose (attr);
  return found;
}

static int put (hid_t obj, const char *name, hid_t file_type, hid_t type, const void *value)
{
  hid_t space = H5Screate (H5S_SCALAR), attr = H5Acreate2 (obj, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
  int rc = attr < 0 || H5Awrite (attr, type, value) < 0 ? -1 : 0;
  if (attr >= 0) H5Aclose (attr);
  H5Sclose (space);
  return rc;
}

int hdf_put_int (hid_t obj, const char *name, int64_t value) { return put (obj, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value); }

int hdf_put_text (hid_t obj, const char *name, const char *text)
{
  hid_t type = H5Tcopy (H5T_C_S1);
  H5Tset_size (type, strlen (text) + 1);
  int rc = put (obj, name, type, type, text);
  H5Tclose (type);
  return rc;
}
