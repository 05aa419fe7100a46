/* metrics: what a run says about itself. RUN_DIR/metrics.jsonl has one JSON object a step, the terminal a line now and then,
   RUN_DIR/exit.json why the run ended. Only rank 0 opens metrics.jsonl; on other ranks the calls are legal and do nothing.
   Nothing here is collective. */
#ifndef METRICS_H
#define METRICS_H
#include "dev.h"

struct metrics;

enum { METRICS_AXES = 5 };   /* tp, pp, dp_shard, dp_replicate, world */
struct metrics_axis { const char *name; double seconds; };   /* name: static; NULL: this rank has no group of it */

/* Where a step's time went on this rank, in seconds (account.h). */
struct metrics_parts {
  double data, forward, backward, optimizer, exposed, agree, other, save, eval;
  struct metrics_axis axis[METRICS_AXES];   /* exposed, by axis */
};

/* The ranks beside each other, means over the last steps. */
struct metrics_ranks {
  int64_t steps;                 /* that many */
  double seconds;                /* of a step, on rank 0 */
  int slowest;                   /* the rank whose work takes longest, measured by the median of its pipeline stage */
  char host[64];
  double work, median, excess;   /* seconds a step of its own work, of that median; work / median - 1 */
  double share;                  /* of a step that ranks wait for communication, mean over them */
  struct metrics_axis axis[METRICS_AXES];   /* of it, seconds a step: mean over ranks */
};

/* What a launch is, told with its first step. */
struct metrics_launch { int64_t after; int ranks, nodes, cores; struct { const char *name; int n; } axis[METRICS_AXES]; };   /* after: the step of the checkpoint that it goes on from, 0: none;
   cores: that the ranks of rank 0's node share to compute on, 0: they compute on GPUs */

/* A spike of loss or gradient norm (spike.h): at step STEP, which trained on global batch BATCH; values, and deviations above the mean of the window. */
struct metrics_spike { const char *action; int64_t step, batch, back_to; double loss, norm, z_loss, z_norm; };   /* back_to: of a rollback; else -1 */

/* GPUs of all ranks: means, and the worst. */
struct gpu_state;
struct metrics_gpu { int rank; char host[32]; const struct gpu_state *g; };
struct metrics_gpus { int n; const struct metrics_gpu *gpu; };

struct metrics_record {
  int64_t step;                               /* from 1 */
  double  loss, grad_norm, lr;                /* loss: nats a token, over the step's valid tokens of all ranks */
  int64_t tokens, step_tokens;                /* of all ranks: seen so far with this step; in this step */
  double  seconds;                            /* wall time of this step */
  double  cpu_seconds;                        /* processor time of this rank in it, all its threads; less than seconds x threads: it had to wait */
  double  mfu;                                /* 0 .. 1; negative: the peak of this device is not known, written as null */
  bool    skipped;                            /* the gradient was not finite, or this is a spike: the state is as before */
  bool    has_eval;                           /* there was validation after this step */
  double  eval_loss;
  bool planned, planned_agrees;               /* there is a plan of this rank; memory and bytes have agreed with it so far */
  int64_t planned_memory, planned_bytes;      /* bytes: of its arenas, all spaces; that it sends a step */
  int64_t memory;                             /* bytes in use of rank 0's device, arenas and outside; 0: not said */
  const struct metrics_launch *launch;        /* NULL: not the first step of a launch */
  const struct metrics_parts *parts;          /* NULL: not known */
  const struct metrics_ranks *ranks;          /* NULL: not compared after this step */
  const struct metrics_spike *spike;          /* of this step, or what the run went back from to this one; NULL: none */
  const struct metrics_gpus *gpus;            /* NULL: none */
  const struct dev *dev;                      /* memory by purpose; NULL: none */
  /* this rank's groups, counters since their opening (the difference to the last step is written); NULL: none */
  const struct group_head *group[GROUP_N];
};

/* Open DIR/metrics.jsonl to go on after RESUMED_STEP: records of later steps, and a torn last line, are cut off. At step 0 an
   older file is kept as metrics.old.jsonl. STEPS: where the run will end (time left); LOG_EVERY: steps between lines on the
   terminal, 0 = the last alone. NULL with the sentence on failure. */
struct metrics *metrics_open (const char *dir, int64_t resumed_step, int64_t steps, int64_t log_every, struct err *e);
/* One step: a record in the file and, when due (each log_every steps, the first, the last, one with validation, one skipped), a
   line on the terminal. A failing disk is warned of once and does not end the run; no torn line stays behind. */
void metrics_step (struct metrics *m, const struct metrics_record *r);
/* Lines go to a terminal of WIDTH columns: one that is drawn over itself. 0, as it is at first: to a file, now and then. */
void metrics_terminal (struct metrics *m, int width);
/* The run goes on after STEP again: records of later steps are cut off. */
void metrics_back (struct metrics *m, int64_t step);
void metrics_close (struct metrics *m);   /* NULL is legal */

/* The terminal's line for R, without newline; for rates and time left M remembers the steps since the last line. */
void metrics_line (const struct metrics *m, const struct metrics_record *r, char *out, size_t size);

/* Why the run ended. The first to know writes (any rank), atomically; a file that is there already stands, so rank 0 begins each launch. System calls and no allocation: a
   watchdog thread may call it. STEP: the last one done. 0, or -1 when it could not be written, 1 when a reason stands there already. */
/* Write that the run goes on: what stays if all its processes are killed; any reason takes its place. KEEP: the last word of an older launch that stood stays as exit.old.json, */
int  exit_begin (const char *dir, bool keep);
void exit_stands (const char *dir);   /* until this launch is sure not to be refused */
int  exit_said (const char *dir);    /* the code that stands there; -1: none, or the run goes on */
int  exit_write (const char *dir, int code, const char *reason, int64_t step);
/* The same in two, for those who may be ended at any moment: for all to read; on the disk. */
int  exit_tell (const char *dir, int code, const char *reason, int64_t step);
void exit_sync (const char *dir);

/* Hold DIR for this process until run_unlock or its end. One rank. 0 (also where the file system has no locks), or -1 with the sentence, which names the owner. */
int  run_lock (const char *dir, int *lock, struct err *e);
void run_unlock (int lock);   /* -1 is legal */
/* Does a process hold DIR? 1: yes; 0: no, and none on this host did that is still there; -1: not known, as it was held on another host, whose locks may not be seen here. */
int  run_held (const char *dir);
#endif
