#include "config.h"
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "cpu_gemm.h"
#include "cpu_pairs.h"

/* C goes in blocks of BM x BN; for each, k goes in steps of about BK words: F32, or pairs of BF16 where the processor multiplies
   pairs, else BF16 widened. In a step A's block is copied as it lies (or read in place), B's into panels of TILE_N columns (and kept
   for all rows of C unless k is above KEPT words). Parts of C that are not F32 gather in F32. k is cut by its own length alone, so that an element's bits
   depend on nothing but k. */
enum { BM = 384, BN = 960, BK = 256, PART_M = TILE_PANEL, KEPT = 4224 };

struct gemm_block {
  const struct op_gemm *g;
  enum dtype bt, bias_t;            /* types of B and of the bias */
  float alpha;                      /* of A's elements */
  int64_t per;                      /* elements in a word */
  int64_t i, j, m, n, p, k;         /* of C and, in words, of k now */
  int64_t lda, b_items;             /* of the copy of A; pieces of B to pack */
  float *a, *b, *c;                 /* copies; c: where the block gathers, ldc apart */
  int64_t ldc;
  bool add;
  bool alone;                       /* this thread does the block by itself */
  struct room *room;
  int64_t i0;                       /* first row of this thread's share: B is packed there */
};

/* Each thread's own, so that threads which share a product meet only at its end. */
static struct room { float *a, *b, *c; } rooms[CPU_THREADS_MAX];

static float *map (int64_t floats)
{
  float *p = aligned_alloc (2 << 20, (size_t) round_up (floats * (int64_t) sizeof (float), 2 << 20));
  must (p, "out of host memory: %lld floats for the blocks of a matrix product", (long long) floats);
  madvise (p, (size_t) floats * sizeof (float), MADV_HUGEPAGE);
  return p;
}

static struct room *start (int thread)
{
  struct room *r = &rooms[thread];
  if (r->a) return r;
  r->a = map ((BM + TILE_M) * (BK + VL));
  r->b = map (BN * (KEPT + BK));
  r->c = map ((BM + TILE_M) * (BN + TILE_N));
  return r;
}

static void each (const struct gemm_block *x, int64_t n, double ns, cpu_body *body)
{
  if (x->alone) body (x, 0, n);
  else cpu_for (n, ns, body, x);
}

/* Elements of k left from word p + r on, at most those of MOST words. */
static int64_t left (const struct gemm_block *x, int64_t r, int64_t most)
{
  return MIN (MIN (most, x->k - r) * x->per, x->g->k - (x->p + r) * x->per);
}

/* Rows along k from word r of the step on into panels. */
static void split (const struct gemm_block *x, float *to, const void *rows, int64_t ld, int64_t r, int64_t cols, enum dtype t)
{
  int64_t panel = TILE_PANEL * round_up (x->k, VL);
  if (x->per == 2) pairs_split (to + r * TILE_PANEL, panel, rows, ld, left (x, r, VL), cols);
  else tile_split (to + r * TILE_PANEL, panel, rows, ld, left (x, r, VL), cols, t);
}

/* What is packed by rows of k comes from memory in long runs; what is turned or lies along k comes by panels. */
static void pack_b (const struct gemm_block *x, int64_t item)
{
  const struct op_gemm *g = x->g;
  int64_t kpad = round_up (x->k, VL), c = item * TILE_N, r = item * VL, n = MIN ((int64_t) TILE_N, x->n - c);
  const void *rows = at_elem (g->b, (x->p + r) * x->per * g->ldb + x->j, x->bt);
  const void *panel = at_elem (g->b, (x->j + c) * g->ldb + x->p * x->per, x->bt);
  if (!g->tb) split (x, x->b, rows, g->ldb, r, x->n, x->bt);
  else if (x->per == 2) pairs_load_t (x->b + c * kpad, TILE_N, panel, g->ldb, n, left (x, 0, x->k), TILE_N, kpad);
  else tile_load_t (x->b + c * kpad, TILE_N, panel, g->ldb, n, x->k, TILE_N, kpad, x->bt, 1);
}

/* Are M rows of A words where they lie? Rows whose distance is a multiple of 4 KiB fall on each other in the caches: a copy is faster. */
static bool in_place (const struct gemm_block *x, int64_t m)
{
  const struct op_gemm *g = x->g;
  if (g->ta || x->alpha != 1 || m % TILE_M != 0 || g->lda * dtype_size (g->ab) % 4096 == 0) return false;
  return x->per == 1 ? g->ab == DT_F32 : g->k % 2 == 0 && g->lda % 2 == 0 && (uintptr_t) g->a % sizeof (float) == 0;
}

static void pack_a (const struct gemm_block *x, int64_t item)
{
  const struct op_gemm *g = x->g;
  int64_t kpad = round_up (x->k, VL), i = item * PART_M, r = item * VL, m = MIN ((int64_t) PART_M, x->m - i);
  if (in_place (x, m)) return;
  const void *rows = at_elem (g->a, (x->p + r) * x->per * g->lda + x->i, g->ab);
  const void *part = at_elem (g->a, (x->i + i) * g->lda + x->p * x->per, g->ab);
  if (g->ta) split (x, x->a, rows, g->lda, r, x->m, g->ab);
  else if (x->per == 2) pairs_load (x->a + i * x->lda, x->lda, part, g->lda, m, left (x, 0, x->k), round_up (m, TILE_M), kpad);
  else tile_load (x->a + i * x->lda, x->lda, part, g->lda, m, x->k, round_up (m, TILE_M), kpad, g->ab, x->alpha);
}

static void pack (const void *arg, int64_t lo, int64_t hi)
{
  const struct gemm_block *x = arg;
  for (int64_t t = lo; t < hi; t++)
    if (t < x->b_items) pack_b (x, t);
    else pack_a (x, t - x->b_items);
}

/* Tile t: a part of rows and a panel. Tiles at the edge of an F32 C go through a buffer. */
static void multiply_part (const struct gemm_block *x, int64_t part, int64_t panel)
{
  int64_t r = part * PART_M, c = panel * TILE_N, m = MIN ((int64_t) PART_M, x->m - r), n = MIN ((int64_t) TILE_N, x->n - c);
  int64_t mp = round_up (m, TILE_M), np = round_up (n, VL), kpad = round_up (x->k, VL);
  const struct op_gemm *g = x->g;
  bool edge = x->c != x->room->c && (m != mp || n != np);
  float buffer[PART_M * TILE_N] __attribute__ ((aligned (64))), *out = x->c + r * x->ldc + c;
  const float *a = x->a + r * (g->ta ? kpad : x->lda), *b = x->b + c * kpad;
  int64_t rs = g->ta ? 1 : x->lda;
  if (in_place (x, m)) a = at_elem (g->a, (x->i + r) * g->lda + x->p * x->per, g->ab), rs = g->lda / x->per;
  if (edge) out = buffer;
  (x->per == 2 ? pairs_gemm : tile_gemm) (mp, np, x->k, a, rs, g->ta ? PART_M : 1, b, TILE_N, out,
    edge ? TILE_N : x->ldc, x->add && !edge);
  if (edge) tile_store (x->c + r * x->ldc + c, x->ldc, buffer, TILE_N, m, n, DT_F32, x->add);
}

static void multiply (const void *arg, int64_t lo, int64_t hi)
{
  const struct gemm_block *x = arg;
  int64_t parts = ceil_div (x->m, PART_M);
  for (int64_t t = lo; t < hi; t++) multiply_part (x, t % parts, t / parts);
}

/* The end of a block: what gathered, C's old value, the bias. */
INLINE void finish_row (const struct gemm_block *x, int64_t r, enum dtype ct, enum dtype bias_t)
{
  const struct op_gemm *g = x->g;
  void *c = at_elem (g->c, (x->i + r) * g->ldc + x->j, ct);
  const void *bias = g->bias ? at_elem (g->bias, x->j, bias_t) : NULL;
  for (int64_t j = 0; j < x->n; j += VL) {
    vf s = v_ldn (x->c + r * x->ldc, j, x->n, DT_F32, 0);
    if (g->beta != 0 && x->c == x->room->c) s += v_ldn (c, j, x->n, ct, 0);
    if (bias) s += v_ldn (bias, j, x->n, bias_t, 0);
    v_stn (c, j, x->n, ct, s);
  }
}

static void finish (const void *arg, int64_t lo, int64_t hi)
{
  const struct gemm_block *x = arg;
  for (int64_t r = lo; r < hi; r++) WITH_TYPE (x->g->ct, C, WITH_TYPE (x->bias_t, B, finish_row (x, r, C, B)));
}

static void block (struct gemm_block *x)
{
  const struct op_gemm *g = x->g;
  int64_t parts = ceil_div (x->m, PART_M), panels = ceil_div (x->n, TILE_N);
  int64_t k = ceil_div (g->k, x->per), steps = MAX (1, ceil_div (k, BK)), step = MAX (VL, round_up (ceil_div (k, steps), VL));
  bool direct = g->ct == DT_F32;
  x->c = direct ? at_elem (g->c, x->i * g->ldc + x->j, DT_F32) : x->room->c;
  x->ldc = direct ? g->ldc : BN + TILE_N;
  for (x->p = 0; x->p < MAX (k, 1); x->p += step) {
    x->k = MIN (step, k - x->p);
    x->add = x->p > 0 || (direct && g->beta != 0);
    x->b = x->room->b + (k <= KEPT ? BN * x->p : 0);
    x->b_items = k <= KEPT && x->i > x->i0 ? 0 : g->tb ? panels : ceil_div (x->k, VL);
    each (x, x->b_items + (g->ta ? ceil_div (x->k, VL) : parts), (double) (x->k * TILE_N) * 0.4, pack);
    each (x, parts * panels, (double) (x->k * PART_M * TILE_N) * 0.012, multiply);
  }
  if (!direct || g->bias) each (x, x->m, (double) x->n * 0.5, finish);
}

/* Rows [i0, i1) and columns [j0, j1) of C. The main thread polls between blocks, which are shorter than a slice. */
static void share_of (const struct gemm_block *whole, int thread, bool alone, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
  struct gemm_block x = *whole;
  x.lda = BK + VL;
  x.alone = alone;
  x.room = start (thread);
  x.i0 = i0;
  x.a = x.room->a;
  for (x.j = j0; x.j < j1; x.j += BN)
    for (x.i = i0; x.i < i1; x.i += BM) {
      x.m = MIN ((int64_t) BM, i1 - x.i);
      x.n = MIN ((int64_t) BN, j1 - x.j);
      block (&x);
      if (alone && thread == 0) cpu_poll ();
    }
}

/* Large products are cut in equal shares, one a thread, along the longer side: no thread waits for another within. */
static void products (const struct gemm_block *whole)
{
  const struct op_gemm *g = whole->g;
  int n = cpu_threads;
  bool cols = g->n >= g->m;
  int64_t side = cols ? g->n : g->m, unit = cols ? TILE_N : PART_M, items = ceil_div (side, unit);
  cpu_claim ();
  if (n == 1 || items < 8 * n) share_of (whole, 0, false, 0, g->m, 0, g->n);
  else {
    #pragma omp parallel num_threads (n)
    {
      int t = omp_get_thread_num ();
      int64_t lo = items * t / n * unit, hi = MIN (items * (t + 1) / n * unit, side);
      if (cols) share_of (whole, t, true, 0, g->m, lo, hi);
      else share_of (whole, t, true, lo, hi, 0, g->n);
    }
  }
  cpu_yield ();
}

void gemm_own (const struct op_gemm *g, enum dtype bt, enum dtype bias_t, float alpha)
{
  products (&(struct gemm_block) { .g = g, .bt = bt, .bias_t = bias_t, .alpha = alpha, .per = 1 });
}

void gemm_pairs (const struct op_gemm *g)
{
  products (&(struct gemm_block) { .g = g, .bt = g->ab, .bias_t = g->ab, .alpha = 1, .per = 2 });
}
