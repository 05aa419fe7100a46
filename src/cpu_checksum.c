#include "config.h"
#include "checksum.h"
#include "cpu_ops.h"

#define PARTS 256
struct checksum { const void *x; int64_t n, part; enum dtype t; uint64_t sum[PARTS]; };

#define SUM_AS(T) do { const T *x = s->x; for (int64_t i = lo; i < hi; i++) sum += checksum_term (x[i], (uint64_t) i); } while (0)

static void checksum_part (const void *arg, int64_t from, int64_t to)
{
  struct checksum *s = (struct checksum *) arg;
  for (int64_t p = from; p < to; p++) {
    int64_t lo = p * s->part, hi = MIN (lo + s->part, s->n);
    uint64_t sum = 0;
    switch (dtype_size (s->t)) {
    case 1: SUM_AS (uint8_t); break;
    case 2: SUM_AS (uint16_t); break;
    case 4: SUM_AS (uint32_t); break;
    default: SUM_AS (uint64_t); break;
    }
    s->sum[p] = sum;
  }
}

void cpu_checksum (const struct op *op)
{
  const struct op_checksum *o = &op->checksum;
  struct checksum s = { .x = cpu_at (o->x), .n = o->n, .part = MAX (ceil_div (o->n, PARTS), 4096), .t = o->t };
  int64_t parts = ceil_div (o->n, s.part);
  uint64_t *sum = cpu_at (o->sum);
  cpu_for (parts, (double) s.part * 1.0, checksum_part, &s);
  for (int64_t p = 0; p < parts; p++) *sum += s.sum[p];
}
