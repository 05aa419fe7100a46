/* places: where each tensor of a model lies in files of other programs, and what a checkpoint's save and load ask of them. Local.

   A checkpoint is saved from and loaded into pieces of flat units; on a mesh of data parallel ranks alone (tp 1, pp 1) a piece is a stretch of one whole tensor, so that
   `get` is a read at a byte and `put` a write. No tensor is ever in memory. */
#ifndef PLACES_H
#define PLACES_H
#include "ckpt.h"
#include "wire.h"

struct place { int fd; const char *path; int64_t at; enum wire type; };   /* path: borrowed, for sentences */

struct place_tensor {
  char name[96];               /* Hugging Face's */
  int ndim;
  int64_t shape[2], count;     /* 1-D: shape[1] is 1 */
};

struct places {
  int64_t n;
  struct place_tensor *tensor; /* owned; in the model's order */
  struct place *at[CKPT_KINDS];/* owned, [n]; NULL: read as zeros, not written */
  const struct units *units;   /* borrowed */
  struct piece *piece; int pieces;   /* owned */
  int32_t *tensor_of;          /* owned, [pieces] */
  struct err err;              /* of the first put that failed; later ones do nothing */
  int64_t bytes;               /* of the files, read or written by this rank */
};

/* The tensors of A, all without places; U: of a mesh without tp and pp, lent until places_free. */
void places_make (struct places *p, const struct arch *a, const struct units *u);
void places_free (struct places *p);
struct place *places_add (struct places *p, enum ckpt_kind k);   /* at[k], all on no file */

/* For struct ckpt_state; ctx is the places. A failing read ends the job; a failing write is kept in err. */
void places_get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst);
void places_put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src);

/* What a file has, compared with what a model has: each difference is a line on the terminal (rank 0's), the sentence counts them. */
struct differ { int64_t missing, unexpected, other; };
void differ_say (const char *file, int64_t *count, const char *fmt, ...) __attribute__ ((format (printf, 3, 4)));
int  differ_err (const struct differ *d, const char *file, struct err *e);   /* 0 if there was none */
#endif
