/* tokenize_int: what tokenize.c (bytes, one process, streamed) and tokenize_text.c (a tokenizer of a library, under MPI, document by document) share. */
#ifndef TOKENIZE_INT_H
#define TOKENIZE_INT_H
#include "base.h"

enum documents { DOC_NONE, DOC_LINES, DOC_BLANK };   /* where documents end, beside at the end of each input */

/* An HDF5 token file with room for COUNT ids of BYTES bytes at *offset; the ids themselves are written without HDF5. TOKENIZER: the attribute; FILE: whence, or NULL. */
struct token_file { int64_t count, vocab, eod; int bytes; const char *tokenizer, *file; };
int tokenize_make (const char *path, const struct token_file *f, int64_t *offset);
/* Ask for the room before hours are spent. A file system that cannot promise it says so, and then the writing will tell. */
int tokenize_reserve (const char *path, int fd, int64_t bytes, struct err *e);

struct text_job {
  const char *tokenizer, *eod;      /* file; token's name or NULL */
  enum documents documents;
  char **in; int inputs;
  const char *out;
};
/* Collective over all processes of the launch; MPI is started and ended here. The exit code. */
int tokenize_text (const struct text_job *job, int *argc, char ***argv);
#endif
