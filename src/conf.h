/* conf: every option of the program, once. One table (conf.c) gives name, type, default, unit, help and aliases; the YAML file,
   the command line, --help, the man page and the copy kept with each run and checkpoint all come from it.

   The struct below is the effective configuration. Strings are owned by the struct. Sizes are in the unit that the comment says. */
#ifndef CONF_H
#define CONF_H
#include <stdio.h>
#include "base.h"
#include "dtype.h"
#include "model.h"

enum strategy { NO_SHARD, SHARD_OPT, SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD, STRATEGY_N };
enum reshard { RESHARD_AUTO, RESHARD_FORWARD, RESHARD_BACKWARD, RESHARD_STEP };   /* when gathered weights are let go */
enum schedule_kind { SCHED_GPIPE, SCHED_1F1B, SCHED_INTERLEAVED, SCHED_ZBH1 };
enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_AUTO };
/* train.dtype. FP8: bf16, but the products of every layer's matrices take operands of 8 bits: weights and activations E4M3, gradients of outputs E5M2 (linear.h). */
enum precision { PREC_FP32, PREC_BF16, PREC_FP8 };
enum lr_kind { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD };
enum offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };
enum save_error { SAVE_ERROR_STOP, SAVE_ERROR_CONTINUE };
enum progress { PROGRESS_LINE, PROGRESS_LOG, PROGRESS_AUTO };   /* one line drawn over itself, or lines now and then; auto: by whether there is a terminal */
enum spike_action { SPIKE_NONE, SPIKE_SKIP, SPIKE_ROLLBACK };
enum spike_watch { SPIKE_BOTH, SPIKE_LOSS, SPIKE_NORM };
enum tristate { NO, YES, AUTO };

#define STR 1024   /* room of a string option */

struct conf {
  char model[STR];              /* model: what to call it: the name or path that it was loaded from, or (mapping); arch alone decides */
  struct arch arch;             /* the model's shape, resolved */

  struct {                      /* data: */
    char train[STR], valid[STR];  /* a path, or a blend "0.7:a.h5,0.3:b.h5" (YAML: a string or a list of them) */
    double valid_fraction;      /* the tail of train is valid when valid is left out or equal to train */
    char tokenizer[STR];        /* bytes, or a path */
    char format[32];            /* auto | hdf5 | megatron | u16 | u32 */
    char skip[STR];             /* global batches left out, "120-180,300" (spike.h) */
    bool document_mask;         /* attention and positions stop at document ends */
  } data;

  struct {                      /* run: */
    char dir[STR];
    bool save;                  /* false: no checkpoints at all, for measuring */
    int64_t save_every;         /* steps; 0 = only at the end */
    int64_t keep;               /* newest checkpoints kept; 0 = all */
    char device[16];            /* auto | cpu | cuda | sim */
    char machine[STR];          /* a machine file by which the plan of a run predicts its times; empty: memory and bytes alone */
    enum tristate deterministic;
    bool overlap;               /* communication beside computation; off: the same order with waits */
    int64_t threads;            /* compute threads a rank; 0 = cores of the node / its ranks, or OMP_NUM_THREADS */
    int64_t log_every;          /* steps between progress lines */
    enum progress progress;
    char profile[32];           /* steps to profile, "10:12" or "10"; "": none */
    bool tensorboard;           /* event files in DIR/tensorboard */
    char prometheus[STR];       /* text file for a collector; without a slash in DIR; "": none */
    bool resume;                /* from the newest good checkpoint in run.dir */
    double watchdog;            /* seconds without progress after which a rank ends the job; 0 = never */
    double max_minutes;         /* stop with a checkpoint after so many minutes; 0 = never */
    bool save_async;            /* checkpoints are written behind training, from a copy of the state in host memory */
    enum dtype save_moments;    /* type of AdamW's moments in checkpoints */
    enum save_error save_error; /* what a checkpoint that cannot be written means; the last one always stops */
    int64_t replica_check_steps;   /* steps between comparisons of what several ranks hold, which then come before each save too; 0 = none */
    int64_t stripe_count, stripe_size;   /* of checkpoints on a file system that stripes; 0 = as the folder says */
  } run;

  struct {                      /* load: how a run begins that has no checkpoint of its own, and what a damaged one means */
    char from[STR];             /* a checkpoint, or a run's folder: its newest good one; "" = initial weights */
    bool weights_only;          /* from it only the weights: moments zero, step 0 */
    bool fallback;              /* a damaged checkpoint: the good one before it; else stop */
  } load;

  struct {                      /* mesh: 0 = takes the ranks that remain (dp_shard) or 1 (others) */
    int64_t dp_replicate, dp_shard, pp, tp;
    char order[64];             /* fastest axis first: tp-pp-dp */
    bool tp_across_nodes;
    int64_t tp_overlap;         /* parts that a gather or scatter of activations over tp travels in, products running beside; 1: whole */
  } mesh;

  struct {                      /* sharding: */
    enum strategy strategy;
    char wrap[32];              /* layer | model | size:N */
    int64_t prefetch;           /* units gathered ahead of the one in use, forward and backward */
    enum dtype reduce_dtype;    /* the wire: fp32 | bf16 */
    enum dtype grad_dtype;      /* the storage: fp32 | bf16 */
    enum reshard reshard;
    enum offload cpu_offload;
  } sharding;

  struct {                      /* pipeline: */
    enum schedule_kind schedule;
    int64_t chunks;             /* model chunks a stage (interleaved only), else 1 */
    char split[STR];            /* layers of each stage, "5,3"; empty = as even as can be */
  } pipeline;

  struct { enum recompute mode; char keep[128]; int64_t every; } recompute;   /* keep: the parts that selective keeps (keep.h); every: each n-th layer is recomputed */

  struct {                      /* train: */
    int64_t steps, seq_len, micro_batch, global_batch;   /* batches count sequences */
    enum precision precision;   /* train.dtype */
    enum dtype dtype;           /* follows from it: type of weights, activations and of all that is not a product in 8 bits */
    int64_t seed;
    int64_t max_bad_steps;      /* skipped steps in a row that end the run with code 5 */
    int64_t loss_chunk;         /* tokens whose logits exist at once; 0 = chosen from the vocabulary */
  } train;

  struct { double lr, beta1, beta2, eps, weight_decay, clip; } optimizer;              /* clip: global norm; 0 = off */
  struct { enum lr_kind type; int64_t warmup; double min_lr; int64_t steps, decay; } schedule;  /* steps 0: train.steps; decay: wsd's last steps */
  struct { int64_t every, batches; } eval;                                             /* every 0: only at the end */

  struct {                      /* spike: what a sudden rise of the loss means (spike.h) */
    enum spike_action action;
    enum spike_watch watch;
    double zscore;
    int64_t window, max;
  } spike;

  struct {                      /* debug: for the tests; documented, never needed by a user */
    char dump[STR];             /* folder: each tensor before and its gradient of step dump_step as raw fp32 files */
    int64_t dump_step;
    double comm_delay_ms;       /* each collective takes at least so long, and on the cpu device each operation of a copy queue */
    int64_t comm_chunk;         /* elements; collectives are cut below it */
    bool sync_send;             /* point-to-point by synchronous sends */
    bool shared_gpu;            /* several ranks on one GPU */
    bool verbose;               /* tell also what only developers want to know */
    bool op_times;              /* at the end, what each operation took on the GPU */
    double clock_skew;          /* seconds between the clocks of a node and the next */
    char gpu[32];               /* PCI address: watch this GPU, whatever the device */
    int64_t slow_rank;          /* this rank's data take slow_ms longer each step (-1: none's) */
    double slow_ms;
    int64_t nan_rank, nan_step; /* put a NaN into this rank's gradient at this step (-1: never) */
    int64_t flip_rank, flip_step;   /* flip a bit of this rank's state after this step (-1: never) */
    int flip_kind;              /* enum replica_kind */
    char flip_tensor[96];       /* in the first tensor whose name begins so */
    int64_t spike_batch;        /* every target of this global batch is a rare token (-1: none) */
  } debug;

  bool given[192];              /* last: by row of the table, the user said it, in the file or on the command line (conf_given) */
};

static inline const char *precision_name (const struct conf *c) { return c->train.precision == PREC_FP8 ? "fp8" : dtype_name (c->train.dtype); }

/* Defaults into C. */
void conf_default (struct conf *c);
/* The steps of run.profile's TEXT; false: none, or it is no FIRST:LAST. */
bool conf_profile (const char *text, int64_t *first, int64_t *last);
/* run.deterministic decided. auto, measured on an H200: the deterministic backward of attention costs 0.8 % of a step with heads of 128 and 5 % with heads of 64, so on from 96. */
bool conf_deterministic (const struct conf *c);

/* Read a run's YAML file (NULL: none), then the options of argv (--a.b value, --a.b=value, Megatron's and accelerate's spellings), into
   C on top of what it holds; resolve the model; check values that need no mesh. Later sources win; a model's name replaces all
   of the model that was said before it. What was left out and follows from other values is filled in (schedule.warmup, schedule.min_lr,
   schedule.decay, model.kv_heads, model.head_dim), so the dump says all. ARGV has only options: no program, no file. 0, or -1 with the sentence: key, line, nearest right name.
   Local: call it on rank 0 and broadcast C (it holds no pointers), or on every rank with the same text. */
int conf_load (struct conf *c, const char *yaml_path, int argc, char **argv, struct err *e);

/* Did the user give option NAME (a row's name, "train.seq_len") in what conf_load read last? */
bool conf_given (const struct conf *c, const char *name);

/* The effective configuration as YAML that conf_load accepts, the model written out as a mapping. conf_text: a string to xfree. */
void  conf_dump (const struct conf *c, FILE *f);
/* The same in short, for a user to read and change: what differs from the defaults; a model of share/models by its name. */
void  conf_dump_said (const struct conf *c, FILE *f);
char *conf_text (const struct conf *c);

/* --help: all options with type, default and unit; conf_man: the same as the OPTIONS section of the man page (roff). */
void conf_help (FILE *f);
void conf_man (FILE *f);

/* First option that differs between A and B, as `train.seq_len 64 vs 128` in OUT; NULL if none. For the comparison of ranks. */
const char *conf_differ (const struct conf *a, const struct conf *b, char *out, size_t size);
#endif
