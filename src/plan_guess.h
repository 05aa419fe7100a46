/* plan_guess: what a plan would take, without making it: the order in which a search tries its candidates. Layers are priced by the trainer's own code on the sim device (two small
   models for each tp, micro-batch and recomputation, kept), traffic over dp and pp by closed forms. A guess decides nothing but which candidates are planned. */
#ifndef PLAN_GUESS_H
#define PLAN_GUESS_H
#include "plan.h"

struct guess_layer { int64_t tp, micro_batch; int mode; double layer, ends; };   /* seconds of a micro-batch: one layer, embedding and head; forward and backward */
struct guesses { struct machine m; const struct conf *c; int gpus; struct guess_layer *known; int n; };

void guess_open (struct guesses *g, const struct conf *c, const struct machine *m, int gpus);
void guess_close (struct guesses *g);
/* Seconds a step of C; INFINITY where it is impossible. */
double guess_step (struct guesses *g, const struct conf *c);
/* Bytes of state a GPU that C needs at least. */
double guess_state (const struct conf *c, int gpus);
#endif
