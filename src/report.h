/* report: one or several runs as a page: HTML complete in itself, with the curves as data and a script of ours (share/page) that draws them; nothing is fetched. */
#ifndef REPORT_H
#define REPORT_H
#include <stdio.h>
#include "past.h"

int report_main (int argc, char **argv);   /* pretrain report RUN_DIR... [--output FILE.html]; returns the exit code */

/* What befell a run, in order. WORD: short, for the curves. */
struct incident { int64_t step, time; const char *word, *mood; char text[2400]; };
int report_incidents (const struct past *p, struct incident **list);   /* how many; xfree the list */

/* The data of N runs as JSON that can stand in a script of HTML: curves of POINTS points at most, of which each keeps the least and the greatest value of its steps. */
void report_data (const struct past *p, int n, int points, FILE *f);

/* Sections. MANY: name the run. */
void report_mesh (const struct past *p, bool many, FILE *f);
void report_memory (const struct past *p, int n, FILE *f);
void report_plan (const struct past *p, bool many, FILE *f);
/* The mesh of the last launch in dim[4]: tp, pp, dp_shard, dp_replicate; false where it is not known. As text: "dp_shard 2, pp 2, tp 2". */
bool report_dims (const struct past *p, int dim[4]);
void report_dims_text (const int dim[4], char out[static 96]);
#endif
