/* state: what a checkpoint keeps of a step, for those that save and load. */
#ifndef STATE_H
#define STATE_H
#include "ckpt.h"
#include "job.h"

/* The tensors of J's step as a checkpoint sees them; borrowed from J. */
struct ckpt_state state_of (struct job *j, int64_t step, int64_t tokens);
/* Load the newest good checkpoint of DIR into the step. 1, 0 if there is none, -1. Collective. */
int state_resume (struct job *j, const char *dir, int64_t *step, int64_t *tokens, struct err *e);
#endif
