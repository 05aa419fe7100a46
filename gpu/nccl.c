/* Collectives through NCCL. A group is one communicator, made without blocking and with a deadline, its id carried by the program. */
#define _GNU_SOURCE
#include "cuda.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

/* SETTLE: for peers to come; the first collective of a communicator makes its connections. */
enum { SETTLE_SECONDS = 120, GIVE_UP_SECONDS = 5 };

static const ncclDataType_t type_of[DT_N] = { [DT_F32] = ncclFloat32, [DT_BF16] = ncclBfloat16, [DT_F64] = ncclFloat64, [DT_I32] = ncclInt32, [DT_I64] = ncclInt64, [DT_U8] = ncclUint8 };

/* ---- what is done, and what went wrong ---- */

static struct dev *the_dev;   /* for give_up */

static _Noreturn void fail (const struct group *g, const char *words)
{
  char stuck[600];
  H->dev_stuck (g->dev, stuck, sizeof stuck);
  H->die_at (__FILE__, __LINE__, EXIT_WORLD, "NCCL: %s in the %s group of %d ranks: %s (%s); collectives under way: %s", g->doing, H->group_name (g->head.kind), g->head.n, words,
             g->comm ? ncclGetLastError (g->comm) : "no communicator", stuck);
  __builtin_unreachable ();
}

void nccl_mark (struct dev *d, struct group *g, struct queue *q)
{
  if (g->last - g->first == COLL_NOTES) g->first++;
  CU (cudaEventRecord (g->mark[g->last % COLL_NOTES], q->s));
  g->number[g->last++ % COLL_NOTES] = d->issued[g->head.kind];
}

static void note_done (struct dev *d, struct group *g)
{
  while (g->first < g->last && cudaEventQuery (g->mark[g->first % COLL_NOTES]) == cudaSuccess) d->done[g->head.kind] = g->number[g->first++ % COLL_NOTES];
  cudaGetLastError ();   /* not ready is no error */
}

void nccl_check (struct dev *d)
{
  struct cuda *x = d->impl;
  for (int i = 0; i < x->n_groups; i++) {
    struct group *g = x->groups[i];
    ncclResult_t r = ncclSuccess, q = ncclCommGetAsyncError (g->comm, &r);
    if (!d->recording) note_done (d, g);   /* a query would end the capture */
    if (q != ncclSuccess) r = q;
    if (r != ncclSuccess && r != ncclInProgress) fail (g, ncclGetErrorString (r));
  }
}

/* A non-blocking call on G is under way: wait for it. */
static void settle (struct group *g)
{
  ncclResult_t r = ncclInProgress;
  double start = H->now ();
  for (int state = 0, n = 1;; n++) {
    ncclResult_t q = ncclCommGetAsyncError (g->comm, &r);
    if (q != ncclSuccess) r = q;
    if (r != ncclInProgress) break;
    if (H->now () - start > SETTLE_SECONDS) fail (g, "another rank of the group does not come");
    if (n % 1024 == 0) nccl_check (g->dev);
    H->wait_idle (&state);
  }
  if (r != ncclSuccess) fail (g, ncclGetErrorString (r));
}

/* A call on G that began has the result R. */
static void began (const struct group *g, ncclResult_t r)
{
  if (r != ncclSuccess && r != ncclInProgress) fail (g, ncclGetErrorString (r));
}

/* ---- give up: kernels that wait for a peer end, and so the process can ---- */

static void *abort_group (void *arg)
{
  ncclCommAbort (((struct group *) arg)->comm);
  return NULL;
}

/* Each in a thread of its own: an abort waits for the device, where the kernels of the others stand. */
static void give_up (void)
{
  pthread_t t[MAX_GROUPS];
  struct timespec until;
  struct cuda *x = the_dev->impl;
  int n = 0;
  while (n < x->n_groups && !pthread_create (&t[n], NULL, abort_group, x->groups[n])) n++;
  clock_gettime (CLOCK_REALTIME, &until);
  until.tv_sec += GIVE_UP_SECONDS;
  while (n > 0) pthread_timedjoin_np (t[--n], NULL, &until);
}

/* ---- groups ---- */

/* A link's first message makes its connection, for which both ends' hosts must come. They need not come in the same order: the last stage's first sum over the tied embedding
   can be ahead of what it sends, while the first stage waits for that. So a few bytes go over it at the start. */
static void connect_link (struct group *g)
{
  enum { BYTES = 16 };
  bool sends = g->head.kind == GROUP_F_OUT || g->head.kind == GROUP_B_OUT;
  cudaStream_t s;
  void *p;
  g->doing = "connecting";
  CU (cudaMalloc (&p, BYTES));
  CU (cudaStreamCreateWithFlags (&s, cudaStreamNonBlocking));
  began (g, sends ? ncclSend (p, BYTES, ncclUint8, 1 - g->head.rank, g->comm, s) : ncclRecv (p, BYTES, ncclUint8, 1 - g->head.rank, g->comm, s));
  settle (g);
  CU (cudaStreamSynchronize (s));
  CU (cudaStreamDestroy (s));
  CU (cudaFree (p));
}

struct group *cuda_group_open (struct dev *d, const struct group_spec *s)
{
  struct cuda *x = d->impl;
  struct group *g = H->xalloc (sizeof *g, "group");
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  *g = (struct group) { .dev = d, .doing = "making the communicator", .head = { .kind = s->kind, .n = s->n, .rank = s->rank }, .stage = s->stage, .stage_bytes = s->stage_bytes };
  if (s->rank == 0) NC (ncclGetUniqueId (&id));
  H->bcast (s, &id, sizeof id);
  began (g, ncclCommInitRankConfig (&g->comm, s->n, id, s->rank, &config));
  settle (g);
  if (s->kind >= GROUP_F_IN) connect_link (g);
  for (int i = 0; i < COLL_NOTES; i++) CU (cudaEventCreateWithFlags (&g->mark[i], cudaEventDisableTiming));
  MUST (x->n_groups < MAX_GROUPS, "too many groups");
  x->groups[x->n_groups++] = g;
  the_dev = d;
  H->give_up (give_up);
  return g;
}

void cuda_group_close (struct dev *d, struct group *g)
{
  struct cuda *x = d->impl;
  for (int i = 0; i < x->n_groups; i++)
    if (x->groups[i] == g) x->groups[i] = x->groups[--x->n_groups];
  if (!x->n_groups) H->give_up (NULL);
  spans_forget (d);
  g->doing = "closing the communicator";
  began (g, ncclCommFinalize (g->comm));
  settle (g);
  NC (ncclCommDestroy (g->comm));
  for (int i = 0; i < COLL_NOTES; i++) CU (cudaEventDestroy (g->mark[i]));
  H->xfree (g);
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
static void exchange (struct queue *q, struct group *g, const struct wire *w, const int64_t *n, enum dtype t)
{
  int me = g->head.rank;
  began (g, ncclGroupStart ());
  for (int r = 0; r < g->head.n; r++) {
    if (r != me && n[r]) began (g, ncclSend (w->send + r * w->room * w->size, (size_t) n[r], type_of[t], r, g->comm, q->s));
    if (r != me && n[me]) began (g, ncclRecv (w->recv + r * w->room * w->size, (size_t) n[me], type_of[t], r, g->comm, q->s));
  }
  began (g, ncclGroupEnd ());
  settle (g);
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
  began (g, ncclAllGather (w.send, w.recv, (size_t) c->count, type_of[c->t], g->comm, q->s));
  settle (g);
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
    began (g, ncclAllGather (w.send + me * w.room * w.size, w.send, (size_t) w.room, type_of[c->t], g->comm, q->s));
    settle (g);
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
  began (g, ncclReduceScatter (in, to, (size_t) c->count, type_of[c->t], ncclSum, g->comm, q->s));
  settle (g);
  if (!direct && (void *) own != c->out) cast (own, c->t, c->out, c->ot, c->count, c->beta, q->s);
}

static void all_reduce (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  if (c->it != c->t) {
    wire_reduce (q, c);
    return;
  }
  began (g, ncclAllReduce (c->in ? c->in : c->out, c->out, (size_t) c->count, type_of[c->t], c->max ? ncclMax : ncclSum, g->comm, q->s));
  settle (g);
}

static void all_to_all (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  int64_t es = dtype_size (c->t), so = 0, ro = 0;
  began (g, ncclGroupStart ());
  for (int r = 0; r < g->head.n; r++) {
    int64_t ns = c->send_count ? c->send_count[r] : c->count, nr = c->recv_count ? c->recv_count[r] : c->count;
    if (ns) began (g, ncclSend ((char *) c->in + so * es, (size_t) ns, type_of[c->t], r, g->comm, q->s));
    if (nr) began (g, ncclRecv ((char *) c->out + ro * es, (size_t) nr, type_of[c->t], r, g->comm, q->s));
    so += ns, ro += nr;
  }
  began (g, ncclGroupEnd ());
}

void cuda_coll (struct dev *d, struct queue *q, const struct op *o)
{
  const struct op_coll *c = &o->coll;
  struct group *g = c->g;
  size_t n = (size_t) c->count;
  ncclDataType_t t = type_of[c->t];
  const void *in = c->in ? c->in : c->out;
  g->doing = H->op_name (o->kind);
  switch (o->kind) {
  case OP_ALL_GATHER:
    if (!c->in) in = (char *) c->out + g->head.rank * c->count * dtype_size (c->t);
    began (g, ncclAllGather (in, c->out, n, t, g->comm, q->s));
    break;
  case OP_REDUCE_SCATTER: reduce_scatter (q, c); break;
  case OP_ALL_REDUCE: all_reduce (q, c); break;
  case OP_BROADCAST: began (g, ncclBroadcast (c->out, c->out, n, t, c->root, g->comm, q->s)); break;
  case OP_SEND: began (g, ncclSend (c->in, n, t, 1 - g->head.rank, g->comm, q->s)); break;
  case OP_RECV: began (g, ncclRecv (c->out, n, t, 1 - g->head.rank, g->comm, q->s)); break;
  default: all_to_all (q, c); break;
  }
  settle (g);
  if (!d->recording) nccl_mark (d, g, q);
}
