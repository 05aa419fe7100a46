#include "state.h"

static float *part_of (struct job *j, enum ckpt_kind k, int unit)
{
  const struct ushard *u = &j->s.sh.u[unit];
  return k == CKPT_MASTER ? u->master : k == CKPT_M ? u->m : u->v;
}

static void get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  struct job *j = ctx;
  dev_get (&j->d, j->s.q, dst, part_of (j, k, unit) + lo, n * 4);
}

static void put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  struct job *j = ctx;
  dev_put (&j->d, j->s.q, part_of (j, k, unit) + lo, src, n * 4);
}

struct ckpt_state state_of (struct job *j, int64_t step, int64_t tokens)
{
  return (struct ckpt_state) { .conf = &j->c, .mesh = &j->m, .units = &j->s.sh.units, .step = step, .tokens = tokens, .get = get, .put = put, .ctx = j };
}

int state_resume (struct job *j, const char *dir, int64_t *step, int64_t *tokens, struct err *e)
{
  struct ckpt_state s = state_of (j, 0, 0);
  int found = ckpt_resume (&s, dir, e);
  if (found <= 0) return found;
  *step = s.step;
  *tokens = s.tokens;
  step_set_updates (&j->s, s.updates);
  shard_stale (&j->s.sh);
  return 1;
}
