/* A plan as text: one page for the terminal. */
#include "config.h"
#include "conf_int.h"
#include "plan.h"
#include <stdio.h>
#include <string.h>

const char *plan_gb (double bytes, char out[static 24])
{
  static const char *const unit[] = { "B", "kB", "MB", "GB", "TB", "PB" };
  int u = 0;
  for (; bytes >= 999.5 && u + 1 < LEN (unit); u++) bytes /= 1000;
  snprintf (out, 24, u && bytes < 99.95 ? bytes < 9.995 ? "%.2f %s" : "%.1f %s" : "%.0f %s", bytes, unit[u]);
  return out;
}

const char *plan_seconds (double s, char out[static 24])
{
  if (s >= 100) snprintf (out, 24, "%.0f s", s);
  else if (s >= 1) snprintf (out, 24, "%.3g s", s);
  else if (s >= 1e-3) snprintf (out, 24, "%.3g ms", 1e3 * s);
  else snprintf (out, 24, "%.3g us", 1e6 * s);
  return out;
}

const char *plan_word (const char *option, const struct conf *c, char out[static 64])
{
  char text[STR];
  row_get (&conf_row[row_find (option)], c, text);
  snprintf (out, 64, "%.60s", text);
  return out;
}

const char *plan_axis (enum group_kind k)
{
  switch (k) {
  case GROUP_SHARD: return "dp_shard";
  case GROUP_REP:   return "dp_replicate";
  case GROUP_TP: case GROUP_KV: return "tp";
  case GROUP_WORLD: return "world";
  default: return "pp";
  }
}

static void head (const struct plan *p, FILE *f)
{
  const struct conf *c = &p->c;
  char n[24], w[4][64];
  count_text (p->params, n);
  fprintf (f, "plan: %s, %s parameters, on %d x %s, %d node%s of %d, %s between them (%s)\n", c->model, n, p->gpus, p->m.gpu, p->nodes, p->nodes > 1 ? "s" : "", p->m.gpus, p->m.nic,
           p->m.name);
  fprintf (f, "step: %lld sequences of %lld tokens, %lld micro-batch%s of %lld on each of %d data ranks; %s, gradients %s\n", (long long) c->train.global_batch, (long long) c->train.seq_len,
           (long long) p->mbs, p->mbs > 1 ? "es" : "", (long long) c->train.micro_batch, p->shape.dim[AXIS_DP_SHARD] * p->shape.dim[AXIS_DP_REPLICATE], precision_name (c),
           dtype_name (c->sharding.grad_dtype));
  fprintf (f, "cut:  %s, reshard %s, prefetch %lld, wrap %s; recompute %s", plan_word ("sharding.strategy", c, w[0]), plan_word ("sharding.reshard", c, w[1]),
           (long long) c->sharding.prefetch, c->sharding.wrap, plan_word ("recompute.mode", c, w[2]));
  if (p->stages > 1) fprintf (f, "; schedule %s", plan_word ("pipeline.schedule", c, w[3]));
  if (c->mesh.tp > 1 && c->mesh.tp_overlap > 1) fprintf (f, "; tp in %lld parts beside products", (long long) c->mesh.tp_overlap);
  fprintf (f, "\n");
  if (c->recompute.mode) fprintf (f, "      layers keep: %s\n", p->stage[p->worst].keep);
  fprintf (f, "\n");
}

static void memory (const struct plan *p, FILE *f)
{
  const struct plan_stage *s = &p->stage[p->worst];
  char t[24], u[24];
  fprintf (f, "memory of a GPU%s\n", p->stages > 1 ? "" : ", to the byte");
  if (p->stages > 1) fprintf (f, "  of stage %d, which has the most of %d (rank %d)\n", p->worst, p->stages, s->rank);
  for (int i = 0; i < MEM_N; i++) {
    if (s->mem[SPACE_DEVICE][i]) fprintf (f, "  %-16s %10s %16lld bytes\n", purpose_name (i), plan_gb ((double) s->mem[SPACE_DEVICE][i], t), (long long) s->mem[SPACE_DEVICE][i]);
  }
  fprintf (f, "  %-16s %10s\n", "outside", plan_gb ((double) p->outside, t));
  fprintf (f, "  %-16s %10s of %s: ", "total", plan_gb ((double) (s->device + p->outside), t), plan_gb ((double) p->capacity, u));
  if (p->fits) fprintf (f, "fits, %s free\n", plan_gb ((double) -p->over, t));
  else fprintf (f, "does NOT fit, %s too many\n", plan_gb ((double) p->over, t));
  int64_t host = 0;
  for (int i = 0; i < MEM_N; i++) host += s->mem[SPACE_PINNED][i] + s->mem[SPACE_HOST][i];
  fprintf (f, "  host             %10s a rank\n", plan_gb ((double) host, t));
  int64_t cut = p->gpus / p->shape.dim[AXIS_DP_REPLICATE] / (p->c.sharding.strategy == NO_SHARD ? p->shape.dim[AXIS_DP_SHARD] : 1);
  fprintf (f, "  rule: %d bytes a parameter = %s", (int) (14 + dtype_size (p->c.sharding.grad_dtype)), plan_gb ((double) p->rule_state, t));
  fprintf (f, " / %lld = %s a GPU; weights kept, gradients, master and moments here: %s\n\n", (long long) cut, plan_gb (p->rule_rank, t), plan_gb ((double) p->state, u));
}

static void lines (const struct plan *p, FILE *f)
{
  const struct plan_stage *s = &p->stage[0];
  char bytes[24], busy[24], exposed[24];
  if (!s->lines) return;
  fprintf (f, "communication of a step: what a GPU%s sends, the link, the time at that link\n", p->stages > 1 ? " of stage 0" : "");
  fprintf (f, "  %-13s %4s  %-16s %-15s %-19s %7s %9s %9s %9s\n", "axis", "size", "group", "kind", "link", "calls", "bytes", "time", "exposed");
  for (int i = 0; i < s->lines; i++) {
    const struct plan_line *l = &s->line[i];
    const struct plan_group *g = &s->group[l->group];
    char link[64];
    if (g->cross && g->sharers > 1) snprintf (link, sizeof link, "%.40s / %d", g->link, g->sharers);
    else snprintf (link, sizeof link, "%.60s", g->link);
    fprintf (f, "  %-13s %4d  %-16s %-15s %-19s %7lld %9s %9s %9s\n", plan_axis (l->group), g->n, group_name (l->group), op_name (l->op), link, (long long) l->calls,
             plan_gb ((double) l->bytes, bytes), plan_seconds (l->busy, busy), plan_seconds (l->exposed, exposed));
  }
  fprintf (f, "\n");
}

static void check (const struct plan *p, FILE *f)
{
  double bytes = 0, seconds = 0;
  char t[24], u[24];
  if (!p->c.run.replica_check_steps) return;
  for (int i = 0; i < p->stages; i++) seconds = MAX (seconds, p->stage[i].check_seconds);
  for (int i = 0; i < p->stage[0].checks; i++) bytes += (double) p->stage[0].check[i].bytes;
  if (!p->stage[0].checks) fprintf (f, "replica check: nothing is held by several ranks of stage 0\n\n");
  else fprintf (f, "replica check: each %lld steps, %s, a GPU sends %s\n\n", (long long) p->c.run.replica_check_steps, plan_seconds (seconds, t), plan_gb (bytes, u));
}

static void times (const struct plan *p, FILE *f)
{
  char t[24];
  fprintf (f, "time (predicted): %s a step, %.0f tokens/s, %.0f a GPU, MFU %.1f %%\n", plan_seconds (p->step, t), p->tokens_s, p->tokens_s / p->gpus, 100 * p->mfu);
  fprintf (f, "  computation %.1f %%, waiting for links %.1f %%, waiting for other stages %.1f %%\n", 100 * p->compute, 100 * p->exposed, 100 * p->bubble);
  if (p->stages == 1) return;
  for (int i = 0; i < p->stages; i++) {
    const struct plan_stage *s = &p->stage[i];
    if (p->stages > 8 && i >= 3 && i < p->stages - 3) {
      if (i == 3) fprintf (f, "  ...\n");
      continue;
    }
    fprintf (f, "  stage %-3d %3lld layers, computation %5.1f %%, links %5.1f %%, bubble %5.1f %%\n", i, (long long) s->layers, 100 * s->compute / p->step, 100 * s->exposed / p->step,
             100 * s->bubble / p->step);
  }
}

static void row (const struct plan *p, const struct plan_choice *x, FILE *f)
{
  char t[24], u[24];
  plan_gb ((double) (x->device + p->outside), u);
  if (!x->fits) fprintf (f, "  %10s %9s %6s %6s %8s", "-", "-", "-", "-", u);
  else fprintf (f, "  %10.0f %9s %5.1f%% %5.1f%% %8s", x->tokens_s, plan_seconds (x->step, t), 100 * x->exposed, 100 * x->bubble, u);
  char on[32] = "";
  if (x->gpus != p->gpus) snprintf (on, sizeof on, "%d GPUs: ", x->gpus);
  fprintf (f, "  %s%s%s%s%s\n", on, x->name, x->name[0] ? ": " : "", x->text, x->fits ? "" : " does not fit");
  if (x->fits && x->exposed + x->bubble > 0.1) fprintf (f, "  %44s waits for %s\n", "", x->limit);
}

static bool same_axes (const struct plan_choice *a, const struct plan_choice *b)
{
  return a->c.mesh.tp == b->c.mesh.tp && a->c.mesh.pp == b->c.mesh.pp && a->c.mesh.dp_shard == b->c.mesh.dp_shard && a->c.mesh.dp_replicate == b->c.mesh.dp_replicate;
}

/* Of each mesh the best alone: the rest of a ranking differs in little. */
static void ranking (const struct plan *p, FILE *f)
{
  static const char head[] = "  %10s %9s %6s %6s %8s\n";
  int shown = 0;
  if (!p->choices) return;
  if (p->fits) fprintf (f, "\nsearch: the best meshes of %lld plans that were timed; %lld ways do not fit\n", (long long) p->tried, (long long) p->too_big);
  else fprintf (f, "\nit would fit so:\n");
  fprintf (f, head, "tokens/s", "step", "links", "bubble", "memory");
  for (int i = 0; i < p->choices && shown < 8; i++) {
    bool seen = false;
    for (int k = 0; k < i && p->fits; k++) seen |= same_axes (&p->choice[k], &p->choice[i]);
    if (!seen) row (p, &p->choice[i], f), shown++;
  }
  if (!p->others) return;
  fprintf (f, "meshes that people draw, each at its best:\n");
  for (int i = 0; i < p->others; i++) row (p, &p->other[i], f);
}

/* Below an axis of the picture: its link, and what it costs. */
static void draw_link (void *ctx, enum axis a, FILE *f)
{
  const struct plan *p = ctx;
  const struct plan_stage *s = &p->stage[0];
  const char *name = axis_table[a == AXIS_DP_SHARD && p->shape.no_shard ? AXIS_DP_REPLICATE : a].name, *link = NULL;
  double bytes = 0, busy = 0, exposed = 0;
  char t[3][24];
  for (int i = 0; i < s->lines; i++) {
    const struct plan_line *l = &s->line[i];
    if (strcmp (plan_axis (l->group), name)) continue;
    if (!link || s->group[l->group].cross) link = s->group[l->group].link;
    bytes += (double) l->bytes;
    busy += l->busy;
    exposed += l->exposed;
  }
  if (link)
    fprintf (f, "  %*s %s: a GPU sends %s a step in %s, of which %s are waited for\n", p->shape.dim[AXIS_DP_REPLICATE] > 1 ? 14 : 9, "", link, plan_gb (bytes, t[0]), plan_seconds (busy, t[1]),
             plan_seconds (exposed, t[2]));
}

void plan_print (const struct plan *p, FILE *f)
{
  head (p, f);
  mesh_draw_marked (&p->shape, p->node_of, draw_link, (void *) p, f);
  fprintf (f, "\n");
  memory (p, f);
  lines (p, f);
  check (p, f);
  times (p, f);
  ranking (p, f);
  for (int i = 0; i < p->notes; i++) fprintf (f, "%s- %s\n", i ? "" : "\n", p->note[i]);
  if (!p->fits && p->least_gpus) fprintf (f, "- the smallest number of these GPUs that holds this model at all is %d\n", p->least_gpus);
}
