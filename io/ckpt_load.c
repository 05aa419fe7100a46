/* Any mesh from any other. Each rank finds where its elements lie, reads them into their place and compares the checksums of the blocks that it reads whole; blocks that no rank
   needs whole are dealt out, so that each sum is compared by some rank. On the mesh that wrote, that is one pass over the rank's own datasets. */
#include "ckpt_loading.h"
#include <stdlib.h>
#include <string.h>

#define SEEN 10.0                 /* seconds in which a file that rank 0 sees must be seen everywhere */
enum { TASK = 16 };               /* blocks that a thread takes on at once */
enum use { NONE, SOME, WHOLE };   /* of a block's elements are mine */

/* --- rank 0 reads what all must know --- */

static int read_head (struct loader *l, const char *path, struct err *e)
{
  struct err why = { 0 };
  if (file_open (&l->f, path, e)) return -1;
  if (index_match (&l->f.index, &l->mine, l->kinds == 1, l->map, &why)) return user_err (e, "cannot load %s: %s", path, why.msg);
  return 0;
}

/* What rank 0 found, and how long its tables are. */
struct shared { int64_t bad, step, tokens, moments, tensors, slices, ranks, sums, block; double updates; };

/* All tables, one after the other: into BLOB, from it, or (NULL) only their bytes. */
static int64_t pack (struct loader *l, char *blob, bool out)
{
  struct index *x = &l->f.index;
  struct { void **rows; int64_t bytes; } part[] = {
    { (void **) &x->tensor, x->tensors * (int64_t) sizeof *x->tensor }, { (void **) &x->slice, x->slices * (int64_t) sizeof *x->slice },
    { (void **) &x->rank, x->ranks * (int64_t) sizeof *x->rank }, { (void **) &x->sum, x->sums * (int64_t) sizeof *x->sum },
    { (void **) &x->where, x->ranks * CKPT_KINDS * (int64_t) sizeof *x->where }, { (void **) &l->map, l->mine.tensors * (int64_t) sizeof *l->map },
  };
  int64_t at = 0;
  for (int i = 0; i < LEN (part); at += part[i++].bytes) {
    if (!blob || !part[i].bytes) continue;
    if (out && !*part[i].rows) *part[i].rows = xalloc ((size_t) part[i].bytes, "ckpt");
    if (out) memcpy (*part[i].rows, blob + at, (size_t) part[i].bytes);
    else memcpy (blob + at, *part[i].rows, (size_t) part[i].bytes);
  }
  return at;
}

static void share_tables (struct loader *l)
{
  int rank = l->s->mesh->rank;
  int64_t bytes = pack (l, NULL, false);
  char *blob = xalloc ((size_t) bytes + 1, "ckpt");
  if (!rank) pack (l, blob, false);
  ckpt_bcast (l->world, blob, bytes);
  if (rank) pack (l, blob, true);
  xfree (blob);
}

static int share_head (struct loader *l, const char *path, struct err *e)
{
  struct index *x = &l->f.index;
  struct ckpt_head *h = &l->f.head;
  int rank = l->s->mesh->rank, bad = rank ? 0 : read_head (l, path, e);
  struct shared m = { bad, h->step, h->tokens, h->moments, x->tensors, x->slices, x->ranks, x->sums, x->block, h->updates };
  ckpt_bcast (l->world, &m, sizeof m);
  if (m.bad) return ckpt_agree (l->world, bad, e);
  h->step = m.step, h->tokens = m.tokens, h->updates = m.updates, h->moments = (enum dtype) m.moments;
  x->tensors = m.tensors, x->slices = m.slices, x->ranks = m.ranks, x->sums = m.sums, x->block = m.block;
  share_tables (l);
  return 0;
}

/* --- where my elements lie --- */

struct strip loader_strip (const struct piece *p)
{
  const struct part *t = &p->slot->part;
  bool flat = param_ndim (p->slot->id) == 1;
  return (struct strip) { flat ? t->row0 + t->col0 : t->row0, flat ? 0 : t->col0, flat ? 1 : t->cols, p->start, p->hi - p->lo };
}

int32_t loader_tensor (const struct loader *l, const struct piece *p) { return l->map[index_find (&l->s->conf->arch, p->slot->block, p->slot->id)]; }

static void add_take (struct loader *l, int rank, int piece, int64_t offset, const struct run *u)
{
  if (l->takes == l->room) {
    l->room = l->room ? 2 * l->room : 64;
    l->take = xrealloc (l->take, (size_t) l->room * sizeof *l->take, "ckpt");
  }
  struct take t = { rank, piece, *u, 0, 0 };
  t.u.b += offset;
  t.end = t.u.b + (u->rows - 1) * u->b_stride + u->width;
  l->take[l->takes++] = t;
}

static int by_place (const void *a, const void *b)
{
  const struct take *p = a, *q = b;
  return (p->u.a > q->u.a) - (p->u.a < q->u.a);
}

static int by_source (const void *a, const void *b)
{
  const struct take *p = a, *q = b;
  if (p->rank != q->rank) return p->rank < q->rank ? -1 : 1;
  return (p->u.b > q->u.b) - (p->u.b < q->u.b);
}

/* Takes of one piece: do they hold each element once? */
static int check_takes (const struct loader *l, struct take *t, int64_t n, const struct piece *p, struct err *e)
{
  const char *name = l->f.index.tensor[loader_tensor (l, p)].name;
  int64_t sum = 0;
  if (n) qsort (t, (size_t) n, sizeof *t, by_place);
  for (int64_t i = 0; i < n; i++) {
    const struct run *u = &t[i].u;
    sum += u->rows * u->width;
    for (int64_t k = i + 1; k < n && t[k].u.a < u->a + (u->rows - 1) * u->a_stride + u->width; k++)
      if (runs_collide (u, &t[k].u)) return world_err (e, "%s holds elements of tensor %s twice", l->f.path, name);
  }
  return sum == p->hi - p->lo ? 0 : world_err (e, "%s lacks elements of tensor %s", l->f.path, name);
}

static int plan_piece (struct loader *l, int i, struct err *e)
{
  const struct index *x = &l->f.index;
  const struct piece *p = &l->piece[i];
  struct strip w = loader_strip (p);
  int32_t tensor = loader_tensor (l, p);
  int64_t before = l->takes;
  struct run run[RUNS_MAX];
  for (int64_t k = x->first[tensor]; k < x->first[tensor + 1]; k++) {
    const struct row_slice *t = &x->slice[x->order[k]];
    struct strip from = strip_of_slice (t);
    int n = strips_meet (&w, &from, run);
    for (int j = 0; j < n; j++) {
      if (run[j].rows > 1 && !l->s->lay) l->windowed[i] = true;
      add_take (l, t->rank, i, t->offset, &run[j]);
    }
  }
  if (check_takes (l, l->take + before, l->takes - before, p, e)) return -1;
  if (l->windowed[i]) l->takes = before;
  return 0;
}

static void sort_takes (struct loader *l)
{
  l->first = xalloc ((size_t) (l->f.index.ranks + 1) * sizeof *l->first, "ckpt");
  if (l->takes) qsort (l->take, (size_t) l->takes, sizeof *l->take, by_source);
  for (int64_t i = 0; i < l->takes; i++) {
    struct take *t = &l->take[i];
    t->reach = i && t[-1].rank == t->rank ? MAX (t[-1].reach, t->end) : t->end;
    l->first[t->rank + 1]++;
  }
  for (int64_t r = 0; r < l->f.index.ranks; r++) l->first[r + 1] += l->first[r];
}

/* --- who compares which checksum --- */

/* Elements [lo, hi) of RANK's datasets are all mine. A sum of format 2 is of a dataset. */
static void use_whole (struct loader *l, uint8_t *use, int64_t rank, int64_t lo, int64_t hi)
{
  const struct index *x = &l->f.index;
  int64_t count = x->rank[rank].count, from = ceil_div (lo, x->block), to = hi == count ? index_blocks (x, rank) : hi / x->block;
  if (!x->sum && (lo > 0 || hi < count)) return;
  for (int64_t b = from; b < to; b++) use[b] = WHOLE;
}

static void use_of_rank (struct loader *l, uint8_t *use, int64_t rank)
{
  int64_t block = l->f.index.block, lo = 0, hi = 0;   /* what is mine without a gap */
  for (int64_t i = l->first[rank]; i < l->first[rank + 1]; i++) {
    const struct take *t = &l->take[i];
    for (int64_t b = t->u.b / block; b <= (t->end - 1) / block; b++) use[b] = MAX (use[b], SOME);
    if (t->u.rows > 1 && t->u.b_stride > t->u.width) continue;
    if (t->u.b > hi) use_whole (l, use, rank, lo, hi), lo = t->u.b;
    hi = MAX (hi, t->end);
  }
  use_whole (l, use, rank, lo, hi);
}

static void add_task (struct loader *l, const struct task *t)
{
  if (l->tasks == l->task_room) {
    l->task_room = l->task_room ? 2 * l->task_room : 256;
    l->task = xrealloc (l->task, (size_t) l->task_room * sizeof *t, "ckpt");
  }
  l->task[l->tasks++] = *t;
}

/* The next block of a dataset: part of the task before, or of one of its own. Of format 2 all blocks whose sum is compared are one task. */
static void add_block (struct loader *l, int kind, int rank, int64_t b, bool check)
{
  struct task *t = l->tasks ? &l->task[l->tasks - 1] : NULL;
  bool more = t && t->kind == kind && t->rank == rank && t->to == b && t->check == check && (t->to - t->from < TASK || (check && !l->f.index.sum));
  if (more) t->to++;
  else add_task (l, &(struct task) { kind, rank, b, b + 1, check });
}

/* Which rank compares what no rank has whole, the I-th of N. */
static int dealt_to (const struct loader *l, int kind, int64_t i, int64_t n)
{
  int64_t size = l->s->mesh->size;
  return (int) (i * size / n + (size > n ? kind % (size / n) : 0));
}

/* HAD: a bit a block that some rank has whole. */
static void list_tasks (struct loader *l, const uint64_t *had, int64_t left)
{
  const struct index *x = &l->f.index;
  for (int k = 0; k < l->kinds; k++)
    for (int64_t r = 0, at = 0, i = 0; r < x->ranks; at += index_blocks (x, r++)) {
      int64_t n = index_blocks (x, r);
      for (int64_t b = 0; b < n; b++) {
        bool dealt = !(had[(at + b) / 64] >> (at + b) % 64 & 1) && dealt_to (l, k, i, left) == l->s->mesh->rank;
        bool check = l->use[at + b] == WHOLE || dealt;
        if (check || l->use[at + b]) add_block (l, k, (int) r, b, check);
        if (!(had[(at + b) / 64] >> (at + b) % 64 & 1) && (x->sum || b == n - 1)) i++;
      }
    }
}

/* Collective. */
static void plan_blocks (struct loader *l)
{
  const struct index *x = &l->f.index;
  int64_t all = 0, left = 0, at = 0;
  MPI_Request q;
  for (int64_t r = 0; r < x->ranks; r++) all += index_blocks (x, r);
  l->use = xalloc ((size_t) all + 1, "ckpt");
  uint64_t *had = xalloc ((size_t) (all / 64 + 1) * sizeof *had, "ckpt");
  for (int64_t r = 0; r < x->ranks; at += index_blocks (x, r++)) use_of_rank (l, l->use + at, r);
  for (int64_t i = 0; i < all; i++) if (l->use[i] == WHOLE) had[i / 64] |= UINT64_C (1) << i % 64;
  MPI_Iallreduce (MPI_IN_PLACE, had, (int) (all / 64 + 1), MPI_UINT64_T, MPI_BOR, l->world, &q);
  wait_all (1, &q);
  for (int64_t r = 0, b = 0; r < x->ranks; r++)
    for (int64_t n = index_blocks (x, r), k = 0; k < n; k++, b++) left += !(had[b / 64] >> b % 64 & 1) && (x->sum || k == n - 1);
  list_tasks (l, had, left);
  xfree (had);
}

static int plan (struct loader *l, const char *path, struct err *e)
{
  if (l->s->mesh->rank && file_join (&l->f, path, SEEN, e)) return -1;
  l->pieces = units_pieces (l->s->units, &l->piece);
  l->windowed = xalloc ((size_t) l->pieces + 1, "ckpt");
  for (int i = 0; i < l->pieces; i++) if (plan_piece (l, i, e)) return -1;
  sort_takes (l);
  return 0;
}

static int load_steps (struct loader *l, const char *path, struct err *e)
{
  if (share_head (l, path, e) || ckpt_agree (l->world, plan (l, path, e), e)) return -1;
  plan_blocks (l);
  return ckpt_agree (l->world, loader_fetch (l, e), e);
}

int ckpt_load (struct ckpt_state *s, const char *path, bool weights_only, struct err *e)
{
  struct loader l = { .s = s, .world = s->mesh->world, .kinds = weights_only ? 1 : CKPT_KINDS, .f = { .fd = -1 } };
  struct err local = { 0 };
  index_of_arch (&l.mine, &s->conf->arch);
  l.map = xalloc ((size_t) l.mine.tensors * sizeof *l.map, "ckpt");
  h5_begin ();
  int rc = load_steps (&l, path, e ? e : &local);
  if (!rc) s->spike_read = mesh_share_text (s->mesh, l.f.head.spike), l.f.head.spike = NULL;
  if (!rc) s->step = l.f.head.step, s->tokens = l.f.head.tokens, s->updates = l.f.head.updates;
  file_close (&l.f);
  h5_end ();
  xfree (l.map);
  xfree (l.piece);
  xfree (l.windowed);
  xfree (l.take);
  xfree (l.first);
  xfree (l.use);
  xfree (l.task);
  index_free (&l.mine);
  return rc;
}
