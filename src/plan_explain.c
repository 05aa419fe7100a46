/* The sentences of a plan: where rules of thumb differ from the exact figures and why, and what the step waits for. Each comes from the figures and is left out where it says nothing. */
#include "config.h"
#include "plan.h"
#include <math.h>
#include <string.h>

static struct plan_line sum (const struct plan_stage *s, enum group_kind k, int op)
{
  struct plan_line x = { .group = k };
  for (int i = 0; i < s->lines; i++)
    if (s->line[i].group == k && (op == OP_N || (int) s->line[i].op == op)) {
      x.calls += s->line[i].calls;
      x.bytes += s->line[i].bytes;
      x.busy += s->line[i].busy;
      x.exposed += s->line[i].exposed;
    }
  return x;
}

/* The state: what the rule of 16 or 18 bytes leaves out. */
static void state (struct plan *p)
{
  const struct plan_stage *s = &p->stage[p->worst];
  double more = (double) p->state - p->rule_rank, gathered = (double) s->mem[SPACE_DEVICE][MEM_GATHER], kept = (double) s->mem[SPACE_DEVICE][MEM_WEIGHT];
  double part = (double) s->owned * (double) dtype_size (p->c.sharding.grad_dtype), pool = (double) s->mem[SPACE_DEVICE][MEM_GRAD] - part;
  if (fabs (more) < 0.01 * p->rule_rank || p->c.sharding.strategy == NO_SHARD) return;
  plan_note (p, "state: the rule cuts all %d bytes over %d ranks; here weights that are gathered live in %s of %.2f GB, and gradients are whole in %.2f GB before they are reduced",
             (int) (14 + dtype_size (p->c.sharding.grad_dtype)), p->gpus / p->shape.dim[AXIS_DP_REPLICATE], kept > 0 ? "whole copies" : "slots", (kept > 0 ? kept : gathered) / 1e9, pool / 1e9);
}

/* The traffic of dp: the rule is one gather and one reduce-scatter of bf16 a step. */
static void rule_bytes (struct plan *p)
{
  const struct plan_stage *s = &p->stage[0];
  struct plan_line g = sum (s, GROUP_SHARD, OP_ALL_GATHER), r = sum (s, GROUP_SHARD, OP_REDUCE_SCATTER), rep = sum (s, GROUP_REP, OP_N);
  double n = p->shape.dim[AXIS_DP_SHARD] * (p->c.sharding.strategy == NO_SHARD ? p->shape.dim[AXIS_DP_REPLICATE] : 1);
  if (n < 2 && !rep.calls) return;
  double whole = (double) s->padded * (n - 1) / n, w = (double) dtype_size (p->c.train.dtype), q = (double) dtype_size (p->c.sharding.reduce_dtype);
  double rule = 2 * (n - 1) / n * 2 * (double) p->params / (p->shape.dim[AXIS_TP] * p->shape.dim[AXIS_PP]);
  if (!g.calls)
    plan_note (p, "dp: the rule of thumb 2 M (N - 1) / N is %.1f GB a step of bf16; exactly %.1f GB are sent, gradients of %.0f bytes in an all-reduce once a step", rule / 1e9,
               (double) rep.bytes / 1e9, q);
  else
    plan_note (p, "dp: the rule of thumb 2 M (N - 1) / N is %.1f GB a step, one gather and one reduce-scatter of bf16; exactly %.1f GB are sent: weights are gathered %.2f times (%.1f GB), "
               "gradients of %.0f bytes are scattered %.2f times (%.1f GB)%s", rule / 1e9, (double) (g.bytes + r.bytes + rep.bytes) / 1e9, (double) g.bytes / (whole * w), (double) g.bytes / 1e9, q,
               (double) r.bytes / (whole * q), (double) r.bytes / 1e9, rep.calls ? ", and summed over replicas once" : "");
}

/* Over 30 % of the step for links: change the mesh; where links take several times what computation does: hopeless. */
static void waiting (struct plan *p)
{
  const struct plan_line *most = NULL;
  const struct plan_stage *at = NULL;
  for (int i = 0; i < p->stages; i++)
    for (int k = 0; k < p->stage[i].lines; k++)
      if (!most || p->stage[i].line[k].exposed > most->exposed) most = &p->stage[i].line[k], at = &p->stage[i];
  if (!most || p->exposed < 0.3) return;
  const char *link = at->group[most->group].link;
  double busy = 0;
  for (int k = 0; k < at->lines; k++) busy += at->line[k].group == most->group ? at->line[k].busy : 0;
  if (p->exposed > 0.75)
    plan_note (p, "hopeless: %.1f s of computation wait %.1f s for links; %s alone holds %s for %.1f s a step", p->compute * p->step, p->exposed * p->step, plan_axis (most->group), link, busy);
  else
    plan_note (p, "links take %.0f %% of the step, over 30 %%: change the mesh; %s holds %s for %.2f s a step", 100 * p->exposed, plan_axis (most->group), link, busy);
}

static void tensor (struct plan *p)
{
  const struct plan_stage *s = &p->stage[0];
  struct plan_line t = sum (s, GROUP_TP, OP_N);
  const struct plan_group *g = &s->group[GROUP_TP];
  if (!t.calls || !g->cross) return;
  plan_note (p, "tp %d lies over %d nodes: its %.0f GB a step hold %s for %.2f s, of which %.2f s are waited for; inside a node they would hold NVLink for about %.2f s", g->n, g->nodes,
             (double) t.bytes / 1e9, g->link, t.busy, t.exposed, (double) t.bytes / p->m.nvlink + (double) t.calls * (p->m.comm_launch + g->n * p->m.nvlink_latency));
}

static void bubble (struct plan *p)
{
  if (p->stages == 1) return;
  double a = (double) p->mbs, s = p->stages, equal = (s - 1) / (a + s - 1);
  plan_note (p, "bubble: (pp - 1) / (A + pp - 1) = %.1f %% for %lld micro-batches on %d equal stages by gpipe or 1f1b; here stages wait %.1f %% for each other", 100 * equal, (long long) p->mbs,
             p->stages, 100 * p->bubble);
}

static void sharing (struct plan *p)
{
  const struct plan_stage *s = &p->stage[0];
  for (int k = 0; k < GROUP_N; k++) {
    const struct plan_group *g = &s->group[k];
    if (k != GROUP_SHARD && k != GROUP_REP) continue;
    if (g->sharers < 2) continue;
    plan_note (p, "%d groups of %s leave each node through its %d card%s at once, so that each has %.1f GB/s", g->sharers, plan_axis (k), p->m.nics, p->m.nics > 1 ? "s" : "",
               p->m.nics * p->m.nic_bandwidth * p->m.nic_share / g->sharers / 1e9);
  }
}

/* What the numbers on paper leave out on a mesh with pp. */
static void paper (struct plan *p)
{
  int tp = p->shape.dim[AXIS_TP], pp = p->shape.dim[AXIS_PP], n = p->shape.dim[AXIS_DP_SHARD];
  if (pp == 1 || n == 1) return;
  double bytes = (double) p->rule_state, m = 2 * (double) p->params;
  plan_note (p, "pp cuts the state too: dividing by tp x dp alone would give %.1f GB a GPU and 2 M (N - 1) / N = %.1f GB; with pp %d they are %.1f and %.1f", bytes / (tp * n) / 1e9,
             2 * m / tp * (n - 1) / n / 1e9, pp, bytes / (tp * n * pp) / 1e9, 2 * m / (tp * pp) * (n - 1) / n / 1e9);
}

static void host (struct plan *p)
{
  double most = 0;
  for (int i = 0; i < p->stages; i++) {
    double sum = 0;
    for (int m = 0; m < MEM_N; m++) sum += (double) (p->stage[i].mem[SPACE_PINNED][m] + p->stage[i].mem[SPACE_HOST][m]);
    most = MAX (most, sum);
  }
  if (most * p->m.gpus > p->m.host_memory)
    plan_note (p, "host memory does not hold it: %d ranks with %.1f GB each on a node of %.0f GB", p->m.gpus, most / 1e9, p->m.host_memory / 1e9);
}

void plan_explain (struct plan *p)
{
  waiting (p);
  tensor (p);
  rule_bytes (p);
  state (p);
  paper (p);
  bubble (p);
  sharing (p);
  host (p);
  if (p->shown < p->mbs)
    plan_note (p, "times are extrapolated from steps of %lld and %d micro-batches, the middle of a step being periodic; bytes and memory are exact", (long long) p->shown, 2 * p->stages);
}
