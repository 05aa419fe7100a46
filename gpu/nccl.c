/* Collectives through NCCL. A group is one communicator, made without blocking and with a deadline, its id carried by the program. */
#include "cuda.h"
#include <string.h>

enum { OPEN_SECONDS = 120 };

static const ncclDataType_t type_of[DT_N] = { [DT_F32] = ncclFloat32, [DT_BF16] = ncclBfloat16, [DT_F64] = ncclFloat64, [DT_I32] = ncclInt32, [DT_I64] = ncclInt64, [DT_U8] = ncclUint8 };

/* A non-blocking call is under way: wait for it. */
static void settle (ncclComm_t c, const char *what)
{
  ncclResult_t r = ncclInProgress;
  double start = H->now ();
  for (int state = 0; r == ncclInProgress;) {
    ncclResult_t q = ncclCommGetAsyncError (c, &r);
    MUST (q == ncclSuccess, "NCCL: %s", ncclGetErrorString (q));
    MUST (H->now () - start < OPEN_SECONDS, "NCCL: %s takes more than %d s: a rank of the group did not come", what, OPEN_SECONDS);
    if (r == ncclInProgress) H->wait_idle (&state);
  }
  MUST (r == ncclSuccess, "NCCL: %s: %s (%s)", what, ncclGetErrorString (r), ncclGetLastError (c));
}

struct group *cuda_group_open (struct dev *d, const struct group_spec *s)
{
  struct cuda *x = d->impl;
  struct group *g = H->xalloc (sizeof *g, "group");
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  *g = (struct group) { .head = { .kind = s->kind, .n = s->n, .rank = s->rank }, .stage = s->stage, .stage_bytes = s->stage_bytes };
  if (s->rank == 0) NC (ncclGetUniqueId (&id));
  H->bcast (s, &id, sizeof id);
  ncclResult_t r = ncclCommInitRankConfig (&g->comm, s->n, id, s->rank, &config);
  MUST (r == ncclSuccess || r == ncclInProgress, "NCCL: a communicator of %d ranks: %s (%s)", s->n, ncclGetErrorString (r), ncclGetLastError (NULL));
  settle (g->comm, "making a communicator");
  MUST (x->n_groups < 64, "too many groups");
  x->groups[x->n_groups++] = g;
  return g;
}

void cuda_group_close (struct dev *d, struct group *g)
{
  struct cuda *x = d->impl;
  for (int i = 0; i < x->n_groups; i++)
    if (x->groups[i] == g) x->groups[i] = x->groups[--x->n_groups];
  NC (ncclCommFinalize (g->comm));
  settle (g->comm, "closing a communicator");
  NC (ncclCommDestroy (g->comm));
  H->xfree (g);
}

void nccl_check (struct cuda *x)
{
  for (int i = 0; i < x->n_groups; i++) {
    ncclResult_t r;
    ncclCommGetAsyncError (x->groups[i]->comm, &r);
    MUST (r == ncclSuccess || r == ncclInProgress, "NCCL: group of %d ranks: %s (%s)", x->groups[i]->head.n, ncclGetErrorString (r), ncclGetLastError (x->groups[i]->comm));
  }
}

static void cast (const void *x, enum dtype xt, void *y, enum dtype yt, int64_t n, float beta, cudaStream_t s)
{
  struct op_axpby o = { .y = y, .x = x, .n = n, .yt = yt, .xt = xt, .alpha = 1, .beta = beta };
  CU (k_axpby (&o, s));
}

/* ---- reductions whose wire has another type than memory: pieces are cast into staging, exchanged, and folded in rank order in fp32 (op.h), so that nothing is
   rounded on the way but what op.h says. A round takes as much as two buffers of all ranks' pieces in staging hold. ---- */

struct wire { char *send, *recv; int64_t room, size; };   /* room: elements of a rank's piece in either buffer; size: bytes of one */

static struct wire wire_of (const struct op_coll *c)
{
  const struct group *g = c->g;
  int64_t size = dtype_size (c->t), room = g->stage_bytes / (2 * g->head.n * size) / 128 * 128;
  MUST (room > 0, "a group of %d ranks needs more than %lld bytes of staging", g->head.n, (long long) g->stage_bytes);
  return (struct wire) { g->stage, (char *) g->stage + g->head.n * room * size, room, size };
}

/* Piece r of send, n[r] elements, goes to rank r; theirs for me, n[me] elements each, come into recv. My own is there already. */
static void exchange (struct queue *q, const struct group *g, const struct wire *w, const int64_t *n, enum dtype t)
{
  int me = g->head.rank;
  NC (ncclGroupStart ());
  for (int r = 0; r < g->head.n; r++) {
    if (r != me && n[r]) NC (ncclSend (w->send + r * w->room * w->size, (size_t) n[r], type_of[t], r, g->comm, q->s));
    if (r != me && n[me]) NC (ncclRecv (w->recv + r * w->room * w->size, (size_t) n[me], type_of[t], r, g->comm, q->s));
  }
  NC (ncclGroupEnd ());
  settle (g->comm, "an exchange");
}

static void wire_fold (struct queue *q, const struct op_coll *c, const struct wire *w, int64_t stride, int64_t count, void *out, enum dtype ot, float beta)
{
  struct fold f = { .src = w->recv, .n = ((struct group *) c->g)->head.n, .stride = stride, .count = count, .t = c->t, .ot = ot, .out = out, .beta = beta, .max = c->max };
  CU (k_fold (&f, q->s));
}

static void wire_scatter (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  struct wire w = wire_of (c);
  int64_t n[g->head.n];
  for (int64_t at = 0, len; at < c->count; at += len) {
    len = c->count - at < w.room ? c->count - at : w.room;
    for (int r = 0; r < g->head.n; r++) {
      n[r] = len;
      cast ((char *) c->in + (r * c->count + at) * dtype_size (c->it), c->it, (r == g->head.rank ? w.recv : w.send) + r * w.room * w.size, c->t, len, 0, q->s);
    }
    exchange (q, g, &w, n, c->t);
    wire_fold (q, c, &w, w.room, len, (char *) c->out + at * dtype_size (c->ot), c->ot, c->beta);
  }
}

/* Small ones: every rank has all shares and folds them itself. */
static void wire_reduce_small (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  struct wire w = wire_of (c);
  cast (c->in ? c->in : c->out, c->it, w.send, c->t, c->count, 0, q->s);
  NC (ncclAllGather (w.send, w.recv, (size_t) c->count, type_of[c->t], g->comm, q->s));
  settle (g->comm, "all-reduce");
  wire_fold (q, c, &w, c->count, c->count, c->out, c->it, 0);
}

/* A part of each rank, a round at a time: pieces to their owners, folded and rounded to the wire's type, gathered, cast. */
static void wire_reduce (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  struct wire w = wire_of (c);
  const char *in = c->in ? c->in : c->out;
  int n_ranks = g->head.n, me = g->head.rank;
  int64_t part = (c->count + n_ranks - 1) / n_ranks, is = dtype_size (c->it), n[n_ranks];
  if (c->count * w.size <= 1024 && c->count <= w.room) {
    wire_reduce_small (q, c);
    return;
  }
  for (int64_t at = 0, len; at < part; at += len) {
    len = part - at < w.room ? part - at : w.room;
    for (int r = 0; r < n_ranks; r++) {
      int64_t left = c->count - (r * part + at);
      n[r] = left < 0 ? 0 : left < len ? left : len;
      if (n[r]) cast (in + (r * part + at) * is, c->it, (r == me ? w.recv : w.send) + r * w.room * w.size, c->t, n[r], 0, q->s);
    }
    exchange (q, g, &w, n, c->t);
    wire_fold (q, c, &w, w.room, n[me], w.send + me * w.room * w.size, c->t, 0);
    NC (ncclAllGather (w.send + me * w.room * w.size, w.send, (size_t) w.room, type_of[c->t], g->comm, q->s));
    settle (g->comm, "all-reduce");
    for (int r = 0; r < n_ranks; r++)
      if (n[r]) cast (w.send + r * w.room * w.size, c->t, (char *) c->out + (r * part + at) * is, c->it, n[r], 0, q->s);
  }
}

/* my piece of `in` receives the sum in place; then it is added to or copied into out. */
static void reduce_scatter (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  char *in = (char *) c->in, *own = in + g->head.rank * c->count * dtype_size (c->t);
  if (c->it != c->t) {
    wire_scatter (q, c);
    return;
  }
  bool direct = c->beta == 0 && c->ot == c->t;
  void *to = direct ? c->out : own;
  NC (ncclReduceScatter (in, to, (size_t) c->count, type_of[c->t], ncclSum, g->comm, q->s));
  settle (g->comm, "reduce-scatter");
  if (!direct && (void *) own != c->out) cast (own, c->t, c->out, c->ot, c->count, c->beta, q->s);
}

static void all_reduce (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  if (c->it != c->t) {
    wire_reduce (q, c);
    return;
  }
  NC (ncclAllReduce (c->in ? c->in : c->out, c->out, (size_t) c->count, type_of[c->t], c->max ? ncclMax : ncclSum, g->comm, q->s));
  settle (g->comm, "all-reduce");
}

static void all_to_all (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  int64_t es = dtype_size (c->t), so = 0, ro = 0;
  NC (ncclGroupStart ());
  for (int r = 0; r < g->head.n; r++) {
    int64_t ns = c->send_count ? c->send_count[r] : c->count, nr = c->recv_count ? c->recv_count[r] : c->count;
    if (ns) NC (ncclSend ((char *) c->in + so * es, (size_t) ns, type_of[c->t], r, g->comm, q->s));
    if (nr) NC (ncclRecv ((char *) c->out + ro * es, (size_t) nr, type_of[c->t], r, g->comm, q->s));
    so += ns, ro += nr;
  }
  NC (ncclGroupEnd ());
}

void cuda_coll (struct dev *d, struct queue *q, const struct op *o)
{
  (void) d;
  const struct op_coll *c = &o->coll;
  struct group *g = c->g;
  size_t n = (size_t) c->count;
  ncclDataType_t t = type_of[c->t];
  const void *in = c->in ? c->in : c->out;
  switch (o->kind) {
  case OP_ALL_GATHER:
    if (!c->in) in = (char *) c->out + g->head.rank * c->count * dtype_size (c->t);
    NC (ncclAllGather (in, c->out, n, t, g->comm, q->s));
    break;
  case OP_REDUCE_SCATTER: reduce_scatter (q, c); return;
  case OP_ALL_REDUCE: all_reduce (q, c); return;
  case OP_BROADCAST: NC (ncclBroadcast (c->out, c->out, n, t, c->root, g->comm, q->s)); break;
  case OP_SEND: NC (ncclSend (c->in, n, t, 1 - g->head.rank, g->comm, q->s)); break;
  case OP_RECV: NC (ncclRecv (c->out, n, t, 1 - g->head.rank, g->comm, q->s)); break;
  default: all_to_all (q, c); break;
  }
  settle (g->comm, "a collective");
}
