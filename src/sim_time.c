/* The stages of a pipeline on one time-line. Each stage's trace is played in the order in which it was issued: a queue goes on when what it did and what it waits for has ended.
   Where stages meet, an end is held until the other has come; schedules are such that even then all of them end (sched.h). */
#include "config.h"
#include "sim.h"
#include <string.h>

/* The last of an event or a queue: until when; and the collective that it was, from when on bytes moved. */
struct point { double t, moved; int group, op; };   /* group -1: computation */

struct queue_at { struct point last; };

/* What two ends of a link, or all stages, have brought to their n-th meeting. */
struct meet { double ready; int came; };
struct meets { struct meet *at; int64_t n; };

struct play {
  const struct machine *m;
  struct sim_stage *s;
  int pp;
  bool comm_spans;
  struct stage_at {
    int64_t pc;
    struct queue_at q[SIM_QUEUES];
    struct point *event;
    int64_t nth[GROUP_N];            /* meetings had, by kind of group */
    bool waits;                      /* has said that it is ready, waits for the others */
    double comm_until;               /* collectives issued so far have ended */
    int32_t mark;
    int open;                        /* the last span of computation, -1 */
  } *at;
  struct meets *link;                /* [pp][2]: from stage s forward, backward */
  struct meets tied, world;
};

static void span (struct sim_stage *s, const struct sim_span *x)
{
  if (s->spans == s->room) s->span = xrealloc (s->span, (size_t) (s->room = 2 * s->room + 256) * sizeof *s->span, "spans");
  s->span[s->spans++] = *x;
}

/* Computation under one mark is one stretch for as long as it goes on; spans of collectives may lie between in the list. */
static void compute_span (struct sim_stage *s, struct stage_at *a, double begin, double end)
{
  struct sim_span *last = a->open >= 0 ? &s->span[a->open] : NULL;
  if (last && last->mark == a->mark && last->end == begin) {
    last->end = end;
    return;
  }
  a->open = s->spans;
  span (s, &(struct sim_span) { 0, a->mark, 0, begin, end });
}

static struct meets *meeting (struct play *p, int stage, enum group_kind k)
{
  int pp = p->pp;
  switch (k) {
  case GROUP_F_OUT: return &p->link[2 * stage];
  case GROUP_F_IN:  return &p->link[2 * ((stage + pp - 1) % pp)];
  case GROUP_B_OUT: return &p->link[2 * stage + 1];
  case GROUP_B_IN:  return &p->link[2 * ((stage + 1) % pp) + 1];
  case GROUP_TIED:  return &p->tied;
  case GROUP_WORLD: return &p->world;
  default:          return NULL;
  }
}

static struct meet *meet_at (struct meets *m, int64_t i)
{
  if (i >= m->n) {
    int64_t n = MAX (2 * m->n, i + 64);
    m->at = xrealloc (m->at, (size_t) n * sizeof *m->at, "meetings");
    memset (m->at + m->n, 0, (size_t) (n - m->n) * sizeof *m->at);
    m->n = n;
  }
  return &m->at[i];
}

/* When all have come; -1: not yet. */
static double together (struct play *p, int stage, const struct sim_item *i, double ready)
{
  struct stage_at *a = &p->at[stage];
  struct meets *ms = p->pp > 1 ? meeting (p, stage, i->group) : NULL;
  if (!ms) return ready;
  struct meet *m = meet_at (ms, a->nth[i->group]);
  if (!a->waits) m->ready = MAX (m->ready, ready), m->came++;
  a->waits = m->came < (i->group == GROUP_WORLD ? p->pp : 2);
  if (a->waits) return -1;
  a->nth[i->group]++;
  return m->ready;
}

/* A link that another queue's collective is using gives half of itself to the later one. (What that costs the earlier is left out: the later are the short ones that computation waits
   for.) */
static double shared (struct stage_at *a, const struct sim_stage *s, const struct sim_item *i, double begin)
{
  double busy = 0;
  for (int q = 0; q < SIM_QUEUES; q++) {
    const struct point *x = &a->q[q].last;
    if (q != i->queue && x->group >= 0 && x->group != GROUP_WORLD && s->cross[x->group] == s->cross[i->group] && x->moved <= begin) busy = MAX (busy, x->t - begin);
  }
  return i->seconds + MIN (i->seconds, busy);
}

static bool collective (struct play *p, int stage, const struct sim_item *i)
{
  struct stage_at *a = &p->at[stage];
  struct sim_stage *s = &p->s[stage];
  struct point *last = &a->q[i->queue].last;
  double begin = together (p, stage, i, last->t);
  if (begin < 0) return false;
  double seconds = shared (a, s, i, begin);
  *last = (struct point) { begin + seconds, begin, i->group, i->op };
  a->comm_until = MAX (a->comm_until, last->t);
  s->cost[i->group][i->op - OP_COLL_FIRST].busy += seconds;
  if (p->comm_spans) span (s, &(struct sim_span) { (int16_t) (1 + i->group), a->mark, i->op, begin, last->t });
  return true;
}

/* The compute queue waits: as long as bytes moved for the link, before that (a partner had not come) for another stage. A backlog of a link is the link's. */
static void charge (struct play *p, int stage, double from, const struct point *ev)
{
  struct sim_stage *s = &p->s[stage];
  if (ev->group < 0) {
    s->bubble += ev->t - from;   /* for another queue's computation: none in a step, but let no second be lost */
    return;
  }
  bool meets = p->pp > 1 && meeting (p, stage, ev->group);
  double moved = meets ? MAX (ev->moved, from) : from;
  s->exposed += ev->t - moved;
  s->bubble += moved - from;
  s->cost[ev->group][ev->op - OP_COLL_FIRST].exposed += ev->t - moved;
}

static void operate (struct play *p, int stage, const struct sim_item *i)
{
  struct stage_at *a = &p->at[stage];
  struct sim_stage *s = &p->s[stage];
  struct point *last = &a->q[i->queue].last;
  double begin = last->t, seconds = i->seconds * (begin < a->comm_until ? p->m->comm_slows : 1);
  *last = (struct point) { begin + seconds, begin, i->queue ? last->group : -1, i->queue ? last->op : 0 };
  if (i->queue) return;
  s->compute += seconds;
  compute_span (s, a, begin, last->t);
}

/* False: STAGE waits for another. */
static bool item (struct play *p, int stage, const struct sim_item *i)
{
  struct stage_at *a = &p->at[stage];
  struct point *last = &a->q[i->queue].last;
  switch (i->kind) {
  case SIM_OP:     operate (p, stage, i); return true;
  case SIM_COLL:   return collective (p, stage, i);
  case SIM_RECORD: a->event[i->arg] = *last; return true;
  case SIM_MARK:   a->mark = i->arg; return true;
  default: break;
  }
  const struct point *ev = &a->event[i->arg];
  if (ev->t <= last->t) return true;
  if (!i->queue) charge (p, stage, last->t, ev);
  if (i->queue) last->t = ev->t;
  else *last = (struct point) { ev->t, ev->t, -1, 0 };
  return true;
}

static void play_open (struct play *p)
{
  p->at = xalloc ((size_t) p->pp * sizeof *p->at, "time-line");
  p->link = xalloc ((size_t) p->pp * 2 * sizeof *p->link, "time-line");
  for (int i = 0; i < p->pp; i++) {
    struct stage_at *a = &p->at[i];
    a->event = xalloc ((size_t) MAX (p->s[i].events, 1) * sizeof *a->event, "time-line");
    a->mark = a->open = -1;
    for (int e = 0; e < p->s[i].events; e++) a->event[e].group = -1;
    for (int q = 0; q < LEN (a->q); q++) a->q[q].last.group = -1;
  }
}

static void play_close (struct play *p)
{
  for (int i = 0; i < p->pp; i++) xfree (p->at[i].event);
  for (int i = 0; i < 2 * p->pp; i++) xfree (p->link[i].at);
  xfree (p->tied.at);
  xfree (p->world.at);
  xfree (p->link);
  xfree (p->at);
}

int sim_time (struct sim_stage *s, int pp, const struct machine *m, bool comm_spans, struct err *e)
{
  struct play p = { .m = m, .s = s, .pp = pp, .comm_spans = comm_spans };
  int left = pp, rc = 0;
  play_open (&p);
  for (int i = 0; i < pp; i++) left -= s[i].items == 0;
  for (bool moved = true; left && moved;) {
    moved = false;
    for (int i = 0; i < pp; i++) {
      struct stage_at *a = &p.at[i];
      int64_t from = a->pc;
      while (a->pc < s[i].items && item (&p, i, &s[i].item[a->pc])) a->pc++;
      moved |= a->pc > from;
      left -= a->pc > from && a->pc == s[i].items;
    }
  }
  for (int i = 0; i < pp && !rc; i++) {
    if (p.at[i].pc < s[i].items) rc = user_err (e, "stage %d waits for ever for its neighbour in the plan's time-line", i);
    s[i].end = 0;
    for (int q = 0; q < LEN (p.at[i].q); q++) s[i].end = MAX (s[i].end, p.at[i].q[q].last.t);
  }
  play_close (&p);
  return rc;
}
