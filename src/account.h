/* account: where the time of a step goes: by parts on each rank, by axis of the mesh where it waits for links, and how the ranks compare. Costs a few readings of a clock and one
   small collective each run.log_every steps; no device is waited for.

   A step's wall time (metrics.jsonl's `seconds`) is data + forward + backward + optimizer + exposed + agree + other. forward, backward and optimizer are the compute queue's time
   without waits for collectives; exposed is those waits; agree is how long this rank waits for the others when all decide whether to go on; other is what is left: host time while
   the device has nothing to do. checkpoint and eval come on top: what training stood still for them since the last record. */
#ifndef ACCOUNT_H
#define ACCOUNT_H
#include "job.h"
#include "metrics.h"
#include "nvml.h"

struct account;

/* What a rank tells rank 0: seconds a step, means over the steps compared; EXPOSED by enum axis, then world. */
struct account_rank {
  double work, data, other, seconds, exposed[METRICS_AXES];
  char host[32];
  bool has_gpu;
  struct gpu_state gpu;
};

const char *account_axis (int i);   /* "tp" ..., "world" */

/* Never NULL. Local. */
struct account *account_open (struct job *j);
void account_close (struct account *a);   /* NULL is legal */

/* What the time since the last lap was for. */
enum lap { LAP_NONE, LAP_DATA, LAP_STEP, LAP_AGREE, LAP_EVAL, LAP_SAVE, LAP_N };
void account_lap (struct account *a, enum lap what);
/* Around a step with its data; the end before an evaluation, whose communication is not a step's. Local. */
void account_begin (struct account *a);
void account_end (struct account *a, double seconds);

/* Compare the ranks over the steps since the last time. Collective. On rank 0 the result is in the next record; GPU: this rank's, as it is now (NULL: none). */
void account_share (struct account *a, const struct gpu_state *gpu);
/* On rank 0, between a comparison and the end of the next step: the ranks, borrowed, and what they are together; else NULL. Local. */
const struct account_rank *account_ranks (const struct account *a, const struct metrics_ranks **all);
/* Fills parts, ranks, gpus, mfu and memory of M; they live until the next account_end. Local. */
void account_record (struct account *a, struct metrics_record *m);

/* How MFU is counted, in a sentence of rank 0's; nothing where the peak of the device is not known. */
void account_say (const struct account *a);
#endif
