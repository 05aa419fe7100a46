/* Plans beside a plan: what would fit where one does not, and the meshes that people draw. */
#include "config.h"
#include "conf_int.h"
#include "plan_guess.h"
#include <stdlib.h>
#include <string.h>


/* What the plan waits for most. */
static void limit_of (const struct plan *p, char *out, size_t size)
{
  const struct plan_line *most = NULL;
  const struct plan_stage *at = NULL;
  double links = 0;
  for (int i = 0; i < p->stages; i++)
    for (int k = 0; k < p->stage[i].lines; k++) {
      const struct plan_line *l = &p->stage[i].line[k];
      links += l->exposed;
      if (!most || l->exposed > most->exposed) most = l, at = &p->stage[i];
    }
  if (p->bubble > p->exposed) snprintf (out, size, "other stages");
  else if (!most || p->exposed < 0.01) snprintf (out, size, "computation");
  else snprintf (out, size, "%s %s on %s (%.0f %% of what links cost)", plan_axis (most->group), op_name (most->op), at->group[most->group].link, 100 * most->exposed / links);
}

int plan_choose (struct plan_choice *o, const struct conf *c, const struct machine *m, int gpus, bool quick, struct err *e)
{
  struct plan *p = xalloc (sizeof *p, "choice");
  int rc = plan_make (p, c, m, gpus, &(struct plan_want) { .quick = quick }, e);
  if (!rc) {
    if (quick && !p->fits) p->step = 1e30;
    *o = (struct plan_choice) { .c = p->c, .gpus = gpus, .tokens_s = p->tokens_s, .step = p->step, .mfu = p->mfu, .exposed = p->exposed, .bubble = p->bubble,
      .device = p->stage[p->worst].device, .fits = p->fits };
    o->c.mesh.tp_across_nodes = mesh_tp_crosses (&p->shape, p->node_of);
    plan_words (&o->c, o->text, sizeof o->text);
    limit_of (p, o->limit, sizeof o->limit);
  }
  plan_free (p);
  xfree (p);
  return rc;
}

/* ---- the smallest number of GPUs ---- */

/* With everything that saves memory: FULL_SHARD, one sequence, full recomputation; any tp inside a node, any pp. */
static bool holds (struct conf *c, const struct machine *m, int gpus)
{
  struct err e;
  struct plan_choice x;
  for (int tp = 1; tp <= MIN (gpus, m->gpus); tp *= 2)
    for (int pp = 1; gpus % tp == 0 && pp <= gpus / tp && pp <= c->arch.layers; pp++) {
      e = (struct err) { 0 };
      if (gpus / tp % pp || arch_check_tp (&c->arch, tp, &e) || m->gpus % tp) continue;
      c->mesh.tp = tp;
      c->mesh.pp = pp;
      c->mesh.dp_shard = gpus / tp / pp;
      c->train.global_batch = c->mesh.dp_shard * pp;
      if (guess_state (c, gpus) + m->outside < m->memory && !plan_choose (&x, c, m, gpus, true, &e) && x.fits) return true;
    }
  return false;
}

static int least_gpus (const struct plan *p)
{
  struct conf *c = xalloc (sizeof *c, "help");
  int n = 1, node = p->m.gpus;
  *c = p->c;
  c->sharding.strategy = FULL_SHARD;
  c->sharding.reshard = RESHARD_FORWARD;
  c->mesh.dp_replicate = 1;
  c->recompute.mode = RECOMPUTE_FULL;
  c->recompute.every = 1;
  c->pipeline.schedule = SCHED_1F1B;
  c->pipeline.chunks = 1;
  c->pipeline.split[0] = 0;
  c->train.micro_batch = 1;
  double least = (double) p->params * (12 + (double) dtype_size (c->sharding.grad_dtype)) / (p->m.memory - p->m.outside);
  while (n < least || !holds (c, &p->m, n)) {
    n += n < node ? 1 : node;
    if (n > 1 << 16) n = 0;
    if (!n) break;
  }
  xfree (c);
  return n;
}

/* ---- the nearest options ---- */

/* One thing changed; false where it is so already. */
static bool change (struct conf *c, int what)
{
  switch (what) {
  case 0:
    if (c->recompute.mode != RECOMPUTE_NONE) return false;
    c->recompute.mode = RECOMPUTE_SELECTIVE;
    return true;
  case 1:
    if (c->recompute.mode == RECOMPUTE_AUTO) return false;
    c->recompute.mode = RECOMPUTE_AUTO;
    return true;
  case 2: case 3:
    if (c->train.micro_batch % (what == 2 ? 2 : 4)) return false;
    c->train.micro_batch /= what == 2 ? 2 : 4;
    return true;
  case 4:
    if (c->sharding.strategy == FULL_SHARD || c->sharding.strategy == HYBRID_SHARD) return false;
    c->sharding.strategy = c->mesh.dp_replicate > 1 ? HYBRID_SHARD : FULL_SHARD;
    return true;
  case 5: case 6: case 7: {
    int64_t by = what == 5 ? 2 : what == 6 ? 4 : 8;
    if (c->mesh.dp_shard % by) return false;
    c->mesh.dp_shard /= by;
    c->mesh.tp *= by;
    return true; }
  case 8: case 9: {
    int64_t by = what == 8 ? 2 : 4;
    if (c->mesh.dp_shard % by || c->mesh.pp * by > c->arch.layers) return false;
    c->mesh.dp_shard /= by;
    c->mesh.pp *= by;
    return true; }
  case 10:
    if (c->mesh.dp_replicate == 1) return false;
    c->mesh.dp_shard *= c->mesh.dp_replicate;
    c->mesh.dp_replicate = 1;
    c->sharding.strategy = FULL_SHARD;
    return true;
  case 11:
    if (!strcmp (c->sharding.wrap, "layer")) return false;
    snprintf (c->sharding.wrap, sizeof c->sharding.wrap, "layer");
    return true;
  case 12:
    if (c->sharding.grad_dtype == DT_BF16) return false;
    c->sharding.grad_dtype = c->sharding.reduce_dtype = DT_BF16;
    return true;
  default: return false;
  }
}
enum { CHANGES = 13 };

/* The options that make C of what the plan has. */
static void options_of (const struct plan *p, const struct conf *c, char *out, size_t size)
{
  static const char *const may[] = { "mesh.dp_replicate", "mesh.dp_shard", "mesh.pp", "mesh.tp", "sharding.strategy", "sharding.wrap", "sharding.grad_dtype", "sharding.reduce_dtype",
    "train.micro_batch", "recompute.mode" };
  size_t n = 0;
  out[0] = 0;
  for (int i = 0; i < LEN (may); i++) {
    char is[STR], was[STR];
    row_get (&conf_row[row_find (may[i])], c, is);
    row_get (&conf_row[row_find (may[i])], &p->c, was);
    if (strcmp (is, was) && n < size) n += (size_t) snprintf (out + n, size - n, "%s--%s %.40s", n ? " " : "", may[i], is);
  }
}

static void add (struct plan *p, const struct conf *c)
{
  struct err e = { 0 };
  struct plan_choice x;
  if (plan_choose (&x, c, &p->m, p->gpus, true, &e) || !x.fits) return;
  for (int i = 0; i < p->choices; i++)
    if (!strcmp (p->choice[i].text, x.text)) return;
  options_of (p, &x.c, x.name, sizeof x.name);
  p->choice = xrealloc (p->choice, (size_t) (p->choices + 1) * sizeof x, "help");
  p->choice[p->choices++] = x;
}

static int by_rate (const void *a, const void *b)
{
  const struct plan_choice *x = a, *y = b;
  return x->tokens_s != y->tokens_s ? x->tokens_s > y->tokens_s ? -1 : 1 : strcmp (x->text, y->text);
}

/* All ways to change DEPTH things, from the FROM-th on. */
static void vary (struct plan *p, const struct conf *c, int from, int depth)
{
  struct conf *d = xalloc (sizeof *d, "help");
  for (int i = from; i < CHANGES; i++) {
    *d = *c;
    if (!change (d, i)) continue;
    if (depth == 1) add (p, d);
    else vary (p, d, i + 1, depth - 1);
  }
  xfree (d);
}

/* Nothing fits on as many: the best on the least number that holds it. */
static void elsewhere (struct plan *p)
{
  struct conf *c = xalloc (sizeof *c, "help");
  struct plan *q = xalloc (sizeof *q, "help");
  struct err e = { 0 };
  *c = p->c;
  memset (c->given, 0, sizeof c->given);
  c->mesh.dp_replicate = c->mesh.dp_shard = c->mesh.pp = c->mesh.tp = 0;
  if (!plan_search (q, c, &p->m, p->least_gpus, &e) && q->choices) {
    p->choices = MIN (q->choices, 3);
    p->choice = q->choice;
    q->choice = NULL;
  }
  plan_free (q);
  xfree (q);
  xfree (c);
}

void plan_help (struct plan *p)
{
  p->least_gpus = least_gpus (p);
  for (int depth = 1; depth <= 3 && p->choices < 3; depth++) {
    int had = p->choices;
    vary (p, &p->c, 0, depth);
    if (p->choices > had) qsort (p->choice + had, (size_t) (p->choices - had), sizeof *p->choice, by_rate);
  }
  p->choices = MIN (p->choices, 3);
  if (!p->choices && p->least_gpus > p->gpus) elsewhere (p);
}

/* ---- meshes that people draw ---- */

struct drawn { const char *name; int rep, pp, tp; const char *order; enum strategy strategy; };

/* The micro-batch and the least recomputation that suit it best. */
static void best_of (struct plan *p, const struct conf *base, const struct drawn *x, int dp)
{
  struct conf *c = xalloc (sizeof *c, "others");
  struct plan_choice best = { 0 };
  bool any = false;
  for (int64_t b = 1; b <= 8; b *= 2)
    for (int mode = 0; mode < PLAN_MODES; mode++) {
      struct plan_choice o;
      struct err e = { 0 };
      *c = *base;
      c->mesh.dp_replicate = x->rep;
      c->mesh.dp_shard = dp;
      c->mesh.pp = x->pp;
      c->mesh.tp = x->tp;
      c->mesh.tp_across_nodes = true;
      snprintf (c->mesh.order, sizeof c->mesh.order, "%s", x->order);
      c->sharding.strategy = x->strategy;
      c->pipeline.schedule = SCHED_1F1B;
      c->pipeline.chunks = 1;
      c->train.micro_batch = b;
      c->recompute.mode = plan_modes[mode];
      if (plan_choose (&o, c, &p->m, p->gpus, true, &e)) continue;
      if (!any || (o.fits && !best.fits) || (o.fits && o.tokens_s > best.tokens_s) || (!o.fits && !best.fits && o.device < best.device)) best = o;
      any = true;
      if (o.fits) break;
    }
  xfree (c);
  if (!any) return;
  snprintf (best.name, sizeof best.name, "%s", x->name);
  p->other = xrealloc (p->other, (size_t) (p->others + 1) * sizeof best, "others");
  p->other[p->others++] = best;
}

void plan_others (struct plan *p, const struct conf *asked)
{
  int n = p->gpus, node = MIN (p->m.gpus, n), nodes = n / node;
  const struct drawn all[] = {
    { "FULL_SHARD over all", 1, 1, 1, "tp-pp-dp", FULL_SHARD },
    { "sharded in a node, replicas over nodes", nodes, 1, 1, "tp-pp-dp", HYBRID_SHARD },
    { "tp over a node, FULL_SHARD over nodes", 1, 1, node, "tp-pp-dp", FULL_SHARD },
    { "tp over a node, two stages", 1, 2, node, "tp-pp-dp", FULL_SHARD },
    { "a stage a node", 1, nodes, 1, "dp-tp-pp", FULL_SHARD },
    { "tp over two nodes", 1, 1, 2 * node, "tp-pp-dp", FULL_SHARD },
    { "the best, with tp over nodes", (int) p->c.mesh.dp_replicate, (int) p->c.mesh.pp, (int) p->c.mesh.tp, "dp-pp-tp", p->c.sharding.strategy },
  };
  for (int i = 0; i < LEN (all); i++) {
    const struct drawn *x = &all[i];
    int cut = x->rep * x->pp * x->tp;
    if (nodes == 1 && i != 0 && i != 2) continue;
    if (n % cut || (x->rep > 1 && x->strategy == FULL_SHARD) || (i == LEN (all) - 1 && x->tp == 1)) continue;
    best_of (p, asked, x, n / cut);
  }
}
