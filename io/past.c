#include "config.h"
#include "metrics.h"
#include "past.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const struct past_key past_key[PAST_N] = {
  [PAST_LOSS] = { NULL, "loss", "loss" }, [PAST_NORM] = { NULL, "grad_norm", "norm of the gradient" }, [PAST_LR] = { NULL, "lr", "learning rate" },
  [PAST_RATE] = { NULL, "tokens_per_s", "tokens/s" }, [PAST_MFU] = { NULL, "mfu", "MFU" }, [PAST_SECONDS] = { NULL, "seconds", "seconds a step" }, [PAST_CPU] = { NULL, "cpu_s", "processor time" },
  [PAST_EVAL] = { NULL, "eval_loss", "validation loss" }, [PAST_SHARE] = { NULL, "comm_share", "share of communication" }, [PAST_RESIDENT] = { "memory", "resident_peak", "host memory of rank 0" },
  [PAST_EXCESS] = { "ranks", "excess", "excess of the slowest rank" }, [PAST_UTIL] = { "gpus", "utilization", "GPU utilisation" }, [PAST_IDLE] = { "gpus", "idle", "GPU idle" },
  [PAST_POWER] = { "gpus", "power_w", "power of all GPUs" },
  [PAST_DATA] = { "parts", "data_s", "data" }, [PAST_FORWARD] = { "parts", "forward_s", "forward" }, [PAST_BACKWARD] = { "parts", "backward_s", "backward" },
  [PAST_OPT] = { "parts", "optimizer_s", "optimizer" }, [PAST_TP] = { "exposed", "tp", "waits for tp" }, [PAST_PP] = { "exposed", "pp", "waits for pp" },
  [PAST_DP_SHARD] = { "exposed", "dp_shard", "waits for dp_shard" }, [PAST_DP_REP] = { "exposed", "dp_replicate", "waits for dp_replicate" }, [PAST_WORLD] = { "exposed", "world", "waits for the norm" },
  [PAST_AGREE] = { "parts", "agree_s", "waits for slower ranks" }, [PAST_OTHER] = { "parts", "other_s", "other" }, [PAST_SAVE] = { "parts", "checkpoint_s", "checkpoint" },
  [PAST_VALID] = { "parts", "eval_s", "validation" } };

const char *past_axis (enum past_figure f) { return past_key[f].name; }

static double number (const json_t *o, const char *key)
{
  const json_t *v = json_object_get (o, key);
  return json_is_number (v) ? json_number_value (v) : NAN;
}

static int64_t integer (const json_t *o, const char *key) { return json_integer_value (json_object_get (o, key)); }

static void text_of (const json_t *o, const char *key, char *out, size_t size)
{
  const char *s = json_string_value (json_object_get (o, key));
  snprintf (out, size, "%s", s ? s : "");
}

/* ---- records ---- */

static struct past_step record_of (const json_t *o)
{
  struct past_step s = { .step = integer (o, "step"), .tokens = integer (o, "tokens"), .time = integer (o, "time"), .skipped = json_is_true (json_object_get (o, "skipped")) };
  const json_t *spike = json_object_get (o, "spike");
  if (json_object_get (spike, "back_to")) s.back_from = integer (spike, "step");
  else s.spike = spike != NULL;
  for (int i = 0; i < PAST_N; i++) s.v[i] = (float) number (past_key[i].in ? json_object_get (o, past_key[i].in) : o, past_key[i].name);
  return s;
}

/* Bytes and times of the groups of O into the sums. */
static void add_comm (struct past *p, const json_t *o)
{
  const json_t *comm = json_object_get (o, "comm");
  bool evaluated = json_object_get (p->last, "eval_loss") != NULL;   /* leaves weights gathered for the step after it */
  if (!json_is_object (comm) || json_object_get (o, "eval_loss") || evaluated) return;
  for (int g = 0; g < GROUP_N; g++)
    for (int k = 0; k < OP_N - OP_COLL_FIRST; k++) {
      const json_t *v = json_object_get (json_object_get (comm, group_name (g)), op_name (OP_COLL_FIRST + k));
      double busy = number (v, "busy_s"), exposed = number (v, "exposed_s");
      if (!v) continue;
      p->comm[g][k].calls += integer (v, "calls");
      p->comm[g][k].bytes += integer (v, "bytes");
      if (isfinite (busy)) p->comm[g][k].busy += busy;
      if (isfinite (exposed)) p->comm[g][k].exposed += exposed;
    }
  double s = number (o, "seconds");
  if (isfinite (s)) p->plain_seconds += s;
  p->plain++;
}

static void add_launch (struct past *p, const json_t *l, const struct past_step *s)
{
  static const char *const axis[4] = { "tp", "pp", "dp_shard", "dp_replicate" };
  p->launch = xrealloc (p->launch, (size_t) (p->launches + 1) * sizeof *p->launch, "past");
  struct past_launch *x = &p->launch[p->launches++];
  *x = (struct past_launch) { .after = integer (l, "after"), .time = s->time, .ranks = (int) integer (l, "ranks"), .nodes = (int) integer (l, "nodes"), .cores = (int) integer (l, "cores"), .first = p->steps };
  for (int i = 0; i < 4; i++) x->dim[i] = (int) integer (l, axis[i]);
  memset (p->comm, 0, sizeof p->comm);
  p->plain = 0;
  p->plain_seconds = 0;
}

/* Steps are in order; what a resumed run does again takes the place of what it had done. */
static void add (struct past *p, const json_t *o, int64_t *room)
{
  struct past_step s = record_of (o);
  while (p->steps && p->step[p->steps - 1].step >= s.step) p->steps--, p->again++;
  while (p->launches && p->launch[p->launches - 1].first > p->steps) p->launch[--p->launches].first = 0;
  if (p->steps == *room) p->step = xrealloc (p->step, (size_t) (*room = 2 * *room + 1024) * sizeof *p->step, "past");
  const json_t *l = json_object_get (o, "launch");
  if (json_is_object (l)) add_launch (p, l, &s);
  p->step[p->steps++] = s;
  add_comm (p, o);
}

static void read_metrics (struct past *p)
{
  char path[STR + 32], *line = NULL;
  size_t size = 0;
  int64_t room = 0;
  snprintf (path, sizeof path, "%s/metrics.jsonl", p->dir);
  FILE *f = fopen (path, "r");
  for (ssize_t n; f && (n = getline (&line, &size, f)) > 0;) {
    json_t *o = json_loadb (line, (size_t) n, 0, NULL);
    if (!json_is_integer (json_object_get (o, "step"))) {
      p->torn++;
      json_decref (o);
      continue;
    }
    add (p, o, &room);
    json_decref (p->last);
    p->last = o;
  }
  free (line);
  if (f) fclose (f);
}

/* ---- the rest of the folder ---- */

static void read_end (const struct past *p, const char *name, struct past_end *end)
{
  char path[STR + 32];
  snprintf (path, sizeof path, "%s/%s", p->dir, name);
  json_t *o = json_load_file (path, 0, NULL);
  if ((end->there = json_is_object (o))) {
    end->code = integer (o, "code");
    end->step = integer (o, "step");
    end->rank = integer (o, "rank");
    end->time = integer (o, "time");
    text_of (o, "reason", end->reason, sizeof end->reason);
    text_of (o, "host", end->host, sizeof end->host);
    text_of (o, "phase", end->phase, sizeof end->phase);
  }
  json_decref (o);
}

bool past_runs (const struct past *p) { return p->end.there && !strncmp (p->end.reason, "still running", 13); }
int past_alive (const struct past *p) { return past_runs (p) ? p->held : -1; }

bool past_crowded (const struct past *p)
{
  const struct past_launch *l = p->launches ? &p->launch[p->launches - 1] : NULL;
  return l && l->cores > 0 && l->ranks > l->cores * MAX (l->nodes, 1);
}

static int by_step (const void *a, const void *b)
{
  const struct past_ckpt *x = a, *y = b;
  return (x->step > y->step) - (x->step < y->step);
}

static void read_ckpts (struct past *p)
{
  char path[STR + 400];
  snprintf (path, sizeof path, "%s/checkpoints", p->dir);
  DIR *d = opendir (path);
  for (struct dirent *f; d && (f = readdir (d));) {
    long long step;
    int end = 0;
    struct stat s;
    if (sscanf (f->d_name, "step_%lld.h5%n", &step, &end) != 1 || !end || f->d_name[end] || strlen (f->d_name) > 60) continue;
    snprintf (path, sizeof path, "%s/checkpoints/%s", p->dir, f->d_name);
    if (stat (path, &s)) continue;
    p->ckpt = xrealloc (p->ckpt, (size_t) (p->ckpts + 1) * sizeof *p->ckpt, "past");
    struct past_ckpt *k = &p->ckpt[p->ckpts++];
    *k = (struct past_ckpt) { .step = step, .bytes = s.st_size, .time = s.st_mtime };
    snprintf (k->name, sizeof k->name, "%.60s", f->d_name);
  }
  if (d) closedir (d);
  if (p->ckpts) qsort (p->ckpt, (size_t) p->ckpts, sizeof *p->ckpt, by_step);
}

static void name_it (struct past *p, const char *dir)
{
  snprintf (p->dir, sizeof p->dir, "%s", dir);
  for (size_t n = strlen (p->dir); n > 1 && p->dir[n - 1] == '/'; n--) p->dir[n - 1] = 0;
  const char *slash = strrchr (p->dir, '/');
  snprintf (p->name, sizeof p->name, "%.255s", slash && slash[1] ? slash + 1 : p->dir);
}

int past_open (struct past *p, const char *dir, struct err *e)
{
  struct stat s;
  char path[STR + 32];
  memset (p, 0, sizeof *p);
  name_it (p, dir);
  conf_default (&p->c);
  if (stat (p->dir, &s)) return user_err (e, "%s: %s", dir, strerror (errno));
  if (!S_ISDIR (s.st_mode)) return user_err (e, "%s is no folder of a run", dir);
  snprintf (path, sizeof path, "%s/config.yaml", p->dir);
  conf_load (&p->c, path, 0, NULL, &p->why);
  read_metrics (p);
  p->held = run_held (p->dir);   /* before the word of its end, which comes before it lets go */
  read_end (p, "exit.json", &p->end);
  read_end (p, "exit.old.json", &p->before);
  read_ckpts (p);
  if (p->steps || p->end.there || p->ckpts || !p->why.msg[0]) return 0;
  return user_err (e, "%s: nothing of a run is in this folder (no config.yaml, metrics.jsonl, exit.json or checkpoints)", dir);
}

void past_close (struct past *p)
{
  xfree (p->step);
  xfree (p->launch);
  xfree (p->ckpt);
  json_decref (p->last);
  p->step = NULL, p->launch = NULL, p->ckpt = NULL, p->last = NULL;
}

/* ---- figures ---- */

static int by_value (const void *a, const void *b) { return (*(const float *) a > *(const float *) b) - (*(const float *) a < *(const float *) b); }

static bool begins (const struct past *p, int64_t i)
{
  if (!i) return true;
  for (int k = 0; k < p->launches; k++)
    if (p->launch[k].first == i) return true;
  return false;
}

double past_median (const struct past *p, enum past_figure f, int64_t from, int64_t to)
{
  int64_t n = 0;
  double mid = NAN;
  float *x = xalloc ((size_t) MAX (to - from, 1) * sizeof *x, "past");
  for (int64_t i = from; i < to; i++)
    if (isfinite (p->step[i].v[f]) && (to - from == 1 || !begins (p, i))) x[n++] = p->step[i].v[f];
  if (n) {
    qsort (x, (size_t) n, sizeof *x, by_value);
    mid = x[n / 2];
  }
  xfree (x);
  return mid;
}

int past_ranks (const struct past *p, int launch)
{
  if (launch >= 0 && launch < p->launches && p->launch[launch].ranks) return p->launch[launch].ranks;
  int64_t n = p->c.mesh.dp_replicate * p->c.mesh.dp_shard * p->c.mesh.pp * p->c.mesh.tp;
  return p->why.msg[0] || n > INT32_MAX ? 0 : (int) n;
}
