/* GEMMs through cuBLASLt. Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)', so A and B change places. Plans are made once for each shape and kept. */
#include "cuda.h"
#include <stdio.h>
#include <string.h>

struct key { int64_t m, n, k, lda, ldb, ldc; int32_t ab, ct, ta, tb, beta, bias; };
struct plan {
  struct key key;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algo;
  struct plan *next;
};

enum { BUCKETS = 256, TRIES = 16 };
static struct plan *table[BUCKETS];

static const cudaDataType_t type_of[DT_N] = { [DT_F32] = CUDA_R_32F, [DT_BF16] = CUDA_R_16BF };

static unsigned bucket (const struct key *k)
{
  uint64_t h = 1469598103934665603u;
  const unsigned char *p = (const unsigned char *) k;
  for (size_t i = 0; i < sizeof *k; i++) h = (h ^ p[i]) * 1099511628211u;
  return (unsigned) (h % BUCKETS);
}

static struct key key_of (const struct op_gemm *g)
{
  struct key k;
  memset (&k, 0, sizeof k);
  k.m = g->m, k.n = g->n, k.k = g->k;
  k.lda = g->lda ? g->lda : g->ta ? g->m : g->k;
  k.ldb = g->ldb ? g->ldb : g->tb ? g->k : g->n;
  k.ldc = g->ldc ? g->ldc : g->n;
  k.ab = g->ab, k.ct = g->ct, k.ta = g->ta, k.tb = g->tb;
  k.beta = g->beta != 0, k.bias = g->bias != NULL;
  return k;
}

static void set_bias (struct plan *p, const void *bias)
{
  LT (cublasLtMatmulDescSetAttribute (p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
}

static struct plan *find (const struct key *k)
{
  struct plan *p = table[bucket (k)];
  while (p && memcmp (&p->key, k, sizeof *k)) p = p->next;
  return p;
}

/* A product that is added takes what was measured of the one that is not. */
static void shape_of (const struct key *k, char out[ALGO_SHAPE])
{
  snprintf (out, ALGO_SHAPE, "gemm %lldx%lldx%lld %lld,%lld,%lld %c%c %d>%d%s", (long long) k->m, (long long) k->n, (long long) k->k, (long long) k->lda, (long long) k->ldb,
            (long long) k->ldc, k->ta ? 'T' : 'N', k->tb ? 'T' : 'N', k->ab, k->ct, k->bias ? " bias" : "");
}

/* The fastest of the algorithms on the real operands. */
static int fastest (struct cuda *x, struct queue *q, const struct plan *p, const struct op_gemm *g, const cublasLtMatmulHeuristicResult_t *r, int n)
{
  float one = 1, zero = 0, least = 1e30f;
  int best = 0;
  cudaEvent_t e[2];
  for (int i = 0; i < 2; i++) CU (cudaEventCreate (&e[i]));
  for (int i = 0; i < n; i++) {
    float ms = 1e30f;
    bool ok = true;
    for (int t = 0; t < 4 && ok; t++) {
      if (t == 1) CU (cudaEventRecord (e[0], q->s));
      ok = cublasLtMatmul (x->lt, p->desc, &one, g->b, p->a, g->a, p->b, &zero, g->c, p->c, g->c, p->c, &r[i].algo, q->work, (size_t) q->work_bytes, q->s) == CUBLAS_STATUS_SUCCESS;
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
static void choose (struct cuda *x, struct queue *q, struct plan *p, const struct op_gemm *g)
{
  cublasLtMatmulPreference_t pref;
  cublasLtMatmulHeuristicResult_t r[TRIES], one;
  cublasLtMatmulAlgo_t known;
  enum cudaStreamCaptureStatus capture;
  char shape[ALGO_SHAPE];
  int found = 0;
  size_t bytes = (size_t) q->work_bytes;
  shape_of (&p->key, shape);
  bool have = algo_known (shape, &known) && cublasLtMatmulAlgoCheck (x->lt, p->desc, p->a, p->b, p->c, p->c, &known, &one) == CUBLAS_STATUS_SUCCESS && one.workspaceSize <= bytes;
  if (have && algo_in_use ()) {
    p->algo = known;
    return;
  }
  LT (cublasLtMatmulPreferenceCreate (&pref));
  LT (cublasLtMatmulPreferenceSetAttribute (pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  LT (cublasLtMatmulAlgoGetHeuristic (x->lt, p->desc, p->a, p->b, p->c, p->c, pref, TRIES, r, &found));
  cublasLtMatmulPreferenceDestroy (pref);
  MUST (found > 0, "cuBLASLt offers no algorithm for %lld x %lld x %lld", (long long) g->m, (long long) g->n, (long long) g->k);
  CU (cudaStreamIsCapturing (q->s, &capture));
  p->algo = r[0].algo;
  if (have || g->beta != 0 || found == 1 || capture != cudaStreamCaptureStatusNone || g->m * g->n * g->k <= 1 << 24) return;
  int best = fastest (x, q, p, g, r, found);
  algo_keep (shape, &r[best].algo);
  if (algo_in_use ()) p->algo = r[best].algo;
}

static struct plan *make_plan (struct dev *d, struct queue *q, const struct key *k, const struct op_gemm *g)
{
  struct plan *p = H->xalloc (sizeof *p, "gemm plan");
  cublasOperation_t ta = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;   /* changed places */
  p->key = *k;
  LT (cublasLtMatmulDescCreate (&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  LT (cublasLtMatmulDescSetAttribute (p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
  LT (cublasLtMatmulDescSetAttribute (p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
  if (k->bias) {
    cublasLtEpilogue_t ep = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t bt = type_of[k->ab];
    LT (cublasLtMatmulDescSetAttribute (p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &ep, sizeof ep));
    LT (cublasLtMatmulDescSetAttribute (p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bt, sizeof bt));
    set_bias (p, g->bias);
  }
  LT (cublasLtMatrixLayoutCreate (&p->a, type_of[k->ab], k->tb ? k->k : k->n, k->tb ? k->n : k->k, k->ldb));
  LT (cublasLtMatrixLayoutCreate (&p->b, type_of[k->ab], k->ta ? k->m : k->k, k->ta ? k->k : k->m, k->lda));
  LT (cublasLtMatrixLayoutCreate (&p->c, type_of[k->ct], k->n, k->m, k->ldc));
  choose (d->impl, q, p, g);
  unsigned b = bucket (k);
  p->next = table[b];
  return table[b] = p;
}

void cuda_gemm (struct dev *d, struct queue *q, const struct op *o)
{
  const struct op_gemm *g = &o->gemm;
  struct key k = key_of (g);
  struct plan *p = find (&k);
  if (!p) p = make_plan (d, q, &k, g);
  if (g->bias) set_bias (p, g->bias);
  float one = 1, beta = g->beta;
  LT (cublasLtMatmul (((struct cuda *) d->impl)->lt, p->desc, &one, g->b, p->a, g->a, p->b, &beta, g->c, p->c, g->c, p->c, &p->algo, q->work, (size_t) q->work_bytes, q->s));
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
