/* tokens: one token file, mapped and never read as a whole. data.c makes samples of it.

   Formats (FORMAT, or "auto" / NULL: by the file's name, then by its first bytes):
     hdf5      /tokens, 1-D, contiguous, uint8, uint16 or uint32, little-endian; optional /mask, uint8, as long, 0 = not in the
               loss; attributes of the root: format (1), vocab, tokenizer, eod (the id that ends a document), all optional. HDF5 looks at it in a
               process of its own: a damaged one may make it overrun or spin, and is then refused with a sentence
     megatron  X.bin and X.idx (Megatron-LM's indexed data set, version 1; uint8, uint16, int32 or int64), named by either or by
               X; its documents are one stream in the order of the file
     u16, u32  nothing but ids, little-endian
   Offsets in messages count bytes from the start of the file that holds the ids (the .bin). */
#ifndef TOKENS_H
#define TOKENS_H
#include "base.h"

struct map { const unsigned char *at; int64_t bytes; };   /* a whole file; at == NULL: none */

struct token_kind {
  const char *name;
  int bytes;                                        /* of one id */
  int64_t top;                                      /* greatest id that it holds, at most INT32_MAX */
  /* N ids as int32; returns the greatest, taken as unsigned 64 bits. */
  uint64_t (*read) (const unsigned char *p, int64_t n, int32_t *out);
};

struct tokens {
  char *path;                       /* owned; the file that holds the ids */
  const char *format;               /* "hdf5", ... */
  const struct token_kind *kind;
  struct map file, index;           /* index: Megatron's .idx */
  const unsigned char *ids, *mask;  /* inside file; mask NULL: all in the loss */
  int64_t offset, count;            /* of the ids: byte in the file, how many */
  int64_t vocab, eod;               /* attributes; 0 and -1 if the file does not say */
  char tokenizer[128];              /* attribute; "" */
  int64_t sequences, documents;     /* Megatron's tables: sequences, and entries of the table of documents */
  struct tokens *next;              /* all open files, for the handler of SIGBUS */
};

/* Local; touches the first pages only. 0, or -1 with a sentence. VOCAB: the model's. The file's own vocabulary may be smaller.
   *t must stay where it is until it is closed. A file cut short later ends the job when it is read: its name and the byte. */
int  tokens_open (struct tokens *t, const char *path, const char *format, int64_t vocab, struct err *e);
void tokens_close (struct tokens *t);
/* Ask the system to bring [first, first + n) into memory; returns at once. */
void tokens_want (const struct tokens *t, int64_t first, int64_t n);
/* Ids [first, first + n) into OUT. -1 names the first id outside VOCAB (or outside the file's own vocabulary). */
int  tokens_read (const struct tokens *t, int64_t first, int64_t n, int64_t vocab, int32_t *out, struct err *e);
/* Does the file tell where documents start? By eod or by Megatron's index. */
bool tokens_has_documents (const struct tokens *t);
/* First document of Megatron's index that starts after token AT; INT64_MAX if there is none (or no index). */
int64_t tokens_next_document (const struct tokens *t, int64_t at);
/* Everything that can be wrong: each id, Megatron's tables. Reads the whole file. */
int  tokens_scan (const struct tokens *t, int64_t vocab, struct err *e);
/* One line that tells this file from another: path, size, count, width, hash of its start and of up to 64 pieces of it.
   xfree it. */
char *tokens_text (const struct tokens *t);
#endif
