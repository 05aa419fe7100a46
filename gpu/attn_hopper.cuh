/* attn_hopper: our own attention for bf16 on Hopper: flash attention on warpgroup matrix products, fed by the copy engine. This
   part is what its forward (attn_fwd.cu) and its backward (attn_bwd.cu) share; attn_plain.cu has the form for everything else.

   A block: one warp copies, two warpgroups (three where registers allow) of 64 rows each compute, so that one's softmax hides
   behind another's products. Rows that stay are "home", rows that stream past are "guests" (tiles of 64 or 128). Head sizes are
   padded with zeros to a multiple of 64 by the copy engine.

   Backward without atomics, hence the same bits each time: one kernel with keys at home makes dk and dv (over the queries of all
   heads of its group), one with queries at home makes dq. Both make the scores again from lse. Head sizes above 128 make dk and
   dv in two passes for want of registers. */
#ifndef ATTN_HOPPER_CUH
#define ATTN_HOPPER_CUH
#include <math.h>
#include "attn.cuh"
#include "hopper.cuh"

enum { HOME = 128, BLOCK = 384, TILE = 64 };   /* TILE: rows of a copied box and of the tables below */

/* What the kernels know of the operation. Rows and columns of one sequence are ints, memory is addressed with 64 bits. */
struct args {
  int sq, sk, heads, kv_heads, head_dim, shift, window, k0, tiles;   /* shift: q0 - k0; tiles: of TILE queries */
  const int *doc;
  float scale, scale2;                     /* scale2 = scale log2 (e) */
  const bf16 *o_in, *d_o;
  bf16 *o, *dq, *dk, *dv;
  int64_t o_stride, dq_stride, dkv_stride;
  float *lse;
  bool merge, accumulate;
  /* [batch, heads, tiles, 2, TILE]: lse log2 (e) (+inf where the query sees nothing or is none), delta */
  float *stat;
  int *first;                              /* [batch, tiles, TILE]: first key that the query sees by documents and window */
  int *range;                              /* [batch, tiles, 2]: least and greatest of them over the queries that are */
};

/* ---- what a query sees: keys [lo, hi) ---- */

FN int first_key (const args &a, int b, int i)
{
  int lo = 0;
  if (a.doc) lo = max (lo, a.doc[(int64_t) b * a.sq + i] - a.k0);
  if (a.window) lo = max (lo, i + a.shift - a.window + 1);
  return lo;
}
FN void keys_of (const args &a, int b, int i, int *lo, int *hi)
{
  *lo = *hi = 0;
  if (i >= a.sq) return;
  *lo = first_key (a, b, i);
  *hi = min (i + a.shift + 1, a.sk);
}
/* Keys that some of N queries from i0 on sees, computed by each warp for itself. */
FN void keys_of_home (const args &a, int b, int i0, int n, int *lo, int *hi)
{
  int l = INT_MAX, h = 0;
  for (int r = threadIdx.x % 32; r < n; r += 32) {
    int x, y;
    keys_of (a, b, i0 + r, &x, &y);
    if (x < y) l = min (l, x), h = max (h, y);
  }
  *lo = __reduce_min_sync (0xffffffffu, l);
  *hi = __reduce_max_sync (0xffffffffu, h);
  if (*lo >= *hi) *lo = *hi = 0;
}

/* ---- copying ---- */

/* ROWS rows from ROW on, of a head, as a tile. */
template <int D, int ROWS> FN void copy_tile (uint32_t dst, const tensor_map *map, uint32_t bar, int head, int row, int b)
{
  #pragma unroll
  for (int x = 0; x < D / 64; x++)
    #pragma unroll
    for (int r = 0; r < ROWS / TILE; r++)
      copy_box (dst + (uint32_t) (x * ROWS + r * TILE) * 128, map, bar, x * 64, head, row + r * TILE, b);
}

/* Stage and phase of a ring of N. */
template <int N> struct ring {
  int at = 0, phase = 0;
  __device__ __forceinline__ void next () { if (++at == N) at = 0, phase ^= 1; }
};

/* ---- launching ---- */

/* cuTensorMapEncodeTiled (map, type, rank, address, extents, strides in bytes, box, element strides, interleave, swizzle,
   promotion to L2, fill), its enums as ints. */
typedef int encode_fn (tensor_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
    const uint32_t *, int, int, int, int);
enum { TYPE_BF16 = 9, NOT_INTERLEAVED = 0, SWIZZLE_128 = 3, PROMOTE_256 = 3, FILL_ZERO = 0 };

/* Boxes of TILE rows and 64 columns of a tensor [batch, rows, heads, head_dim] whose rows are STRIDE apart; beyond its ends
   there are zeros. */
static inline bool map_make (tensor_map *m, const void *p, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim,
    int64_t stride)
{
  static encode_fn *encode;
  if (!encode) {
    void *f = NULL;
    cudaDriverEntryPointQueryResult how;
    if (cudaGetDriverEntryPointByVersion ("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &how) != cudaSuccess
        || how != cudaDriverEntryPointSuccess) return false;
    encode = (encode_fn *) f;
  }
  uint64_t dim[4] = { (uint64_t) head_dim, (uint64_t) heads, (uint64_t) rows, (uint64_t) batch };
  uint64_t step[3] = { (uint64_t) head_dim * 2, (uint64_t) stride * 2, (uint64_t) (rows * stride) * 2 };
  uint32_t box[4] = { 64, 1, TILE, 1 }, one[4] = { 1, 1, 1, 1 };
  return encode (m, TYPE_BF16, 4, (void *) p, dim, step, box, one, NOT_INTERLEAVED, SWIZZLE_128, PROMOTE_256, FILL_ZERO) == 0;
}

static inline bool aligned (const void *p, int64_t stride) { return (uintptr_t) p % 16 == 0 && stride % 8 == 0; }

/* What the Hopper kernels take: bf16, rows that the copy engine can address, positions that are ints. */
static inline bool fast (const struct op_attn *o)
{
  static int major;
  if (!major) {
    int gpu;
    if (cudaGetDevice (&gpu) != cudaSuccess
        || cudaDeviceGetAttribute (&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess) major = -1;
  }
  const int64_t most = 1 << 30;
  return major == 9 && o->t == DT_BF16 && o->head_dim <= 256 && o->head_dim % 8 == 0 && o->heads % o->kv_heads == 0
         && aligned (o->q, o->q_stride) && aligned (o->k, o->kv_stride) && aligned (o->v, o->kv_stride)
         && aligned (o->o, o->o_stride)
         && o->sq + o->sk + o->window < most && o->q0 < most && o->k0 < most && o->batch < 65536 && o->heads < 65536;
}

/* Tiles of TILE queries, an even number of them. */
static inline int64_t tiles_of (const struct op_attn *o) { return (o->sq + 2 * TILE - 1) / (2 * TILE) * 2; }

static inline args args_of (const struct op_attn *o)
{
  float scale = 1 / sqrtf ((float) o->head_dim);
  return { .sq = (int) o->sq, .sk = (int) o->sk, .heads = (int) o->heads, .kv_heads = (int) o->kv_heads,
           .head_dim = (int) o->head_dim, .shift = (int) (o->q0 - o->k0), .window = (int) o->window, .k0 = (int) o->k0,
           .tiles = (int) tiles_of (o), .doc = o->doc, .scale = scale, .scale2 = scale * 1.44269504089f,
           .o_in = (const bf16 *) o->o, .o = (bf16 *) o->o, .o_stride = o->o_stride, .lse = o->lse, .merge = o->merge };
}
#endif
