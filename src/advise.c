#include "config.h"
#include "advise.h"
#include "beside.h"
#include "machine.h"
#include "plan.h"
#include "sim.h"
#include <stdio.h>
#include <string.h>

static const double SHARE = 0.3, EXCESS = 0.2, SECONDS = 1, GAIN = 0.95;
enum { AGAIN = 2, DIPS = 3, WORDS = 400 };

static size_t append (char *out, size_t n, const char *fmt, ...) __attribute__ ((format (printf, 3, 4)));
static size_t append (char *out, size_t n, const char *fmt, ...)
{
  va_list ap;
  if (n >= WORDS) return n;
  va_start (ap, fmt);
  n += (size_t) vsnprintf (out + n, WORDS - n, fmt, ap);
  va_end (ap);
  return n;
}

static int largest (const double v[METRICS_AXES])
{
  int most = 0;
  for (int i = 1; i < METRICS_AXES; i++)
    if (v[i] > v[most]) most = i;
  return most;
}

/* ---- communication ---- */

/* "tp, 2 ranks of one node, on NVLink" */
static void place_text (const struct job *j, const struct machine *m, bool named, int axis, char out[WORDS])
{
  static const enum group_kind kind[METRICS_AXES] = { [AXIS_TP] = GROUP_TP, [AXIS_PP] = GROUP_F_OUT, [AXIS_DP_SHARD] = GROUP_SHARD, [AXIS_DP_REPLICATE] = GROUP_REP,
    [AXIS_N] = GROUP_WORLD };
  enum group_kind k = axis == AXIS_PP && !j->s.ch.c[GROUP_F_OUT].g ? GROUP_F_IN : kind[axis];
  struct sim_where w = sim_place (&j->m, k);
  const char *link = w.nodes > 1 ? "the network between nodes" : j->gpus[0] ? "the links inside a node" : "the memory of a node";
  if (named) link = machine_link (m, w.nodes > 1);
  if (w.nodes > 1) snprintf (out, WORDS, "%s, %d ranks on %d nodes, waits for %s", account_axis (axis), w.n, w.nodes, link);
  else snprintf (out, WORDS, "%s, %d ranks of one node, waits for %s", account_axis (axis), w.n, link);
}

/* Half of one axis to another. False: they cannot. */
static bool move (struct conf *c, int from, int to)
{
  int64_t *const dim[AXIS_N] = { [AXIS_TP] = &c->mesh.tp, [AXIS_PP] = &c->mesh.pp, [AXIS_DP_SHARD] = &c->mesh.dp_shard, [AXIS_DP_REPLICATE] = &c->mesh.dp_replicate };
  if (from == to || *dim[from] % 2) return false;
  *dim[from] /= 2;
  *dim[to] *= 2;
  if (c->sharding.strategy == FULL_SHARD && c->mesh.dp_replicate > 1) c->sharding.strategy = HYBRID_SHARD;
  if (c->sharding.strategy == HYBRID_SHARD && c->mesh.dp_replicate == 1) c->sharding.strategy = FULL_SHARD;
  if (c->sharding.strategy == HYBRID_SHARD && c->mesh.dp_shard == 1) return false;   /* nothing to shard over */
  return c->mesh.dp_replicate == 1 || c->sharding.strategy == HYBRID_SHARD || c->sharding.strategy == NO_SHARD;
}

enum { MOVES = AXIS_N * AXIS_N, OTHERS = 5, CHANGES = MOVES + OTHERS };

/* The I-th neighbour of C. */
static bool change (struct conf *c, int i)
{
  if (i < MOVES) return move (c, i / AXIS_N, i % AXIS_N);
  bool sharded = c->sharding.strategy == FULL_SHARD && c->mesh.dp_shard > 1;
  switch (i - MOVES) {
  case 0: c->sharding.strategy = SHARD_GRAD_OP; return sharded;
  case 1: c->sharding.strategy = SHARD_OPT; return sharded;
  case 2: c->sharding.strategy = NO_SHARD; return sharded;
  case 3: c->train.micro_batch *= 2; return true;
  default: c->run.overlap = true; return true;
  }
}

/* Options of B that A has otherwise. */
static void options (const struct conf *a, const struct conf *b, char out[WORDS])
{
  static const char *const name[] = { "mesh.dp_replicate", "mesh.dp_shard", "mesh.pp", "mesh.tp", "train.micro_batch" };
  const int64_t x[] = { a->mesh.dp_replicate, a->mesh.dp_shard, a->mesh.pp, a->mesh.tp, a->train.micro_batch };
  const int64_t y[] = { b->mesh.dp_replicate, b->mesh.dp_shard, b->mesh.pp, b->mesh.tp, b->train.micro_batch };
  char word[64];
  size_t n = 0;
  for (int i = 0; i < LEN (name); i++)
    if (x[i] != y[i]) n = append (out, n, "%s--%s %lld", n ? " " : "", name[i], (long long) y[i]);
  if (a->sharding.strategy != b->sharding.strategy) n = append (out, n, "%s--sharding.strategy %s", n ? " " : "", plan_word ("sharding.strategy", b, word));
  if (a->run.overlap != b->run.overlap) append (out, n, "%s--run.overlap true", n ? " " : "");
}

/* What the planner would change: the best of the settings one change away, by its share of the time that it predicts for this one. */
static void better (const struct job *j, const struct machine *m, char out[WORDS])
{
  struct plan_choice *o = xalloc (sizeof *o, "advice");
  struct conf *c = xalloc (sizeof *c, "advice"), *best = xalloc (sizeof *best, "advice");
  double now_ = 0, least = 1e30;
  int tried = 0;
  struct err e = { 0 };
  if (!plan_choose (o, &j->c, m, j->m.size, true, &e)) now_ = o->step;
  for (int i = 0; i < CHANGES && now_ > 0; i++) {
    *c = j->c;
    e = (struct err) { 0 };
    if (!change (c, i) || !conf_differ (&j->c, c, out, WORDS) || plan_choose (o, c, m, j->m.size, true, &e)) continue;
    tried++;
    if (!o->fits || o->step >= least || (o->c.mesh.tp_across_nodes && !j->c.mesh.tp_across_nodes)) continue;
    least = o->step;
    *best = *c;
  }
  if (least < GAIN * now_) {
    char words[WORDS] = "";
    options (&j->c, best, words);
    snprintf (out, WORDS, "the planner would take %.300s, %.2f of the time a step", words, least / now_);
  } else snprintf (out, WORDS, "the planner finds none of %d neighbouring meshes and settings faster", tried);
  xfree (best);
  xfree (c);
  xfree (o);
}

static bool crowded (const struct job *j) { return !j->gpus[0] && j->m.local_size > wait_cores (j->m.local_size); }

static void communication (const struct job *j, const struct metrics_ranks *r)
{
  double share[METRICS_AXES];
  char list[WORDS] = "", place[WORDS], plan[WORDS];
  size_t n = 0;
  for (int i = 0; i < METRICS_AXES; i++) share[i] = r->axis[i].seconds / r->seconds;
  for (int i = 0; i < METRICS_AXES; i++)
    if (share[i] >= 0.005) n = append (list, n, "%s%s %.0f %%", n ? ", " : "", account_axis (i), 100 * share[i]);
  if (crowded (j)) {
    int cores = wait_cores (j->m.local_size);
    say (SAY_INFO, "ranks wait %.0f %% of a step for each other (%s): %d ranks share %d core%s, so most of it is for a turn on a core", 100 * r->share, list, j->m.local_size,
         cores, cores == 1 ? "" : "s");
    return;
  }
  struct machine *m = xalloc (sizeof *m, "advice");
  bool named = beside_machine (j, m);
  place_text (j, m, named, largest (share), place);
  better (j, m, plan);
  say (SAY_WARN, "communication takes %.0f %% of a step, over 30 %% (%s): %s; %s%s", 100 * r->share, list, place, plan,
       named ? "" : " (by rough figures: run.machine names better ones)");
  xfree (m);
}

/* ---- ranks ---- */

static void straggler (struct advised *x, const struct metrics_ranks *r)
{
  x->times = r->excess <= EXCESS ? 0 : r->slowest == x->slow ? x->times + 1 : 1;
  x->slow = r->slowest;
  if (x->times < AGAIN || x->straggler) return;
  x->straggler = true;
  say (SAY_WARN, "rank %d on %s is slower than the others: its own work takes %.3g s a step, the median of its stage %.3g s, and all wait for it",
       r->slowest, r->host, r->work, r->median);
}

/* Why a GPU stands still in each step. */
static void idle (struct advised *x, const struct account_rank *a, int rank)
{
  const struct gpu_state *g = &a->gpu;
  double waits = 0;
  char most[64] = "";
  if (g->dips < DIPS || g->idle < 0.1 || a->seconds <= 0) return;
  for (int i = 0; i < METRICS_AXES; i++) waits += a->exposed[i];
  if (waits > 0.01 * a->seconds) snprintf (most, sizeof most, ", most of it %s", account_axis (largest (a->exposed)));
  x->idle = true;
  say (SAY_WARN, "the GPU of rank %d on %s stands still %.0f %% of the time, every %.2g s (a step takes %.2g s): of a step %.0f %% is waiting for communication%s, "
       "%.0f %% for data, %.0f %% host time", rank, a->host, 100 * g->idle, g->seconds / g->dips, a->seconds, 100 * waits / a->seconds, most,
       100 * a->data / a->seconds, 100 * a->other / a->seconds);
}

void advise (struct advised *x, const struct job *j, const struct account *a)
{
  const struct metrics_ranks *all;
  const struct account_rank *r = account_ranks (a, &all);
  if (!r || all->seconds * (double) all->steps < SECONDS) return;
  straggler (x, all);
  for (int i = 0; i < j->m.size && !x->idle; i++)
    if (r[i].has_gpu) idle (x, &r[i], i);
  if (x->communication || all->share <= SHARE) return;
  x->communication = true;
  communication (j, all);
}
