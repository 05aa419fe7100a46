/* Token files in HDF5. HDF5 1.10 writes beyond its memory, or does not come to an end, for files in which a byte is wrong: so it looks at them in a process of its own, and what
   that tells is checked against the file. */
#include "config.h"
#include "tokens_int.h"
#include "hdf.h"
#include <string.h>

enum { FORMAT_VERSION = 1 };

/* --- in the other process --- */

static const struct token_kind *const kind[] = { &token_u8, &token_u16, &token_u32 };

static const struct token_kind *hdf5_kind (hid_t type)
{
  bool good = H5Tget_class (type) == H5T_INTEGER && H5Tget_sign (type) == H5T_SGN_NONE && H5Tget_order (type) != H5T_ORDER_BE;
  for (int i = 0; good && i < LEN (kind); i++)
    if (H5Tget_size (type) == (size_t) kind[i]->bytes) return kind[i];
  return NULL;
}

/* Where data set NAME lies: kind, count and byte offset, or -1 with what is wrong with it. */
static int hdf5_place (struct tokens *t, hid_t set, const char *name, const struct token_kind **kind, int64_t *count,
                       int64_t *offset, struct err *e)
{
  hid_t type = H5Dget_type (set), space = H5Dget_space (set), plist = H5Dget_create_plist (set);
  H5D_layout_t layout = H5Pget_layout (plist);
  bool flat = H5Sget_simple_extent_ndims (space) == 1, outside = H5Pget_external_count (plist) > 0;
  *kind = hdf5_kind (type);
  *count = H5Sget_simple_extent_npoints (space);
  haddr_t at = H5Dget_offset (set);
  H5Pclose (plist), H5Sclose (space), H5Tclose (type);
  if (layout != H5D_CONTIGUOUS || outside)
    return user_err (e, "%s: data set %s is %s, but only contiguous data can be mapped; "
                     "h5repack -f NONE -l CONTI %s NEW.h5 converts it", t->path, name,
                     outside ? "external" : layout == H5D_CHUNKED ? "chunked" : "not contiguous", t->path);
  if (!*kind) return user_err (e, "%s: data set %s must have type uint8, uint16 or uint32, little-endian", t->path, name);
  if (!flat) return user_err (e, "%s: data set %s must have one dimension", t->path, name);
  if (*count <= 0 || at == HADDR_UNDEF) return user_err (e, "%s: data set %s is empty", t->path, name);
  *offset = (int64_t) at;
  if (*offset > t->file.bytes || *count > (t->file.bytes - *offset) / (*kind)->bytes)
    return user_err (e, "%s is truncated: data set %s has %lld values of %d bytes from byte %lld on, "
                     "but the file ends at byte %lld", t->path, name, (long long) *count, (*kind)->bytes, (long long) *offset,
                     (long long) t->file.bytes);
  return 0;
}

static int hdf5_set (struct tokens *t, hid_t file, const char *name, const struct token_kind **kind, int64_t *count,
                     int64_t *offset, struct err *e)
{
  hid_t set = H5Dopen2 (file, name, H5P_DEFAULT);
  if (set < 0) return user_err (e, "%s: %s is not a data set that HDF5 can open (%s)", t->path, name, hdf_why ());
  int rc = hdf5_place (t, set, name, kind, count, offset, e);
  H5Dclose (set);
  return rc;
}

static int hdf5_attributes (struct tokens *t, hid_t file, struct err *e)
{
  int64_t version = FORMAT_VERSION;
  int eod = -1;
  if (hdf_get_int (file, "format", &version) < 0) return user_err (e, "%s: attribute format is not one integer", t->path);
  if (version != FORMAT_VERSION)
    return user_err (e, "%s: token format %lld is not known; this pretrain reads format %d", t->path, (long long) version,
                     FORMAT_VERSION);
  int vocab = hdf_get_int (file, "vocab", &t->vocab);
  if (vocab < 0 || (vocab && t->vocab <= 0)) return user_err (e, "%s: attribute vocab is not one positive integer", t->path);
  eod = hdf_get_int (file, "eod", &t->eod);
  if (eod < 0 || (eod && t->eod < -1)) return user_err (e, "%s: attribute eod is not one token id", t->path);
  if (hdf_get_text (file, "tokenizer", t->tokenizer, sizeof t->tokenizer) < 0)
    return user_err (e, "%s: attribute tokenizer is not one string", t->path);
  return 0;
}

static int hdf5_file (struct tokens *t, hid_t file, struct err *e)
{
  const struct token_kind *mask_kind;
  int64_t mask_count, mask_offset;
  if (hdf5_attributes (t, file, e)) return -1;
  if (H5Lexists (file, "tokens", H5P_DEFAULT) <= 0) return user_err (e, "%s has no data set /tokens", t->path);
  if (hdf5_set (t, file, "/tokens", &t->kind, &t->count, &t->offset, e)) return -1;
  if (H5Lexists (file, "mask", H5P_DEFAULT) <= 0) return 0;
  if (hdf5_set (t, file, "/mask", &mask_kind, &mask_count, &mask_offset, e)) return -1;
  if (mask_kind != &token_u8) return user_err (e, "%s: data set /mask must have type uint8", t->path);
  if (mask_count != t->count)
    return user_err (e, "%s: /mask has %lld values for %lld tokens", t->path, (long long) mask_count, (long long) t->count);
  t->mask = t->file.at + mask_offset;
  return 0;
}

static int hdf5_open (struct tokens *t, struct err *e)
{
  hdf_quiet ();
  hid_t file = H5Fopen (t->path, H5F_ACC_RDONLY, hdf_fapl ());
  if (file < 0) return user_err (e, "%s cannot be read as HDF5: %s", t->path, hdf_why ());
  int rc = hdf5_file (t, file, e);
  H5Fclose (file);
  return rc;
}

/* What comes back. */
struct layout { int kind; int64_t offset, count, mask, vocab, eod; char tokenizer[sizeof ((struct tokens *) 0)->tokenizer]; };   /* mask: byte of the file, 0: none */
struct look { const struct tokens *t; struct layout out; };

static int look (void *ctx, struct err *e)
{
  struct look *l = ctx;
  struct tokens t = *l->t;
  if (hdf5_open (&t, e)) return -1;
  l->out = (struct layout) { 0, t.offset, t.count, t.mask ? t.mask - t.file.at : 0, t.vocab, t.eod, "" };
  while (kind[l->out.kind] != t.kind) l->out.kind++;
  memcpy (l->out.tokenizer, t.tokenizer, sizeof t.tokenizer);
  return 0;
}

/* --- in this one --- */

static bool inside (const struct tokens *t, int64_t at, int64_t n, int64_t bytes) { return at > 0 && at <= t->file.bytes && n > 0 && n <= (t->file.bytes - at) / bytes; }

int tokens_hdf5 (struct tokens *t, struct err *e)
{
  struct look l = { .t = t };
  struct layout *o = &l.out;
  if (hdf_apart (t->path, look, &l, o, sizeof *o, e)) return -1;
  if (o->kind < 0 || o->kind >= LEN (kind) || !inside (t, o->offset, o->count, kind[o->kind]->bytes) || (o->mask && !inside (t, o->mask, o->count, 1))
      || !memchr (o->tokenizer, 0, sizeof o->tokenizer) || o->vocab < 0 || o->eod < -1)
    return user_err (e, "%s cannot be read as HDF5: it is damaged", t->path);
  t->kind = kind[o->kind];
  t->offset = o->offset, t->count = o->count, t->vocab = o->vocab, t->eod = o->eod;
  t->mask = o->mask ? t->file.at + o->mask : NULL;
  memcpy (t->tokenizer, o->tokenizer, sizeof t->tokenizer);
  return 0;
}
