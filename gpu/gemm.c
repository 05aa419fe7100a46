/* Products through cuBLASLt. Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)', so A and B change places. 8-bit operands have the only form that Hopper has, that of
   struct op_gemm_fp8: k fastest in both; their partial sums are promoted to fp32 (no fast accumulation, which measures no faster). Plans are made once for each shape and kept. */
#include "cuda.h"
#include <stdio.h>
#include <string.h>

struct key { int64_t m, n, k, lda, ldb, ldc; int32_t at, bt, ct, ta, tb, beta, bias; };
struct args { const void *a, *b, *bias; const float *a_unit, *b_unit; void *c; float beta; };   /* units: of 8-bit operands */
struct plan {
  struct key key;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algo;
  struct plan *next;
};

enum { BUCKETS = 256, TRIES = 16 };
static struct plan *table[BUCKETS];

static const cudaDataType_t type_of[DT_N] = { [DT_F32] = CUDA_R_32F, [DT_BF16] = CUDA_R_16BF, [DT_E4M3] = CUDA_R_8F_E4M3, [DT_E5M2] = CUDA_R_8F_E5M2 };

static unsigned bucket (const struct key *k)
{
  uint64_t h = 1469598103934665603u;
  const unsigned char *p = (const unsigned char *) k;
  for (size_t i = 0; i < sizeof *k; i++) h = (h ^ p[i]) * 1099511628211u;
  return (unsigned) (h % BUCKETS);
}

static struct plan *find (const struct key *k)
{
  struct plan *p = table[bucket (k)];
  while (p && memcmp (&p->key, k, sizeof *k)) p = p->next;
  return p;
}

static void set (struct plan *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t size)
{
  LT (cublasLtMatmulDescSetAttribute (p->desc, what, value, size));
}

static void set_pointers (struct plan *p, const struct args *g)
{
  if (g->bias) set (p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
  if (!g->a_unit) return;
  set (p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_unit, sizeof g->b_unit);
  set (p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a_unit, sizeof g->a_unit);
}

static cublasStatus_t multiply (const struct cuda *x, struct queue *q, const struct plan *p, const struct args *g, float beta, const cublasLtMatmulAlgo_t *algo)
{
  float one = 1;
  return cublasLtMatmul (x->lt, p->desc, &one, g->b, p->a, g->a, p->b, &beta, g->c, p->c, g->c, p->c, algo, q->work, (size_t) q->work_bytes, q->s);
}

/* A product that is added takes what was measured of the one that is not. */
static void shape_of (const struct key *k, char out[ALGO_SHAPE])
{
  char types[24];
  snprintf (types, sizeof types, k->at == k->bt ? "%d" : "%d,%d", k->at, k->bt);
  snprintf (out, ALGO_SHAPE, "gemm %lldx%lldx%lld %lld,%lld,%lld %c%c %s>%d%s", (long long) k->m, (long long) k->n, (long long) k->k, (long long) k->lda, (long long) k->ldb,
            (long long) k->ldc, k->ta ? 'T' : 'N', k->tb ? 'T' : 'N', types, k->ct, k->bias ? " bias" : "");
}

/* The fastest of the algorithms on the real operands: three calls after one. */
static int fastest (const struct cuda *x, struct queue *q, const struct plan *p, const struct args *g, const cublasLtMatmulHeuristicResult_t *r, int n)
{
  float least = 1e30f;
  int best = 0;
  cudaEvent_t e[2];
  for (int i = 0; i < 2; i++) CU (cudaEventCreate (&e[i]));
  for (int i = 0; i < n; i++) {
    float ms = 1e30f;
    bool ok = true;
    for (int t = 0; t < 4 && ok; t++) {
      if (t == 1) CU (cudaEventRecord (e[0], q->s));
      ok = multiply (x, q, p, g, 0, &r[i].algo) == CUBLAS_STATUS_SUCCESS;
    }
    CU (cudaEventRecord (e[1], q->s));
    CU (cudaEventSynchronize (e[1]));
    if (ok) CU (cudaEventElapsedTime (&ms, e[0], e[1]));
    if (ms < least * 0.99f) least = ms, best = i;
  }
  for (int i = 0; i < 2; i++) cudaEventDestroy (e[i]);
  return best;
}

/* Of the algorithms offered the one of the table; where it has none and nothing is lost by it (beta 0), they are timed. What is found serves from the moment on that all ranks
   have one table: until then the first is taken. */
static void choose (struct cuda *x, struct queue *q, struct plan *p, const struct args *g)
{
  cublasLtMatmulPreference_t pref;
  cublasLtMatmulHeuristicResult_t r[TRIES], one;
  cublasLtMatmulAlgo_t known;
  enum cudaStreamCaptureStatus capture;
  const struct key *k = &p->key;
  char shape[ALGO_SHAPE];
  int found = 0;
  size_t bytes = (size_t) q->work_bytes;
  shape_of (k, shape);
  bool have = algo_known (shape, &known) && cublasLtMatmulAlgoCheck (x->lt, p->desc, p->a, p->b, p->c, p->c, &known, &one) == CUBLAS_STATUS_SUCCESS && one.workspaceSize <= bytes;
  if (have && algo_in_use ()) {
    p->algo = known;
    return;
  }
  LT (cublasLtMatmulPreferenceCreate (&pref));
  LT (cublasLtMatmulPreferenceSetAttribute (pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic (x->lt, p->desc, p->a, p->b, p->c, p->c, pref, TRIES, r, &found);
  cublasLtMatmulPreferenceDestroy (pref);
  MUST (s == CUBLAS_STATUS_SUCCESS && found > 0, "cuBLASLt has no algorithm on this GPU for \"%s\" (%s)", shape, cublasLtGetStatusString (s));
  CU (cudaStreamIsCapturing (q->s, &capture));
  p->algo = r[0].algo;
  if (have || k->beta || found == 1 || capture != cudaStreamCaptureStatusNone || k->m * k->n * k->k <= 1 << 24) return;
  int best = fastest (x, q, p, g, r, found);
  algo_keep (shape, &r[best].algo);
  if (algo_in_use ()) p->algo = r[best].algo;
}

static struct plan *make_plan (struct cuda *x, struct queue *q, const struct key *k, const struct args *g)
{
  struct plan *p = H->xalloc (sizeof *p, "gemm plan");
  cublasOperation_t ta = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;   /* changed places */
  p->key = *k;
  LT (cublasLtMatmulDescCreate (&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set (p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
  set (p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
  if (k->bias) {
    cublasLtEpilogue_t ep = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t bt = k->at == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
    set (p, CUBLASLT_MATMUL_DESC_EPILOGUE, &ep, sizeof ep);
    set (p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bt, sizeof bt);
  }
  set_pointers (p, g);
  LT (cublasLtMatrixLayoutCreate (&p->a, type_of[k->bt], k->tb ? k->k : k->n, k->tb ? k->n : k->k, k->ldb));
  LT (cublasLtMatrixLayoutCreate (&p->b, type_of[k->at], k->ta ? k->m : k->k, k->ta ? k->k : k->m, k->lda));
  LT (cublasLtMatrixLayoutCreate (&p->c, type_of[k->ct], k->n, k->m, k->ldc));
  choose (x, q, p, g);
  unsigned b = bucket (k);
  p->next = table[b];
  return table[b] = p;
}

static void product (struct dev *d, struct queue *q, const struct key *k, const struct args *g)
{
  struct plan *p = find (k);
  if (p) set_pointers (p, g);
  else p = make_plan (d->impl, q, k, g);
  LT (multiply (d->impl, q, p, g, g->beta, &p->algo));
}

void cuda_gemm (struct dev *d, struct queue *q, const struct op *o)
{
  const struct op_gemm *g = &o->gemm;
  struct key k;
  memset (&k, 0, sizeof k);   /* keys are compared as bytes */
  k.m = g->m, k.n = g->n, k.k = g->k;
  k.lda = g->lda ? g->lda : g->ta ? g->m : g->k;
  k.ldb = g->ldb ? g->ldb : g->tb ? g->k : g->n;
  k.ldc = g->ldc ? g->ldc : g->n;
  k.at = k.bt = g->ab, k.ct = g->ct, k.ta = g->ta, k.tb = g->tb;
  k.beta = g->beta != 0, k.bias = g->bias != NULL;
  product (d, q, &k, &(struct args) { .a = g->a, .b = g->b, .bias = g->bias, .c = g->c, .beta = g->beta });
}

void cuda_gemm_fp8 (struct dev *d, struct queue *q, const struct op *o)
{
  const struct op_gemm_fp8 *g = &o->gemm_fp8;
  struct key k;
  memset (&k, 0, sizeof k);
  k.m = g->m, k.n = g->n, k.k = k.lda = k.ldb = g->k, k.ldc = g->n;
  k.at = g->at, k.bt = g->bt, k.ct = g->ct, k.tb = true;
  k.beta = g->beta != 0, k.bias = g->bias != NULL;
  product (d, q, &k, &(struct args) { g->a, g->b, g->bias, g->a_unit, g->b_unit, g->c, g->beta });
}

void gemm_close (void)
{
  for (int b = 0; b < BUCKETS; b++)
    for (struct plan *p = table[b], *next; p; p = next) {
      next = p->next;
      cublasLtMatmulDescDestroy (p->desc);
      cublasLtMatrixLayoutDestroy (p->a);
      cublasLtMatrixLayoutDestroy (p->b);
      cublasLtMatrixLayoutDestroy (p->c);
      H->xfree (p);
    }
  memset (table, 0, sizeof table);
}
