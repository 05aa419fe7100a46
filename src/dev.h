/* dev: the device boundary. The step of a rank is written once against this header; cpu, cuda and sim implement it.

   Nothing above the boundary looks into device memory, calls a maths library or sends a message: it issues *operations* (struct op) on *queues*.
   An operation is a tagged record of its arguments, so that one place (dev_issue) counts, records and replays all of them, an in-order queue can
   hold one back until its turn, and the sim device can price it without executing it. Each device is a table: what it does to memory, queues and events,
   and one function for each kind of operation.

   Pointers. Memory of SPACE_DEVICE is opaque to the host on every device: adding an offset is legal, looking is not (on the cpu device the address
   range handed out is never accessible, so every bypass of this boundary faults at once). SPACE_PINNED and SPACE_HOST are host memory that the device
   can copy from and to (on sim they fault too).

   Queues are in order; different queues run side by side unless an event orders them. A call returns at once (cpu: a compute queue has then done the work,
   a wait on a compute queue blocks and drives what is pending). One group belongs to one queue for life. All ranks of a group issue its collectives in the same order.

   Shapes are written slowest index first, row-major, without gaps unless a stride is given. Counts are elements, strides are elements, `bytes` are bytes.
   All matrices and pointers to them are aligned to limits.align bytes at the start of a slot. Nothing here allocates after open: workspace is handed in. */
#ifndef DEV_H
#define DEV_H
#include <mpi.h>
#include "base.h"
#include "dtype.h"

struct dev; struct queue; struct event; struct group; struct graph;

enum space { SPACE_DEVICE, SPACE_PINNED, SPACE_HOST, SPACE_N };

/* What memory is for: the rows of the memory report. */
enum purpose { MEM_WEIGHT, MEM_GATHER, MEM_GRAD, MEM_MASTER, MEM_MOMENT, MEM_ACT, MEM_LOGIT, MEM_COMM, MEM_WORK, MEM_STAGE, MEM_N };
const char *purpose_name (enum purpose p);

enum queue_kind { QUEUE_COMPUTE, QUEUE_COMM, QUEUE_COPY, QUEUE_HOST };   /* HOST: maths on host memory beside the device (offloaded optimizer) */

/* ---- operations ------------------------------------------------------------------------------------------------------------------- */
enum op_kind {
  /* memory */ OP_COPY, OP_ZERO, OP_AXPBY, OP_INIT,
  /* maths  */ OP_GEMM, OP_GEMM_GROUPED, OP_NORM, OP_NORM_BWD, OP_ROPE, OP_ATTN, OP_ATTN_BWD, OP_SWIGLU, OP_SWIGLU_BWD, OP_COLSUM,
               OP_EMBED, OP_EMBED_BWD, OP_XENT_MAX, OP_XENT_SUM, OP_XENT_GRAD, OP_SUMSQ, OP_AMAX, OP_STEP_VARS, OP_ADAMW,
  /* collectives; all take struct coll */
               OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_BROADCAST, OP_SEND, OP_RECV, OP_ALL_TO_ALL,
  OP_N
};
#define OP_COLL_FIRST OP_ALL_GATHER
const char *op_name (enum op_kind k);

/* dst[r][0..bytes) = src[r][..] for r < rows; pitches in bytes; rows 0 means 1. Any two spaces. No overlap. */
struct op_copy { void *dst; const void *src; int64_t bytes, rows, dst_pitch, src_pitch; };
struct op_zero { void *dst; int64_t bytes; };
/* y[i] = alpha x[i] + beta y[i], computed in fp32 and rounded once; x and y F32 or BF16; beta 0 does not read y. alpha, beta exact. x == y legal. */
struct op_axpby { void *y; const void *x; int64_t n; enum dtype yt, xt; float alpha, beta; };
/* Elements [start, start + n) of the local part [.., cols] of a parameter into dst[0..n) (F32): std * normal of the element's global index, or `value`.
   Local element i is (row0 + i / cols, col0 + i % cols) of the global matrix [.., gcols]; local rows >= rows are padding and become 0. rng.h defines the numbers. */
struct op_init { float *dst; int64_t start, n, cols, row0, rows, col0, gcols; bool normal; float std, value; uint64_t seed, key; };

/* C[m,n] = op(A)[m,k] op(B)[k,n] + beta C (+ bias[n] to each row). op = transpose where ta / tb: A is stored [k,m] then, B [n,k]. A and B have type ab,
   C type ct (F32 or BF16; F32 with BF16 operands legal), bias type ab. Sums in fp32. beta 0 or 1. ld 0 = dense. */
struct op_gemm { int64_t m, n, k, lda, ldb, ldc; const void *a, *b; void *c; const void *bias; enum dtype ab, ct; bool ta, tb; float beta; };
/* For g < groups: rows [off[g], off[g+1]) of A [max_rows, k] times B_g [k,n] (tb: [n,k]) into the same rows of C. off: I32 [groups + 1] on the device, off[groups] <= max_rows. */
struct op_gemm_grouped { int64_t groups, max_rows, n, k; const int32_t *off; const void *a, *b; void *c; enum dtype ab, ct; bool tb; float beta; };

/* RMSNorm of rows x inner vectors of length dim. Row r's vectors lie at x + r * x_stride + i * dim (y likewise with y_stride; 0 = inner * dim).
   s = x (+ res, then also written to sum; res and sum dense like x, type t); rstd = 1 / sqrt (mean (s^2) + eps); y = s * rstd * w. w has type wt. rstd F32 [rows, inner]. x == y, sum == x legal. */
struct op_norm { int64_t rows, inner, dim, x_stride, y_stride; const void *x, *res, *w; void *sum, *y; float *rstd; float eps; enum dtype t, wt; };
/* dx = (backward of dy) (+ dres); dw (type gt) = dw_beta * dw + this. x is s above. Strides as above for x, dy (y_stride) and dx (dx_stride). dx == dy, dx == dres legal.
   Deterministic: one order of summation for dw whatever the thread count. */
struct op_norm_bwd { int64_t rows, inner, dim, x_stride, y_stride, dx_stride; const void *dy, *x, *w, *dres; const float *rstd; void *dx, *dw; float dw_beta; enum dtype t, wt, gt; };

/* Rotate `heads` vectors of head_dim of each of n tokens in place, half-split (element i with i + head_dim/2). Token t's heads start at x + t * stride.
   table: F32 [positions, head_dim] = cos (first half) and sin (second half); position of token t is pos[t] (I32) or, pos NULL, pos0 + t % seq. inverse: rotate back. */
struct op_rope { void *x; int64_t n, heads, head_dim, stride, seq, pos0; const int32_t *pos; const float *table; bool inverse; enum dtype t; };

/* Causal attention of batch x sq queries on sk keys; o = softmax (q k^T / sqrt (head_dim)) v. Token t of sequence b of q lies at q + (b * sq + t) * q_stride + h * head_dim;
   k, v: (b * sk + t) * kv_stride; o: o_stride. Query head h uses KV head h * kv_heads / heads. Query i has position q0 + i, key j has k0 + j; i sees j if
   k0 + j <= q0 + i, k0 + j >= doc[b * sq + i] (I32, position of the first token of the query's document; NULL = 0), and within `window` positions (0 = any).
   lse F32 [batch, heads, sq] = log of the sum of exp of the scaled scores. merge: o and lse already hold a part over other keys and become the softmax over both.
   A query that sees no key gives o = 0, lse = -inf. */
struct op_attn { int64_t batch, sq, sk, heads, kv_heads, head_dim, q_stride, kv_stride, o_stride, q0, k0, window; const void *q, *k, *v; void *o; float *lse; const int32_t *doc; bool merge; enum dtype t; };
/* dq, dk, dv (strides as q, k, v; d_q_stride / d_kv_stride) from d_o (o_stride), o and lse of the forward (over all keys). delta: scratch F32 [batch, heads, sq]. accumulate: add to dk, dv, dq. */
struct op_attn_bwd { struct op_attn f; const void *d_o; void *dq, *dk, *dv; int64_t dq_stride, dkv_stride; float *delta; bool accumulate; };

/* gu [n, 2 f] = gate | up of each row; out [n, f] = silu (gate) * up. */
struct op_swiglu { int64_t n, f; const void *gu; void *out; enum dtype t; };
/* dgu [n, 2 f] from d_out [n, f] and gu; out (NULL or [n, f]) gets the forward's result again. dgu == gu legal. */
struct op_swiglu_bwd { int64_t n, f; const void *gu, *d_out; void *dgu, *out; enum dtype t; };
/* dst[c] (type gt) = beta * dst[c] + sum over rows of x[r * stride + c]: gradient of a bias. Deterministic. */
struct op_colsum { int64_t rows, cols, stride; const void *x; void *dst; float beta; enum dtype t, gt; };

/* out [n, dim] = rows v0 .. v0 + rows of the vocabulary are local in table [rows, dim] (type t); other ids give zeros. ids I32 [n]. */
struct op_embed { int64_t n, dim, v0, rows; const int32_t *ids; const void *table; void *out; enum dtype t; };
/* dtable [rows, dim] (type gt) = beta * dtable + sum of dy over the tokens with each id. Deterministic: tokens in order. work: I32 [2 n + 2 rows + 2] scratch. */
struct op_embed_bwd { int64_t n, dim, v0, rows; const int32_t *ids; const void *dy; void *dtable; float beta; int32_t *work; enum dtype t, gt; };

/* Cross-entropy over a vocabulary cut by tp. logits [n, ld], columns [0, cols) real with global id v0 + column, [cols, ld) padding. target I32 [n], global id, negative = not in the loss.
   XENT_MAX:  max[i] = max over real columns.                       (then all-reduce MAX over tp)
   XENT_SUM:  st[i] = sum exp (logit - max), st[n + i] = target's logit - max if it is local, else 0.  (then all-reduce SUM over tp)
   XENT_GRAD: acc[0] += sum over valid i of log st[i] - st[n + i], acc[1] += number of valid (acc F64, may be NULL: other tp ranks); if grad, in place
              logits = (softmax - onehot), 0 for invalid rows and padding: the gradient of the *sum* of losses, divided by nothing. */
struct op_xent { int64_t n, ld, cols, v0; void *logits; const int32_t *target; float *max, *st; double *acc; bool grad; enum dtype t; };

/* acc[0] += weight * sum x^2, acc[1] += number of values that are not finite (F64). Sums in fp64 in one order. weight 0: finite check alone. */
struct op_sumsq { const void *x; int64_t n; enum dtype t; double weight; double *acc; };
/* history[slot] = max |x|: for scaled types. */
struct op_amax { const void *x; int64_t n; enum dtype t; float *dst; };

/* The scalars of a step, on the device, so that no launch holds a number that changes with the step. All F64. */
struct step_vars {
  double lr, clip;                        /* in, copied from the host each step; clip 0 = off */
  double sumsq, bad, loss, tokens;        /* in: sums over the world: |sum of token gradients|^2, values not finite, sum of losses, valid tokens */
  double norm, scale, skip;               /* out: sqrt (sumsq) / tokens; factor for gradients (clip and 1 / tokens); 1 = leave the state alone */
  double b1t, b2t, updates;               /* state: beta1^t, beta2^t (start at 1), optimizer steps taken; checkpoints keep `updates` */
};
/* From the inputs of vars: the outputs, and (unless skipped) the state moves on by one update. skip = bad > 0 or norm not finite or tokens == 0. scale = min (1, clip / norm) / tokens. */
struct op_step_vars { struct step_vars *vars; double beta1, beta2; };
/* Unless vars->skip: g = grad * scale; m, v as usual; master -= lr (mhat / (sqrt (vhat) + eps) + decay * master); weight (NULL or BF16 / F32 [n], type wt) = master rounded.
   Skipped: nothing changes (weight is still written). Arithmetic per element in fp32, source Loshchilov & Hutter 2019. */
struct op_adamw { int64_t n; float *master, *m, *v; const void *grad; void *weight; const struct step_vars *vars; double beta1, beta2, eps, decay; enum dtype gt, wt; };

/* Collectives. count is elements per rank for all-gather, reduce-scatter and all-to-all (a rank's piece), of the whole buffer for the others. t = type of the wire and of `in`.
   ALL_GATHER      out [n * count] = pieces in rank order; in NULL = in place (own piece already at out + rank * count).
   REDUCE_SCATTER  out [count] (type ot) = beta * out + sum over ranks of piece `rank` of their in [n * count]. in may have type it != t: it is rounded to t for the wire.
                   Sums in fp32 in rank order, rounded once. out may alias no part of in but the own piece, unless beta = 1.
   ALL_REDUCE      out = sum or max over ranks, in rank order; in NULL = in place. F32, BF16 or F64.
   BROADCAST       from root, in place in out.
   SEND, RECV      to / from the other rank of a group of two; matched in order. RECV writes out, SEND reads in.
   ALL_TO_ALL      n pieces; with counts: send_count[n], recv_count[n] (host arrays, elements, alive until done), pieces packed in rank order. */
struct op_coll { struct group *g; const void *in; void *out; int64_t count; enum dtype t, it, ot; float beta; bool max; int root; const int64_t *send_count, *recv_count; };

struct op {
  enum op_kind kind;
  union {
    struct op_copy copy; struct op_zero zero; struct op_axpby axpby; struct op_init init; struct op_gemm gemm; struct op_gemm_grouped grouped;
    struct op_norm norm; struct op_norm_bwd norm_bwd; struct op_rope rope; struct op_attn attn; struct op_attn_bwd attn_bwd; struct op_swiglu swiglu;
    struct op_swiglu_bwd swiglu_bwd; struct op_colsum colsum; struct op_embed embed; struct op_embed_bwd embed_bwd; struct op_xent xent; struct op_sumsq sumsq;
    struct op_amax amax; struct op_step_vars step_vars; struct op_adamw adamw; struct op_coll coll;
  };
};

/* Issue an operation: dev_op (d, q, OP_GEMM, gemm, .m = 3, ...). Counts it, records it when a graph is being made, else hands it to the device. */
void dev_issue (struct dev *d, struct queue *q, const struct op *o);
#define dev_op(d, q, KIND, field, ...) dev_issue (d, q, &(struct op) { .kind = KIND, .field = { __VA_ARGS__ } })

/* For devices that launch graphs: count O as dev_issue does (op_count, flops, calls and bytes of its group). */
void dev_count (struct dev *d, const struct op *o);
/* GEMM 2 m n k; attention 4 heads head_dim a visible pair of query and key, backward twice that (the scores made again are not counted); others 0. */
double dev_flops (const struct op *o);

/* ---- groups ------------------------------------------------------------------------------------------------------------------------- */
enum group_kind { GROUP_WORLD, GROUP_SHARD, GROUP_REP, GROUP_TP, GROUP_KV, GROUP_TIED, GROUP_F_IN, GROUP_F_OUT, GROUP_B_IN, GROUP_B_OUT, GROUP_N };
const char *group_name (enum group_kind k);

struct group_spec {
  enum group_kind kind;
  MPI_Comm comm;            /* MPI_COMM_NULL on sim; borrowed, alive as long as the group */
  int n, rank;              /* size of the group, my rank in it */
  const int *member;        /* [n] ranks in comm, in group order; NULL = comm's own order. Copied. */
  int tag;                  /* groups that share a communicator have different tags */
  void *stage;              /* staging memory (SPACE_DEVICE), limits.comm_stage bytes at least where n > 1; borrowed */
  int64_t stage_bytes;
};
/* Bytes that this rank sends in a ring for collective K of a group of n: one function for all devices.
   all-gather, reduce-scatter, all-to-all: (n - 1) count size; all-reduce: 2 (n - 1) ceil (count / n) size, or (n - 1) count size where count size <= 1024
   (small ones are gathered and summed by each); broadcast: count size at the root's share (n - 1) count size / n rounded up, on every rank; send: count size; recv: 0. */
int64_t coll_bytes (enum op_kind k, int n, int64_t count, int64_t elem_size);

struct coll_stat { int64_t calls, bytes; double busy, exposed; };   /* busy: seconds from start to end; exposed: seconds that a compute queue or the host waited for it */
struct group_stat { struct coll_stat kind[OP_N - OP_COLL_FIRST]; };

/* Each device's struct group begins with this. */
struct group_head { enum group_kind kind; int n, rank; struct group_stat stat; };
static inline struct coll_stat *group_stat (struct group *g, enum op_kind k) { return &((struct group_head *) g)->stat.kind[k - OP_COLL_FIRST]; }

/* ---- the device ----------------------------------------------------------------------------------------------------------------------- */
/* Bounds that layout depends on; a pure table of each device, so that sim can stand for any. */
struct dev_limits {
  int64_t align;                /* bytes: of slots and of parameters in a flat unit */
  int64_t queue_work;           /* bytes of workspace of a compute queue */
  int64_t comm_stage;           /* bytes of staging of a group, at least; more makes fewer rounds */
  /* workspace of attention's backward beyond delta, bytes (part of queue_work) */
  int64_t (*attn_work) (const struct op_attn *f);
};

struct dev_conf {               /* how to open */
  int local_rank, local_size;   /* rank on the node, ranks on the node */
  int threads;                  /* compute threads of this rank; 0 = choose: OMP_NUM_THREADS or cores / ranks of the node, at least 1 */
  double comm_delay_ms; int64_t comm_chunk; bool sync_send, shared_gpu, deterministic;
};

struct dev_ops {
  const char *name;
  const struct dev_limits *limits;
  int   (*open) (struct dev *d, const struct dev_conf *c, struct err *e);   /* local */
  void  (*close) (struct dev *d);
  void *(*reserve) (struct dev *d, enum space s, int64_t bytes, struct err *e);   /* NULL with the sentence when it does not fit; zeroed, aligned to 4096 */
  void  (*release) (struct dev *d, enum space s, void *p, int64_t bytes);
  struct queue *(*queue_open) (struct dev *d, enum queue_kind k, const char *name, void *work, int64_t work_bytes);   /* work borrowed */
  void  (*queue_close) (struct dev *d, struct queue *q);                     /* waits for it */
  struct event *(*event_open) (struct dev *d);
  void  (*event_close) (struct dev *d, struct event *ev);
  void  (*record) (struct dev *d, struct queue *q, struct event *ev);        /* ev is done when all that q was given so far is */
  void  (*wait) (struct dev *d, struct queue *q, struct event *ev);          /* what q is given from now on starts after the last record of ev; never recorded: no wait */
  void  (*sync) (struct dev *d, struct event *ev);                           /* the host waits */
  void  (*drain) (struct dev *d);                                            /* the host waits for all queues (set-up, save, exit; never in a step) */
  void  (*fetch) (struct dev *d, struct event *ev, void *dst, const void *pinned, int64_t bytes, const void *sim_answer);
                                                                             /* sync, then what a queue copied to pinned memory into host memory; sim: dst = sim_answer. The only way a value reaches control flow. */
  struct group *(*group_open) (struct dev *d, const struct group_spec *s);   /* collective over the group's members */
  void  (*group_close) (struct dev *d, struct group *g);
  /* graphs: between begin and end what is issued on the queues is recorded and not done; launch does it, as often as wanted, counters included */
  void  (*graph_begin) (struct dev *d, struct queue *q);
  struct graph *(*graph_end) (struct dev *d, struct queue *q);
  void  (*graph_launch) (struct dev *d, struct queue *q, struct graph *g);
  void  (*graph_free) (struct dev *d, struct graph *g);
  void  (*op[OP_N]) (struct dev *d, struct queue *q, const struct op *o);    /* no NULL: dev_open checks */
};

struct dev {
  const struct dev_ops *ops;
  void *impl;                          /* the device's own */
  struct dev_conf conf;
  struct { int64_t reserved[MEM_N]; } mem[SPACE_N];   /* bytes of arenas: the memory report */
  int64_t op_count[OP_N];              /* operations done, those of launched graphs included */
  double  flops;                       /* of GEMM and attention, by their formulas (dev_flops) */
  bool    recording;                   /* set by the device between graph_begin and graph_end: operations count when they are launched */
};

/* Open device NAME (cpu, cuda, sim). Local. 0, or -1 with the sentence. */
int  dev_open (struct dev *d, const char *name, const struct dev_conf *c, struct err *e);
void dev_close (struct dev *d);
extern const struct dev_ops dev_cpu;

/* Memory of a purpose: counted. NULL with the sentence when it does not fit. */
void *dev_reserve (struct dev *d, enum purpose p, enum space s, int64_t bytes, struct err *e);
void  dev_release (struct dev *d, enum purpose p, enum space s, void *ptr, int64_t bytes);

/* Host memory to and from the device, at once (set-up, checkpoints, tests; never in a step): a copy on q and a sync. */
void dev_put (struct dev *d, struct queue *q, void *dst, const void *src, int64_t bytes);
void dev_get (struct dev *d, struct queue *q, void *dst, const void *src, int64_t bytes);

/* Fused forms whose default is the sequence of the two: gather [n*count] then GEMM on it; GEMM into in, then reduce-scatter. c.a / r.in name the gathered / partial buffer.
   cq: the group's queue; ev: two events of the caller. Afterwards q is ordered after everything. */
void dev_gather_gemm (struct dev *d, struct queue *q, struct queue *cq, struct event *ev[2], const struct op_coll *gather, const struct op_gemm *gemm);
void dev_gemm_scatter (struct dev *d, struct queue *q, struct queue *cq, struct event *ev[2], const struct op_gemm *gemm, const struct op_coll *scatter);

static inline void *at_bytes (const void *p, int64_t bytes) { return (char *) p + bytes; }
static inline void *at_elem (const void *p, int64_t i, enum dtype t) { return (char *) p + i * dtype_size (t); }
#endif
