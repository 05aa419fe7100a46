/* tune: one table of the algorithms that a device measured, for all ranks, kept with the run as RUN_DIR/gemm.txt, so that a run that goes on has the bits of one that was not
   interrupted, and a run with a copy of the file those of its model.

   A run from step 0 takes, in its first step, what needs no measuring and measures beside it; then the ranks' findings become one table (where they differ the lowest rank's),
   which counts from the second step on. A run that goes on takes the table from its file from the start. */
#ifndef TUNE_H
#define TUNE_H
#include "job.h"

/* Read RUN_DIR/gemm.txt, where it is, on rank 0 for all; USE: it counts from now on. Collective. */
void tune_load (struct job *j, bool use);
/* The ranks' findings become one table, which counts from now on and is written to RUN_DIR/gemm.txt if it says more than before. Collective. */
void tune_share (struct job *j);
#endif
