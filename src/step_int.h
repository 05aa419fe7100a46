/* step_int: what step_plan.c and step.c share, and nobody else sees. */
#ifndef STEP_INT_H
#define STEP_INT_H
#include "step.h"

#define RING LEN (((struct ring *) 0)->mem)

static inline int virtual_stage (const struct step *s, int chunk) { return chunk * s->pp + s->stage; }
static inline bool has_head (const struct step *s, int chunk) { return virtual_stage (s, chunk) == s->pp * s->chunks - 1; }
static inline bool has_embed (const struct step *s, int chunk) { return virtual_stage (s, chunk) == 0; }
#endif
