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

/* my piece of `in` receives the sum in place; then it is added to or copied into out. */
static void reduce_scatter (struct queue *q, const struct op_coll *c)
{
  struct group *g = c->g;
  char *in = (char *) c->in, *own = in + g->head.rank * c->count * dtype_size (c->t);
  MUST (c->it == c->t, "reduce-scatter on cuda sends gradients as they are stored: sharding.reduce_dtype must be sharding.grad_dtype");
  bool direct = c->beta == 0 && c->ot == c->t;
  void *to = direct ? c->out : own;
  NC (ncclReduceScatter (in, to, (size_t) c->count, type_of[c->t], ncclSum, g->comm, q->s));
  settle (g->comm, "reduce-scatter");
  if (!direct && (void *) own != c->out) cast (own, c->t, c->out, c->ot, c->count, c->beta, q->s);
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
  case OP_ALL_REDUCE: NC (ncclAllReduce (in, c->out, n, t, c->max ? ncclMax : ncclSum, g->comm, q->s)); break;
  case OP_BROADCAST: NC (ncclBroadcast (c->out, c->out, n, t, c->root, g->comm, q->s)); break;
  case OP_SEND: NC (ncclSend (c->in, n, t, 1 - g->head.rank, g->comm, q->s)); break;
  case OP_RECV: NC (ncclRecv (c->out, n, t, 1 - g->head.rank, g->comm, q->s)); break;
  default: all_to_all (q, c); break;
  }
  settle (g->comm, "a collective");
}
