/* The cuda device: its table, memory, streams and events. GEMMs are in gemm.c, collectives in nccl.c, attention in attn.c and cudnn.c, kernels in *.cu. */
#include "cuda.h"
#include "build_id.h"
#include "dev_limits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct host *H;

static struct cuda *of (struct dev *d) { return d->impl; }
static struct graph *capturing;

/* ---- open and close ---- */

/* One GPU for a rank. A launcher that binds ranks shows each its own GPU or its own few, else a rank takes that of its place on the node. The program compares
   what the ranks of a node took. */
static int pick_gpu (const struct dev_conf *c, int *gpu, struct err *e)
{
  int n = 0;
  cudaError_t r = cudaGetDeviceCount (&n);
  if (r != cudaSuccess || n < 1) return H->user_err (e, "no GPU can be used here (%s): run with --run.device cpu", r == cudaSuccess ? "none is visible" : cudaGetErrorString (r));
  *gpu = c->local_rank % n;
  return 0;
}

static void libraries (char *out, size_t size)
{
  int nccl = 0, cuda = 0, driver = 0;
  ncclGetVersion (&nccl);
  cudaRuntimeGetVersion (&cuda);
  cudaDriverGetVersion (&driver);
  snprintf (out, size, "NCCL %d.%d.%d, CUDA %d.%d, driver for %d.%d", nccl / 10000, nccl / 100 % 100, nccl % 100, cuda / 1000, cuda / 10 % 100, driver / 1000, driver / 10 % 100);
}

static int cuda_open (struct dev *d, const struct dev_conf *c, struct err *e)
{
  int gpu = 0;
  if (pick_gpu (c, &gpu, e)) return -1;
  if (c->shared_gpu) {   /* NCCL refuses two ranks on one device of one host; for tests each rank pretends to be a host */
    char id[32];
    snprintf (id, sizeof id, "tessera%d", c->local_rank);
    setenv ("NCCL_HOSTID", id, 1);
    setenv ("NCCL_SOCKET_IFNAME", "lo", 0);
  }
  setenv ("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  if (cudaSetDevice (gpu) != cudaSuccess || cudaFree (NULL) != cudaSuccess)
    return H->user_err (e, "GPU %d cannot be used: %s", gpu, cudaGetErrorString (cudaGetLastError ()));
  struct cuda *x = H->xalloc (sizeof *x, "cuda device");
  x->gpu = gpu;
  LT (cublasLtCreate (&x->lt));
  d->impl = x;
  spans_open (x);
  if (c->op_times) times_open (x);
  char pci[20] = "?";
  cudaDeviceGetPCIBusId (pci, sizeof pci, gpu);
  snprintf (d->id, sizeof d->id, "%s", pci);
  libraries (d->libraries, sizeof d->libraries);
  struct cudaDeviceProp prop;
  if (cudaGetDeviceProperties (&prop, gpu) == cudaSuccess) snprintf (d->name, sizeof d->name, "%.63s", prop.name);
  return 0;
}

static void cuda_close (struct dev *d)
{
  if (of (d)->times) times_close (of (d));
  spans_close (of (d));
  gemm_close ();
  algo_close ();
  cublasLtDestroy (of (d)->lt);
  H->xfree (d->impl);
}

/* A GPU that ranks share is planned in equal parts. */
static int64_t memory (struct dev *d)
{
  size_t room, all;
  CU (cudaMemGetInfo (&room, &all));
  return (int64_t) all / (d->conf.shared_gpu && d->conf.local_size > 0 ? d->conf.local_size : 1);
}

/* Of all processes: a GPU has one rank. */
static int64_t used (struct dev *d)
{
  (void) d;
  size_t room, all;
  CU (cudaMemGetInfo (&room, &all));
  return (int64_t) (all - room);
}

/* ---- memory ---- */

static void *cuda_reserve (struct dev *d, enum space s, int64_t bytes, struct err *e)
{
  (void) d;
  void *p = NULL;
  if (s == SPACE_DEVICE) {
    size_t room = 0, all = 0;
    cudaError_t r = cudaMalloc (&p, (size_t) bytes);
    if (r != cudaSuccess) {
      cudaGetLastError ();
      cudaMemGetInfo (&room, &all);
      return H->user_err (e, "%.2f GiB do not fit: the GPU has %.2f GiB, %.2f GiB of them free", bytes / 0x1p30, all / 0x1p30, room / 0x1p30), NULL;
    }
    CU (cudaMemset (p, 0, (size_t) bytes));
    CU (cudaDeviceSynchronize ());
    return p;
  }
  if (s == SPACE_PINNED) {
    if (cudaHostAlloc (&p, (size_t) bytes, cudaHostAllocDefault) != cudaSuccess) {
      cudaGetLastError ();
      return H->user_err (e, "%.2f GiB of pinned host memory cannot be had", bytes / 0x1p30), NULL;
    }
  } else if (posix_memalign (&p, 4096, (size_t) bytes)) return H->user_err (e, "%.2f GiB of host memory cannot be had", bytes / 0x1p30), NULL;
  memset (p, 0, (size_t) bytes);
  return p;
}

static void cuda_release (struct dev *d, enum space s, void *p, int64_t bytes)
{
  (void) d, (void) bytes;
  if (s == SPACE_DEVICE) CU (cudaFree (p));
  else if (s == SPACE_PINNED) CU (cudaFreeHost (p));
  else free (p);
}

/* ---- queues and events ---- */

static struct queue *queue_open (struct dev *d, enum queue_kind k, const char *name, void *work, int64_t work_bytes)
{
  int low, high;
  struct queue *q = H->xalloc (sizeof *q, "queue");
  *q = (struct queue) { .dev = d, .kind = k, .work = work, .work_bytes = work_bytes, .name = name };
  CU (cudaDeviceGetStreamPriorityRange (&low, &high));
  CU (cudaStreamCreateWithPriority (&q->s, cudaStreamNonBlocking, k == QUEUE_COMM ? high : low));
  q->next = of (d)->queues;
  of (d)->queues = q;
  return q;
}

/* The host waits for a stream or event without blocking in the driver, so that errors of a group are seen. */
static void wait_host (struct dev *d, cudaError_t (*query) (void *), void *what)
{
  cudaError_t r;
  int state = 0;
  for (int64_t n = 0; (r = query (what)) == cudaErrorNotReady; n++) {
    if (n % 1024 == 1023) nccl_check (d);
    if (n > 4096) H->wait_idle (&state);
  }
  MUST (r == cudaSuccess, "CUDA: %s", cudaGetErrorString (r));
}
static cudaError_t query_stream (void *s) { return cudaStreamQuery ((cudaStream_t) s); }
static cudaError_t query_event (void *e) { return cudaEventQuery ((cudaEvent_t) e); }

static void queue_close (struct dev *d, struct queue *q)
{
  wait_host (d, query_stream, q->s);
  struct queue **at = &of (d)->queues;
  while (*at != q) at = &(*at)->next;
  *at = q->next;
  CU (cudaStreamDestroy (q->s));
  H->xfree (q);
}

static struct event *event_open (struct dev *d)
{
  (void) d;
  struct event *ev = H->xalloc (sizeof *ev, "event");
  CU (cudaEventCreateWithFlags (&ev->e, cudaEventDisableTiming));
  return ev;
}

static void event_close (struct dev *d, struct event *ev)
{
  (void) d;
  CU (cudaEventDestroy (ev->e));
  H->xfree (ev);
}

static void record (struct dev *d, struct queue *q, struct event *ev)
{
  (void) d;
  ev->after = q->kind == QUEUE_COMM ? q->last : NULL;
  ev->name = q->last_name;
  CU (cudaEventRecord (ev->e, q->s));
}

static void wait (struct dev *d, struct queue *q, struct event *ev)
{
  bool timed = q->kind == QUEUE_COMPUTE && ev->after && !capturing;
  int64_t span = timed ? spans_begin (of (d), q, &ev->after->exposed, &d->phase[of (d)->phase].waited, &(struct dev_span) { .kind = SPAN_WAIT, .name = ev->name }) : 0;
  CU (cudaStreamWaitEvent (q->s, ev->e, 0));
  if (timed) spans_end (of (d), q, span);
}

static void sync (struct dev *d, struct event *ev) { wait_host (d, query_event, ev->e); }

static void drain (struct dev *d)
{
  for (struct queue *q = of (d)->queues; q; q = q->next) wait_host (d, query_stream, q->s);
  nccl_check (d);
}

static void fetch (struct dev *d, struct event *ev, void *dst, const void *pinned, int64_t bytes, const void *sim_answer)
{
  (void) sim_answer;
  sync (d, ev);
  spans_read (d);
  memcpy (dst, pinned, (size_t) bytes);
}

/* ---- graphs ---- */

/* What a launch counts: the operations that were captured. */
struct graph { cudaGraphExec_t exec; struct op *op; int n, room; struct group *group[GROUP_N]; int groups; };

static void remember (const struct op *o)
{
  struct graph *g = capturing;
  if (g->n == g->room) {
    int room = g->room ? 2 * g->room : 256;
    struct op *p = H->xalloc ((size_t) room * sizeof *p, "graph");
    if (g->n) memcpy (p, g->op, (size_t) g->n * sizeof *p);
    H->xfree (g->op);
    g->op = p;
    g->room = room;
  }
  g->op[g->n++] = *o;
  if (o->kind < OP_COLL_FIRST) return;
  int i = 0;
  while (i < g->groups && g->group[i] != o->coll.g) i++;
  if (i == GROUP_N) return;
  g->group[i] = o->coll.g;
  g->groups = i < g->groups ? g->groups : i + 1;
}

static void graph_begin (struct dev *d, struct queue *q)
{
  capturing = H->xalloc (sizeof *capturing, "graph");
  d->recording = true;
  CU (cudaStreamBeginCapture (q->s, cudaStreamCaptureModeThreadLocal));
}

static struct graph *graph_end (struct dev *d, struct queue *q)
{
  cudaGraph_t g;
  struct graph *r = capturing;
  CU (cudaStreamEndCapture (q->s, &g));
  CU (cudaGraphInstantiate (&r->exec, g, 0));
  CU (cudaGraphDestroy (g));
  d->recording = false;
  capturing = NULL;
  return r;
}

static void graph_launch (struct dev *d, struct queue *q, struct graph *g)
{
  for (int i = 0; i < g->n; i++) H->dev_count (d, &g->op[i]);
  CU (cudaGraphLaunch (g->exec, q->s));
  for (int i = 0; i < g->groups; i++) nccl_mark (d, g->group[i], q);
}

static void graph_free (struct dev *d, struct graph *g)
{
  (void) d;
  CU (cudaGraphExecDestroy (g->exec));
  H->xfree (g->op);
  H->xfree (g);
}

/* ---- operations ---- */

/* Scratch of the queue for a kernel that needs BYTES. */
static void *work_of (struct queue *q, int64_t bytes)
{
  MUST (bytes <= q->work_bytes, "queue %s has %lld bytes of workspace, an operation needs %lld", q->name, (long long) q->work_bytes, (long long) bytes);
  return q->work;
}

static void op_copy (struct dev *d, struct queue *q, const struct op *o)
{
  (void) d;
  const struct op_copy *c = &o->copy;
  if (c->rows > 1) CU (cudaMemcpy2DAsync (c->dst, (size_t) c->dst_pitch, c->src, (size_t) c->src_pitch, (size_t) c->bytes, (size_t) c->rows, cudaMemcpyDefault, q->s));
  else CU (cudaMemcpyAsync (c->dst, c->src, (size_t) c->bytes, cudaMemcpyDefault, q->s));
}

static void op_zero (struct dev *d, struct queue *q, const struct op *o)
{
  (void) d;
  CU (cudaMemsetAsync (o->zero.dst, 0, (size_t) o->zero.bytes, q->s));
}

/* Operations that are one launch of a kernel of ours, with or without scratch. */
#define LAUNCH(NAME, field) static void op_##NAME (struct dev *d, struct queue *q, const struct op *o) { (void) d; CU (k_##NAME (&o->field, q->s)); }
#define LAUNCH_WORK(NAME, field) static void op_##NAME (struct dev *d, struct queue *q, const struct op *o) \
  { (void) d; CU (k_##NAME (&o->field, work_of (q, k_##NAME##_work (&o->field)), q->s)); }
LAUNCH (axpby, axpby)
LAUNCH (init, init)
LAUNCH (gemm_grouped, grouped)
LAUNCH (norm, norm)
LAUNCH_WORK (norm_bwd, norm_bwd)
LAUNCH (rope, rope)
LAUNCH (swiglu, swiglu)
LAUNCH (swiglu_bwd, swiglu_bwd)
LAUNCH_WORK (colsum, colsum)
LAUNCH (embed, embed)
LAUNCH (embed_bwd, embed_bwd)
LAUNCH (xent_max, xent)
LAUNCH (xent_sum, xent)
LAUNCH (xent_stats, xent)
LAUNCH_WORK (xent_grad, xent)
LAUNCH_WORK (sumsq, sumsq)
LAUNCH_WORK (amax, amax)
LAUNCH (checksum, checksum)
LAUNCH (quant, quant)
LAUNCH (step_vars, step_vars)
LAUNCH (adamw, adamw)

static op_fn *const action[OP_N] = {
  [OP_COPY] = op_copy, [OP_ZERO] = op_zero, [OP_AXPBY] = op_axpby, [OP_INIT] = op_init, [OP_GEMM] = cuda_gemm, [OP_GEMM_GROUPED] = op_gemm_grouped,
  [OP_NORM] = op_norm, [OP_NORM_BWD] = op_norm_bwd, [OP_ROPE] = op_rope, [OP_ATTN] = cuda_attn, [OP_ATTN_BWD] = cuda_attn_bwd, [OP_SWIGLU] = op_swiglu,
  [OP_SWIGLU_BWD] = op_swiglu_bwd, [OP_COLSUM] = op_colsum, [OP_EMBED] = op_embed, [OP_EMBED_BWD] = op_embed_bwd, [OP_XENT_MAX] = op_xent_max,
  [OP_XENT_SUM] = op_xent_sum, [OP_XENT_STATS] = op_xent_stats, [OP_XENT_GRAD] = op_xent_grad, [OP_SUMSQ] = op_sumsq, [OP_AMAX] = op_amax, [OP_CHECKSUM] = op_checksum,
  [OP_STEP_VARS] = op_step_vars, [OP_ADAMW] = op_adamw,
  [OP_QUANT] = op_quant, [OP_GEMM_FP8] = cuda_gemm_fp8,
  [OP_ALL_GATHER ... OP_N - 1] = cuda_coll,
};

static int64_t span_of (struct dev *d, struct queue *q, const struct op *o)
{
  struct dev_span s = { .kind = SPAN_OP, .name = H->op_name (o->kind) };
  if (o->kind < OP_COLL_FIRST) return spans_begin (of (d), q, NULL, NULL, &s);
  enum group_kind k = ((struct group_head *) o->coll.g)->kind;
  s.kind = SPAN_COLL;
  s.group = k;
  s.seq = d->issued[k];
  s.bytes = H->dev_coll_bytes (o);
  q->last = group_stat (o->coll.g, o->kind);
  q->last_name = H->group_name (k);
  return spans_begin (of (d), q, &q->last->busy, NULL, &s);
}

static void issue (struct dev *d, struct queue *q, const struct op *o)
{
  struct times *t = capturing ? NULL : of (d)->times;
  if (capturing) remember (o);
  bool timed = (o->kind >= OP_COLL_FIRST || d->trace.on) && !capturing;
  int64_t span = timed ? span_of (d, q, o) : 0;
  if (t) times_begin (t, q, o);
  action[o->kind] (d, q, o);
  if (t) times_end (t, q);
  if (timed) spans_end (of (d), q, span);
}

static void *no_host (struct dev *d, void *p) { return (void) d, (void) p, NULL; }

static const struct dev_limits limits = { LIMITS_CUDA };

static const struct dev_ops ops = {
  .name = "cuda", .limits = &limits, .open = cuda_open, .close = cuda_close, .memory = memory, .used = used, .reserve = cuda_reserve, .release = cuda_release, .host = no_host,
  .queue_open = queue_open, .queue_close = queue_close, .event_open = event_open, .event_close = event_close, .record = record, .wait = wait, .sync = sync,
  .drain = drain, .fetch = fetch, .tuned = cuda_tuned, .tune = cuda_tune, .group_open = cuda_group_open, .group_close = cuda_group_close,
  .phase = cuda_phase, .trace = cuda_trace,
  .graph_begin = graph_begin, .graph_end = graph_end, .graph_launch = graph_launch, .graph_free = graph_free,
  .op = { [0 ... OP_N - 1] = issue },
};

__attribute__ ((visibility ("default"))) const struct dev_ops *dev_module (const struct host *h)
{
  if (h->abi != HOST_ABI || h->size != sizeof *h || strcmp (h->build, BUILD_ID)) return NULL;
  H = h;
  return &ops;
}
