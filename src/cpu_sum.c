/* Sums over ranks: pieces of all ranks lie in memory, one block of all of them at a time is added up in the first cache, in rank order. */
#include "config.h"
#include "cpu_queue.h"
#include <string.h>

enum { BLOCK = 1024, PARALLEL_FROM = 1 << 16 };

enum fold { FOLD_SET, FOLD_ADD, FOLD_MAX, FOLD_N };
enum source { FROM_F32, FROM_BF16, FROM_F32_ROUNDED, FROM_F64, FROM_N };

typedef void fold_fn (void *acc, const void *src, int64_t n);

static inline float load_f32 (float x) { return x; }
static inline double load_f64 (double x) { return x; }
static inline float load_bf16 (bf16 x) { return bf16_to_f32 (x); }
static inline float load_rounded (float x) { return bf16_to_f32 (f32_to_bf16 (x)); }

#define FOLDS(NAME, SRC, ACC) \
  static void set_##NAME (void *acc, const void *src, int64_t n) \
  { \
    ACC *restrict a = acc; const SRC *restrict s = src; \
    for (int64_t i = 0; i < n; i++) a[i] = load_##NAME (s[i]); \
  } \
  static void add_##NAME (void *acc, const void *src, int64_t n) \
  { \
    ACC *restrict a = acc; const SRC *restrict s = src; \
    for (int64_t i = 0; i < n; i++) a[i] += load_##NAME (s[i]); \
  } \
  static void max_##NAME (void *acc, const void *src, int64_t n) \
  { \
    ACC *restrict a = acc; const SRC *restrict s = src; \
    for (int64_t i = 0; i < n; i++) { \
      ACC x = load_##NAME (s[i]); \
      a[i] = x > a[i] || x != x ? x : a[i]; \
    } \
  }
FOLDS (f32, float, float)
FOLDS (bf16, bf16, float)
FOLDS (rounded, float, float)
FOLDS (f64, double, double)

static fold_fn *const fold_table[FROM_N][FOLD_N] = {
  [FROM_F32] = { set_f32, add_f32, max_f32 },
  [FROM_BF16] = { set_bf16, add_bf16, max_bf16 },
  [FROM_F32_ROUNDED] = { set_rounded, add_rounded, max_rounded },
  [FROM_F64] = { set_f64, add_f64, max_f64 },
};

static enum source source_of (enum dtype have, enum dtype wire)
{
  static const int8_t from[DT_N] = { [DT_F32] = FROM_F32, [DT_BF16] = FROM_BF16, [DT_F64] = FROM_F64 };
  return have == DT_F32 && wire == DT_BF16 ? FROM_F32_ROUNDED : (enum source) from[have];
}

/* out[i] = acc[i] (+ beta out[i]), rounded once. */
#define STORE(NAME, OUT, ACC, LOAD, ROUND) \
  static void NAME (void *out, const void *acc, float beta, int64_t n) \
  { \
    OUT *restrict o = out; const ACC *restrict a = acc; \
    if (beta == 0) for (int64_t i = 0; i < n; i++) o[i] = ROUND (a[i]); \
    else for (int64_t i = 0; i < n; i++) o[i] = ROUND (beta * LOAD (o[i]) + a[i]); \
  }
STORE (store_f32, float, float, load_f32, )
STORE (store_bf16, bf16, float, load_bf16, f32_to_bf16)
STORE (store_f64, double, double, load_f64, )

typedef void store_fn (void *out, const void *acc, float beta, int64_t n);
static store_fn *const store_table[DT_N] = { [DT_F32] = store_f32, [DT_BF16] = store_bf16, [DT_F64] = store_f64 };

static void sum_block (const struct sum *s, int64_t at, int64_t n)
{
  union { float f[BLOCK]; double d[BLOCK]; } acc;
  for (int r = 0; r < s->n; r++) {
    enum dtype have = r == s->me ? s->own : s->t;
    enum fold f = r == 0 ? FOLD_SET : s->max ? FOLD_MAX : FOLD_ADD;
    fold_table[source_of (have, s->t)][f] (&acc, (const char *) s->src[r] + at * dtype_size (have), n);
  }
  store_table[s->ot] ((char *) s->out + at * dtype_size (s->ot), &acc, s->beta, n);
}

void cpu_sum (const struct sum *s, int64_t count)
{
  #pragma omp parallel for num_threads (cpu_threads) if (count >= PARALLEL_FROM)
  for (int64_t at = 0; at < count; at += BLOCK) sum_block (s, at, MIN (BLOCK, count - at));
}

void cpu_cast (void *dst, enum dtype dt, const void *src, enum dtype st, int64_t count)
{
  if (dt == st) memcpy (dst, src, (size_t) (count * dtype_size (dt)));
  else cpu_sum (&(struct sum) { .src = &src, .n = 1, .me = 0, .t = st, .own = st, .ot = dt, .out = dst }, count);
}
