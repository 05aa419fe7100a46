#include "config.h"
#include "nvml.h"
#include "prometheus.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct prometheus {
  char path[1200], tmp[1240], run[2200];   /* run: escaped */
  int64_t steps;
  double eval_loss;                        /* the last; NaN: none yet */
  bool warned, has_ranks;
  struct metrics_ranks ranks;              /* the last */
  struct metrics_gpus gpus;
};

/* Backslash, quote and newline. */
static void escape (const char *s, char *out, size_t size)
{
  size_t n = 0;
  for (; *s && n + 3 < size; s++) {
    if (*s == '\\' || *s == '"' || *s == '\n') out[n++] = '\\';
    out[n++] = *s == '\n' ? 'n' : *s;
  }
  out[n] = 0;
}

/* ---- one family of lines ---- */

struct out { FILE *f; const struct prometheus *p; };

static void family (struct out *o, const char *name, const char *type, const char *help)
{
  fprintf (o->f, "# HELP pretrain_%s %s\n# TYPE pretrain_%s %s\n", name, help, name, type);
}

/* LABELS: more of them, each with a comma before it. */
static void sample (struct out *o, const char *name, double x, const char *fmt, ...) __attribute__ ((format (printf, 4, 5)));
static void sample (struct out *o, const char *name, double x, const char *fmt, ...)
{
  va_list ap;
  fprintf (o->f, "pretrain_%s{run=\"%s\"", name, o->p->run);
  va_start (ap, fmt);
  vfprintf (o->f, fmt, ap);
  va_end (ap);
  if (isnan (x)) fprintf (o->f, "} NaN\n");
  else if (isinf (x)) fprintf (o->f, "} %cInf\n", x > 0 ? '+' : '-');
  else fprintf (o->f, "} %.17g\n", x);
}

static void single (struct out *o, const char *name, const char *type, const char *help, double x)
{
  family (o, name, type, help);
  sample (o, name, x, "%s", "");
}

/* ---- what is told ---- */

static void training (struct out *o, const struct metrics_record *r)
{
  const struct prometheus *p = o->p;
  single (o, "step", "gauge", "Steps done.", (double) r->step);
  single (o, "steps", "gauge", "Steps at which the run ends.", (double) p->steps);
  single (o, "loss", "gauge", "Training loss of the step in nats a token.", r->loss);
  if (!isnan (p->eval_loss)) single (o, "eval_loss", "gauge", "Loss of the last validation in nats a token.", p->eval_loss);
  single (o, "grad_norm", "gauge", "Norm of the gradient before clipping.", r->grad_norm);
  single (o, "learning_rate", "gauge", "Learning rate.", r->lr);
  single (o, "tokens_total", "counter", "Tokens seen.", (double) r->tokens);
  single (o, "skipped", "gauge", "1: the gradient was not finite, the step changed nothing.", r->skipped);
  single (o, "tokens_per_second", "gauge", "Valid tokens a second in the step.", (double) r->step_tokens / r->seconds);
  single (o, "step_seconds", "gauge", "Wall time of the step.", r->seconds);
  if (r->mfu >= 0) single (o, "mfu", "gauge", "Model FLOP utilisation, 0 to 1.", r->mfu);
  single (o, "memory_bytes", "gauge", "Memory in use on the device of rank 0.", (double) r->memory);
  single (o, "record_time_seconds", "gauge", "When this was written, in Unix seconds.", (double) time (NULL));
}

static void parts (struct out *o, const struct metrics_record *r)
{
  const struct metrics_parts *p = r->parts;
  const struct { const char *name; double s; } row[] = { { "data", p->data }, { "forward", p->forward }, { "backward", p->backward }, { "optimizer", p->optimizer },
    { "exposed", p->exposed }, { "agree", p->agree }, { "other", p->other } };
  family (o, "part_seconds", "gauge", "The step's time by part, on rank 0.");
  for (int i = 0; i < LEN (row); i++) sample (o, "part_seconds", row[i].s, ",part=\"%s\"", row[i].name);
  family (o, "exposed_seconds", "gauge", "Of the step: computation waited for communication, by axis of the mesh, on rank 0.");
  for (int i = 0; i < METRICS_AXES; i++)
    if (p->axis[i].name) sample (o, "exposed_seconds", p->axis[i].seconds, ",axis=\"%s\"", p->axis[i].name);
}

static void ranks (struct out *o, const struct metrics_ranks *r)
{
  single (o, "comm_share", "gauge", "Share of a step that ranks wait for communication, mean over ranks.", r->share);
  family (o, "slowest_rank_excess", "gauge", "Work of the slowest rank beside the median of its stage, less 1.");
  sample (o, "slowest_rank_excess", r->excess, ",rank=\"%d\",host=\"%s\"", r->slowest, r->host);
}

static const struct { const char *name, *help; } gpu_row[] = {
  { "gpu_utilization", "Share of the time that a kernel ran, 0 to 1." }, { "gpu_memory_used_bytes", "Memory in use, of all processes." }, { "gpu_memory_total_bytes", "Memory." },
  { "gpu_power_watts", "Power." }, { "gpu_power_limit_watts", "Limit of the power." }, { "gpu_clock_hertz", "Clock of the multiprocessors." },
  { "gpu_clock_max_hertz", "Its highest." }, { "gpu_memory_clock_hertz", "Clock of the memory." }, { "gpu_temperature_celsius", "Temperature." },
};

static double gpu_value (const struct gpu_state *g, int row)
{
  const double x[] = { g->utilization, (double) g->memory_used, (double) g->memory_total, g->power, g->power_limit, 1e6 * g->clock, 1e6 * g->clock_max,
    1e6 * g->memory_clock, g->temperature };
  _Static_assert (LEN (x) == LEN (gpu_row), "a value for each row");
  return x[row];
}

static void gpus (struct out *o, const struct metrics_gpus *g)
{
  for (int k = 0; k < LEN (gpu_row); k++) {
    family (o, gpu_row[k].name, "gauge", gpu_row[k].help);
    for (int i = 0; i < g->n; i++) sample (o, gpu_row[k].name, gpu_value (g->gpu[i].g, k), ",rank=\"%d\",host=\"%s\"", g->gpu[i].rank, g->gpu[i].host);
  }
  family (o, "gpu_throttled", "gauge", "1: the clock is held down for this reason.");
  for (int i = 0; i < g->n; i++)
    for (int k = 0; k < NVML_REASONS; k++)
      sample (o, "gpu_throttled", (g->gpu[i].g->throttle & nvml_reason[k].bit) != 0, ",rank=\"%d\",host=\"%s\",reason=\"%s\"", g->gpu[i].rank, g->gpu[i].host, nvml_reason[k].word);
}

/* ---- the file ---- */

struct prometheus *prometheus_open (const char *path, const char *run, int64_t steps, struct err *e)
{
  struct prometheus *p = xalloc (sizeof *p, "prometheus");
  p->steps = steps;
  p->eval_loss = NAN;
  escape (run, p->run, sizeof p->run);
  snprintf (p->path, sizeof p->path, "%s", path);
  snprintf (p->tmp, sizeof p->tmp, "%s.%s.%d.tmp", path, base_host (), (int) getpid ());
  FILE *f = fopen (p->tmp, "w");
  if (f) {
    fclose (f);
    unlink (p->tmp);
    return p;
  }
  user_err (e, "run.prometheus: cannot write %s: %s", p->tmp, strerror (errno));
  xfree (p);
  return NULL;
}

void prometheus_step (struct prometheus *p, const struct metrics_record *r)
{
  struct out o = { fopen (p->tmp, "w"), p };
  if (r->has_eval) p->eval_loss = r->eval_loss;
  if (r->ranks) p->ranks = *r->ranks, p->has_ranks = true;
  if (r->gpus) p->gpus = *r->gpus;
  bool bad = !o.f;
  if (o.f) {
    training (&o, r);
    if (r->parts) parts (&o, r);
    if (p->has_ranks) ranks (&o, &p->ranks);
    if (p->gpus.n) gpus (&o, &p->gpus);
    bad = ferror (o.f);
    bad |= fclose (o.f) != 0;
  }
  if (!bad && !rename (p->tmp, p->path)) return;
  if (!p->warned) say (SAY_WARN, "%s: %s; training goes on, the file stays as it is", p->path, strerror (errno));
  p->warned = true;
  unlink (p->tmp);
}

void prometheus_close (struct prometheus *p)
{
  if (p) unlink (p->tmp);
  xfree (p);
}
