/* unit: how a rank's stage and tp slice of the model becomes flat buffers, and who owns which elements. Pure.

   A unit is a run of consecutive blocks (one transformer layer by default). Its tp-local parameters lie one after the other in one flat buffer, each at an aligned
   offset (packed ones follow without a gap), the whole padded so that dp_shard equal parts are aligned too. Part r is what shard rank r owns: master, moments, gradient.
   On a pipeline a tied embedding is a unit of its own, and under zbh1 embedding and head are, whatever sharding.wrap says.

   Flat index = element of the unit's buffer [0, n). Shard index = element of my part [0, n / shards). Local index of a parameter = element of its tp-local matrix
   [rows + pad, cols], which stands at part.row0, part.col0 of the global one. */
#ifndef UNIT_H
#define UNIT_H
#include "conf.h"

struct slot {               /* a parameter in a unit */
  enum pid id;
  int64_t block;
  int64_t off, count;       /* flat; count = (part.rows + part.pad) * part.cols */
  struct part part;
  bool copy;                /* the last stage's copy of a tied embedding: neither counted in norms nor written */
};

struct unit {
  int64_t block0, blocks;   /* the blocks it holds; a copy of the embedding has block0 = 0, blocks = 0 */
  int slots;
  struct slot *slot;        /* owned */
  int64_t n, shard;         /* padded elements; n / shards */
  bool copy;
};

struct units {
  int count;
  struct unit *unit;        /* owned; in order of blocks, a tied copy last */
  int shards, shard_rank;
  int chunks;
  int64_t *first, *last;    /* owned, [chunks]: chunk c of this stage is blocks [first[c], last[c]) */
  int *chunk_of;            /* owned, [count] */
  int64_t params;           /* elements of slots without padding and copies, this rank's tp slice of the stage */
  int64_t total;            /* sum of n: P of the ledger */
  int64_t largest;          /* largest n */
};

struct unit_place { int tp, tp_rank, pp, stage, chunks, shards, shard_rank; int64_t align; /* elements */ };

/* 0, or -1 with the sentence (bad split, wrap). */
int  units_make (struct units *u, const struct conf *c, const struct unit_place *p, struct err *e);
void units_free (struct units *u);
/* Unit and slot that hold parameter ID of BLOCK, NULL if this stage has none. */
const struct slot *units_find (const struct units *u, int64_t block, enum pid id, int *unit);

/* The matrices of a unit that products take in 8 bits (fp8): q k v as one, o, gate and up as one, down; each [rows, cols] at element `off` of the unit, its codes at element `at` of all. */
struct matrix { enum pid id; int64_t block, off, rows, cols, at; };
/* *list is xalloc'd for the caller. */
int  unit_matrices (const struct unit *u, struct matrix **list);

/* A stretch of my part of a unit, in shard indices [lo, hi), that lies in one parameter: local indices start .. start + (hi - lo). */
struct piece { int unit; const struct slot *slot; int64_t lo, hi, start; };
/* All pieces of my parts in order; *list is xalloc'd for the caller. Padding of the flat buffer is in none; padded vocabulary rows are left out. */
int  units_pieces (const struct units *u, struct piece **list);
/* The part of PIECE that this rank writes to a checkpoint, so that over all ranks each global element is written once: what is replicated over REPLICAS ranks (mine is
   the REPLICA-th) is cut evenly. tp-replicated parameters are cut over tp too, KV copies over their holders. May be empty (lo == hi). */
struct piece units_owned (const struct piece *p, int tp, int tp_rank, int replicas, int replica);
#endif
