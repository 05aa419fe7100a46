/* Queues, events and graphs of the cpu device. */
#include "config.h"
#include "cpu_queue.h"
#include "mesh.h"
#include <string.h>

static struct queue *all;      /* queues of all open devices */
static int64_t pending;        /* items in all queues */
static int in_maths;           /* depth of operations under way: their polls start no others */

/* ---- running what is at the head ---- */

static void span (struct queue *q, enum span_kind kind, const char *name, double begin)
{
  dev_span_add (q->dev, &(struct dev_span) { .kind = kind, .queue = q->name, .name = name, .begin = begin, .end = now () });
}

static void execute (struct queue *q, const struct op *o)
{
  double begin = q->dev->trace.on ? now () : 0;
  in_maths++;
  cpu_maths[o->kind] (o);
  in_maths--;
  if (q->dev->trace.on) span (q, SPAN_OP, op_name (o->kind), begin);
}

/* Maths inside of maths could meet its own scratch memory; plain memory operations have none. */
static bool may_nest (enum op_kind k) { return k < OP_GEMM; }

static bool is_done (const struct event *m) { return !m->q || m->q->done >= m->seq; }

/* Tests make work beside the compute queue slow, so that a wait that is missing shows. */
static bool held_up (struct queue *q)
{
  double delay = q->kind == QUEUE_COPY || q->kind == QUEUE_HOST ? q->dev->conf.comm_delay_ms * 1e-3 : 0;
  if (delay <= 0) return false;
  if (q->since == 0) q->since = now ();
  if (now () - q->since < delay) return true;
  q->since = 0;
  return false;
}

/* One attempt at the head item. Maths and waits take one, unless they are held up; a collective many. */
static enum run_state try_head (struct queue *q)
{
  struct item *it = &q->ring[q->done & (q->room - 1)];
  if (it->wait) return is_done (&it->mark) ? RUN_DONE : RUN_WAITS;
  if (it->op.kind < OP_COLL_FIRST) {
    if ((in_maths && !may_nest (it->op.kind)) || held_up (q)) return RUN_WAITS;
    struct op o = it->op;
    execute (q, &o);
    return RUN_DONE;
  }
  if (!q->running) run_begin (&q->run, &it->op, q->dev);
  q->running = true;
  enum run_state s = run_step (&q->run);
  q->running = s != RUN_DONE;
  return s;
}

/* Items that are quick to finish follow each other; a collective that moved leaves the turn to other queues. */
static bool advance (struct queue *q)
{
  bool moved = false;
  enum run_state s = RUN_DONE;
  q->busy = true;
  while (q->done < q->issued && (s = try_head (q)) == RUN_DONE) {
    q->done++;
    pending--;
    moved = true;
  }
  q->busy = false;
  return moved || s == RUN_MOVED;
}

bool cpu_drive (void)
{
  bool moved = false;
  if (!pending) return false;
  for (struct queue *q = all; q; q = q->next)
    if (!q->busy && q->done < q->issued) moved |= advance (q);
  return moved;
}

void cpu_poll (void) { cpu_drive (); }

/* The host or a compute queue has waited for collectives on Q since START. */
static void charge (struct queue *q, struct coll_stat *stat, double start)
{
  struct dev *d = q->dev;
  double t = now ();
  stat->exposed += t - start;
  d->phase[((struct cpu *) d->impl)->phase].waited += t - start;
  if (d->trace.on) dev_span_add (d, &(struct dev_span) { .kind = SPAN_WAIT, .queue = "compute", .name = q->name, .begin = start, .end = t });
}

/* Block until the first SEQ items of Q are done; the time is charged to STAT. */
static void until (struct queue *q, uint64_t seq, struct coll_stat *stat)
{
  if (q->done >= seq) return;
  double start = now ();
  for (int state = 0; q->done < seq; ) {
    if (cpu_drive ()) state = 0;
    else wait_idle (&state);
  }
  if (stat) charge (q, stat, start);
}

static void until_event (const struct event *m)
{
  if (m->q) until (m->q, m->seq, m->stat);
}

/* ---- phases ---- */

void cpu_phase (struct dev *d, struct queue *q, enum step_phase p, int32_t tag)
{
  struct cpu *c = d->impl;
  double t = now ();
  if (c->phase) d->phase[c->phase].seconds += t - c->since;
  if (c->phase && d->trace.on)
    dev_span_add (d, &(struct dev_span) { .kind = SPAN_PHASE, .queue = q->name, .name = phase_name (c->phase), .tag = c->tag, .begin = c->since, .end = t });
  c->phase = p;
  c->since = t;
  c->tag = tag;
}

void cpu_trace (struct dev *d, bool on) { (void) d, (void) on; }

/* ---- queues ---- */

struct queue *cpu_queue_open (struct dev *d, enum queue_kind k, const char *name, void *work, int64_t work_bytes)
{
  (void) work, (void) work_bytes;
  struct queue *q = xalloc (sizeof *q, "queue");
  *q = (struct queue) { .dev = d, .next = all, .kind = k, .name = name };
  all = q;
  return q;
}

void cpu_queue_close (struct dev *d, struct queue *q)
{
  (void) d;
  until (q, q->issued, q->stat);
  xfree (q->ring);
  q->ring = NULL;
  q->room = 0;
}

void cpu_queues_free (struct dev *d)
{
  for (struct queue **at = &all, *q; (q = *at); ) {
    if (q->dev != d) { at = &q->next; continue; }
    cpu_queue_close (d, q);
    *at = q->next;
    xfree (q);
  }
}

/* Doubles when full: after the first steps never again. */
static void grow (struct queue *q)
{
  uint64_t room = q->room ? 2 * q->room : 64;
  struct item *ring = xalloc (room * sizeof *ring, "queue items");
  for (uint64_t i = q->done; i < q->issued; i++) ring[i & (room - 1)] = q->ring[i & (q->room - 1)];
  xfree (q->ring);
  q->ring = ring;
  q->room = room;
}

static void push (struct queue *q, const struct item *it)
{
  if (q->issued - q->done == q->room) grow (q);
  q->ring[q->issued++ & (q->room - 1)] = *it;
  pending++;
  cpu_drive ();
}

/* ---- graphs: what was issued between begin and end, replayed through the same calls ---- */

enum call { CALL_OP, CALL_RECORD, CALL_WAIT };
struct step { enum call call; struct queue *q; struct event *ev; struct op op; };
struct graph { struct queue *q; struct step *step; int64_t n, room; };

static void remember (struct graph *g, const struct step *s)
{
  if (g->n == g->room) {
    g->room = g->room ? 2 * g->room : 64;
    g->step = xrealloc (g->step, (size_t) g->room * sizeof *g->step, "graph");
  }
  g->step[g->n++] = *s;
}

static struct graph *recorded_in (struct dev *d) { return ((struct cpu *) d->impl)->graph; }

void cpu_graph_begin (struct dev *d, struct queue *q)
{
  struct cpu *c = d->impl;
  must (!c->graph, "a graph is being recorded already");
  c->graph = xalloc (sizeof *c->graph, "graph");
  c->graph->q = q;
  d->recording = true;
}

struct graph *cpu_graph_end (struct dev *d, struct queue *q)
{
  struct cpu *c = d->impl;
  struct graph *g = c->graph;
  must (g && g->q == q, "no graph is being recorded on this queue");
  c->graph = NULL;
  d->recording = false;
  return g;
}

void cpu_graph_launch (struct dev *d, struct queue *q, struct graph *g)
{
  must (!d->recording, "a graph cannot be launched while one is recorded");
  for (int64_t i = 0; i < g->n; i++) {
    struct step *s = &g->step[i];
    struct queue *on = s->q == g->q ? q : s->q;
    if (s->call == CALL_OP) dev_issue (d, on, &s->op);
    else if (s->call == CALL_RECORD) cpu_record (d, on, s->ev);
    else cpu_wait (d, on, s->ev);
  }
}

void cpu_graph_free (struct dev *d, struct graph *g)
{
  (void) d;
  xfree (g->step);
  xfree (g);
}

/* ---- issue and order ---- */

void cpu_issue (struct dev *d, struct queue *q, const struct op *o)
{
  struct graph *g = recorded_in (d);
  if (g) {
    remember (g, &(struct step) { .call = CALL_OP, .q = q, .op = *o });
    return;
  }
  bool coll = o->kind >= OP_COLL_FIRST;
  if (coll) q->stat = group_stat (o->coll.g, o->kind);
  if (q->kind == QUEUE_COMPUTE && !coll) {
    execute (q, o);
    cpu_poll ();
    return;
  }
  push (q, &(struct item) { .op = *o });
  if (q->kind == QUEUE_COMPUTE) until (q, q->issued, q->stat);
}

struct event *cpu_event_open (struct dev *d)
{
  (void) d;
  return xalloc (sizeof (struct event), "event");
}

void cpu_event_close (struct dev *d, struct event *ev)
{
  (void) d;
  xfree (ev);
}

void cpu_record (struct dev *d, struct queue *q, struct event *ev)
{
  struct graph *g = recorded_in (d);
  if (g) remember (g, &(struct step) { .call = CALL_RECORD, .q = q, .ev = ev });
  else *ev = (struct event) { .q = q, .seq = q->issued, .stat = q->stat };
}

void cpu_wait (struct dev *d, struct queue *q, struct event *ev)
{
  struct graph *g = recorded_in (d);
  if (g) remember (g, &(struct step) { .call = CALL_WAIT, .q = q, .ev = ev });
  else if (is_done (ev)) cpu_poll ();
  else if (q->kind == QUEUE_COMPUTE) until_event (ev);
  else push (q, &(struct item) { .wait = true, .mark = *ev });
}

void cpu_sync (struct dev *d, struct event *ev)
{
  (void) d;
  until_event (ev);
}

void cpu_drain (struct dev *d)
{
  for (struct queue *q = all; q; q = q->next)
    if (q->dev == d) until (q, q->issued, q->stat);
}

void cpu_fetch (struct dev *d, struct event *ev, void *dst, const void *pinned, int64_t bytes, const void *sim_answer)
{
  (void) sim_answer;
  cpu_sync (d, ev);
  memcpy (dst, pinned, (size_t) bytes);
}
