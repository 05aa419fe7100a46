/* A file of HDF5's in memory: a driver that keeps what is written in blocks and knows no failure. Space that is taken and never written, the elements of a checkpoint, costs
   nothing. HDF5 cannot close a file that a disk refuses to take, and falls over it at exit: so it never meets the disk. */
#include "ckpt_int.h"
#include <stdlib.h>
#include <string.h>
#if H5_VERSION_GE (1, 13, 0)
#include <H5FDdevelop.h>
#define NUMBERS .version = H5FD_CLASS_VERSION, .value = 4096,
#else
#define NUMBERS
#endif

enum { BLOCK = 1 << 16 };

struct block { int64_t at; char *bytes; };
struct image { H5FD_t head; haddr_t eoa, eof; struct block *block; int64_t blocks; };

static struct image *of (const H5FD_t *f) { return (struct image *) f; }

/* The place in the list of the block that begins at AT, or where it would go. */
static int64_t find (const struct image *m, int64_t at)
{
  int64_t lo = 0, hi = m->blocks;
  while (lo < hi) {
    int64_t mid = (lo + hi) / 2;
    if (m->block[mid].at < at) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static char *bytes_at (struct image *m, int64_t at, bool make)
{
  int64_t i = find (m, at);
  if (i < m->blocks && m->block[i].at == at) return m->block[i].bytes;
  if (!make) return NULL;
  m->block = xrealloc (m->block, (size_t) (m->blocks + 1) * sizeof *m->block, "ckpt image");
  memmove (m->block + i + 1, m->block + i, (size_t) (m->blocks++ - i) * sizeof *m->block);
  m->block[i] = (struct block) { at, xalloc (BLOCK, "ckpt image") };
  return m->block[i].bytes;
}

static void move (struct image *m, int64_t at, int64_t n, char *to, const char *from)
{
  for (int64_t k; n; at += k, n -= k) {
    k = MIN (n, BLOCK - at % BLOCK);
    char *b = bytes_at (m, at - at % BLOCK, from != NULL);
    if (from) memcpy (b + at % BLOCK, from, (size_t) k), from += k;
    else if (b) memcpy (to, b + at % BLOCK, (size_t) k), to += k;
    else memset (to, 0, (size_t) k), to += k;
  }
}

/* --- what HDF5 asks of a driver --- */

static H5FD_t *image_open (const char *name, unsigned flags, hid_t fapl, haddr_t max)
{
  (void) name, (void) flags, (void) fapl, (void) max;
  return xalloc (sizeof (struct image), "ckpt image");
}

static herr_t image_close (H5FD_t *f)
{
  struct image *m = of (f);
  for (int64_t i = 0; i < m->blocks; i++) xfree (m->block[i].bytes);
  xfree (m->block);
  xfree (m);
  return 0;
}

static int image_cmp (const H5FD_t *a, const H5FD_t *b) { return a < b ? -1 : a > b; }

static herr_t image_query (const H5FD_t *f, unsigned long *flags)
{
  (void) f;
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

static haddr_t image_eoa (const H5FD_t *f, H5FD_mem_t type)
{
  (void) type;
  return of (f)->eoa;
}

static herr_t image_set_eoa (H5FD_t *f, H5FD_mem_t type, haddr_t to)
{
  (void) type;
  of (f)->eoa = to;
  return 0;
}

static haddr_t image_eof (const H5FD_t *f, H5FD_mem_t type)
{
  (void) type;
  return of (f)->eof;
}

static herr_t image_handle (H5FD_t *f, hid_t fapl, void **handle)
{
  (void) fapl;
  *handle = f;
  return 0;
}

static herr_t image_read (H5FD_t *f, H5FD_mem_t type, hid_t dxpl, haddr_t at, size_t n, void *p)
{
  (void) type, (void) dxpl;
  move (of (f), (int64_t) at, (int64_t) n, p, NULL);
  return 0;
}

static herr_t image_write (H5FD_t *f, H5FD_mem_t type, hid_t dxpl, haddr_t at, size_t n, const void *p)
{
  (void) type, (void) dxpl;
  move (of (f), (int64_t) at, (int64_t) n, NULL, p);
  of (f)->eof = MAX (of (f)->eof, at + n);
  return 0;
}

static herr_t image_truncate (H5FD_t *f, hid_t dxpl, hbool_t closing)
{
  (void) dxpl, (void) closing;
  of (f)->eof = of (f)->eoa;
  return 0;
}

static const H5FD_class_t image_class = {
  NUMBERS .name = "checkpoint image", .maxaddr = INT64_MAX, .fc_degree = H5F_CLOSE_WEAK, .open = image_open, .close = image_close, .cmp = image_cmp, .query = image_query,
  .get_eoa = image_eoa, .set_eoa = image_set_eoa, .get_eof = image_eof, .get_handle = image_handle, .read = image_read, .write = image_write, .truncate = image_truncate,
};

/* --- for the one who makes a file --- */

hid_t h5_image (struct err *e)
{
  static hid_t driver = H5I_INVALID_HID;
  if (driver < 0) driver = H5FDregister (&image_class);
  hid_t access = H5Pcreate (H5P_FILE_ACCESS);
  H5Pset_driver (access, driver, NULL);
  H5Pset_libver_bounds (access, H5F_LIBVER_V18, H5F_LIBVER_V18);
  H5Pset_alignment (access, 16 * CKPT_ALIGN, CKPT_ALIGN);
  hid_t f = H5Fcreate ("a checkpoint in memory", H5F_ACC_TRUNC, H5P_DEFAULT, access);
  H5Pclose (access);
  return f < 0 ? world_err (e, "cannot make a file in memory (%s)", h5_why ()) : f;
}

int64_t h5_image_size (hid_t f)
{
  void *m = NULL;
  return H5Fflush (f, H5F_SCOPE_LOCAL) < 0 || H5Fget_vfd_handle (f, H5P_DEFAULT, &m) < 0 ? -1 : (int64_t) ((struct image *) m)->eof;
}

const char *h5_image_next (hid_t f, int64_t *from, int64_t *to)
{
  void *p = NULL;
  H5Fget_vfd_handle (f, H5P_DEFAULT, &p);
  struct image *m = p;
  int64_t i = find (m, *to);
  if (i == m->blocks) return NULL;
  *from = m->block[i].at;
  *to = MIN (*from + BLOCK, MAX (*from, (int64_t) m->eof));
  return *to > *from ? m->block[i].bytes : NULL;
}
