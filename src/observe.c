#include "config.h"
#include "advise.h"
#include "nvml.h"
#include "observe.h"
#include "profile.h"
#include "prometheus.h"
#include "tensorboard.h"
#include "terminal.h"
#include <string.h>
#include <time.h>

struct observer {
  struct job *j;
  struct metrics *metrics;
  struct tensorboard *board;      /* rank 0; NULL: none */
  struct prometheus *prometheus;  /* the same */
  struct beside *beside;
  struct account *account;
  struct advised advised;         /* what was said already */
  struct profile *profile;        /* NULL: none is asked for */
  int64_t step, after;       /* after: the step that this launch goes on from */
  bool told;                 /* what this launch is */
  struct metrics_spike spike;   /* for the next record; action NULL: none */
  double began, cpu_began, seconds, cpu;   /* of the step: when, how long; processor time alike */
};

/* Processor time of this rank so far. */
static double cpu_now (void)
{
  struct timespec t;
  clock_gettime (CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static bool run_prometheus (const struct conf *c, char *path, size_t size)
{
  const char *file = c->run.prometheus;
  if (strchr (file, '/')) snprintf (path, size, "%s", file);
  else snprintf (path, size, "%s/%s", c->run.dir, file);
  return file[0] != 0;
}

/* Each rank watches its own GPU; where NVML is not to be had nothing is told of GPUs. */
static void watch_gpu (const struct job *j)
{
  struct err why = { 0 };
  const char *pci = j->c.debug.gpu[0] ? j->c.debug.gpu : j->d.id;
  if (pci[0] && nvml_open (pci, &why)) say (SAY_INFO, "%s; nothing is told of the state of GPUs", why.msg);
}

/* Rank 0's files; first what the user may have named wrong: a launch that is refused cuts off no records. */
static int open_files (struct observer *o, int64_t step, struct err *e)
{
  const struct conf *c = &o->j->c;
  char path[2 * STR];
  bool root = !o->j->m.rank;
  if (root && run_prometheus (c, path, sizeof path) && !(o->prometheus = prometheus_open (path, c->run.dir, c->train.steps, e))) return -1;
  if (!(o->metrics = metrics_open (c->run.dir, step, c->train.steps, c->run.log_every, e))) return -1;
  if (root && c->run.progress != PROGRESS_LOG) {
    int width = terminal_width ();
    metrics_terminal (o->metrics, width || c->run.progress == PROGRESS_AUTO ? width : 80);
  }
  return root && c->run.tensorboard && !(o->board = tensorboard_open (c->run.dir, step + 1, e)) ? -1 : 0;
}

struct observer *observe_open (struct job *j, int64_t step, struct err *e)
{
  struct observer *o = xalloc (sizeof *o, "observer");
  *o = (struct observer) { .j = j, .account = account_open (j), .profile = profile_open (j), .step = step, .after = step };
  watch_gpu (j);
  if (!open_files (o, step, e)) return o;
  observe_close (o);
  return NULL;
}

void observe_plan (struct observer *o)
{
  o->beside = beside_open (o->j);
  account_say (o->account);
}

void observe_close (struct observer *o)
{
  if (!o) return;
  nvml_close ();
  say_progress (NULL, 0);
  metrics_close (o->metrics);
  tensorboard_close (o->board);
  prometheus_close (o->prometheus);
  beside_close (o->beside);
  account_close (o->account);
  profile_close (o->profile);
  xfree (o);
}

/* ---- a step ---- */

void observe_begin (struct observer *o)
{
  profile_begin (o->profile, o->step + 1);
  o->began = now ();
  o->cpu_began = cpu_now ();
  account_begin (o->account);
}

void observe_lap (struct observer *o, enum lap what)
{
  account_lap (o->account, what);
  profile_lap (o->profile, what);
}

void observe_train (struct observer *o)
{
  observe_lap (o, LAP_DATA);
  beside_begin (o->beside);
}

/* Everything has run once: what is in use beside the arenas is known. */
static void measure_outside (struct dev *d)
{
  char a[24], b[24], c[24];
  dev_measure (d);
  bytes_text (dev_reserved (d), a);
  bytes_text (d->outside, b);
  bytes_text (d->memory, c);
  say (SAY_INFO, "memory in use: %s in arenas, %s outside of them, of %s", a, b, c);
}

void observe_end (struct observer *o, int64_t step, bool clean)
{
  observe_lap (o, LAP_AGREE);
  o->step = step;
  o->seconds = now () - o->began;
  o->cpu = cpu_now () - o->cpu_began;
  beside_end (o->beside, o->seconds, clean);
  account_end (o->account, o->seconds);
  if (!o->j->d.outside) measure_outside (&o->j->d);
  if (step % o->j->c.run.log_every == 0) {
    struct gpu_state gpu;
    account_share (o->account, nvml_read (&gpu) ? &gpu : NULL);
    advise (&o->advised, o->j, o->account);
  }
  profile_end (o->profile, step);
  observe_lap (o, LAP_NONE);
}

static struct metrics_launch launch_of (const struct observer *o)
{
  const struct mesh *m = &o->j->m;
  struct metrics_launch l = { .after = o->after, .ranks = m->size, .nodes = m->nodes, .cores = o->j->gpus[0] ? 0 : wait_cores (m->local_size) };
  for (int i = 0; i < AXIS_N; i++) l.axis[i].name = axis_table[i].name, l.axis[i].n = m->shape.dim[axis_table[i].axis];
  return l;
}

void observe_record (struct observer *o, const struct step_result *out, double lr, int64_t tokens, const double *eval)
{
  const struct conf *c = &o->j->c;
  struct metrics_record m = { .step = o->step, .loss = out->loss, .grad_norm = out->norm, .lr = lr, .tokens = tokens, .step_tokens = (int64_t) out->tokens, .seconds = o->seconds,
    .cpu_seconds = o->cpu, .mfu = -1, .skipped = out->skipped, .has_eval = eval != NULL, .eval_loss = eval ? *eval : 0, .dev = &o->j->d };
  for (int k = 0; k < GROUP_N; k++) m.group[k] = (struct group_head *) o->j->s.ch.c[k].g;
  struct metrics_launch l = launch_of (o);
  if (!o->told) m.launch = &l;
  o->told = true;
  if (o->spike.action) m.spike = &o->spike;
  beside_record (o->beside, &m);
  account_record (o->account, &m);
  metrics_step (o->metrics, &m);
  if (o->board) tensorboard_step (o->board, &m);
  if (o->prometheus && (m.ranks || o->step % c->run.log_every == 0 || o->step == c->train.steps)) prometheus_step (o->prometheus, &m);
  o->spike.action = NULL;
}

void observe_spike (struct observer *o, const struct metrics_spike *s) { o->spike = *s; }

void observe_back (struct observer *o, int64_t step)
{
  o->step = step;
  metrics_back (o->metrics, step);
  if (o->board) tensorboard_session (o->board, step + 1);
}

void observe_report (struct observer *o)
{
  say_progress (NULL, 0);
  profile_finish (o->profile);
  beside_report (o->beside);
}
