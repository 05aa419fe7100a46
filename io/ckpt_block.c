/* The checksums of blocks and datasets compared with what is read. */
#include "ckpt_int.h"
#include <string.h>

static int damaged (const struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, uint64_t sum, uint64_t kept, struct err *e)
{
  const char *first = index_tensor_at (&f->index, rank, at), *last = index_tensor_at (&f->index, rank, at + n - 1);
  return world_err (e, "%s is damaged: elements %lld to %lld of /%s/rank%05d (%s%s%s) have checksum %016llx, kept was %016llx", f->path, (long long) at, (long long) (at + n - 1),
                    ckpt_group[kind], rank, first, strcmp (first, last) ? " to " : "", strcmp (first, last) ? last : "", (unsigned long long) sum, (unsigned long long) kept);
}

int file_check (const struct ckpt_file *f, int kind, int rank, int64_t b, struct sum *w, struct err *e)
{
  const uint64_t *sum = index_sums (&f->index, kind, rank);
  int64_t at = b * f->index.block, n = MIN (f->index.block, f->index.rank[rank].count - at);
  if (!sum) return 0;
  uint64_t is = sum_end (w);
  return is == sum[b] ? 0 : damaged (f, kind, rank, at, n, is, sum[b], e);
}

int file_whole (const struct ckpt_file *f, int kind, int rank, struct sum *w, struct err *e)
{
  const struct row_rank *r = &f->index.rank[rank];
  if (f->index.sum) return 0;
  uint64_t is = sum_end (w);
  return is == r->sum[kind] ? 0 : damaged (f, kind, rank, 0, MAX (r->count, 1), is, r->sum[kind], e);
}
