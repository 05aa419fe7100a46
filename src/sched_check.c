/* Checking schedules: each stage by itself, each link by itself, then a run of all stages, which also gives times. */
#include "config.h"
#include "sched.h"
#include <stdio.h>
#include <string.h>

/* What the rules say of each kind of action. */
static const struct rule {
  const char *name;
  bool each;          /* belongs to one micro-batch */
  bool computes;      /* uses the weights of its chunk */
  bool backward;      /* not in evaluation */
  int to;             /* +1, -1: the peer holds the next / previous virtual stage; 0: no peer */
  bool send;
  int after[3];       /* of these kinds, of the same micro-batch and chunk, one comes before; ended by ACT_N */
} rules[ACT_N] = {
  [ACT_F]        = { "F", true, true, false, 0, false, { ACT_N } },
  [ACT_B]        = { "B", true, true, true, 0, false, { ACT_F, ACT_N } },
  [ACT_B_INPUT]  = { "B_INPUT", true, true, true, 0, false, { ACT_F, ACT_N } },
  [ACT_B_WEIGHT] = { "B_WEIGHT", true, true, true, 0, false, { ACT_B_INPUT, ACT_N } },
  [ACT_SEND_F]   = { "SEND_F", true, false, false, 1, true, { ACT_F, ACT_N } },
  [ACT_RECV_F]   = { "RECV_F", true, false, false, -1, false, { ACT_N } },
  [ACT_SEND_B]   = { "SEND_B", true, false, true, -1, true, { ACT_B, ACT_B_INPUT, ACT_N } },
  [ACT_RECV_B]   = { "RECV_B", true, false, true, 1, false, { ACT_N } },
  [ACT_GATHER]   = { "GATHER", false, false, false, 0, false, { ACT_N } },
  [ACT_RELEASE]  = { "RELEASE", false, false, false, 0, false, { ACT_N } },
  [ACT_REDUCE]   = { "REDUCE", false, false, true, 0, false, { ACT_N } },
  [ACT_OPT]      = { "OPT", false, false, true, 0, false, { ACT_N } },
};

const char *act_name (int kind) { return kind >= 0 && kind < ACT_N ? rules[kind].name : "?"; }

/* `F of micro-batch 3, chunk 1`; the chunk only where there are several. */
static void act_what (const struct sched *s, const struct action *a, char *out, size_t size)
{
  const struct rule *r = &rules[a->kind >= 0 && a->kind < ACT_N ? a->kind : ACT_OPT];
  int n = snprintf (out, size, "%s", act_name (a->kind));
  if (r->each) n += snprintf (out + n, size - n, " of micro-batch %d", a->mb);
  if (s->chunks > 1 && a->chunk >= 0) n += snprintf (out + n, size - n, "%s chunk %d", r->each ? "," : " of", a->chunk);
  if (r->to) snprintf (out + n, size - n, "%s %s stage %d", s->chunks > 1 ? "," : "", r->send ? "to" : "from", a->peer);
}

char *act_text (const struct sched *s, int stage, int index, char out[static 128])
{
  char what[88];
  act_what (s, &s->act[stage][index], what, sizeof what);
  snprintf (out, 128, "stage %d, action %d (%s)", stage, index, what);
  return out;
}

/* ---- one stage ---- */

struct walk {
  const struct sched *s;
  struct err *e;
  int stage, at;       /* the action looked at */
  bool *seen;          /* [ACT_N][chunks][mbs] */
  bool *held;          /* [chunks] gathered */
  bool *reduced;       /* [chunks] */
  int *done;           /* [chunks] micro-batches whose backward is complete */
};

static bool *seen_of (const struct walk *w, int kind, int chunk, int mb)
{
  return &w->seen[((size_t) kind * w->s->chunks + chunk) * w->s->mbs + mb];
}

static int bad (const struct walk *w, const char *why)
{
  char text[128];
  return user_err (w->e, "%s %s", act_text (w->s, w->stage, w->at, text), why);
}

/* Is there such an action on this virtual stage at all? The ends of the pipeline lack some. */
static bool exists (const struct sched *s, int kind, int stage, int chunk)
{
  int v = chunk * s->pp + stage + rules[kind].to;
  return (!rules[kind].to || s->pp > 1) && v >= 0 && v < s->pp * s->chunks && !(rules[kind].backward && s->forward_only);
}

static int check_form (const struct walk *w, const struct action *a)
{
  if (a->kind < 0 || a->kind >= ACT_N) return bad (w, "is of no known kind");
  const struct rule *r = &rules[a->kind];
  bool opt = a->kind == ACT_OPT;
  if (opt ? a->chunk != -1 : a->chunk < 0 || a->chunk >= w->s->chunks) return bad (w, "names a chunk that does not exist");
  if (r->each ? a->mb < 0 || a->mb >= w->s->mbs : a->mb != -1) return bad (w, "names a micro-batch that does not exist");
  if (r->backward && w->s->forward_only) return bad (w, "has no place in an evaluation");
  if (!exists (w->s, a->kind, w->stage, MAX (a->chunk, 0))) return bad (w, "has nobody to talk to");
  int peer = r->to ? (w->stage + r->to + w->s->pp) % w->s->pp : -1;
  return a->peer == peer ? 0 : bad (w, "has the wrong peer");
}

/* The data that it needs were made or received on this stage. */
static int check_needs (const struct walk *w, const struct action *a)
{
  const struct sched *s = w->s;
  const struct rule *r = &rules[a->kind];
  bool ok = r->after[0] == ACT_N;
  for (int i = 0; r->after[i] != ACT_N; i++) ok |= *seen_of (w, r->after[i], a->chunk, a->mb);
  if (!ok) return bad (w, "comes before what it needs on this stage");
  bool f = a->kind == ACT_F, b = a->kind == ACT_B || a->kind == ACT_B_INPUT;
  int from = f ? ACT_RECV_F : ACT_RECV_B;
  if ((f || b) && exists (s, from, w->stage, a->chunk) && !*seen_of (w, from, a->chunk, a->mb))
    return bad (w, "uses what is not received before");
  return 0;
}

static int check_each (struct walk *w, const struct action *a)
{
  bool *seen = seen_of (w, a->kind, a->chunk, a->mb);
  if (*seen) return bad (w, "happens twice");
  if (a->kind == ACT_B && *seen_of (w, ACT_B_INPUT, a->chunk, a->mb)) return bad (w, "repeats B_INPUT");
  if (a->kind == ACT_B_INPUT && *seen_of (w, ACT_B, a->chunk, a->mb)) return bad (w, "repeats B");
  if (check_needs (w, a)) return -1;
  if (rules[a->kind].computes && !w->held[a->chunk]) return bad (w, "uses weights that are not gathered");
  if (a->kind == ACT_B || a->kind == ACT_B_WEIGHT) w->done[a->chunk]++;
  *seen = true;
  return 0;
}

static int check_opt (const struct walk *w)
{
  if (w->at != w->s->count[w->stage] - 1) return bad (w, "is not the last action");
  for (int c = 0; c < w->s->chunks; c++)
    if (!w->reduced[c]) return bad (w, "comes before a chunk's gradients are reduced");
  return 0;
}

static int check_whole (struct walk *w, const struct action *a)
{
  if (a->kind == ACT_OPT) return check_opt (w);
  bool *held = &w->held[a->chunk], *reduced = &w->reduced[a->chunk];
  if (a->kind == ACT_REDUCE) {
    if (*reduced) return bad (w, "happens twice");
    *reduced = true;
    return w->done[a->chunk] == w->s->mbs ? 0 : bad (w, "comes before the chunk's last backward");
  }
  bool gather = a->kind == ACT_GATHER;
  if (*held == gather) return bad (w, gather ? "finds the weights gathered" : "finds no weights gathered");
  *held = gather;
  return 0;
}

static int lacks (const struct walk *w, int kind, int chunk, int mb)
{
  char what[88];
  int to = rules[kind].to, pp = w->s->pp;
  struct action a = { .kind = (int16_t) kind, .chunk = (int16_t) chunk, .mb = mb, .peer = (int16_t) ((w->stage + to + pp) % pp) };
  act_what (w->s, &a, what, sizeof what);
  return user_err (w->e, "stage %d, action %d: the end comes without %s", w->stage, w->s->count[w->stage], what);
}

static int check_complete (const struct walk *w)
{
  const struct sched *s = w->s;
  static const int must_be[] = { ACT_RECV_F, ACT_F, ACT_SEND_F, ACT_RECV_B, ACT_SEND_B };
  for (int c = 0; c < s->chunks; c++) {
    for (int mb = 0; mb < s->mbs; mb++) {
      for (int i = 0; i < LEN (must_be); i++)
        if (exists (s, must_be[i], w->stage, c) && !*seen_of (w, must_be[i], c, mb)) return lacks (w, must_be[i], c, mb);
      bool input = *seen_of (w, ACT_B_INPUT, c, mb);
      if (s->forward_only || *seen_of (w, ACT_B, c, mb) || (input && *seen_of (w, ACT_B_WEIGHT, c, mb))) continue;
      return lacks (w, input ? ACT_B_WEIGHT : ACT_B, c, mb);
    }
    if (w->held[c]) return lacks (w, ACT_RELEASE, c, -1);
  }
  int n = s->count[w->stage];
  return s->forward_only || (n && s->act[w->stage][n - 1].kind == ACT_OPT) ? 0 : lacks (w, ACT_OPT, -1, -1);
}

static int check_stage (const struct sched *s, int stage, struct err *e)
{
  size_t chunks = (size_t) s->chunks;
  struct walk w = { .s = s, .e = e, .stage = stage };
  w.seen = xalloc (ACT_N * chunks * (size_t) s->mbs * sizeof *w.seen, "schedule");
  w.held = xalloc (chunks * sizeof *w.held, "schedule");
  w.reduced = xalloc (chunks * sizeof *w.reduced, "schedule");
  w.done = xalloc (chunks * sizeof *w.done, "schedule");
  int rc = 0;
  for (w.at = 0; !rc && w.at < s->count[stage]; w.at++) {
    const struct action *a = &s->act[stage][w.at];
    rc = check_form (&w, a);
    if (!rc) rc = rules[a->kind].each ? check_each (&w, a) : check_whole (&w, a);
    if (rc) break;
  }
  if (!rc) rc = check_complete (&w);
  xfree (w.seen);
  xfree (w.held);
  xfree (w.reduced);
  xfree (w.done);
  return rc;
}

/* ---- one link ---- */

/* Next action of KIND at or after index I; count if none. */
static int next_of (const struct sched *s, int stage, int kind, int i)
{
  while (i < s->count[stage] && s->act[stage][i].kind != kind) i++;
  return i;
}

/* On an in-order queue the n-th SEND meets the n-th RECV: is it the same micro-batch and the same boundary? */
static int check_link (const struct sched *s, int from, bool back, struct err *e)
{
  int to = (from + (back ? -1 : 1) + s->pp) % s->pp, send = back ? ACT_SEND_B : ACT_SEND_F, recv = back ? ACT_RECV_B : ACT_RECV_F;
  int i = -1, j = -1;
  for (;;) {
    i = next_of (s, from, send, i + 1);
    j = next_of (s, to, recv, j + 1);
    if (i == s->count[from]) return 0;   /* as many on both ends: each stage has all of them */
    const struct action *a = &s->act[from][i], *b = &s->act[to][j];
    if (a->mb == b->mb && a->chunk * s->pp + from + (back ? -1 : 1) == b->chunk * s->pp + to) continue;
    char x[128], y[128];
    return user_err (e, "%s meets %s", act_text (s, from, i, x), act_text (s, to, j, y));
  }
}

/* ---- all stages ---- */

/* A link's ends post in order; the n-th transfer happens when both have posted it and the one before is through. */
struct link { int sent, got, through; int64_t *send_at, *got_at, *through_at; };

struct run {
  const struct sched *s;
  bool issue;
  int64_t cost[ACT_N];
  int *pc;                /* [pp] */
  int64_t *clock;         /* [pp] */
  struct link *link;      /* [pp][2] by sender and direction, 1 = backward */
  int *nth;               /* [pp][2][chunks][mbs] which transfer of its link a posted RECV is */
  int64_t **start;        /* [pp][count] or NULL */
};

static struct link *link_of (const struct run *r, int stage, const struct action *a)
{
  bool back = a->kind == ACT_SEND_B || a->kind == ACT_RECV_B;
  return &r->link[2 * (rules[a->kind].send ? stage : a->peer) + back];
}

static int *nth_of (const struct run *r, int stage, bool back, const struct action *a)
{
  return &r->nth[(((size_t) stage * 2 + back) * r->s->chunks + a->chunk) * r->s->mbs + a->mb];
}

static void note (const struct run *r, int stage, int64_t t)
{
  if (r->start) r->start[stage][r->pc[stage]] = t;
}

/* Clocks only go forward, so that transfers end in order of themselves. */
static void pass (struct link *l)
{
  for (; l->through < MIN (l->sent, l->got); l->through++)
    l->through_at[l->through] = MAX (l->send_at[l->through], l->got_at[l->through]);
}

/* Post and go on. */
static bool run_issue (struct run *r, int stage, const struct action *a)
{
  struct link *l = link_of (r, stage, a);
  if (rules[a->kind].send) l->send_at[l->sent++] = r->clock[stage];
  else {
    *nth_of (r, stage, a->kind == ACT_RECV_B, a) = l->got;
    l->got_at[l->got++] = r->clock[stage];
  }
  pass (l);
  note (r, stage, r->clock[stage]);
  r->pc[stage]++;
  return true;
}

/* Both ends at once or not at all. */
static bool run_meet (struct run *r, int stage, const struct action *a)
{
  int peer = a->peer;
  if (r->pc[peer] == r->s->count[peer]) return false;
  const struct action *b = &r->s->act[peer][r->pc[peer]];
  if (!rules[b->kind].to || rules[b->kind].send == rules[a->kind].send) return false;
  if (link_of (r, stage, a) != link_of (r, peer, b)) return false;
  int64_t t = MAX (r->clock[stage], r->clock[peer]);
  r->clock[stage] = r->clock[peer] = t;
  note (r, stage, t);
  note (r, peer, t);
  r->pc[stage]++;
  r->pc[peer]++;
  return true;
}

/* When what a computation uses is there; -1: not yet. */
static int64_t ready (const struct run *r, int stage, const struct action *a)
{
  bool back = a->kind != ACT_F;
  if (!r->issue || (back && a->kind != ACT_B && a->kind != ACT_B_INPUT)) return 0;
  if (!exists (r->s, back ? ACT_RECV_B : ACT_RECV_F, stage, a->chunk)) return 0;
  const struct link *l = &r->link[2 * ((stage + (back ? 1 : -1) + r->s->pp) % r->s->pp) + back];
  int n = *nth_of (r, stage, back, a);
  return n < l->through ? l->through_at[n] : -1;
}

static bool run_one (struct run *r, int stage)
{
  if (r->pc[stage] == r->s->count[stage]) return false;
  const struct action *a = &r->s->act[stage][r->pc[stage]];
  if (rules[a->kind].to) return r->issue ? run_issue (r, stage, a) : run_meet (r, stage, a);
  int64_t t = rules[a->kind].computes ? ready (r, stage, a) : 0;
  if (t < 0) return false;
  t = MAX (t, r->clock[stage]);
  note (r, stage, t);
  r->clock[stage] = t + r->cost[a->kind];
  r->pc[stage]++;
  return true;
}

static void run_open (struct run *r, const struct sched *s, bool issue, int tf, int tb, int tw, int64_t **start)
{
  size_t pp = (size_t) s->pp, each = (size_t) s->chunks * (size_t) s->mbs;
  *r = (struct run) { .s = s, .issue = issue, .start = start };
  r->cost[ACT_F] = tf;
  r->cost[ACT_B] = (int64_t) tb + tw;
  r->cost[ACT_B_INPUT] = tb;
  r->cost[ACT_B_WEIGHT] = tw;
  r->pc = xalloc (pp * sizeof *r->pc, "schedule");
  r->clock = xalloc (pp * sizeof *r->clock, "schedule");
  r->link = xalloc (2 * pp * sizeof *r->link, "schedule");
  r->nth = xalloc (2 * pp * each * sizeof *r->nth, "schedule");
  int64_t *times = xalloc (6 * pp * each * sizeof *times, "schedule");
  for (size_t i = 0; i < 2 * pp; i++) {
    struct link *l = &r->link[i];
    l->send_at = times + 3 * i * each;
    l->got_at = l->send_at + each;
    l->through_at = l->got_at + each;
  }
}

static void run_close (struct run *r)
{
  xfree (r->link[0].send_at);
  xfree (r->link);
  xfree (r->nth);
  xfree (r->clock);
  xfree (r->pc);
}

/* The order in which stages are tried changes nothing: none can take away what another waits for. True if all end. */
static bool run_all (struct run *r)
{
  bool moved, ended = true;
  do {
    moved = false;
    for (int i = 0; i < r->s->pp; i++)
      while (run_one (r, i)) moved = true;
  } while (moved);
  for (int i = 0; i < r->s->pp; i++) ended &= r->pc[i] == r->s->count[i];
  return ended;
}

/* Who does STAGE, which is stuck, wait for? */
static int awaited (const struct run *r, int stage)
{
  const struct action *a = &r->s->act[stage][r->pc[stage]];
  return rules[a->kind].to ? a->peer : (stage + (a->kind == ACT_F ? -1 : 1) + r->s->pp) % r->s->pp;
}

/* Follow the waits from a stuck stage until they close, then tell that ring. */
static int deadlock (const struct run *r, struct err *e)
{
  int at = 0, n = 0;
  while (r->pc[at] == r->s->count[at]) at++;
  for (int i = 0; i < r->s->pp; i++) at = awaited (r, at);
  char text[1600], one[128];
  int first = at, room = (int) sizeof text;
  do {
    act_text (r->s, at, r->pc[at], one);
    if (n < room) n += snprintf (text + n, (size_t) (room - n), "%s%s", n ? " waits for " : "", one);
    at = awaited (r, at);
  } while (at != first);
  return user_err (e, "deadlock%s: %s waits for stage %d", r->issue ? "" : " with blocking sends", text, first);
}

int sched_check (const struct sched *s, bool issue, struct err *e)
{
  for (int i = 0; i < s->pp; i++)
    if (check_stage (s, i, e)) return -1;
  for (int i = 0; i < s->pp && s->pp > 1; i++)
    if (check_link (s, i, false, e) || check_link (s, i, true, e)) return -1;
  struct run r;
  run_open (&r, s, issue, 0, 0, 0, NULL);
  int rc = run_all (&r) ? 0 : deadlock (&r, e);
  run_close (&r);
  return rc;
}

int64_t sched_times (const struct sched *s, bool issue, int tf, int tb, int tw, int64_t **start)
{
  struct run r;
  run_open (&r, s, issue, tf, tb, tw, start);
  int64_t span = run_all (&r) ? 0 : -1;
  for (int i = 0; i < s->pp && span >= 0; i++) span = MAX (span, r.clock[i]);
  run_close (&r);
  return span;
}
