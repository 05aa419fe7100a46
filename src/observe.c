#include "config.h"
#include "observe.h"
#include <time.h>

struct observer {
  struct job *j;
  struct metrics *metrics;
  struct beside *beside;
  struct account *account;
  int64_t step;
  double began, cpu_began, seconds, cpu;   /* of the step: when, how long; processor time alike */
};

/* Processor time of this rank so far. */
static double cpu_now (void)
{
  struct timespec t;
  clock_gettime (CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

struct observer *observe_open (struct job *j, int64_t step, struct err *e)
{
  const struct conf *c = &j->c;
  struct metrics *m = metrics_open (c->run.dir, step, c->train.steps, c->run.log_every, e);
  if (!m) return NULL;
  struct observer *o = xalloc (sizeof *o, "observer");
  *o = (struct observer) { .j = j, .metrics = m, .account = account_open (j) };
  return o;
}

void observe_plan (struct observer *o)
{
  o->beside = beside_open (o->j);
  account_say (o->account);
}

void observe_close (struct observer *o)
{
  if (!o) return;
  metrics_close (o->metrics);
  beside_close (o->beside);
  account_close (o->account);
  xfree (o);
}

/* ---- a step ---- */

void observe_begin (struct observer *o)
{
  o->began = now ();
  o->cpu_began = cpu_now ();
  account_begin (o->account);
}

void observe_lap (struct observer *o, enum lap what) { account_lap (o->account, what); }

void observe_train (struct observer *o)
{
  account_lap (o->account, LAP_DATA);
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
  account_lap (o->account, LAP_AGREE);
  o->step = step;
  o->seconds = now () - o->began;
  o->cpu = cpu_now () - o->cpu_began;
  beside_end (o->beside, o->seconds, clean);
  account_end (o->account, o->seconds);
  if (!o->j->d.outside) measure_outside (&o->j->d);
  if (step % o->j->c.run.log_every == 0) account_share (o->account, NULL);
  account_lap (o->account, LAP_NONE);
}

void observe_record (struct observer *o, const struct step_result *out, double lr, int64_t tokens, const double *eval)
{
  struct metrics_record m = { .step = o->step, .loss = out->loss, .grad_norm = out->norm, .lr = lr, .tokens = tokens, .step_tokens = (int64_t) out->tokens, .seconds = o->seconds,
    .cpu_seconds = o->cpu, .mfu = -1, .skipped = out->skipped, .has_eval = eval != NULL, .eval_loss = eval ? *eval : 0, .dev = &o->j->d };
  for (int k = 0; k < GROUP_N; k++) m.group[k] = (struct group_head *) o->j->s.ch.c[k].g;
  beside_record (o->beside, &m);
  account_record (o->account, &m);
  metrics_step (o->metrics, &m);
}

void observe_report (struct observer *o) { beside_report (o->beside); }
