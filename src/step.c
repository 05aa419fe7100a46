#include "fit.h"
#include "step.h"
#include <math.h>
#include <string.h>

#define RING LEN (((struct ring *) 0)->mem)

/* ---- plan ---- */

static int virtual_stage (const struct step *s, int chunk) { return chunk * s->pp + s->stage; }
static bool has_head (const struct step *s, int chunk) { return virtual_stage (s, chunk) == s->pp * s->chunks - 1; }
static bool has_embed (const struct step *s, int chunk) { return virtual_stage (s, chunk) == 0; }

/* Micro-batches of CHUNK whose activations live at once: from the first action that writes them (RECV_F or F) to the last that reads them (in evaluation F). */
static int slots_needed (const struct sched *sc, int stage, int chunk, bool split)
{
  int first = 0, last = -1, most = 1, end = sc->forward_only ? ACT_F : split ? ACT_B_WEIGHT : ACT_B;   /* [first, last] live */
  for (int i = 0; i < sc->count[stage]; i++) {
    const struct action *a = &sc->act[stage][i];
    if (a->chunk != chunk) continue;
    if (a->kind == ACT_F || a->kind == ACT_RECV_F) last = MAX (last, a->mb);
    most = MAX (most, last - first + 1);
    if (a->kind == end) first = MAX (first, a->mb + 1);
  }
  return most;
}

static void layout_chunk (struct step *s, struct chunk *k, int index)
{
  const struct geom *g = &s->b.g;
  for (int i = 0; i < k->slots; i++) {
    struct batch *in = &k->in[i];
    in->ids = arena_tensor (&s->A, MEM_ACT, g->n, DT_I32);
    in->target = arena_tensor (&s->A, MEM_ACT, g->n, DT_I32);
    in->doc = s->c->data.document_mask ? arena_tensor (&s->A, MEM_ACT, g->n, DT_I32) : NULL;
    in->pos = s->c->data.document_mask ? arena_tensor (&s->A, MEM_ACT, g->n, DT_I32) : NULL;
    int64_t l0 = MAX (k->first, 1);
    for (int l = 0; l < k->layers; l++) layer_layout (&s->b, &k->acts[i * k->layers + l], &s->A, s->keep[l0 + l], s->split);
    k->x[i] = has_head (s, index) ? arena_tensor (&s->A, MEM_ACT, g->nt * g->dim, g->t) : NULL;
  }
}

/* Bytes of workspace of the compute queue: what attention is fastest with counts where it is small beside the memory. */
static int64_t queue_bytes (const struct step *s)
{
  const struct geom *g = &s->b.g;
  const struct dev_limits *l = s->d->ops->limits;
  struct op_attn f = { .batch = g->batch, .sq = g->seq, .sk = g->seq, .heads = g->heads, .kv_heads = g->kv_heads, .head_dim = g->head_dim, .window = s->b.a->window, .t = g->t };
  return MAX (l->queue_work, l->attn_work (&f, s->d->conf.deterministic, s->d->memory / 64));
}

/* Runs twice (arena.h). */
static void layout (struct step *s)
{
  const struct geom *g = &s->b.g;
  bool embed = false, head = false;
  int keep = KEEP_ALL;
  for (int k = 0; k < s->chunks; k++) {
    embed |= has_embed (s, k), head |= has_head (s, k);
    for (int l = 0; l < s->chunk[k].layers; l++) keep &= s->keep[MAX (s->chunk[k].first, 1) + l];
  }
  shard_layout (&s->sh, &s->A);
  replicas_layout (&s->replicas, &s->A);
  blocks_layout (&s->b, &s->A, keep, embed, head, s->split);
  for (int k = 0; k < s->chunks; k++) layout_chunk (s, &s->chunk[k], k);
  for (int i = 0; i < RING; i++) {
    s->out_f.mem[i] = s->pp > 1 ? arena_tensor (&s->A, MEM_COMM, g->nt * g->dim, g->t) : NULL;
    s->out_b.mem[i] = s->pp > 1 || i == 0 ? arena_tensor (&s->A, s->pp > 1 ? MEM_COMM : MEM_WORK, g->nt * g->dim, g->t) : s->out_b.mem[0];
  }
  chans_layout (&s->ch, &s->A, s->group_n, s->c->sharding.reduce_dtype != s->c->sharding.grad_dtype);
  s->queue_work = arena_take (&s->A, MEM_WORK, SPACE_DEVICE, s->queue_bytes = queue_bytes (s));
  s->rope = arena_tensor (&s->A, MEM_WORK, g->seq * g->head_dim, DT_F32);
  s->host_in = arena_take (&s->A, MEM_STAGE, SPACE_PINNED, 4 * sizeof (double));
  s->host_out = arena_take (&s->A, MEM_STAGE, SPACE_PINNED, sizeof *s->host_out);
}

int step_resolve (struct conf *c, int world, struct mesh_shape *s, struct err *e)
{
  int64_t want[AXIS_N] = { [AXIS_TP] = c->mesh.tp, [AXIS_PP] = c->mesh.pp, [AXIS_DP_SHARD] = c->mesh.dp_shard, [AXIS_DP_REPLICATE] = c->mesh.dp_replicate };
  memset (s, 0, sizeof *s);
  if (mesh_order (c->mesh.order, s->order, e) || mesh_fill (want, world, s->dim, e)) return -1;
  c->mesh.tp = s->dim[AXIS_TP];
  c->mesh.pp = s->dim[AXIS_PP];
  c->mesh.dp_shard = s->dim[AXIS_DP_SHARD];
  c->mesh.dp_replicate = s->dim[AXIS_DP_REPLICATE];
  s->no_shard = c->sharding.strategy == NO_SHARD;
  s->kv_rep = c->mesh.tp > c->arch.kv_heads ? (int) (c->mesh.tp / c->arch.kv_heads) : 1;
  if (c->mesh.dp_replicate > 1 && c->sharding.strategy != HYBRID_SHARD && c->sharding.strategy != NO_SHARD)
    return user_err (e, "mesh.dp_replicate %lld goes with sharding.strategy HYBRID_SHARD or NO_SHARD", (long long) c->mesh.dp_replicate);
  if (!c->train.global_batch) c->train.global_batch = c->train.micro_batch * c->mesh.dp_shard * c->mesh.dp_replicate;
  return arch_check_tp (&c->arch, (int) c->mesh.tp, e);
}

/* Device memory of the step as it stands, at most on any rank of the stage. */
static int64_t measure (struct step *s)
{
  int64_t sum = (s->sh.pack_most - MAX (s->sh.tp_n, s->sh.kv_n)) * dtype_size (s->sh.gt);
  arenas_init (&s->A, s->d);
  layout (s);
  for (int p = 0; p < MEM_N; p++) sum += round_up (s->A.a[SPACE_DEVICE][p].used, s->A.align);
  return sum;
}

static int check_shape (const struct step *s, struct err *e)
{
  const struct conf *c = s->c;
  int64_t tokens = c->train.micro_batch * c->train.seq_len;
  if (arch_check_tp (&c->arch, s->tp, e)) return -1;
  if (tokens % s->tp)
    return user_err (e, "train.micro_batch %lld x train.seq_len %lld = %lld tokens are not a multiple of mesh.tp %d, which cuts them", (long long) c->train.micro_batch,
                     (long long) c->train.seq_len, (long long) tokens, s->tp);
  if (s->tp > 1 && c->mesh.tp_overlap > 1 && tokens % (s->tp * c->mesh.tp_overlap))
    return user_err (e, "mesh.tp_overlap %lld: the %lld tokens of a micro-batch cannot be cut into so many parts over mesh.tp %d", (long long) c->mesh.tp_overlap, (long long) tokens, s->tp);
  if (s->tp > 1 && c->mesh.tp_overlap > 1 && c->train.precision == PREC_FP8)
    return user_err (e, "mesh.tp_overlap %lld does not go with train.dtype fp8, whose codes are made of all tokens at once: take 1", (long long) c->mesh.tp_overlap);
  if (c->train.global_batch % (c->train.micro_batch * s->dp))
    return user_err (e, "train.global_batch %lld is not a multiple of train.micro_batch %lld x dp %d = %lld", (long long) c->train.global_batch,
                     (long long) c->train.micro_batch, s->dp, (long long) (c->train.micro_batch * s->dp));
  for (int64_t l = 1; s->split && c->recompute.mode != RECOMPUTE_AUTO && l <= c->arch.layers; l++)
    if (~keep_of (c, l) & KEEP_SPLIT)
      return user_err (e, "recompute.mode %s does not go with pipeline.schedule zbh1, whose backward by weight comes later: take selective with gate_up, attention and residual "
                       "in recompute.keep, or none", c->recompute.mode == RECOMPUTE_FULL ? "full" : "selective");
  if (s->dp > 1 && c->sharding.reduce_dtype != c->sharding.grad_dtype && !s->d->ops->limits->wire_cast)
    return user_err (e, "sharding.reduce_dtype %s with sharding.grad_dtype %s: device %s sends gradients as they are stored, make both alike", dtype_name (c->sharding.reduce_dtype),
                     dtype_name (c->sharding.grad_dtype), s->d->ops->name);
  bool whole = c->sharding.strategy != FULL_SHARD && c->sharding.strategy != HYBRID_SHARD;
  if (c->sharding.cpu_offload == OFFLOAD_PARAMS && (whole || c->sharding.reshard == RESHARD_STEP))
    return user_err (e, "sharding.cpu_offload params does not go with %s, which keeps all weights on the device: take optimizer, or FULL_SHARD with sharding.reshard auto",
                     whole ? "this sharding.strategy" : "sharding.reshard step");
  return 0;
}

/* Products in 8 bits have sides that are multiples of 16. */
static int check_fp8 (const struct geom *g, struct err *e)
{
  const struct { const char *what; int64_t n; } side[] = { { "tokens of a micro-batch", g->n }, { "of model.dim", g->dim }, { "outputs of q, k and v", g->qkv }, { "inputs of the output projection", g->att },
    { "of model.ffn", g->ffn } };
  for (int i = 0; i < LEN (side) && g->fp8; i++)
    if (side[i].n % 16)
      return user_err (e, "train.dtype fp8: %lld %s on a rank (mesh.tp %d) are not a multiple of 16: take bf16, or cut otherwise", (long long) side[i].n, side[i].what, g->tp);
  return 0;
}

static void place (struct step *s, const struct mesh *m, struct shard_place *p)
{
  int member[m->size], me;
  *p = (struct shard_place) { .tp = s->tp, .tp_rank = s->tp_rank, .pp = s->pp, .stage = s->stage, .chunks = s->chunks };
  p->shards = mesh_group (&m->shape, m->rank, GROUP_SHARD, member, &me);
  p->shard_rank = me;
  p->replicas = mesh_group (&m->shape, m->rank, GROUP_REP, member, &me);
  p->replica = me;
}

static int make_chunks (struct step *s)
{
  s->chunk = xalloc ((size_t) s->chunks * sizeof *s->chunk, "chunks");
  for (int k = 0; k < s->chunks; k++) {
    struct chunk *c = &s->chunk[k];
    c->first = s->sh.units.first[k];
    c->last = s->sh.units.last[k];
    c->layers = (int) (c->last - c->first) - has_embed (s, k) - has_head (s, k);
    c->slots = MAX (slots_needed (&s->train, s->stage, k, s->split), slots_needed (&s->eval, s->stage, k, false));
    c->in = xalloc ((size_t) c->slots * sizeof *c->in, "chunks");
    c->acts = xalloc ((size_t) MAX (1, c->slots * c->layers) * sizeof *c->acts, "chunks");
    c->x = xalloc ((size_t) c->slots * sizeof *c->x, "chunks");
    c->got = xalloc ((size_t) c->slots * sizeof *c->got, "chunks");
  }
  return 0;
}

/* The link of stages that a group of two is: F l goes from stage l to l + 1, B l from l to l - 1, around the ring; -1: no link. */
static int link_of (const struct step *s, enum group_kind k)
{
  switch (k) {
  case GROUP_F_OUT: case GROUP_B_OUT: return s->stage;
  case GROUP_F_IN: return (s->stage + s->pp - 1) % s->pp;
  case GROUP_B_IN: return (s->stage + 1) % s->pp;
  default: return -1;
  }
}
/* The link that closes the ring; only schedules with several chunks use it. */
static bool closes_ring (const struct step *s, enum group_kind k)
{
  return link_of (s, k) == (k == GROUP_F_IN || k == GROUP_F_OUT ? s->pp - 1 : 0);
}
static bool group_used (const struct step *s, enum group_kind k)
{
  if (k == GROUP_TIED) return s->sh.tied_here;
  return link_of (s, k) < 0 || !closes_ring (s, k) || s->chunks > 1;
}

/* Both ends open a link at the same place of their order: even links, odd ones, then the one that closes the ring. */
static void open_order (const struct step *s, enum group_kind order[GROUP_N])
{
  int n = 0;
  for (int k = 0; k < GROUP_N; k++)
    if (link_of (s, k) < 0) order[n++] = k;
  for (int back = 0; back < 2; back++)
    for (int phase = 0; phase < 3; phase++)
      for (int k = back ? GROUP_B_IN : GROUP_F_IN; k <= (back ? GROUP_B_OUT : GROUP_F_OUT); k++)
        if ((closes_ring (s, k) ? 2 : link_of (s, k) % 2) == phase) order[n++] = k;
}

/* All of the plan but its memory. */
static int shape (struct step *s, const struct conf *c, const struct mesh *m, struct dev *d, struct err *e)
{
  memset (s, 0, sizeof *s);
  s->c = c;
  s->d = d;
  s->logits_of = -1;
  s->tp = m->shape.dim[AXIS_TP];
  s->tp_rank = m->coord[AXIS_TP];
  s->pp = m->shape.dim[AXIS_PP];
  s->stage = m->coord[AXIS_PP];
  s->dp = m->shape.dim[AXIS_DP_SHARD] * m->shape.dim[AXIS_DP_REPLICATE];
  s->dp_rank = m->coord[AXIS_DP_REPLICATE] * m->shape.dim[AXIS_DP_SHARD] + m->coord[AXIS_DP_SHARD];
  s->chunks = c->pipeline.schedule == SCHED_INTERLEAVED ? (int) c->pipeline.chunks : 1;
  s->split = c->pipeline.schedule == SCHED_ZBH1 && s->pp > 1;
  if (check_shape (s, e)) return -1;
  s->mbs = (int) (c->train.global_batch / (c->train.micro_batch * s->dp));
  int kind = s->pp == 1 && c->pipeline.schedule != SCHED_GPIPE ? SCHED_1F1B : (int) c->pipeline.schedule;
  if (s->pp == 1) s->chunks = 1;
  if (sched_make (&s->train, kind, s->pp, s->chunks, s->mbs, false, e) || sched_make (&s->eval, kind, s->pp, s->chunks, s->mbs, true, e)) return -1;

  struct shard_place p;
  place (s, m, &p);
  if (shard_make (&s->sh, c, &p, d, e)) return -1;
  geom_make (&s->b.g, c, s->tp, s->tp_rank, d->memory);
  if (check_fp8 (&s->b.g, e)) return -1;
  s->b.d = d;
  s->b.a = &c->arch;
  make_chunks (s);
  s->keep = xalloc ((size_t) (c->arch.layers + 1) * sizeof *s->keep, "recomputation");
  for (int64_t l = 1; l <= c->arch.layers; l++) s->keep[l] = keep_of (c, l) | (s->split ? KEEP_SPLIT : 0);
  s->slot_f = xalloc ((size_t) (s->chunks * s->mbs) * sizeof (int), "schedule");
  s->slot_b = xalloc ((size_t) (s->chunks * s->mbs) * sizeof (int), "schedule");

  int member[m->size], me;
  for (int k = 0; k < GROUP_N; k++) s->group_n[k] = group_used (s, k) ? mesh_group (&m->shape, m->rank, k, member, &me) : 1;
  replicas_make (&s->replicas, &s->sh, s->group_n);
  fit (s, measure);
  return 0;
}

/* What a GPU cannot hold is refused before memory is asked for. The host's memory is shared with others and tells by itself. */
static int check_room (const struct step *s, int64_t need, struct err *e)
{
  const struct dev *d = s->d;
  char a[24], b[24], c[24];
  int64_t outside = dev_outside (d, s->group_n);
  if (!d->memory || d->blind || d->ops->limits->host_memory || need <= d->memory - outside) return 0;
  bytes_text (need, a);
  bytes_text (d->memory - outside, b);
  bytes_text (outside, c);
  return user_err (e, "a rank needs %s where its device has %s, %s being left for context and libraries", a, b, c);
}

int step_plan (struct step *s, const struct conf *c, const struct mesh *m, struct dev *d, struct err *e)
{
  if (shape (s, c, m, d, e) || check_room (s, measure (s), e) || arenas_reserve (&s->A, e)) return -1;
  layout (s);
  return 0;
}

/* ---- start ---- */

struct spec_ctx { const struct mesh *m; const struct step *s; int *member; };
static void spec (void *ctx, enum group_kind k, struct group_spec *out)
{
  struct spec_ctx *x = ctx;
  mesh_spec (x->m, k, out, x->member);
  if (!group_used (x->s, k)) out->n = 1;
}

/* cos | sin of each position in fp64, rounded once; low frequencies stretched as Llama 3.1 does (Hugging Face's _compute_llama3_parameters). */
static void rope_table (struct step *s)
{
  const struct arch *a = &s->c->arch;
  int64_t half = a->head_dim / 2, n = s->b.g.seq;
  float *t = xalloc ((size_t) (n * a->head_dim) * sizeof *t, "rope table");
  for (int64_t i = 0; i < half && !s->d->blind; i++) {
    double f = pow (a->rope_theta, -2.0 * (double) i / (double) a->head_dim);
    if (a->rope_scaling.factor > 0) {
      double wave = 2 * 3.14159265358979323846 / f, old = (double) a->rope_scaling.original;
      double low = a->rope_scaling.low, high = a->rope_scaling.high;
      if (wave > old / low) f /= a->rope_scaling.factor;
      else if (wave >= old / high) {
        double smooth = (old / wave - low) / (high - low);
        f = (1 - smooth) * f / a->rope_scaling.factor + smooth * f;
      }
    }
    for (int64_t p = 0; p < n; p++) {
      t[p * a->head_dim + i] = (float) cos ((double) p * f);
      t[p * a->head_dim + half + i] = (float) sin ((double) p * f);
    }
  }
  dev_put (s->d, s->q, s->rope, t, n * a->head_dim * 4);
  xfree (t);
}

void step_start (struct step *s, const struct mesh *m)
{
  const struct dev_ops *o = s->d->ops;
  int member[m->size];
  struct spec_ctx x = { m, s, member };
  s->q = o->queue_open (s->d, QUEUE_COMPUTE, "compute", s->queue_work, s->queue_bytes);
  enum group_kind order[GROUP_N];
  open_order (s, order);
  chans_open (&s->ch, s->d, s->q, s->c->run.overlap, order, spec, &x);
  shard_open (&s->sh, &s->ch);
  s->b.q = s->q;
  s->b.ch = &s->ch;
  s->b.rope = s->rope;
  s->end = o->event_open (s->d);
  for (int i = 0; i < RING; i++) {
    struct ring *r[] = { &s->out_f, &s->out_b };
    for (int j = 0; j < 2; j++) r[j]->sent[i] = o->event_open (s->d), r[j]->got[i] = o->event_open (s->d);
  }
  for (int k = 0; k < s->chunks; k++)
    for (int i = 0; i < s->chunk[k].slots; i++) s->chunk[k].got[i] = o->event_open (s->d);
  rope_table (s);
  dev_op (s->d, s->q, OP_ZERO, zero, .dst = s->sh.vars, .bytes = sizeof *s->sh.vars);
  step_set_updates (s, 0);
}

void step_close (struct step *s)
{
  const struct dev_ops *o = s->d->ops;
  if (s->q) {
    o->drain (s->d);
    for (int k = 0; k < s->chunks; k++)
      for (int i = 0; i < s->chunk[k].slots; i++) o->event_close (s->d, s->chunk[k].got[i]);
    for (int i = 0; i < RING; i++) {
      struct ring *r[] = { &s->out_f, &s->out_b };
      for (int j = 0; j < 2; j++) o->event_close (s->d, r[j]->sent[i]), o->event_close (s->d, r[j]->got[i]);
    }
    o->event_close (s->d, s->end);
  }
  replicas_free (&s->replicas);
  shard_free (&s->sh);
  if (s->q) {
    chans_close (&s->ch);
    o->queue_close (s->d, s->q);
  }
  for (int k = 0; s->chunk && k < s->chunks; k++) {
    xfree (s->chunk[k].in);
    xfree (s->chunk[k].acts);
    xfree (s->chunk[k].x);
    xfree (s->chunk[k].got);
  }
  xfree (s->chunk);
  xfree (s->keep);
  xfree (s->slot_f);
  xfree (s->slot_b);
  sched_free (&s->train);
  sched_free (&s->eval);
  arenas_release (&s->A);
  memset (s, 0, sizeof *s);
}

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
