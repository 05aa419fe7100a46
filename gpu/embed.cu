/* embed: rows of a table by token, and the sum of gradients by row. */
#include "common.cuh"

#define BLOCK 256

/* ---- forward: thread (pack of the row, token) ---- */
template <int V, class T> __global__ void __launch_bounds__ (BLOCK) embed (const struct op_embed o)
{
  int64_t token = (int64_t) blockIdx.x * blockDim.y + threadIdx.y;
  if (token >= o.n) return;
  int64_t row = (int64_t) o.ids[token] - o.v0;
  bool mine = row >= 0 && row < o.rows;
  const T *src = (const T *) o.table + row * o.dim;
  T *dst = (T *) o.out + token * o.dim;
  for (int64_t c = (int64_t) threadIdx.x * V; c < o.dim; c += blockDim.x * V) {
    pack<T, V> p = {};
    if (mine) p = load<V> (src + c);
    store (dst + c, p);
  }
}

template <int V, class T> static void embed_of (const struct op_embed *o, cudaStream_t s)
{
  int x = (int) min64 (o->dim / V, BLOCK), y = BLOCK / x;
  embed<V, T><<<(unsigned) ceil_div (o->n, y), dim3 (x, y), 0, s>>> (*o);
}

cudaError_t k_embed (const struct op_embed *o, cudaStream_t s)
{
  if (o->n <= 0) return cudaGetLastError ();
  WITH_TYPE (o->t, T,
    const int V = 16 / sizeof (T);
    if (fits (o->table, V, o->t) && fits (o->out, V, o->t) && o->dim % V == 0) embed_of<V, T> (o, s);
    else embed_of<1, T> (o, s));
  return cudaGetLastError ();
}

/* ---- backward ---- */

/* Tokens are sorted by row: counted (integer atomics: the counts depend on no order), summed to starts,
   dropped into their rows as they come, and each then moves to its rank among the tokens of its row. A row of more than RANK
   tokens finds them by one walk over all ids instead. Then each row adds up its tokens in order; one of more than FEW goes on a
   list, whose rows are shared out to the warps of whole blocks. */
#define TILE 1024      /* rows that a block of the scan takes */
#define RANK 128
#define WALK 8         /* consecutive ids that a thread looks at */
#define FEW 32
#define FEW_BLOCK 128  /* most rows have no token and get zeros: blocks of 512 took 455 us for 342 (128256 x 4096, bf16) */
#define WARPS 32
#define MANY_BLOCKS 264

/* start [rows + 1]; cursor [rows], used [1]: length of the list; loose [n], later the list; token [n]. */
struct sorted { int32_t *start, *cursor, *used, *loose, *token; };

DEV int64_t row_of (const struct op_embed_bwd &o, int64_t token)   /* -1: not local */
{
  int64_t row = (int64_t) o.ids[token] - o.v0;
  return row >= 0 && row < o.rows ? row : -1;
}

/* count[row] += 1 for every thread that has a row (not -1), one atomic for those of a warp that share it; the count before this
   thread's. All threads call. */
DEV int32_t add_one (int32_t *count, int64_t row)
{
  unsigned peers = __match_any_sync (FULL, (int) row);
  int lane = threadIdx.x & 31, first = __ffs (peers) - 1;
  int32_t before = 0;
  if (row >= 0 && lane == first) before = atomicAdd (&count[row], __popc (peers));
  return __shfl_sync (FULL, before, first) + __popc (peers & ((1u << lane) - 1));
}

__global__ void __launch_bounds__ (BLOCK) count_rows (const struct op_embed_bwd o, int32_t *count)
{
  int64_t i = (int64_t) blockIdx.x * BLOCK + threadIdx.x;
  add_one (count, i < o.n ? row_of (o, i) : -1);
}

__global__ void __launch_bounds__ (TILE) sum_tiles (const int32_t *count, int64_t n, int32_t *tile)
{
  int64_t i = (int64_t) blockIdx.x * TILE + threadIdx.x;
  int32_t c = block_fold<TILE> (i < n ? count[i] : 0, op_sum ());
  if (!threadIdx.x) tile[blockIdx.x] = c;
}

/* Inclusive sum over the block's threads. */
DEV int32_t block_scan (int32_t x)
{
  __shared__ int32_t last[WARPS];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int d = 1; d < 32; d *= 2) {
    int32_t y = __shfl_up_sync (FULL, x, d);
    if (lane >= d) x += y;
  }
  __syncthreads ();
  if (lane == 31) last[warp] = x;
  __syncthreads ();
  for (int w = 0; w < warp; w++) x += last[w];
  return x;
}

/* count [n] becomes the sum of all before. */
__global__ void __launch_bounds__ (TILE) scan (int32_t *count, int64_t n, const int32_t *tile)
{
  int64_t i = (int64_t) blockIdx.x * TILE + threadIdx.x;
  int32_t before = 0;
  for (int64_t t = threadIdx.x; t < blockIdx.x; t += TILE) before += tile[t];
  before = block_fold<TILE> (before, op_sum ());
  int32_t c = i < n ? count[i] : 0, upto = block_scan (c);
  if (i < n) count[i] = before + upto - c;
}

__global__ void __launch_bounds__ (BLOCK) drop (const struct op_embed_bwd o, struct sorted w)
{
  int64_t i = (int64_t) blockIdx.x * BLOCK + threadIdx.x, row = i < o.n ? row_of (o, i) : -1;
  int32_t at = add_one (w.cursor, row);
  if (row >= 0) w.loose[w.start[row] + at] = (int32_t) i;
}

__global__ void __launch_bounds__ (BLOCK) rank_tokens (const struct op_embed_bwd o, struct sorted w)
{
  int64_t p = (int64_t) blockIdx.x * BLOCK + threadIdx.x;
  if (p >= w.start[o.rows]) return;
  int32_t me = w.loose[p];
  int64_t row = row_of (o, me);
  int32_t from = w.start[row], to = w.start[row + 1], rank = 0;
  if (to - from > RANK) return;
  #pragma unroll 8
  for (int32_t q = from; q < to; q++) rank += w.loose[q] < me;
  w.token[from + rank] = me;
}

/* The row whose run of more than RANK places holds place p = RANK * i as its first multiple of RANK, or -1: so that each long run
   is found by one i, without a list. */
DEV int64_t long_run (const struct op_embed_bwd &o, const struct sorted &w, int64_t p)
{
  if (p >= w.start[o.rows]) return -1;
  int64_t row = row_of (o, w.loose[p]);
  return w.start[row + 1] - w.start[row] > RANK && p - w.start[row] < RANK ? row : -1;
}

__global__ void __launch_bounds__ (1024) walk (const struct op_embed_bwd o, struct sorted w)
{
  int64_t row = long_run (o, w, (int64_t) blockIdx.x * RANK);
  if (row < 0) return;
  __shared__ int32_t found;
  int32_t at = w.start[row], id = (int32_t) (row + o.v0);
  for (int64_t i = 0; i < o.n; i += 1024 * WALK) {
    int64_t t = i + threadIdx.x * WALK;
    unsigned hits = 0;
    #pragma unroll
    for (int k = 0; k < WALK; k++) hits |= (t + k < o.n && o.ids[t + k] == id ? 1u : 0u) << k;
    int32_t upto = block_scan (__popc (hits)), to = at + upto - __popc (hits);
    for (; hits; hits &= hits - 1) w.token[to++] = (int32_t) t + __ffs (hits) - 1;
    if (threadIdx.x == 1023) found = upto;
    __syncthreads ();
    at += found;
  }
}

/* s += the tokens [from, to) of the sorted list at column c, in order. */
template <int V, int U, class T> DEV void add_tokens (const struct op_embed_bwd &o, const int32_t *token, int32_t from,
  int32_t to, int64_t c, float (&s)[V])
{
  for (int32_t q = from; q < to; q += U) {
    pack<T, V> p[U];
    #pragma unroll
    for (int u = 0; u < U; u++)
      if (q + u < to) p[u] = load<V> ((const T *) o.dy + token[q + u] * o.dim + c);
    #pragma unroll
    for (int u = 0; u < U; u++) {
      if (q + u >= to) continue;
      float f[V];
      unpack (p[u], f);
      #pragma unroll
      for (int k = 0; k < V; k++) s[k] += f[k];
    }
  }
}

/* A block a row of few tokens, or (by_place) a place of the sorted list, of which the first of each row counts. */
template <int V, class T, class G> __global__ void __launch_bounds__ (FEW_BLOCK) sum_few (const struct op_embed_bwd o,
  struct sorted w, bool by_place)
{
  int64_t row = blockIdx.x;
  if (by_place) {
    if (blockIdx.x >= w.start[o.rows]) return;
    row = row_of (o, w.token[blockIdx.x]);
    if (w.start[row] != blockIdx.x) return;
  }
  int32_t from = w.start[row], to = w.start[row + 1];
  if (to - from > FEW && !threadIdx.x) w.loose[atomicAdd (w.used, 1)] = (int32_t) row;
  if (to - from > FEW || (from == to && o.beta == 1)) return;
  G *d = (G *) o.dtable + row * o.dim;
  for (int64_t c = (int64_t) threadIdx.x * V; c < o.dim; c += FEW_BLOCK * V) {
    float s[V] = {};
    if (o.beta != 0) {
      load_f32 (d + c, s);
      #pragma unroll
      for (int k = 0; k < V; k++) s[k] = mul (s[k], o.beta);
    }
    add_tokens<V, 4, T> (o, w.token, from, to, c, s);
    store_f32 (d + c, s);
  }
}

/* A warp adds up a part of a row's tokens, 32 packs wide, a block all of them: the order in which rows came on the list does not
   matter. */
template <int V, class T, class G> __global__ void __launch_bounds__ (32 * WARPS) sum_many (const struct op_embed_bwd o,
  struct sorted w)
{
  __shared__ float part[WARPS][32 * V + 1];
  int tiles = (int) ((o.dim + 32 * V - 1) / (32 * V)), x = threadIdx.x, y = threadIdx.y, i = y * 32 + x;
  for (int64_t job = blockIdx.x; job < (int64_t) *w.used * tiles; job += gridDim.x) {
    int64_t row = w.loose[job / tiles], c0 = job % tiles * (32 * V), c = c0 + x * V;
    int32_t from = w.start[row], n = w.start[row + 1] - from;
    float s[V] = {};
    if (c < o.dim) add_tokens<V, 8, T> (o, w.token, from + (int32_t) ((int64_t) n * y / WARPS),
      from + (int32_t) ((int64_t) n * (y + 1) / WARPS), c, s);
    #pragma unroll
    for (int k = 0; k < V; k++) part[y][x * V + k] = s[k];
    __syncthreads ();
    if (i < 32 * V && c0 + i < o.dim) {
      G *d = (G *) o.dtable + row * o.dim + c0 + i;
      float a = o.beta != 0 ? mul (o.beta, to_f32 (*d)) : 0;
      for (int k = 0; k < WARPS; k++) a += part[k][i];
      from_f32 (a, d);
    }
    __syncthreads ();
  }
}

template <int V, class T, class G> static void sum_rows (const struct op_embed_bwd *o, struct sorted w, cudaStream_t s)
{
  bool by_place = o->beta == 1;
  sum_few<V, T, G><<<(unsigned) (by_place ? o->n : o->rows), FEW_BLOCK, 0, s>>> (*o, w, by_place);
  if (o->n > FEW) sum_many<V, T, G><<<MANY_BLOCKS, dim3 (32, WARPS), 0, s>>> (*o, w);
}

static void sort_tokens (const struct op_embed_bwd *o, struct sorted w, cudaStream_t s)
{
  int64_t rows = o->rows + 1;
  unsigned tiles = (unsigned) ceil_div (rows, TILE), blocks = (unsigned) ceil_div (o->n, BLOCK);
  cudaMemsetAsync (w.start, 0, (size_t) rows * sizeof (int32_t), s);
  count_rows<<<blocks, BLOCK, 0, s>>> (*o, w.start);
  sum_tiles<<<tiles, TILE, 0, s>>> (w.start, rows, w.cursor);
  scan<<<tiles, TILE, 0, s>>> (w.start, rows, w.cursor);
  cudaMemsetAsync (w.cursor, 0, (size_t) rows * sizeof (int32_t), s);
  drop<<<blocks, BLOCK, 0, s>>> (*o, w);
  rank_tokens<<<blocks, BLOCK, 0, s>>> (*o, w);
  if (o->n > RANK) walk<<<(unsigned) ceil_div (o->n, RANK), 1024, 0, s>>> (*o, w);
}

cudaError_t k_embed_bwd (const struct op_embed_bwd *o, cudaStream_t s)
{
  if (o->rows <= 0 || (o->n <= 0 && o->beta == 1)) return cudaGetLastError ();
  struct sorted w;
  w.start = o->work;
  w.cursor = w.start + o->rows + 1;
  w.used = w.cursor + o->rows;
  w.loose = w.used + 1;
  w.token = w.loose + o->n;
  if (o->n > 0) sort_tokens (o, w, s);
  else cudaMemsetAsync (w.start, 0, (size_t) (o->rows + 1) * sizeof (int32_t), s);
  int v = pack_of (o->t, o->gt);
  if (!fits (o->dy, v, o->t) || !fits (o->dtable, v, o->gt) || o->dim % v) v = 1;
  WITH_TYPE (o->t, T, WITH_TYPE (o->gt, G,
    const int V = sizeof (T) + sizeof (G) == 4 ? 8 : 4;
    if (v == V) sum_rows<V, T, G> (o, w, s);
    else sum_rows<1, T, G> (o, w, s)));
  return cudaGetLastError ();
}
