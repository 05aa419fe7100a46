#include "opt.h"
#include <math.h>

double opt_lr (const struct conf *c, int64_t step)
{
  double lr = c->optimizer.lr, low = c->schedule.min_lr;
  int64_t warm = c->schedule.warmup, end = c->schedule.steps ? c->schedule.steps : c->train.steps;
  if (step <= warm) return lr * (double) step / (double) warm;
  if (c->schedule.type == LR_CONSTANT) return lr;
  int64_t from = c->schedule.type == LR_WSD ? MAX (end - c->schedule.decay, warm) : warm;
  if (step <= from) return lr;
  if (step >= end) return low;
  double x = (double) (step - from) / (double) (end - from);
  if (c->schedule.type == LR_COSINE) return low + (lr - low) * 0.5 * (1 + cos (3.14159265358979323846 * x));
  return lr + (low - lr) * x;
}
