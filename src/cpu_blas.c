#include "config.h"
#include "cpu_gemm.h"
#include <omp.h>
#ifdef HAVE_DNNL
#include <dnnl.h>

bool blas_bf16_fast (void) { return dnnl_get_effective_cpu_isa () >= dnnl_cpu_isa_avx512_core_amx; }

/* oneDNN makes a primitive for each shape; making one costs milliseconds, so they are kept. */
struct shape { int64_t m, n, k, lda, ldb, ldc; int32_t ab, ct, ta, tb, beta, bias; };
struct entry { struct shape s; dnnl_primitive_t prim; dnnl_memory_t mem[4]; };

#define ENTRIES 4096
static struct entry table[ENTRIES];
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static int threads_set;

#define ok(call) do { dnnl_status_t s_ = (call); \
  must (s_ == dnnl_success, "oneDNN: %s failed with status %d", #call, (int) s_); } while (0)

static void start (void)
{
  if (!engine) {
    ok (dnnl_engine_create (&engine, dnnl_cpu, 0));
    ok (dnnl_stream_create (&stream, engine, dnnl_stream_default_flags));
  }
  if (threads_set != cpu_threads) omp_set_num_threads (threads_set = cpu_threads);
}

static dnnl_memory_desc_t matrix (int64_t rows, int64_t cols, int64_t ld, bool transposed, enum dtype t)
{
  dnnl_memory_desc_t d;
  dnnl_dims_t dim = { rows, cols }, stride = { transposed ? 1 : ld, transposed ? ld : 1 };
  ok (dnnl_memory_desc_init_by_strides (&d, 2, dim, t == DT_F32 ? dnnl_f32 : dnnl_bf16, stride));
  return d;
}

static void make (struct entry *e, const struct shape *s)
{
  enum dtype ab = (enum dtype) s->ab, ct = (enum dtype) s->ct;
  dnnl_memory_desc_t d[4] = { matrix (s->m, s->k, s->lda, s->ta, ab), matrix (s->k, s->n, s->ldb, s->tb, ab),
    matrix (s->m, s->n, s->ldc, false, ct), matrix (1, s->n, s->n, false, ab) };
  dnnl_primitive_attr_t attr;
  dnnl_post_ops_t post;
  dnnl_matmul_desc_t desc;
  dnnl_primitive_desc_t pd;
  ok (dnnl_primitive_attr_create (&attr));
  ok (dnnl_post_ops_create (&post));
  if (s->beta) ok (dnnl_post_ops_append_sum (post, 1.f));
  ok (dnnl_primitive_attr_set_post_ops (attr, post));
  ok (dnnl_matmul_desc_init (&desc, &d[0], &d[1], s->bias ? &d[3] : NULL, &d[2]));
  ok (dnnl_primitive_desc_create (&pd, &desc, attr, engine, NULL));
  ok (dnnl_primitive_create (&e->prim, pd));
  for (int i = 0; i < 4; i++) ok (dnnl_memory_create (&e->mem[i], &d[i], engine, DNNL_MEMORY_NONE));
  ok (dnnl_primitive_desc_destroy (pd));
  ok (dnnl_post_ops_destroy (post));
  ok (dnnl_primitive_attr_destroy (attr));
  e->s = *s;
}

static struct entry *find (const struct shape *s)
{
  uint64_t h = hash_bytes (s, sizeof *s, 0) % ENTRIES;
  for (int i = 0; i < ENTRIES; i++, h = (h + 1) % ENTRIES) {
    if (!table[h].prim) make (&table[h], s);
    if (!memcmp (&table[h].s, s, sizeof *s)) return &table[h];
  }
  die ("more than %d shapes of matrix products", ENTRIES);
}

void blas_gemm (const struct op_gemm *g)
{
  static const int arg[4] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS };
  struct shape s = { g->m, g->n, g->k, g->lda, g->ldb, g->ldc, g->ab, g->ct, g->ta, g->tb, g->beta != 0, g->bias != NULL };
  void *at[4] = { (void *) g->a, (void *) g->b, g->c, (void *) g->bias };
  dnnl_exec_arg_t args[4];
  start ();
  struct entry *e = find (&s);
  for (int i = 0; i < 4; i++) {
    args[i] = (dnnl_exec_arg_t) { arg[i], e->mem[i] };
    ok (dnnl_memory_set_data_handle (e->mem[i], at[i]));
  }
  ok (dnnl_primitive_execute (e->prim, stream, g->bias ? 4 : 3, args));
  ok (dnnl_stream_wait (stream));
}
#endif

#ifdef HAVE_CBLAS
#ifdef HAVE_CBLAS_H
#include <cblas.h>
#else
#include <openblas/cblas.h>
#endif
#include <stdlib.h>
#include "cpu_vec.h"

bool blas_bf16_fast (void) { return false; }

/* Any CBLAS: F32 only, so BF16 operands are widened first and a BF16 result is rounded at the end. */
/* Each library has its own name for how many threads it takes; those that are not there are NULL. */
extern void openblas_set_num_threads (int) __attribute__ ((weak));
extern void bli_thread_set_num_threads (long) __attribute__ ((weak));
extern void MKL_Set_Num_Threads (int) __attribute__ ((weak));

static void set_threads (void)
{
  static int set;
  if (set == cpu_threads) return;
  set = cpu_threads;
  if (openblas_set_num_threads) openblas_set_num_threads (set);
  if (bli_thread_set_num_threads) bli_thread_set_num_threads (set);
  if (MKL_Set_Num_Threads) MKL_Set_Num_Threads (set);
}

enum { WIDE_A, WIDE_B, WIDE_C, WIDE_N };
static struct { float *p; int64_t n; } wide[WIDE_N];

static float *room (int which, int64_t n)
{
  if (wide[which].n < n) {
    free (wide[which].p);
    wide[which].p = malloc ((size_t) n * sizeof (float));
    must (wide[which].p, "out of host memory: %lld floats for a matrix product", (long long) n);
    wide[which].n = n;
  }
  return wide[which].p;
}

static const float *widen (int which, const void *p, int64_t rows, int64_t cols, int64_t *ld, enum dtype t)
{
  if (t == DT_F32) return p;
  float *w = room (which, rows * cols);
  #pragma omp parallel for num_threads (cpu_threads)
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c += VL) v_stn (w + r * cols, c, cols, DT_F32, v_ldn (at_elem (p, r * *ld, t), c, cols, t, 0));
  *ld = cols;
  return w;
}

/* C's start: zero, C itself, the bias, or both. Returns where sgemm adds to. */
static float *start_c (const struct op_gemm *g, int64_t *ld)
{
  float *c = g->ct == DT_F32 ? g->c : room (WIDE_C, g->m * g->n);
  if (g->ct != DT_F32) *ld = g->n;
  #pragma omp parallel for num_threads (cpu_threads)
  for (int64_t r = 0; r < g->m; r++)
    for (int64_t i = 0; i < g->n; i++)
      c[r * *ld + i] = (g->beta != 0 ? s_ld (g->c, r * g->ldc + i, g->ct) : 0) + (g->bias ? s_ld (g->bias, i, g->ab) : 0);
  return c;
}

void blas_gemm (const struct op_gemm *g)
{
  int64_t lda = g->lda, ldb = g->ldb, ldc = g->ldc;
  const float *a = widen (WIDE_A, g->a, g->ta ? g->k : g->m, g->ta ? g->m : g->k, &lda, g->ab);
  const float *b = widen (WIDE_B, g->b, g->tb ? g->n : g->k, g->tb ? g->k : g->n, &ldb, g->ab);
  float *c = start_c (g, &ldc);
  set_threads ();
  cblas_sgemm (CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans, g->tb ? CblasTrans : CblasNoTrans, (int) g->m, (int) g->n,
    (int) g->k, 1.f, a, (int) lda, b, (int) ldb, 1.f, c, (int) ldc);
  if (g->ct == DT_F32) return;
  #pragma omp parallel for num_threads (cpu_threads)
  for (int64_t r = 0; r < g->m; r++)
    for (int64_t i = 0; i < g->n; i++) s_st (g->c, r * g->ldc + i, g->ct, c[r * ldc + i]);
}
#endif
