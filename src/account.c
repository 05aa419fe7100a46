#include "config.h"
#include "account.h"
#include "machine.h"
#include "plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_AXIS = AXIS_N, AXES = METRICS_AXES };
_Static_assert (AXES == AXIS_N + 1, "the axes, and what concerns all ranks");

struct account {
  struct job *j;
  double at, lap[LAP_N];                   /* of the last lap; seconds of each kind in this step (EVAL, SAVE: since the last record) */
  struct phase_stat was[PHASE_N];
  double exposed_was[AXES];
  struct metrics_parts parts;
  struct account_rank sum;                       /* since the last comparison */
  int64_t steps;
  bool warm;                               /* the first step of a launch is over: it is no measure */
  double peak;                             /* FLOP/s of a rank's device, 0: not known */
  char gpu[128];                           /* what has it */
  /* rank 0 */
  struct account_rank *all;                      /* [size] */
  struct metrics_gpu *gpus;                /* [size] */
  struct metrics_ranks ranks;
  struct metrics_gpus with;
  bool compared;
};

static int axis_of (enum group_kind k)
{
  switch (k) {
  case GROUP_SHARD: return AXIS_DP_SHARD;
  case GROUP_REP: return AXIS_DP_REPLICATE;
  case GROUP_TP: case GROUP_KV: return AXIS_TP;
  case GROUP_WORLD: return WORLD_AXIS;
  default: return AXIS_PP;
  }
}

const char *account_axis (int i) { return i == WORLD_AXIS ? "world" : axis_table[i].name; }

/* ---- MFU ---- */

/* GPUs that share/machines describes, by the driver's names. The same chip in a smaller card has another peak and is not named here. */
static const struct { const char *driver, *machine; } card[] = { { "NVIDIA H200", "h200" }, { "NVIDIA H100 80GB HBM3", "h100-sxm" }, { "NVIDIA B200", "b200" },
  { "NVIDIA A100-SXM4-80GB", "a100-80g" }, { "NVIDIA A100-SXM4-40GB", "a100-80g" } };

/* By run.machine where it is given for this device, else by the GPU's name. */
static void find_peak (struct account *a)
{
  const struct conf *c = &a->j->c;
  const char *name = c->run.machine;
  struct machine *m = xalloc (sizeof *m, "machine");
  for (int i = 0; i < LEN (card) && !name[0]; i++)
    if (!strcmp (a->j->d.name, card[i].driver)) name = card[i].machine;
  if (name[0] && !machine_load (m, name, NULL) && !strcmp (m->device, a->j->d.ops->name)) {
    a->peak = machine_peak (m, c->train.dtype);
    snprintf (a->gpu, sizeof a->gpu, "%s", m->gpu);
  }
  xfree (m);
}

void account_say (const struct account *a)
{
  const struct conf *c = &a->j->c;
  if (a->peak > 0)
    say (SAY_INFO, "MFU: %.4g FLOP a token (6 N + 6 L d T: N without the lookup table, causal attention) against %.4g TFLOP/s of %s on each rank%s",
         arch_flops_token (&c->arch, c->train.seq_len), a->peak / 1e12, a->gpu, a->j->d.conf.deterministic ? ", deterministic" : "");
}

/* ---- a rank's own time ---- */

struct account *account_open (struct job *j)
{
  struct account *a = xalloc (sizeof *a, "account");
  a->j = j;
  a->at = now ();
  if (!j->m.rank) {
    a->all = xalloc ((size_t) j->m.size * sizeof *a->all, "account");
    a->gpus = xalloc ((size_t) j->m.size * sizeof *a->gpus, "account");
    find_peak (a);
  }
  return a;
}

void account_close (struct account *a)
{
  if (!a) return;
  xfree (a->all);
  xfree (a->gpus);
  xfree (a);
}

void account_lap (struct account *a, enum lap what)
{
  double t = now ();
  a->lap[what] += t - a->at;
  a->at = t;
}

static void exposed_now (const struct account *a, double sum[AXES])
{
  memset (sum, 0, AXES * sizeof *sum);
  for (int k = 0; k < GROUP_N; k++) {
    const struct group_head *g = (const struct group_head *) a->j->s.ch.c[k].g;
    for (int i = 0; g && i < LEN (g->stat.kind); i++) sum[axis_of (k)] += g->stat.kind[i].exposed;
  }
}

void account_begin (struct account *a)
{
  account_lap (a, LAP_NONE);
  a->lap[LAP_DATA] = a->lap[LAP_STEP] = a->lap[LAP_AGREE] = 0;
  memcpy (a->was, a->j->d.phase, sizeof a->was);
  exposed_now (a, a->exposed_was);
}

static double own (const struct account *a, enum step_phase p)
{
  const struct phase_stat *is = &a->j->d.phase[p], *was = &a->was[p];
  return MAX (is->seconds - was->seconds - (is->waited - was->waited), 0);
}

static void axes (struct account *a)
{
  struct metrics_parts *p = &a->parts;
  double is[AXES];
  exposed_now (a, is);
  for (int i = 0; i < AXES; i++) p->axis[i] = (struct metrics_axis) { NULL, is[i] - a->exposed_was[i] };
  for (int k = 0; k < GROUP_N; k++)
    if (a->j->s.ch.c[k].g) p->axis[axis_of (k)].name = account_axis (axis_of (k));
  for (int i = 0; i < AXES; i++) p->exposed += p->axis[i].seconds;
}

/* The first step of a launch is warm-up and is kept out of what ranks are compared by. */
static void add (struct account *a, double seconds)
{
  const struct metrics_parts *p = &a->parts;
  if (!a->warm) {
    a->warm = true;
    return;
  }
  a->sum.data += p->data;
  a->sum.other += p->other;
  a->sum.work += p->data + p->forward + p->backward + p->optimizer;
  a->sum.seconds += seconds;
  for (int i = 0; i < AXES; i++) a->sum.exposed[i] += p->axis[i].seconds;
  a->steps++;
}

void account_end (struct account *a, double seconds)
{
  struct metrics_parts *p = &a->parts;
  *p = (struct metrics_parts) { .data = a->lap[LAP_DATA], .agree = a->lap[LAP_AGREE],
    .forward = own (a, PHASE_FORWARD), .backward = own (a, PHASE_BACKWARD), .optimizer = own (a, PHASE_OPTIMIZER) };
  axes (a);
  p->other = MAX (seconds - p->data - p->forward - p->backward - p->optimizer - p->exposed - p->agree, 0);
  a->compared = false;
  add (a, seconds);
}

/* ---- the ranks ---- */

static int by_value (const void *x, const void *y) { return (*(const double *) x > *(const double *) y) - (*(const double *) x < *(const double *) y); }

/* Median of the work of the ranks of a stage; of two the lower, so that of two ranks the slower can stand out. */
static double median (const struct account *a, int stage)
{
  const struct mesh *m = &a->j->m;
  double *w = xalloc ((size_t) m->size * sizeof *w, "account");
  int n = 0, coord[AXIS_N];
  for (int r = 0; r < m->size; r++) {
    mesh_coord (&m->shape, r, coord);
    if (coord[AXIS_PP] == stage) w[n++] = a->all[r].work;
  }
  qsort (w, (size_t) n, sizeof *w, by_value);
  double mid = w[(n - 1) / 2];
  xfree (w);
  return mid;
}

static void slowest (struct account *a)
{
  const struct mesh *m = &a->j->m;
  struct metrics_ranks *x = &a->ranks;
  double mid[m->shape.dim[AXIS_PP]];
  for (int s = 0; s < m->shape.dim[AXIS_PP]; s++) mid[s] = median (a, s);
  x->excess = -1;
  for (int r = 0; r < m->size; r++) {
    int coord[AXIS_N];
    mesh_coord (&m->shape, r, coord);
    double base = mid[coord[AXIS_PP]], excess = base > 0 ? a->all[r].work / base - 1 : 0;
    if (excess <= x->excess) continue;
    x->excess = excess;
    x->slowest = r;
    x->work = a->all[r].work;
    x->median = base;
  }
  snprintf (x->host, sizeof x->host, "%s", a->all[x->slowest].host);
}

static void shares (struct account *a)
{
  struct metrics_ranks *x = &a->ranks;
  int n = a->j->m.size;
  x->share = 0;
  for (int i = 0; i < AXES; i++) {
    x->axis[i] = (struct metrics_axis) { a->parts.axis[i].name, 0 };
    for (int r = 0; r < n; r++) x->axis[i].seconds += a->all[r].exposed[i] / n;
    if (x->axis[i].seconds > 0) x->axis[i].name = account_axis (i);   /* another rank may have a group that rank 0 has not */
    for (int r = 0; r < n; r++) x->share += a->all[r].seconds > 0 ? a->all[r].exposed[i] / a->all[r].seconds / n : 0;
  }
}

void account_share (struct account *a, const struct gpu_state *gpu)
{
  struct mesh *m = &a->j->m;
  struct account_rank mine = a->sum;
  double n = (double) MAX (a->steps, 1);
  MPI_Request q;
  if (!a->steps) return;   /* on all ranks alike */
  mine.work /= n;
  mine.data /= n;
  mine.other /= n;
  mine.seconds /= n;
  for (int i = 0; i < AXES; i++) mine.exposed[i] /= n;
  snprintf (mine.host, sizeof mine.host, "%.31s", base_host ());
  if ((mine.has_gpu = gpu != NULL)) mine.gpu = *gpu;
  MPI_Igather (&mine, sizeof mine, MPI_BYTE, a->all, sizeof mine, MPI_BYTE, 0, m->world, &q);
  wait_all (1, &q);
  a->ranks.steps = a->steps;
  a->ranks.seconds = mine.seconds;
  a->steps = 0;
  a->sum = (struct account_rank) { 0 };
  if (m->rank) return;
  slowest (a);
  shares (a);
  a->with = (struct metrics_gpus) { .gpu = a->gpus };
  for (int r = 0; r < m->size; r++) {
    struct metrics_gpu *g = &a->gpus[a->with.n];
    if (!a->all[r].has_gpu) continue;
    *g = (struct metrics_gpu) { .rank = r, .g = &a->all[r].gpu };
    memcpy (g->host, a->all[r].host, sizeof g->host);
    a->with.n++;
  }
  a->compared = true;
}

const struct account_rank *account_ranks (const struct account *a, const struct metrics_ranks **all)
{
  *all = &a->ranks;
  return a->compared ? a->all : NULL;
}

void account_record (struct account *a, struct metrics_record *m)
{
  const struct conf *c = &a->j->c;
  const struct dev *d = &a->j->d;
  a->parts.eval = a->lap[LAP_EVAL];
  a->parts.save = a->lap[LAP_SAVE];
  a->lap[LAP_EVAL] = a->lap[LAP_SAVE] = 0;
  m->parts = &a->parts;
  m->ranks = a->compared ? &a->ranks : NULL;
  m->gpus = a->compared && a->with.n ? &a->with : NULL;
  m->memory = dev_reserved (d) + d->outside;
  if (a->peak > 0) m->mfu = (double) m->step_tokens / m->seconds * arch_flops_token (&c->arch, c->train.seq_len) / a->j->m.size / a->peak;
}
