/* Products of 8-bit operands through cuBLASLt, in the only form that it has on Hopper, which is that of struct op_gemm_fp8: k fastest in both. Row-major A B^T is column-major
   B A^T, so A and B change places and the first is the transposed one. Partial sums are promoted to fp32 (no fast accumulation, which measures no faster). Plans are made once for
   each shape and kept. */
#include "cuda.h"
#include <string.h>

struct key { int64_t m, n, k; int32_t at, bt, ct, bias; };
struct plan {
  struct key key;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algo;
  struct plan *next;
};

enum { TRIES = 8 };
static struct plan *plans;

static cudaDataType_t type_of (int32_t t) { return t == DT_E4M3 ? CUDA_R_8F_E4M3 : t == DT_E5M2 ? CUDA_R_8F_E5M2 : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

static void set (struct plan *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t size)
{
  LT (cublasLtMatmulDescSetAttribute (p->desc, what, value, size));
}

static void set_pointers (struct plan *p, const struct op_gemm_fp8 *g)
{
  set (p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_unit, sizeof g->b_unit);
  set (p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a_unit, sizeof g->a_unit);
  if (g->bias) set (p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
}

static cublasStatus_t multiply (struct dev *d, struct queue *q, struct plan *p, const struct op_gemm_fp8 *g, const cublasLtMatmulAlgo_t *algo)
{
  float one = 1, beta = g->beta;
  return cublasLtMatmul (((struct cuda *) d->impl)->lt, p->desc, &one, g->b, p->a, g->a, p->b, &beta, g->c, p->c, g->c, p->c, algo, q->work, (size_t) q->work_bytes, q->s);
}

/* Milliseconds of three calls after one. */
static float time_of (struct dev *d, struct queue *q, struct plan *p, const struct op_gemm_fp8 *g, const cublasLtMatmulAlgo_t *algo, cudaEvent_t e[2])
{
  float ms = 1e30f;
  bool ok = true;
  for (int t = 0; t < 4 && ok; t++) {
    if (t == 1) CU (cudaEventRecord (e[0], q->s));
    ok = multiply (d, q, p, g, algo) == CUBLAS_STATUS_SUCCESS;
  }
  CU (cudaEventRecord (e[1], q->s));
  CU (cudaEventSynchronize (e[1]));
  if (ok) CU (cudaEventElapsedTime (&ms, e[0], e[1]));
  return ms;
}

/* Of the algorithms offered the fastest on the real operands, where a call changes nothing that will be read (beta 0) and none is being recorded; else the first. */
static void choose (struct dev *d, struct queue *q, struct plan *p, const struct op_gemm_fp8 *g)
{
  cublasLtMatmulPreference_t pref;
  cublasLtMatmulHeuristicResult_t r[TRIES];
  int found = 0, best = 0;
  size_t bytes = (size_t) q->work_bytes;
  enum cudaStreamCaptureStatus capture;
  cudaEvent_t e[2];
  LT (cublasLtMatmulPreferenceCreate (&pref));
  LT (cublasLtMatmulPreferenceSetAttribute (pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  cublasLtMatmulAlgoGetHeuristic (((struct cuda *) d->impl)->lt, p->desc, p->a, p->b, p->c, p->c, pref, TRIES, r, &found);
  cublasLtMatmulPreferenceDestroy (pref);
  MUST (found > 0, "cuBLASLt offers no product of %lld x %lld x %lld in 8 bits on this GPU", (long long) g->m, (long long) g->n, (long long) g->k);
  p->algo = r[0].algo;
  CU (cudaStreamIsCapturing (q->s, &capture));
  if (g->beta != 0 || found == 1 || capture != cudaStreamCaptureStatusNone) return;
  CU (cudaEventCreate (&e[0]));
  CU (cudaEventCreate (&e[1]));
  float least = 1e30f;
  for (int i = 0; i < found; i++) {
    float ms = time_of (d, q, p, g, &r[i].algo, e);
    if (ms < least * 0.99f) least = ms, best = i;
  }
  cudaEventDestroy (e[0]);
  cudaEventDestroy (e[1]);
  p->algo = r[best].algo;
}

static struct plan *make_plan (struct dev *d, struct queue *q, const struct key *k, const struct op_gemm_fp8 *g)
{
  struct plan *p = H->xalloc (sizeof *p, "gemm plan");
  cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
  p->key = *k;
  LT (cublasLtMatmulDescCreate (&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set (p, CUBLASLT_MATMUL_DESC_TRANSA, &yes, sizeof yes);
  set (p, CUBLASLT_MATMUL_DESC_TRANSB, &no, sizeof no);
  if (k->bias) {
    cublasLtEpilogue_t ep = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t bt = CUDA_R_16BF;
    set (p, CUBLASLT_MATMUL_DESC_EPILOGUE, &ep, sizeof ep);
    set (p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bt, sizeof bt);
  }
  set_pointers (p, g);
  LT (cublasLtMatrixLayoutCreate (&p->a, type_of (k->bt), (uint64_t) k->k, (uint64_t) k->n, k->k));
  LT (cublasLtMatrixLayoutCreate (&p->b, type_of (k->at), (uint64_t) k->k, (uint64_t) k->m, k->k));
  LT (cublasLtMatrixLayoutCreate (&p->c, type_of (k->ct), (uint64_t) k->n, (uint64_t) k->m, k->n));
  choose (d, q, p, g);
  p->next = plans;
  return plans = p;
}

void cuda_gemm_fp8 (struct dev *d, struct queue *q, const struct op *o)
{
  const struct op_gemm_fp8 *g = &o->gemm_fp8;
  struct key k;
  memset (&k, 0, sizeof k);
  k.m = g->m, k.n = g->n, k.k = g->k, k.at = g->at, k.bt = g->bt, k.ct = g->ct, k.bias = g->bias != NULL;
  struct plan *p = plans;   /* a model has a dozen shapes */
  while (p && memcmp (&p->key, &k, sizeof k)) p = p->next;
  if (!p) p = make_plan (d, q, &k, g);
  set_pointers (p, g);
  LT (multiply (d, q, p, g, &p->algo));
}

void gemm_fp8_close (void)
{
  for (struct plan *p = plans, *next; p; p = next) {
    next = p->next;
    cublasLtMatmulDescDestroy (p->desc);
    cublasLtMatrixLayoutDestroy (p->a);
    cublasLtMatrixLayoutDestroy (p->b);
    cublasLtMatrixLayoutDestroy (p->c);
    H->xfree (p);
  }
  plans = NULL;
}
