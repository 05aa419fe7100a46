/* profile: what each rank did in a few steps (run.profile), written as one trace for Perfetto and Chrome's about:tracing, RUN_DIR/profile_FIRST-LAST.json. A rank is a process of
   the trace, its host thread and each queue a thread; on the compute queue the schedule's actions hold the operations and the waits. All ranks are on rank 0's clock: ranks of a
   node share one, nodes exchange messages with rank 0 and take the middle of the quickest round trip (otherData.clock_error_us: half of the longest of these; device_error_us: how
   far a GPU's times may be off its host's).

   While steps are profiled every operation is timed, which costs a little; before and after, nothing. */
#ifndef PROFILE_H
#define PROFILE_H
#include "account.h"

struct profile;

/* NULL: run.profile asks for none. Local. */
struct profile *profile_open (struct job *j);
void profile_close (struct profile *p);                      /* NULL is legal here and below */
/* Before step STEP; after it: the last one is followed by the writing. Collective. */
void profile_begin (struct profile *p, int64_t step);
void profile_end (struct profile *p, int64_t step);
/* The run is over: what was profiled and is not written yet. Collective. */
void profile_finish (struct profile *p);
/* The host's time since the last lap was for WHAT. Local. */
void profile_lap (struct profile *p, enum lap what);
#endif
