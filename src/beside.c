#include "config.h"
#include "beside.h"
#include "plan.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct beside {
  struct job *j;
  struct plan_stage planned;
  bool known;                          /* there is a plan of this rank */
  int64_t mem[SPACE_N][MEM_N];         /* reserved when the run was ready */
  struct group_stat was[GROUP_N], one[GROUP_N];   /* counters before the step under way; of the last clean step */
  double seconds, exposed;             /* of clean steps, the first left out */
  int64_t steps, timed, wrong;         /* clean steps; those timed; those whose bytes differed */
  struct err why;                      /* the first difference */
  double step_planned, exposed_planned;   /* rank 0 with run.machine; 0: not predicted */
};

/* ---- the plan ---- */

/* The machine as the device tells of it: limits and memory, which layouts follow, and rough speeds. */
static struct machine figures (const struct job *j)
{
  const struct dev_limits *l = j->d.ops->limits;
  struct machine m = { .gpus = j->m.local_size, .memory = (double) j->d.memory, .bandwidth = l->rate.copy, .stream = 1, .gemm = { .best = 1 }, .nvlink = l->rate.link, .pcie = l->rate.link,
    .attn = { l->rate.attn[DT_BF16], l->rate.attn[DT_BF16], 1 }, .nics = j->m.local_size, .nic_bandwidth = l->rate.link / 4, .nic_share = 1, .units = 100, .comm_slows = 1, .system = 1,
    .host_bandwidth = l->rate.copy, .host_memory = 1e18 };
  for (int t = 0; t < DT_N; t++) m.peak[t] = l->rate.gemm[t] > 0 ? l->rate.gemm[t] : l->rate.gemm[DT_BF16];
  snprintf (m.device, sizeof m.device, "%s", j->d.ops->name);
  return m;
}

bool beside_machine (const struct job *j, struct machine *m)
{
  struct err e = { 0 };
  bool named = j->c.run.machine[0] && !machine_load (m, j->c.run.machine, &e) && !strcmp (m->device, j->d.ops->name);
  if (!named) *m = figures (j);
  return named;
}

static struct group_head *head_of (const struct beside *b, int k) { return (struct group_head *) b->j->s.ch.c[k].g; }

struct beside *beside_open (struct job *j)
{
  struct beside *b = xalloc (sizeof *b, "plan of this run");
  struct machine m = figures (j);
  b->j = j;
  b->known = !plan_rank (&b->planned, &j->c, &m, &j->m.shape, j->m.rank, j->d.memory, &b->why);
  for (int s = 0; s < SPACE_N; s++)
    for (int p = 0; p < MEM_N; p++) b->mem[s][p] = j->d.mem[s].reserved[p];
  for (int s = 0; s < SPACE_N && b->known; s++)
    for (int p = 0; p < MEM_N; p++)
      if (b->mem[s][p] != b->planned.mem[s][p])
        user_err (&b->why, "%s: %lld bytes were planned, %lld are reserved", purpose_name (p), (long long) b->planned.mem[s][p], (long long) b->mem[s][p]);
  return b;
}

void beside_help (const struct job *j, struct err *e)
{
  struct machine m = figures (j);
  struct plan *p = xalloc (sizeof *p, "help");
  struct err why = { 0 };
  char more[24];
  m.outside = (double) j->d.ops->limits->outside;   /* the groups come on top */
  size_t n = strlen (e->msg), room = sizeof e->msg;
  if (!plan_make (p, &j->c, &m, j->m.size, &(struct plan_want) { .quick = true }, &why) && !p->fits) {
    plan_help (p);
    n += (size_t) snprintf (e->msg + n, room - n, "; all in all %s are too many", plan_gb ((double) p->over, more));
    for (int i = 0; i < p->choices && p->choice[i].gpus == p->gpus && n < room; i++) n += (size_t) snprintf (e->msg + n, room - n, "%s %s", i ? ", or" : "; it would fit with", p->choice[i].name);
    if (p->least_gpus > p->gpus && n < room) snprintf (e->msg + n, room - n, "; it needs %d ranks at least", p->least_gpus);
  }
  plan_free (p);
  xfree (p);
}

void beside_close (struct beside *b) { xfree (b); }

/* ---- steps ---- */

void beside_begin (struct beside *b)
{
  for (int k = 0; k < GROUP_N; k++)
    if (head_of (b, k)) b->was[k] = head_of (b, k)->stat;
}

static struct plan_line line_of (const struct beside *b, int k, int op)
{
  for (int i = 0; i < b->planned.lines; i++)
    if ((int) b->planned.line[i].group == k && (int) b->planned.line[i].op == op) return b->planned.line[i];
  return (struct plan_line) { .group = k, .op = op };
}

static bool same_bytes (struct beside *b)
{
  bool same = true;
  for (int k = 0; k < GROUP_N && b->known; k++)
    for (int op = OP_COLL_FIRST; op < OP_N; op++) {
      const struct coll_stat *is = &b->one[k].kind[op - OP_COLL_FIRST];
      struct plan_line x = line_of (b, k, op);
      if (is->calls == x.calls && is->bytes == x.bytes) continue;
      same = false;
      user_err (&b->why, "%s %s: %lld calls and %lld bytes a step were planned, %lld and %lld were sent", group_name (k), op_name (op), (long long) x.calls, (long long) x.bytes,
                (long long) is->calls, (long long) is->bytes);
    }
  return same;
}

void beside_end (struct beside *b, double seconds, bool clean)
{
  double exposed = 0;
  if (!clean) return;
  for (int k = 0; k < GROUP_N; k++)
    for (int i = 0; i < LEN (b->one[k].kind) && head_of (b, k); i++) {
      const struct coll_stat *is = &head_of (b, k)->stat.kind[i], *was = &b->was[k].kind[i];
      b->one[k].kind[i] = (struct coll_stat) { is->calls - was->calls, is->bytes - was->bytes, is->busy - was->busy, is->exposed - was->exposed };
      exposed += is->exposed - was->exposed;
    }
  b->wrong += !same_bytes (b);
  if (!b->steps++) return;   /* the first step warms up */
  b->seconds += seconds;
  b->exposed += exposed;
  b->timed++;
}

static int64_t sum_mem (const int64_t mem[SPACE_N][MEM_N])
{
  int64_t n = 0;
  for (int s = 0; s < SPACE_N; s++)
    for (int p = 0; p < MEM_N; p++) n += mem[s][p];
  return n;
}

void beside_record (const struct beside *b, struct metrics_record *m)
{
  if (!b->known) return;
  m->planned = true;
  m->planned_memory = sum_mem (b->planned.mem);
  for (int i = 0; i < b->planned.lines; i++) m->planned_bytes += b->planned.line[i].bytes;
  m->planned_agrees = !b->why.msg[0];
}

/* ---- the end ---- */

/* Times by the machine that the user named. */
static void predict (struct beside *b)
{
  struct err e = { 0 };
  const struct conf *c = &b->j->c;
  struct machine *m = xalloc (sizeof *m, "plan of this run");
  struct plan *p = xalloc (sizeof *p, "plan of this run");
  if (!machine_load (m, c->run.machine, &e) && strcmp (m->device, b->j->d.ops->name))
    say (SAY_WARN, "run.machine %s is of the device %s, this run is on %s: no time is predicted", m->name, m->device, b->j->d.ops->name);
  else if (!e.msg[0] && !plan_make (p, c, m, b->j->m.size, NULL, &e)) {
    b->step_planned = p->step;
    b->exposed_planned = p->stage[0].exposed / p->step;
  } else say (SAY_WARN, "run.machine: no time is predicted: %s", e.msg);
  plan_free (p);
  xfree (p);
  xfree (m);
}

static void row (const char *name, double planned, double is, bool exact)
{
  char a[24], c[24], note[32] = "";
  plan_gb (planned, a);
  plan_gb (is, c);
  if (exact && planned != is) snprintf (note, sizeof note, "  differs by %.0f bytes", is - planned);
  printf ("  %-34s %12s %12s%s\n", name, a, c, note);
}

static void table (const struct beside *b)
{
  const struct dev *d = &b->j->d;
  printf ("\nplan and run, rank 0%*s %12s %12s\n", 16, "", "planned", "measured");
  for (int p = 0; p < MEM_N; p++) {
    double x = 0, y = 0;
    for (int s = 0; s < SPACE_N; s++) x += (double) b->planned.mem[s][p], y += (double) b->mem[s][p];
    if (x > 0 || y > 0) row (purpose_name (p), x, y, true);
  }
  if (d->outside) row ("outside", (double) dev_outside (d, b->j->s.group_n), (double) d->outside, false);
  for (int k = 0; k < GROUP_N; k++)
    for (int op = OP_COLL_FIRST; op < OP_N; op++) {
      struct plan_line x = line_of (b, k, op);
      int64_t is = b->one[k].kind[op - OP_COLL_FIRST].bytes;
      char name[64];
      snprintf (name, sizeof name, "%s %s a step", group_name (k), op_name (op));
      if (x.bytes || is) row (name, (double) x.bytes, (double) is, true);
    }
  char planned[24] = "-", is[24] = "-", share[2][24] = { "-", "-" }, error[32] = "";
  double step = b->timed ? b->seconds / (double) b->timed : 0;
  if (b->step_planned > 0) plan_seconds (b->step_planned, planned), snprintf (share[0], sizeof share[0], "%.1f %%", 100 * b->exposed_planned);
  if (b->timed) plan_seconds (step, is);
  if (b->exposed > 0) snprintf (share[1], sizeof share[1], "%.1f %%", 100 * b->exposed / b->seconds);
  if (b->step_planned > 0 && b->timed) snprintf (error, sizeof error, "  %+.0f %%", 100 * (step / b->step_planned - 1));
  printf ("  %-34s %12s %12s%s\n", "time of a step", planned, is, error);
  if (strcmp (share[0], "-") || strcmp (share[1], "-")) printf ("  %-34s %12s %12s\n", "of it waiting for links", share[0], share[1]);
}

void beside_report (struct beside *b)
{
  struct mesh *m = &b->j->m;
  struct err e = b->why;
  if (!m->rank && b->j->c.run.machine[0]) predict (b);
  if (!m->rank && b->known) table (b);
  bool differs = mesh_agree (m, b->why.msg[0] != 0, &e);
  if (!b->steps && !differs) return;
  if (differs) say (SAY_ERROR, "plan and run differ, which is a fault of this program: %s", e.msg);
  else say (SAY_INFO, "memory of all ranks is as planned to the byte, and so are the bytes of %lld steps", (long long) b->steps);
}
