/* What an operation costs by itself: products and attention by their rates, all else by the bytes that it reads and writes. */
#include "config.h"
#include "sim.h"

static double size (enum dtype t) { return (double) dtype_size (t); }
static double mul (int64_t a, int64_t b) { return (double) a * (double) b; }

static double gemm_bytes (const struct op_gemm *g)
{
  return (mul (g->m, g->k) + mul (g->k, g->n)) * size (g->ab) + mul (g->m, g->n) * size (g->ct) * (g->beta != 0 ? 2 : 1);
}

/* Bytes that an elementwise operation reads and writes. */
static double touched (const struct op *o)
{
  switch (o->kind) {
  case OP_COPY:       return 2 * mul (o->copy.bytes, MAX (o->copy.rows, 1));
  case OP_ZERO:       return (double) o->zero.bytes;
  case OP_AXPBY:      return (double) o->axpby.n * (size (o->axpby.xt) + size (o->axpby.yt) * (o->axpby.beta != 0 ? 2 : 1));
  case OP_INIT:       return 4.0 * (double) o->init.n;
  case OP_NORM:       return mul (o->norm.rows * o->norm.inner, o->norm.dim) * size (o->norm.t) * (2 + (o->norm.res ? 1 : 0) + (o->norm.sum ? 1 : 0));
  case OP_NORM_BWD:   return mul (o->norm_bwd.rows * o->norm_bwd.inner, o->norm_bwd.dim) * size (o->norm_bwd.t) * (3 + (o->norm_bwd.dres ? 1 : 0));
  case OP_ROPE:       return 2 * mul (o->rope.n, o->rope.heads * o->rope.head_dim) * size (o->rope.t);
  case OP_SWIGLU:     return 3 * mul (o->swiglu.n, o->swiglu.f) * size (o->swiglu.t);
  case OP_SWIGLU_BWD: return mul (o->swiglu_bwd.n, o->swiglu_bwd.f) * size (o->swiglu_bwd.t) * (5 + (o->swiglu_bwd.out ? 1 : 0));
  case OP_COLSUM:     return mul (o->colsum.rows, o->colsum.cols) * size (o->colsum.t);
  case OP_EMBED:      return 2 * mul (o->embed.n, o->embed.dim) * size (o->embed.t);
  case OP_EMBED_BWD:  return mul (o->embed_bwd.n, o->embed_bwd.dim) * (size (o->embed_bwd.t) + 2 * size (o->embed_bwd.gt))
                             + (o->embed_bwd.beta != 0 ? 0 : mul (o->embed_bwd.rows, o->embed_bwd.dim) * size (o->embed_bwd.gt));
  case OP_XENT_MAX: case OP_XENT_SUM: case OP_XENT_STATS: return mul (o->xent.n, o->xent.ld) * size (o->xent.t);
  case OP_XENT_GRAD:  return mul (o->xent.n, o->xent.ld) * size (o->xent.t) * (o->xent.grad ? 2 : 0);
  case OP_SUMSQ:      return (double) o->sumsq.n * size (o->sumsq.t);
  case OP_AMAX:       return (double) o->amax.n * size (o->amax.t);
  case OP_CHECKSUM:   return (double) o->checksum.n * size (o->checksum.t);
  case OP_QUANT:      return mul (o->quant.rows, o->quant.cols) * (size (o->quant.t) + (o->quant.q ? 1 : 0) + (o->quant.qt ? 1 : 0));
  case OP_ADAMW:      return (double) o->adamw.n * (6 * 4 + size (o->adamw.gt) + (o->adamw.weight ? size (o->adamw.wt) : 0));
  default:            return 0;
  }
}

static double fp8_bytes (const struct op_gemm_fp8 *g)
{
  return mul (g->m, g->k) + mul (g->k, g->n) + mul (g->m, g->n) * size (g->ct) * (g->beta != 0 ? 2 : 1);
}

static double price (const struct machine *m, const struct op *o)
{
  const struct op_gemm_fp8 *f = &o->gemm_fp8;
  const struct op_gemm *g = &o->gemm;
  const struct op_gemm_grouped *p = &o->grouped;
  switch (o->kind) {
  case OP_GEMM:         return machine_gemm (m, (double) g->m, (double) g->n, (double) g->k, g->ab, gemm_bytes (g));
  case OP_GEMM_FP8:     return machine_gemm (m, (double) f->m, (double) f->n, (double) f->k, DT_E4M3, fp8_bytes (f));
  case OP_GEMM_GROUPED: return machine_gemm (m, (double) p->max_rows, (double) p->n, (double) p->k, p->ab, mul (p->groups, p->n * p->k) * size (p->ab));
  case OP_ATTN:         return machine_attention (m, dev_flops (o), (double) o->attn.sk, (double) o->attn.head_dim, false);
  case OP_ATTN_BWD:     return machine_attention (m, dev_flops (o), (double) o->attn_bwd.f.sk, (double) o->attn_bwd.f.head_dim, true);
  default:              return machine_stream (m, touched (o));
  }
}

double sim_price (const struct machine *m, const struct op *o, bool host, bool over_pcie)
{
  if (over_pcie) return touched (o) / (o->kind == OP_COPY ? 2 : 1) / m->pcie + m->launch;
  if (host) return touched (o) / (m->host_bandwidth / m->gpus);
  return price (m, o) * m->system;
}
