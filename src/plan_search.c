/* Searching the best plan. Candidates are all ways to cut; they are tried in the order of a guess, each with the least recomputation that fits, and timed on the sim device, until what
   is left is guessed to be slower than the best by a wide margin. Nothing here knows where an axis belongs: the figures say it. */
#include "config.h"
#include "plan_guess.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TIMED = 600, OF_A_MESH = 20, OF_A_BATCH = 5, EXACT = 6 };   /* plans timed: in all, of one mesh, of one mesh and micro-batch; planned in full */
static const double MARGIN = 1.3;   /* a guess is that much worse than it should be at most */

void plan_words (const struct conf *c, char *out, size_t size)
{
  size_t n = 0;
  char rep[32] = "", order[96] = "", re[80] = "", w[3][64];
  if (c->mesh.dp_replicate > 1) snprintf (rep, sizeof rep, "%lld x ", (long long) c->mesh.dp_replicate);
  if (strcmp (c->mesh.order, "tp-pp-dp")) snprintf (order, sizeof order, ", order %s", c->mesh.order);
  if (c->sharding.reshard != RESHARD_AUTO) snprintf (re, sizeof re, " (reshard %s)", plan_word ("sharding.reshard", c, w[0]));
  n += (size_t) snprintf (out, size, "dp %s%lld, pp %lld, tp %lld%s, %s%s, micro_batch %lld", rep, (long long) c->mesh.dp_shard, (long long) c->mesh.pp, (long long) c->mesh.tp, order,
                          plan_word ("sharding.strategy", c, w[0]), re, (long long) c->train.micro_batch);
  if (c->mesh.pp > 1 && n < size) n += (size_t) snprintf (out + n, size - n, ", %s", plan_word ("pipeline.schedule", c, w[1]));
  if (c->pipeline.chunks > 1 && n < size) n += (size_t) snprintf (out + n, size - n, " x %lld", (long long) c->pipeline.chunks);
  if (c->recompute.mode && n < size) n += (size_t) snprintf (out + n, size - n, ", recompute %s", plan_word ("recompute.mode", c, w[2]));
  if (c->sharding.grad_dtype == DT_BF16 && n < size) snprintf (out + n, size - n, ", gradients bf16");
}

/* ---- candidates ---- */

/* What a candidate says of its own; the rest is the user's. */
struct candidate { int32_t rep, shard, pp, tp, micro; int8_t order, sched, chunks, strategy, reshard, mode; double guess; };
struct list { struct candidate *at; int n, room; };

static const char *const orders[] = { "tp-pp-dp", "tp-dp-pp", "tp-dp_shard-pp-dp_replicate", "dp-tp-pp" };

static void become (struct conf *c, const struct conf *base, const struct candidate *x)
{
  *c = *base;
  c->mesh.dp_replicate = x->rep;
  c->mesh.dp_shard = x->shard;
  c->mesh.pp = x->pp;
  c->mesh.tp = x->tp;
  c->mesh.tp_across_nodes = true;
  c->train.micro_batch = x->micro;
  if (x->order >= 0) snprintf (c->mesh.order, sizeof c->mesh.order, "%s", orders[x->order]);
  c->pipeline.schedule = x->sched;
  c->pipeline.chunks = x->chunks;
  c->sharding.strategy = x->strategy;
  c->sharding.reshard = x->reshard;
  c->recompute.mode = x->mode;
}

struct want { const struct conf *c; const struct machine *m; int gpus; struct list list; struct guesses g; };

/* The same plan under two names: of those that take the same time the first, which needs the least memory. */
static int drop_equal (struct plan_choice *c, int n)
{
  int kept = 0;
  for (int i = 0; i < n; i++) {
    bool same = kept && c[i].step == c[kept - 1].step;
    if (!same) c[kept++] = c[i];
    else if (c[i].device < c[kept - 1].device) c[kept - 1] = c[i];
  }
  return kept;
}

static bool free_to (const struct want *w, const char *name) { return !conf_given (w->c, name); }

static void push (struct want *w, const struct candidate *x)
{
  struct list *l = &w->list;
  struct conf *c = xalloc (sizeof *c, "search");
  become (c, w->c, x);
  if (guess_state (c, w->gpus) + w->m->outside < w->m->memory) {
    if (l->n == l->room) l->at = xrealloc (l->at, (size_t) (l->room = 2 * l->room + 256) * sizeof *l->at, "search");
    l->at[l->n] = *x;
    l->at[l->n].guess = guess_step (&w->g, c);
    l->n += isfinite (l->at[l->n].guess) ? 1 : 0;
  }
  xfree (c);
}

/* Strategies that differ: without replicas all but HYBRID_SHARD (FULL_SHARD that lets go after the step is SHARD_GRAD_OP), with them HYBRID_SHARD. */
static void each_strategy (struct want *w, struct candidate x)
{
  static const struct { int8_t strategy, reshard; } plain[] = { { NO_SHARD, RESHARD_AUTO }, { SHARD_OPT, RESHARD_AUTO }, { SHARD_GRAD_OP, RESHARD_AUTO }, { FULL_SHARD, RESHARD_FORWARD },
    { FULL_SHARD, RESHARD_BACKWARD } }, hybrid[] = { { HYBRID_SHARD, RESHARD_FORWARD }, { HYBRID_SHARD, RESHARD_BACKWARD }, { HYBRID_SHARD, RESHARD_STEP } };
  int n = x.rep > 1 ? LEN (hybrid) : LEN (plain);
  for (int i = 0; i < n; i++) {
    x.strategy = x.rep > 1 ? hybrid[i].strategy : plain[i].strategy;
    x.reshard = x.rep > 1 ? hybrid[i].reshard : plain[i].reshard;
    if (!free_to (w, "sharding.strategy") && x.strategy != (int) w->c->sharding.strategy) continue;
    if (!free_to (w, "sharding.reshard")) x.reshard = (int8_t) w->c->sharding.reshard;
    if (x.shard == 1 && x.rep == 1 && i) break;                              /* one data rank: all strategies are the same */
    x.mode = (int8_t) (free_to (w, "recompute.mode") ? RECOMPUTE_NONE : (int) w->c->recompute.mode);
    push (w, &x);
  }
}

static void each_schedule (struct want *w, struct candidate x, int64_t mbs)
{
  static const struct { int8_t sched, chunks; } row[] = { { SCHED_1F1B, 1 }, { SCHED_INTERLEAVED, 2 }, { SCHED_INTERLEAVED, 4 }, { SCHED_ZBH1, 1 } };
  if (x.pp == 1 || !free_to (w, "pipeline.schedule")) {
    x.sched = (int8_t) (x.pp == 1 ? SCHED_1F1B : (int) w->c->pipeline.schedule);
    x.chunks = (int8_t) (x.pp == 1 ? 1 : w->c->pipeline.chunks);
    each_strategy (w, x);
    return;
  }
  for (int i = 0; i < LEN (row); i++) {
    if (row[i].sched == SCHED_INTERLEAVED && (mbs % x.pp || w->c->arch.layers < row[i].chunks * x.pp)) continue;
    x.sched = row[i].sched;
    x.chunks = row[i].chunks;
    each_strategy (w, x);
  }
}

static void each_order (struct want *w, struct candidate x, int64_t mbs)
{
  for (int i = 0; i < LEN (orders); i++) {
    bool dp = x.rep * x.shard > 1;
    if (i && w->gpus <= w->m->gpus) return;   /* one node: all orders are the same */
    if ((i == 1 && !(dp && x.pp > 1)) || (i == 2 && !(x.rep > 1 && x.shard > 1 && x.pp > 1)) || (i == 3 && !(dp && x.tp > 1))) continue;
    x.order = (int8_t) (free_to (w, "mesh.order") ? i : -1);
    each_schedule (w, x, mbs);
    if (x.order < 0) return;
  }
}

static void each_batch (struct want *w, struct candidate x)
{
  int64_t dp = (int64_t) x.rep * x.shard, all = w->c->train.global_batch;
  for (int64_t b = 1; b <= 16; b *= 2) {
    x.micro = (int32_t) (free_to (w, "train.micro_batch") ? b : w->c->train.micro_batch);
    if (all % (x.micro * dp) == 0 && x.micro * w->c->train.seq_len % x.tp == 0) each_order (w, x, all / (x.micro * dp));
    if (!free_to (w, "train.micro_batch")) return;
  }
}

static bool may (int64_t said, int64_t n) { return !said || said == n; }

static void each_mesh (struct want *w)
{
  const struct conf *c = w->c;
  struct err e;
  for (int tp = 1; tp <= MIN (w->gpus, 2 * w->m->gpus); tp++) {
    e = (struct err) { 0 };
    if (w->gpus % tp || !may (c->mesh.tp, tp) || arch_check_tp (&c->arch, tp, &e)) continue;
    for (int pp = 1; pp <= MIN (w->gpus / tp, (int) MIN (c->arch.layers, 128)); pp++) {
      if (w->gpus / tp % pp || !may (c->mesh.pp, pp)) continue;
      int dp = w->gpus / tp / pp;
      for (int rep = 1; rep <= dp; rep++)
        if (dp % rep == 0 && may (c->mesh.dp_replicate, rep) && may (c->mesh.dp_shard, dp / rep) && (rep == 1 || dp / rep > 1))
          each_batch (w, (struct candidate) { .rep = rep, .shard = dp / rep, .pp = pp, .tp = tp });
    }
  }
}

/* ---- trying them ---- */

static int by_guess (const void *a, const void *b)
{
  const struct candidate *x = a, *y = b;
  if (x->guess != y->guess) return x->guess < y->guess ? -1 : 1;
  return memcmp (x, y, offsetof (struct candidate, guess));
}

static int by_rate (const void *a, const void *b)
{
  const struct plan_choice *x = a, *y = b;
  if (x->tokens_s != y->tokens_s) return x->tokens_s > y->tokens_s ? -1 : 1;
  return strcmp (x->text, y->text);
}

static bool same_mesh (const struct candidate *a, const struct candidate *b)
{
  return a->rep == b->rep && a->shard == b->shard && a->pp == b->pp && a->tp == b->tp && a->order == b->order;
}

const int plan_modes[PLAN_MODES] = { RECOMPUTE_NONE, RECOMPUTE_AUTO, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };

/* The first recomputation of plan_modes that fits. 1, 0: none does, -1: impossible. */
static int least_mode (const struct want *w, struct candidate *x, struct conf *c, struct plan_choice *o)
{
  int rc = -1;
  for (int i = 0; i < PLAN_MODES; i++) {
    struct err e = { 0 };
    if (free_to (w, "recompute.mode")) x->mode = (int8_t) plan_modes[i];
    become (c, w->c, x);
    if (!plan_choose (o, c, w->m, w->gpus, true, &e)) rc = o->fits;
    if (rc > 0 || !free_to (w, "recompute.mode")) break;
  }
  return rc;
}

/* Into the plan's list, the best first; the list grows as wanted. */
static void try_all (struct want *w, struct plan *p, struct plan_choice **got, int *n)
{
  struct conf *c = xalloc (sizeof *c, "search");
  struct candidate *timed = xalloc ((size_t) TIMED * sizeof *timed, "search");
  double best = INFINITY;
  qsort (w->list.at, (size_t) w->list.n, sizeof *w->list.at, by_guess);
  for (int i = 0; i < w->list.n && *n < TIMED; i++) {
    struct candidate *x = &w->list.at[i];
    int alike = 0, twins = 0;
    if (x->guess > MARGIN * best) break;
    for (int k = 0; k < *n; k++) alike += same_mesh (&timed[k], x), twins += same_mesh (&timed[k], x) && timed[k].micro == x->micro && timed[k].sched == x->sched && timed[k].chunks == x->chunks;
    if (alike >= OF_A_MESH || twins >= OF_A_BATCH) continue;
    int fits = least_mode (w, x, c, &(*got)[*n]);
    p->too_big += fits == 0;
    p->refused += fits < 0;
    if (fits <= 0) continue;
    best = MIN (best, (*got)[*n].step);
    timed[(*n)++] = *x;
  }
  xfree (timed);
  xfree (c);
}

int plan_search (struct plan *p, const struct conf *c, const struct machine *m, int gpus, struct err *e)
{
  struct want w = { .c = c, .m = m, .gpus = gpus };
  struct plan_choice *got = xalloc (TIMED * sizeof *got, "search");
  struct plan found = { 0 };
  int n = 0;
  guess_open (&w.g, c, m, gpus);
  each_mesh (&w);
  int all = w.list.n;
  try_all (&w, &found, &got, &n);
  int tried = n;
  qsort (got, (size_t) n, sizeof *got, by_rate);
  n = drop_equal (got, n);
  int exact = 0, good = 0;
  for (; exact < n && good < EXACT; exact++) {
    struct conf same = got[exact].c;
    if (plan_choose (&got[exact], &same, m, gpus, false, e)) die ("%s", e->msg);
    if (!got[exact].fits) got[exact].tokens_s = 0;   /* the quick look saw one rank of a stage */
    good += got[exact].fits;
  }
  qsort (got, (size_t) exact, sizeof *got, by_rate);
  int bad = exact - good;
  memmove (got + good, got + exact, (size_t) (n - exact) * sizeof *got);
  n -= bad;
  xfree (w.list.at);
  guess_close (&w.g);
  int rc;
  if (n) rc = plan_make (p, &got[0].c, m, gpus, NULL, e);
  else rc = plan_make (p, c, m, gpus, NULL, e);
  p->tried = tried;
  p->too_big = found.too_big;
  p->refused = found.refused;
  if (n) p->choice = got, p->choices = MIN (n, PLAN_RANKED);
  else xfree (got);
  if (!n && !rc && !all) plan_note (p, "the state alone is more than %d GPUs have, however it is cut: no mesh was tried", gpus);
  else if (!n && !rc) plan_note (p, "none of the %d ways to cut the model over %d GPUs that were looked at fits", all, gpus);
  return rc;
}
