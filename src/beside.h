/* beside: a run beside its plan. When a run is ready, its own configuration is planned for this rank (plan_rank) on the device's own figures; each training step's counters are
   compared with it; at the end both stand side by side. Bytes and memory must agree exactly: where they do not, the program is wrong and says so. */
#ifndef BESIDE_H
#define BESIDE_H
#include "job.h"
#include "metrics.h"

struct beside;

/* Plan this rank, look at what is reserved. After job_batches. Local; never NULL. */
struct beside *beside_open (struct job *j);
void beside_close (struct beside *b);   /* NULL is legal */

/* The machine of this run: run.machine where it is of this device, else as the device tells of itself: limits, memory, rough speeds (then false). Local. */
struct machine;
bool beside_machine (const struct job *j, struct machine *m);

/* J's memory does not fit on its device: what is too much, the three nearest options that would fit, and the least number of ranks, appended to the sentence in E. Local. */
void beside_help (const struct job *j, struct err *e);

/* Around step_train. clean: nothing but training steps has run since the last one, or the weights are new; after an evaluation gathered weights may still be there, and a step sends less. */
void beside_begin (struct beside *b);
void beside_end (struct beside *b, double seconds, bool clean);
/* What metrics.jsonl says of it: fills the planned_* of M. */
void beside_record (const struct beside *b, struct metrics_record *m);

/* Plan and run side by side on rank 0's terminal; names the first rank whose figures differ. Collective. */
void beside_report (struct beside *b);
#endif
