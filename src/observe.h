/* observe: what a run tells of itself while it trains, behind one door: the record and the line of each step (metrics.h), its plan beside it (beside.h), where the time goes
   (account.h), a trace of some steps (profile.h). */
#ifndef OBSERVE_H
#define OBSERVE_H
#include "account.h"
#include "beside.h"

struct observer;

/* The run goes on after STEP. NULL with the sentence: the files cannot be written (rank 0). Local. */
struct observer *observe_open (struct job *j, int64_t step, struct err *e);
void observe_plan (struct observer *o);     /* plan this rank, once all is ready. Local */
void observe_close (struct observer *o);    /* NULL is legal */

/* A step: before its data; then before step_train; when all ranks have agreed that it is over (CLEAN: as beside_end has it; collective each run.log_every
   steps); and its record. */
void observe_begin (struct observer *o);
void observe_train (struct observer *o);
void observe_end (struct observer *o, int64_t step, bool clean);
void observe_record (struct observer *o, const struct step_result *out, double lr, int64_t tokens, const double *eval);
/* A spike, for the next record; and the run went back to STEP: later records are dropped. Local. */
void observe_spike (struct observer *o, const struct metrics_spike *s);
void observe_back (struct observer *o, int64_t step);
/* The time since the last lap was for WHAT. Local. */
void observe_lap (struct observer *o, enum lap what);

/* At the end of a run: plan and run side by side. Collective. */
void observe_report (struct observer *o);
#endif
