/* sim: the device that computes nothing. It implements struct dev_ops, so that the trainer's own set-up and step run on it: memory is counted and never touched, operations are
   counted and priced by a machine file, and what was issued is kept as a trace. Collectives with ranks that would do the same at the same time (shard, replicas, tp) cost what
   the machine says; where stages meet (links, the tied embedding, the world) the traces of all stages are put on one time-line afterwards (sim_time).

   Needs no MPI: groups are those of the virtual mesh (mesh.h, comm is not looked at). Pointers lie in memory that faults when touched, but for pinned memory of at most a page:
   the few scalars that the host writes. */
#ifndef SIM_H
#define SIM_H
#include "machine.h"
#include "mesh.h"

/* A device that stands for m->device under its limits, as rank mesh->rank. M and MESH are borrowed until dev_close. MEMORY: bytes that it says to have (the machine's if 0). */
int sim_open (struct dev *d, const struct machine *m, const struct mesh *mesh, int64_t memory, struct err *e);

/* A virtual mesh: rank RANK of shape S on nodes of GPUS ranks. NODE_OF: [world], borrowed. No communicator; nothing to close. */
void mesh_virtual (struct mesh *m, const struct mesh_shape *s, int rank, int gpus, int *node_of);

/* ---- what was issued ---- */

enum { SIM_QUEUES = 64 };   /* opened in the life of a device */
enum sim_kind { SIM_OP, SIM_COLL, SIM_RECORD, SIM_WAIT, SIM_MARK };
struct sim_item {
  uint8_t kind, op, queue, group;   /* enum sim_kind; enum op_kind; number of the queue (0 is the compute queue); enum group_kind */
  int32_t arg;                      /* RECORD, WAIT: number of the event; MARK: the caller's number */
  double seconds;                   /* OP, COLL: alone */
};

/* From now on the trace is kept (on) or forgotten and not kept (off); clears it. */
void sim_trace (struct dev *d, bool on);
/* Put a mark: what follows belongs to it. */
void sim_mark (struct dev *d, int32_t number);
const struct sim_item *sim_items (const struct dev *d, int64_t *n);
int sim_events (const struct dev *d);                  /* numbers of events are below this */
/* Where the group of kind K of this rank lies: nodes it touches, most of its ranks on one, groups like it that leave a node at once. */
struct sim_where { int n, nodes, most, sharers; };
struct sim_where sim_place (const struct mesh *m, enum group_kind k);   /* pure */
struct sim_where sim_where (const struct dev *d, enum group_kind k);
bool sim_used_tree (const struct dev *d, enum group_kind k, enum op_kind op);

/* Seconds of one GPU for O (not a collective). host: by the host's cores and memory. */
double sim_price (const struct machine *m, const struct op *o, bool host, bool over_pcie);

/* ---- the time-line ---- */

/* Time that a kind of collective of a stage takes, and what computation waits for it. */
struct sim_cost { double busy, exposed; };
struct sim_span { int16_t lane; int32_t mark; uint8_t op; double begin, end; };   /* lane 0: computation under a mark; 1 + group: a collective */
struct sim_stage {                 /* in: items; out: the rest */
  const struct sim_item *item; int64_t items; int events;
  bool cross[GROUP_N];             /* the group's ranks lie on several nodes */
  double end, compute, exposed, bubble;   /* seconds: all done; the compute queue busy, waiting for a link, waiting for another stage */
  struct sim_cost cost[GROUP_N][OP_N - OP_COLL_FIRST];
  struct sim_span *span; int spans, room;   /* owned by the caller (xfree) */
};
/* Play PP stages together. COMM_SPANS: keep spans of collectives too. 0, or -1 where a stage waits for ever (the sentence names it). */
int sim_time (struct sim_stage *s, int pp, const struct machine *m, bool comm_spans, struct err *e);
#endif
