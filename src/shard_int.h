/* shard_int: what shard_plan.c and shard.c share, and nobody else sees. */
#ifndef SHARD_INT_H
#define SHARD_INT_H
#include "shard.h"

/* Each unit keeps its slot: the optimizer writes new weights there. */
static inline bool shard_direct (const struct shard *s)
{
  return !s->alias && s->slots == s->units.count && s->c->sharding.reshard != RESHARD_BACKWARD && s->offload != OFFLOAD_PARAMS;
}
#endif
