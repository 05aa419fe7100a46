/* doctor: what this launch looks like and what is wrong with it; what went wrong in a run; and --calibrate, which measures a machine file for the planner. */
#ifndef DOCTOR_H
#define DOCTOR_H
#include <stdio.h>
#include "past.h"

int doctor_main (int argc, char **argv);
int doctor_calibrate (int argc, char **argv);   /* all under MPI; argv[0] is the command's word */
int doctor_launch (int argc, char **argv);
int doctor_runs (int argc, char **argv);        /* one process */

/* What was found: a sentence with the cause, and one with the remedy. */
enum finding_kind { FINDING_NOTE, FINDING_WRONG };
struct finding { enum finding_kind kind; char what[900], remedy[700]; };
struct findings { int n; struct finding list[24]; };
/* One more, to be filled; the last one is overwritten when there is no room. */
struct finding *finding_add (struct findings *f, enum finding_kind k);
/* To F, numbered; the exit code: 2 where something is wrong. NONE: what to say when there is none. */
int finding_print (const struct findings *f, const char *none, FILE *out);

/* The trouble-shooting table for the run P: each row that applies. */
void doctor_run (const struct past *p, struct findings *f);
/* Of two runs: does the one with more ranks do less? */
void doctor_compare (const struct past *a, const struct past *b, struct findings *f);
#endif
