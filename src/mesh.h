/* mesh: which rank stands where, and the only place that makes communicators.

   Axes are rows of a table; coordinates, groups and the node map are pure functions of (dims, order, rank), so that the planner uses the same.
   Default order tp-pp-dp: tp fastest, then pp, then dp (dp_shard before dp_replicate). */
#ifndef MESH_H
#define MESH_H
#include <stdio.h>
#include "dev.h"

enum axis { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE, AXIS_N };
struct axis_row { enum axis axis; const char *name, *cuts; };     /* cuts: "batch", "layers", ... for the picture */
extern const struct axis_row axis_table[AXIS_N];

struct mesh_shape {
  int dim[AXIS_N];            /* sizes, product = world */
  enum axis order[AXIS_N];    /* fastest first */
  int kv_rep;                 /* ranks of tp that hold the same KV heads (1 = none) */
  bool no_shard;              /* NO_SHARD: the shard group is one rank, the replica group all of dp */
};

/* --- pure --- */
int  mesh_world (const struct mesh_shape *s);
void mesh_coord (const struct mesh_shape *s, int rank, int coord[AXIS_N]);
int  mesh_rank (const struct mesh_shape *s, const int coord[AXIS_N]);
/* World ranks of RANK's group K in group order into member[mesh_world]; returns how many; *me = rank's place. Links (F_IN ...) are {from, to}: F goes to stage + 1,
   B to stage - 1, around the ring (interleaved). A group with no meaning here (links with pp 1) has one member. TIED: first and last stage. */
int  mesh_group (const struct mesh_shape *s, int rank, enum group_kind k, int *member, int *me);
/* Order text: tp-pp-dp or with dp_shard, dp_replicate apart; 0 or -1. */
int  mesh_order (const char *text, enum axis order[AXIS_N], struct err *e);
/* Axes left out (0) filled: a single one takes the ranks that remain; of several, dp_shard does and the others are 1.
   -1 with the numbers in the sentence when WORLD is not the product. */
int  mesh_fill (const int64_t want[AXIS_N], int world, int dim[AXIS_N], struct err *e);
/* The picture: nodes as rows, ranks as columns, (dp, pp, tp) in each cell, and how many groups of each axis cross nodes. node[world] = node number of each rank. */
void mesh_draw (const struct mesh_shape *s, const int *node, FILE *f);
/* The same with marks: beside the nodes a line for each axis whose group of rank 0 leaves its node (its letter where the group has a member), and below each axis what SAY
   prints of it (a whole line, or nothing). */
void mesh_draw_marked (const struct mesh_shape *s, const int *node, void (*say) (void *ctx, enum axis a, FILE *f), void *ctx, FILE *f);
/* Ranks in words: "0-7", "0, 8, 16" or "0, 16, 32, ..., 1008". At most 64 bytes. */
void mesh_ranks_text (const int *rank, int n, char *out, size_t size);
/* Does some tp group span nodes? */
bool mesh_tp_crosses (const struct mesh_shape *s, const int *node);

/* --- with MPI --- */
struct mesh {
  struct mesh_shape shape;
  int rank, size, coord[AXIS_N];
  int node, nodes, local_rank, local_size;   /* my node's number (in order of lowest rank), nodes, my place on it, its ranks */
  int *node_of;                              /* [size] */
  MPI_Comm world, tp, pp, dp;                /* owned: a dup of the world given, and splits of it */
  MPI_Comm node_comm;
};

/* Environment against MPI: a world of 1 while SLURM_STEP_NUM_TASKS, PMI_SIZE, OMPI_COMM_WORLD_SIZE, PMIX..., SLURM_NTASKS inside a step (SLURM_STEP_ID set) say more. 0, or -1 with the remedy.
   Call after MPI_Init, before anything is written. On failure base_rank is told the launcher's rank, so that of N single programs one speaks;
   the others are held for 5 seconds first, or the launcher may end the job before it has spoken. */
int  mesh_launch_check (int world_size, struct err *e);
/* Collective over COMM. Makes node map (MPI_Comm_split_type) first; communicators in mesh_split. */
int  mesh_open (struct mesh *m, MPI_Comm comm, struct err *e);
/* Collective: the axes. Fills coord and the communicators. shape is copied. */
int  mesh_split (struct mesh *m, const struct mesh_shape *s, bool tp_across_nodes, struct err *e);
void mesh_close (struct mesh *m);

/* All ranks learn whether any failed: returns 0 if FAILED is 0 on all; else -1 on all, with the lowest failing rank's sentence and code in e on every rank
   (prefixed "rank N: " when not all failed alike). Collective over world; waits with back-off. */
int  mesh_agree (struct mesh *m, int failed, struct err *e);
/* Rank 0's TEXT (allocated, or NULL) on all ranks; the others give NULL. Each owns what it gets. Collective over the world. */
char *mesh_share_text (const struct mesh *m, char *text);
/* Collective. Every rank has the same TEXT? If not, -1 on all with "rank 3 differs: <what>: A vs B" for the first differing line. name: "configuration", "binary", "data". */
int  mesh_same (struct mesh *m, const char *name, const char *text, struct err *e);
/* Collective. Each rank uses the device named ID (dev.id; empty: none that could be taken twice). Two ranks of a node on one, and not SHARED: -1 on all, with ranks, host
   and device in the sentence. Before anything is allocated there. OUT: the devices of this node's ranks in words. */
int  mesh_devices (struct mesh *m, const char *id, bool shared, char *out, size_t size, struct err *e);
/* Fill the spec of group K for a device (communicator, members, tag); stage is left to the caller. n == 1: comm MPI_COMM_SELF, no members.
   member: [world], lent to the spec. Both ends of a link have one tag, that of the end which sends: F_IN has GROUP_F_OUT, B_IN GROUP_B_OUT. */
void mesh_spec (const struct mesh *m, enum group_kind k, struct group_spec *spec, int *member);

/* Waiting: the one way to wait for MPI requests. Spins where cores are free, backs off (yield, then sleeps from 50 us growing to 1 ms) where the node has more ranks than cores.
   Blocking calls inside of MPI and HDF5 back off alike (yield.h). */
void wait_before_mpi (void);           /* first of all in main: the allocator's settings that MPI's temporaries need */
void wait_init (int ranks_on_node);    /* as soon as the node map is known; before it the launcher's environment is believed */
int  wait_cores (int ranks_on_node);   /* cores that the ranks of this node share, as seen from this rank: its affinity mask, times the ranks where each has its own */
void wait_all (int n, MPI_Request *r); /* drives pending collectives of the device meanwhile */
bool wait_test (int n, MPI_Request *r); /* MPI_Testall, which never gives the core away */
bool wait_idle (int *state);           /* one turn of back-off for a loop of one's own; *state = 0 at first and after progress. True if the core was given away */
int64_t wait_turns (void);             /* turns so far: a number that grows while the main thread waits for others. From any thread */
void wait_drive (bool (*poll) (void)); /* what wait_all drives: a device's own; poll says whether anything moved. NULL: nothing */
void mesh_barrier (MPI_Comm c);  /* MPI_Ibarrier and wait_all */
#endif
