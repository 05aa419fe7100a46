/* plan: what a run will cost, before it runs: the trainer's own set-up and step on the sim device (sim.h), once for each distinct role of the mesh, and the stages put
   on one time-line. Pure: no MPI call, no GPU, no memory of the run's size; memory and bytes are those that the run will have, exactly; times are predicted.

   Bytes are bytes (not scaled), times are seconds, shares are 0 .. 1. */
#ifndef PLAN_H
#define PLAN_H
#include "conf.h"
#include "machine.h"
#include "mesh.h"
#include "sched.h"

/* A row of the communication ledger: one group and kind of collective of one rank. */
struct plan_line {
  enum group_kind group;
  enum op_kind op;
  int64_t calls, bytes;      /* a step; bytes that this rank sends (coll_bytes: what the run counts) */
  double busy, exposed;      /* seconds that the link works; that computation waits for it (the rest of busy is hidden) */
  bool tree;                 /* some of these went by a tree */
};

/* Where a kind of group lies. */
struct plan_group {
  int n;                     /* ranks; 1: the group does not exist */
  int nodes, per_node;       /* nodes that it touches; most of its ranks on one */
  int sharers;               /* groups of its kind that leave a node through its cards at once; 0: it stays inside */
  bool cross;
  const char *link;          /* machine_link's name; lent by the plan's machine */
};

/* A stretch of time on a stage. lane 0: an action of the schedule on the compute queue (act: enum act_kind). lane 1 + k: a collective of group kind k (op). */
struct plan_span { int16_t lane, act, chunk; int32_t mb; enum op_kind op; double begin, end; };

/* One pipeline stage: the rank of it that has the most memory, and the ledger of its first rank. */
struct plan_stage {
  int rank;                              /* world rank that stands for it */
  int64_t first, last;                   /* blocks of its first chunk: 0 embedding, 1 .. layers, layers + 1 head; last excluded */
  int64_t layers;                        /* of all its chunks */
  int64_t params, padded;                /* elements of the tp slice of the stage; with padding: P */
  int64_t owned;                         /* elements whose state this rank has: P / shards */
  int64_t mem[SPACE_N][MEM_N];           /* arenas, to the byte */
  int64_t device;                        /* sum of mem[SPACE_DEVICE] */
  int64_t outside;                       /* bytes beside the arenas (dev_outside) */
  char keep[200];                        /* what its layers keep of a micro-batch: "1-20 everything, 21-40 norms, qkv" */
  int lines; struct plan_line line[64];
  struct plan_group group[GROUP_N];
  double compute, exposed, bubble;       /* seconds of the step on the compute queue: busy; waiting for bytes on a link; waiting for another stage */
  double flops;
  int checks; struct plan_line check[4]; double check_seconds;   /* of a replica check: collectives; all of it, alone. 0: run.replica_check_steps is */
  int spans; struct plan_span *span;     /* owned; by begin. Lane 0 always, the others with plan_want.trace */
};

/* One option of a search, or of what would fit. */
struct plan_choice {
  struct conf c;
  int gpus;
  double tokens_s, step, mfu, exposed, bubble;
  int64_t device;                        /* largest of all stages */
  bool fits;
  char text[256];                        /* "dp 8, FULL_SHARD, micro_batch 2, recompute selective" */
  char name[256];                        /* why it stands here: "tp over two nodes", "--recompute.mode auto"; of a ranking: "" */
  char limit[128];                       /* what it waits for most: "dp_shard all-gather on InfiniBand 200 Gb/s", "other stages", "computation" */
};

enum { PLAN_NOTES = 32, PLAN_RANKED = 24 };

struct plan {
  struct conf c;                         /* effective: what is left out filled in */
  struct machine m;
  struct mesh_shape shape;
  int gpus, nodes, *node_of;             /* owned, [gpus] */
  int64_t mbs, shown;                    /* micro-batches a step; those that the spans show: fewer where a step is long and its times were extrapolated */

  int stages; struct plan_stage *stage;  /* owned, [shape.dim[AXIS_PP]] */
  int worst;                             /* the stage with the most memory */
  int64_t outside, capacity;             /* bytes beside the arenas; of a GPU */
  bool fits;
  int64_t over;                          /* bytes too many on the worst stage; negative: free */

  double step;                           /* seconds a step */
  double tokens_s, mfu;                  /* of all GPUs; arch_flops_token against the peak */
  double compute, exposed, bubble;       /* shares of the step, mean over stages; what is left is host time */
  double begin_drain;                    /* when the last backward of all stages has ended: the pipeline's span */

  /* rules of thumb beside the exact figures */
  int64_t params;                        /* of the model, all */
  int64_t rule_state;                    /* 16 or 18 bytes a parameter (grad_dtype): all */
  double rule_rank;                      /* the same / gpus that share it: tp x pp x dp_shard */
  int64_t state;                         /* exact, worst stage: weights kept, gradients, master, moments */
  double rule_bytes;                     /* 2 M (N - 1) / N over dp_shard as the article has it: M = bf16 weights of a stage's tp slice */
  int64_t exact_bytes;                   /* what the shard and replica groups of the first stage send */

  int notes; char *note[PLAN_NOTES];     /* owned: sentences: where a rule errs and why, warnings, what would help */

  /* filled when it does not fit, or by a search */
  int least_gpus;                        /* smallest number that fits; 0: not looked for */
  int choices; struct plan_choice *choice;   /* owned; ranked by tokens_s, or the nearest that fit */
  int others; struct plan_choice *other;     /* owned: meshes that people draw, beside the best; each with the micro-batch and recomputation that suit it best */
  int64_t tried, refused, too_big;       /* candidates of a search: timed, impossible (with why in the notes), that do not fit */
};

struct plan_want {
  bool trace;                            /* also spans of collectives */
  bool quick;                            /* times from few micro-batches, and the bytes are those of so short a step: for a search. Without times
                                            where it does not fit */
};

/* Ways to recompute, in the order in which a search takes the first that fits. */
enum { PLAN_MODES = 4 };
extern const int plan_modes[PLAN_MODES];

/* "dp 8, FULL_SHARD, micro_batch 2, recompute selective": what is not as usual. */
void plan_words (const struct conf *c, char *out, size_t size);

/* Memory and bytes a step of one rank by the trainer's own code, S a shape made by step_resolve; MEMORY: of its device as all ranks agreed (struct dev), 0: the machine's.
   Fills all of OUT but times. What a run compares itself with. 0, or -1 with the sentence. Local. */
int plan_rank (struct plan_stage *out, const struct conf *c, const struct machine *m, const struct mesh_shape *s, int rank, int64_t memory, struct err *e);

/* C on GPUS GPUs of M. C's axes may be left out (0) as for a run. 0, or -1 with the sentence. The caller frees P (plan_free), also after a failure. */
int  plan_make (struct plan *p, const struct conf *c, const struct machine *m, int gpus, const struct plan_want *w, struct err *e);
void plan_free (struct plan *p);

/* The best of all ways to cut C's model over GPUS GPUs: what C's user gave (conf_given) stays, the rest is searched: axes and their order, micro-batch, schedule, strategy, reshard,
   recomputation. P is the plan of the best, with choice[] ranked. The same answer every time. */
int  plan_search (struct plan *p, const struct conf *c, const struct machine *m, int gpus, struct err *e);

/* Fills least_gpus and choice[] of a plan that does not fit: the smallest number of GPUs of its machine that would, and the three nearest options that fit on as many as it has. */
void plan_help (struct plan *p);

/* Other meshes beside a plan that was searched: fills other[]. */
void plan_others (struct plan *p, const struct conf *asked);
/* The sentences: where rules of thumb err and why, what waits for what. */
void plan_explain (struct plan *p);
/* One choice: C planned on GPUS GPUs. quick: from few micro-batches. 0, or -1 with the sentence. */
int plan_choose (struct plan_choice *o, const struct conf *c, const struct machine *m, int gpus, bool quick, struct err *e);

/* Text for the terminal (plan_text.c). */
void plan_print (const struct plan *p, FILE *f);
/* The same as a page to print: HTML with SVG, complete in itself, well-formed XML (plan_page.c). What collectives do on the time-line is there with plan_want.trace. */
void plan_page (const struct plan *p, FILE *f);
/* The time-line for Chrome's about:tracing and for Perfetto (plan_trace.c). */
void plan_trace (const struct plan *p, FILE *f);
/* NAME.yaml and NAME.sbatch, which run this plan under Slurm (plan_emit.c); NAME NULL: of the model and the GPUs. 0, or -1 with the sentence. */
int  plan_emit (const struct plan *p, const char *name, struct err *e);
/* Words that text and page share: "12.3 GB" in powers of ten, as parameters are counted and as the rules of thumb have them; "38.1 ms"; the axis that a group belongs to;
   the value of an option ("sharding.strategy") as its user writes it. */
const char *plan_gb (double bytes, char out[static 24]);
const char *plan_seconds (double s, char out[static 24]);
const char *plan_axis (enum group_kind k);
const char *plan_word (const char *option, const struct conf *c, char out[static 64]);
/* Add a sentence to the notes. */
void plan_note (struct plan *p, const char *fmt, ...) __attribute__ ((format (printf, 2, 3)));

/* pretrain plan ... */
int plan_main (int argc, char **argv);
#endif
