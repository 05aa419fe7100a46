#include "config.h"
#include "append.h"
#include "metrics.h"
#include "nvml.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct metrics {
  struct append file;          /* fd -1: this rank writes nothing */
  int width;                   /* columns of the terminal; 0: there is none, lines come now and then */
  double shown;                /* when the terminal's line was drawn last */
  int64_t first, steps, log_every;
  int64_t line_tokens;         /* since the last line on the terminal */
  double line_seconds, pace;   /* pace: smoothed seconds a step */
  struct group_stat last[GROUP_N];
};

/* ---- the file ---- */

/* Bytes of the lines, from the start, that are whole records of steps up to LAST. */
static int64_t keep_bytes (FILE *f, int64_t last)
{
  char *line = NULL;
  size_t room = 0;
  int64_t keep = 0;
  for (ssize_t n; (n = getline (&line, &room, f)) > 0 && line[n - 1] == '\n'; keep += n) {
    json_t *o = json_loadb (line, n, 0, NULL), *step = json_object_get (o, "step");
    bool good = json_is_integer (step) && json_integer_value (step) <= last;
    json_decref (o);
    if (!good) break;
  }
  free (line);
  return keep;
}

static int set_aside (const char *dir, const char *path, struct err *e)
{
  char old[1200];
  struct stat s;
  snprintf (old, sizeof old, "%s/metrics.old.jsonl", dir);
  if (stat (path, &s) || !s.st_size || !rename (path, old)) return 0;
  return world_err (e, "%s: cannot be renamed to %s: %s", path, old, strerror (errno));
}

static int open_file (struct metrics *m, const char *dir, int64_t resumed_step, struct err *e)
{
  snprintf (m->file.path, sizeof m->file.path, "%s/metrics.jsonl", dir);
  if (!resumed_step && set_aside (dir, m->file.path, e)) return -1;
  m->file.fd = open (m->file.path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);   /* not to wait for a reader of a pipe */
  if (m->file.fd < 0) return world_err (e, "%s: %s", m->file.path, strerror (errno));
  struct stat s;
  if (fstat (m->file.fd, &s) || !S_ISREG (s.st_mode)) return world_err (e, "%s is no regular file", m->file.path);
  FILE *f = fdopen (dup (m->file.fd), "r");
  must (f, "%s: %s", m->file.path, strerror (errno));
  m->file.size = keep_bytes (f, resumed_step);
  fclose (f);
  if (!ftruncate (m->file.fd, m->file.size)) return 0;
  return world_err (e, "%s: cannot be cut to %" PRId64 " bytes: %s", m->file.path, m->file.size, strerror (errno));
}

struct metrics *metrics_open (const char *dir, int64_t resumed_step, int64_t steps, int64_t log_every, struct err *e)
{
  struct metrics *m = xalloc (sizeof *m, "metrics");
  *m = (struct metrics) { .file = { .fd = -1, .losing = "metrics of some steps" }, .first = resumed_step + 1, .steps = steps, .log_every = log_every };
  if (base_rank_get () || !open_file (m, dir, resumed_step, e)) return m;
  metrics_close (m);
  return NULL;
}

void metrics_back (struct metrics *m, int64_t step)
{
  FILE *f = m->file.fd < 0 ? NULL : fopen (m->file.path, "r");
  if (!f) return;
  m->file.size = keep_bytes (f, step);
  fclose (f);
  if (ftruncate (m->file.fd, m->file.size)) say (SAY_WARN, "%s: cannot be cut to %" PRId64 " bytes: %s", m->file.path, m->file.size, strerror (errno));
}

void metrics_close (struct metrics *m)
{
  if (m && m->file.fd >= 0) close (m->file.fd);
  xfree (m);
}

/* ---- a record ---- */

/* JSON has no word for what is not finite. */
static json_t *number (double x) { return isfinite (x) ? json_real (x) : json_null (); }

static json_t *memory_of (const struct dev *d)
{
  json_t *o = json_object ();
  struct rusage u = { 0 };
  for (int p = 0; p < MEM_N; p++) {
    int64_t bytes = 0;
    for (int s = 0; s < SPACE_N; s++) bytes += d->mem[s].reserved[p];
    json_object_set_new (o, purpose_name (p), json_integer (bytes));
  }
  if (d->outside) json_object_set_new (o, "outside", json_integer (d->outside));
  getrusage (RUSAGE_SELF, &u);
  json_object_set_new (o, "resident_peak", json_integer (u.ru_maxrss * INT64_C (1024)));
  return o;
}

/* What one group sent and how long it took since the last step, by kind of collective; NULL if it was silent. */
static json_t *group_of (const struct group_stat *is, struct group_stat *was)
{
  json_t *o = NULL;
  for (int i = 0; i < LEN (is->kind); i++) {
    const struct coll_stat *a = &was->kind[i], *b = &is->kind[i];
    if (b->calls == a->calls && b->exposed == a->exposed) continue;
    if (!o) o = json_object ();
    json_object_set_new (o, op_name (OP_COLL_FIRST + i),
                         json_pack ("{s:I, s:I, s:o, s:o}", "calls", (json_int_t) (b->calls - a->calls),
                                    "bytes", (json_int_t) (b->bytes - a->bytes),
                                    "busy_s", number (b->busy - a->busy), "exposed_s", number (b->exposed - a->exposed)));
  }
  *was = *is;
  return o;
}

static json_t *comm_of (struct metrics *m, const struct metrics_record *r)
{
  json_t *o = json_object ();
  for (int k = 0; k < GROUP_N; k++) {
    json_t *g = r->group[k] && r->group[k]->n > 1 ? group_of (&r->group[k]->stat, &m->last[k]) : NULL;
    if (g) json_object_set_new (o, group_name (k), g);
  }
  return o;
}

static json_t *axes_of (const struct metrics_axis axis[METRICS_AXES])
{
  json_t *o = json_object ();
  for (int i = 0; i < METRICS_AXES; i++)
    if (axis[i].name) json_object_set_new (o, axis[i].name, number (axis[i].seconds));
  return o;
}

static void put_parts (json_t *o, const struct metrics_parts *p, double seconds)
{
  json_object_set_new (o, "parts", json_pack ("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "data_s", number (p->data), "forward_s", number (p->forward),
                                              "backward_s", number (p->backward), "optimizer_s", number (p->optimizer), "exposed_s", number (p->exposed), "agree_s", number (p->agree),
                                              "other_s", number (p->other),
                                              "checkpoint_s", number (p->save), "eval_s", number (p->eval)));
  json_object_set_new (o, "exposed", axes_of (p->axis));
  json_object_set_new (o, "comm_share", number (p->exposed / seconds));
}

static void put_ranks (json_t *o, const struct metrics_ranks *r)
{
  json_object_set_new (o, "ranks", json_pack ("{s:I, s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "steps", (json_int_t) r->steps, "slowest", r->slowest, "host", r->host,
                                              "work_s", number (r->work), "median_s", number (r->median), "excess", number (r->excess), "comm_share", number (r->share),
                                              "exposed", axes_of (r->axis)));
}

static void put_gpus (json_t *o, const struct metrics_gpus *g)
{
  double util = 0, util_min = 1, idle = 0, memory = 0, power = 0, clock = INFINITY, memory_clock = INFINITY, hot = 0;
  uint64_t bits = 0;
  for (int i = 0; i < g->n; i++) {
    const struct gpu_state *x = g->gpu[i].g;
    util += x->utilization / g->n;
    util_min = fmin (util_min, x->utilization);
    idle += x->idle / g->n;
    memory = fmax (memory, (double) x->memory_used);
    power += x->power;
    clock = fmin (clock, x->clock);
    memory_clock = fmin (memory_clock, x->memory_clock);
    hot = fmax (hot, x->temperature);
    bits |= x->throttle;
  }
  json_t *why = json_array ();
  for (int k = 0; k < NVML_REASONS; k++)
    if (bits & nvml_reason[k].bit) json_array_append_new (why, json_string (nvml_reason[k].word));
  json_object_set_new (o, "gpus", json_pack ("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "n", g->n, "utilization", number (util),
                                             "utilization_min", number (util_min), "idle", number (idle), "memory_used_max", number (memory), "power_w", number (power),
                                             "clock_mhz_min", number (clock), "memory_clock_mhz_min", number (memory_clock),
                                             "temperature_c_max", number (hot), "throttle", why));
}

static json_t *launch_of (const struct metrics_launch *l)
{
  json_t *o = json_pack ("{s:I, s:i, s:i}", "after", (json_int_t) l->after, "ranks", l->ranks, "nodes", l->nodes);
  if (l->cores) json_object_set_new (o, "cores", json_integer (l->cores));
  for (int i = 0; i < METRICS_AXES; i++)
    if (l->axis[i].name) json_object_set_new (o, l->axis[i].name, json_integer (l->axis[i].n));
  return o;
}

static void put_spike (json_t *o, const struct metrics_spike *p)
{
  json_t *s = json_pack ("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "action", p->action, "step", (json_int_t) p->step, "batch", (json_int_t) p->batch, "loss", number (p->loss),
                         "grad_norm", number (p->norm), "loss_z", number (p->z_loss), "grad_norm_z", number (p->z_norm));
  if (p->back_to >= 0) json_object_set_new (s, "back_to", json_integer (p->back_to));
  json_object_set_new (o, "spike", s);
}

static void put_record (struct metrics *m, const struct metrics_record *r)
{
  json_t *o = json_pack ("{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:b, s:I}",
                         "step", (json_int_t) r->step, "loss", number (r->loss),
                         "grad_norm", number (r->grad_norm), "lr", number (r->lr), "tokens", (json_int_t) r->tokens,
                         "tokens_per_s", number (r->step_tokens / r->seconds), "mfu", r->mfu < 0 ? json_null () : number (r->mfu),
                         "seconds", number (r->seconds), "cpu_s", number (r->cpu_seconds), "skipped", r->skipped, "time", (json_int_t) time (NULL));
  must (o, "out of host memory: a record of metrics");
  if (r->launch) json_object_set_new (o, "launch", launch_of (r->launch));
  if (r->has_eval) json_object_set_new (o, "eval_loss", number (r->eval_loss));
  if (r->spike) put_spike (o, r->spike);
  if (r->dev) json_object_set_new (o, "memory", memory_of (r->dev));
  json_object_set_new (o, "comm", comm_of (m, r));
  if (r->parts) put_parts (o, r->parts, r->seconds);
  if (r->ranks) put_ranks (o, r->ranks);
  if (r->gpus) put_gpus (o, r->gpus);
  if (r->planned)
    json_object_set_new (o, "plan", json_pack ("{s:I, s:I, s:b}", "memory", (json_int_t) r->planned_memory, "bytes", (json_int_t) r->planned_bytes, "agrees", r->planned_agrees));
  char *text = json_dumps (o, JSON_COMPACT | JSON_PRESERVE_ORDER);
  must (text, "out of host memory: a record of metrics");
  size_t n = strlen (text);
  text[n] = '\n';   /* over the terminating zero */
  append_put (&m->file, text, n + 1);
  free (text);
  json_decref (o);
}

/* ---- the terminal ---- */

static void time_text (double s, char out[static 24])
{
  int64_t t = s < 0 ? 0 : s > 1e9 ? 1000000000 : (int64_t) (s + 0.5);
  if (t >= 3600) snprintf (out, 24, "%" PRId64 ":%02d:%02d", t / 3600, (int) (t / 60 % 60), (int) (t % 60));
  else snprintf (out, 24, "%d:%02d", (int) (t / 60), (int) (t % 60));
}

void metrics_line (const struct metrics *m, const struct metrics_record *r, char *out, size_t size)
{
  char left[24], mfu[32] = "", mem[40] = "", valid[48] = "", bytes[24];
  time_text ((m->steps - r->step) * m->pace, left);
  if (r->mfu >= 0) snprintf (mfu, sizeof mfu, "  MFU %.1f %%", 100 * r->mfu);
  bytes_text (r->memory, bytes);
  if (r->memory) snprintf (mem, sizeof mem, "  mem %s", bytes);
  if (r->has_eval) snprintf (valid, sizeof valid, "  valid %.4f", r->eval_loss);
  snprintf (out, size, "step %*" PRId64 "/%" PRId64 "  loss %.4f  norm %.3f  %.0f tokens/s%s%s  left %s%s%s",
            snprintf (NULL, 0, "%" PRId64, m->steps), r->step, m->steps, r->loss, fabs (r->grad_norm), m->line_seconds > 0
              ? m->line_tokens / m->line_seconds : 0, mfu, mem, left, valid,
            !r->skipped ? "" : r->spike ? "  skipped: a spike" : "  skipped: the gradient is not finite");
}

static bool due (const struct metrics *m, const struct metrics_record *r)
{
  bool turn = m->log_every && (r->step == m->first || r->step % m->log_every == 0);
  return turn || r->skipped || r->has_eval || r->step == m->steps;
}

/* The first step warms caches and is no measure of those to come. */
static double next_pace (const struct metrics *m, const struct metrics_record *r)
{
  return r->step <= m->first + 1 ? r->seconds : 0.9 * m->pace + 0.1 * r->seconds;
}

/* In a narrow terminal the norm gives way. */
static void narrow (char *line, int width)
{
  char *norm = strstr (line, "  norm "), *rest = norm ? strstr (norm + 2, "  ") : NULL;
  if ((int) strlen (line) >= width && rest) memmove (norm, rest, strlen (rest) + 1);
}

/* On a terminal the line is drawn over itself, at most ten times a second, and stays only where there is more to it than the next will say. */
static void show (struct metrics *m, const struct metrics_record *r, char *line)
{
  bool stays = r->skipped || r->has_eval || r->step == m->steps;
  if (!m->width || stays) say (SAY_INFO, "%s", line);
  else {
    narrow (line, m->width);
    say_progress (line, m->width);
  }
  m->shown = now ();
}

void metrics_terminal (struct metrics *m, int width) { m->width = width; }

void metrics_step (struct metrics *m, const struct metrics_record *r)
{
  if (!m || m->file.fd < 0) return;
  put_record (m, r);
  m->line_tokens += r->step_tokens;
  m->line_seconds += r->seconds;
  m->pace = next_pace (m, r);
  if (!due (m, r) && !(m->width && now () - m->shown > 0.1)) return;
  char line[320];
  metrics_line (m, r, line, sizeof line);
  show (m, r, line);
  m->line_tokens = 0;
  m->line_seconds = 0;
}
