/* Making a plan: roles of the mesh run on the sim device, the stages put on one time-line, what came out set beside the rules of thumb. */
#include "config.h"
#include "keep.h"
#include "plan.h"
#include "sim.h"
#include "step.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- a role: one rank that stands for all that do the same ---- */

struct role { struct conf c; struct mesh mesh; struct dev d; struct step s; struct host_batch *batch; int32_t *ids; int64_t bytes; void *copy; int64_t copied; bool dev_up, planned, started; };

static int role_open (struct role *r, const struct conf *c, const struct machine *m, const struct mesh_shape *s, int rank, int *node_of, int64_t memory, struct err *e)
{
  memset (r, 0, sizeof *r);
  r->c = *c;
  mesh_virtual (&r->mesh, s, rank, m->gpus, node_of);
  if (sim_open (&r->d, m, &r->mesh, memory, e)) return -1;
  r->d.conf.deterministic = conf_deterministic (c);
  r->dev_up = r->planned = true;
  if (step_plan (&r->s, &r->c, &r->mesh, &r->d, e)) return -1;
  r->bytes = r->s.mbs * r->s.b.g.n * 16;   /* as a run has them (job_batches) */
  r->ids = dev_reserve (&r->d, MEM_STAGE, SPACE_PINNED, r->bytes, e);
  r->copied = shard_copy_bytes (&r->s.sh);   /* and as saver_open has it */
  if (r->ids && r->copied) r->copy = dev_reserve (&r->d, MEM_STAGE, SPACE_PINNED, r->copied, e);
  return r->ids && (r->copy || !r->copied) ? 0 : -1;
}

static void role_close (struct role *r)
{
  if (r->ids) dev_release (&r->d, MEM_STAGE, SPACE_PINNED, r->ids, r->bytes);
  if (r->copy) dev_release (&r->d, MEM_STAGE, SPACE_PINNED, r->copy, r->copied);
  if (r->planned) step_close (&r->s);
  if (r->dev_up) dev_close (&r->d);
  xfree (r->batch);
  memset (r, 0, sizeof *r);
}

static void mark (struct dev *d, int32_t action) { sim_mark (d, action); }

static struct group_head *head_of (const struct role *r, int k) { return (struct group_head *) r->s.ch.c[k].g; }

/* The second of two steps: what happens once (the first casts, the first gathers of weights that are kept) is no part of it. */
static void role_run (struct role *r, bool trace)
{
  struct step_result out;
  step_start (&r->s, &r->mesh);
  r->started = true;
  r->batch = xalloc ((size_t) r->s.mbs * sizeof *r->batch, "batches");
  int64_t n = r->s.b.g.n;
  for (int i = 0; i < r->s.mbs; i++) {
    int32_t *p = (int32_t *) at_bytes (r->ids, i * n * 16);
    r->batch[i] = (struct host_batch) { p, p + n, p + 2 * n, p + 3 * n };
  }
  step_train (&r->s, r->batch, 0, &out);
  for (int k = 0; k < GROUP_N; k++)
    if (head_of (r, k)) memset (&head_of (r, k)->stat, 0, sizeof (struct group_stat));
  r->d.flops = 0;
  sim_trace (&r->d, trace);
  r->s.mark = trace ? mark : NULL;
  step_train (&r->s, r->batch, 0, &out);
}

/* ---- what a role tells ---- */

/* Runs of layers that keep alike. */
static void tell_keep (struct plan_stage *o, const struct step *s)
{
  size_t n = 0;
  char set[96];
  o->keep[0] = 0;
  for (int k = 0; k < s->chunks; k++) {
    int64_t from = MAX (s->chunk[k].first, 1), end = from + s->chunk[k].layers;
    for (int64_t l = from, to; l < end && n < sizeof o->keep; l = to) {
      for (to = l + 1; to < end && s->keep[to] == s->keep[l]; to++) continue;
      keep_text (s->keep[l], set);
      n += (size_t) snprintf (o->keep + n, sizeof o->keep - n, "%s%lld-%lld %s", n ? "; " : "", (long long) l, (long long) to - 1, set);
    }
  }
}

static void tell_memory (struct plan_stage *o, const struct role *r)
{
  const struct units *u = &r->s.sh.units;
  o->rank = r->mesh.rank;
  o->first = u->first[0];
  o->last = u->last[0];
  o->layers = 0;
  for (int k = 0; k < r->s.chunks; k++) o->layers += r->s.chunk[k].layers;
  o->params = u->params;
  o->padded = u->total;
  o->owned = u->total / u->shards;
  o->device = 0;
  o->outside = dev_outside (&r->d, r->s.group_n);
  tell_keep (o, &r->s);
  for (int s = 0; s < SPACE_N; s++)
    for (int p = 0; p < MEM_N; p++) {
      o->mem[s][p] = r->d.mem[s].reserved[p];
      if (s == SPACE_DEVICE) o->device += o->mem[s][p];
    }
}

static void tell_groups (struct plan_stage *o, const struct role *r)
{
  for (int k = 0; k < GROUP_N; k++) {
    struct sim_where w = sim_where (&r->d, k);
    bool cross = w.nodes > 1;
    o->group[k] = (struct plan_group) { w.n, w.nodes, w.most, w.sharers, cross, NULL };
  }
}

static void tell_lines (struct plan_stage *o, const struct role *r)
{
  o->flops = r->d.flops;
  o->lines = 0;
  for (int k = 0; k < GROUP_N; k++)
    for (int op = OP_COLL_FIRST; op < OP_N && head_of (r, k); op++) {
      const struct coll_stat *s = &head_of (r, k)->stat.kind[op - OP_COLL_FIRST];
      if (!s->calls) continue;
      must (o->lines < LEN (o->line), "a plan with more than %d kinds of collectives", LEN (o->line));
      o->line[o->lines++] = (struct plan_line) { .group = k, .op = op, .calls = s->calls, .bytes = s->bytes, .tree = sim_used_tree (&r->d, k, op) };
    }
}

/* What a replica check sends and takes, one operation after the other. After all else: the role's counters and trace are used up. */
static void tell_check (struct plan_stage *o, struct role *r)
{
  int64_t n;
  struct dev *d = &r->d;
  o->checks = 0;
  o->check_seconds = 0;
  if (!r->c.run.replica_check_steps) return;
  for (int k = 0; k < GROUP_N; k++)
    if (head_of (r, k)) memset (&head_of (r, k)->stat, 0, sizeof (struct group_stat));
  sim_trace (d, true);
  replicas_agree (&r->s.replicas);
  const struct sim_item *x = sim_items (d, &n);
  for (int64_t i = 0; i < n; i++) o->check_seconds += x[i].seconds;
  for (int k = 0; k < GROUP_N; k++) {
    const struct coll_stat *s = head_of (r, k) ? &head_of (r, k)->stat.kind[OP_ALL_GATHER - OP_COLL_FIRST] : NULL;
    if (s && s->calls) o->check[o->checks++] = (struct plan_line) { .group = k, .op = OP_ALL_GATHER, .calls = s->calls, .bytes = s->bytes };
  }
}

int plan_rank (struct plan_stage *out, const struct conf *c, const struct machine *m, const struct mesh_shape *s, int rank, int64_t memory, struct err *e)
{
  struct role *r = xalloc (sizeof *r, "role");
  int *node_of = xalloc ((size_t) mesh_world (s) * sizeof (int), "plan");
  memset (out, 0, sizeof *out);
  int rc = role_open (r, c, m, s, rank, node_of, memory, e);
  if (!rc) {
    role_run (r, false);
    tell_memory (out, r);
    tell_groups (out, r);
    tell_lines (out, r);
    tell_check (out, r);
  }
  role_close (r);
  xfree (r);
  xfree (node_of);
  return rc;
}

/* ---- memory of a stage: the most of its distinct roles ---- */

static int stage_rank (const struct mesh_shape *s, int stage, int shard, int tp)
{
  int c[AXIS_N] = { [AXIS_PP] = stage, [AXIS_DP_SHARD] = shard, [AXIS_TP] = tp };
  return mesh_rank (s, c);
}

/* The first and the last rank of dp_shard and tp: norms lie in the first parts of a unit, the vocabulary's padding in the last slice. */
static int stage_memory (struct plan *p, int stage, int roles, struct err *e)
{
  struct plan_stage *o = &p->stage[stage];
  struct role *r = xalloc (sizeof *r, "role");
  int shards = p->shape.dim[AXIS_DP_SHARD], tp = p->shape.dim[AXIS_TP], rc = 0;
  for (int i = 0; i < roles && !rc; i++) {
    if ((i & 1 && shards == 1) || (i & 2 && tp == 1)) continue;
    struct plan_stage x = { 0 };
    rc = role_open (r, &p->c, &p->m, &p->shape, stage_rank (&p->shape, stage, i & 1 ? shards - 1 : 0, i & 2 ? tp - 1 : 0), p->node_of, 0, e);
    if (!rc) tell_memory (&x, r);
    if (!rc && (!i || x.device > o->device)) {
      x.lines = o->lines;
      memcpy (x.line, o->line, sizeof x.line);
      *o = x;
    }
    role_close (r);
  }
  xfree (r);
  return rc;
}

/* Of all stages; quick: of the ends alone. Those between hold no more than one of them: the first has the most micro-batches and layers, the last the head. */
static int all_memory (struct plan *p, bool quick, struct err *e)
{
  int by = quick ? MAX (1, p->stages - 1) : 1;
  for (int i = 0; i < p->stages; i += by) {
    if (stage_memory (p, i, quick ? 1 : 4, e)) return -1;
    if (p->stage[i].device > p->stage[p->worst].device) p->worst = i;
    p->outside = MAX (p->outside, p->stage[i].outside);
  }
  p->over = p->stage[p->worst].device + p->outside - p->capacity;
  p->fits = p->over <= 0;
  return 0;
}

/* ---- times ---- */

/* A time-line of the plan's conf with MBS micro-batches a step. */
struct line { struct sim_stage *at; struct role *role; int pp; };

static void line_close (struct line *l)
{
  for (int i = 0; i < l->pp; i++) {
    if (l->role) role_close (&l->role[i]);
    if (l->at) xfree (l->at[i].span);
  }
  xfree (l->role);
  xfree (l->at);
  memset (l, 0, sizeof *l);
}

static int line_open (struct line *l, struct plan *p, int64_t mbs, bool comm_spans, struct err *e)
{
  struct conf *c = xalloc (sizeof *c, "plan");
  *c = p->c;
  c->train.global_batch = mbs * c->train.micro_batch * p->shape.dim[AXIS_DP_SHARD] * p->shape.dim[AXIS_DP_REPLICATE];
  *l = (struct line) { .pp = p->stages };
  l->role = xalloc ((size_t) l->pp * sizeof *l->role, "time-line");
  l->at = xalloc ((size_t) l->pp * sizeof *l->at, "time-line");
  int rc = 0;
  for (int i = 0; i < l->pp && !rc; i++) {
    struct role *r = &l->role[i];
    rc = role_open (r, c, &p->m, &p->shape, stage_rank (&p->shape, i, 0, 0), p->node_of, 0, e);
    if (rc) break;
    role_run (r, true);
    l->at[i].item = sim_items (&r->d, &l->at[i].items);
    l->at[i].events = sim_events (&r->d);
    for (int k = 0; k < GROUP_N; k++) l->at[i].cross[k] = sim_where (&r->d, k).nodes > 1;
  }
  xfree (c);
  return rc ? rc : sim_time (l->at, l->pp, &p->m, comm_spans, e);
}

/* Of two time-lines with A and B micro-batches, what N would take: the middle of a step is periodic. */
static double reach (double xa, double xb, int64_t a, int64_t b, int64_t n) { return xb + (xb - xa) * (double) (n - b) / (double) (b - a); }

static void extrapolate (struct line *to, const struct line *from, int64_t a, int64_t b, int64_t n)
{
  for (int i = 0; i < to->pp; i++) {
    struct sim_stage *y = &to->at[i];
    const struct sim_stage *x = &from->at[i];
    double *const v[] = { &y->end, &y->compute, &y->exposed, &y->bubble };
    const double w[] = { x->end, x->compute, x->exposed, x->bubble };
    for (int k = 0; k < LEN (v); k++) *v[k] = MAX (reach (w[k], *v[k], a, b, n), 0);
    for (int g = 0; g < GROUP_N; g++)
      for (int op = 0; op < OP_N - OP_COLL_FIRST; op++) {
        struct sim_cost *q = &y->cost[g][op];
        q->busy = MAX (reach (x->cost[g][op].busy, q->busy, a, b, n), 0);
        q->exposed = MAX (reach (x->cost[g][op].exposed, q->exposed, a, b, n), 0);
      }
  }
}

static void take_spans (struct plan_stage *o, const struct sim_stage *s, const struct role *r, int stage)
{
  o->span = xalloc ((size_t) MAX (s->spans, 1) * sizeof *o->span, "spans");
  for (int i = 0; i < s->spans; i++) {
    const struct sim_span *x = &s->span[i];
    if (x->mark < 0) continue;
    const struct action *a = &r->s.train.act[stage][x->mark];
    o->span[o->spans++] = (struct plan_span) { x->lane, a->kind, a->chunk, a->mb, x->op, x->begin, x->end };
  }
}

static void take_times (struct plan *p, const struct line *l)
{
  for (int i = 0; i < p->stages; i++) {
    struct plan_stage *o = &p->stage[i];
    const struct sim_stage *s = &l->at[i];
    p->step = MAX (p->step, s->end + p->m.step_host);
    o->compute = s->compute;
    o->exposed = s->exposed;
    o->bubble = s->bubble;
    for (int k = 0; k < o->lines; k++) {
      const struct sim_cost *c = &s->cost[o->line[k].group][o->line[k].op - OP_COLL_FIRST];
      o->line[k].busy = c->busy;
      o->line[k].exposed = c->exposed;
    }
    take_spans (o, s, &l->role[i], i);
    tell_groups (o, &l->role[i]);
    for (int k = 0; k < GROUP_N; k++) o->group[k].link = machine_link (&p->m, o->group[k].cross);
  }
  for (int i = 0; i < p->stages; i++) {
    struct plan_stage *o = &p->stage[i];
    o->bubble += p->step - p->m.step_host - l->at[i].end;   /* until the last stage has ended too */
    p->compute += o->compute / p->step / p->stages;
    p->exposed += o->exposed / p->step / p->stages;
    p->bubble += o->bubble / p->step / p->stages;
    for (int k = 0; k < o->spans; k++)
      if (!o->span[k].lane && o->span[k].act >= ACT_B && o->span[k].act <= ACT_B_WEIGHT) p->begin_drain = MAX (p->begin_drain, o->span[k].end);
  }
}

enum { LONG_STEP = 24000 };   /* layers x micro-batches above which a step's times are extrapolated: the trace would take too much memory and time */

/* Bytes by a step of its full length, which is counted and not kept where it is long. */
static int count_lines (struct plan *p, struct err *e)
{
  struct role *r = xalloc (sizeof *r, "role");
  int rc = 0;
  for (int i = 0; i < p->stages && !rc; i++) {
    rc = role_open (r, &p->c, &p->m, &p->shape, stage_rank (&p->shape, i, 0, 0), p->node_of, 0, e);
    if (!rc) role_run (r, false), tell_lines (&p->stage[i], r);
    role_close (r);
  }
  xfree (r);
  return rc;
}

static int make_times (struct plan *p, const struct plan_want *w, struct err *e)
{
  struct line l, shorter;
  int64_t a = 2 * p->stages, b = 3 * p->stages;
  bool exact = p->mbs <= b || (!w->quick && p->mbs * p->c.arch.layers <= LONG_STEP);
  int rc = line_open (&l, p, exact ? p->mbs : b, w->trace, e);
  p->shown = exact ? p->mbs : b;
  if (!rc && !exact) {
    rc = line_open (&shorter, p, a, false, e);
    if (!rc) extrapolate (&l, &shorter, a, b, p->mbs);
    line_close (&shorter);
  }
  for (int i = 0; i < p->stages && !rc && (exact || w->quick); i++) tell_lines (&p->stage[i], &l.role[i]);
  if (!rc && !exact && !w->quick) rc = count_lines (p, e);
  if (!rc) take_times (p, &l);
  for (int i = 0; i < p->stages && !rc; i++) tell_check (&p->stage[i], &l.role[i]);
  line_close (&l);
  return rc;
}

/* ---- the whole ---- */

static int refuse_tp (const struct plan *p, struct err *e)
{
  int t = p->shape.dim[AXIS_TP], *g = xalloc ((size_t) p->gpus * sizeof (int), "plan"), me, n = 0, other = 0;
  char ranks[64];
  for (int r = 0; r < p->gpus && !other; r++) {
    n = mesh_group (&p->shape, r, GROUP_TP, g, &me);
    for (int i = 0; i < n; i++)
      if (p->node_of[g[i]] != p->node_of[g[0]]) other = g[i];
  }
  mesh_ranks_text (g, n, ranks, sizeof ranks);
  user_err (e, "mesh: with mesh.tp %d and mesh.order %s the tp group of ranks %s spans node %d and node %d of %d GPUs each; tp speaks several times in each layer and belongs inside a "
            "node: choose another tp or order, or see what it would cost with --mesh.tp_across_nodes true", t, p->c.mesh.order, ranks, p->node_of[g[0]], p->node_of[other], p->m.gpus);
  xfree (g);
  return -1;
}

static void rules (struct plan *p)
{
  const struct plan_stage *w = &p->stage[p->worst], *first = &p->stage[0];
  int n = p->shape.dim[AXIS_DP_SHARD], cut = p->shape.dim[AXIS_TP] * p->shape.dim[AXIS_PP];
  p->params = arch_params (&p->c.arch);
  p->rule_state = p->params * (14 + dtype_size (p->c.sharding.grad_dtype));
  p->rule_rank = (double) p->rule_state / (cut * (p->c.sharding.strategy == NO_SHARD ? 1 : n));
  for (int s = 0; s < SPACE_N; s++) p->state += w->mem[s][MEM_WEIGHT] + w->mem[s][MEM_GRAD] + w->mem[s][MEM_MASTER] + w->mem[s][MEM_MOMENT];
  p->rule_bytes = 2.0 * 2 * (double) p->params / cut * (n - 1) / n;
  for (int k = 0; k < first->lines; k++)
    if (first->line[k].group == GROUP_SHARD || first->line[k].group == GROUP_REP) p->exact_bytes += first->line[k].bytes;
}

int plan_make (struct plan *p, const struct conf *c, const struct machine *m, int gpus, const struct plan_want *w, struct err *e)
{
  static const struct plan_want plain;
  memset (p, 0, sizeof *p);
  p->c = *c;
  p->m = *m;
  p->gpus = gpus;
  p->nodes = (int) ceil_div (gpus, m->gpus);
  if (gpus < 1 || gpus > 1 << 20) return user_err (e, "a plan for %d GPUs: from 1 to %d can be planned", gpus, 1 << 20);
  if (step_resolve (&p->c, gpus, &p->shape, e)) return -1;
  p->node_of = xalloc ((size_t) gpus * sizeof (int), "plan");
  for (int r = 0; r < gpus; r++) p->node_of[r] = r / m->gpus;
  if (!p->c.mesh.tp_across_nodes && mesh_tp_crosses (&p->shape, p->node_of)) return refuse_tp (p, e);
  p->stages = p->shape.dim[AXIS_PP];
  p->stage = xalloc ((size_t) p->stages * sizeof *p->stage, "plan");
  p->mbs = p->c.train.global_batch / (p->c.train.micro_batch * p->shape.dim[AXIS_DP_SHARD] * p->shape.dim[AXIS_DP_REPLICATE]);
  p->capacity = (int64_t) m->memory;
  bool quick = w && w->quick;
  if (all_memory (p, quick, e)) return -1;
  if (quick && !p->fits) return 0;
  if (make_times (p, w ? w : &plain, e)) return -1;
  double tokens = (double) p->c.train.global_batch * (double) p->c.train.seq_len;
  p->tokens_s = tokens / p->step;
  p->mfu = p->tokens_s * arch_flops_token (&p->c.arch, p->c.train.seq_len) / gpus / machine_peak (m, p->c.train.dtype);
  rules (p);
  return 0;
}

void plan_note (struct plan *p, const char *fmt, ...)
{
  char text[2000];
  va_list ap;
  if (p->notes == PLAN_NOTES) return;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  p->note[p->notes++] = xstrdup (text, "note");
}

void plan_free (struct plan *p)
{
  for (int i = 0; i < p->stages && p->stage; i++) xfree (p->stage[i].span);
  for (int i = 0; i < p->notes; i++) xfree (p->note[i]);
  xfree (p->stage);
  xfree (p->choice);
  xfree (p->other);
  xfree (p->node_of);
  memset (p, 0, sizeof *p);
}
