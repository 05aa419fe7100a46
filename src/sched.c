/* Making schedules: the order of computation of each stage, then the SENDs and RECVs, then GATHER, RELEASE, REDUCE and OPT. */
#include "config.h"
#include "sched.h"
#include "conf.h"
#include <limits.h>

struct list { struct action *a; int n, room; };

static void push (struct list *l, int kind, int chunk, int mb, int peer)
{
  if (l->n == l->room) l->a = xrealloc (l->a, (size_t) (l->room = 2 * l->room + 64) * sizeof *l->a, "schedule");
  l->a[l->n++] = (struct action) { .kind = (int16_t) kind, .chunk = (int16_t) chunk, .mb = mb, .peer = (int16_t) peer };
}

static struct list *lists_new (int pp) { return xalloc ((size_t) pp * sizeof (struct list), "schedule"); }

static void lists_free (struct list *l, int pp)
{
  for (int i = 0; i < pp; i++) xfree (l[i].a);
  xfree (l);
}

/* ---- the order of computation ---- */

/* How many forwards a stage runs before its first backward, less the one of the first pair. */
static int64_t warm_gpipe (const struct sched *s, int stage) { (void) stage; return (int64_t) s->mbs * s->chunks; }
static int64_t warm_1f1b (const struct sched *s, int stage) { return s->pp - 1 - stage; }
static int64_t warm_interleaved (const struct sched *s, int stage)
{
  return 2 * (int64_t) (s->pp - 1 - stage) + (int64_t) (s->chunks - 1) * s->pp;
}

/* The k-th forward or backward: groups of pp micro-batches pass through all chunks, the backward through the last chunk first.
   With one chunk micro-batch k. */
static void push_nth (struct list *l, const struct sched *s, int kind, int k)
{
  int first = k / (s->pp * s->chunks) * s->pp, size = MIN (s->pp, s->mbs - first), r = k - first * s->chunks;
  int chunk = r / size;
  push (l, kind, kind == ACT_F ? chunk : s->chunks - 1 - chunk, first + r % size, -1);
}

/* Forwards to warm up, pairs of a forward and a backward, backwards to cool down. GPipe, 1F1B and interleaved differ in
   the warm-up only. */
static void order_woven (const struct sched *s, struct list *l, int64_t (*warm_up) (const struct sched *, int))
{
  int total = s->mbs * s->chunks;
  for (int stage = 0; stage < s->pp; stage++) {
    int warm = s->forward_only ? total : (int) MIN (total, warm_up (s, stage));
    for (int k = 0; k < total + warm; k++) {
      if (k < total) push_nth (&l[stage], s, ACT_F, k);
      if (k >= warm && !s->forward_only) push_nth (&l[stage], s, ACT_B, k - warm);
    }
  }
}

/* ZB-H1 in ticks of equal length: forwards and backwards by input in the order of 1F1B, each as soon as its data are there and,
   for a forward, fewer than pp micro-batches are held (one is held until its backward by weight is done); where it must wait, a
   backward by weight. */
struct zb {
  int f, i, w;         /* F, B_INPUT and B_WEIGHT done on a stage */
  int *f_end, *i_end;  /* [mbs] tick at which they ended */
};

static int zb_pick (const struct sched *s, const struct zb *z, int stage, int tick)
{
  const struct zb *me = z + stage;
  bool f_next = me->f < s->mbs && me->f - me->i <= s->pp - 1 - stage;
  bool f_here = stage == 0 || (me[-1].f > me->f && me[-1].f_end[me->f] <= tick);
  bool i_here = stage == s->pp - 1 || (me[1].i > me->i && me[1].i_end[me->i] <= tick);
  if (f_next && f_here && me->f - me->w < s->pp) return ACT_F;
  if (!f_next && me->i < me->f && i_here) return ACT_B_INPUT;
  return me->w < me->i ? ACT_B_WEIGHT : ACT_N;
}

static void zb_take (struct zb *z, struct list *l, int kind, int tick)
{
  int *next = kind == ACT_F ? &z->f : kind == ACT_B_INPUT ? &z->i : &z->w;
  if (kind == ACT_F) z->f_end[*next] = tick + 1;
  if (kind == ACT_B_INPUT) z->i_end[*next] = tick + 1;
  push (l, kind, 0, (*next)++, -1);
}

static void order_zbh1 (const struct sched *s, struct list *l)
{
  struct zb *z = xalloc ((size_t) s->pp * sizeof *z, "schedule");
  for (int i = 0; i < s->pp; i++) {
    z[i].f_end = xalloc ((size_t) s->mbs * sizeof (int), "schedule");
    z[i].i_end = xalloc ((size_t) s->mbs * sizeof (int), "schedule");
  }
  int64_t left = 3 * (int64_t) s->pp * s->mbs;
  for (int tick = 0; left; tick++)
    for (int i = 0; i < s->pp; i++) {
      int kind = zb_pick (s, z, i, tick);
      if (kind == ACT_N) continue;
      zb_take (&z[i], &l[i], kind, tick);
      left--;
    }
  for (int i = 0; i < s->pp; i++) {
    xfree (z[i].f_end);
    xfree (z[i].i_end);
  }
  xfree (z);
}

/* ---- SEND and RECV ---- */

/* A run with fully blocking sends is played: a stage that has computed goes on when its SEND and the RECV of its next computation
   have met their partners, in whichever order they meet; that order is written down. Where all stages wait (only interleaved does
   that), one receiver takes what is sent to it ahead of its turn. So the lists are the record of a blocking run that ended. */
struct play {
  const struct sched *s;
  struct list *in, *out;   /* [pp] computations; with SENDs and RECVs */
  int *at;                 /* [pp] next computation of in */
  struct action *send;     /* [pp] waiting SEND, kind ACT_N = none */
  struct action *recv;     /* [pp] waiting RECV, kind ACT_N = none */
  bool *got;               /* [pp][2][chunks][mbs] received already; 1 = backward */
};

static const struct action nothing = { .kind = ACT_N };

static bool *got_of (struct play *p, int stage, const struct action *recv)
{
  int64_t back = recv->kind == ACT_RECV_B;
  return &p->got[(((int64_t) stage * 2 + back) * p->s->chunks + recv->chunk) * p->s->mbs + recv->mb];
}

/* SEND or RECV at virtual stage v of what moves between v and w; none beyond the ends, nor within a stage. */
static struct action transfer (const struct sched *s, int kind, int v, int w, int mb)
{
  if (s->pp == 1 || w < 0 || w >= s->pp * s->chunks) return nothing;
  return (struct action) { .kind = (int16_t) kind, .chunk = (int16_t) (v / s->pp), .mb = mb, .peer = (int16_t) (w % s->pp) };
}

/* After computation X (NULL: at the begin), before Y (NULL: at the end). */
static void wait_for (struct play *p, int stage, const struct action *x, const struct action *y)
{
  p->send[stage] = p->recv[stage] = nothing;
  if (x) {
    int v = x->chunk * p->s->pp + stage;
    bool f = x->kind == ACT_F;
    p->send[stage] = transfer (p->s, f ? ACT_SEND_F : ACT_SEND_B, v, f ? v + 1 : v - 1, x->mb);
  }
  if (y) {
    int v = y->chunk * p->s->pp + stage;
    bool f = y->kind == ACT_F;
    p->recv[stage] = transfer (p->s, f ? ACT_RECV_F : ACT_RECV_B, v, f ? v - 1 : v + 1, y->mb);
    if (p->recv[stage].kind != ACT_N && *got_of (p, stage, &p->recv[stage])) p->recv[stage] = nothing;
  }
}

/* Compute until something is to be waited for. Backwards by weight send nothing and let the RECV of what follows go first. */
static bool compute (struct play *p, int stage)
{
  const struct list *in = &p->in[stage];
  bool moved = false;
  while (p->at[stage] < in->n && p->send[stage].kind == ACT_N && p->recv[stage].kind == ACT_N) {
    const struct action *x = NULL, *y;
    do {
      y = &in->a[p->at[stage]++];
      push (&p->out[stage], y->kind, y->chunk, y->mb, -1);
      if (y->kind != ACT_B_WEIGHT) x = y;
    } while (y->kind == ACT_B_WEIGHT && p->at[stage] < in->n);
    for (y++; y < in->a + in->n && y->kind == ACT_B_WEIGHT;) y++;
    wait_for (p, stage, x, y < in->a + in->n ? y : NULL);
    moved = true;
  }
  return moved;
}

/* The RECV that a SEND of STAGE belongs to. */
static struct action partner (const struct sched *s, int stage, const struct action *send)
{
  bool back = send->kind == ACT_SEND_B;
  int v = send->chunk * s->pp + stage, w = back ? v - 1 : v + 1;
  return transfer (s, back ? ACT_RECV_B : ACT_RECV_F, w, v, send->mb);
}

static bool same (const struct action *a, const struct action *b)
{
  return a->kind == b->kind && a->chunk == b->chunk && a->mb == b->mb && a->peer == b->peer;
}

/* Let the waiting SEND of STAGE meet its RECV; with EARLY also one that is not yet waited for. */
static bool meet (struct play *p, int stage, bool early)
{
  struct action *send = &p->send[stage];
  if (send->kind == ACT_N) return false;
  int to = send->peer;
  struct action recv = partner (p->s, stage, send);
  bool due = same (&recv, &p->recv[to]);
  if (!due && !early) return false;
  push (&p->out[stage], send->kind, send->chunk, send->mb, send->peer);
  push (&p->out[to], recv.kind, recv.chunk, recv.mb, recv.peer);
  *got_of (p, to, &recv) = true;
  *send = nothing;
  if (due) p->recv[to] = nothing;
  return true;
}

static bool any (struct play *p, bool (*f) (struct play *, int))
{
  bool moved = false;
  for (int i = 0; i < p->s->pp; i++) moved |= f (p, i);
  return moved;
}

static bool meet_forward (struct play *p, int i) { return p->send[i].kind == ACT_SEND_F && meet (p, i, false); }
static bool meet_back (struct play *p, int i) { return meet (p, i, false); }

/* One SEND ahead of the receiver's turn. */
static bool meet_early (struct play *p)
{
  for (int i = 0; i < p->s->pp; i++)
    if (meet (p, i, true)) return true;
  return false;
}

/* Into OUT, [pp], which the caller owns. */
static void place_transfers (const struct sched *s, struct list *in, struct list *out)
{
  size_t n = (size_t) s->pp;
  struct play p = { .s = s, .in = in, .out = out };
  p.at = xalloc (n * sizeof *p.at, "schedule");
  p.send = xalloc (n * sizeof *p.send, "schedule");
  p.recv = xalloc (n * sizeof *p.recv, "schedule");
  p.got = xalloc (n * 2 * (size_t) s->chunks * (size_t) s->mbs * sizeof *p.got, "schedule");
  for (int i = 0; i < s->pp; i++) wait_for (&p, i, NULL, in[i].a);
  while (any (&p, compute) || any (&p, meet_forward) || any (&p, meet_back) || meet_early (&p)) continue;
  for (int i = 0; i < s->pp; i++) must (p.at[i] == in[i].n, "schedule %d computes in an order that cannot end", s->kind);
  xfree (p.at);
  xfree (p.send);
  xfree (p.recv);
  xfree (p.got);
}

/* ---- weights, gradients, optimizer ---- */

static bool computes (int kind) { return kind <= ACT_B_WEIGHT; }
static bool completes (int kind) { return kind == ACT_B || kind == ACT_B_WEIGHT; }

/* What is due before a computation that uses CHUNK (-1: the end): the reduction of a chunk whose last backward is done, then the
   change of weights. */
static void turn (struct list *out, int *held, int *reduce, int chunk)
{
  if (*reduce >= 0) push (out, ACT_REDUCE, *reduce, -1, -1);
  *reduce = -1;
  if (*held == chunk) return;
  if (*held >= 0) push (out, ACT_RELEASE, *held, -1, -1);
  if (chunk >= 0) push (out, ACT_GATHER, chunk, -1, -1);
  *held = chunk;
}

static void place_weights (const struct sched *s, const struct list *in, struct list *out)
{
  int held = -1, reduce = -1, *done = xalloc ((size_t) s->chunks * sizeof *done, "schedule");
  turn (out, &held, &reduce, 0);   /* every order begins with chunk 0; before its RECV, so that the gather runs beside it */
  for (int i = 0; i < in->n; i++) {
    const struct action *a = &in->a[i];
    if (computes (a->kind)) turn (out, &held, &reduce, a->chunk);
    push (out, a->kind, a->chunk, a->mb, a->peer);
    if (completes (a->kind) && ++done[a->chunk] == s->mbs) reduce = a->chunk;
  }
  turn (out, &held, &reduce, -1);
  if (!s->forward_only) push (out, ACT_OPT, -1, -1, -1);
  xfree (done);
}

/* ---- counts and the whole ---- */

static void count_stage (struct sched *s, int stage)
{
  int *now = xalloc ((size_t) s->chunks * sizeof *now, "schedule"), *most = &s->in_flight[stage * s->chunks], ahead = 0;
  for (int i = 0; i < s->count[stage]; i++) {
    const struct action *a = &s->act[stage][i];
    int v = a->chunk * s->pp + stage;
    ahead += a->kind == ACT_RECV_F || a->kind == ACT_RECV_B;
    s->recv_ahead[stage] = MAX (s->recv_ahead[stage], ahead);
    if (s->pp > 1 && a->kind == ACT_F && v > 0) ahead--;
    if (s->pp > 1 && (a->kind == ACT_B || a->kind == ACT_B_INPUT) && v < s->pp * s->chunks - 1) ahead--;
    if (a->kind == ACT_F) now[a->chunk]++, most[a->chunk] = MAX (most[a->chunk], now[a->chunk]);
    if (completes (a->kind) || (a->kind == ACT_F && s->forward_only)) now[a->chunk]--;
  }
  xfree (now);
}

static const char *const kind_name[] = {
  [SCHED_GPIPE] = "gpipe", [SCHED_1F1B] = "1f1b", [SCHED_INTERLEAVED] = "interleaved", [SCHED_ZBH1] = "zbh1",
};

static int refuse (int kind, int pp, int chunks, int mbs, bool forward_only, struct err *e)
{
  if (kind < 0 || kind >= LEN (kind_name)) return user_err (e, "there is no pipeline schedule number %d", kind);
  if (pp < 1 || pp > INT16_MAX) return user_err (e, "mesh.pp must be from 1 to %d, not %d", INT16_MAX, pp);
  if (chunks < 1 || (int64_t) pp * chunks > INT16_MAX)
    return user_err (e, "pipeline.chunks must be from 1 to %d at mesh.pp %d, not %d", INT16_MAX / pp, pp, chunks);
  if (mbs < 1 || (int64_t) mbs * chunks > INT_MAX / 16)
    return user_err (e, "a step must have from 1 to %d micro-batches, not %d", INT_MAX / 16 / chunks, mbs);
  if (kind != SCHED_INTERLEAVED)
    return chunks == 1 ? 0 : user_err (e, "pipeline.chunks %d needs pipeline.schedule interleaved; %s has one chunk a stage",
                                       chunks, kind_name[kind]);
  if (pp == 1) return user_err (e, "pipeline.schedule interleaved needs mesh.pp of 2 or more; with one stage use 1f1b");
  if (chunks == 1) return user_err (e, "pipeline.schedule interleaved needs pipeline.chunks of 2 or more; with one use 1f1b");
  if (mbs % pp && !forward_only)
    return user_err (e, "pipeline.schedule interleaved needs micro-batches a step (%d) in a multiple of mesh.pp (%d), such as %d",
                     mbs, pp, (mbs / pp + 1) * pp);
  return 0;
}

static void order (const struct sched *s, struct list *l)
{
  static int64_t (*const warm_up[]) (const struct sched *, int) =
    { [SCHED_GPIPE] = warm_gpipe, [SCHED_1F1B] = warm_1f1b, [SCHED_INTERLEAVED] = warm_interleaved, [SCHED_ZBH1] = warm_1f1b };
  if (s->kind == SCHED_ZBH1 && !s->forward_only) order_zbh1 (s, l);
  else order_woven (s, l, warm_up[s->kind]);
}

int sched_make (struct sched *s, int kind, int pp, int chunks, int mbs, bool forward_only, struct err *e)
{
  *s = (struct sched) { 0 };
  if (refuse (kind, pp, chunks, mbs, forward_only, e)) return -1;
  *s = (struct sched) { .kind = kind, .pp = pp, .chunks = chunks, .mbs = mbs, .forward_only = forward_only };
  s->count = xalloc ((size_t) pp * sizeof *s->count, "schedule");
  s->act = xalloc ((size_t) pp * sizeof *s->act, "schedule");
  s->in_flight = xalloc ((size_t) (pp * chunks) * sizeof *s->in_flight, "schedule");
  s->recv_ahead = xalloc ((size_t) pp * sizeof *s->recv_ahead, "schedule");
  struct list *computing = lists_new (pp), *moving = lists_new (pp);
  order (s, computing);
  place_transfers (s, computing, moving);
  for (int i = 0; i < pp; i++) {
    struct list all = { 0 };
    place_weights (s, &moving[i], &all);
    s->act[i] = all.a;
    s->count[i] = all.n;
    count_stage (s, i);
  }
  lists_free (computing, pp);
  lists_free (moving, pp);
  return 0;
}

void sched_free (struct sched *s)
{
  for (int i = 0; i < s->pp && s->act; i++) xfree (s->act[i]);
  xfree (s->act);
  xfree (s->count);
  xfree (s->in_flight);
  xfree (s->recv_ahead);
  *s = (struct sched) { 0 };
}
