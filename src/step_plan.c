/* A step's shape, memory, groups and queues, from configuration and mesh; step.c runs what is made here. */
#include "fit.h"
#include "step_int.h"
#include <math.h>
#include <string.h>

/* ---- plan ---- */

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
  bool replicas = c->sharding.strategy == HYBRID_SHARD || c->sharding.strategy == NO_SHARD;
  int one = world / (int) c->mesh.dp_replicate;
  if (c->mesh.dp_replicate > 1 && !replicas && !want[AXIS_DP_REPLICATE])
    return user_err (e, "mesh: dp_shard %d x pp %d x tp %d = %d, but there are %d ranks: start %d, leave mesh.dp_shard out, or give sharding.strategy HYBRID_SHARD for %lld replicas", s->dim[AXIS_DP_SHARD],
                     s->dim[AXIS_PP], s->dim[AXIS_TP], one, world, one, (long long) c->mesh.dp_replicate);
  if (c->mesh.dp_replicate > 1 && !replicas)
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
