/* cpu_attn: what the two directions of attention share on the cpu device.

   All tiles are transposed: rows are keys, columns queries. Then maxima and sums over keys run down the columns, one vector for
   16 queries; K and V are needed only row by row as they lie; and only Q (and dO) are turned, once for a block of queries. */
#ifndef CPU_ATTN_H
#define CPU_ATTN_H
#include "cpu_tile.h"

enum { ATT_Q = 96, ATT_QV = ATT_Q / VL, ATT_K = 64, ATT_DIM_MAX = 512 };   /* queries (and vectors of them) and keys of a tile */

static inline int64_t att_pad (int64_t n) { return round_up (n, VL); }

/* Which keys (indices into k) the queries i0 .. i0 + n - 1 of sequence b see: query c those in [lo[c], hi[c]). Columns beyond n
   see none. */
struct att_seen {
  int32_t lo[ATT_Q] __attribute__ ((aligned (64))), hi[ATT_Q] __attribute__ ((aligned (64)));
  int64_t first, end;   /* union over the queries */
  int64_t cols;         /* columns in use, a multiple of VL */
};
void att_see (struct att_seen *s, const struct op_attn *o, int64_t b, int64_t i0, int64_t n);

/* Columns *c0 (a multiple of VL) .. cols - 1 of the tile of keys [j0, j0 + ATT_K) have a key to see; returns whether all of
   these columns see all of the keys. */
bool att_tile_full (const struct att_seen *s, int64_t j0, int64_t *c0);

void att_addresses (struct op_attn *o);
#endif
