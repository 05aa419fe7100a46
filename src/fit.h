/* fit: what a step keeps in memory where the choice is free: the parts of each layer that recompute.mode auto keeps, and whether cast weights stay for the
   step where one rank holds a whole unit and sharding.reshard is auto. The fastest choice by a model of FLOPs and bytes (dev_limits.rate) whose memory fits in
   the device's less dev_limits.outside. Pure, and the same on all ranks of a stage: nothing that it looks at differs between them. */
#ifndef FIT_H
#define FIT_H
#include "step.h"

/* Chooses s->keep and s->sh.kept. bytes (s): memory of the step as s stands. */
void fit (struct step *s, int64_t (*bytes) (struct step *s));
/* Seconds that a layer's backward of a micro-batch takes longer for what it does not keep. */
double fit_seconds (const struct blocks *b, int keep);
/* Bytes that a layer keeps of a micro-batch. */
int64_t fit_bytes (const struct blocks *b, int keep, bool split);
#endif
