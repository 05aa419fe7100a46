/* pretrain doctor RUN_DIR: the rows of the trouble-shooting table, each with the figures of the run at hand. */
#include "config.h"
#include "ckpt.h"
#include "doctor.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENOUGH = 1, STEPS = 5 };   /* seconds of steps, of which shares say something; steps on either side, of which rates do */

/* ---- out of memory ---- */

static bool speaks_of_memory (const char *s)
{
  static const char *const word[] = { "for want of memory", "memory is used up", "out of memory", "out of host memory", "do not fit", "does not fit", "too many", "no memory left" };
  for (int i = 0; i < LEN (word); i++)
    if (strstr (s, word[i])) return true;
  return false;
}

/* What would make it smaller, by this configuration, the cheapest first. */
static void smaller (const struct conf *c, char *out, size_t size)
{
  const struct { bool is; const char *text; } way[] = {
    { !strcmp (c->sharding.wrap, "model"), "sharding.wrap layer (wrap model gathers the whole model at once, which takes the memory that sharding has saved)" },
    { c->sharding.strategy == NO_SHARD, "sharding.strategy FULL_SHARD (NO_SHARD keeps all of the state on each rank)" },
    { c->recompute.mode == RECOMPUTE_NONE, "recompute.mode full (activations are computed again in the backward pass and not kept)" },
    { c->train.micro_batch > 1, "half of train.micro_batch (activations halve with it; the global batch stays)" },
    { true, "more ranks, or mesh.tp and mesh.pp" } };
  out[0] = 0;
  for (int i = 0; i < LEN (way); i++)
    if (way[i].is) snprintf (out + strlen (out), size - strlen (out), "%s%s", out[0] ? "; then " : "", way[i].text);
  snprintf (out + strlen (out), size - strlen (out), ". pretrain plan says beforehand what fits");
}

static void memory (const struct past *p, struct findings *f)
{
  bool killed = past_runs (p);
  char when[64] = "before the first step";
  if (!p->end.there || (killed ? p->steps > 0 : !p->end.code || !speaks_of_memory (p->end.reason))) return;
  if (p->steps) snprintf (when, sizeof when, "after step %" PRId64, p->step[p->steps - 1].step);
  struct finding *x = finding_add (f, killed ? FINDING_NOTE : FINDING_WRONG);
  if (killed) snprintf (x->what, sizeof x->what, "there is no step yet and no word of an end: the run is starting, or it was killed before its first step, as the kernel does where memory is short (dmesg tells)");
  else snprintf (x->what, sizeof x->what, "out of memory %s: %.800s", when, p->end.reason);
  smaller (&p->c, x->remedy, sizeof x->remedy);
}

/* ---- rates ---- */

static const struct past_launch *last_launch (const struct past *p) { return p->launches ? &p->launch[p->launches - 1] : NULL; }

/* The axis for which computation of steps [from, to) waits most, and its share of the step; -1: not known. */
static int worst_axis (const struct past *p, int64_t from, int64_t to, double *share)
{
  int axis = -1;
  double most = 0, seconds = past_median (p, PAST_SECONDS, from, to);
  for (int i = PAST_AXES; i < PAST_AXES + PAST_AXIS_N; i++) {
    double s = past_median (p, i, from, to);
    if (s > most) most = s, axis = i;
  }
  *share = seconds > 0 ? most / seconds : 0;
  return axis;
}

static const char *remedy_of (int axis, bool nodes)
{
  switch (axis) {
  case PAST_TP: return nodes ? "keep tp inside of a node (mesh.tp a divisor of the ranks of a node, mesh.order tp-pp-dp) and cut over nodes by mesh.pp or dp" : "a smaller mesh.tp, and more of mesh.dp_shard or mesh.pp in its place";
  case PAST_PP: return "more micro-batches a step (a smaller train.micro_batch or a larger global_batch), a smaller mesh.pp, or pipeline.split where stages are uneven";
  case PAST_DP_SHARD: return "fewer ranks in a gather: HYBRID_SHARD (mesh.dp_shard inside of a node, mesh.dp_replicate over nodes), or mesh.tp and mesh.pp in the place of dp_shard; more work between gathers (a larger micro_batch); "
                             "sharding.reshard step, prefetch 2, reduce_dtype bf16";
  case PAST_DP_REP: return "more micro-batches a step, since replicas meet once a step; sharding.reduce_dtype bf16";
  default: return "see that no rank is slower than the others: all wait for the slowest (ranks in metrics.jsonl names it)";
  }
}

/* Do groups of an axis leave their node in launch L? */
static bool crosses (const struct past *p, const struct past_launch *l, int axis)
{
  static const enum axis of[] = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE };   /* as dim and PAST_TP ... have them */
  enum axis order[AXIS_N];
  struct err e = { 0 };
  int64_t span = 1;
  if (axis < PAST_TP || axis > PAST_DP_REP || !l || l->nodes < 2 || mesh_order (p->c.mesh.order, order, &e)) return l && l->nodes > 1;
  for (int i = 0; i < AXIS_N; i++) {
    int k = 0;
    while (of[k] != order[i]) k++;
    span *= MAX (l->dim[k], 1);
    if (k == axis - PAST_TP) break;
  }
  return span > l->ranks / l->nodes;
}

static void slower (struct findings *f, const char *a, int ranks_a, double rate_a, const char *b, int ranks_b, double rate_b, int axis, double share, bool nodes)
{
  bool falls = rate_b < rate_a;
  if (ranks_b <= ranks_a || !(rate_b / ranks_b < 0.8 * rate_a / ranks_a)) return;
  struct finding *x = finding_add (f, falls ? FINDING_WRONG : FINDING_NOTE);
  snprintf (x->what, sizeof x->what, "%s: %.0f tokens/s on %d ranks (%.200s), %.0f on %d (%.200s): %.2f of a rank's rate is left", falls ? "throughput falls with more ranks" : "throughput grows by less than the ranks",
            rate_a, ranks_a, a, rate_b, ranks_b, b, rate_b / ranks_b / (rate_a / ranks_a));
  if (axis >= 0) snprintf (x->what + strlen (x->what), sizeof x->what - strlen (x->what), "; computation waits most for %s, %.0f %% of a step%s", past_axis (axis), 100 * share, nodes ? ", and its ranks are on several nodes" : "");
  snprintf (x->remedy, sizeof x->remedy, "%s", remedy_of (axis, nodes));
}

/* Launches of one run on different numbers of ranks. */
static void launches (const struct past *p, struct findings *f)
{
  for (int i = 1; i < p->launches; i++) {
    const struct past_launch *a = &p->launch[i - 1], *b = &p->launch[i];
    int64_t end = i + 1 < p->launches ? p->launch[i + 1].first : p->steps;
    double ra = past_median (p, PAST_RATE, a->first, b->first), rb = past_median (p, PAST_RATE, b->first, end), share;
    bool up = b->ranks > a->ranks;
    if (b->first - a->first < STEPS || end - b->first < STEPS) continue;
    int axis = up ? worst_axis (p, b->first, end, &share) : worst_axis (p, a->first, b->first, &share);
    char ta[64], tb[64];
    snprintf (ta, sizeof ta, "to step %" PRId64, b->after);
    snprintf (tb, sizeof tb, "from step %" PRId64, b->after + 1);
    if (up) slower (f, ta, a->ranks, ra, tb, b->ranks, rb, axis, share, crosses (p, b, axis));
    else slower (f, tb, b->ranks, rb, ta, a->ranks, ra, axis, share, crosses (p, a, axis));
  }
}

void doctor_compare (const struct past *a, const struct past *b, struct findings *f)
{
  if (a->steps < STEPS || b->steps < STEPS) return;
  if (past_ranks (a, a->launches - 1) > past_ranks (b, b->launches - 1)) {
    const struct past *t = a;
    a = b, b = t;
  }
  int64_t from_a = a->launches ? a->launch[a->launches - 1].first : 0, from_b = b->launches ? b->launch[b->launches - 1].first : 0;
  double share;
  int axis = worst_axis (b, from_b, b->steps, &share);
  slower (f, a->name, past_ranks (a, a->launches - 1), past_median (a, PAST_RATE, from_a, a->steps), b->name, past_ranks (b, b->launches - 1), past_median (b, PAST_RATE, from_b, b->steps), axis, share,
          crosses (b, last_launch (b), axis));
}

/* ---- a checkpoint that does not load ---- */

static void checkpoints (const struct past *p, struct findings *f)
{
  int64_t good = -1;
  char path[STR + 128];
  for (int i = p->ckpts - 1; i >= 0 && good < 0; i--) {
    struct err e = { 0 };
    snprintf (path, sizeof path, "%s/checkpoints/%s", p->dir, p->ckpt[i].name);
    struct ckpt_file *c = ckpt_open (path, &e);
    if (c) good = p->ckpt[i].step;
    ckpt_close (c);
    if (c) break;
    struct finding *x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "a checkpoint does not load: %.700s", e.msg);
    snprintf (x->remedy, sizeof x->remedy, "pretrain verify %.200s says what is damaged; a FULL file (one dataset a tensor) is no checkpoint: pretrain import FILE --from full makes one of it; move what is damaged out of "
              "checkpoints/, the run then goes on from the one before it", path);
  }
  if (f->n && good >= 0 && strstr (f->list[f->n - 1].what, "checkpoint does not load"))
    snprintf (f->list[f->n - 1].remedy + strlen (f->list[f->n - 1].remedy), sizeof f->list[0].remedy - strlen (f->list[f->n - 1].remedy), " (step %" PRId64 ")", good);
  if (p->end.code && !past_runs (p) && !strcmp (p->end.phase, "load")) {
    struct finding *x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "the run ended while it loaded a checkpoint: %.700s", p->end.reason);
    snprintf (x->remedy, sizeof x->remedy, "any mesh reads any checkpoint, so the mesh is not the cause: the model, or the file, is another than this run's; pretrain verify checks the file, its head (h5dump -A) says which model it is of");
  }
}

/* ---- computation that stands still ---- */

static void waits (const struct past *p, double comm, double idle, struct findings *f)
{
  const struct past_launch *l = last_launch (p);
  double share;
  int axis = worst_axis (p, 0, p->steps, &share);
  const char *whom = axis < 0 ? "other ranks" : past_axis (axis);
  struct finding *x = finding_add (f, past_crowded (p) ? FINDING_NOTE : FINDING_WRONG);
  if (past_crowded (p)) {
    int here = (int) ceil_div (l->ranks, l->nodes);
    snprintf (x->what, sizeof x->what, "in each step ranks wait for each other, %.0f %% of the time, but %d of them share %d core%s: most of it is for a turn on a core, and says nothing of the mesh", 100 * comm, here,
              l->cores, l->cores > 1 ? "s" : "");
    snprintf (x->remedy, sizeof x->remedy, "right for a trial of a mesh; to train on CPU ranks start no more of them than there are cores");
    return;
  }
  snprintf (x->what, sizeof x->what, "in each step computation stands still for communication, %.0f %% of the time, most of it for %s (%.0f %%)%s; 30 %% is the alarm", 100 * comm, whom, 100 * share,
            l && l->cores ? "" : ": a GPU's utilisation then falls to zero periodically");
  if (isfinite (idle)) snprintf (x->what + strlen (x->what), sizeof x->what - strlen (x->what), "; NVML saw no kernel %.0f %% of the time", 100 * idle);
  snprintf (x->remedy, sizeof x->remedy, "%s", remedy_of (axis, crosses (p, l, axis)));
}

static void stalls (const struct past *p, struct findings *f)
{
  double seconds = past_median (p, PAST_SECONDS, 0, p->steps), data = past_median (p, PAST_DATA, 0, p->steps), comm = past_median (p, PAST_SHARE, 0, p->steps), idle = past_median (p, PAST_IDLE, 0, p->steps), still = 0;
  int64_t n = 0;
  if (p->steps < 3 || !(seconds * (double) p->steps > ENOUGH)) return;
  for (int64_t i = 0; i < p->steps; i++)
    if (p->step[i].v[PAST_SAVE] > 0.5 * seconds) still += p->step[i].v[PAST_SAVE], n++;
  if (comm > 0.3) waits (p, comm, idle, f);
  if (n && still > 0.05 * seconds * (double) p->steps) {
    struct finding *x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "training stands still for checkpoints: %" PRId64 " times, %.2g s each, %.0f %% of the time: utilisation falls to zero every %" PRId64 " steps", n, still / (double) n,
              100 * still / (still + seconds * (double) p->steps), p->c.run.save_every);
    snprintf (x->remedy, sizeof x->remedy, "%sa larger run.save_every, or a faster disk for run.dir (pretrain doctor under mpiexec measures it)", p->c.run.save_async ? "" : "run.save_async true writes behind training; ");
  }
  if (data > 0.2 * seconds) {
    struct finding *x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "each step waits for its data: %.0f %% of the time", 100 * data / seconds);
    snprintf (x->remedy, sizeof x->remedy, "put the token file on a local disk or in the page cache: it is mapped and read as it is used");
  }
}

/* ---- a loss that diverges ---- */

static double mean_loss (const struct past *p, int64_t from, int64_t to)
{
  double sum = 0;
  int64_t n = 0;
  for (int64_t i = from; i < to; i++)
    if (isfinite (p->step[i].v[PAST_LOSS])) sum += p->step[i].v[PAST_LOSS], n++;
  return n ? sum / (double) n : NAN;
}

static void loss (const struct past *p, struct findings *f)
{
  int64_t tenth = MAX (p->steps / 10, 1), at = 0, skipped = 0;
  double least = INFINITY, last = p->steps ? mean_loss (p, p->steps - tenth, p->steps) : NAN;
  for (int64_t i = 0; i + tenth <= p->steps; i += tenth) {
    double m = mean_loss (p, i, i + tenth);
    if (m < least) least = m, at = p->step[i + tenth - 1].step;
  }
  for (int64_t i = 0; i < p->steps; i++) skipped += (p->step[i].skipped && !p->step[i].spike) || !isfinite (p->step[i].v[PAST_LOSS]);
  bool rises = p->steps >= 10 && last > 1.15 * least + 0.1, gone = p->end.code == EXIT_DIVERGED;
  if (!rises && !gone && skipped < 3) return;
  struct finding *x = finding_add (f, FINDING_WRONG);
  if (gone) snprintf (x->what, sizeof x->what, "the loss diverges: %.600s", p->end.reason);
  else if (rises) snprintf (x->what, sizeof x->what, "the loss diverges: from %.3f around step %" PRId64 " it has risen to %.3f", least, at, last);
  else snprintf (x->what, sizeof x->what, "the loss is about to diverge: %" PRId64 " steps had values that are not finite", skipped);
  snprintf (x->what + strlen (x->what), sizeof x->what - strlen (x->what), "; peak learning rate %.3g, warm-up %lld steps, clip %.3g, %lld tokens a step", p->c.optimizer.lr, (long long) p->c.schedule.warmup,
            p->c.optimizer.clip, (long long) p->c.train.global_batch * (long long) p->c.train.seq_len);
  int64_t back = 0;
  for (int i = 0; i < p->ckpts; i++)
    if (p->ckpt[i].step <= at) back = p->ckpt[i].step;
  snprintf (x->remedy, sizeof x->remedy, "a smaller optimizer.lr (a third), %s%sa longer schedule.warmup; if train.global_batch was raised, the rate and the number of updates no longer fit it; bf16 in the place of fp8; ", p->c.optimizer.clip > 0 ? "" : "optimizer.clip 1.0 (it is off), ",
            p->c.optimizer.clip > 1.5 ? "optimizer.clip 1.0, " : "");
  if (back) snprintf (x->remedy + strlen (x->remedy), sizeof x->remedy - strlen (x->remedy), "go on from step %" PRId64 " with load.from and another run.dir", back);
  else snprintf (x->remedy + strlen (x->remedy), sizeof x->remedy - strlen (x->remedy), "start anew, with run.save_every smaller");
}

/* ---- all ---- */

/* Killed without a word after some steps. */
static void killed (const struct past *p, struct findings *f)
{
  if (!p->steps || !past_runs (p) || past_alive (p) == 1) return;
  bool sure = !past_alive (p);
  int64_t last = p->step[p->steps - 1].step, from = p->ckpts ? p->ckpt[p->ckpts - 1].step : 0;
  struct finding *x = finding_add (f, sure ? FINDING_WRONG : FINDING_NOTE);
  snprintf (x->what, sizeof x->what, "%s after step %" PRId64 " without a word, as by kill -9, no memory left (dmesg tells), or a node that is lost", sure ? "it was killed" : "if it runs no more it was killed", last);
  snprintf (x->remedy, sizeof x->remedy, "start it again by the same command: it goes on from %s%.0" PRId64 ", and does %" PRId64 " step%s again", from ? "the checkpoint of step " : "the beginning", from, MAX (last - from, 0),
            last - from == 1 ? "" : "s");
}

static void other_end (const struct past *p, struct findings *f)
{
  if (!p->end.there || past_runs (p) || !p->end.code || p->end.code == EXIT_STOPPED) return;
  for (int i = 0; i < f->n; i++)
    if (f->list[i].kind == FINDING_WRONG) return;
  struct finding *x = finding_add (f, FINDING_WRONG);
  snprintf (x->what, sizeof x->what, "ended with status %" PRId64 " on rank %" PRId64 " of host %s during %s: %.600s", p->end.code, p->end.rank, p->end.host, p->end.phase, p->end.reason);
  snprintf (x->remedy, sizeof x->remedy, "mend the cause; the same command then goes on from the newest checkpoint");
}

void doctor_run (const struct past *p, struct findings *f)
{
  memory (p, f);
  killed (p, f);
  launches (p, f);
  checkpoints (p, f);
  stalls (p, f);
  loss (p, f);
  other_end (p, f);
}

int doctor_runs (int argc, char **argv)
{
  enum { RUNS = 8 };
  struct err e = { 0 };
  int n = 0, bad = 0, code = EXIT_DONE;
  const char *rank = getenv ("PMI_RANK");
  if (rank && atoi (rank) > 0) return EXIT_DONE;   /* one process is enough */
  struct past *p = xalloc (RUNS * sizeof *p, "doctor");
  struct findings *f = xalloc (sizeof *f, "doctor");
  for (; n < argc - 1 && n < RUNS && !bad; n++) bad = past_open (&p[n], argv[n + 1], &e);
  if (bad) say (SAY_ERROR, "%s", e.msg);
  for (int i = 0; i < n && !bad; i++) {
    f->n = 0;
    doctor_run (&p[i], f);
    if (i) doctor_compare (&p[i - 1], &p[i], f);
    printf ("%s: %" PRId64 " steps, %s\n", p[i].dir, p[i].steps ? p[i].step[p[i].steps - 1].step : (int64_t) 0, past_alive (&p[i]) == 1 ? "it runs" : !past_alive (&p[i]) ? "killed" : p[i].end.there ? p[i].end.reason : "no word of its end");
    if (p[i].before.there) printf ("this is of a launch that did not come to train; the run was left as it is, its own last word: %s\n", p[i].before.reason);
    int found = finding_print (f, "nothing is wrong as far as its files tell", stdout);
    code = MAX (code, found);
  }
  for (int i = 0; i < n; i++) past_close (&p[i]);
  xfree (p);
  xfree (f);
  return bad ? e.code ? e.code : EXIT_USER : code;
}
