/* opt: learning-rate schedules. Pure. */
#ifndef OPT_H
#define OPT_H
#include "conf.h"

/* Learning rate of step (from 1). Warm-up: lr * step / warmup up to step = warmup. Then constant; linear or cosine from lr at warmup to min_lr at
   schedule.steps, min_lr beyond; wsd: lr until steps - decay, then linear to min_lr at steps. */
double opt_lr (const struct conf *c, int64_t step);
#endif
