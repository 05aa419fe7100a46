#include "shard_int.h"
#include "rng.h"
#include <math.h>
#include <string.h>

/* ---- initial weights ---- */

static void init_piece (struct shard *s, const struct piece *p)
{
  const struct arch *a = &s->c->arch;
  const struct param_row *row = &param_table[p->slot->id];
  const struct part *part = &p->slot->part;
  int64_t rows, cols;
  char name[96];
  param_shape (a, p->slot->id, &rows, &cols);
  param_name (a, p->slot->block, p->slot->id, name);
  double std = a->init_std / (row->init == INIT_RESIDUAL ? sqrt (2.0 * (double) a->layers) : 1);
  bool normal = row->init == INIT_NORMAL || row->init == INIT_RESIDUAL;
  dev_op (s->d, s->ch->q, OP_INIT, init, .dst = s->u[p->unit].master + p->lo, .start = p->start, .n = p->hi - p->lo, .cols = part->cols, .row0 = part->row0,
          .rows = part->rows, .col0 = part->col0, .gcols = cols, .normal = normal, .std = (float) std, .value = row->init == INIT_ONE ? 1 : 0,
          .seed = (uint64_t) s->c->train.seed, .key = rng_key (name));
}

void shard_init (struct shard *s)
{
  shard_settle (s);
  struct piece *list;
  int n = units_pieces (&s->units, &list);
  for (int i = 0; i < n; i++) init_piece (s, &list[i]);
  xfree (list);
  for (int i = 0; i < s->units.count; i++) {
    size_t bytes = (size_t) s->units.unit[i].shard * 4;
    dev_op (s->d, s->ch->q, OP_ZERO, zero, .dst = s->u[i].m, .bytes = (int64_t) bytes);
    dev_op (s->d, s->ch->q, OP_ZERO, zero, .dst = s->u[i].v, .bytes = (int64_t) bytes);
  }
  shard_stale (s);
}

void shard_stale (struct shard *s)
{
  for (int i = 0; i < s->units.count; i++) s->u[i].valid = s->u[i].cast = s->u[i].fresh = false;
}

void shard_settle (struct shard *s)
{
  if (s->offload != OFFLOAD_NONE) offload_settle (&s->off, s->ch->q);
}

void *shard_own_weight (const struct shard *s, int unit)
{
  const struct ushard *u = &s->u[unit];
  if (shard_direct (s) && u->slot >= 0 && u->cast) return at_elem (s->slot[u->slot].mem, s->units.unit[unit].shard * s->units.shard_rank, s->t);
  return u->weight && u->fresh ? u->weight : NULL;
}

int64_t shard_copy_bytes (const struct shard *s)
{
  int64_t n = 0;
  if (!s->c->run.save_async || !s->c->run.save_every || s->c->run.save_every >= s->c->train.steps) return 0;
  for (int i = 0; i < s->units.count; i++) n += s->units.unit[i].shard * 12;
  return n;
}

/* ---- whole weights ---- */

void shard_visits (struct shard *s, const int *unit, int n)
{
  s->visit = xrealloc (s->visit, (size_t) MAX (n, 1) * sizeof (int), "visits");
  s->next = xrealloc (s->next, (size_t) MAX (n, 1) * sizeof (int), "visits");
  memcpy (s->visit, unit, (size_t) n * sizeof (int));
  s->visits = n;
  s->at = 0;
  for (int i = 0; i < s->units.count; i++) s->u[i].upcoming = n + 1;
  for (int i = n - 1; i >= 0; i--) {
    s->next[i] = s->u[unit[i]].upcoming;
    s->u[unit[i]].upcoming = i;
  }
}

/* A slot for the use at visit WHEN: free, or the one whose unit is used last and not before WHEN. -1: none may go. */
static int find_slot (struct shard *s, int unit, int when)
{
  int best = -1, best_use = when;
  for (int i = 0; i < s->slots; i++) {
    struct wslot *w = &s->slot[i];
    if (w->pins || w->class != s->u[unit].class) continue;
    int use = w->unit < 0 || !s->u[w->unit].valid ? s->visits + 2 : s->u[w->unit].upcoming;
    if (use > best_use) best = i, best_use = use;
  }
  return best;
}

/* Q goes on after the last update of the unit. */
static void follow (struct shard *s, struct ushard *u, struct queue *q)
{
  if (u->pending) s->d->ops->wait (s->d, q, u->updated);
  u->pending = false;
}

static void cast_master (struct shard *s, int unit, struct queue *q, void *to)
{
  if (s->offload != OFFLOAD_NONE) offload_settle (&s->off, q);
  dev_op (s->d, q, OP_AXPBY, axpby, .y = to, .x = s->u[unit].master, .n = s->units.unit[unit].shard, .yt = s->t, .xt = DT_F32, .alpha = 1);
}

/* My part of the weights of today into its place in a slot. */
static void put_own (struct shard *s, int unit, struct queue *q, void *own)
{
  struct ushard *u = &s->u[unit];
  if (!u->weight) cast_master (s, unit, q, own);
  else {
    if (!u->fresh) cast_master (s, unit, q, u->weight);
    u->fresh = true;
    dev_op (s->d, q, OP_COPY, copy, .dst = own, .src = u->weight, .bytes = s->units.unit[unit].shard * dtype_size (s->t));
  }
  u->cast = true;
}

/* The queue that brings weights goes on after what the compute queue was given. */
static struct queue *bringer (struct shard *s)
{
  struct chan *c = &s->ch->c[GROUP_SHARD];
  chan_after (s->ch, GROUP_SHARD);
  if (c->g || !s->fetch) return c->g ? c->q : s->ch->q;
  s->d->ops->record (s->d, s->ch->q, s->hop);
  s->d->ops->wait (s->d, s->fetch, s->hop);
  return s->fetch;
}

/* Bring UNIT's weights into a slot for the use at visit WHEN; false if no slot may be taken yet. */
static bool bring (struct shard *s, int unit, int when)
{
  struct ushard *u = &s->u[unit];
  const struct unit *un = &s->units.unit[unit];
  if (s->alias) return true;
  if (u->valid) {
    follow (s, u, s->ch->q);
    return true;
  }
  if (u->slot < 0 || s->slot[u->slot].unit != unit) {
    int i = find_slot (s, unit, when);
    if (i < 0) return false;
    if (s->slot[i].unit >= 0) s->u[s->slot[i].unit].slot = -1, s->u[s->slot[i].unit].valid = s->u[s->slot[i].unit].cast = false;
    s->slot[i].unit = unit;
    u->slot = i;
    u->cast = false;
  }
  struct wslot *w = &s->slot[u->slot];
  struct queue *q = bringer (s);
  w->coded = false;
  follow (s, u, q);
  if (!u->cast) put_own (s, unit, q, at_elem (w->mem, un->shard * s->units.shard_rank, s->t));
  if (s->ch->c[GROUP_SHARD].g) chan_gather (s->ch, GROUP_SHARD, NULL, w->mem, un->shard, s->t);
  if (q != s->ch->q) {
    s->d->ops->record (s->d, q, w->ready);
    w->held = true;
  }
  if (!s->ch->overlap && q == s->fetch) s->d->ops->wait (s->d, s->ch->q, w->ready);
  u->valid = true;
  return true;
}

static const void *whole (const struct shard *s, int unit) { return s->alias ? (const void *) s->u[unit].master : s->slot[s->u[unit].slot].mem; }

/* Addresses of BLOCK's parameters in a buffer of UNIT. */
static void addresses (const struct shard *s, int unit, int64_t block, const void *base, enum dtype t, const void *out[P_N])
{
  const struct unit *un = &s->units.unit[unit];
  for (int i = 0; i < un->slots; i++)
    if (un->slot[i].block == block) out[un->slot[i].id] = at_elem (base, un->slot[i].off, t);
}

/* Codes of the weights in UNIT's slot, both ways, on the compute queue. */
static void code (struct shard *s, int unit)
{
  struct ushard *u = &s->u[unit];
  struct wslot *w = &s->slot[u->slot];
  for (int i = 0; i < u->matrices && !w->coded; i++) {
    const struct matrix *m = &u->matrix[i];
    const void *x = at_elem (w->mem, m->off, s->t);
    float *scale = w->units + 8 * i;
    dev_op (s->d, s->ch->q, OP_AMAX, amax, .x = x, .n = m->rows * m->cols, .t = s->t, .dst = scale);
    dev_op (s->d, s->ch->q, OP_QUANT, quant, .rows = m->rows, .cols = m->cols, .x = x, .q = at_bytes (w->codes, m->at), .qt = at_bytes (w->codes, u->coded + m->at), .s = scale,
            .t = s->t, .to = DT_E4M3);
  }
  w->coded = true;
}

static void code_addresses (const struct shard *s, int unit, int64_t block, struct weights *out)
{
  const struct ushard *u = &s->u[unit];
  const struct wslot *w = &s->slot[u->slot];
  for (int i = 0; i < u->matrices; i++) {
    const struct matrix *m = &u->matrix[i];
    if (m->block != block) continue;
    out->code[m->id].q = at_bytes (w->codes, m->at);
    out->code[m->id].qt = at_bytes (w->codes, u->coded + m->at);
    out->code[m->id].unit = w->units + 8 * i + OP_UNIT;
  }
}

void shard_use (struct shard *s, int unit, int64_t block, struct weights *w)
{
  must (s->at < s->visits && s->visit[s->at] == unit, "use %d of the step is not of unit %d", s->at, unit);
  must (bring (s, unit, s->at), "no room for the weights of unit %d", unit);
  s->u[unit].upcoming = s->next[s->at++];
  struct wslot *slot = s->alias ? NULL : &s->slot[s->u[unit].slot];
  if (slot) slot->pins++;
  for (int64_t k = 0; k < s->prefetch && s->at + k < s->visits; k++)
    if (!bring (s, s->visit[s->at + k], s->at + (int) k)) break;
  if (slot && slot->held) {
    s->d->ops->wait (s->d, s->ch->q, slot->ready);
    slot->held = false;
  }
  addresses (s, unit, block, whole (s, unit), s->t, w->w);
  if (!s->fp8) return;
  code (s, unit);
  code_addresses (s, unit, block, w);
}

void shard_done (struct shard *s, int unit)
{
  if (!s->alias) s->slot[s->u[unit].slot].pins--;
}

/* ---- gradients ---- */

/* A buffer of the pool: the one whose reduction began longest ago (they are taken in turn). */
static void take_gbuf (struct shard *s, int unit)
{
  for (int i = 0; i < s->gbufs; i++) {
    struct gbuf *g = &s->gbuf[i];
    if (g->unit >= 0 || g->class != s->u[unit].class) continue;
    s->d->ops->wait (s->d, s->ch->q, g->done);
    g->unit = unit;
    s->u[unit].gbuf = i;
    return;
  }
  die ("no buffer for the gradient of unit %d", unit);
}

void shard_grads (struct shard *s, int unit, int64_t block, struct weights *w)
{
  struct ushard *u = &s->u[unit];
  const struct unit *un = &s->units.unit[unit];
  const void *g[P_N] = { 0 };
  if (!u->full && u->gbuf < 0) take_gbuf (s, unit);
  addresses (s, unit, block, u->full ? u->full : s->gbuf[u->gbuf].mem, s->gt, g);
  for (int i = 0; i < un->slots; i++) {
    enum pid id = un->slot[i].id;
    if (un->slot[i].block != block) continue;
    w->g[id] = (void *) g[id];
    w->beta[id] = (u->full && u->touched) || u->seen[i] ? 1 : 0;
    u->seen[i] = true;
  }
}

/* A unit's gradient over the ranks of a group beyond those that share it, on that group's queue, after what AFTER has got. */
static void reduce_over (struct shard *s, int unit, enum group_kind k, struct queue *after)
{
  s->d->ops->record (s->d, after, s->hop);
  s->d->ops->wait (s->d, s->ch->c[k].q, s->hop);
  chan_reduce (s->ch, k, s->u[unit].grad, s->units.unit[unit].shard, s->c->sharding.reduce_dtype, s->gt, false);
}

/* The queue on which a unit's gradient is summed over the ranks that share it and the replicas. */
static struct queue *reduced_on (const struct shard *s, bool replicas)
{
  const struct chan *rep = &s->ch->c[GROUP_REP], *c = &s->ch->c[GROUP_SHARD];
  return replicas && rep->g ? rep->q : c->g ? c->q : s->ch->q;
}

void shard_tied (struct shard *s)
{
  if (!s->tied_here) return;
  for (int i = 0; i < s->units.count; i++)
    if (s->units.unit[i].slots == 1 && s->units.unit[i].slot[0].id == P_EMBED) reduce_over (s, i, GROUP_TIED, reduced_on (s, true));
}

void shard_reduce (struct shard *s, int unit, bool last)
{
  struct ushard *u = &s->u[unit];
  const struct unit *un = &s->units.unit[unit];
  struct chan *c = &s->ch->c[GROUP_SHARD];
  u->touched++;
  memset (u->seen, 0, (size_t) un->slots);
  if (s->c->sharding.reshard == RESHARD_BACKWARD && s->shards > 1) u->valid = u->cast = false;
  if (c->g && (!u->full || last)) {
    const void *in = u->full ? u->full : s->gbuf[u->gbuf].mem;
    chan_scatter (s->ch, GROUP_SHARD, in, u->grad, un->shard, s->c->sharding.reduce_dtype, s->gt, s->gt, !u->full && u->reduced ? 1 : 0);
    u->reduced++;
    if (!u->full) {
      struct gbuf *g = &s->gbuf[u->gbuf];
      s->d->ops->record (s->d, c->q, g->done);
      /* to the end of the line, so that the buffers are used in turn */
      struct gbuf used = *g;
      int k = u->gbuf;
      used.unit = -1;
      u->gbuf = -1;
      for (; k + 1 < s->gbufs && s->gbuf[k + 1].class == used.class; k++) {
        s->gbuf[k] = s->gbuf[k + 1];
        if (s->gbuf[k].unit >= 0) s->u[s->gbuf[k].unit].gbuf = k;
      }
      s->gbuf[k] = used;
    }
  }
  if (last && s->ch->c[GROUP_REP].g) reduce_over (s, unit, GROUP_REP, reduced_on (s, false));
}

/* ---- the end of a step ---- */

/* Sum of my ranges over a group, packed into one message. */
static void sum_packed (struct shard *s, enum group_kind k, const struct range *r, int n, int64_t total)
{
  int64_t at = 0, es = dtype_size (s->gt);
  if (!total || !s->ch->c[k].g) return;
  for (int i = 0; i < n; at += r[i].hi - r[i].lo, i++)
    dev_op (s->d, s->ch->q, OP_COPY, copy, .dst = at_elem (s->pack, at, s->gt), .src = at_elem (s->u[r[i].unit].grad, r[i].lo, s->gt), .bytes = (r[i].hi - r[i].lo) * es);
  chan_reduce (s->ch, k, s->pack, total, s->gt, s->gt, false);
  chan_wait (s->ch, k);
  at = 0;
  for (int i = 0; i < n; at += r[i].hi - r[i].lo, i++)
    dev_op (s->d, s->ch->q, OP_COPY, copy, .dst = at_elem (s->u[r[i].unit].grad, r[i].lo, s->gt), .src = at_elem (s->pack, at, s->gt), .bytes = (r[i].hi - r[i].lo) * es);
}

void shard_norms (struct shard *s)
{
  static const enum group_kind all[] = { GROUP_SHARD, GROUP_REP, GROUP_TIED };
  for (int i = 0; i < LEN (all); i++) chan_wait (s->ch, all[i]);
  sum_packed (s, GROUP_TP, s->tp_sum, s->tp_sums, s->tp_n);
  sum_packed (s, GROUP_KV, s->kv_sum, s->kv_sums, s->kv_n);
  for (int i = 0; i < s->segs; i++) {
    const struct seg *g = &s->seg[i];
    dev_op (s->d, s->ch->q, OP_SUMSQ, sumsq, .x = at_elem (s->u[g->unit].grad, g->lo, s->gt), .n = g->hi - g->lo, .t = s->gt, .weight = g->count ? 1 : 0,
            .acc = &s->vars->sumsq);
  }
  if (s->ch->c[GROUP_WORLD].g) chan_reduce (s->ch, GROUP_WORLD, &s->vars->sumsq, 4, DT_F64, DT_F64, false);
  chan_wait (s->ch, GROUP_WORLD);
  dev_op (s->d, s->ch->q, OP_STEP_VARS, step_vars, .vars = s->vars, .beta1 = s->c->optimizer.beta1, .beta2 = s->c->optimizer.beta2);
}

/* AdamW of a segment. Offloaded: its weights go where they lie apart, in host memory with params. */
static void optimize_segment (struct shard *s, const struct seg *g)
{
  struct ushard *u = &s->u[g->unit];
  bool here = shard_direct (s) && u->slot >= 0 && u->cast, host = s->offload == OFFLOAD_PARAMS;
  void *w = here ? at_elem (s->slot[u->slot].mem, s->units.unit[g->unit].shard * s->units.shard_rank + g->lo, s->t) : u->weight ? at_elem (u->weight, g->lo, s->t) : NULL;
  struct op_adamw a = { .n = g->hi - g->lo, .master = u->master + g->lo, .m = u->m + g->lo, .v = u->v + g->lo, .grad = at_elem (u->grad, g->lo, s->gt),
    .weight = host ? NULL : w, .vars = s->vars, .beta1 = s->c->optimizer.beta1, .beta2 = s->c->optimizer.beta2, .eps = s->c->optimizer.eps,
    .decay = g->decay ? s->c->optimizer.weight_decay : 0, .gt = s->gt, .wt = s->t };
  if (s->offload != OFFLOAD_NONE) offload_update (&s->off, &a, host ? w : NULL);
  else dev_issue (s->d, s->ch->q, &(struct op) { .kind = OP_ADAMW, .adamw = a });
}

/* All units offloaded, in the order in which the next forward uses them, which waits for each alone. */
static void optimize_offloaded (struct shard *s)
{
  offload_begin (&s->off, s->ch->q, s->vars, s->hold);
  for (int i = 0; i < s->segs; i++) {
    struct ushard *u = &s->u[s->seg[i].unit];
    optimize_segment (s, &s->seg[i]);
    if (i + 1 < s->segs && s->seg[i + 1].unit == s->seg[i].unit) continue;
    offload_mark (&s->off, u->updated, s->offload == OFFLOAD_PARAMS);
    u->pending = true;
    u->fresh = u->weight != NULL;
  }
  offload_end (&s->off);
  if (!s->ch->overlap) shard_settle (s);
}

void shard_optimize (struct shard *s)
{
  if (s->offload != OFFLOAD_NONE) optimize_offloaded (s);
  else {
    if (s->hold) s->d->ops->wait (s->d, s->ch->q, s->hold);
    for (int i = 0; i < s->segs; i++) optimize_segment (s, &s->seg[i]);
  }
  for (int i = 0; i < s->units.count; i++) {
    struct ushard *u = &s->u[i];
    u->touched = u->reduced = 0;
    if (!s->alias && s->ch->c[GROUP_SHARD].g) u->valid = false;
    else if (!s->alias) u->valid = shard_direct (s) && u->cast;
    if (!shard_direct (s)) u->cast = false;
  }
  for (int i = 0; i < s->slots; i++) s->slot[i].coded = false;
}
