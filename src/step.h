/* step: one training step of a rank, an interpreter that walks the schedule's actions over device operations.

   step_plan is local and pure but for asking the device for memory; step_start is collective. Between them the caller makes all ranks agree. */
#ifndef STEP_H
#define STEP_H
#include "layer.h"
#include "mesh.h"
#include "replica.h"
#include "sched.h"
#include "shard.h"

/* Host memory of a micro-batch (SPACE_PINNED or SPACE_HOST): I32 [n] each; doc and pos used only with data.document_mask. */
struct host_batch { int32_t *ids, *target, *doc, *pos; };

struct step_result {
  double loss;        /* mean over the valid tokens of the global batch */
  double tokens;      /* valid tokens */
  double norm;        /* gradient norm before clipping */
  bool   skipped;     /* a value was not finite, on any rank, or is a spike: nothing changed */
  bool   spike;       /* the latter */
  double updates;     /* optimizer steps taken so far */
};

struct chunk {                    /* one model chunk of this stage */
  int64_t first, last;            /* its blocks */
  int slots;                      /* micro-batches whose activations live at once */
  struct batch *in;               /* [slots] */
  struct layer_acts *acts;        /* [slots][layers] */
  void **x;                       /* [slots] output of the last layer, where the head is */
  struct event **got;             /* [slots] input received */
  int layers, backs;              /* transformer layers; backwards done this step */
};

struct step {
  const struct conf *c;
  struct dev *d;
  struct queue *q;
  struct arenas A;
  struct chans ch;
  int group_n[GROUP_N];                      /* members of the groups that are used */
  struct shard sh;
  struct replicas replicas;                  /* run.replica_check_steps */
  struct blocks b;
  struct sched train, eval;
  int pp, stage, tp, tp_rank, dp, dp_rank;   /* dp: all data ranks (replicas x shards) */
  int mbs;                                   /* micro-batches a step */
  bool split;                                /* backward by input and by weight apart */
  struct chunk *chunk; int chunks;
  struct ring { void *mem[3]; struct event *sent[3], *got[3]; int next; } out_f, out_b;   /* buffers on the way to a neighbour */
  int *keep;                                 /* [layers + 1] what each layer keeps (keep.h), from 1 */
  int *slot_f, *slot_b;                      /* [chunks * mbs] ring buffer of each micro-batch */
  void *queue_work; int64_t queue_bytes;
  double *host_in;                           /* pinned: lr, clip, limits */
  double loss_limit, norm_limit;             /* of the training steps to come (struct step_vars); 0: none */
  struct step_vars *host_out;                /* pinned */
  struct event *end;
  float *rope;
  int64_t logits_of;                         /* token whose logits are wanted instead of a loss, -1 */
  void *logits;                              /* where they are, device */
  void (*mark) (struct dev *d, int32_t action);   /* NULL, or told of each action of a training step, by its place in the schedule, before it is issued (the planner's time-line) */
  bool poison;                               /* debug: put a NaN into this rank's gradient at this step */
};

/* Sizes that follow from WORLD ranks: axes and a batch that were left out are filled in C, the mesh's shape goes to S. Pure. 0, or -1 with the sentence. */
int  step_resolve (struct conf *c, int world, struct mesh_shape *s, struct err *e);

/* Everything of the step's shape, and its memory. mesh: coordinates and sizes (no communicator is used). 0, or -1 with the sentence. */
int  step_plan (struct step *s, const struct conf *c, const struct mesh *m, struct dev *d, struct err *e);
/* Opens groups; collective over all of them. */
void step_start (struct step *s, const struct mesh *m);
void step_close (struct step *s);

/* Train one step on batch[mbs] with learning rate lr (collective). */
void step_train (struct step *s, const struct host_batch *batch, double lr, struct step_result *r);
/* Loss of the current weights on batch[n_mb]; n_mb at most mbs of the schedule made by step_plan (eval). */
void step_eval (struct step *s, const struct host_batch *batch, struct step_result *r);
/* Logits F32 [arch.vocab] that follow token TOKEN of batch[0], on the ranks of the last stage (elsewhere out is left alone; true where it is filled). Collective. */
bool step_logits (struct step *s, const struct host_batch *batch, int64_t token, float *out);
/* The state that a checkpoint keeps beside the tensors. */
double step_updates (struct step *s);
void   step_set_updates (struct step *s, double updates);

/* The memory of this rank by purpose, as a table. */
void step_memory (const struct step *s, FILE *f);
#endif
