/* A save in phases: the empty file; each rank's elements; to the disk; checksums, `complete` and the name. Between phases all ranks agree. */
#include "ckpt_saving.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEEN 10.0   /* seconds after which a name that rank 0 made must be seen everywhere */

/* --- what I write --- */

static void replica_of (const struct mesh *m, int *n, int *k)
{
  const int *dim = m->shape.dim, *at = m->coord;
  *n = m->shape.no_shard ? dim[AXIS_DP_REPLICATE] * dim[AXIS_DP_SHARD] : dim[AXIS_DP_REPLICATE];
  *k = m->shape.no_shard ? at[AXIS_DP_REPLICATE] * dim[AXIS_DP_SHARD] + at[AXIS_DP_SHARD] : at[AXIS_DP_REPLICATE];
}

static void add_source (struct ckpt_saving *v, const struct piece *p)
{
  const struct slot *t = p->slot;
  bool flat = param_ndim (t->id) == 1;
  v->source[v->slices] = (struct source) { p->unit, p->lo, p->hi - p->lo };
  v->slice[v->slices++] = (struct row_slice) {
    .tensor = index_find (&v->s.conf->arch, t->block, t->id), .rank = v->me.rank, .offset = v->me.count, .count = p->hi - p->lo, .start = p->start,
    .row0 = flat ? t->part.row0 + t->part.col0 : t->part.row0, .col0 = flat ? 0 : t->part.col0, .cols = flat ? 1 : t->part.cols };
  v->me.count += p->hi - p->lo;
}

static void list_sources (struct ckpt_saving *v)
{
  const struct mesh *m = v->s.mesh;
  const int *at = m->coord, *dim = m->shape.dim;
  int replicas, replica;
  struct piece *piece;
  replica_of (m, &replicas, &replica);
  v->me = (struct row_rank) { m->rank, at[AXIS_DP_REPLICATE], at[AXIS_DP_SHARD], at[AXIS_PP], at[AXIS_TP], 0, { 0 } };
  int n = units_pieces (v->s.units, &piece);
  v->slice = xalloc ((size_t) n * sizeof *v->slice, "ckpt");
  v->source = xalloc ((size_t) n * sizeof *v->source, "ckpt");
  for (int i = 0; i < n; i++) {
    struct piece p = units_owned (&piece[i], dim[AXIS_TP], at[AXIS_TP], replicas, replica);
    if (p.lo < p.hi) add_source (v, &p);
  }
  xfree (piece);
}

/* --- the index on rank 0 --- */

static void gather_ranks (struct ckpt_saving *v)
{
  MPI_Request r;
  MPI_Igather (&v->me, sizeof v->me, MPI_BYTE, v->index.rank, sizeof v->me, MPI_BYTE, 0, v->world, &r);
  wait_all (1, &r);
}

static void gather_slices (struct ckpt_saving *v)
{
  int n = v->s.mesh->size, bytes = v->slices * (int) sizeof *v->slice, *count = xalloc ((size_t) n * sizeof (int), "ckpt"), *at = xalloc ((size_t) n * sizeof (int), "ckpt");
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

/* To rank 0: the sums of each rank's blocks. */
static void gather_sums (struct ckpt_saving *v)
{
  struct index *x = &v->index;
  int n = v->s.mesh->size, mine = CKPT_KINDS * (int) v->blocks, *count = xalloc ((size_t) n * sizeof (int), "ckpt"), *at = xalloc ((size_t) n * sizeof (int), "ckpt");
  MPI_Request r;
  for (int i = 0, sum = 0; i < n && !v->rank; sum += count[i++]) count[i] = CKPT_KINDS * (int) index_blocks (x, i), at[i] = sum;
  MPI_Igatherv (v->sum, mine, MPI_UINT64_T, x->sum, count, at, MPI_UINT64_T, 0, v->world, &r);
  wait_all (1, &r);
  xfree (count);
  xfree (at);
}

static int make_index (struct ckpt_saving *v, struct err *e)
{
  struct index *x = &v->index;
  int64_t block = x->block;
  index_of_arch (x, &v->s.conf->arch);
  x->block = block;
  for (int64_t i = 0; i < x->tensors; i++) snprintf (x->tensor[i].moments, sizeof x->tensor[i].moments, "%s", dtype_name (v->s.moments));
  x->ranks = v->s.mesh->size;
  x->rank = xalloc ((size_t) x->ranks * sizeof *x->rank, "ckpt");
  gather_ranks (v);
  gather_slices (v);
  if (v->rank) return 0;
  x->sums = index_sums_all (x);
  if (x->sums < 0) return user_err (e, "the checkpoint would have more than %d blocks: ckpt_state.block is too small", INT32_MAX);
  x->sum = xalloc ((size_t) x->sums * sizeof *x->sum, "ckpt");
  for (int64_t i = x->slices - 1; i >= 0; i--) x->tensor[x->slice[i].tensor].stage = x->rank[x->slice[i].rank].pp;
  return index_check (x, e);
}

/* --- begin --- */

static int begin (struct ckpt_saving *v, const char *run_dir, struct err *e)
{
  MPI_Request r;
  if (ckpt_agree (v->world, make_index (v, e), e)) return -1;
  if (ckpt_agree (v->world, v->rank ? 0 : make_file (v, run_dir, e), e)) return -1;
  MPI_Iscatter (v->index.where, sizeof v->at, MPI_BYTE, v->at, sizeof v->at, MPI_BYTE, 0, v->world, &r);
  wait_all (1, &r);
  v->fd = h5_plain (v->tmp, O_WRONLY, SEEN, e);   /* each rank sees the file and may write it */
  return ckpt_agree (v->world, v->fd < 0, e);
}

static void free_saving (struct ckpt_saving **at)
{
  struct ckpt_saving *v = *at;
  *at = NULL;
  if (v->fd >= 0) close (v->fd);
  if (v->h5 >= 0) H5Fclose (v->h5);
  index_free (&v->index);
  xfree (v->slice);
  xfree (v->source);
  xfree (v->buf);
  xfree (v->sum);
  xfree (v);
  h5_end ();
}

/* Nothing of a failed save stays. */
static int fail (struct ckpt_saving **v)
{
  if (!(*v)->rank) unlink ((*v)->tmp);
  free_saving (v);
  return -1;
}

int ckpt_begin (const struct ckpt_state *s, const char *run_dir, struct ckpt_saving **out, struct err *e)
{
  struct err local = { 0 };
  struct ckpt_saving *v = *out = xalloc (sizeof *v, "ckpt");
  *v = (struct ckpt_saving) { .s = *s, .world = s->mesh->world, .rank = s->mesh->rank, .local_rank = s->mesh->local_rank, .fd = -1, .h5 = -1, .began = now (),
                              .threads = ckpt_threads (s) };
  v->index.block = s->block ? s->block : CKPT_BLOCK;
  ckpt_folder (run_dir, v->folder);
  ckpt_name (run_dir, s->step, v->name);
  snprintf (v->tmp, sizeof v->tmp, "%s.tmp", v->name);
  v->buf = xalloc ((size_t) (v->threads * SAVE_RUN * v->index.block) * 4, "ckpt stage");
  h5_begin ();
  list_sources (v);
  v->blocks = ceil_div (v->me.count, v->index.block);
  v->sum = xalloc ((size_t) (v->blocks * CKPT_KINDS + 1) * sizeof *v->sum, "ckpt");
  if (begin (v, run_dir, e ? e : &local)) return fail (out);
  v->t[0] = now ();
  save_start (v, save_write);
  return 0;
}

void ckpt_go (struct ckpt_saving *v)
{
  v->behind = true;
  save_start (v, v->work);
}

bool ckpt_busy (const struct ckpt_saving *v) { return !v->running || !v->done; }

/* --- from phase to phase --- */

static int after_sync (struct ckpt_saving *v)
{
  gather_ranks (v);
  gather_sums (v);
  return v->rank ? 0 : make_complete (v, &v->err);
}

/* What follows the work of a phase on the main thread of each rank; then the next phase's work. */
static const struct phase { int (*work) (struct ckpt_saving *v), (*after) (struct ckpt_saving *v); } phases[] = {
  { save_write, NULL }, { save_sync, after_sync }, { save_name, NULL },
};

static void tell_cost (const struct ckpt_saving *v)
{
  struct ckpt_cost *c = v->s.cost;
  int64_t element = 4 + (CKPT_KINDS - 1) * dtype_size (v->s.moments);
  if (c) *c = (struct ckpt_cost) { v->t[0] - v->began, v->wrote - v->t[0] - v->disk, v->t[2] - v->wrote + v->disk, v->t[3] - v->t[2], v->me.count * element };
}

int ckpt_next (struct ckpt_saving **at, struct err *e)
{
  struct ckpt_saving *v = *at;
  const struct phase *p = &phases[v->phase];
  int bad = ckpt_agree (v->world, save_wait (v), &v->err);
  if (!bad && p->after) bad = ckpt_agree (v->world, p->after (v), &v->err);
  v->t[++v->phase] = now ();
  if (bad) {
    if (e && !e->msg[0]) *e = v->err;
    return fail (at);
  }
  if (v->phase < LEN (phases)) {
    save_start (v, phases[v->phase].work);
    return 1;
  }
  tell_cost (v);
  free_saving (at);
  return 0;
}

int ckpt_finish (struct ckpt_saving **v, struct err *e)
{
  int rc;
  while ((rc = ckpt_next (v, e)) > 0) continue;
  return rc;
}

int ckpt_save (const struct ckpt_state *s, const char *run_dir, struct err *e)
{
  struct ckpt_saving *v;
  return ckpt_begin (s, run_dir, &v, e) ? -1 : ckpt_finish (&v, e);
}
