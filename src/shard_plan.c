/* The plan of a rank's shards: segments, slots and gradient buffers, their memory, their events. shard.c moves what is in them. */
#include "shard_int.h"
#include <string.h>

/* Segments of the optimizer and of the norm, ranges to sum over tp. */
static void make_segments (struct shard *s, const struct shard_place *p)
{
  struct piece *list;
  int n = units_pieces (&s->units, &list);
  s->seg = xalloc ((size_t) MAX (n, 1) * sizeof *s->seg, "segments");
  s->tp_sum = xalloc ((size_t) MAX (n, 1) * sizeof *s->tp_sum, "segments");
  s->kv_sum = xalloc ((size_t) MAX (n, 1) * sizeof *s->kv_sum, "segments");
  for (int i = 0; i < n; i++) {
    const struct piece *q = &list[i];
    const struct param_row *row = &param_table[q->slot->id];
    bool once = !q->slot->copy && s->replica == 0 && q->slot->part.rep_rank == 0;
    struct seg *last = s->segs ? &s->seg[s->segs - 1] : NULL;
    if (last && last->unit == q->unit && last->hi == q->lo && last->decay == row->decay && last->count == once) last->hi = q->hi;
    else s->seg[s->segs++] = (struct seg) { q->unit, q->lo, q->hi, row->decay, once };
    struct range r = { q->unit, q->lo, q->hi };
    if (row->cut == CUT_NONE && p->tp > 1) s->tp_sum[s->tp_sums++] = r, s->tp_n += r.hi - r.lo;
    if (row->cut == CUT_KV && q->slot->part.rep_size > 1) s->kv_sum[s->kv_sums++] = r, s->kv_n += r.hi - r.lo;
  }
  xfree (list);
  int64_t tp_most = 0, kv_most = 0;
  for (int i = 0; i < s->units.count; i++) {
    const struct unit *u = &s->units.unit[i];
    int64_t tp = 0, kv = 0;
    for (int k = 0; k < u->slots; k++) {
      if (param_table[u->slot[k].id].cut == CUT_NONE && p->tp > 1) tp += u->slot[k].count;
      if (param_table[u->slot[k].id].cut == CUT_KV && u->slot[k].part.rep_size > 1) kv += u->slot[k].count;
    }
    tp_most += MIN (tp, u->shard);
    kv_most += MIN (kv, u->shard);
  }
  s->pack_most = MAX (tp_most, kv_most);
}

/* Units of about a size share slots and gradient buffers. A class is named by its largest unit, which is at most a quarter larger than any other. */
static void make_classes (struct shard *s)
{
  const struct unit *u = s->units.unit;
  for (int i = 0; i < s->units.count; i++) s->u[i].class = -1;
  for (int done = 0; done < s->units.count;) {
    int largest = -1;
    for (int i = 0; i < s->units.count; i++)
      if (s->u[i].class < 0 && (largest < 0 || u[i].n > u[largest].n)) largest = i;
    for (int i = 0; i < s->units.count; i++)
      if (s->u[i].class < 0 && u[i].n + u[i].n / 4 >= u[largest].n) s->u[i].class = largest, done++;
  }
}

/* A class of which a tied head uses two units at once, its own and the embedding's; -1: none. */
static int class_of_pair (const struct shard *s)
{
  int head = -1, embed = -1;
  if (!s->c->arch.tied || !units_find (&s->units, s->c->arch.layers + 1, P_NORM, &head)) return -1;
  units_find (&s->units, 0, P_EMBED, &embed);
  return head != embed && s->u[head].class == s->u[embed].class ? s->u[head].class : -1;
}

/* The next slot: of class *CLASS while it has fewer than PER (PAIR: one more in that class) and than its units, else of the next class. Its elements; 0: no more. */
static int64_t next_room (const struct shard *s, int64_t per, int pair, int *class, int64_t *have)
{
  for (; *class < s->units.count; ++*class, *have = 0) {
    int64_t units = 0;
    for (int i = 0; i < s->units.count; i++) units += s->u[i].class == *class;
    if (*have >= MIN (units, per + (*class == pair))) continue;
    ++*have;
    return s->units.unit[*class].n;
  }
  return 0;
}

/* A slot for each unit, of its own size. */
static void make_own_slots (struct shard *s)
{
  s->slots = s->units.count;
  s->slot = xalloc ((size_t) MAX (s->slots, 1) * sizeof *s->slot, "slots");
  for (int i = 0; i < s->slots; i++) {
    s->slot[i] = (struct wslot) { .room = s->units.unit[i].n, .class = s->u[i].class, .unit = i };
    s->u[i].slot = i;
  }
}

static void make_slots (struct shard *s, int64_t per)
{
  int class = 0, pair = class_of_pair (s);
  int64_t have = 0;
  for (int64_t n; (n = next_room (s, per, pair, &class, &have)); s->slots++) {
    s->slot = xrealloc (s->slot, (size_t) (s->slots + 1) * sizeof *s->slot, "slots");
    s->slot[s->slots] = (struct wslot) { .room = n, .class = class, .unit = -1 };
  }
}

static void make_gbufs (struct shard *s)
{
  int class = 0;
  int64_t have = 0;
  for (int64_t n; (n = next_room (s, 2, -1, &class, &have)); s->gbufs++) {
    s->gbuf = xrealloc (s->gbuf, (size_t) (s->gbufs + 1) * sizeof *s->gbuf, "slots");
    s->gbuf[s->gbufs] = (struct gbuf) { .room = n, .class = class, .unit = -1 };
  }
}

static void make_matrices (struct ushard *u, const struct unit *un)
{
  u->matrices = unit_matrices (un, &u->matrix);
  const struct matrix *last = u->matrices ? &u->matrix[u->matrices - 1] : NULL;
  u->coded = last ? last->at + round_up (last->rows * last->cols, 256) : 0;
}

int shard_make (struct shard *s, const struct conf *c, const struct shard_place *p, struct dev *d, struct err *e)
{
  memset (s, 0, sizeof *s);
  s->d = d;
  s->c = c;
  s->t = c->train.dtype;
  s->gt = c->sharding.grad_dtype;
  s->shards = p->shards;
  s->replicas = p->replicas;
  s->replica = p->replica;
  s->fp8 = c->train.precision == PREC_FP8;
  s->offload = c->sharding.cpu_offload;
  s->alias = s->t == DT_F32 && p->shards == 1 && s->offload == OFFLOAD_NONE;
  struct unit_place up = { p->tp, p->tp_rank, p->pp, p->stage, p->chunks, p->shards, p->shard_rank, d->ops->limits->align / 2 };
  if (units_make (&s->units, c, &up, e)) return -1;
  enum strategy st = c->sharding.strategy;
  s->whole_grads = p->shards == 1 || st == NO_SHARD || st == SHARD_OPT;
  s->tied_here = c->arch.tied && p->pp > 1 && (p->stage == 0 || p->stage == p->pp - 1);
  s->u = xalloc ((size_t) MAX (s->units.count, 1) * sizeof *s->u, "units");
  for (int i = 0; i < s->units.count; i++) {
    s->u[i].slot = s->u[i].gbuf = -1;
    s->u[i].seen = xalloc ((size_t) s->units.unit[i].slots, "units");
    if (s->fp8) make_matrices (&s->u[i], &s->units.unit[i]);
  }

  make_classes (s);
  s->prefetch = p->shards > 1 || s->offload == OFFLOAD_PARAMS ? c->sharding.prefetch : 0;   /* a cast hides behind nothing */
  s->kept = st != FULL_SHARD && st != HYBRID_SHARD;
  s->kept |= c->sharding.reshard == RESHARD_STEP || c->sharding.reshard == RESHARD_BACKWARD;
  /* A pipeline uses each unit 2 A times a step; auto keeps it where all of them take a quarter of the memory at most. */
  s->kept |= c->sharding.reshard == RESHARD_AUTO && p->pp > 1 && p->shards > 1 && s->units.total * dtype_size (s->t) <= d->memory / 4;
  s->kept |= s->offload == OFFLOAD_OPTIMIZER && p->shards == 1;
  s->kept &= s->offload != OFFLOAD_PARAMS;
  shard_keep (s, s->kept);
  if (!s->whole_grads) make_gbufs (s);
  make_segments (s, p);
  return 0;
}

bool shard_may_keep (const struct shard *s)
{
  enum strategy st = s->c->sharding.strategy;
  return s->shards == 1 && !s->alias && s->offload == OFFLOAD_NONE && (st == FULL_SHARD || st == HYBRID_SHARD) && s->c->sharding.reshard == RESHARD_AUTO;
}

void shard_keep (struct shard *s, bool kept)
{
  s->kept = kept;
  s->slots = 0;
  xfree (s->slot);
  s->slot = NULL;
  for (int i = 0; i < s->units.count; i++) s->u[i].slot = -1;
  if (!s->alias && kept) make_own_slots (s);
  else if (!s->alias) make_slots (s, 1 + s->prefetch);
}

/* My part of the weights lies apart from slots, since it cannot be made again from a master close by. */
static bool apart (const struct shard *s) { return s->offload != OFFLOAD_NONE && !shard_direct (s); }

/* Codes as they lie, then turned, and units, for the unit of the slot or any of its class. */
static void codes_layout (struct shard *s, struct wslot *w, struct arenas *A, enum purpose p)
{
  int64_t coded = 0;
  int matrices = 0;
  for (int i = 0; i < s->units.count; i++) {
    if (s->kept ? w->unit != i : w->class != s->u[i].class) continue;
    coded = MAX (coded, s->u[i].coded);
    matrices = MAX (matrices, s->u[i].matrices);
  }
  w->codes = arena_tensor (A, p, 2 * coded, DT_E4M3);
  w->units = arena_tensor (A, p, 8 * matrices, DT_F32);
}

void shard_layout (struct shard *s, struct arenas *A)
{
  enum space state = s->offload == OFFLOAD_NONE ? SPACE_DEVICE : SPACE_PINNED;
  int64_t largest = 0;
  for (int i = 0; i < s->segs; i++) largest = MAX (largest, s->seg[i].hi - s->seg[i].lo);
  if (s->offload != OFFLOAD_NONE)
    offload_layout (&s->off, A, MIN (largest, s->c->debug.comm_chunk ? s->c->debug.comm_chunk : OFFLOAD_PIECE), s->offload == OFFLOAD_PARAMS, s->t);
  for (int i = 0; i < s->units.count; i++) {
    struct ushard *u = &s->u[i];
    const struct unit *un = &s->units.unit[i];
    u->master = arena_take (A, MEM_MASTER, state, un->shard * 4);
    u->m = arena_take (A, MEM_MOMENT, state, un->shard * 4);
    u->v = arena_take (A, MEM_MOMENT, state, un->shard * 4);
    u->weight = apart (s) ? arena_take (A, MEM_WEIGHT, s->offload == OFFLOAD_PARAMS ? SPACE_PINNED : SPACE_DEVICE, un->shard * dtype_size (s->t)) : NULL;
    u->full = s->whole_grads ? arena_tensor (A, MEM_GRAD, un->n, s->gt) : NULL;
    u->grad = u->full ? at_elem (u->full, un->shard * s->units.shard_rank, s->gt) : arena_tensor (A, MEM_GRAD, un->shard, s->gt);
  }
  for (int i = 0; i < s->slots; i++) {
    enum purpose p = s->kept ? MEM_WEIGHT : MEM_GATHER;
    s->slot[i].mem = arena_tensor (A, p, s->slot[i].room, s->t);
    if (s->fp8) codes_layout (s, &s->slot[i], A, p);
  }
  for (int i = 0; i < s->gbufs; i++) s->gbuf[i].mem = arena_tensor (A, MEM_GRAD, s->gbuf[i].room, s->gt);
  s->pack = arena_tensor (A, MEM_COMM, MAX (s->tp_n, s->kv_n), s->gt);
  s->vars = arena_take (A, MEM_WORK, SPACE_DEVICE, sizeof *s->vars);
}

void shard_open (struct shard *s, struct chans *ch)
{
  s->ch = ch;
  s->hop = s->d->ops->event_open (s->d);
  for (int i = 0; i < s->gbufs; i++) s->gbuf[i].done = s->d->ops->event_open (s->d);
  for (int i = 0; i < s->slots; i++) s->slot[i].ready = s->d->ops->event_open (s->d);
  if (s->offload == OFFLOAD_NONE) return;
  offload_open (&s->off, s->d);
  for (int i = 0; i < s->units.count; i++) s->u[i].updated = s->d->ops->event_open (s->d);
  if (s->offload == OFFLOAD_PARAMS && s->shards == 1) s->fetch = s->d->ops->queue_open (s->d, QUEUE_COPY, "fetch", NULL, 0);
}

void shard_free (struct shard *s)
{
  if (s->hop) s->d->ops->event_close (s->d, s->hop);
  for (int i = 0; i < s->gbufs; i++)
    if (s->gbuf[i].done) s->d->ops->event_close (s->d, s->gbuf[i].done);
  for (int i = 0; i < s->slots; i++)
    if (s->slot[i].ready) s->d->ops->event_close (s->d, s->slot[i].ready);
  offload_close (&s->off);
  if (s->fetch) s->d->ops->queue_close (s->d, s->fetch);
  for (int i = 0; i < s->units.count; i++)
    if (s->u[i].updated) s->d->ops->event_close (s->d, s->u[i].updated);
  for (int i = 0; i < s->units.count; i++) xfree (s->u[i].seen), xfree (s->u[i].matrix);
  units_free (&s->units);
  xfree (s->u);
  xfree (s->slot);
  xfree (s->gbuf);
  xfree (s->visit);
  xfree (s->next);
  xfree (s->tp_sum);
  xfree (s->kv_sum);
  xfree (s->seg);
  memset (s, 0, sizeof *s);
}
