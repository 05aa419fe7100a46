/* stop: wishes that the run end with a checkpoint: SIGTERM, SIGINT or SIGUSR1 to any rank, a file RUN_DIR/stop, run.max_minutes, the end of the batch job.

   A rank knows of its own signals, rank 0 of the rest; the ranks agree by MPI_MAX over what stop_wish returns. A second signal ends the process at once, with status
   128 + its number. One that follows on the heels of the first counts as the same: a batch system signals each process of a job, and the launcher passes its own on. */
#ifndef STOP_H
#define STOP_H
#include "mesh.h"

enum stop_why { STOP_NO, STOP_SIGNAL, STOP_FILE, STOP_MINUTES, STOP_JOB_END };

/* Catch the signals. Before MPI_Init, so that one that comes while the job starts is heard too. */
void stop_signals (void);
/* The other wishes count from now on. DIR is copied; MAX_MINUTES from the call of stop_signals on, 0: none. The batch job's end is SLURM_JOB_END_TIME (Unix seconds), which newer
   Slurms set and the scripts in share/slurm where it does not. */
void stop_open (const char *dir, double max_minutes);
/* Why to stop, as seen by this rank. NEED: seconds that one more step, what belongs to it and a last save may take; that much must be left of the batch job's time.
   Negative: time limits do not count (the run has not got on yet, and would never). Local. */
enum stop_why stop_wish (const struct mesh *m, double need);
/* The same, agreed on. Collective. */
enum stop_why stop_agreed (struct mesh *m, double need);
const char *stop_text (enum stop_why why);   /* "a signal" */
/* The wish is fulfilled: a file that asked for it is removed. Rank 0. */
void stop_done (enum stop_why why);
#endif
