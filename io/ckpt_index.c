#include "ckpt_int.h"
#include <string.h>

/* The tables, field by field: what h5dump shows. One without fields is of plain numbers. */
enum field_type { F_NAME, F_TYPE, F_I32, F_I64, F_SHAPE, F_U64 };
struct field { const char *name; enum field_type type; size_t at; };
#define FIELD(row, member, label, type) { label, type, offsetof (struct row, member) }

static const struct field tensor_field[] = {
  FIELD (row_tensor, name, "name", F_NAME), FIELD (row_tensor, ndim, "ndim", F_I32), FIELD (row_tensor, shape, "shape", F_SHAPE),
  FIELD (row_tensor, stage, "stage", F_I32), FIELD (row_tensor, tp_axis, "tp_axis", F_I32),
  FIELD (row_tensor, dtype, "dtype", F_TYPE), FIELD (row_tensor, moments, "moments_dtype", F_TYPE),
};
static const struct field slice_field[] = {
  FIELD (row_slice, tensor, "tensor", F_I32), FIELD (row_slice, rank, "rank", F_I32), FIELD (row_slice, offset, "offset", F_I64),
  FIELD (row_slice, count, "count", F_I64), FIELD (row_slice, start, "start", F_I64), FIELD (row_slice, row0, "row0", F_I64),
  FIELD (row_slice, col0, "col0", F_I64), FIELD (row_slice, cols, "cols", F_I64),
};
static const struct field rank_field[] = {
  FIELD (row_rank, rank, "rank", F_I32), FIELD (row_rank, dp_replicate, "dp_replicate", F_I32), FIELD (row_rank, dp_shard, "dp_shard", F_I32),
  FIELD (row_rank, pp, "pp", F_I32), FIELD (row_rank, tp, "tp", F_I32), FIELD (row_rank, count, "count", F_I64),
  FIELD (row_rank, sum[CKPT_MASTER], "xxh3_param", F_U64), FIELD (row_rank, sum[CKPT_M], "xxh3_exp_avg", F_U64),
  FIELD (row_rank, sum[CKPT_V], "xxh3_exp_avg_sq", F_U64),
};
enum { TENSORS, SLICES, RANKS, SUMS, TABLES };
static const struct table { const char *name; const struct field *field; int fields; size_t row; } table[TABLES] = {
  [TENSORS] = { "/index/tensors", tensor_field, LEN (tensor_field), sizeof (struct row_tensor) },
  [SLICES]  = { "/index/slices",  slice_field,  LEN (slice_field),  sizeof (struct row_slice) },
  [RANKS]   = { "/index/ranks",   rank_field,   LEN (rank_field),   sizeof (struct row_rank) },
  [SUMS]    = { "/index/sums",    NULL,         0,                  sizeof (uint64_t) },
};

static hid_t field_type (enum field_type t)
{
  if (t == F_NAME || t == F_TYPE) {
    hid_t s = H5Tcopy (H5T_C_S1);
    H5Tset_size (s, t == F_NAME ? CKPT_NAME : sizeof ((struct row_tensor *) 0)->dtype);
    return s;
  }
  if (t == F_SHAPE) return H5Tarray_create2 (H5T_STD_I64LE, 1, (hsize_t[]) { 2 });
  return H5Tcopy (t == F_I32 ? H5T_STD_I32LE : t == F_I64 ? H5T_STD_I64LE : H5T_STD_U64LE);
}

static hid_t row_type (const struct table *t)
{
  if (!t->fields) return H5Tcopy (H5T_STD_U64LE);
  hid_t c = H5Tcreate (H5T_COMPOUND, t->row);
  for (int i = 0; i < t->fields; i++) {
    hid_t f = field_type (t->field[i].type);
    H5Tinsert (c, t->field[i].name, t->field[i].at, f);
    H5Tclose (f);
  }
  return c;
}

static int table_write (hid_t file, const struct table *t, int64_t n, const void *rows, bool create)
{
  hid_t type = row_type (t);
  hid_t d = create ? h5_dataset (file, t->name, type, n) : H5Dopen2 (file, t->name, H5P_DEFAULT);
  int bad = d < 0 || H5Dwrite (d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) < 0;
  if (d >= 0) bad |= H5Dclose (d) < 0;
  H5Tclose (type);
  return -bad;
}

static int hash_write (hid_t file, const struct index *x)
{
  uint64_t h = index_hash (x);
  return h5_attr (file, "index_xxh3", H5T_STD_U64LE, -1, &h);
}

int h5_index_create (hid_t file, const struct index *x)
{
  hid_t g = H5Gcreate2 (file, "/index", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  int bad = g < 0 || table_write (file, &table[TENSORS], x->tensors, x->tensor, true) || table_write (file, &table[SLICES], x->slices, x->slice, true)
            || table_write (file, &table[RANKS], x->ranks, x->rank, true) || table_write (file, &table[SUMS], x->sums, x->sum, true)
            || h5_attr (file, "block", H5T_STD_I64LE, -1, &x->block) || hash_write (file, x);
  if (g >= 0) H5Gclose (g);
  return -bad;
}

int h5_index_ranks (hid_t file, const struct index *x)
{
  return table_write (file, &table[RANKS], x->ranks, x->rank, false) || table_write (file, &table[SUMS], x->sums, x->sum, false) || hash_write (file, x) ? -1 : 0;
}

/* Rows of a table into a new block; NULL if it is not there, of other columns, or cannot be in a file of this size. */
static void *table_read (hid_t file, const struct table *t, int64_t *n)
{
  hsize_t bytes = 0;
  hid_t d = H5Dopen2 (file, t->name, H5P_DEFAULT);
  if (d < 0) return NULL;
  hid_t type = row_type (t), stored = H5Dget_type (d), space = H5Dget_space (d);
  void *rows = NULL;
  *n = H5Sget_simple_extent_npoints (space);
  H5Fget_filesize (file, &bytes);
  if (H5Tequal (type, stored) > 0 && H5Sget_simple_extent_ndims (space) == 1 && *n > 0 && *n <= (int64_t) bytes / (int64_t) t->row && *n < INT32_MAX) {
    rows = xalloc ((size_t) *n * t->row, "ckpt");
    if (H5Dread (d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) < 0) xfree (rows), rows = NULL;
  }
  H5Sclose (space);
  H5Tclose (stored);
  H5Tclose (type);
  H5Dclose (d);
  return rows;
}

/* Sums of blocks came with format 3. */
static int sums_read (hid_t file, const char *path, int64_t version, struct index *x, struct err *e)
{
  x->block = CKPT_BLOCK;
  if (version < 3) return 0;
  if (h5_get (file, "block", H5T_NATIVE_INT64, &x->block) || x->block < 1 || x->block > CKPT_BLOCK)
    return world_err (e, "%s: the attribute block of the root is missing or impossible", path);
  int64_t want = index_sums_all (x);
  if (!(x->sum = table_read (file, &table[SUMS], &x->sums))) return world_err (e, "%s: %s cannot be read (%s)", path, table[SUMS].name, h5_why ());
  if (x->sums != want || !index_sums_good (x)) return world_err (e, "%s is damaged: /index/sums and /index/ranks do not agree", path);
  return 0;
}

static int index_read (hid_t file, const char *path, int64_t version, struct index *x, struct err *e)
{
  void **const rows[SUMS] = { [TENSORS] = (void **) &x->tensor, [SLICES] = (void **) &x->slice, [RANKS] = (void **) &x->rank };
  int64_t *const n[SUMS] = { [TENSORS] = &x->tensors, [SLICES] = &x->slices, [RANKS] = &x->ranks };
  for (int i = 0; i < SUMS; i++)
    if (!(*rows[i] = table_read (file, &table[i], n[i]))) return world_err (e, "%s: %s cannot be read (%s)", path, table[i].name, h5_why ());
  uint64_t h = 0;
  if (h5_get (file, "index_xxh3", H5T_NATIVE_UINT64, &h) || h != index_hash (x)) return world_err (e, "%s is damaged: its index has not the checksum that was kept", path);
  struct err why = { 0 };
  if (index_check (x, &why)) return world_err (e, "%s: %s", path, why.msg);
  return sums_read (file, path, version, x, e);
}

/* Where dataset KIND of R lies, if it is as the index says. */
static int dataset_check (hid_t file, const char *path, int kind, enum dtype want, const struct row_rank *r, int64_t *where, struct err *e)
{
  hid_t d = h5_rank_dataset (file, kind, r->rank);
  if (d < 0) return world_err (e, "%s: /%s/rank%05d is missing (%s)", path, ckpt_group[kind], (int) r->rank, h5_why ());
  hid_t space = H5Dget_space (d), type = H5Dget_type (d), right = h5_type (want);
  int64_t n = H5Sget_simple_extent_npoints (space);
  bool same = H5Tequal (type, right) > 0;
  haddr_t at = n > 0 && n == r->count ? H5Dget_offset (d) : 0;
  H5Tclose (right);
  H5Tclose (type);
  H5Sclose (space);
  H5Dclose (d);
  *where = (int64_t) at;
  if (n != r->count || !same)
    return world_err (e, "%s: /%s/rank%05d has %lld elements%s%s and /index/ranks says %lld", path, ckpt_group[kind], (int) r->rank, (long long) n,
                      same ? "" : " that are no ", same ? "" : dtype_name (want), (long long) r->count);
  if (at == HADDR_UNDEF) return world_err (e, "%s: /%s/rank%05d is not contiguous: h5repack -l CONTI makes it so", path, ckpt_group[kind], (int) r->rank);
  return 0;
}

static int head_read (hid_t file, const char *path, struct ckpt_head *h, int64_t *version, struct err *e)
{
  char *format = h5_get_text (file, "format");
  bool ours = format && !strcmp (format, CKPT_FORMAT), full = format && !strcmp (format, "tessera full");
  xfree (format);
  if (full) return user_err (e, "%s is a FULL state dict (one dataset a tensor), not a SHARDED checkpoint: `pretrain import %s --from full --run.dir RUN_DIR` makes one of it", path, path);
  if (!ours) return user_err (e, "%s is not a checkpoint of this program", path);
  int32_t complete = 0;
  if (h5_get (file, "version", H5T_NATIVE_INT64, version) || *version < CKPT_OLDEST || *version > CKPT_VERSION)
    return user_err (e, "%s has checkpoint format version %lld; this program reads versions %d to %d", path, (long long) *version, CKPT_OLDEST, CKPT_VERSION);
  if (h5_get (file, "complete", H5T_NATIVE_INT32, &complete) || complete != 1) return world_err (e, "%s is not complete: its save was broken off", path);
  if (h5_get (file, "step", H5T_NATIVE_INT64, &h->step) || h5_get (file, "tokens", H5T_NATIVE_INT64, &h->tokens)
      || h5_get (file, "updates", H5T_NATIVE_DOUBLE, &h->updates))
    return world_err (e, "%s: an attribute of the root is missing (step, tokens, updates)", path);
  h->config = h5_get_text (file, "config");
  h->mesh = h5_get_text (file, "mesh");
  h->program = h5_get_text (file, "program");
  h->spike = h5_get_text (file, "spike");
  return 0;
}

int h5_head (hid_t file, const char *path, struct ckpt_head *h, struct index *x, struct err *e)
{
  *h = (struct ckpt_head) { 0 };
  *x = (struct index) { 0 };
  int64_t version = 0;
  if (head_read (file, path, h, &version, e) || index_read (file, path, version, x, e)) return -1;
  h->ranks = (int) x->ranks;
  h->moments = x->tensors && !strncmp (x->tensor[0].moments, "bf16", 8) ? DT_BF16 : DT_F32;
  x->where = xalloc ((size_t) x->ranks * CKPT_KINDS * sizeof *x->where, "ckpt");
  for (int k = 0; k < CKPT_KINDS; k++)
    for (int64_t r = 0; r < x->ranks; r++)
      if (dataset_check (file, path, k, k == CKPT_MASTER ? DT_F32 : h->moments, &x->rank[r], &x->where[r * CKPT_KINDS + k], e)) return -1;
  return 0;
}
