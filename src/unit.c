#include "unit.h"
#include <stdlib.h>
#include <string.h>

static void add_slot (struct unit *u, const struct conf *c, const struct unit_place *p, int64_t block, enum pid id, bool copy)
{
  struct slot s = { .id = id, .block = block, .copy = copy };
  param_part (&c->arch, id, p->tp_rank, p->tp, &s.part);
  s.count = mul_exact (s.part.rows + s.part.pad, s.part.cols);
  s.off = param_table[id].packed && u->slots ? u->n : round_up (u->n, p->align);
  u->n = s.off + s.count;
  u->slot = xrealloc (u->slot, (size_t) (u->slots + 1) * sizeof s, "unit");
  u->slot[u->slots++] = s;
}

static void add_block (struct unit *u, const struct conf *c, const struct unit_place *p, int64_t block)
{
  enum pid ids[P_N];
  int n = block_params (&c->arch, block, ids);
  for (int i = 0; i < n; i++) add_slot (u, c, p, block, ids[i], false);
  if (!u->blocks) u->block0 = block;
  u->blocks++;
}

static struct unit *new_unit (struct units *us, int chunk)
{
  us->unit = xrealloc (us->unit, (size_t) (us->count + 1) * sizeof *us->unit, "units");
  us->chunk_of = xrealloc (us->chunk_of, (size_t) (us->count + 1) * sizeof (int), "units");
  us->chunk_of[us->count] = chunk;
  struct unit *u = &us->unit[us->count++];
  memset (u, 0, sizeof *u);
  return u;
}

/* Elements after which a unit is closed: 1 = each block, INT64_MAX = never. */
static int wrap_size (const char *wrap, int64_t *size, struct err *e)
{
  *size = 1;
  if (!strcmp (wrap, "layer")) return 0;
  *size = INT64_MAX;
  if (!strcmp (wrap, "model")) return 0;
  if (!strncmp (wrap, "size:", 5) && (*size = atoll (wrap + 5)) > 0) return 0;
  return user_err (e, "sharding.wrap: %s is not layer, model or size:N", wrap);
}

int units_make (struct units *us, const struct conf *c, const struct unit_place *p, struct err *e)
{
  memset (us, 0, sizeof *us);
  const struct arch *a = &c->arch;
  int64_t close_at, stages = (int64_t) p->pp * p->chunks, layers[stages];
  if (wrap_size (c->sharding.wrap, &close_at, e) || arch_split (a, (int) stages, c->pipeline.split, layers, e)) return -1;
  us->shards = p->shards;
  us->shard_rank = p->shard_rank;
  us->chunks = p->chunks;
  us->first = xalloc ((size_t) p->chunks * sizeof (int64_t), "units");
  us->last = xalloc ((size_t) p->chunks * sizeof (int64_t), "units");
  bool split = p->pp > 1 && c->pipeline.schedule == SCHED_ZBH1;   /* gradients of layers come later than those of embedding and head */
  bool embed_apart = split || (a->tied && p->pp > 1);             /* the embedding of both stages is a unit of the same shape */

  for (int k = 0; k < p->chunks; k++) {
    int64_t v = (int64_t) k * p->pp + p->stage, b = 1;
    for (int64_t i = 0; i < v; i++) b += layers[i];
    us->first[k] = v == 0 ? 0 : b;
    us->last[k] = b + layers[v] + (v == stages - 1);
    struct unit *u = NULL;
    for (b = us->first[k]; b < us->last[k]; b++) {
      if (!u || (split && b == a->layers + 1)) u = new_unit (us, k);
      add_block (u, c, p, b);
      if (u->n >= close_at || (embed_apart && b == 0)) u = NULL;
    }
  }
  if (a->tied && p->pp > 1 && p->stage == p->pp - 1) {
    struct unit *u = new_unit (us, p->chunks - 1);
    add_slot (u, c, p, 0, P_EMBED, true);
    u->copy = true;
  }
  for (int i = 0; i < us->count; i++) {
    struct unit *u = &us->unit[i];
    u->n = round_up (u->n, p->shards * p->align);
    u->shard = u->n / p->shards;
    us->total += u->n;
    us->largest = MAX (us->largest, u->n);
    for (int s = 0; s < u->slots; s++)
      if (!u->slot[s].copy) us->params += u->slot[s].part.rows * u->slot[s].part.cols;
  }
  return 0;
}

void units_free (struct units *us)
{
  for (int i = 0; i < us->count; i++) xfree (us->unit[i].slot);
  xfree (us->unit);
  xfree (us->chunk_of);
  xfree (us->first);
  xfree (us->last);
  memset (us, 0, sizeof *us);
}

const struct slot *units_find (const struct units *us, int64_t block, enum pid id, int *unit)
{
  for (int i = 0; i < us->count; i++)
    for (int s = 0; s < us->unit[i].slots; s++)
      if (us->unit[i].slot[s].block == block && us->unit[i].slot[s].id == id) {
        if (unit) *unit = i;
        return &us->unit[i].slot[s];
      }
  return NULL;
}

int unit_matrices (const struct unit *u, struct matrix **list)
{
  int n = 0;
  int64_t at = 0;
  *list = NULL;
  for (int i = 0; i < u->slots; i++) {
    const struct slot *s = &u->slot[i];
    bool first = s->id == P_Q || s->id == P_O || s->id == P_GATE || s->id == P_DOWN, more = s->id == P_K || s->id == P_V || s->id == P_UP;
    if (more) (*list)[n - 1].rows += s->part.rows;
    if (!first && !more) continue;
    if (first) {
      *list = xrealloc (*list, (size_t) (n + 1) * sizeof **list, "matrices");
      (*list)[n++] = (struct matrix) { s->id, s->block, s->off, s->part.rows, s->part.cols, at };
    }
    at = (*list)[n - 1].at + round_up ((*list)[n - 1].rows * (*list)[n - 1].cols, 256);
  }
  return n;
}

int units_pieces (const struct units *us, struct piece **list)
{
  int n = 0;
  *list = NULL;
  for (int i = 0; i < us->count; i++) {
    const struct unit *u = &us->unit[i];
    int64_t mine = u->shard * us->shard_rank;
    for (int k = 0; k < u->slots; k++) {
      const struct slot *s = &u->slot[k];
      int64_t lo = MAX (s->off, mine), hi = MIN (s->off + s->part.rows * s->part.cols, mine + u->shard);
      if (lo >= hi) continue;
      *list = xrealloc (*list, (size_t) (n + 1) * sizeof **list, "pieces");
      (*list)[n++] = (struct piece) { i, s, lo - mine, hi - mine, lo - s->off };
    }
  }
  return n;
}

/* Keep the K-th of N even cuts of P. */
static void cut_piece (struct piece *p, int n, int k)
{
  int64_t len = p->hi - p->lo, a = len * k / n, b = len * (k + 1) / n;
  p->start += a;
  p->hi = p->lo + b;
  p->lo += a;
}

struct piece units_owned (const struct piece *piece, int tp, int tp_rank, int replicas, int replica)
{
  struct piece p = *piece;
  if (p.slot->copy) p.hi = p.lo;
  cut_piece (&p, replicas, replica);
  if (param_table[p.slot->id].cut == CUT_NONE) cut_piece (&p, tp, tp_rank);
  else cut_piece (&p, p.slot->part.rep_size, p.slot->part.rep_rank);
  return p;
}
