#include "config.h"
#include "plan_guess.h"
#include "sim.h"
#include "step.h"
#include <math.h>
#include <string.h>

void guess_open (struct guesses *g, const struct conf *c, const struct machine *m, int gpus) 
{
  *g = (struct guesses) { .m = *m, .c = c, .gpus = gpus };
  g->m.memory = 1e18;   /* a guess asks for time alone */
}
void guess_close (struct guesses *g) { xfree (g->known); }

/* Until the last backward of one micro-batch of a model with LAYERS layers on tp ranks alone. */
static double alone (const struct guesses *g, const struct conf *like, int64_t layers)
{
  static const struct plan_want want = { .quick = true };
  struct conf *c = xalloc (sizeof *c, "guess");
  struct plan *p = xalloc (sizeof *p, "guess");
  struct err e = { 0 };
  *c = *like;
  c->arch.layers = layers;
  if (c->recompute.mode == RECOMPUTE_AUTO) c->recompute.mode = RECOMPUTE_NONE;
  c->pipeline.split[0] = 0;
  c->pipeline.schedule = SCHED_1F1B;
  c->pipeline.chunks = 1;
  c->mesh.pp = c->mesh.dp_shard = c->mesh.dp_replicate = 1;
  snprintf (c->mesh.order, sizeof c->mesh.order, "tp-pp-dp");
  c->mesh.tp_across_nodes = true;
  c->sharding.strategy = NO_SHARD;
  c->train.global_batch = c->train.micro_batch;
  double t = plan_make (p, c, &g->m, (int) c->mesh.tp, &want, &e) ? INFINITY : p->begin_drain;
  plan_free (p);
  xfree (p);
  xfree (c);
  return t;
}

static const struct guess_layer *layer_of (struct guesses *g, const struct conf *c)
{
  for (int i = 0; i < g->n; i++) {
    const struct guess_layer *l = &g->known[i];
    if (l->tp == c->mesh.tp && l->micro_batch == c->train.micro_batch && l->mode == (int) c->recompute.mode) return l;
  }
  struct guess_layer l = { .tp = c->mesh.tp, .micro_batch = c->train.micro_batch, .mode = c->recompute.mode };
  double two = alone (g, c, 2), four = alone (g, c, 4);
  l.layer = (four - two) / 2;
  l.ends = two - 2 * l.layer;
  if (!isfinite (two) || !isfinite (four)) l.layer = l.ends = INFINITY;
  g->known = xrealloc (g->known, (size_t) (g->n + 1) * sizeof l, "guess");
  g->known[g->n] = l;
  return &g->known[g->n++];
}

/* Seconds of COUNT collectives of BYTES each over group K of rank 0. */
static double traffic (const struct guesses *g, const struct mesh *m, enum group_kind k, enum op_kind op, double count, double bytes)
{
  struct sim_where w = sim_place (m, k);
  bool tree;
  if (w.n == 1) return 0;
  double sent = bytes * (w.n - 1) / w.n * (op == OP_ALL_REDUCE ? 2 : 1);
  return count * (g->m.comm_launch + machine_collective (&g->m, w.n, w.most, w.nodes, w.sharers, sent, op == OP_ALL_REDUCE ? 2 : 1, &tree));
}

/* What a layer's ten collectives over tp take longer than by the placement that it was priced with, tp fastest. */
static double misplaced (const struct guesses *g, const struct mesh *m, const struct conf *c)
{
  struct sim_where w = sim_place (m, GROUP_TP);
  int tp = (int) c->mesh.tp, most = MIN (tp, g->m.gpus), nodes = (int) ceil_div (tp, g->m.gpus);
  double s = (double) (c->train.micro_batch * c->train.seq_len * c->arch.dim * dtype_size (c->train.dtype)) * (tp - 1) / tp;
  bool tree;
  if (w.nodes <= nodes) return 0;
  return 10 * (machine_collective (&g->m, tp, w.most, w.nodes, w.sharers, s, 1, &tree) - machine_collective (&g->m, tp, most, nodes, 1, s, 1, &tree));
}

double guess_step (struct guesses *g, const struct conf *like)
{
  struct mesh_shape shape;
  struct mesh m;
  struct err e = { 0 };
  struct conf *c = xalloc (sizeof *c, "guess");
  *c = *like;
  int bad = step_resolve (c, g->gpus, &shape, &e);
  double mbs = bad ? 0 : (double) (c->train.global_batch / (c->train.micro_batch * c->mesh.dp_shard * c->mesh.dp_replicate)), pp = (double) c->mesh.pp;
  if (bad || mbs < 1) return xfree (c), INFINITY;
  int *node_of = xalloc ((size_t) g->gpus * sizeof (int), "guess");
  mesh_virtual (&m, &shape, 0, g->m.gpus, node_of);
  const struct guess_layer *l = layer_of (g, c);
  double layers = ceil ((double) c->arch.layers / pp), units = layers + 1, p = (double) arch_params (&c->arch) / pp / (double) c->mesh.tp, w = (double) dtype_size (c->train.dtype);
  double gather = traffic (g, &m, GROUP_SHARD, OP_ALL_GATHER, units, p / units * w);
  double scatter = traffic (g, &m, GROUP_SHARD, OP_REDUCE_SCATTER, units, p / units * (double) dtype_size (c->sharding.reduce_dtype));
  double replicas = traffic (g, &m, GROUP_REP, OP_ALL_REDUCE, units, p / units * (double) dtype_size (c->sharding.reduce_dtype) / (shape.no_shard ? 1 : (double) c->mesh.dp_shard));
  double one = layers * (l->layer + misplaced (g, &m, c)) + l->ends * (pp > 1 ? 0.5 : 1), each = 0, once = 0;
  switch (c->sharding.strategy) {
  case NO_SHARD:      once = replicas; break;
  case SHARD_OPT:     once = gather + scatter; break;
  case SHARD_GRAD_OP: once = gather, each = scatter; break;
  default:            /* FULL_SHARD, HYBRID_SHARD */
    once = replicas;
    each = scatter + (c->sharding.reshard == RESHARD_BACKWARD ? 1 : c->sharding.reshard == RESHARD_STEP ? 0 : 2) * gather;
    if (c->sharding.reshard == RESHARD_STEP) once += gather;
  }
  double chunks = c->pipeline.schedule == SCHED_INTERLEAVED ? (double) c->pipeline.chunks : 1, bubble = (pp - 1) / chunks * (c->pipeline.schedule == SCHED_ZBH1 ? 0.4 : 1);
  double s = (double) (c->train.micro_batch * c->train.seq_len * c->arch.dim / c->mesh.tp) * w;
  struct sim_where link = pp > 1 ? sim_place (&m, GROUP_F_OUT) : (struct sim_where) { .nodes = 1 };
  double hop = pp > 1 ? g->m.comm_launch + machine_send (&g->m, link.nodes > 1, link.sharers, s) : 0;
  double t = mbs * MAX (one, each) + bubble * one + MAX (0, once - 0.6 * one) + 2 * (pp - 1) * chunks * hop + 0.1 * each;
  t += machine_stream (&g->m, p / (shape.no_shard ? 1 : (double) c->mesh.dp_shard) * 30);   /* norm and optimizer */
  xfree (node_of);
  xfree (c);
  return t;
}

double guess_state (const struct conf *c, int gpus)
{
  double p = (double) arch_params (&c->arch), cut = (double) (c->mesh.pp * c->mesh.tp), shards = (double) c->mesh.dp_shard, w = (double) dtype_size (c->train.dtype),
    g = (double) dtype_size (c->sharding.grad_dtype);
  (void) gpus;
  switch (c->sharding.strategy) {
  case NO_SHARD:      return p / cut * (12 + w + g);
  case SHARD_OPT:     return p / cut * (12 / shards + w + g);
  case SHARD_GRAD_OP: return p / cut * ((12 + g) / shards + w);
  default:            return p / cut * (12 + g) / shards;
  }
}
