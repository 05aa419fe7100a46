#include "linear.h"
#include <string.h>

#define OP(KIND, field, ...) dev_op (b->d, b->q, KIND, field, __VA_ARGS__)

int64_t logit_room (int64_t memory) { return MIN (MAX (memory / 96, (int64_t) 256 << 20), (int64_t) 2 << 30); }

/* Tokens whose logits exist at once: few chunks, since each reads the head's matrix twice and adds to all of its gradient, of one size, at least 128 tokens. */
static int64_t logit_rows (const struct geom *g, int64_t memory)
{
  int64_t most = MAX (128, logit_room (memory) / (g->vocab * dtype_size (g->t))), chunks = ceil_div (g->n, most);
  return MIN (most, round_up (ceil_div (g->n, chunks), 16));
}

void geom_make (struct geom *g, const struct conf *c, int tp, int tp_rank, int64_t memory)
{
  const struct arch *a = &c->arch;
  struct part q, kv, f, v;
  param_part (a, P_Q, tp_rank, tp, &q);
  param_part (a, P_K, tp_rank, tp, &kv);
  param_part (a, P_GATE, tp_rank, tp, &f);
  param_part (a, P_EMBED, tp_rank, tp, &v);
  *g = (struct geom) { .batch = c->train.micro_batch, .seq = c->train.seq_len, .dim = a->dim, .head_dim = a->head_dim, .tp = tp, .tp_rank = tp_rank,
    .t = c->train.dtype, .gt = c->sharding.grad_dtype, .fp8 = c->train.precision == PREC_FP8 };
  g->n = g->batch * g->seq;
  g->nt = g->n / tp;
  g->parts = tp > 1 ? (int) c->mesh.tp_overlap : 1;
  g->heads = q.rows / a->head_dim;
  g->kv_heads = kv.rows / a->head_dim;
  g->att = q.rows;
  g->qkv = q.rows + 2 * kv.rows;
  g->ffn = f.rows;
  g->vocab = v.rows + v.pad;
  g->v0 = v.row0;
  g->v_real = v.rows;
  g->loss_chunk = c->train.loss_chunk ? c->train.loss_chunk : logit_rows (g, memory);
  g->loss_chunk = MIN (g->loss_chunk, g->n);
}

/* ---- memory ---- */

static void *take (struct arenas *A, enum purpose p, bool want, int64_t n, enum dtype t) { return want ? arena_tensor (A, p, n, t) : NULL; }

/* Which norms a backward does again in any case; their statistics are not kept then. */
static bool norm1_again (int keep) { return !(keep & (KEEP_NORMS | KEEP_QKV)); }
static bool norm2_again (int keep) { return !(keep & KEEP_RESIDUAL) || !(keep & (KEEP_NORMS | KEEP_GATE_UP)); }

/* Codes take the place of an activation; of the normed inputs only where this rank has all of their tokens, else they are gathered again, in the compute type. */
static bool norms_in_codes (const struct geom *g) { return g->fp8 && g->tp == 1; }

/* The fields of the parts in KEEP. */
static void acts_layout (const struct blocks *b, struct layer_acts *l, struct arenas *A, enum purpose p, int keep, bool split)
{
  const struct geom *g = &b->g;
  bool norms = keep & KEEP_NORMS, act = keep & KEEP_SWIGLU || split, qkv = keep & KEEP_QKV, attn = keep & KEEP_ATTN, qk = b->a->qk_norm, codes = norms_in_codes (g);
  l->y1 = take (A, p, norms && !codes, g->nt * g->dim, g->t);
  l->y2 = take (A, p, norms && !codes, g->nt * g->dim, g->t);
  l->act = take (A, p, act && !g->fp8, g->n * g->ffn, g->t);
  l->y1t = take (A, p, norms && codes, g->dim * g->n, DT_E4M3);
  l->y2t = take (A, p, norms && codes, g->dim * g->n, DT_E4M3);
  l->actt = take (A, p, act && g->fp8, g->ffn * g->n, DT_E4M3);
  l->s = take (A, p, g->fp8, 32, DT_F32);
  l->rstd1 = take (A, p, !norm1_again (keep), g->nt, DT_F32);
  l->rstd2 = take (A, p, !norm2_again (keep), g->nt, DT_F32);
  l->qkv = take (A, p, qkv, g->n * g->qkv, g->t);
  l->raw = take (A, p, qkv && qk, g->n * (g->heads + g->kv_heads) * g->head_dim, g->t);
  l->rstdq = take (A, p, qkv && qk, g->n * g->heads, DT_F32);
  l->rstdk = take (A, p, qkv && qk, g->n * g->kv_heads, DT_F32);
  l->o = take (A, p, attn, g->n * g->att, g->t);
  l->lse = take (A, p, attn, g->batch * g->heads * g->seq, DT_F32);
  l->h = take (A, p, keep & KEEP_RESIDUAL, g->nt * g->dim, g->t);
  l->gu = take (A, p, keep & KEEP_GATE_UP, g->n * 2 * g->ffn, g->t);
  if (!split) return;
  l->d2 = arena_tensor (A, p, g->nt * g->dim, g->t);
  l->d1 = arena_tensor (A, p, g->nt * g->dim, g->t);
  l->dqkv = arena_tensor (A, p, g->n * g->qkv, g->t);
  l->dw[P_NORM1] = arena_tensor (A, p, g->dim, g->gt);
  l->dw[P_NORM2] = arena_tensor (A, p, g->dim, g->gt);
  l->dw[P_QNORM] = take (A, p, qk, g->head_dim, g->gt);
  l->dw[P_KNORM] = take (A, p, qk, g->head_dim, g->gt);
}

void layer_layout (const struct blocks *b, struct layer_acts *l, struct arenas *A, int keep, bool split)
{
  memset (l, 0, sizeof *l);
  l->x = arena_tensor (A, MEM_ACT, b->g.nt * b->g.dim, b->g.t);
  acts_layout (b, l, A, MEM_ACT, keep, split);
}

/* What codes are made from and where they go, beside what is kept. */
static void codes_layout (struct blocks *b, struct arenas *A, enum purpose p)
{
  const struct geom *g = &b->g;
  struct layer_acts *l = &b->scratch;
  int64_t widest = MAX (MAX (2 * g->ffn, g->qkv), MAX (g->dim, g->att));
  if (!l->y1 && norms_in_codes (g)) l->y1 = arena_tensor (A, p, g->nt * g->dim, g->t);
  if (!l->y2 && norms_in_codes (g)) l->y2 = arena_tensor (A, p, g->nt * g->dim, g->t);
  if (!l->act) l->act = arena_tensor (A, p, g->n * g->ffn, g->t);
  if (!l->y1t && !norms_in_codes (g)) l->y1t = arena_tensor (A, p, g->dim * g->n, DT_E4M3);
  if (!l->y2t && !norms_in_codes (g)) l->y2t = arena_tensor (A, p, g->dim * g->n, DT_E4M3);
  l->ot = arena_tensor (A, p, g->att * g->n, DT_E4M3);
  b->code = arena_tensor (A, p, g->n * widest, DT_E4M3);
  b->turned = arena_tensor (A, p, g->n * widest, DT_E5M2);
  b->s = arena_tensor (A, p, 8, DT_F32);
}

void blocks_layout (struct blocks *b, struct arenas *A, int keep, bool embed, bool head, bool split)
{
  const struct geom *g = &b->g;
  enum purpose p = MEM_WORK;
  acts_layout (b, &b->scratch, A, p, KEEP_ALL & ~keep, false);
  if (norm1_again (keep)) b->scratch.rstd1 = arena_tensor (A, p, g->nt, DT_F32);
  if (norm2_again (keep)) b->scratch.rstd2 = arena_tensor (A, p, g->nt, DT_F32);
  if (g->fp8) codes_layout (b, A, p);
  b->m = arena_tensor (A, p, g->nt * g->dim, g->t);
  b->dy = arena_tensor (A, p, g->nt * g->dim, g->t);
  b->dact = arena_tensor (A, p, g->n * g->ffn, g->t);
  b->d_o = arena_tensor (A, p, g->n * g->att, g->t);
  b->dqkv = take (A, p, !split, g->n * g->qkv, g->t);
  b->delta = arena_tensor (A, p, g->batch * g->heads * g->seq, DT_F32);
  b->fullA = take (A, p, g->tp > 1, g->n * g->dim, g->t);
  b->fullB = take (A, p, g->tp > 1, g->n * g->dim, g->t);
  b->embed_work = embed ? arena_tensor (A, p, 2 * g->n + 2 * g->vocab + 2, DT_I32) : NULL;
  if (head) {
    b->logits = arena_tensor (A, MEM_LOGIT, g->loss_chunk * g->vocab, g->t);
    b->xmax = arena_tensor (A, MEM_LOGIT, g->loss_chunk, DT_F32);
    b->xst = arena_tensor (A, MEM_LOGIT, 2 * g->loss_chunk, DT_F32);
    if (!b->scratch.y1) b->scratch.y1 = arena_tensor (A, p, g->nt * g->dim, g->t);
    if (!b->scratch.rstd1) b->scratch.rstd1 = arena_tensor (A, p, g->nt, DT_F32);
  }
}

/* What is kept, and the scratch layer's memory for the rest. */
static struct layer_acts effective (const struct blocks *b, const struct layer_acts *l)
{
  struct layer_acts e = *l;
  const struct layer_acts *s = &b->scratch;
#define OR(f) if (!e.f) e.f = s->f
  OR (y1); OR (y2); OR (act); OR (rstd1); OR (rstd2); OR (qkv); OR (raw); OR (rstdq); OR (rstdk); OR (o); OR (lse); OR (h); OR (gu);
  OR (y1t); OR (y2t); OR (actt); OR (ot);
#undef OR
  if (!e.dqkv) e.dqkv = b->dqkv;
  return e;
}

void *layer_h (const struct blocks *b, const struct layer_acts *l) { return l->h ? l->h : b->scratch.h; }

/* ---- the pieces ---- */

/* The activations that products read: Y1, Y2 whole. */
enum { S_QKV, S_O, S_GATE, S_DOWN };
static float *largest_unit (const struct layer_acts *e, int which) { return e->s ? e->s + 8 * which : NULL; }
static struct operand into_qkv (const struct blocks *b, const struct layer_acts *e, const void *Y1) { return (struct operand) { Y1, b->g.dim, e->y1t, largest_unit (e, S_QKV) }; }
static struct operand into_o (const struct blocks *b, const struct layer_acts *e) { return (struct operand) { e->o, b->g.att, e->ot, largest_unit (e, S_O) }; }
static struct operand into_gate (const struct blocks *b, const struct layer_acts *e, const void *Y2) { return (struct operand) { Y2, b->g.dim, e->y2t, largest_unit (e, S_GATE) }; }
static struct operand into_down (const struct blocks *b, const struct layer_acts *e) { return (struct operand) { e->act, b->g.ffn, e->actt, largest_unit (e, S_DOWN) }; }

/* Was the product whose result is WHAT done again in a backward of PART? It turned its input. */
static bool redone (int keep, enum part_of part, int what) { return part & PART_INPUT && !(keep & what); }
/* Are the turned codes of a normed input, from which WHAT is made, there in a backward of PART? */
static bool there (const struct blocks *b, int keep, enum part_of part, int what)
{
  return (norms_in_codes (&b->g) && keep & KEEP_NORMS) || redone (keep, part, what);
}

static void norm (struct blocks *b, const void *x, const void *res, void *sum, const void *w, void *y, float *rstd)
{
  OP (OP_NORM, norm, .rows = b->g.nt, .inner = 1, .dim = b->g.dim, .x = x, .res = res, .sum = sum, .w = w, .y = y, .rstd = rstd,
      .eps = (float) b->a->norm_eps, .t = b->g.t, .wt = b->g.t);
}

static void norm_backward (struct blocks *b, const void *dy, const void *x, const void *w, const float *rstd, const void *dres, void *dx, void *dw, float beta)
{
  OP (OP_NORM_BWD, norm_bwd, .rows = b->g.nt, .inner = 1, .dim = b->g.dim, .dy = dy, .x = x, .w = w, .dres = dres, .rstd = rstd, .dx = dx,
      .dw = dw, .dw_beta = beta, .t = b->g.t, .wt = b->g.t, .gt = b->g.gt);
}

/* Part I of the tokens, and where mine of it lie in [nt, dim]. */
static struct rows rows_of (const struct blocks *b, int i) { return (struct rows) { i * (b->g.n / b->g.parts), b->g.n / b->g.parts }; }
static void *mine_of (const struct blocks *b, const void *part, int i) { return at_elem (part, i * (b->g.nt / b->g.parts) * b->g.dim, b->g.t); }

/* [nt, dim] of each tp rank -> [n, dim], part by part. begin issues it, tp_wait orders the compute queue after it; with tp 1 the part is the whole.
   marked: each part may be waited for alone, until the next such gather. */
static void *gather_parts (struct blocks *b, const void *part, void *full, bool marked)
{
  if (b->g.tp == 1) return (void *) part;
  for (int i = 0; i < b->g.parts; i++) {
    chan_gather (b->ch, GROUP_TP, mine_of (b, part, i), at_elem (full, rows_of (b, i).row0 * b->g.dim, b->g.t), b->g.nt / b->g.parts * b->g.dim, b->g.t);
    if (marked) chan_mark (b->ch, GROUP_TP, i);
  }
  return full;
}
static void *gather_begin (struct blocks *b, const void *part, void *full) { return gather_parts (b, part, full, false); }
static void *gather_marked (struct blocks *b, const void *part, void *full) { return gather_parts (b, part, full, true); }
static void *gather (struct blocks *b, const void *part, void *full)
{
  void *r = gather_begin (b, part, full);
  chan_wait (b->ch, GROUP_TP);
  return r;
}
/* Partial sums [n, dim] -> my [nt, dim]: one part of the tokens, all. */
static void scatter_part (struct blocks *b, const void *full, void *part, int i)
{
  if (b->g.tp == 1) return;
  chan_scatter (b->ch, GROUP_TP, at_elem (full, rows_of (b, i).row0 * b->g.dim, b->g.t), mine_of (b, part, i), b->g.nt / b->g.parts * b->g.dim, b->g.t, b->g.t, b->g.t, 0);
}
static void scatter_begin (struct blocks *b, const void *full, void *part)
{
  for (int i = 0; i < b->g.parts; i++) scatter_part (b, full, part, i);
}
/* Where a row-parallel GEMM writes: straight to its target with tp 1, else to a whole buffer that is then scattered. */
static void *partial (struct blocks *b, void *part, void *full) { return b->g.tp == 1 ? part : full; }

static void rope (struct blocks *b, void *qkv, const struct batch *in, bool inverse)
{
  const struct geom *g = &b->g;
  OP (OP_ROPE, rope, .x = qkv, .n = g->n, .heads = g->heads + g->kv_heads, .head_dim = g->head_dim, .stride = g->qkv, .seq = g->seq, .pos = in->pos,
      .table = b->rope, .inverse = inverse, .t = g->t);
}

static struct op_attn attention (const struct blocks *b, const struct layer_acts *l, const struct batch *in)
{
  const struct geom *g = &b->g;
  return (struct op_attn) { .batch = g->batch, .sq = g->seq, .sk = g->seq, .heads = g->heads, .kv_heads = g->kv_heads, .head_dim = g->head_dim,
    .q_stride = g->qkv, .kv_stride = g->qkv, .o_stride = g->att, .window = b->a->window, .q = l->qkv, .k = at_elem (l->qkv, g->att, g->t),
    .v = at_elem (l->qkv, g->att + g->kv_heads * g->head_dim, g->t), .o = l->o, .lse = l->lse, .doc = in->doc, .t = g->t };
}

/* The head norms of Qwen3, in place in qkv; what they read is kept in raw. */
static void head_norms (struct blocks *b, const struct layer_acts *l, const struct weights *w)
{
  const struct geom *g = &b->g;
  int64_t qk = (g->heads + g->kv_heads) * g->head_dim, es = dtype_size (g->t);
  void *k = at_elem (l->qkv, g->att, g->t);
  OP (OP_COPY, copy, .dst = l->raw, .src = l->qkv, .bytes = qk * es, .rows = g->n, .dst_pitch = qk * es, .src_pitch = g->qkv * es);
  struct op_norm o = { .rows = g->n, .inner = g->heads, .dim = g->head_dim, .x_stride = g->qkv, .y_stride = g->qkv, .x = l->qkv, .y = l->qkv,
    .w = w->w[P_QNORM], .rstd = l->rstdq, .eps = (float) b->a->norm_eps, .t = g->t, .wt = g->t };
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_NORM, .norm = o });
  o.inner = g->kv_heads;
  o.x = o.y = k;
  o.w = w->w[P_KNORM];
  o.rstd = l->rstdk;
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_NORM, .norm = o });
}

/* A norm's gradient goes to the unit's buffer, or is kept until B_WEIGHT. */
struct target { void *g; float beta; };
static struct target norm_target (const struct layer_acts *l, const struct weights *w, enum pid id, enum part_of part)
{
  return part == PART_INPUT ? (struct target) { l->dw[id], 0 } : (struct target) { w->g[id], w->beta[id] };
}

static void head_norms_backward (struct blocks *b, const struct layer_acts *l, const struct weights *w, enum part_of part)
{
  const struct geom *g = &b->g;
  int64_t qk = (g->heads + g->kv_heads) * g->head_dim;
  struct target tq = norm_target (l, w, P_QNORM, part), tk = norm_target (l, w, P_KNORM, part);
  struct op_norm_bwd o = { .rows = g->n, .inner = g->heads, .dim = g->head_dim, .x_stride = qk, .y_stride = g->qkv, .dx_stride = g->qkv, .dy = l->dqkv,
    .x = l->raw, .w = w->w[P_QNORM], .rstd = l->rstdq, .dx = l->dqkv, .dw = tq.g, .dw_beta = tq.beta, .t = g->t, .wt = g->t, .gt = g->gt };
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_NORM_BWD, .norm_bwd = o });
  o.inner = g->kv_heads;
  o.dy = o.dx = at_elem (l->dqkv, g->att, g->t);
  o.x = at_elem (l->raw, g->att, g->t);
  o.w = w->w[P_KNORM];
  o.rstd = l->rstdk;
  o.dw = tk.g;
  o.dw_beta = tk.beta;
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_NORM_BWD, .norm_bwd = o });
}

/* ---- products beside what they wait for, by parts ---- */

/* linear of a gather_marked under way: the product of a part runs while the next ones travel. */
static void linear_gathered (struct blocks *b, struct operand x, const struct weights *w, enum pid id, void *y, int64_t out)
{
  for (int i = 0; i < b->g.parts; i++) {
    chan_wait_mark (b->ch, GROUP_TP, i);
    linear_rows (b, x, w, id, y, out, rows_of (b, i));
  }
}
static void linear_input_gathered (struct blocks *b, const void *dy, int64_t width, const struct weights *w, enum pid id, void *dx, int64_t in)
{
  for (int i = 0; i < b->g.parts; i++) {
    chan_wait_mark (b->ch, GROUP_TP, i);
    linear_input_rows (b, dy, width, w, id, dx, in, rows_of (b, i));
  }
}
/* linear whose sums over tp are scattered to m: a part travels while the product of the next runs. */
static void linear_scattered (struct blocks *b, struct operand x, const struct weights *w, enum pid id)
{
  void *p = partial (b, b->m, b->fullB);
  for (int i = 0; i < b->g.parts; i++) {
    linear_rows (b, x, w, id, p, b->g.dim, rows_of (b, i));
    scatter_part (b, p, b->m, i);
  }
  chan_wait (b->ch, GROUP_TP);
}

/* ---- forward ---- */

static void forward_qkv (struct blocks *b, const struct layer_acts *e, const struct weights *w, const struct batch *in)
{
  const struct geom *g = &b->g;
  linear_gathered (b, into_qkv (b, e, gather_marked (b, e->y1, b->fullA)), w, P_Q, e->qkv, g->qkv);
  if (b->a->qk_norm) head_norms (b, e, w);
  rope (b, e->qkv, in, false);
}

static void forward_attention (struct blocks *b, const struct layer_acts *e, const struct batch *in)
{
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_ATTN, .attn = attention (b, e, in) });
}

/* Attention's output projected, into m. */
static void forward_project (struct blocks *b, const struct layer_acts *e, const struct weights *w)
{
  linear_scattered (b, into_o (b, e), w, P_O);
}

/* Gate and up from the normed h, which is left whole in FULL. */
static void forward_gate_up (struct blocks *b, const struct layer_acts *e, const struct weights *w, void *full)
{
  const struct geom *g = &b->g;
  linear_gathered (b, into_gate (b, e, gather_marked (b, e->y2, full)), w, P_GATE, e->gu, 2 * g->ffn);
}

static void forward_mlp (struct blocks *b, const struct layer_acts *e, const struct weights *w)
{
  const struct geom *g = &b->g;
  norm (b, e->x, b->m, e->h, w->w[P_NORM2], e->y2, e->rstd2);
  forward_gate_up (b, e, w, b->fullA);
  OP (OP_SWIGLU, swiglu, .n = g->n, .f = g->ffn, .gu = e->gu, .out = e->act, .t = g->t);
  linear_scattered (b, into_down (b, e), w, P_DOWN);
}

void layer_forward (struct blocks *b, const struct layer_acts *l, const struct weights *w, const struct batch *in, const void *h, const void *m)
{
  struct layer_acts e = effective (b, l);
  e.y1t = l->y1t, e.y2t = l->y2t, e.actt = l->actt, e.ot = NULL;   /* what is not kept is turned when it is needed */
  if (m) norm (b, h, m, e.x, w->w[P_NORM1], e.y1, e.rstd1);
  else norm (b, e.x, NULL, NULL, w->w[P_NORM1], e.y1, e.rstd1);
  forward_qkv (b, &e, w, in);
  forward_attention (b, &e, in);
  forward_project (b, &e, w);
  forward_mlp (b, &e, w);
}

/* ---- backward ---- */

/* Gradients by weight of q, k and v. The normed input was gathered again. */
static void qkv_weights (struct blocks *b, const struct layer_acts *e, const struct weights *w, const void *Y)
{
  const struct geom *g = &b->g;
  linear_weight (b, e->dqkv, g->qkv, into_qkv (b, e, Y), w, P_Q);
  if (b->a->qkv_bias)
    OP (OP_COLSUM, colsum, .rows = g->n, .cols = g->qkv, .stride = g->qkv, .x = e->dqkv, .dst = w->g[P_QB], .beta = w->beta[P_QB], .t = g->t, .gt = g->gt);
}

static void backward_mlp (struct blocks *b, const struct layer_acts *e, const struct weights *w, void *d, int keep, enum part_of part)
{
  const struct geom *g = &b->g;
  bool weights = part & PART_WEIGHT, again = !(keep & KEEP_SWIGLU);
  const void *D = gather_marked (b, d, b->fullA);
  const void *Y = NULL;
  if (weights && !(keep & KEEP_GATE_UP)) Y = g->tp == 1 ? e->y2 : b->fullB;   /* gathered when gate and up were made again */
  else if (weights) Y = gather_begin (b, e->y2, b->fullB);                    /* behind the GEMMs to come */
  if (g->fp8) chan_wait_mark (b->ch, GROUP_TP, 0);
  linear_grad (b, D, g->dim, part);
  linear_input_gathered (b, D, g->dim, w, P_DOWN, b->dact, g->ffn);
  if (weights && !again) linear_weight (b, D, g->dim, into_down (b, e), w, P_DOWN);
  OP (OP_SWIGLU_BWD, swiglu_bwd, .n = g->n, .f = g->ffn, .gu = e->gu, .d_out = b->dact, .dgu = e->gu, .out = again ? e->act : NULL, .t = g->t);
  if (again) linear_turn (b, into_down (b, e));
  if (weights && again) linear_weight (b, D, g->dim, into_down (b, e), w, P_DOWN);
  void *p = partial (b, b->dy, b->fullA);
  linear_grad (b, e->gu, 2 * g->ffn, part);
  linear_input (b, e->gu, 2 * g->ffn, w, P_GATE, p, g->dim);
  if (weights) chan_wait (b->ch, GROUP_TP);
  scatter_begin (b, p, b->dy);
  if (weights && !there (b, keep, part, KEEP_GATE_UP)) linear_turn (b, into_gate (b, e, Y));
  if (weights) linear_weight (b, e->gu, 2 * g->ffn, into_gate (b, e, Y), w, P_GATE);
  chan_wait (b->ch, GROUP_TP);
  struct target t = norm_target (e, w, P_NORM2, part);
  norm_backward (b, b->dy, e->h, w->w[P_NORM2], e->rstd2, d, d, t.g, t.beta);
}

static void backward_attention (struct blocks *b, const struct layer_acts *e, const struct weights *w, const struct batch *in, void *d, int keep, enum part_of part)
{
  const struct geom *g = &b->g;
  bool weights = part & PART_WEIGHT;
  const void *D = gather_marked (b, d, b->fullA);
  const void *Y = weights ? gather_begin (b, e->y1, b->fullB) : NULL;
  if (g->fp8) chan_wait_mark (b->ch, GROUP_TP, 0);
  linear_grad (b, D, g->dim, part);
  linear_input_gathered (b, D, g->dim, w, P_O, b->d_o, g->att);
  if (weights && !redone (keep, part, KEEP_RESIDUAL)) linear_turn (b, into_o (b, e));
  if (weights) linear_weight (b, D, g->dim, into_o (b, e), w, P_O);
  struct op_attn_bwd o = { .f = attention (b, e, in), .d_o = b->d_o, .dq = e->dqkv, .dk = at_elem (e->dqkv, g->att, g->t),
    .dv = at_elem (e->dqkv, g->att + g->kv_heads * g->head_dim, g->t), .dq_stride = g->qkv, .dkv_stride = g->qkv, .delta = b->delta };
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_ATTN_BWD, .attn_bwd = o });
  rope (b, e->dqkv, in, true);
  if (b->a->qk_norm) head_norms_backward (b, e, w, part);
  void *p = partial (b, b->dy, b->fullA);
  linear_grad (b, e->dqkv, g->qkv, part);
  linear_input (b, e->dqkv, g->qkv, w, P_Q, p, g->dim);
  if (weights) chan_wait (b->ch, GROUP_TP);
  scatter_begin (b, p, b->dy);
  if (weights && !there (b, keep, part, KEEP_QKV)) linear_turn (b, into_qkv (b, e, Y));
  if (weights) qkv_weights (b, e, w, Y);
  chan_wait (b->ch, GROUP_TP);
  struct target t = norm_target (e, w, P_NORM1, part);
  norm_backward (b, b->dy, e->x, w->w[P_NORM1], e->rstd1, d, d, t.g, t.beta);
}

/* What PART reads and KEEP did not keep, once more by the same operations: the same bits. Normed inputs serve the GEMMs after them and gradients by weight. */
static void recompute (struct blocks *b, const struct layer_acts *e, const struct weights *w, const struct batch *in, int keep, enum part_of part)
{
  bool norms = keep & KEEP_NORMS, weights = part & PART_WEIGHT, input = part & PART_INPUT;
  if (norm1_again (keep) || (weights && !norms)) norm (b, e->x, NULL, NULL, w->w[P_NORM1], e->y1, e->rstd1);
  if (input && !(keep & KEEP_QKV)) forward_qkv (b, e, w, in);
  if (input && !(keep & KEEP_ATTN)) forward_attention (b, e, in);
  if (input && !(keep & KEEP_RESIDUAL)) {
    forward_project (b, e, w);
    norm (b, e->x, b->m, e->h, w->w[P_NORM2], e->y2, e->rstd2);
  } else if (norm2_again (keep) || (weights && !norms)) norm (b, e->h, NULL, NULL, w->w[P_NORM2], e->y2, e->rstd2);
  if (input && !(keep & KEEP_GATE_UP)) forward_gate_up (b, e, w, b->fullB);   /* the backward takes up the whole input from there */
}

static void copy (struct blocks *b, void *dst, const void *src, int64_t n)
{
  OP (OP_COPY, copy, .dst = dst, .src = src, .bytes = n * dtype_size (b->g.t));
}

/* B_WEIGHT: from what B_INPUT kept. */
static void backward_weights (struct blocks *b, const struct layer_acts *e, const struct weights *w, int keep)
{
  const struct geom *g = &b->g;
  const void *Y = gather_begin (b, e->y2, b->fullB), *D = gather (b, e->d2, b->fullA);
  linear_grad (b, D, g->dim, PART_WEIGHT);
  linear_weight (b, D, g->dim, into_down (b, e), w, P_DOWN);
  linear_grad (b, e->gu, 2 * g->ffn, PART_WEIGHT);
  if (!there (b, keep, PART_WEIGHT, KEEP_GATE_UP)) linear_turn (b, into_gate (b, e, Y));
  linear_weight (b, e->gu, 2 * g->ffn, into_gate (b, e, Y), w, P_GATE);
  Y = gather_begin (b, e->y1, b->fullB);
  D = gather (b, e->d1, b->fullA);
  linear_grad (b, D, g->dim, PART_WEIGHT);
  linear_turn (b, into_o (b, e));
  linear_weight (b, D, g->dim, into_o (b, e), w, P_O);
  linear_grad (b, e->dqkv, g->qkv, PART_WEIGHT);
  if (!there (b, keep, PART_WEIGHT, KEEP_QKV)) linear_turn (b, into_qkv (b, e, Y));
  qkv_weights (b, e, w, Y);
  static const enum pid norms[] = { P_NORM1, P_NORM2, P_QNORM, P_KNORM };
  for (int i = 0; i < LEN (norms); i++)
    if (e->dw[norms[i]])
      OP (OP_AXPBY, axpby, .y = w->g[norms[i]], .x = e->dw[norms[i]], .n = i < 2 ? b->g.dim : b->g.head_dim, .yt = b->g.gt, .xt = b->g.gt, .alpha = 1,
          .beta = w->beta[norms[i]]);
}

void layer_backward (struct blocks *b, const struct layer_acts *l, const struct weights *w, const struct batch *in, void *d, int keep, enum part_of part)
{
  struct layer_acts e = effective (b, l);
  recompute (b, &e, w, in, keep, part);
  if (part == PART_WEIGHT) {
    backward_weights (b, &e, w, keep);
    return;
  }
  if (part == PART_INPUT) copy (b, e.d2, d, b->g.nt * b->g.dim);
  backward_mlp (b, &e, w, d, keep, part);
  if (part == PART_INPUT) copy (b, e.d1, d, b->g.nt * b->g.dim);
  backward_attention (b, &e, w, in, d, keep, part);
}

/* ---- embedding and head ---- */

void embed_forward (struct blocks *b, const struct weights *w, const struct batch *in, void *x)
{
  const struct geom *g = &b->g;
  void *p = partial (b, x, b->fullA);
  OP (OP_EMBED, embed, .n = g->n, .dim = g->dim, .v0 = g->v0, .rows = g->v_real, .ids = in->ids, .table = w->w[P_EMBED], .out = p, .t = g->t);
  scatter_begin (b, p, x);
  chan_wait (b->ch, GROUP_TP);
}

void embed_backward (struct blocks *b, const struct weights *w, const struct batch *in, const void *d)
{
  const struct geom *g = &b->g;
  const void *D = gather (b, d, b->fullA);
  OP (OP_EMBED_BWD, embed_bwd, .n = g->n, .dim = g->dim, .v0 = g->v0, .rows = g->vocab, .ids = in->ids, .dy = D, .dtable = w->g[P_EMBED],
      .beta = w->beta[P_EMBED], .work = b->embed_work, .t = g->t, .gt = g->gt);
}

/* Loss of tokens [t0, t0 + c): logits, their statistics over tp, in place the gradient. Y, DY: whole [n, dim]; DY may be Y. */
static void loss_chunk (struct blocks *b, const struct weights *w, const struct batch *in, int64_t t0, int64_t c, const void *Y, void *DY, double *acc, bool grad)
{
  const struct geom *g = &b->g;
  const void *y = at_elem (Y, t0 * g->dim, g->t);
  OP (OP_GEMM, gemm, .m = c, .n = g->vocab, .k = g->dim, .a = y, .b = w->w[P_HEAD], .tb = true, .c = b->logits, .ab = g->t, .ct = g->t);
  struct op_xent x = { .n = c, .ld = g->vocab, .cols = g->v_real, .v0 = g->v0, .logits = b->logits, .target = in->target + t0, .max = b->xmax, .st = b->xst,
    .acc = acc, .grad = grad, .t = g->t };
  if (g->tp == 1) dev_issue (b->d, b->q, &(struct op) { .kind = OP_XENT_STATS, .xent = x });
  else {
    dev_issue (b->d, b->q, &(struct op) { .kind = OP_XENT_MAX, .xent = x });
    chan_reduce (b->ch, GROUP_TP, b->xmax, c, DT_F32, DT_F32, true);
    chan_wait (b->ch, GROUP_TP);
    dev_issue (b->d, b->q, &(struct op) { .kind = OP_XENT_SUM, .xent = x });
    chan_reduce (b->ch, GROUP_TP, b->xst, 2 * c, DT_F32, DT_F32, false);
    chan_wait (b->ch, GROUP_TP);
  }
  dev_issue (b->d, b->q, &(struct op) { .kind = OP_XENT_GRAD, .xent = x });
  if (!grad) return;
  OP (OP_GEMM, gemm, .m = g->vocab, .n = g->dim, .k = c, .a = b->logits, .ta = true, .b = y, .c = w->g[P_HEAD], .beta = t0 ? 1 : w->beta[P_HEAD], .ab = g->t, .ct = g->gt);
  OP (OP_GEMM, gemm, .m = c, .n = g->dim, .k = g->vocab, .a = b->logits, .b = w->w[P_HEAD], .c = at_elem (DY, t0 * g->dim, g->t), .ab = g->t, .ct = g->t);
}

void head_loss (struct blocks *b, const struct weights *w, const struct batch *in, const void *x, void *d, double *acc, bool grad)
{
  const struct geom *g = &b->g;
  void *y = b->scratch.y1;
  norm (b, x, NULL, NULL, w->w[P_NORM], y, b->scratch.rstd1);
  const void *Y = gather (b, y, b->fullA);
  void *DY = partial (b, b->dy, b->fullB);
  for (int64_t t = 0; t < g->n; t += g->loss_chunk) loss_chunk (b, w, in, t, MIN (g->loss_chunk, g->n - t), Y, DY, acc, grad);
  if (!grad) return;
  scatter_begin (b, DY, b->dy);
  chan_wait (b->ch, GROUP_TP);
  norm_backward (b, b->dy, x, w->w[P_NORM], b->scratch.rstd1, NULL, d, w->g[P_NORM], w->beta[P_NORM]);
}

void *head_logits (struct blocks *b, const struct weights *w, const void *x, int64_t token)
{
  const struct geom *g = &b->g;
  norm (b, x, NULL, NULL, w->w[P_NORM], b->scratch.y1, b->scratch.rstd1);
  const void *Y = gather (b, b->scratch.y1, b->fullA);
  must (g->loss_chunk > g->tp, "no room for the logits of a token");
  OP (OP_GEMM, gemm, .m = 1, .n = g->vocab, .k = g->dim, .a = at_elem (Y, token * g->dim, g->t), .b = w->w[P_HEAD], .tb = true, .c = b->logits, .ab = g->t, .ct = g->t);
  if (g->tp == 1) return b->logits;
  void *all = at_elem (b->logits, g->vocab, g->t);
  chan_gather (b->ch, GROUP_TP, b->logits, all, g->vocab, g->t);
  chan_wait (b->ch, GROUP_TP);
  return all;
}
