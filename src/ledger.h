/* ledger: the bytes that a rank sends in a training step, by group and kind of collective, from formulas (DESIGN.md section 5). Pure: configuration,
   mesh and coordinates in, numbers out; no device, no MPI call, and none of the code that trains.

   It shares coll_bytes, arch_split, keep_of and the schedules' tables with the trainer and nothing else: units, padding, slots and uses are worked out anew, so that
   the counters of a run, the messages that reach MPI and this page are three sources that the tests compare exactly.

   Letters: P parameters of the rank's stage and tp slice with padding, N ranks of dp_shard, R replicas, A micro-batches a step, w bytes of a weight and of an
   activation, g bytes of reduce_dtype, t ranks of tp, S = b s h w bytes of a micro-batch's activations (batch x sequence x dim). */
#ifndef LEDGER_H
#define LEDGER_H
#include "conf.h"
#include "mesh.h"

/* One line: WHAT costs CALLS collectives and BYTES sent a step, padding included. */
struct ledger_line { const char *what; enum group_kind group; enum op_kind op; int64_t calls, bytes; };

enum { LEDGER_LINES = 32 };
struct ledger {
  int64_t params;              /* P */
  int64_t units;               /* flat units of the stage */
  int64_t micro_batches;       /* A */
  int lines;
  struct ledger_line line[LEDGER_LINES];   /* none without calls */
};

/* The ledger of world rank RANK on a device with MEMORY bytes (struct dev) that aligns to ALIGN bytes (dev_limits). 0, or -1 with the sentence. Local. */
int ledger_make (struct ledger *l, const struct conf *c, const struct mesh_shape *s, int rank, int64_t memory, int64_t align, struct err *e);
/* The same where each layer keeps KEEP[layer], from 1 (keep.h): what recompute.mode auto chose (struct step). NULL: by the configuration. */
int ledger_kept (struct ledger *l, const struct conf *c, const struct mesh_shape *s, int rank, int64_t memory, int64_t align, const int *keep, struct err *e);
/* Of one replica check (run.replica_check_steps) of rank RANK instead of a step: each group gathers 8 bytes of each member. Pure. */
void ledger_replica_check (struct ledger *l, const struct conf *c, const struct mesh_shape *s, int rank);
/* Calls and bytes of a group and kind; op OP_N: of all kinds. */
struct ledger_line ledger_sum (const struct ledger *l, enum group_kind g, enum op_kind op);

/* FULL_SHARD's gathers of U equal units in a step of A micro-batches, each a sweep forward and a sweep back, with room for K gathered units:
   2 A U less what stays gathered at the 2 A - 1 turns. All of it where K >= U: U. */
static inline int64_t ledger_gathers (int64_t u, int64_t k, int64_t a) { return 2 * a * u - (2 * a - 1) * MIN (u, k); }
#endif
