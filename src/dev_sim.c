/* The sim device: counts memory, operations and bytes, and writes down what was issued. sim_price.c says what an operation costs, sim_time.c what waits for what. */
#include "config.h"
#include "dev_limits.h"
#include "sim.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

struct queue { enum queue_kind kind; int number; };
struct event { int number; };
struct group { struct group_head head; struct sim_where where; bool tree[OP_N - OP_COLL_FIRST]; };   /* head first: dev.h */

enum call { CALL_OP, CALL_RECORD, CALL_WAIT };
struct graph { struct step { enum call call; struct queue *q; struct event *ev; struct op op; } *step; struct queue *q; int64_t n, room; };

struct sim {
  struct dev_ops ops;           /* the table with the limits of the device that this one stands for */
  struct dev_limits limits;
  const struct machine *m;
  const struct mesh *mesh;
  int64_t memory, top[2];       /* bytes that it says to have; bytes handed out of each half */
  int queues, events;
  struct group *group[GROUP_N];
  struct graph *graph;          /* being recorded, or NULL */
  struct sim_item *item;
  int64_t items, room;
  bool trace;
};

static struct sim *of (const struct dev *d) { return d->impl; }

/* ---- memory: one mapping for the process that is never accessible; its first half is the device's, its second the host's. Ranks are planned one after the other and may have
   the same addresses ---- */

static char *base;
static size_t half;
enum { SMALL = 4096 };   /* pinned memory up to here is real: the scalars that the host writes */

static int map_once (struct err *e)
{
  if (base) return 0;
  for (half = (size_t) 1 << 45; half >= (size_t) 1 << 32; half /= 2) {
    base = mmap (NULL, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) return 0;
    base = NULL;
  }
  return world_err (e, "cannot map address space for the sim device: %s (ulimit -v?)", strerror (errno));
}

static bool on_device (const void *p) { return (size_t) ((const char *) p - base) < half; }

static void *sim_reserve (struct dev *d, enum space s, int64_t bytes, struct err *e)
{
  struct sim *x = of (d);
  int h = s != SPACE_DEVICE;
  if (s == SPACE_PINNED && bytes <= SMALL) return xalloc ((size_t) bytes, "pinned scalars");
  if (bytes > (int64_t) half - x->top[h]) return user_err (e, "%lld bytes are more than a plan can count for a rank", (long long) bytes), NULL;
  char *p = base + h * half + x->top[h];
  x->top[h] += round_up (MAX (bytes, 1), 4096);
  return p;
}

static void sim_release (struct dev *d, enum space s, void *p, int64_t bytes)
{
  (void) d;
  if (s == SPACE_PINNED && bytes <= SMALL) xfree (p);
}

static int64_t sim_memory (struct dev *d) { return of (d)->memory; }
static int64_t sim_used (struct dev *d) { return dev_reserved (d) + d->ops->limits->outside; }

/* ---- the trace ---- */

static void note (struct sim *x, const struct sim_item *i)
{
  if (!x->trace) return;
  if (x->items == x->room) x->item = xrealloc (x->item, (size_t) (x->room = 2 * x->room + 4096) * sizeof *x->item, "trace");
  x->item[x->items++] = *i;
}

void sim_trace (struct dev *d, bool on)
{
  of (d)->trace = on;
  of (d)->items = 0;
}

void sim_mark (struct dev *d, int32_t number) { note (of (d), &(struct sim_item) { .kind = SIM_MARK, .arg = number }); }

const struct sim_item *sim_items (const struct dev *d, int64_t *n)
{
  *n = of (d)->items;
  return of (d)->item;
}

int sim_events (const struct dev *d) { return of (d)->events; }

/* ---- queues and events ---- */

static struct queue *sim_queue_open (struct dev *d, enum queue_kind k, const char *name, void *work, int64_t work_bytes)
{
  (void) name, (void) work, (void) work_bytes;
  struct queue *q = xalloc (sizeof *q, "queue");
  *q = (struct queue) { k, of (d)->queues++ };
  must (q->number < SIM_QUEUES, "more than %d queues", SIM_QUEUES);
  return q;
}

static void sim_queue_close (struct dev *d, struct queue *q)
{
  (void) d;
  xfree (q);
}

static struct event *sim_event_open (struct dev *d)
{
  struct event *ev = xalloc (sizeof *ev, "event");
  ev->number = of (d)->events++;
  return ev;
}

static void sim_event_close (struct dev *d, struct event *ev)
{
  (void) d;
  xfree (ev);
}

static void remember (struct graph *g, const struct step *s)
{
  if (g->n == g->room) g->step = xrealloc (g->step, (size_t) (g->room = 2 * g->room + 64) * sizeof *g->step, "graph");
  g->step[g->n++] = *s;
}

static void sim_record (struct dev *d, struct queue *q, struct event *ev)
{
  struct sim *x = of (d);
  if (x->graph) remember (x->graph, &(struct step) { .call = CALL_RECORD, .q = q, .ev = ev });
  else note (x, &(struct sim_item) { .kind = SIM_RECORD, .queue = (uint8_t) q->number, .arg = ev->number });
}

static void sim_wait (struct dev *d, struct queue *q, struct event *ev)
{
  struct sim *x = of (d);
  if (x->graph) remember (x->graph, &(struct step) { .call = CALL_WAIT, .q = q, .ev = ev });
  else note (x, &(struct sim_item) { .kind = SIM_WAIT, .queue = (uint8_t) q->number, .arg = ev->number });
}

static void sim_sync (struct dev *d, struct event *ev) { (void) d, (void) ev; }
static void sim_drain (struct dev *d) { (void) d; }

static void sim_fetch (struct dev *d, struct event *ev, void *dst, const void *pinned, int64_t bytes, const void *sim_answer)
{
  (void) d, (void) ev, (void) pinned;
  memcpy (dst, sim_answer, (size_t) bytes);
}

/* Time is the planner's (sim_time). */
static void sim_phase (struct dev *d, struct queue *q, enum step_phase p, int32_t tag) { (void) d, (void) q, (void) p, (void) tag; }
static void sim_no_spans (struct dev *d, bool on) { (void) d, (void) on; }

/* ---- groups ---- */

/* Groups of kind K that leave node NODE through its cards at once. */
static int sharers_of (const struct mesh *m, enum group_kind k, int node, int *member)
{
  int first[m->size], n = 0, me;
  if (k == GROUP_WORLD) return 1;
  for (int r = 0; r < m->size; r++) {
    if (m->node_of[r] != node) continue;
    int size = mesh_group (&m->shape, r, k, member, &me), seen = 0;
    bool cross = false;
    for (int i = 0; i < size; i++) cross |= m->node_of[member[i]] != node;
    for (int i = 0; i < n; i++) seen |= first[i] == member[0];
    if (cross && !seen) first[n++] = member[0];
  }
  return n;
}

struct sim_where sim_place (const struct mesh *m, enum group_kind k)
{
  int *member = xalloc ((size_t) m->size * sizeof (int), "group"), *count = xalloc ((size_t) m->nodes * sizeof (int), "group"), me;
  struct sim_where w = { .n = mesh_group (&m->shape, m->rank, k, member, &me) };
  for (int i = 0; i < w.n; i++) {
    int *c = &count[m->node_of[member[i]]];
    w.nodes += !*c;
    w.most = MAX (w.most, ++*c);
  }
  if (w.nodes > 1) w.sharers = sharers_of (m, k, m->node, member);
  xfree (member);
  xfree (count);
  return w;
}

static struct group *sim_group_open (struct dev *d, const struct group_spec *s)
{
  struct sim *x = of (d);
  struct group *g = xalloc (sizeof *g, "group");
  g->head = (struct group_head) { .kind = s->kind, .n = s->n, .rank = s->rank };
  g->where = sim_place (x->mesh, s->kind);
  must (g->where.n == s->n, "group %s has %d ranks by the mesh, %d by its description", group_name (s->kind), g->where.n, s->n);
  x->group[s->kind] = g;
  return g;
}

static void sim_group_close (struct dev *d, struct group *g)
{
  of (d)->group[g->head.kind] = NULL;
  xfree (g);
}

struct sim_where sim_where (const struct dev *d, enum group_kind k)
{
  const struct group *g = of (d)->group[k];
  return g ? g->where : (struct sim_where) { .n = 1, .nodes = 1, .most = 1 };
}

bool sim_used_tree (const struct dev *d, enum group_kind k, enum op_kind op)
{
  const struct group *g = of (d)->group[k];
  return g && g->tree[op - OP_COLL_FIRST];
}

static double coll_seconds (struct sim *x, const struct op *o)
{
  struct group *g = o->coll.g;
  const struct sim_where *w = &g->where;
  double bytes = (double) coll_bytes (o->kind == OP_RECV ? OP_SEND : o->kind, g->head.n, o->coll.count, dtype_size (o->coll.t));
  if (g->head.n == 1) return 0;
  if (o->kind == OP_SEND || o->kind == OP_RECV) return x->m->comm_launch + machine_send (x->m, w->nodes > 1, w->sharers, bytes);
  return x->m->comm_launch + machine_collective (x->m, w->n, w->most, w->nodes, w->sharers, bytes, o->kind == OP_ALL_REDUCE ? 2 : 1, &g->tree[o->kind - OP_COLL_FIRST]);
}

/* ---- issue ---- */

static void sim_issue (struct dev *d, struct queue *q, const struct op *o)
{
  struct sim *x = of (d);
  if (x->graph) {
    remember (x->graph, &(struct step) { .call = CALL_OP, .q = q, .op = *o });
    return;
  }
  bool coll = o->kind >= OP_COLL_FIRST;
  if (coll) d->done[o->coll.g->head.kind]++;
  if (!x->trace) return;
  bool pcie = o->kind == OP_COPY && on_device (o->copy.dst) != on_device (o->copy.src);
  pcie |= o->kind == OP_CHECKSUM && !on_device (o->checksum.x);
  note (x, &(struct sim_item) { .kind = coll ? SIM_COLL : SIM_OP, .op = (uint8_t) o->kind, .queue = (uint8_t) q->number,
    .group = coll ? (uint8_t) o->coll.g->head.kind : 0, .seconds = coll ? coll_seconds (x, o) : sim_price (x->m, o, q->kind == QUEUE_HOST, pcie) });
}

/* ---- graphs ---- */

static void sim_graph_begin (struct dev *d, struct queue *q)
{
  struct sim *x = of (d);
  must (!x->graph, "a graph is being recorded already");
  x->graph = xalloc (sizeof *x->graph, "graph");
  x->graph->q = q;
  d->recording = true;
}

static struct graph *sim_graph_end (struct dev *d, struct queue *q)
{
  struct sim *x = of (d);
  struct graph *g = x->graph;
  must (g && g->q == q, "no graph is being recorded on this queue");
  x->graph = NULL;
  d->recording = false;
  return g;
}

static void sim_graph_launch (struct dev *d, struct queue *q, struct graph *g)
{
  must (!d->recording, "a graph cannot be launched while one is recorded");
  for (int64_t i = 0; i < g->n; i++) {
    struct step *s = &g->step[i];
    struct queue *on = s->q == g->q ? q : s->q;
    if (s->call == CALL_OP) dev_issue (d, on, &s->op);
    else if (s->call == CALL_RECORD) sim_record (d, on, s->ev);
    else sim_wait (d, on, s->ev);
  }
}

static void sim_graph_free (struct dev *d, struct graph *g)
{
  (void) d;
  xfree (g->step);
  xfree (g);
}

/* ---- open and close ---- */

static const struct dev_limits as_cpu = { LIMITS_CPU }, as_cuda = { LIMITS_CUDA };

static int sim_cannot (struct dev *d, const struct dev_conf *c, struct err *e)
{
  (void) d, (void) c;
  return user_err (e, "run.device sim trains nothing: it is what pretrain plan runs on");
}

static void sim_close (struct dev *d)
{
  struct sim *x = of (d);
  xfree (x->item);
  xfree (x);
}

const struct dev_ops dev_sim = {
  .name = "sim", .limits = &as_cpu, .open = sim_cannot, .close = sim_close, .memory = sim_memory, .used = sim_used, .reserve = sim_reserve, .release = sim_release, .host = dev_host_none,
  .queue_open = sim_queue_open, .queue_close = sim_queue_close, .event_open = sim_event_open, .event_close = sim_event_close,
  .record = sim_record, .wait = sim_wait, .sync = sim_sync, .drain = sim_drain, .fetch = sim_fetch, .tuned = dev_tuned_none, .tune = dev_tune_none, .group_open = sim_group_open, .group_close = sim_group_close,
  .phase = sim_phase, .trace = sim_no_spans,
  .graph_begin = sim_graph_begin, .graph_end = sim_graph_end, .graph_launch = sim_graph_launch, .graph_free = sim_graph_free,
  .op = { [0 ... OP_N - 1] = sim_issue },
};

int sim_open (struct dev *d, const struct machine *m, const struct mesh *mesh, int64_t memory, struct err *e)
{
  *d = (struct dev) { .blind = true };
  if (map_once (e)) return -1;
  struct sim *x = xalloc (sizeof *x, "sim device");
  x->m = m;
  x->mesh = mesh;
  x->memory = memory ? memory : (int64_t) m->memory;
  x->limits = strcmp (m->device, "cpu") ? as_cuda : as_cpu;
  if (m->outside > 0) x->limits.outside = (int64_t) m->outside;   /* what choices by memory leave free */
  x->ops = dev_sim;
  x->ops.limits = &x->limits;
  d->ops = &x->ops;
  d->impl = x;
  d->memory = x->memory;
  d->conf = (struct dev_conf) { .local_rank = mesh->local_rank, .local_size = mesh->local_size, .deterministic = true };
  return 0;
}

void mesh_virtual (struct mesh *m, const struct mesh_shape *s, int rank, int gpus, int *node_of)
{
  int world = mesh_world (s);
  *m = (struct mesh) { .shape = *s, .rank = rank, .size = world, .node_of = node_of, .node = rank / gpus, .nodes = (int) ceil_div (world, gpus), .local_rank = rank % gpus,
    .world = MPI_COMM_NULL, .tp = MPI_COMM_NULL, .pp = MPI_COMM_NULL, .dp = MPI_COMM_NULL, .node_comm = MPI_COMM_NULL };
  m->local_size = MIN (gpus, world - m->node * gpus);
  for (int r = 0; r < world; r++) node_of[r] = r / gpus;
  mesh_coord (s, rank, m->coord);
}
