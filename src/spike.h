/* spike: steps whose loss or gradient norm jumps above those before it, and what is done about them. Local and pure but for its memory: every rank sees the same values and
   so decides the same.

   Over the window of the last spike.window good steps, of loss and of gradient norm each: mean u and standard deviation d (at least u / 1000, for a flat window). The device leaves
   out the update of a step whose value is above u + spike.zscore d (struct step_vars), as it does where a value is not finite; such a step enters no window. Before the window is
   full nothing is a spike.

   rollback goes to a checkpoint and leaves out the global batches used since. Which batches are left out, data.skip among them, is a list of ranges; step T trains on the T-th
   batch that is in none. Checkpoints keep window, spikes and ranges as text. */
#ifndef SPIKE_H
#define SPIKE_H
#include "conf.h"

struct batch_range { int64_t first, last; };   /* global batches, from 1, both included */
struct spike {
  const struct conf *c;
  int64_t n;                                   /* steps in the window, at most spike.window */
  double *loss, *norm;                         /* [n], the oldest first */
  struct batch_range *given, *own; int givens, owns;   /* data.skip; of rollbacks. In order, apart */
  int64_t *hit; int hits;                      /* batches of the last spikes, at most spike.max + 1 */
};
enum { SPIKE_WINDOW_MAX = 1000 };

/* 0, or -1 with the sentence: data.skip is no list of ranges. */
int  spike_open (struct spike *s, const struct conf *c, struct err *e);
void spike_close (struct spike *s);
/* data.skip as ranges in order, xalloc'd; -1 with the sentence. */
int  spike_ranges (const char *text, struct batch_range **list, int *n, struct err *e);

/* The global batch that step STEP trains on, from 1. */
int64_t spike_batch (const struct spike *s, int64_t step);
/* Above these a step is a spike; 0: none is. */
void spike_limits (const struct spike *s, double *loss, double *norm);
/* A good step. */
void spike_add (struct spike *s, double loss, double norm);
/* A spike at BATCH. -1 with the sentence (code EXIT_DIVERGED): there are too many. */
int  spike_hit (struct spike *s, int64_t batch, struct err *e);
/* How many deviations above the mean. */
void spike_scores (const struct spike *s, double loss, double norm, double *z_loss, double *z_norm);
/* After FIRST .. LAST were left out for good: those batches are used no more. */
void spike_leave_out (struct spike *s, int64_t first, int64_t last);

/* What a checkpoint keeps; NULL: nothing. xfree it. */
char *spike_text (const struct spike *s);
/* From it. WINDOW_ALONE: the spikes and ranges of now stay (after a rollback). NULL: empty. Text that is none: -1. */
int  spike_take (struct spike *s, const char *text, bool window_alone);
#endif
