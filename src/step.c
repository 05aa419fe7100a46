#include "step_int.h"
#include <math.h>
#include <string.h>

/* ---- the interpreter ---- */

static int unit_of (const struct step *s, int64_t block, int chunk)
{
  for (int i = 0; i < s->sh.units.count; i++) {
    const struct unit *u = &s->sh.units.unit[i];
    if (s->sh.units.chunk_of[i] == chunk && !u->copy && block >= u->block0 && block < u->block0 + u->blocks) return i;
  }
  die ("block %lld is not on stage %d", (long long) block, s->stage);
}

/* The unit that holds the head's matrix when it is the embedding's, else -1. */
static int tied_unit (const struct step *s)
{
  int unit = -1;
  if (s->c->arch.tied) units_find (&s->sh.units, 0, P_EMBED, &unit);
  return unit;
}

/* Which blocks an action uses the weights of: forward up, backward down. In training the head waits for its backward. No weights are needed by the embedding's
   backward, nor by a layer's backward by weight, unless it makes the normed inputs again. */
static bool uses_block (const struct step *s, int kind, int64_t block, bool train)
{
  bool head = block == s->c->arch.layers + 1, embed = block == 0;
  if (kind == ACT_F) return !(head && train);
  if (kind == ACT_B_WEIGHT) return !head && !embed && !(s->keep[block] & KEEP_NORMS);
  return !embed;
}

/* One use of BLOCK's weights by an action, if it has any: all units that it touches. grads: also its gradient buffers. */
static void use (struct step *s, const struct action *a, int64_t block, struct weights *w, bool grads)
{
  memset (w, 0, sizeof *w);
  int unit = unit_of (s, block, a->chunk);
  bool tied = block == s->c->arch.layers + 1 && s->c->arch.tied;
  if (uses_block (s, a->kind, block, false)) shard_use (&s->sh, unit, block, w);
  if (grads) shard_grads (&s->sh, unit, block, w);
  if (!tied) return;
  struct weights e = { 0 };
  shard_use (&s->sh, tied_unit (s), 0, &e);
  w->w[P_HEAD] = e.w[P_EMBED];
  if (!grads) return;
  shard_grads (&s->sh, tied_unit (s), 0, &e);
  w->g[P_HEAD] = e.g[P_EMBED];
  w->beta[P_HEAD] = e.beta[P_EMBED];
}

static void done (struct step *s, const struct action *a, int64_t block)
{
  if (!uses_block (s, a->kind, block, false)) return;
  shard_done (&s->sh, unit_of (s, block, a->chunk));
  if (block == s->c->arch.layers + 1 && s->c->arch.tied) shard_done (&s->sh, tied_unit (s));
}

/* After a backward of BLOCK: units whose first block this is are complete. */
static void complete (struct step *s, int chunk, int64_t block, bool last)
{
  int unit = unit_of (s, block, chunk), tied = tied_unit (s);
  if (block == s->c->arch.layers + 1 && tied >= 0 && s->sh.units.unit[tied].copy) shard_reduce (&s->sh, tied, last);
  if (s->sh.units.unit[unit].block0 == block || (s->sh.units.unit[unit].block0 < s->chunk[chunk].first && block == s->chunk[chunk].first))
    shard_reduce (&s->sh, unit, last);
}

/* The units of a use. */
static int visit_block (const struct step *s, int64_t block, int chunk, int *out)
{
  int n = 0;
  out[n++] = unit_of (s, block, chunk);
  if (block == s->c->arch.layers + 1 && s->c->arch.tied) out[n++] = tied_unit (s);
  return n;
}

static void plan_visits (struct step *s, const struct sched *sc)
{
  int room = 16, n = 0, *v = xalloc ((size_t) room * sizeof (int), "visits");
  for (int i = 0; i < sc->count[s->stage]; i++) {
    const struct action *a = &sc->act[s->stage][i];
    bool up = a->kind == ACT_F, down = a->kind == ACT_B || a->kind == ACT_B_INPUT || a->kind == ACT_B_WEIGHT;
    if (!up && !down) continue;
    const struct chunk *k = &s->chunk[a->chunk];
    for (int64_t j = 0; j < k->last - k->first; j++) {
      int64_t block = up ? k->first + j : k->last - 1 - j;
      if (!uses_block (s, a->kind, block, !sc->forward_only)) continue;
      if (n + 2 > room) v = xrealloc (v, (size_t) (room *= 2) * sizeof (int), "visits");
      n += visit_block (s, block, a->chunk, v + n);
    }
  }
  shard_visits (&s->sh, v, n);
  xfree (v);
}

static void load_batch (struct step *s, const struct batch *in, const struct host_batch *h)
{
  int32_t *const dst[] = { in->ids, in->target, in->doc, in->pos };
  const int32_t *const src[] = { h->ids, h->target, h->doc, h->pos };
  for (int i = 0; i < 4; i++)
    if (dst[i]) dev_op (s->d, s->q, OP_COPY, copy, .dst = dst[i], .src = src[i], .bytes = s->b.g.n * 4);
}

static struct layer_acts *acts (struct chunk *k, int mb, int layer) { return &k->acts[(mb % k->slots) * k->layers + layer]; }
/* Input of a chunk: the first layer's x, or where the chunk has no layer the head's. */
static void *chunk_input (struct chunk *k, int mb) { return k->layers ? acts (k, mb, 0)->x : k->x[mb % k->slots]; }

static int ring_take (struct step *s, struct ring *r, struct queue *q)
{
  int i = r->next;
  r->next = (i + 1) % RING;
  s->d->ops->wait (s->d, q, r->sent[i]);   /* its last send has left */
  return i;
}

/* The chunk's output h + m: to the head's input, or into a buffer for the next stage. */
static void finish_forward (struct step *s, int chunk, int mb, const void *h)
{
  struct chunk *k = &s->chunk[chunk];
  const struct geom *g = &s->b.g;
  void *out = k->x[mb % k->slots];
  if (!has_head (s, chunk)) {
    int i = ring_take (s, &s->out_f, s->q);
    s->slot_f[chunk * s->mbs + mb] = i;
    out = s->out_f.mem[i];
  }
  if (out == h) return;
  dev_op (s->d, s->q, OP_COPY, copy, .dst = out, .src = h, .bytes = g->nt * g->dim * dtype_size (g->t));
  if (k->layers) dev_op (s->d, s->q, OP_AXPBY, axpby, .y = out, .x = s->b.m, .n = g->nt * g->dim, .yt = g->t, .xt = g->t, .alpha = 1, .beta = 1);
}

static void act_forward (struct step *s, const struct action *a, const struct host_batch *batch, bool train)
{
  struct chunk *k = &s->chunk[a->chunk];
  struct batch *in = &k->in[a->mb % k->slots];
  struct weights w;
  load_batch (s, in, &batch[a->mb]);
  if (has_embed (s, a->chunk)) {
    use (s, a, 0, &w, false);
    embed_forward (&s->b, &w, in, chunk_input (k, a->mb));
    done (s, a, 0);
  } else s->d->ops->wait (s->d, s->q, k->got[a->mb % k->slots]);

  const void *h = chunk_input (k, a->mb), *m = NULL;
  int64_t l0 = MAX (k->first, 1);
  for (int l = 0; l < k->layers; l++) {
    use (s, a, l0 + l, &w, false);
    layer_forward (&s->b, acts (k, a->mb, l), &w, in, h, m);
    h = layer_h (&s->b, acts (k, a->mb, l));
    m = s->b.m;
    done (s, a, l0 + l);
  }
  finish_forward (s, a->chunk, a->mb, h);
  if (train || !has_head (s, a->chunk)) return;
  int64_t head = s->c->arch.layers + 1;
  use (s, a, head, &w, false);
  if (s->logits_of >= 0) s->logits = head_logits (&s->b, &w, k->x[a->mb % k->slots], s->logits_of);
  else head_loss (&s->b, &w, in, k->x[a->mb % k->slots], NULL, s->tp_rank == 0 ? &s->sh.vars->loss : NULL, false);
  done (s, a, head);
}

/* Backward of the head into a gradient buffer, or the one that was received. */
static void *backward_begin (struct step *s, const struct action *a, struct batch *in, bool last)
{
  struct chunk *k = &s->chunk[a->chunk];
  int at = a->chunk * s->mbs + a->mb;
  if (!has_head (s, a->chunk)) {
    s->d->ops->wait (s->d, s->q, s->out_b.got[s->slot_b[at]]);
    return s->out_b.mem[s->slot_b[at]];
  }
  struct weights w;
  int64_t head = s->c->arch.layers + 1;
  s->slot_b[at] = ring_take (s, &s->out_b, s->q);
  void *d = s->out_b.mem[s->slot_b[at]];
  use (s, a, head, &w, true);
  head_loss (&s->b, &w, in, k->x[a->mb % k->slots], d, s->tp_rank == 0 ? &s->sh.vars->loss : NULL, true);
  done (s, a, head);
  complete (s, a->chunk, head, last);
  return d;
}

static void act_backward (struct step *s, const struct action *a, enum part_of part)
{
  struct chunk *k = &s->chunk[a->chunk];
  struct batch *in = &k->in[a->mb % k->slots];
  struct weights w;
  bool last = a->mb == s->mbs - 1;
  void *d = part & PART_INPUT ? backward_begin (s, a, in, last) : NULL;
  int64_t l0 = MAX (k->first, 1);
  for (int l = k->layers - 1; l >= 0; l--) {
    use (s, a, l0 + l, &w, part & PART_WEIGHT);
    layer_backward (&s->b, acts (k, a->mb, l), &w, in, d, s->keep[l0 + l], part);
    done (s, a, l0 + l);
    if (part & PART_WEIGHT) complete (s, a->chunk, l0 + l, last);
  }
  if (has_embed (s, a->chunk) && (part & PART_INPUT)) {
    use (s, a, 0, &w, true);
    embed_backward (&s->b, &w, in, d);
    done (s, a, 0);
    complete (s, a->chunk, 0, last);
  }
}

static void act_send (struct step *s, const struct action *a, struct ring *r, const int *slot, enum group_kind k)
{
  int i = slot[a->chunk * s->mbs + a->mb];
  chan_send (&s->ch, k, r->mem[i], s->b.g.nt * s->b.g.dim, s->b.g.t);
  s->d->ops->record (s->d, s->ch.c[k].q, r->sent[i]);
}

static void act_recv (struct step *s, const struct action *a)
{
  int64_t n = s->b.g.nt * s->b.g.dim;
  if (a->kind == ACT_RECV_F) {
    struct chunk *k = &s->chunk[a->chunk];
    chan_recv (&s->ch, GROUP_F_IN, chunk_input (k, a->mb), n, s->b.g.t);
    s->d->ops->record (s->d, s->ch.c[GROUP_F_IN].q, k->got[a->mb % k->slots]);
    return;
  }
  struct queue *q = s->ch.c[GROUP_B_IN].q;
  int i = s->slot_b[a->chunk * s->mbs + a->mb] = ring_take (s, &s->out_b, q);
  chan_recv (&s->ch, GROUP_B_IN, s->out_b.mem[i], n, s->b.g.t);
  s->d->ops->record (s->d, q, s->out_b.got[i]);
}

static void act_opt (struct step *s)
{
  shard_tied (&s->sh);
  if (s->poison && s->sh.segs) {
    chan_wait (&s->ch, GROUP_SHARD);
    const struct seg *g = &s->sh.seg[0];
    void *x = at_elem (s->sh.u[g->unit].grad, g->lo, s->sh.gt);
    dev_op (s->d, s->q, OP_AXPBY, axpby, .y = x, .x = x, .n = 1, .yt = s->sh.gt, .xt = s->sh.gt, .alpha = NAN);
  }
  shard_norms (&s->sh);
  shard_optimize (&s->sh);
}

/* Whose time the compute queue's is; the other actions ask it for nothing. */
static const enum step_phase phase_of[ACT_N] = { [ACT_F] = PHASE_FORWARD, [ACT_B] = PHASE_BACKWARD, [ACT_B_INPUT] = PHASE_BACKWARD, [ACT_B_WEIGHT] = PHASE_BACKWARD, [ACT_OPT] = PHASE_OPTIMIZER };

static void run (struct step *s, const struct sched *sc, const struct host_batch *batch)
{
  plan_visits (s, sc);
  for (int i = 0; i < sc->count[s->stage]; i++) {
    const struct action *a = &sc->act[s->stage][i];
    if (s->mark) s->mark (s->d, i);
    if (phase_of[a->kind]) s->d->ops->phase (s->d, s->q, phase_of[a->kind], i);
    switch (a->kind) {
    case ACT_F:        act_forward (s, a, batch, !sc->forward_only); break;
    case ACT_B:        act_backward (s, a, PART_BOTH); break;
    case ACT_B_INPUT:  act_backward (s, a, PART_INPUT); break;
    case ACT_B_WEIGHT: act_backward (s, a, PART_WEIGHT); break;
    case ACT_SEND_F:   act_send (s, a, &s->out_f, s->slot_f, GROUP_F_OUT); break;
    case ACT_SEND_B:   act_send (s, a, &s->out_b, s->slot_b, GROUP_B_OUT); break;
    case ACT_RECV_F:
    case ACT_RECV_B:   act_recv (s, a); break;
    case ACT_OPT:      act_opt (s); break;
    default:           break;   /* GATHER, RELEASE, REDUCE: the slots' foresight does them per unit (shard.h) */
    }
  }
}

static void begin (struct step *s, double lr, bool train)
{
  s->host_in[0] = lr;
  s->host_in[1] = s->c->optimizer.clip;
  s->host_in[2] = train ? s->loss_limit : 0;
  s->host_in[3] = train ? s->norm_limit : 0;
  dev_op (s->d, s->q, OP_COPY, copy, .dst = &s->sh.vars->lr, .src = s->host_in, .bytes = 4 * sizeof (double));
  dev_op (s->d, s->q, OP_ZERO, zero, .dst = &s->sh.vars->sumsq, .bytes = 4 * sizeof (double));
}

/* The one point of a step where values come back to the host. */
static void finish (struct step *s, struct step_result *r)
{
  static const struct step_vars fine = { .loss = 1, .tokens = 1, .norm = 1 };
  struct step_vars v;
  dev_op (s->d, s->q, OP_COPY, copy, .dst = s->host_out, .src = s->sh.vars, .bytes = sizeof v);
  s->d->ops->phase (s->d, s->q, PHASE_NONE, 0);
  s->d->ops->record (s->d, s->q, s->end);
  s->d->ops->fetch (s->d, s->end, &v, s->host_out, sizeof v, &fine);
  *r = (struct step_result) { v.loss / v.tokens, v.tokens, v.norm, v.skip != 0, v.skip == STEP_SPIKE, v.updates };
}

void step_train (struct step *s, const struct host_batch *batch, double lr, struct step_result *r)
{
  begin (s, lr, true);
  run (s, &s->train, batch);
  finish (s, r);
}

void step_eval (struct step *s, const struct host_batch *batch, struct step_result *r)
{
  begin (s, 0, false);
  run (s, &s->eval, batch);
  if (s->ch.c[GROUP_WORLD].g) chan_reduce (&s->ch, GROUP_WORLD, &s->sh.vars->sumsq, 4, DT_F64, DT_F64, false);
  chan_wait (&s->ch, GROUP_WORLD);
  finish (s, r);
}

bool step_logits (struct step *s, const struct host_batch *batch, int64_t token, float *out)
{
  int64_t n = s->c->arch.vocab;
  s->logits_of = token;
  s->logits = NULL;
  run (s, &s->eval, batch);
  s->logits_of = -1;
  s->d->ops->drain (s->d);
  if (!s->logits) return false;
  if (s->b.g.t == DT_F32) dev_get (s->d, s->q, out, s->logits, n * 4);
  else {
    bf16 *h = xalloc ((size_t) n * 2, "logits");
    dev_get (s->d, s->q, h, s->logits, n * 2);
    for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32 (h[i]);
    xfree (h);
  }
  return true;
}

double step_updates (struct step *s)
{
  shard_settle (&s->sh);
  struct step_vars v;
  dev_get (s->d, s->q, &v, s->sh.vars, sizeof v);
  return v.updates;
}

void step_set_updates (struct step *s, double updates)
{
  struct step_vars v = { .updates = updates, .b1t = pow (s->c->optimizer.beta1, updates), .b2t = pow (s->c->optimizer.beta2, updates) };
  dev_put (s->d, s->q, s->sh.vars, &v, sizeof v);
}
