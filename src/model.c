#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER "model.layers.%d."
const struct param_row param_table[P_N] = {
  [P_NORM1] = { P_NORM1, LAYER "input_layernorm.weight",          CUT_NONE,  INIT_ONE,      false, false },
  [P_NORM2] = { P_NORM2, LAYER "post_attention_layernorm.weight", CUT_NONE,  INIT_ONE,      false, false },
  [P_QNORM] = { P_QNORM, LAYER "self_attn.q_norm.weight",         CUT_NONE,  INIT_ONE,      false, false },
  [P_KNORM] = { P_KNORM, LAYER "self_attn.k_norm.weight",         CUT_NONE,  INIT_ONE,      false, false },
  [P_Q]     = { P_Q,     LAYER "self_attn.q_proj.weight",         CUT_ROWS,  INIT_NORMAL,   true,  false },
  [P_K]     = { P_K,     LAYER "self_attn.k_proj.weight",         CUT_KV,    INIT_NORMAL,   true,  true },
  [P_V]     = { P_V,     LAYER "self_attn.v_proj.weight",         CUT_KV,    INIT_NORMAL,   true,  true },
  [P_QB]    = { P_QB,    LAYER "self_attn.q_proj.bias",           CUT_ROWS,  INIT_ZERO,     false, false },
  [P_KB]    = { P_KB,    LAYER "self_attn.k_proj.bias",           CUT_KV,    INIT_ZERO,     false, true },
  [P_VB]    = { P_VB,    LAYER "self_attn.v_proj.bias",           CUT_KV,    INIT_ZERO,     false, true },
  [P_O]     = { P_O,     LAYER "self_attn.o_proj.weight",         CUT_COLS,  INIT_RESIDUAL, true,  false },
  [P_GATE]  = { P_GATE,  LAYER "mlp.gate_proj.weight",            CUT_ROWS,  INIT_NORMAL,   true,  false },
  [P_UP]    = { P_UP,    LAYER "mlp.up_proj.weight",              CUT_ROWS,  INIT_NORMAL,   true,  true },
  [P_DOWN]  = { P_DOWN,  LAYER "mlp.down_proj.weight",            CUT_COLS,  INIT_RESIDUAL, true,  false },
  [P_EMBED] = { P_EMBED, "model.embed_tokens.weight",             CUT_VOCAB, INIT_NORMAL,   true,  false },
  [P_NORM]  = { P_NORM,  "model.norm.weight",                     CUT_NONE,  INIT_ONE,      false, false },
  [P_HEAD]  = { P_HEAD,  "lm_head.weight",                        CUT_VOCAB, INIT_NORMAL,   true,  false },
};

/* A shape is two of these extents; absent rows of an architecture have no rows. */
enum extent { X_ONE, X_DIM, X_HEAD, X_Q, X_KV, X_FFN, X_VOCAB, X_N };
static const struct { uint8_t rows, cols; } shape_table[P_N] = {
  [P_NORM1] = { X_DIM, X_ONE },   [P_NORM2] = { X_DIM, X_ONE },  [P_QNORM] = { X_HEAD, X_ONE }, [P_KNORM] = { X_HEAD, X_ONE },
  [P_Q] = { X_Q, X_DIM },         [P_K] = { X_KV, X_DIM },       [P_V] = { X_KV, X_DIM },
  [P_QB] = { X_Q, X_ONE },        [P_KB] = { X_KV, X_ONE },      [P_VB] = { X_KV, X_ONE },      [P_O] = { X_DIM, X_Q },
  [P_GATE] = { X_FFN, X_DIM },    [P_UP] = { X_FFN, X_DIM },     [P_DOWN] = { X_DIM, X_FFN },
  [P_EMBED] = { X_VOCAB, X_DIM }, [P_NORM] = { X_DIM, X_ONE },   [P_HEAD] = { X_VOCAB, X_DIM },
};

static bool present (const struct arch *a, enum pid id)
{
  switch (id) {
  case P_QNORM: case P_KNORM: return a->qk_norm;
  case P_QB: case P_KB: case P_VB: return a->qkv_bias;
  case P_HEAD: return !a->tied;
  default: return true;
  }
}

bool param_shape (const struct arch *a, enum pid id, int64_t *rows, int64_t *cols)
{
  const int64_t extent[X_N] = { 1, a->dim, a->head_dim, a->heads * a->head_dim, a->kv_heads * a->head_dim, a->ffn, a->vocab };
  if (!present (a, id)) return *rows = *cols = 0, false;
  *rows = extent[shape_table[id].rows];
  *cols = extent[shape_table[id].cols];
  return true;
}

int param_ndim (enum pid id) { return shape_table[id].cols == X_ONE ? 1 : 2; }

int block_params (const struct arch *a, int64_t block, enum pid ids[P_N])
{
  assert_ (block >= 0 && block <= a->layers + 1);
  int first = block == 0 ? P_EMBED : block <= a->layers ? 0 : P_NORM;
  int end = block == 0 ? P_NORM : block <= a->layers ? P_EMBED : P_N;
  int n = 0;
  for (int id = first; id < end; id++) if (present (a, id)) ids[n++] = id;
  return n;
}

void param_name (const struct arch *a, int64_t block, enum pid id, char out[static 96])
{
  assert_ (block >= 0 && block <= a->layers + 1);
  (void) a;
  const char *name = param_table[id].name;
  if (id < P_EMBED) snprintf (out, 96, LAYER "%s", (int) (block - 1), name + strlen (LAYER));
  else snprintf (out, 96, "%s", name);
}

static int64_t block_count (const struct arch *a, int64_t block, int min_ndim)
{
  enum pid ids[P_N];
  int64_t rows, cols, sum = 0;
  int n = block_params (a, block, ids);
  for (int i = 0; i < n; i++)
    if (param_ndim (ids[i]) >= min_ndim && param_shape (a, ids[i], &rows, &cols)) sum += mul_exact (rows, cols);
  return sum;
}

int64_t arch_params (const struct arch *a)
{
  return block_count (a, 0, 1) + mul_exact (a->layers, block_count (a, 1, 1)) + block_count (a, a->layers + 1, 1);
}

int64_t arch_matmul_params (const struct arch *a)
{
  return mul_exact (a->layers, block_count (a, 1, 2)) + mul_exact (a->vocab, a->dim);
}

/* A query sees T / 2 keys on average, or with a window W < T as many as W - W^2 / 2T; scores and values, forward and backward,
   take 12 d operations for each. */
double arch_flops_token (const struct arch *a, int64_t seq)
{
  double t = (double) seq, w = (double) a->window;
  double keys = a->window && a->window < seq ? w - w * w / (2 * t) : t / 2;
  return 6.0 * (double) arch_matmul_params (a) + 12.0 * (double) a->layers * (double) (a->heads * a->head_dim) * keys;
}

int64_t vocab_local (const struct arch *a, int tp) { return round_up (ceil_div (a->vocab, tp), 8); }

static void part_vocab (const struct arch *a, int tp_rank, int tp, struct part *p)
{
  int64_t each = vocab_local (a, tp);
  p->row0 = MIN (tp_rank * each, a->vocab);
  p->rows = MIN (each, a->vocab - p->row0);
  p->pad = each - p->rows;
}

static void part_kv (const struct arch *a, int tp_rank, int tp, struct part *p)
{
  if (a->kv_heads >= tp) {
    p->rows /= tp;
    p->row0 = tp_rank * p->rows;
    return;
  }
  p->rep_size = (int) (tp / a->kv_heads);
  p->rep_rank = tp_rank % p->rep_size;
  p->rows /= a->kv_heads;
  p->row0 = tp_rank / p->rep_size * p->rows;
}

void param_part (const struct arch *a, enum pid id, int tp_rank, int tp, struct part *p)
{
  *p = (struct part) { .rep_size = 1 };
  assert_ (tp_rank >= 0 && tp_rank < tp);
  if (!param_shape (a, id, &p->rows, &p->cols)) return;
  switch (param_table[id].cut) {
  case CUT_NONE: p->rep_size = tp; p->rep_rank = tp_rank; break;
  case CUT_ROWS: p->rows /= tp; p->row0 = tp_rank * p->rows; break;
  case CUT_COLS: p->cols /= tp; p->col0 = tp_rank * p->cols; break;
  case CUT_KV: part_kv (a, tp_rank, tp, p); break;
  case CUT_VOCAB: part_vocab (a, tp_rank, tp, p); break;
  }
}

static bool kv_fits (const struct arch *a, int tp) { return a->kv_heads % tp == 0 || tp % a->kv_heads == 0; }
static bool tp_fits (const struct arch *a, int tp) { return a->heads % tp == 0 && a->ffn % tp == 0 && kv_fits (a, tp); }

/* "1, 2 or 4": the cuts up to 64 that A allows. */
static void tp_choices (const struct arch *a, char *out, size_t size)
{
  int good[64], n = 0;
  for (int t = 1; t <= 64; t++) if (tp_fits (a, t)) good[n++] = t;
  size_t at = 0;
  out[0] = 0;
  for (int i = 0; i < n; i++) at += snprintf (out + at, size - at, "%s%d", i == 0 ? "" : i == n - 1 ? " or " : ", ", good[i]);
}

int arch_check_tp (const struct arch *a, int tp, struct err *e)
{
  char can[256];
  if (tp < 1) return user_err (e, "mesh.tp is %d: it must be positive", tp);
  if (tp_fits (a, tp)) return 0;
  tp_choices (a, can, sizeof can);
  const char *what = a->heads % tp ? "heads" : a->ffn % tp ? "ffn" : "kv_heads";
  long long n = a->heads % tp ? a->heads : a->ffn % tp ? a->ffn : a->kv_heads;
  if (a->heads % tp || a->ffn % tp)
    return user_err (e, "model.%s %lld is not a multiple of mesh.tp %d; this model can be cut by tp %s", what, n, tp, can);
  return user_err (e, "neither of model.kv_heads %lld and mesh.tp %d is a multiple of the other, so KV heads can be neither cut "
                   "nor copied; this model can be cut by tp %s", n, tp, can);
}

#define LARGEST (INT64_C (1) << 31)   /* of one extent: products of two fit in 63 bits */

static int check_extents (const struct arch *a, struct err *e)
{
  const struct { const char *name; int64_t n; } row[] = {
    { "dim", a->dim }, { "layers", a->layers }, { "heads", a->heads }, { "kv_heads", a->kv_heads }, { "head_dim", a->head_dim },
    { "ffn", a->ffn }, { "vocab", a->vocab },
  };
  for (int i = 0; i < LEN (row); i++) {
    if (row[i].n < 1) return user_err (e, "model.%s is %lld: it must be positive", row[i].name, (long long) row[i].n);
    if (row[i].n >= LARGEST)
      return user_err (e, "model.%s is %lld: over the largest, 2^31 - 1", row[i].name, (long long) row[i].n);
  }
  if (a->heads * a->head_dim >= LARGEST)
    return user_err (e, "model.heads %lld x model.head_dim %lld is over 2^31 - 1", (long long) a->heads, (long long) a->head_dim);
  double layer = a->dim * (2.0 * a->heads * a->head_dim + 2.0 * a->kv_heads * a->head_dim + 3.0 * a->ffn);
  double most = a->layers * layer + 2.0 * a->vocab * a->dim;
  if (most > 1e17) return user_err (e, "the model has %.3g parameters: over the largest, 1e17", most);
  return 0;
}

static int check_rope (const struct arch *a, struct err *e)
{
  if (!(a->rope_theta > 1)) return user_err (e, "model.rope_theta is %g: it must be above 1", a->rope_theta);
  if (a->rope_scaling.factor == 0) return 0;
  if (!(a->rope_scaling.factor >= 1))
    return user_err (e, "model.rope_scaling.factor is %g: it must be 0 (none) or at least 1", a->rope_scaling.factor);
  if (!(a->rope_scaling.low > 0 && a->rope_scaling.high > a->rope_scaling.low))
    return user_err (e, "model.rope_scaling.low %g and .high %g: 0 < low < high is needed", a->rope_scaling.low,
                     a->rope_scaling.high);
  if (a->rope_scaling.original < 1)
    return user_err (e, "model.rope_scaling.original is %lld: with a factor it must be positive",
                     (long long) a->rope_scaling.original);
  return 0;
}

int arch_check (const struct arch *a, struct err *e)
{
  if (check_extents (a, e)) return -1;
  if (a->head_dim % 2) return user_err (e, "model.head_dim is %lld: it must be even, RoPE turns pairs", (long long) a->head_dim);
  if (a->heads % a->kv_heads)
    return user_err (e, "model.heads %lld is not a multiple of model.kv_heads %lld", (long long) a->heads,
                     (long long) a->kv_heads);
  if (!(a->norm_eps > 0)) return user_err (e, "model.norm_eps is %g: it must be positive", a->norm_eps);
  if (!(a->init_std > 0)) return user_err (e, "model.init_std is %g: it must be positive", a->init_std);
  if (a->max_seq < 0) return user_err (e, "model.max_seq is %lld: it must be 0 (any) or positive", (long long) a->max_seq);
  if (a->window < 0) return user_err (e, "model.window is %lld: it must be 0 (none) or positive", (long long) a->window);
  return check_rope (a, e);
}

static int split_given (const struct arch *a, int stages, const char *split, int64_t *n, struct err *e)
{
  int64_t sum = 0;
  int count = 0;
  for (const char *s = split; ; s++, count++) {
    char *end;
    long long v = strtoll (s, &end, 10);
    if (end == s || v < 0 || v >= LARGEST || (*end && *end != ','))
      return user_err (e, "pipeline.split \"%s\" is not a list of layer counts such as 5,3", split);
    if (v == 0) return user_err (e, "pipeline.split \"%s\" gives stage %d no layer", split, count);
    if (count < stages) n[count] = v;
    sum += v;
    s = end;
    if (!*s) break;
  }
  if (++count != stages) return user_err (e, "pipeline.split \"%s\" has %d stages, the pipeline has %d", split, count, stages);
  if (sum != a->layers)
    return user_err (e, "pipeline.split \"%s\" has %lld layers, the model has %lld", split, (long long) sum,
                     (long long) a->layers);
  return 0;
}

int arch_split (const struct arch *a, int stages, const char *split, int64_t *n, struct err *e)
{
  if (stages < 1) return user_err (e, "a pipeline of %d stages: it must be positive", stages);
  if (split && *split) return split_given (a, stages, split, n, e);
  if (a->layers < stages)
    return user_err (e, "model.layers %lld cannot fill a pipeline of %d stages: each needs a layer", (long long) a->layers,
                     stages);
  for (int i = 0; i < stages; i++) n[i] = a->layers / stages + (i < a->layers % stages);
  return 0;
}
