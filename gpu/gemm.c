/* GEMMs through cuBLASLt. Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)', so A and B change places. Plans are made once for each shape and kept. */
#include "cuda.h"
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

/* Several algorithms are offered: time each on the real operands where nothing is lost by it (beta 0). A product that is added takes what was measured of the one that is not,
   else the first. */
static void choose (struct cuda *x, struct queue *q, struct plan *p, const struct op_gemm *g)
{
  cublasLtMatmulPreference_t pref;
  cublasLtMatmulHeuristicResult_t r[TRIES];
  int found = 0, best = 0;
  float one = 1, zero = 0, best_ms = 1e30f;
  size_t bytes = (size_t) q->work_bytes;
  LT (cublasLtMatmulPreferenceCreate (&pref));
  LT (cublasLtMatmulPreferenceSetAttribute (pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  LT (cublasLtMatmulAlgoGetHeuristic (x->lt, p->desc, p->a, p->b, p->c, p->c, pref, TRIES, r, &found));
  cublasLtMatmulPreferenceDestroy (pref);
  MUST (found > 0, "cuBLASLt offers no algorithm for %lld x %lld x %lld", (long long) g->m, (long long) g->n, (long long) g->k);
  struct key other = p->key;
  other.beta = 0;
  const struct plan *measured = g->beta != 0 ? find (&other) : NULL;
  if (measured) {
    p->algo = measured->algo;
    return;
  }
  enum cudaStreamCaptureStatus capture;
  CU (cudaStreamIsCapturing (q->s, &capture));
  if (g->beta == 0 && found > 1 && capture == cudaStreamCaptureStatusNone && g->m * g->n * g->k > (1 << 24)) {
    cudaEvent_t e[2];
    CU (cudaEventCreate (&e[0]));
    CU (cudaEventCreate (&e[1]));
    for (int i = 0; i < found; i++) {
      float ms = 1e30f;
      bool ok = true;
      for (int t = 0; t < 4 && ok; t++) {
        if (t == 1) CU (cudaEventRecord (e[0], q->s));
        ok = cublasLtMatmul (x->lt, p->desc, &one, g->b, p->a, g->a, p->b, &zero, g->c, p->c, g->c, p->c, &r[i].algo, q->work, bytes, q->s) == CUBLAS_STATUS_SUCCESS;
      }
      CU (cudaEventRecord (e[1], q->s));
      CU (cudaEventSynchronize (e[1]));
      if (ok) CU (cudaEventElapsedTime (&ms, e[0], e[1]));
      if (ms < best_ms * 0.99f) best_ms = ms, best = i;
    }
    cudaEventDestroy (e[0]);
    cudaEventDestroy (e[1]);
  }
  p->algo = r[best].algo;
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
