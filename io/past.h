/* past: what a run left behind in its folder, for those who look at it later: config.yaml, metrics.jsonl, exit.json and the names of its checkpoints. A file that is not
   there, a line that is torn or no record, and a key that is not known are no errors. Local; no MPI, no HDF5. */
#ifndef PAST_H
#define PAST_H
#include <jansson.h>
#include "conf.h"
#include "dev.h"

/* Figures of a step by the key of metrics.jsonl, in the order of past_key. Not there, null: NaN. */
enum past_figure { PAST_LOSS, PAST_NORM, PAST_LR, PAST_RATE, PAST_MFU, PAST_SECONDS, PAST_CPU, PAST_EVAL, PAST_SHARE, PAST_RESIDENT, PAST_EXCESS, PAST_UTIL, PAST_IDLE, PAST_POWER,
  /* seconds by part */
  PAST_DATA, PAST_FORWARD, PAST_BACKWARD, PAST_OPT, PAST_TP, PAST_PP, PAST_DP_SHARD, PAST_DP_REP, PAST_WORLD, PAST_AGREE, PAST_OTHER, PAST_SAVE, PAST_VALID, PAST_N };
enum { PAST_PARTS = PAST_DATA, PAST_PART_N = PAST_N - PAST_PARTS, PAST_AXES = PAST_TP, PAST_AXIS_N = PAST_WORLD - PAST_TP + 1 };
extern const struct past_key { const char *in, *name, *says; } past_key[PAST_N];   /* IN: the object inside of the record, NULL: the record itself; says: for people */

struct past_step { int64_t step, tokens, time; bool skipped, spike; int64_t back_from; float v[PAST_N]; };   /* spike: why it was skipped; back_from: the first after a rollback, of that step; else 0 */
/* A launch, as its first record tells; ranks and nodes 0: not told. */
struct past_launch { int64_t after, time; int ranks, nodes, cores, dim[4]; int64_t first; };   /* after: the step of the checkpoint; cores: that the ranks of a node share, 0 on GPUs; dim: tp, pp,
   dp_shard, dp_replicate; first: index of its first step */
struct past_ckpt { int64_t step, bytes, time; char name[64]; };

struct past_end { bool there; int64_t code, step, rank, time; char reason[2000], host[64], phase[128]; };

struct past {
  char dir[STR], name[256];             /* name: the last part of dir */
  struct conf c;                        /* config.yaml, */
  struct err why;                       /* or why it cannot be read */
  int64_t steps; struct past_step *step;        /* in order, each once: a later record of a step takes the place of an older */
  int64_t torn, again;                  /* lines that are no record; steps that were done again */
  int launches; struct past_launch *launch;
  int ckpts; struct past_ckpt *ckpt;    /* by step */
  json_t *last;                         /* the last record, NULL */
  struct coll_stat comm[GROUP_N][OP_N - OP_COLL_FIRST];   /* sums over `plain` steps: those without validation in them or just before, since the last launch */
  int64_t plain;
  double plain_seconds;                 /* of these steps */
  int held;                             /* run_held */
  struct past_end end, before;            /* exit.json; exit.old.json: before a launch that was refused */
};

/* 0, or -1 with the sentence: there is no such folder, or nothing of a run in it. P is to be closed in both cases. */
int  past_open (struct past *p, const char *dir, struct err *e);
void past_close (struct past *p);
bool past_runs (const struct past *p);          /* exit.json says that it is still running, or that it was killed without a word: */
int past_alive (const struct past *p);          /* 1: it runs, 0: it was killed, -1: not known, or not past_runs */
bool past_crowded (const struct past *p);       /* its last launch had more ranks than cores: what they wait for is a turn */

/* Median of figure F over steps [from, to), NaN where there is none; the first step of a launch counts only where there is no other. */
double past_median (const struct past *p, enum past_figure f, int64_t from, int64_t to);
int past_ranks (const struct past *p, int launch);   /* of a launch, by the configuration where it does not say; 0: not known */
const char *past_axis (enum past_figure f);     /* "tp" for PAST_TP ... */
#endif
