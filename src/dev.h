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
#include "op.h"

struct dev; struct queue; struct event; struct group; struct graph;

enum space { SPACE_DEVICE, SPACE_PINNED, SPACE_HOST, SPACE_N };

/* What memory is for: the rows of the memory report. */
enum purpose { MEM_WEIGHT, MEM_GATHER, MEM_GRAD, MEM_MASTER, MEM_MOMENT, MEM_ACT, MEM_LOGIT, MEM_COMM, MEM_WORK, MEM_STAGE, MEM_N };
const char *purpose_name (enum purpose p);

enum queue_kind { QUEUE_COMPUTE, QUEUE_COMM, QUEUE_COPY, QUEUE_HOST };   /* HOST: maths on host memory beside the device (offloaded optimizer) */

const char *op_name (enum op_kind k);

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

/* ---- where time goes ----------------------------------------------------------------------------------------------------------------- */
/* What a compute queue's time is for. */
enum step_phase { PHASE_NONE, PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER, PHASE_N };
const char *phase_name (enum step_phase p);
struct phase_stat { double seconds, waited; };   /* of the compute queue; waited: those of them that coll_stat.exposed has too */

/* One stretch of time, in the seconds of now (), while dev.trace is on: an operation, a collective, a wait of the compute queue for one, a phase. Texts are static. */
enum span_kind { SPAN_OP, SPAN_COLL, SPAN_WAIT, SPAN_PHASE };
struct dev_span {
  enum span_kind kind;
  const char *queue, *name;   /* where; what: the operation's name, of a wait the group's, of a phase the phase's */
  enum group_kind group;      /* COLL, and which one: the seq-th of this rank's group of that kind (dev.issued) */
  int64_t seq, bytes;
  int32_t tag;                /* PHASE: as the caller gave it */
  double begin, end;
};

/* ---- the device ----------------------------------------------------------------------------------------------------------------------- */
/* Bounds that layout depends on; a pure table of each device, so that sim can stand for any. */
struct dev_limits {
  int64_t align;                /* bytes: of slots and of parameters in a flat unit */
  int64_t queue_work;           /* bytes of workspace of a compute queue */
  int64_t comm_stage;           /* bytes of staging of a group, at least; more makes fewer rounds */
  int64_t wire_stage;           /* the same of a group whose reductions have another type on the wire than in memory */
  bool    wire_cast;            /* reductions can round to another type on the wire (op_coll t != it) */
  bool    host_memory;          /* the device's memory is the host's: pinned and host arenas count too */
  /* Bytes that the device takes beside the arenas, which planning leaves free: context, code and libraries, then for each group of several ranks (dev_outside adds them up).
     Measured on H200s: 550 MiB on one rank, 1,900 with two groups. */
  int64_t outside, group_outside;
  /* Rough speeds of one device, FLOP/s by type and bytes/s (link: to the ranks of a node), by which recompute.mode auto weighs one choice against another. */
  struct { double gemm[DT_N], attn[DT_N], copy, link; } rate;
  /* bytes of workspace that attention's backward of this shape is fastest with, at most ROOM; a compute queue gets them where they are more than queue_work */
  int64_t (*attn_work) (const struct op_attn *f, bool deterministic, int64_t room);
};

struct dev_conf {               /* how to open */
  int local_rank, local_size;   /* rank on the node, ranks on the node */
  int threads;                  /* compute threads of this rank; 0 = choose: OMP_NUM_THREADS or cores / ranks of the node, at least 1. An open cpu device has its number here */
  double comm_delay_ms; int64_t comm_chunk; bool sync_send, shared_gpu, deterministic, op_times;
};

struct dev_ops {
  const char *name;
  const struct dev_limits *limits;
  int   (*open) (struct dev *d, const struct dev_conf *c, struct err *e);   /* local */
  void  (*close) (struct dev *d);
  int64_t (*memory) (struct dev *d);                                         /* bytes of device memory that this rank may plan with, used or not */
  int64_t (*used) (struct dev *d);                                           /* bytes of it that are taken now, by arenas and all else, as the driver says (cpu: what of this process is resident) */
  void *(*reserve) (struct dev *d, enum space s, int64_t bytes, struct err *e);   /* NULL with the sentence when it does not fit; zeroed, aligned to 4096 */
  void  (*release) (struct dev *d, enum space s, void *p, int64_t bytes);
  void *(*host) (struct dev *d, void *p);                                    /* where the host itself may reach memory P while no queue works on it (set-up, checkpoints; never in a step); NULL: it cannot */
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
  /* What the device measured to choose among its libraries' algorithms: text, to be freed with xfree; NULL: nothing. tune: know TEXT's choices too (NULL: none); `use` them and
     one's own from now on, else a fixed choice that is the same everywhere (tune.h says when) */
  char *(*tuned) (struct dev *d);
  void  (*tune) (struct dev *d, const char *text, bool use);
  struct group *(*group_open) (struct dev *d, const struct group_spec *s);   /* collective over the group's members */
  void  (*group_close) (struct dev *d, struct group *g);
  /* From now on the time of compute queue q belongs to phase p (dev.phase, up to date when `fetch` returns); tag: for its span. NONE: to none. */
  void  (*phase) (struct dev *d, struct queue *q, enum step_phase p, int32_t tag);
  void  (*trace) (struct dev *d, bool on);                                   /* the device is idle: keep spans from now on; no more, all of them are in dev.trace */
  /* graphs: between begin and end what is issued on the queues is recorded and not done; launch does it, as often as wanted, counters included */
  void  (*graph_begin) (struct dev *d, struct queue *q);
  struct graph *(*graph_end) (struct dev *d, struct queue *q);
  void  (*graph_launch) (struct dev *d, struct queue *q, struct graph *g);
  void  (*graph_free) (struct dev *d, struct graph *g);
  void  (*op[OP_N]) (struct dev *d, struct queue *q, const struct op *o);    /* no NULL: dev_open checks */
};

/* One collective as issued, for the one who looks for a hang: the seq-th of this rank's group of that kind. */
struct coll_note { enum op_kind op; enum group_kind group; int64_t bytes, seq; };
enum { COLL_NOTES = 16 };

struct dev {
  const struct dev_ops *ops;
  void *impl;                          /* the device's own */
  struct dev_conf conf;
  char id[32];                         /* of the hardware: a GPU's PCI address; "" on cpu */
  char name[64];                       /* of the hardware, as its driver says: "NVIDIA H200"; "" on cpu */
  char libraries[80];                  /* that it stands on: "NCCL 2.28.9, CUDA 13.0, driver for 13.1"; "" on cpu */
  struct { int64_t reserved[MEM_N]; } mem[SPACE_N];   /* bytes of arenas: the memory report */
  int64_t memory;                      /* least of all ranks' ops->memory, agreed on by the caller; 0 = not known: nothing is kept because it would fit */
  int64_t outside;                     /* bytes beside the arenas, as dev_measure found them; 0 = not measured */
  int64_t op_count[OP_N];              /* operations done, those of launched graphs included */
  double  flops;                       /* of GEMM and attention, by their formulas (dev_flops) */
  bool    blind;                       /* set by a device that looks at no value: the host need not work out the large ones that it sends */
  bool    recording;                   /* set by the device between graph_begin and graph_end: operations count when they are launched */
  int64_t notes;                       /* collectives issued; the last COLL_NOTES of them are in note[i % COLL_NOTES] */
  struct coll_note note[COLL_NOTES];
  struct phase_stat phase[PHASE_N];    /* since opening */
  struct { bool on; struct dev_span *span; int64_t n, room; double error; } trace;   /* error: seconds that its times may be off the host's clock */
  int64_t issued[GROUP_N], done[GROUP_N];   /* collectives of groups of each kind; `done` by the device where it knows */
};

/* Open device NAME (cpu, cuda, sim). Local. 0, or -1 with the sentence. */
int  dev_open (struct dev *d, const char *name, const struct dev_conf *c, struct err *e);
void dev_close (struct dev *d);
/* Of devices that measure nothing. */
char *dev_tuned_none (struct dev *d);
/* Of devices whose memory the host cannot reach. */
void *dev_host_none (struct dev *d, void *p);
void dev_tune_none (struct dev *d, const char *text, bool use);
extern const struct dev_ops dev_cpu, dev_sim;

/* Of each kind of group the first collective that is not known to be done, as text: "shard all-gather 12 of 1.00 MiB and 3 behind it, ..."; "none". May be called from any thread, while the
   main thread stands still. */
void dev_stuck (const struct dev *d, char *out, size_t size);
/* The oldest collective that is not known to be done; seq 0: none. As above. */
void dev_oldest (const struct dev *d, struct coll_note *out);

/* Keep spans, forgetting older ones; keep no more. The device is idle (drain). */
void dev_trace (struct dev *d, bool on);
void dev_span_add (struct dev *d, const struct dev_span *s);   /* for devices, while dev.trace.on */
/* Bytes that this rank sends in the collective O. */
int64_t dev_coll_bytes (const struct op *o);

/* Memory of a purpose: counted. NULL with the sentence when it does not fit. */
void *dev_reserve (struct dev *d, enum purpose p, enum space s, int64_t bytes, struct err *e);
void  dev_release (struct dev *d, enum purpose p, enum space s, void *ptr, int64_t bytes);
/* Bytes of the device's memory in arenas: of SPACE_DEVICE, on a device whose memory is the host's of all spaces. */
int64_t dev_reserved (const struct dev *d);
/* What planning leaves free where the groups have N members each (n[k] > 1: one is opened). */
int64_t dev_outside (const struct dev *d, const int n[GROUP_N]);
/* After warm-up: what is used beside the arenas, into d->outside (the row `outside` of the memory report). */
void  dev_measure (struct dev *d);

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
