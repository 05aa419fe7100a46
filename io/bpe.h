/* bpe: byte-level BPE as tokenizer.json describes it. What the files bpe*.c share.

   bpe_json.c reads the file into tables; bpe_split.c cuts text into words (added tokens, NFC, split patterns); bpe.c turns words into ids. */
#ifndef BPE_H
#define BPE_H
#include "tokenizer.h"

/* A table from 64-bit keys to two numbers, open addressing; key 0 is empty and never stored. */
struct pair_table { uint64_t *key; struct pair_value { int32_t rank, id; } *value; int64_t mask, n; };
void pair_table_make (struct pair_table *t, int64_t n);
void pair_table_put (struct pair_table *t, uint64_t key, struct pair_value v);   /* the first of equal keys stays */
static inline const struct pair_value *pair_table_get (const struct pair_table *t, uint64_t key)
{
  for (uint64_t i = key * 0x9e3779b97f4a7c15 >> 20;; i++) {
    i &= (uint64_t) t->mask;
    if (t->key[i] == key) return &t->value[i];
    if (!t->key[i]) return NULL;
  }
}
static inline uint64_t pair_key (int32_t a, int32_t b) { return ((uint64_t) (uint32_t) a << 32 | (uint32_t) b) + 1; }

struct token { int64_t off; int32_t len; };               /* bytes in the pool; len -1: no such id */
struct added { char *text; int32_t len, id; };

/* Added tokens that are looked for in the text: those whose first byte is c are list[first[c]] .. list[first[c + 1] - 1], longest first. */
struct added_set { struct added *list; int n; int first[257]; };

enum step_kind { STEP_SPLIT, STEP_DIGITS, STEP_BYTES };   /* a pattern; digits apart from the rest (each alone or not); what byte-level does itself */
struct step { enum step_kind kind; void *code; bool each, prefix; };   /* code: pcre2_code; prefix: a space before a word that has none */
enum { STEPS = 8 };

struct bpe {
  struct tokenizer t;
  char *path;                      /* for sentences */
  char *pool; int64_t pool_n;      /* tokens' bytes */
  struct token *token;             /* [vocab] */
  int32_t byte_id[256];
  struct pair_table merges;
  struct pair_table whole;         /* hash of a token's bytes -> id, for ignore_merges */
  bool ignore_merges, nfc;
  struct added_set raw, normal;    /* looked for before and after normalisation */
  struct step step[STEPS]; int steps;
  void *match, *context, *stack;   /* of PCRE2 */
  struct cache *cache;
};

/* Reads JSON into B (zeroed). 0, or -1 with the sentence; bpe_close frees what is there either way. */
int  bpe_read (struct bpe *b, const char *path, const char *json, int64_t n, const char *eod, struct err *e);
/* Patterns: 0 or -1. */
int  bpe_pattern (struct bpe *b, struct step *s, const char *pattern, struct err *e);
void bpe_split_free (struct bpe *b);
/* TEXT (whole UTF-8) as words: WORD is called for each, ID for each added token, in order. */
struct bpe_sink { void (*word) (struct bpe *b, const char *p, int64_t n, struct ids *out); struct ids *out; };
int  bpe_split (struct bpe *b, const char *text, int64_t n, const struct bpe_sink *s, struct err *e);
/* The bytes that a token's characters stand for, in place of TEXT: its length, or -1 where a character stands for none. */
int64_t bpe_bytes (char *text);
#endif
