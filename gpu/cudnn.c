/* cudnn: attention by cuDNN's fused engines, through its backend interface.

   A shape becomes a graph of matmuls, masks and the parts of softmax, composed as the fused attention engines expect to find
   them (version 9.0 on; the operations that hold a whole attention are newer than what hosts have). Its execution plan is made
   once and kept. The library is opened when it is first needed: a host without it has our own kernels. What is not offered
   (another type, document bounds, merging, offsets, accumulating) is refused, and the caller takes ours.

   Backward. Sums of dq over key blocks in fp32 need [batch, heads, sq, head_dim] floats, and are taken in any order; asked to be
   deterministic, cuDNN keeps all of dS, [batch, heads, sq, sk] bf16, and multiplies once more. Both come from the queue's
   workspace: where it is smaller, batch and heads are cut and done in turn as long as the parts fill the chip; else our own
   kernels are faster and are taken. */
#include "cuda.h"
#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <string.h>

typedef cudnnBackendDescriptor_t desc;

/* ---- the library ---- */

static struct {
  bool tried, here;
  size_t version;
  cudnnHandle_t handle;
  cudnnStatus_t (*create) (cudnnHandle_t *);
  cudnnStatus_t (*stream) (cudnnHandle_t, cudaStream_t);
  cudnnStatus_t (*make) (cudnnBackendDescriptorType_t, desc *);
  cudnnStatus_t (*drop) (desc);
  cudnnStatus_t (*set) (desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);
  cudnnStatus_t (*get) (desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
  cudnnStatus_t (*finalize) (desc);
  cudnnStatus_t (*run) (cudnnHandle_t, desc, desc);
} lib;

static bool find_symbols (void *so)
{
  const struct { const char *name; void **at; } want[] = {
    { "cudnnCreate", (void **) &lib.create }, { "cudnnSetStream", (void **) &lib.stream },
    { "cudnnBackendCreateDescriptor", (void **) &lib.make }, { "cudnnBackendDestroyDescriptor", (void **) &lib.drop },
    { "cudnnBackendSetAttribute", (void **) &lib.set }, { "cudnnBackendGetAttribute", (void **) &lib.get },
    { "cudnnBackendFinalize", (void **) &lib.finalize }, { "cudnnBackendExecute", (void **) &lib.run } };
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    if (!(*want[i].at = dlsym (so, want[i].name))) return false;
  return true;
}

static bool library (void)
{
  if (lib.tried) return lib.here;
  lib.tried = true;
  void *so = dlopen ("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  size_t (*version) (void) = so ? (size_t (*) (void)) dlsym (so, "cudnnGetVersion") : NULL;
  if (!version || !find_symbols (so)) {
    H->say (SAY_INFO, "no cuDNN here (libcudnn.so.9): attention by our own kernels");
    return false;
  }
  lib.version = version ();
  cudnnStatus_t r = lib.version >= 90000 ? lib.create (&lib.handle) : CUDNN_STATUS_NOT_SUPPORTED;
  lib.here = r == CUDNN_STATUS_SUCCESS;
  if (!lib.here) H->say (SAY_INFO, "cuDNN %zu cannot be used (status %d, 9.0 or newer is needed): attention by our own kernels", lib.version, (int) r);
  return lib.here;
}

/* ---- building a graph ---- */

enum { MAX_DESC = 160, MAX_OPS = 48 };
/* Names of the tensors that memory or a host value is bound to; virtual ones count from VIRTUAL. */
enum { Q = 1, K, V, O, LSE, D_O, DELTA, DQ, DK, DV, DQ_SUM, SCALE, MASKED, LEFT, ONE, VIRTUAL = 100 };

struct build {
  desc all[MAX_DESC], op[MAX_OPS];
  int n, n_op;
  int64_t next;              /* virtual tensor */
  bool bad;                  /* some call failed: the graph is not offered */
  int64_t b, h, hk, sq, sk, d;
};

static desc make (struct build *g, cudnnBackendDescriptorType_t type)
{
  desc x = NULL;
  if (g->n == MAX_DESC || lib.make (type, &x) != CUDNN_STATUS_SUCCESS) return g->bad = true, NULL;
  return g->all[g->n++] = x;
}

static void put (struct build *g, desc x, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
    const void *v)
{
  if (!g->bad && lib.set (x, name, type, n, v) != CUDNN_STATUS_SUCCESS) g->bad = true;
}
static void put_desc (struct build *g, desc x, cudnnBackendAttributeName_t name, desc v)
{
  put (g, x, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static desc seal (struct build *g, desc x)
{
  if (!g->bad && lib.finalize (x) != CUDNN_STATUS_SUCCESS) g->bad = true;
  return x;
}

struct form { int64_t dim[4], stride[4]; };

static desc tensor (struct build *g, int64_t id, cudnnDataType_t type, struct form f)
{
  desc x = make (g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  int64_t align = id == SCALE || id == MASKED || id == LEFT || id == ONE ? 4 : 16;
  bool is_virtual = id >= VIRTUAL, by_value = align == 4;
  put (g, x, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  put (g, x, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  put (g, x, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
  put (g, x, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, f.dim);
  put (g, x, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, f.stride);
  put (g, x, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  put (g, x, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  return seal (g, x);
}

/* [batch, heads, rows, cols] without gaps. */
static struct form dense (int64_t b, int64_t h, int64_t rows, int64_t cols)
{
  return (struct form) { { b, h, rows, cols }, { h * rows * cols, rows * cols, cols, 1 } };
}
static struct form transposed (struct form f)
{
  return (struct form) { { f.dim[0], f.dim[1], f.dim[3], f.dim[2] }, { f.stride[0], f.stride[1], f.stride[3], f.stride[2] } };
}
static struct form tokens (int64_t b, int64_t h, int64_t s, int64_t d, int64_t stride)
{
  return (struct form) { { b, h, s, d }, { s * stride, d, stride, 1 } };
}

static desc value (struct build *g, int64_t id) { return tensor (g, id, CUDNN_DATA_FLOAT, dense (1, 1, 1, 1)); }
static desc scores (struct build *g, cudnnDataType_t type)
{
  return tensor (g, g->next++, type, dense (g->b, g->h, g->sq, g->sk));
}
static desc column (struct build *g) { return tensor (g, g->next++, CUDNN_DATA_FLOAT, dense (g->b, g->h, g->sq, 1)); }

static void add_op (struct build *g, desc op)
{
  seal (g, op);
  if (g->n_op == MAX_OPS) g->bad = true;
  else g->op[g->n_op++] = op;
}

static desc matmul (struct build *g, desc a, desc b, desc c)
{
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  desc how = make (g, CUDNN_BACKEND_MATMUL_DESCRIPTOR), op = make (g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  put (g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  seal (g, how);
  put_desc (g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  put_desc (g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  put_desc (g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  put_desc (g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  add_op (g, op);
  return c;
}

/* y = mode (x, b, t), b and t where the mode has them; axis for the index. */
static desc pointwise (struct build *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, desc x, desc b, desc t, int64_t axis,
    desc y)
{
  float one = 1;
  desc how = make (g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), op = make (g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  put (g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  put (g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) put (g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  seal (g, how);
  put_desc (g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  put_desc (g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) put_desc (g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t) put_desc (g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  put_desc (g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  put (g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
  put (g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
  add_op (g, op);
  return y;
}
static desc unary (struct build *g, cudnnPointwiseMode_t mode, desc x, desc y)
{
  return pointwise (g, mode, CUDNN_DATA_FLOAT, x, NULL, NULL, 0, y);
}
static desc binary (struct build *g, cudnnPointwiseMode_t mode, desc x, desc b, desc y)
{
  return pointwise (g, mode, CUDNN_DATA_FLOAT, x, b, NULL, 0, y);
}

static desc reduce (struct build *g, cudnnReduceTensorOp_t mode, desc x, desc y)
{
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  desc how = make (g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), op = make (g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  put (g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  put (g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  seal (g, how);
  put_desc (g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  put_desc (g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  put_desc (g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  add_op (g, op);
  return y;
}

static desc reshape (struct build *g, desc x, desc y)
{
  desc op = make (g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  put_desc (g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  put_desc (g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  add_op (g, op);
  return y;
}

/* Scores where row (query) >= column (key), and with a window where column + window > row; -inf elsewhere. */
static desc band (struct build *g, desc s, bool window)
{
  for (int left = 0; left <= (int) window; left++) {
    desc row = pointwise (g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, s, NULL, NULL, 2, scores (g, CUDNN_DATA_INT32));
    desc col = pointwise (g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, s, NULL, NULL, 3, scores (g, CUDNN_DATA_INT32)),
        seen = NULL;
    if (left) {
      col = binary (g, CUDNN_POINTWISE_ADD, col, value (g, LEFT), scores (g, CUDNN_DATA_FLOAT));
      seen = pointwise (g, CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN, col, row, NULL, 0, scores (g, CUDNN_DATA_BOOLEAN));
    } else seen = pointwise (g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, col, NULL, 0, scores (g, CUDNN_DATA_BOOLEAN));
    s = pointwise (g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, s, value (g, MASKED), seen, 0,
        scores (g, CUDNN_DATA_FLOAT));
  }
  return s;
}

static desc kv_tensor (struct build *g, int64_t id, bool turned, int64_t stride)
{
  struct form f = tokens (g->b, g->hk, g->sk, g->d, stride);
  return tensor (g, id, CUDNN_DATA_BFLOAT16, turned ? transposed (f) : f);
}
static desc q_tensor (struct build *g, int64_t id, int64_t stride)
{
  return tensor (g, id, CUDNN_DATA_BFLOAT16, tokens (g->b, g->h, g->sq, g->d, stride));
}

static void forward_graph (struct build *g, const struct op_attn *o)
{
  const cudnnDataType_t F = CUDNN_DATA_FLOAT;
  desc s = matmul (g, q_tensor (g, Q, o->q_stride), kv_tensor (g, K, true, o->kv_stride), scores (g, F));
  s = band (g, binary (g, CUDNN_POINTWISE_MUL, s, value (g, SCALE), scores (g, F)), o->window > 0);
  desc max = reduce (g, CUDNN_REDUCE_TENSOR_MAX, s, column (g));
  desc e = unary (g, CUDNN_POINTWISE_EXP, binary (g, CUDNN_POINTWISE_SUB, s, max, scores (g, F)), scores (g, F));
  desc sum = reduce (g, CUDNN_REDUCE_TENSOR_ADD, e, column (g));
  desc log_sum = unary (g, CUDNN_POINTWISE_LOG, sum, column (g));
  binary (g, CUDNN_POINTWISE_ADD, max, log_sum, tensor (g, LSE, F, dense (g->b, g->h, g->sq, 1)));
  desc p = binary (g, CUDNN_POINTWISE_DIV, e, sum, scores (g, CUDNN_DATA_BFLOAT16));
  matmul (g, p, kv_tensor (g, V, false, o->kv_stride), q_tensor (g, O, o->o_stride));
}

/* dk or dv (ID) = transposed scores X times Y [b, h, sq, d], summed over the query heads of each KV head; those of a query head
   are bf16 (with fp32 in their place 9.14 makes wrong sums). */
static void kv_grad (struct build *g, desc x, desc y, int64_t id, int64_t stride)
{
  desc t = reshape (g, x, tensor (g, g->next++, CUDNN_DATA_BFLOAT16, transposed (dense (g->b, g->h, g->sq, g->sk)))),
      out = kv_tensor (g, id, false, stride);
  if (g->h == g->hk) matmul (g, t, y, out);
  else reduce (g, CUDNN_REDUCE_TENSOR_ADD, matmul (g, t, y,
      tensor (g, g->next++, CUDNN_DATA_BFLOAT16, dense (g->b, g->h, g->sk, g->d))), out);
}

static void backward_graph (struct build *g, const struct op_attn_bwd *w, bool whole_ds)
{
  const cudnnDataType_t F = CUDNN_DATA_FLOAT;
  const struct op_attn *o = &w->f;
  desc q = q_tensor (g, Q, o->q_stride), d_o = q_tensor (g, D_O, o->o_stride), kt = kv_tensor (g, K, true, o->kv_stride),
      scale = value (g, SCALE);
  struct form prod = dense (g->b, g->h, g->sq, g->d);
  prod.stride[2] = g->h * g->d;
  desc dot = binary (g, CUDNN_POINTWISE_MUL, d_o, q_tensor (g, O, o->o_stride), tensor (g, g->next++, F, prod));
  dot = reduce (g, CUDNN_REDUCE_TENSOR_ADD, dot, column (g));
  desc delta = binary (g, CUDNN_POINTWISE_MUL, dot, value (g, ONE), tensor (g, DELTA, F, dense (g->b, g->h, g->sq, 1)));
  desc s = binary (g, CUDNN_POINTWISE_MUL, matmul (g, q, kt, scores (g, F)), scale, scores (g, F));
  s = binary (g, CUDNN_POINTWISE_SUB, s, tensor (g, LSE, F, dense (g->b, g->h, g->sq, 1)), scores (g, F));
  desc p = unary (g, CUDNN_POINTWISE_EXP, band (g, s, o->window > 0), scores (g, F));
  kv_grad (g, p, d_o, DV, w->dkv_stride);
  desc ds = matmul (g, d_o, kv_tensor (g, V, true, o->kv_stride), scores (g, F));
  ds = binary (g, CUDNN_POINTWISE_SUB, ds, delta, scores (g, F));
  ds = binary (g, CUDNN_POINTWISE_MUL, ds, p, scores (g, F));
  ds = binary (g, CUDNN_POINTWISE_MUL, ds, scale, scores (g, F));
  kv_grad (g, ds, q, DK, w->dkv_stride);
  desc k = reshape (g, kt, tensor (g, g->next++, F, tokens (g->b, g->hk, g->sk, g->d, o->kv_stride))),
      dq = q_tensor (g, DQ, w->dq_stride);
  if (whole_ds) matmul (g, ds, k, dq);
  else unary (g, CUDNN_POINTWISE_IDENTITY, matmul (g, ds, k, tensor (g, DQ_SUM, F, dense (g->b, g->h, g->sq, g->d))), dq);
}

/* ---- plans ---- */

/* What a plan depends on; all int64_t, compared as memory. */
struct shape { int64_t b, h, hk, sq, sk, d, q_stride, kv_stride, o_stride, dq_stride, dkv_stride, window, backward, whole_ds; };
struct plan {
  struct plan *next;
  struct shape key;
  desc plan;                  /* NULL: not offered */
  int64_t dq_bytes, bytes;    /* workspace: the fp32 sums of dq, then cuDNN's own; both */
};
static struct plan *plans;

static bool plan_of (desc config, struct plan *p)
{
  int64_t n = 0, own = 0;
  desc x;
  if (lib.make (CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &x) != CUDNN_STATUS_SUCCESS) return false;
  if (lib.set (x, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &lib.handle) == CUDNN_STATUS_SUCCESS
      && lib.set (x, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config) == CUDNN_STATUS_SUCCESS
      && lib.finalize (x) == CUDNN_STATUS_SUCCESS
      && lib.get (x, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &own) == CUDNN_STATUS_SUCCESS) {
    p->plan = x;
    p->bytes = p->dq_bytes + own;
    return true;
  }
  lib.drop (x);
  return false;
}

/* The first engine, in the order of cuDNN's own heuristics, that takes the graph. */
static void choose (struct build *g, desc graph, struct plan *p)
{
  const cudnnBackendHeurMode_t mode[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK };
  for (int m = 0; m < 2 && !p->plan && !g->bad; m++) {
    desc heur = make (g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), config[8];
    int64_t n = 0;
    put_desc (g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    put (g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode[m]);
    if (g->bad || lib.finalize (heur) != CUDNN_STATUS_SUCCESS) continue;
    for (int i = 0; i < 8; i++) config[i] = make (g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->bad || lib.get (heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, &n,
        config) != CUDNN_STATUS_SUCCESS) continue;
    for (int i = 0; i < n && i < 8 && !p->plan; i++) plan_of (config[i], p);
  }
}

static void try_graph (struct plan *p, const struct op_attn_bwd *w)
{
  const struct shape *key = &p->key;
  struct build *g = H->xalloc (sizeof *g, "cudnn graph");
  *g = (struct build) { .next = VIRTUAL, .b = key->b, .h = key->h, .hk = key->hk, .sq = key->sq, .sk = key->sk, .d = key->d };
  if (key->backward) backward_graph (g, w, key->whole_ds);
  else forward_graph (g, &w->f);
  desc graph = make (g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  put (g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &lib.handle);
  put (g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op, g->op);
  seal (g, graph);
  choose (g, graph, p);
  for (int i = g->n; i-- > 0; ) lib.drop (g->all[i]);
  H->xfree (g);
}

static struct plan *plan_make (const struct shape *key, const struct op_attn_bwd *w)
{
  struct plan *p = H->xalloc (sizeof *p, "cudnn plan");
  *p = (struct plan) { .key = *key, .next = plans };
  if (key->backward && !key->whole_ds) p->dq_bytes = (key->b * key->h * key->sq * key->d * 4 + 255) / 256 * 256;
  try_graph (p, w);
  H->say (p->plan ? SAY_DEBUG : SAY_INFO, "cuDNN %zu: %s of %lld x %lld/%lld x %lld x %lld %s, %.1f MiB of workspace", lib.version,
          key->backward ? "backward" : "forward", (long long) key->b, (long long) key->h, (long long) key->hk,
          (long long) key->sq, (long long) key->d, p->plan ? "offered" : "not offered", p->bytes / 0x1p20);
  return plans = p;
}

static struct plan *plan_get (const struct shape *key, const struct op_attn_bwd *w)
{
  for (struct plan *p = plans; p; p = p->next)
    if (!memcmp (&p->key, key, sizeof *key)) return p;
  return plan_make (key, w);
}

struct bind { int64_t id[16]; void *at[16]; int n; };
static void bind (struct bind *v, int64_t id, const void *at)
{
  v->id[v->n] = id;
  v->at[v->n++] = (void *) at;
}

static bool execute (struct plan *p, struct bind *v, void *work, cudaStream_t s)
{
  desc pack;
  bool ok = lib.stream (lib.handle, s) == CUDNN_STATUS_SUCCESS
      && lib.make (CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) == CUDNN_STATUS_SUCCESS;
  if (!ok) return false;
  ok = lib.set (pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, v->n, v->id) == CUDNN_STATUS_SUCCESS
       && lib.set (pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, v->n, v->at) == CUDNN_STATUS_SUCCESS
       && lib.set (pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work) == CUDNN_STATUS_SUCCESS
       && lib.finalize (pack) == CUDNN_STATUS_SUCCESS && lib.run (lib.handle, p->plan, pack) == CUDNN_STATUS_SUCCESS;
  lib.drop (pack);
  return ok;
}

/* ---- operations ---- */

static bool aligned (const void *p, int64_t stride) { return (uintptr_t) p % 16 == 0 && stride % 8 == 0; }

static bool offered (const struct op_attn *o)
{
  return o->t == DT_BF16 && !o->doc && !o->merge && o->q0 == o->k0 && o->sq == o->sk && o->sq >= 64 && o->heads % o->kv_heads == 0
         && o->head_dim % 8 == 0 && o->head_dim <= 256 && aligned (o->q, o->q_stride) && aligned (o->k, o->kv_stride)
         && aligned (o->v, o->kv_stride)
         && aligned (o->o, o->o_stride) && (uintptr_t) o->lse % 16 == 0 && library ();
}

static struct shape shape_of (const struct op_attn *o)
{
  return (struct shape) { .b = o->batch, .h = o->heads, .hk = o->kv_heads, .sq = o->sq, .sk = o->sk, .d = o->head_dim,
      .q_stride = o->q_stride,
    .kv_stride = o->kv_stride, .o_stride = o->o_stride, .window = o->window };
}

/* The values that every graph takes from the host. */
struct values { float scale, masked, left, one; };
static void bind_values (struct bind *v, struct values *x, const struct op_attn *o)
{
  *x = (struct values) { 1 / sqrtf ((float) o->head_dim), lib.version < 91000 ? -3.4028234664e38f : -INFINITY, (float) o->window,
      1 };
  bind (v, SCALE, &x->scale);
  bind (v, MASKED, &x->masked);
  if (o->window) bind (v, LEFT, &x->left);
}

bool cudnn_attn (struct dev *d, struct queue *q, const struct op_attn *o)
{
  (void) d;
  if (!offered (o)) return false;
  struct shape key = shape_of (o);
  struct op_attn_bwd w = { .f = *o };
  struct plan *p = plan_get (&key, &w);
  if (!p->plan || p->bytes > q->work_bytes) return false;
  struct values x;
  struct bind v = { .n = 0 };
  bind_values (&v, &x, o);
  bind (&v, Q, o->q), bind (&v, K, o->k), bind (&v, V, o->v), bind (&v, O, o->o), bind (&v, LSE, o->lse);
  MUST (execute (p, &v, q->work, q->s), "cuDNN: attention of %lld x %lld x %lld tokens fails", (long long) o->batch,
      (long long) o->heads, (long long) o->sq);
  return true;
}

/* One part: sequences from b0 and KV heads from g0, of the plan's extents. */
static void backward_part (const struct plan *p, struct queue *q, const struct op_attn_bwd *w, int64_t b0, int64_t g0)
{
  const struct op_attn *o = &w->f;
  int64_t h0 = g0 * (o->heads / o->kv_heads), row = b0 * o->sq, col = b0 * o->sk, hd = o->head_dim,
      stat = (b0 * o->heads + h0) * o->sq;
  struct values x;
  struct bind v = { .n = 0 };
  bind_values (&v, &x, o);
  bind (&v, ONE, &x.one);
  bind (&v, Q, at_elem (o->q, row * o->q_stride + h0 * hd, o->t));
  bind (&v, K, at_elem (o->k, col * o->kv_stride + g0 * hd, o->t));
  bind (&v, V, at_elem (o->v, col * o->kv_stride + g0 * hd, o->t));
  bind (&v, O, at_elem (o->o, row * o->o_stride + h0 * hd, o->t));
  bind (&v, D_O, at_elem (w->d_o, row * o->o_stride + h0 * hd, o->t));
  bind (&v, DQ, at_elem (w->dq, row * w->dq_stride + h0 * hd, o->t));
  bind (&v, DK, at_elem (w->dk, col * w->dkv_stride + g0 * hd, o->t));
  bind (&v, DV, at_elem (w->dv, col * w->dkv_stride + g0 * hd, o->t));
  bind (&v, LSE, o->lse + stat);
  bind (&v, DELTA, w->delta + stat);
  if (p->dq_bytes) {
    if (lib.version < 90600) CU (cudaMemsetAsync (q->work, 0, (size_t) p->dq_bytes, q->s));
    bind (&v, DQ_SUM, q->work);
  }
  MUST (execute ((struct plan *) p, &v, (char *) q->work + p->dq_bytes, q->s),
      "cuDNN: backward of attention of %lld x %lld x %lld tokens fails",
        (long long) o->batch, (long long) o->heads, (long long) o->sq);
}

/* The next smaller part whose extents divide the whole: sequences first, then KV heads (a part of several sequences has all
   heads, because lse and delta lie so). False where it would not fill the chip: measured on 132 multiprocessors, parts of fewer
   than FULL blocks of 128 rows are no faster than our own kernels. */
static bool smaller (struct shape *s, const struct op_attn *o)
{
  enum { FULL = 1024 };
  int64_t *n = s->b > 1 ? &s->b : &s->hk;
  if (*n == 1) return false;
  do --*n; while ((n == &s->b ? o->batch : o->kv_heads) % *n);
  s->h = s->hk * (o->heads / o->kv_heads);
  return s->b * s->h * ((s->sq + 127) / 128) >= FULL;
}

/* The plan of the largest part that BYTES of workspace are enough for, KEY its shape; NULL: none is offered. */
static struct plan *fitting (struct shape *key, const struct op_attn_bwd *w, int64_t bytes)
{
  do {
    int64_t least = key->b * key->h * key->sq * (key->whole_ds ? 2 * key->sk : 4 * key->d);   /* known before there is a plan */
    struct plan *p = least <= bytes ? plan_get (key, w) : NULL;
    if (p && !p->plan) return NULL;
    if (p && p->bytes <= bytes) return p;
  } while (smaller (key, &w->f));
  return NULL;
}

bool cudnn_attn_bwd (struct dev *d, struct queue *q, const struct op_attn_bwd *w)
{
  const struct op_attn *o = &w->f;
  if (w->accumulate || !offered (o) || !aligned (w->d_o, o->o_stride) || !aligned (w->dq, w->dq_stride)
      || !aligned (w->dk, w->dkv_stride)
      || !aligned (w->dv, w->dkv_stride) || (uintptr_t) w->delta % 16) return false;
  struct shape key = shape_of (o);
  key.dq_stride = w->dq_stride, key.dkv_stride = w->dkv_stride, key.backward = 1, key.whole_ds = d->conf.deterministic;
  struct plan *p = fitting (&key, w, q->work_bytes);
  if (!p) return false;
  for (int64_t b = 0; b < o->batch; b += key.b)
    for (int64_t g = 0; g < o->kv_heads; g += key.hk) backward_part (p, q, w, b, g);
  return true;
}
