/* full: FULL state dicts, one HDF5 file with one dataset a tensor: /param/NAME, and /exp_avg/NAME and /exp_avg_sq/NAME where the moments came along. fp32, contiguous, in the
   tensor's own shape. Attributes of the root: format ("tessera full"), version (1), step, tokens, updates, config, complete. Local: one rank makes and finishes it, all write
   and read their bytes at the places that it tells. */
#ifndef FULL_H
#define FULL_H
#include "places.h"

#define FULL_FORMAT "tessera full"

/* What PATH is: a word for sentences and for choosing. */
enum kind_of_file { FILE_NONE, FILE_OTHER, FILE_SHARDED, FILE_FULL, FILE_HF };
enum kind_of_file file_kind (const char *path);
/* -1 with the sentence that says what PATH is where WANT was wanted, and which command turns one into the other. */
int file_wanted (const char *path, enum kind_of_file want, struct err *e);

struct full_head { int64_t step, tokens; double updates; char *config; };   /* config: xalloc'd */

/* Head of PATH; config is for the caller to xfree. */
int full_head (const char *path, struct full_head *h, struct err *e);
/* Places of all tensors of P in PATH (fd is left -1), of the kinds that the file has. Missing, unexpected and other ones are listed. */
int full_find (struct places *p, const char *path, struct err *e);
/* Makes PATH with room for all tensors of P, of KINDS kinds (1: weights only), and fills their places; complete is 0. */
int full_create (struct places *p, const char *path, int kinds, const struct full_head *h, struct err *e);
/* All bytes are written: complete, synced, renamed to NAME. */
int full_finish (const char *path, const char *name, struct err *e);
#endif
