/* Collectives of the cpu device: every rank exchanges messages with every other one directly and adds up by itself, in rank order, so that the result
   depends on nothing but the values. A collective is a sequence of rounds: post the messages of a round, test them, work on what came. What the messages of
   a rank sum up to is coll_bytes; no MPI collective could promise that, or the order of sums. */
#include "config.h"
#include "cpu_queue.h"
#include "mesh.h"
#include <string.h>

/* Most that a round moves through one rank: few ms of work for a poll, and messages far below 2^31 bytes, near which MPI libraries err. */
enum { ROUND_BYTES = 16 << 20, CHUNK_MAX = 1 << 28, SMALL_BYTES = 1024 };

enum { STATE_TEST, STATE_END };

/* ---- groups ---- */

struct group *cpu_group_open (struct dev *d, const struct group_spec *s)
{
  struct group *g = xalloc (sizeof *g, "group");
  must (s->n == 1 || s->stage_bytes >= d->ops->limits->comm_stage, "group %s: %lld bytes of staging are too few", group_name (s->kind),
        (long long) s->stage_bytes);
  g->head = (struct group_head) { .kind = s->kind, .n = s->n, .rank = s->rank };
  g->comm = s->comm;
  g->tag = s->tag;
  g->stage = cpu_at (s->stage);
  g->stage_bytes = s->stage_bytes;
  g->peer = xalloc ((size_t) s->n * sizeof *g->peer, "group");
  for (int i = 0; i < s->n; i++) g->peer[i] = s->member ? s->member[i] : i;
  g->pad = xalloc (16 * (size_t) s->n, "group");
  g->req = xalloc ((size_t) s->n * 4 * sizeof *g->req, "group");
  g->src = xalloc ((size_t) s->n * sizeof *g->src, "group");
  return g;
}

void cpu_group_close (struct dev *d, struct group *g)
{
  (void) d;
  xfree (g->src);
  xfree (g->req);
  xfree (g->pad);
  xfree (g->peer);
  xfree (g);
}

/* ---- messages: none where there are no bytes, on both sides alike ---- */

static void send_to (struct run *r, int peer, const void *p, int64_t bytes)
{
  struct group *g = r->c.g;
  if (bytes == 0) return;
  (r->sync_send ? MPI_Issend : MPI_Isend) (p, (int) bytes, MPI_BYTE, g->peer[peer], g->tag, g->comm, &g->req[r->nreq++]);
}

static void recv_from (struct run *r, int peer, void *p, int64_t bytes)
{
  struct group *g = r->c.g;
  if (bytes == 0) return;
  MPI_Irecv (p, (int) bytes, MPI_BYTE, g->peer[peer], g->tag, g->comm, &g->req[r->nreq++]);
}

static bool messages_done (struct run *r)
{
  if (r->nreq && !wait_test (r->nreq, r->c.g->req)) return false;
  r->nreq = 0;
  return true;
}

static int size_of (const struct run *r) { return r->c.g->head.n; }
static int me_of (const struct run *r) { return r->c.g->head.rank; }
/* The i-th of the others, i = 1 .. n - 1: each rank begins with its successor, so that not all send to one. */
static int other (const struct run *r, int i) { return (me_of (r) + i) % size_of (r); }
static int64_t clamp (int64_t x, int64_t hi) { return x < 0 ? 0 : MIN (x, hi); }

static const void *in_at (const struct run *r, int64_t i, enum dtype t) { return at_elem (r->c.in, i, t); }
static void *out_at (const struct run *r, int64_t i, enum dtype t) { return at_elem (r->c.out, i, t); }

/* Slot S of the staging memory: room for a chunk of the wire's type. */
static char *slot (const struct run *r, int s) { return r->c.g->stage + s * r->chunk * r->size; }

/* The next part of PIECE elements; false at the end. */
static bool next_round (struct run *r)
{
  r->len = clamp (r->piece - r->at, r->chunk);
  return r->len > 0;
}

/* ---- all-gather, all-to-all, broadcast, send and receive: no arithmetic, no staging ---- */

static bool post_gather (struct run *r)
{
  if (!next_round (r)) return false;
  int me = me_of (r);
  const void *own = r->c.in ? in_at (r, r->at, r->c.t) : out_at (r, me * r->piece + r->at, r->c.t);
  for (int i = 1; i < size_of (r); i++) recv_from (r, other (r, i), out_at (r, other (r, i) * r->piece + r->at, r->c.t), r->len * r->size);
  for (int i = 1; i < size_of (r); i++) send_to (r, other (r, i), own, r->len * r->size);
  return true;
}

static void work_gather (struct run *r)
{
  char *to = out_at (r, me_of (r) * r->piece + r->at, r->c.t);
  if (r->c.in && to != in_at (r, r->at, r->c.t)) memcpy (to, in_at (r, r->at, r->c.t), (size_t) (r->len * r->size));
  r->at += r->len;
}

/* Elements from or to rank I, and where they start. */
static int64_t part_count (const struct run *r, const int64_t *count, int i) { return count ? count[i] : r->c.count; }
static int64_t part_start (const struct run *r, const int64_t *count, int i)
{
  int64_t sum = 0;
  if (!count) return i * r->c.count;
  for (int j = 0; j < i; j++) sum += count[j];
  return sum;
}

static bool post_to_all (struct run *r)
{
  if (!next_round (r)) return false;
  const int64_t *sc = r->c.send_count, *rc = r->c.recv_count;
  for (int i = 1; i < size_of (r); i++) {
    int p = other (r, i);
    recv_from (r, p, out_at (r, part_start (r, rc, p) + r->at, r->c.t), clamp (part_count (r, rc, p) - r->at, r->len) * r->size);
  }
  for (int i = 1; i < size_of (r); i++) {
    int p = other (r, i);
    send_to (r, p, in_at (r, part_start (r, sc, p) + r->at, r->c.t), clamp (part_count (r, sc, p) - r->at, r->len) * r->size);
  }
  return true;
}

static void work_to_all (struct run *r)
{
  int me = me_of (r);
  const int64_t *sc = r->c.send_count, *rc = r->c.recv_count;
  int64_t n = clamp (part_count (r, sc, me) - r->at, r->len);
  memcpy (out_at (r, part_start (r, rc, me) + r->at, r->c.t), in_at (r, part_start (r, sc, me) + r->at, r->c.t), (size_t) (n * r->size));
  r->at += r->len;
}

static bool post_broadcast (struct run *r)
{
  if (!next_round (r)) return false;
  void *p = out_at (r, r->at, r->c.t);
  if (me_of (r) != r->c.root) recv_from (r, r->c.root, p, r->len * r->size);
  else for (int i = 1; i < size_of (r); i++) send_to (r, other (r, i), p, r->len * r->size);
  return true;
}

static bool post_send (struct run *r)
{
  if (!next_round (r)) return false;
  send_to (r, 1 - me_of (r), in_at (r, r->at, r->c.t), r->len * r->size);
  return true;
}

static bool post_recv (struct run *r)
{
  if (!next_round (r)) return false;
  recv_from (r, 1 - me_of (r), out_at (r, r->at, r->c.t), r->len * r->size);
  return true;
}

static void work_none (struct run *r) { r->at += r->len; }

/* ---- reduce-scatter: pieces of the others come into slots 1 .. n - 1; what must be rounded for the wire leaves from the slots behind them ---- */

static bool post_scatter (struct run *r)
{
  if (!next_round (r)) return false;
  int n = size_of (r);
  for (int i = 1; i < n; i++) recv_from (r, other (r, i), slot (r, i - 1), r->len * r->size);
  for (int i = 1; i < n; i++) {
    const void *part = in_at (r, other (r, i) * r->piece + r->at, r->c.it);
    if (r->c.it != r->c.t) {
      cpu_cast (slot (r, n - 2 + i), r->c.t, part, r->c.it, r->len);
      part = slot (r, n - 2 + i);
    }
    send_to (r, other (r, i), part, r->len * r->size);
  }
  return true;
}

/* Add up: OWN (of type T) and the slots, into OUT. */
static void add_up (struct run *r, const void *own, enum dtype t, void *out, enum dtype ot, int64_t count)
{
  struct group *g = r->c.g;
  for (int i = 1; i < size_of (r); i++) g->src[other (r, i)] = slot (r, i - 1);
  g->src[me_of (r)] = own;
  cpu_sum (&(struct sum) { .src = g->src, .n = size_of (r), .me = me_of (r), .t = r->c.t, .own = t, .ot = ot, .out = out, .beta = r->c.beta,
                           .max = r->c.max }, count);
}

static void work_scatter (struct run *r)
{
  add_up (r, in_at (r, me_of (r) * r->piece + r->at, r->c.it), r->c.it, out_at (r, r->at, r->c.ot), r->c.ot, r->len);
  r->at += r->len;
}

/* ---- all-reduce: small ones are sent whole and added up by each; others are a reduce-scatter and an all-gather of equal pieces, the last of which are padded ---- */

/* With a wire type of its own (t != it) everything is rounded once before it leaves, the own share too: all ranks then add up the same numbers. */
static bool rounds (const struct run *r) { return r->c.it != r->c.t; }

static bool post_small (struct run *r)
{
  if (!next_round (r)) return false;
  const void *own = in_at (r, r->at, r->c.it);
  if (rounds (r)) {
    cpu_cast (slot (r, size_of (r) - 1), r->c.t, own, r->c.it, r->len);
    own = slot (r, size_of (r) - 1);
  }
  for (int i = 1; i < size_of (r); i++) recv_from (r, other (r, i), slot (r, i - 1), r->len * r->size);
  for (int i = 1; i < size_of (r); i++) send_to (r, other (r, i), own, r->len * r->size);
  return true;
}

static void work_small (struct run *r)
{
  const void *own = rounds (r) ? slot (r, size_of (r) - 1) : in_at (r, r->at, r->c.t);
  add_up (r, own, r->c.t, out_at (r, r->at, r->c.ot), r->c.ot, r->len);
  r->at += r->len;
}

/* Elements of this round that piece P really has; the rest of its len is padding, which travels as a message of its own. */
static int64_t real (const struct run *r, int p) { return clamp (r->c.count - p * r->piece - r->at, r->len); }

static void send_part (struct run *r, int to, int p, const void *from)
{
  int64_t n = real (r, p);
  send_to (r, to, from, n * r->size);
  send_to (r, to, r->c.g->pad, (r->len - n) * r->size);
}

static void recv_part (struct run *r, int from, int p, void *to)
{
  int64_t n = real (r, p);
  recv_from (r, from, to, n * r->size);
  recv_from (r, from, r->c.g->pad + 8 * size_of (r), (r->len - n) * r->size);
}

/* Piece P of this round as it leaves: where it lies, or rounded for the wire in slot S. */
static const void *leaving (struct run *r, int p, int s)
{
  const void *x = in_at (r, p * r->piece + r->at, r->c.it);
  if (!rounds (r)) return x;
  cpu_cast (slot (r, s), r->c.t, x, r->c.it, real (r, p));
  return slot (r, s);
}

/* My piece's sum, of the wire's type: in its place in out, or in the last slot. */
static void *summed (struct run *r)
{
  return rounds (r) ? slot (r, 2 * size_of (r) - 2) : out_at (r, me_of (r) * r->piece + r->at, r->c.t);
}

static bool post_reduce (struct run *r)
{
  int n = size_of (r), me = me_of (r);
  if (r->phase == 0) {
    if (!next_round (r)) return false;
    for (int i = 1; i < n; i++) recv_part (r, other (r, i), me, slot (r, i - 1));
    for (int i = 1; i < n; i++) send_part (r, other (r, i), other (r, i), leaving (r, other (r, i), n - 2 + i));
  } else {
    for (int i = 1; i < n; i++) {
      int p = other (r, i);
      recv_part (r, p, p, rounds (r) ? (void *) slot (r, i - 1) : out_at (r, p * r->piece + r->at, r->c.t));
    }
    for (int i = 1; i < n; i++) send_part (r, other (r, i), me, summed (r));
  }
  return true;
}

static void work_reduce (struct run *r)
{
  int n = size_of (r), me = me_of (r);
  if (r->phase == 0) add_up (r, in_at (r, me * r->piece + r->at, r->c.it), r->c.it, summed (r), r->c.t, real (r, me));
  else {
    for (int i = 0; rounds (r) && i < n; i++) {
      int p = i ? other (r, i) : me;
      cpu_cast (out_at (r, p * r->piece + r->at, r->c.ot), r->c.ot, i ? (void *) slot (r, i - 1) : summed (r), r->c.t, real (r, p));
    }
    r->at += r->len;
  }
  r->phase = !r->phase;
}

/* ---- one collective ---- */

enum { REDUCE_SMALL = OP_N, WAY_N };   /* an all-reduce has two ways */
struct way { bool (*post) (struct run *r); void (*work) (struct run *r); };
static const struct way way_table[WAY_N] = {
  [OP_ALL_GATHER] = { post_gather, work_gather },
  [OP_REDUCE_SCATTER] = { post_scatter, work_scatter },
  [OP_ALL_REDUCE] = { post_reduce, work_reduce },
  [OP_BROADCAST] = { post_broadcast, work_none },
  [OP_SEND] = { post_send, work_none },
  [OP_RECV] = { post_recv, work_none },
  [OP_ALL_TO_ALL] = { post_to_all, work_to_all },
  [REDUCE_SMALL] = { post_small, work_small },
};

/* Slots that a round needs in the staging memory. */
static int slots (const struct run *r)
{
  int others = size_of (r) - 1;
  if (r->kind == OP_REDUCE_SCATTER) return r->c.it == r->c.t ? others : 2 * others;
  return r->kind == OP_ALL_REDUCE ? (rounds (r) ? 2 * others + 1 : others) : 0;
}

/* Elements that any rank has for any other: all have the same number of rounds with those that they share a message with. */
static int64_t longest_part (const struct run *r)
{
  int64_t most = 0;
  for (int i = 0; i < size_of (r); i++) most = MAX (most, MAX (r->c.send_count[i], r->c.recv_count[i]));
  return most;
}

static int64_t piece_of (const struct run *r)
{
  if (r->kind == OP_ALL_TO_ALL && r->c.send_count) return longest_part (r);
  return r->way == OP_ALL_REDUCE ? ceil_div (r->c.count, size_of (r)) : r->c.count;
}

static int64_t chunk_of (const struct run *r, int64_t limit)
{
  int64_t chunk = MIN (CHUNK_MAX, ROUND_BYTES / (size_of (r) * r->size));
  if (slots (r)) chunk = MIN (chunk, r->c.g->stage_bytes / (slots (r) * r->size));
  if (limit > 0) chunk = MIN (chunk, limit);
  return MAX (chunk, 1);
}

static void post (struct run *r) { r->state = way_table[r->way].post (r) ? STATE_TEST : STATE_END; }

void run_begin (struct run *r, const struct op *o, struct dev *d)
{
  const struct dev_conf *c = &d->conf;
  *r = (struct run) { .dev = d, .kind = o->kind, .way = o->kind, .c = o->coll, .start = now (), .delay = c->comm_delay_ms * 1e-3, .sync_send = c->sync_send };
  r->c.in = cpu_at (o->coll.in);
  r->c.out = cpu_at (o->coll.out);
  r->size = dtype_size (r->c.t);
  if (r->kind == OP_ALL_REDUCE) {
    if (!r->c.in) r->c.in = r->c.out;
    r->c.beta = 0;
    r->c.ot = r->c.it;   /* one buffer type */
    if (r->c.count * r->size <= SMALL_BYTES || size_of (r) == 1) r->way = REDUCE_SMALL;
  }
  r->piece = piece_of (r);
  r->chunk = chunk_of (r, c->comm_chunk);
  post (r);
}

/* The debug delay holds back the end, as a slow link would. */
static enum run_state end (struct run *r)
{
  double t = now () - r->start;
  if (t < r->delay) return RUN_WAITS;
  group_stat (r->c.g, r->kind)->busy += t;
  int64_t seq = ++r->dev->done[r->c.g->head.kind];
  if (r->dev->trace.on)
    dev_span_add (r->dev, &(struct dev_span) { .kind = SPAN_COLL, .queue = group_name (r->c.g->head.kind), .name = op_name (r->kind), .group = r->c.g->head.kind, .seq = seq,
      .bytes = dev_coll_bytes (&(struct op) { .kind = r->kind, .coll = r->c }), .begin = r->start, .end = r->start + t });
  return RUN_DONE;
}

enum run_state run_step (struct run *r)
{
  if (r->state == STATE_END) return end (r);
  if (!messages_done (r)) return RUN_WAITS;
  way_table[r->way].work (r);
  post (r);
  if (r->state == STATE_END && end (r) == RUN_DONE) return RUN_DONE;
  return RUN_MOVED;
}
