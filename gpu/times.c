/* times: what each operation costs on the GPU (debug.op_times). An event before and after each; at the end a table by operation and shape, of medians, so that
   first calls and measuring GEMMs do not count. Operations of several queues overlap: their seconds are added all the same. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample { cudaEvent_t e[2]; int line; };
struct line { char what[96]; double flops; int n; float *ms; };

struct times { struct sample *s; int n, room; struct line *line; int lines; };

static void describe (const struct op *o, char *t, size_t size)
{
  static const char *const type[DT_N] = { [DT_F32] = "fp32", [DT_BF16] = "bf16", [DT_F64] = "fp64", [DT_I32] = "int32", [DT_E4M3] = "e4m3", [DT_E5M2] = "e5m2" };
  const char *name = H->op_name (o->kind);
  const struct op_attn *a = o->kind == OP_ATTN ? &o->attn : &o->attn_bwd.f;
  switch (o->kind) {
  case OP_GEMM:
    snprintf (t, size, "%s %lld x %lld x %lld %c%c %s to %s%s%s", name, (long long) o->gemm.m, (long long) o->gemm.n, (long long) o->gemm.k, o->gemm.ta ? 'T' : 'N', o->gemm.tb ? 'T' : 'N',
              type[o->gemm.ab], type[o->gemm.ct], o->gemm.beta != 0 ? " added" : "", o->gemm.bias ? " bias" : "");
    return;
  case OP_GEMM_FP8:
    snprintf (t, size, "%s %lld x %lld x %lld %s %s to %s%s", name, (long long) o->gemm_fp8.m, (long long) o->gemm_fp8.n, (long long) o->gemm_fp8.k, type[o->gemm_fp8.at],
              type[o->gemm_fp8.bt], type[o->gemm_fp8.ct], o->gemm_fp8.beta != 0 ? " added" : "");
    return;
  case OP_QUANT:
    snprintf (t, size, "%s %lld x %lld %s%s%s", name, (long long) o->quant.rows, (long long) o->quant.cols, type[o->quant.to], o->quant.q ? " as it lies" : "", o->quant.qt ? " turned" : "");
    return;
  case OP_AMAX: snprintf (t, size, "%s %lld", name, (long long) o->amax.n); return;
  case OP_ATTN: case OP_ATTN_BWD:
    snprintf (t, size, "%s %lld x %lld/%lld x %lld x %lld", name, (long long) a->batch, (long long) a->heads, (long long) a->kv_heads, (long long) a->sq, (long long) a->head_dim);
    return;
  case OP_NORM: snprintf (t, size, "%s %lld x %lld%s", name, (long long) (o->norm.rows * o->norm.inner), (long long) o->norm.dim, o->norm.res ? " with sum" : ""); return;
  case OP_NORM_BWD: snprintf (t, size, "%s %lld x %lld", name, (long long) (o->norm_bwd.rows * o->norm_bwd.inner), (long long) o->norm_bwd.dim); return;
  case OP_ADAMW: snprintf (t, size, "%s %lld", name, (long long) o->adamw.n); return;
  case OP_AXPBY: snprintf (t, size, "%s %lld %s to %s", name, (long long) o->axpby.n, type[o->axpby.xt], type[o->axpby.yt]); return;
  case OP_COPY: snprintf (t, size, "%s %lld bytes", name, (long long) (o->copy.bytes * (o->copy.rows ? o->copy.rows : 1))); return;
  case OP_SUMSQ: snprintf (t, size, "%s %lld", name, (long long) o->sumsq.n); return;
  case OP_CHECKSUM: snprintf (t, size, "%s %lld %s", name, (long long) o->checksum.n, type[o->checksum.t]); return;
  case OP_XENT_MAX: case OP_XENT_SUM: case OP_XENT_STATS: case OP_XENT_GRAD: snprintf (t, size, "%s %lld x %lld", name, (long long) o->xent.n, (long long) o->xent.ld); return;
  default: snprintf (t, size, "%s", name);
  }
}

static int line_of (struct times *t, const struct op *o)
{
  char what[96];
  describe (o, what, sizeof what);
  for (int i = 0; i < t->lines; i++)
    if (!strcmp (t->line[i].what, what)) return i;
  struct line *l = H->xalloc ((size_t) (t->lines + 1) * sizeof *l, "times");
  if (t->lines) memcpy (l, t->line, (size_t) t->lines * sizeof *l);
  H->xfree (t->line);
  t->line = l;
  memcpy (l[t->lines].what, what, sizeof what);
  l[t->lines].flops = H->dev_flops (o);
  return t->lines++;
}

void times_open (struct cuda *c) { c->times = H->xalloc (sizeof *c->times, "times"); }

void times_begin (struct times *t, struct queue *q, const struct op *o)
{
  if (t->n == t->room) {
    int room = t->room ? 2 * t->room : 4096;
    struct sample *s = H->xalloc ((size_t) room * sizeof *s, "times");
    if (t->n) memcpy (s, t->s, (size_t) t->n * sizeof *s);
    H->xfree (t->s);
    t->s = s;
    t->room = room;
  }
  struct sample *s = &t->s[t->n];
  s->line = line_of (t, o);
  for (int i = 0; i < 2; i++) CU (cudaEventCreate (&s->e[i]));
  CU (cudaEventRecord (s->e[0], q->s));
}

void times_end (struct times *t, struct queue *q) { CU (cudaEventRecord (t->s[t->n++].e[1], q->s)); }

static int by_value (const void *a, const void *b) { return (*(const float *) a > *(const float *) b) - (*(const float *) a < *(const float *) b); }
static double total (const struct line *l) { return l->n ? (double) l->ms[l->n / 2] * l->n : 0; }
static int by_total (const void *a, const void *b) { return (total (a) < total (b)) - (total (a) > total (b)); }

/* The table; the device is idle. */
void times_close (struct cuda *c)
{
  struct times *t = c->times;
  double all = 0;
  CU (cudaDeviceSynchronize ());
  for (int i = 0; i < t->n; i++) t->line[t->s[i].line].n++;
  for (int i = 0; i < t->lines; i++) t->line[i].ms = H->xalloc ((size_t) t->line[i].n * sizeof (float), "times"), t->line[i].n = 0;
  for (int i = 0; i < t->n; i++) {
    struct line *l = &t->line[t->s[i].line];
    CU (cudaEventElapsedTime (&l->ms[l->n++], t->s[i].e[0], t->s[i].e[1]));
    for (int j = 0; j < 2; j++) cudaEventDestroy (t->s[i].e[j]);
  }
  for (int i = 0; i < t->lines; i++) qsort (t->line[i].ms, (size_t) t->line[i].n, sizeof (float), by_value);
  qsort (t->line, (size_t) t->lines, sizeof *t->line, by_total);
  for (int i = 0; i < t->lines; i++) all += total (&t->line[i]);
  H->say (SAY_INFO, "operations on the GPU: median of one, calls, share of %.1f ms", all);
  for (int i = 0; i < t->lines; i++) {
    const struct line *l = &t->line[i];
    double ms = (double) l->ms[l->n / 2];
    char rate[32] = "";
    if (l->flops > 0) snprintf (rate, sizeof rate, "%7.1f TFLOP/s", l->flops / ms * 1e-9);
    H->say (SAY_INFO, "%9.3f ms x %6d %5.1f %% %s  %s", ms, l->n, 100 * total (l) / all, rate, l->what);
    H->xfree (t->line[i].ms);
  }
  H->xfree (t->line);
  H->xfree (t->s);
  H->xfree (t);
  c->times = NULL;
}
