#include "config.h"
#include "profile.h"
#include "plan.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TID_HOST, TID_COMPUTE, TID_GROUP, TID_OTHER = TID_GROUP + GROUP_N, TIDS = TID_OTHER + 8, TRIES = 16, TAG = 7001, PIECE = 1 << 26 };

struct host_span { enum lap what; int64_t step; double begin, end; };

struct profile {
  struct job *j;
  int64_t first, last, step;         /* asked for; under way or done */
  bool on;
  double lap;                        /* when the last lap ended */
  struct host_span *host;            /* laps, and (LAP_NONE) whole steps */
  int hosts, room;
  double start;                      /* of the trace: rank 0's clock */
  const char *other[TIDS - TID_OTHER];   /* queues beside compute and the groups' */
  bool used[TIDS];
};

struct profile *profile_open (struct job *j)
{
  int64_t first, last;
  if (!conf_profile (j->c.run.profile, &first, &last)) return NULL;
  struct profile *p = xalloc (sizeof *p, "profile");
  *p = (struct profile) { .j = j, .first = first, .last = last };
  return p;
}

void profile_close (struct profile *p)
{
  if (p) xfree (p->host);
  xfree (p);
}

/* ---- the host's thread ---- */

static void host_span (struct profile *p, enum lap what, double begin, double end)
{
  if (p->hosts == p->room) p->host = xrealloc (p->host, (size_t) (p->room = 2 * p->room + 64) * sizeof *p->host, "profile");
  p->host[p->hosts++] = (struct host_span) { what, p->step, begin, end };
}

void profile_lap (struct profile *p, enum lap what)
{
  if (!p || !p->on) return;
  double t = now ();
  if (what != LAP_NONE) host_span (p, what, p->lap, t);
  p->lap = t;
}

void profile_begin (struct profile *p, int64_t step)
{
  if (!p || step < p->first || step > p->last) return;
  if (!p->on) {
    p->j->d.ops->drain (&p->j->d);
    dev_trace (&p->j->d, true);
    mesh_barrier (p->j->m.world);
    p->start = now ();
    p->first = step;   /* a run may go on from within */
    p->on = true;
    say (SAY_INFO, "profiling steps %lld to %lld", (long long) step, (long long) p->last);
  }
  p->step = step;
  p->lap = now ();
  host_span (p, LAP_NONE, p->lap, 0);   /* its end comes with profile_end */
}

/* ---- clocks ---- */

/* This node's clock; debug.clock_skew sets the nodes' apart. */
static double skew (const struct profile *p) { return p->j->c.debug.clock_skew * p->j->m.node; }

static void swap (const struct mesh *m, bool mine, void *buf, int other)
{
  MPI_Request q;
  if (mine) MPI_Isend (buf, sizeof (double), MPI_BYTE, other, TAG, m->world, &q);
  else MPI_Irecv (buf, sizeof (double), MPI_BYTE, other, TAG, m->world, &q);
  wait_all (1, &q);
}

/* Rank 0 asks the node leader OTHER for its time: what is to be added to it, and by how much that may be wrong. */
static void ask (const struct profile *p, int other, double out[2])
{
  double best = INFINITY;
  for (int i = 0; i < TRIES; i++) {
    double t0 = now (), there = 0;
    swap (&p->j->m, true, &there, other);
    swap (&p->j->m, false, &there, other);
    double trip = now () - t0;
    if (trip >= best) continue;
    best = trip;
    out[0] = t0 + trip / 2 - there;
    out[1] = trip / 2;
  }
}

static void answer (const struct profile *p)
{
  for (int i = 0; i < TRIES; i++) {
    double t;
    swap (&p->j->m, false, &t, 0);
    t = now () + skew (p);
    swap (&p->j->m, true, &t, 0);
  }
}

/* OUT[0]: to be added to this rank's clock; OUT[1], OUT[2]: on rank 0 the largest error of nodes, and of a device beside its host. Collective. */
static void align (const struct profile *p, double out[3])
{
  const struct mesh *m = &p->j->m;
  double worst = 0;
  out[0] = out[1] = out[2] = 0;
  for (int r = 1, seen = 0; r < m->size; r++) {
    if (m->node_of[r] <= seen) continue;   /* nodes are numbered by their lowest rank, their leader */
    seen = m->node_of[r];
    if (m->rank == 0) {
      double x[2];
      ask (p, r, x);
      worst = MAX (worst, x[1]);
      swap (m, true, &x[0], r);
    } else if (m->rank == r) {
      answer (p);
      swap (m, false, &out[0], 0);
    }
  }
  MPI_Request q;
  MPI_Ibcast (out, 1, MPI_DOUBLE, 0, m->node_comm, &q);
  wait_all (1, &q);
  out[0] += skew (p);
  double own = p->j->d.trace.error;
  out[1] = worst;
  MPI_Ireduce (&own, &out[2], 1, MPI_DOUBLE, MPI_MAX, 0, m->world, &q);
  wait_all (1, &q);
}

/* ---- the text of a rank ---- */

/* A span as it is written; on a thread they nest. */
struct line { int tid; double begin, end; char name[64]; const char *cat; int64_t seq, bytes; int group, n; };
struct lines { struct line *at; int n, room; };

static struct line *add (struct lines *l, int tid, double begin, double end, const char *cat)
{
  if (l->n == l->room) l->at = xrealloc (l->at, (size_t) (l->room = 2 * l->room + 1024) * sizeof *l->at, "profile");
  struct line *x = &l->at[l->n++];
  *x = (struct line) { .tid = tid, .begin = begin, .end = end, .cat = cat };
  return x;
}

static int tid_of (struct profile *p, const struct dev_span *s)
{
  if (!strcmp (s->queue, "compute")) return TID_COMPUTE;
  for (int k = 0; k < GROUP_N; k++)
    if (!strcmp (s->queue, group_name (k))) return TID_GROUP + k;
  int i = 0;
  while (i < LEN (p->other) - 1 && p->other[i] && strcmp (p->other[i], s->queue)) i++;
  p->other[i] = s->queue;
  return TID_OTHER + i;
}

/* Of a training step, or of an evaluation between two. */
static bool in_step (const struct profile *p, double t)
{
  for (int i = 0; i < p->hosts; i++)
    if (p->host[i].what == LAP_NONE && t >= p->host[i].begin && t <= p->host[i].end) return true;
  return false;
}

static void phase_text (const struct profile *p, const struct dev_span *s, char out[64])
{
  const struct step *st = &p->j->s;
  if (!in_step (p, s->begin) || s->tag >= st->train.count[st->stage]) {
    snprintf (out, 64, "%s of an evaluation", s->name);
    return;
  }
  const struct action *a = &st->train.act[st->stage][s->tag];
  int n = snprintf (out, 64, "%s", act_name (a->kind));
  if (a->mb >= 0) n += snprintf (out + n, 64 - (size_t) n, " %d", (int) a->mb);
  if (st->chunks > 1 && a->chunk >= 0) snprintf (out + n, 64 - (size_t) n, " chunk %d", (int) a->chunk);
}

static void device_line (struct profile *p, struct lines *l, const struct dev_span *s, int *member)
{
  static const char *const cat[] = { [SPAN_OP] = "operation", [SPAN_COLL] = "collective", [SPAN_WAIT] = "wait", [SPAN_PHASE] = "phase" };
  struct line *x = add (l, tid_of (p, s), s->begin, s->end, cat[s->kind]);
  p->used[x->tid] = true;
  if (s->kind == SPAN_PHASE) phase_text (p, s, x->name);
  else snprintf (x->name, sizeof x->name, s->kind == SPAN_WAIT ? "wait: %s" : "%s", s->name);
  if (s->kind != SPAN_COLL) return;
  int me;
  x->n = mesh_group (&p->j->m.shape, p->j->m.rank, s->group, member, &me);
  x->group = member[0];
  x->seq = s->seq;
  x->bytes = s->bytes;
}

static void host_lines (const struct profile *p, struct lines *l)
{
  static const char *const word[LAP_N] = { [LAP_DATA] = "data", [LAP_STEP] = "issue and wait", [LAP_AGREE] = "agree", [LAP_EVAL] = "evaluation", [LAP_SAVE] = "checkpoint" };
  for (int i = 0; i < p->hosts; i++) {
    const struct host_span *h = &p->host[i];
    struct line *x = add (l, TID_HOST, h->begin, h->end, "host");
    if (h->what == LAP_NONE) snprintf (x->name, sizeof x->name, "step %lld", (long long) h->step);
    else snprintf (x->name, sizeof x->name, "%s", word[h->what]);
  }
}

static int by_place (const void *a, const void *b)
{
  const struct line *x = a, *y = b;
  if (x->tid != y->tid) return x->tid < y->tid ? -1 : 1;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end < y->end) - (x->end > y->end);
}

/* Sorted, and each inside of what it begins in: clocks of a device round. */
static void nest (struct lines *l)
{
  double end[8];
  int deep = 0;
  qsort (l->at, (size_t) l->n, sizeof *l->at, by_place);
  for (int i = 0; i < l->n; i++) {
    struct line *x = &l->at[i];
    if (i && x->tid != l->at[i - 1].tid) deep = 0;
    while (deep && x->begin >= end[deep - 1]) deep--;
    if (deep) x->end = MIN (x->end, end[deep - 1]);
    if (deep < LEN (end)) end[deep++] = x->end;
  }
}

static void head (const struct profile *p, FILE *f, int tid, const char *what, const char *fmt, ...) __attribute__ ((format (printf, 5, 6)));
static void head (const struct profile *p, FILE *f, int tid, const char *what, const char *fmt, ...)
{
  va_list ap;
  va_start (ap, fmt);
  fprintf (f, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"%s\":", what, p->j->m.rank, tid, strstr (what, "sort") ? "sort_index" : "name");
  vfprintf (f, fmt, ap);
  va_end (ap);
  fputs ("}}", f);
}

static void names (const struct profile *p, FILE *f)
{
  const struct mesh *m = &p->j->m;
  head (p, f, 0, "process_name", "\"rank %d on %s: dp %d, pp %d, tp %d\"", m->rank, base_host (), p->j->s.dp_rank, m->coord[AXIS_PP], m->coord[AXIS_TP]);
  head (p, f, 0, "process_sort_index", "%d", m->rank);
  for (int t = 0; t < TIDS; t++) {
    if (!p->used[t]) continue;
    const char *name = t == TID_HOST ? "host" : t == TID_COMPUTE ? "compute" : t >= TID_OTHER ? p->other[t - TID_OTHER] : group_name (t - TID_GROUP);
    if (t >= TID_GROUP && t < TID_OTHER) head (p, f, t, "thread_name", "\"%s: %s\"", plan_axis (t - TID_GROUP), name);
    else head (p, f, t, "thread_name", "\"%s\"", name);
    head (p, f, t, "thread_sort_index", "%d", t);
  }
}

/* Times in microseconds from the start of the trace. */
static void print (const struct profile *p, const struct line *x, double shift, FILE *f)
{
  double ts = 1e6 * (x->begin + shift), dur = 1e6 * (x->end - x->begin);
  fprintf (f, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", x->name, x->cat, p->j->m.rank, x->tid, ts, MAX (dur, 0));
  if (x->n) fprintf (f, ",\"args\":{\"group\":\"%s of rank %d\",\"ranks\":%d,\"number\":%lld,\"bytes\":%lld}", group_name (x->tid - TID_GROUP), x->group, x->n,
                     (long long) x->seq, (long long) x->bytes);
  fputc ('}', f);
}

/* All events of this rank, each with a comma before it. From malloc. */
static char *rank_text (struct profile *p, double shift, size_t *size)
{
  char *text = NULL;
  FILE *f = open_memstream (&text, size);
  must (f, "out of host memory for the trace");
  const struct dev *d = &p->j->d;
  struct lines l = { 0 };
  int *member = xalloc ((size_t) p->j->m.size * sizeof *member, "profile");
  p->used[TID_HOST] = true;
  for (int64_t i = 0; i < d->trace.n; i++) device_line (p, &l, &d->trace.span[i], member);
  host_lines (p, &l);
  nest (&l);
  names (p, f);
  for (int i = 0; i < l.n; i++) print (p, &l.at[i], shift, f);
  must (!fclose (f), "out of host memory for the trace");
  xfree (member);
  xfree (l.at);
  return text;
}

/* ---- the file ---- */

static void piece (const struct mesh *m, bool send, void *buf, size_t n, int other)
{
  for (size_t at = 0; at < n; at += PIECE) {
    MPI_Request q;
    int len = (int) MIN (n - at, (size_t) PIECE);
    if (send) MPI_Isend ((char *) buf + at, len, MPI_BYTE, other, TAG, m->world, &q);
    else MPI_Irecv ((char *) buf + at, len, MPI_BYTE, other, TAG, m->world, &q);
    wait_all (1, &q);
  }
}

/* Rank 0 takes the others' texts one by one. True: all is written. */
static bool collect (const struct mesh *m, FILE *f, const char *own, size_t n)
{
  bool good = f && fwrite (own, 1, n, f) == n;
  for (int r = 1; r < m->size; r++) {
    uint64_t size = 0;
    piece (m, false, &size, sizeof size, r);
    char *text = xalloc ((size_t) size, "profile");
    piece (m, false, text, (size_t) size, r);
    good = good && fwrite (text, 1, (size_t) size, f) == size;
    xfree (text);
  }
  return good;
}

static void write_file (const struct profile *p, const char *own, size_t n, const double error[2])
{
  char path[STR + 80], tmp[STR + 96];
  const struct job *j = p->j;
  snprintf (path, sizeof path, "%s/profile_%lld-%lld.json", j->c.run.dir, (long long) p->first, (long long) p->step);
  snprintf (tmp, sizeof tmp, "%s.tmp", path);
  FILE *f = fopen (tmp, "w");
  if (f) fprintf (f, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"first_step\":%lld,\"last_step\":%lld,\"ranks\":%d,\"nodes\":%d,\"device\":\"%s\",\"clock_error_us\":%.3f,"
                  "\"device_error_us\":%.3f},\"traceEvents\":[", (long long) p->first, (long long) p->step, j->m.size, j->m.nodes, j->d.ops->name, 1e6 * error[0], 1e6 * error[1]);
  bool good = collect (&j->m, f, own + 1, n - 1);   /* without the first comma */
  if (f) {
    fputs ("\n]}\n", f);
    good &= !ferror (f);
    good &= !fclose (f);
  }
  if (good && !rename (tmp, path)) say (SAY_INFO, "%s: open it at https://ui.perfetto.dev", path);
  else say (SAY_WARN, "%s cannot be written: %s; training goes on", path, strerror (errno));
  if (!good) unlink (tmp);
}

void profile_finish (struct profile *p)
{
  if (!p || !p->on) return;
  struct mesh *m = &p->j->m;
  double clock[3];
  p->on = false;
  p->j->d.ops->drain (&p->j->d);
  dev_trace (&p->j->d, false);
  align (p, clock);
  double start = p->start;
  MPI_Request q;
  MPI_Ibcast (&start, 1, MPI_DOUBLE, 0, m->world, &q);
  wait_all (1, &q);
  size_t n = 0;
  char *text = rank_text (p, clock[0] - start, &n);
  if (m->rank) {
    uint64_t size = n;
    piece (m, true, &size, sizeof size, 0);
    piece (m, true, text, n, 0);
  } else write_file (p, text, n, clock + 1);
  free (text);
}

void profile_end (struct profile *p, int64_t step)
{
  if (!p || !p->on || step != p->step) return;
  for (int i = p->hosts - 1; i >= 0; i--)
    if (p->host[i].what == LAP_NONE && !p->host[i].end) p->host[i].end = now ();
  if (step >= p->last) profile_finish (p);
}
