/* prometheus: how the run is doing, as a text file for Prometheus (its exposition format, version 0.0.4): node_exporter's textfile collector reads each *.prom of its folder. Written
   under another name and renamed, so that a reader sees a whole file. Rank 0's; local. */
#ifndef PROMETHEUS_H
#define PROMETHEUS_H
#include "metrics.h"

struct prometheus;

/* PATH: of the file; RUN: what its label run says; STEPS: where the run will end. Writes nothing yet, but finds out whether it could: NULL with the sentence. */
struct prometheus *prometheus_open (const char *path, const char *run, int64_t steps, struct err *e);
/* The state after a step takes the place of the file. What only some records have (validation, ranks, GPUs) stands until the next. A failing disk is warned of once. */
void prometheus_step (struct prometheus *p, const struct metrics_record *r);
void prometheus_close (struct prometheus *p);   /* NULL is legal; the file stays */
#endif
