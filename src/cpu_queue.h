/* cpu_queue: queues, events, graphs and groups of the cpu device; shared by dev_cpu.c and cpu_*.c.

   A compute queue does what it is given at once, on the calling thread. Every other queue is a list: an item starts when it is at the head; what cannot be
   done at once (a collective under way, an event of another queue) stays there until cpu_poll finds it done. So items of one queue are in order, and an event is
   a number: "the first `seq` items of queue `q` are done". */
#ifndef CPU_QUEUE_H
#define CPU_QUEUE_H
#include "dev_cpu.h"

struct cpu {                    /* dev.impl */
  int64_t budget, reserved;     /* bytes */
  int ranks;                    /* that share the node's memory */
  struct graph *graph;          /* being recorded, or NULL */
  enum step_phase phase;             /* of the compute queue, since when, and the caller's number for it */
  double since;
  int32_t tag;
};

struct event { struct queue *q; uint64_t seq; struct coll_stat *stat; };   /* stat: of the last collective before the record, to be charged for waits */

struct item { bool wait; struct event mark; struct op op; };    /* wait: for mark, a copy of the event's last record; else op */

/* A collective under way: rounds of messages that are posted, tested, then worked on (cpu_coll.c). */
struct run {
  struct dev *dev;
  enum op_kind kind;
  struct op_coll c;             /* in, out: usable addresses */
  int way, state, phase, nreq;  /* way: row of cpu_coll.c's table */
  int64_t size;                 /* bytes of an element on the wire */
  int64_t piece;                /* elements of a rank's part */
  int64_t chunk;                /* most elements of a message */
  int64_t at, len;              /* this round: elements [at, at + len) of each part */
  double start;
  double delay;                 /* seconds that it takes at least */
  bool sync_send;
};

struct queue {
  struct dev *dev;
  struct queue *next;           /* of all devices; closed ones stay until their device is closed, because events name them */
  enum queue_kind kind;
  const char *name;
  struct item *ring;            /* [room], a power of two; items done .. issued - 1 */
  uint64_t issued, done, room;
  bool busy;                    /* inside of its head item: nested polls leave it alone */
  bool running;                 /* `run` is the head */
  struct run run;
  struct coll_stat *stat;       /* of the last collective issued */
  double since;                 /* when the head item, if it is held up, came there; 0: it has not */
};

struct group {
  struct group_head head;       /* first: dev.h */
  MPI_Comm comm;
  int tag;
  int *peer;                    /* [n] ranks in comm */
  char *stage;                  /* usable address */
  int64_t stage_bytes;
  char *pad;                    /* [2][n * 8] zeros to send, room to receive padding into */
  MPI_Request *req;             /* [4 n] */
  const void **src;             /* [n] what a sum reads */
};

/* cpu_mem.c */
int64_t cpu_node_room (const char *root);   /* bytes that this node's processes may still use, cgroups' limits included; root: "" but in tests */
int   cpu_mem_open (struct cpu *c, int ranks, struct err *e);
void *cpu_reserve (struct dev *d, enum space s, int64_t bytes, struct err *e);
void  cpu_release (struct dev *d, enum space s, void *p, int64_t bytes);

/* cpu_queue.c */
struct queue *cpu_queue_open (struct dev *d, enum queue_kind k, const char *name, void *work, int64_t work_bytes);
void cpu_queue_close (struct dev *d, struct queue *q);
void cpu_queues_free (struct dev *d);
struct event *cpu_event_open (struct dev *d);
void cpu_event_close (struct dev *d, struct event *ev);
void cpu_record (struct dev *d, struct queue *q, struct event *ev);
void cpu_wait (struct dev *d, struct queue *q, struct event *ev);
void cpu_sync (struct dev *d, struct event *ev);
void cpu_drain (struct dev *d);
void cpu_fetch (struct dev *d, struct event *ev, void *dst, const void *pinned, int64_t bytes, const void *sim_answer);
void cpu_phase (struct dev *d, struct queue *q, enum step_phase p, int32_t tag);
void cpu_trace (struct dev *d, bool on);
void cpu_graph_begin (struct dev *d, struct queue *q);
struct graph *cpu_graph_end (struct dev *d, struct queue *q);
void cpu_graph_launch (struct dev *d, struct queue *q, struct graph *g);
void cpu_graph_free (struct dev *d, struct graph *g);
void cpu_issue (struct dev *d, struct queue *q, const struct op *o);
bool cpu_drive (void);          /* cpu_poll that says whether anything moved */

/* cpu_coll.c */
struct group *cpu_group_open (struct dev *d, const struct group_spec *s);
void cpu_group_close (struct dev *d, struct group *g);
void run_begin (struct run *r, const struct op *o, struct dev *d);
enum run_state { RUN_WAITS, RUN_MOVED, RUN_DONE };
enum run_state run_step (struct run *r);   /* a few ms at most */

/* cpu_sum.c: out[i] = beta out[i] + sum (or max) over r < n, in this order, of src[r][i], in fp32 (F64: fp64), rounded once to ot. Element types: own for src[me], t for the
   others; own wider than t is rounded to t first. NaN wins a maximum. out may be src[me] where the types are of one size. */
struct sum { const void *const *src; int n, me; enum dtype t, own, ot; void *out; float beta; bool max; };
void cpu_sum (const struct sum *s, int64_t count);
void cpu_cast (void *dst, enum dtype dt, const void *src, enum dtype st, int64_t count);   /* F32, BF16; or equal types */
#endif
