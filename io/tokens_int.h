/* tokens_int: what the files of tokens share. */
#ifndef TOKENS_INT_H
#define TOKENS_INT_H
#include "tokens.h"

extern const struct token_kind token_u8, token_u16, token_u32;

/* Of an HDF5 file, t->path and t->file of which are set: the rest but ids. 0 or -1. */
int tokens_hdf5 (struct tokens *t, struct err *e);
#endif
