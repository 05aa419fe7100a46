/* shard: the state of a rank's units and the traffic over dp.

   Each rank owns one part of each flat unit: fp32 master weights, two moments and a gradient. Whole weights exist in *slots*, filled by a gather (a cast of
   my master into my place, then an in-place all-gather) and reused when no coming use needs them sooner than another's: the uses of a step are known before it
   starts (visits), so the slots are a cache with perfect foresight. The strategies differ in two numbers only:

     strategy        slots            gradients
     NO_SHARD        one a unit       whole, reduced once a step (shard group of one, replicas over dp)
     SHARD_OPT       one a unit       whole, reduced once a step
     SHARD_GRAD_OP   one a unit       a pool of two, reduced each micro-batch into my part
     FULL_SHARD      1 + prefetch     the same
     HYBRID_SHARD    1 + prefetch     the same, then summed over replicas once a step

   sharding.cpu_offload `optimizer`: master and moments lie in pinned host memory (offload.h), my part of the weights in the compute type stays on the device (in
   its slot, or apart where slots are shared). `params`: that part too lies in host memory and comes to a slot when a unit is brought. Gradients stay.

   Slots and buffers are for units of about a size, so these are counts for each such class. sharding.reshard `step` gives FULL_SHARD a slot a unit too, `backward` lets a unit go when its backward is over. In fp32 with a shard group of one the master is the weight; in bf16 such a group casts a unit when it is used (one slot a class), or with reshard `step`
   and where auto finds the memory for it once a step. */
#ifndef SHARD_H
#define SHARD_H
#include "chan.h"
#include "layer.h"
#include "offload.h"
#include "unit.h"

/* held: gathered and not yet seen by the compute queue. fp8: codes and units (unit.h: struct matrix) of the weights, coded: those of the weights there. */
struct wslot { void *mem; int64_t room; int class, unit; int pins; bool held; struct event *ready; void *codes; float *units; bool coded; };
struct gbuf  { void *mem; int64_t room; int class, unit; struct event *done; };

struct ushard {               /* my part of a unit */
  float *master, *m, *v;      /* [shard] */
  void  *weight;              /* [shard], type t: my part of the weights where it lies apart from slots, or NULL */
  void  *grad;                /* [shard], type gt; inside full where there is one */
  void  *full;                /* [n], type gt: persistent whole gradient, or NULL (pool) */
  struct matrix *matrix; int matrices; int64_t coded;   /* fp8: what has codes, its elements */
  int    class;               /* units of a class share slots and buffers of its room */
  int    slot, gbuf;          /* where it is now, -1 */
  bool   valid, cast;         /* slot holds today's weights; my place in the slot is up to date */
  bool   fresh;               /* weight holds today's weights */
  bool   pending;             /* an update of the weights may be under way: `updated` is to be waited for */
  struct event *updated;
  int    upcoming;            /* the visit that uses it next */
  int    touched, reduced;    /* this step: backwards done, reductions done */
  bool  *seen;                /* [slots] this micro-batch has written this parameter's gradient (a tied embedding is written twice) */
};

struct range { int unit; int64_t lo, hi; };                     /* of my parts, shard indices */
struct seg   { int unit; int64_t lo, hi; bool decay, count; };  /* count: counted in the gradient norm by this rank */

struct shard {
  struct dev *d;
  struct chans *ch;
  struct units units;
  const struct conf *c;
  enum dtype t, gt;
  int shards, replicas, replica;
  bool whole_grads;           /* reduced once a step */
  bool fp8;                   /* slots hold codes too, made when gathered weights are first used: once a step where they stay for it */
  bool alias;                 /* the master is the weight */
  bool kept;                  /* each unit has a slot: whole weights may stay for the step */
  int64_t prefetch;           /* units brought ahead */
  struct ushard *u;           /* [units.count] */
  struct wslot *slot; int slots;
  struct gbuf *gbuf; int gbufs;
  struct event *hop;
  struct event *hold;         /* of a copy of the state under way: the optimizer waits for it. Lent; NULL: none */
  int *visit, visits, at;     /* unit of each use of the step; next */
  int *next;                  /* [visits] the use of the same unit after this one; visits + 1: none */
  struct range *tp_sum, *kv_sum; int tp_sums, kv_sums; int64_t tp_n, kv_n, pack_most; void *pack;   /* pack_most: bound of both on any rank */
  struct seg *seg; int segs;
  struct step_vars *vars;     /* device */
  enum offload offload;
  struct offloader off;
  struct queue *fetch;        /* params with a shard group of one: brings weights */
  bool tied_here;             /* this stage and another hold the embedding */
};

/* Pure part: units, segments, how many slots. 0 or -1 with the sentence. */
struct shard_place { int tp, tp_rank, pp, stage, chunks, shards, shard_rank, replicas, replica; };
int  shard_make (struct shard *s, const struct conf *c, const struct shard_place *p, struct dev *d, struct err *e);
/* May the caller choose whether cast weights stay for the step (one rank in dp_shard, sharding.reshard auto)? Chooses: to be called before the layout. */
bool shard_may_keep (const struct shard *s);
void shard_keep (struct shard *s, bool kept);
void shard_layout (struct shard *s, struct arenas *A);
void shard_open (struct shard *s, struct chans *ch);     /* events; after the arenas are reserved */
void shard_free (struct shard *s);

/* Initial weights on the device, the moments zero: the same numbers on every mesh. */
void shard_init (struct shard *s);
/* The compute queue goes on after offloaded updates: before master and moments are read or written from outside. */
void shard_settle (struct shard *s);
/* My part of UNIT's weights, type t, as it stays between steps; NULL: it does not, or it is the master itself. Local. */
void *shard_own_weight (const struct shard *s, int unit);
/* Forget gathered weights (after init, load, optimizer). */
void shard_stale (struct shard *s);

/* Bytes of host memory that saves behind training copy the state to; 0: there are none (run.save_async, or no save but the last). */
int64_t shard_copy_bytes (const struct shard *s);

/* The uses to come, in order: copied. */
void shard_visits (struct shard *s, const int *unit, int n);
/* Take the next use: its weights are gathered (waited for by the compute queue), those of the next ones are on their way. Fills w for BLOCK's parameters of this unit. */
void shard_use (struct shard *s, int unit, int64_t block, struct weights *w);
/* This use is over. */
void shard_done (struct shard *s, int unit);
/* Gradient buffer for a backward of BLOCK in UNIT: fills w->g and w->beta. Opens the unit's buffer if it is not open. */
void shard_grads (struct shard *s, int unit, int64_t block, struct weights *w);
/* The unit's gradient of this micro-batch is complete (reshard: backward lets its weights go here); last: of this step. Starts its reduction. */
void shard_reduce (struct shard *s, int unit, bool last);

/* A tied embedding's gradient over the two stages that hold it, once a step, when all else is issued: a library may connect the two at their first sum, which holds each up until the
   other issues it too, and the last stage must not be held up before it has sent what the first one waits for. */
void shard_tied (struct shard *s);
/* After all reductions: sums over tp of what tp replicates, sums of squares into vars; collective over tp and world. */
void shard_norms (struct shard *s);
/* Optimizer on my parts under vars. */
void shard_optimize (struct shard *s);
#endif
