/* tokenizer: text to ids and back. Local; one object for one thread.

   Kinds, chosen by what the file is:
     bytes            no file: ids 0 to 255 are bytes, 256 ends a document
     tokenizer.json   Hugging Face's, of the byte-level BPE kind (GPT-2, Llama 3, Qwen): split patterns through PCRE2, NFC through utf8proc
     *.model          SentencePiece, through its library
   Ids are those of the reference packages (`tokenizers`, `sentencepiece`): of the first with add_special_tokens=False, so that a token's name in the text becomes that token.
   Bytes that are no UTF-8 become U+FFFD first, one for each maximal part of a character, as Python's errors="replace" does. */
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "base.h"

struct ids { int32_t *at; int64_t n, room; };   /* owned by whoever declares it; xfree (at) */
static inline void ids_put (struct ids *v, int32_t id)
{
  if (v->n == v->room) v->at = xrealloc (v->at, (size_t) (v->room = v->room * 2 + 1024) * sizeof *v->at, "ids");
  v->at[v->n++] = id;
}

/* What each kind does; its own struct follows this one in memory. */
struct tokenizer;
struct tokenizer_ops {
  int  (*encode) (struct tokenizer *t, const char *text, int64_t n, struct ids *out, struct err *e);
  /* All of IDS as text appended to *TEXT (xrealloc'd, *n bytes). */
  void (*decode) (struct tokenizer *t, const int32_t *ids, int64_t count, char **text, int64_t *n);
  void (*close) (struct tokenizer *t);
};
struct tokenizer {
  const struct tokenizer_ops *ops;
  int64_t vocab;       /* ids are below it */
  int64_t eod;         /* ends a document */
  char name[64];       /* "bytes", "bpe 0123456789abcdef": kind and hash of the file; what token files and training compare */
};

enum { TOKENIZER_NAME = 64 };
/* PATH: "bytes" or a file. EOD: the token that ends a document, by its name; NULL: the one that is known for it. NULL with the sentence. */
struct tokenizer *tokenizer_open (const char *path, const char *eod, struct err *e);
void tokenizer_close (struct tokenizer *t);   /* NULL is legal */
/* The name alone, without reading more than the file's bytes. */
int tokenizer_name (const char *path, char out[static TOKENIZER_NAME], struct err *e);

/* Appends to OUT. -1: a pattern took too long, the library's own words. */
static inline int tokenizer_encode (struct tokenizer *t, const char *text, int64_t n, struct ids *out, struct err *e) { return t->ops->encode (t, text, n, out, e); }
static inline void tokenizer_decode (struct tokenizer *t, const int32_t *ids, int64_t count, char **text, int64_t *n) { t->ops->decode (t, ids, count, text, n); }

/* --- for the kinds --- */
struct tokenizer *bpe_open (const char *path, const char *json, int64_t n, const char *eod, struct err *e);   /* JSON: the file's N bytes */
struct tokenizer *spm_open (const char *path, const char *eod, struct err *e);

/* First byte of TEXT [at, n) that begins no whole character; n if there is none. *skip: bytes of the maximal part that is to be replaced. */
int64_t utf8_bad (const char *text, int64_t at, int64_t n, int64_t *skip);
/* TEXT with U+FFFD for what is no UTF-8: TEXT itself where it is whole, else *fixed (xalloc'd) . */
const char *utf8_whole (const char *text, int64_t *n, char **fixed);
#endif
