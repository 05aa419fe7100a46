/* bpe_json: tokenizer.json into tables. What the file asks for and this program does not do is refused by name: ids that are nearly right are worse than none. */
#include "config.h"
#include "bpe.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { VOCAB_MAX = 1 << 24 };

/* --- bytes as characters: GPT-2's table. Printable bytes of Latin-1 are themselves, the others come from U+0100 on, in order --- */

static bool plain (int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

static int byte_of (uint32_t c)
{
  static int16_t table[324];
  static bool made;
  if (!made) {
    memset (table, -1, sizeof table);
    for (int b = 0, next = 256; b < 256; b++) table[plain (b) ? b : next++] = (int16_t) b;
    made = true;
  }
  return c < LEN (table) ? table[c] : -1;
}

int64_t bpe_bytes (char *text)
{
  const unsigned char *s = (const unsigned char *) text;
  int64_t n = 0;
  while (*s) {
    uint32_t c = *s < 0x80 ? *s : *s < 0xe0 && s[1] ? (uint32_t) (*s & 31) << 6 | (s[1] & 63) : UINT32_MAX;
    int b = byte_of (c);
    if (b < 0) return -1;
    text[n++] = (char) b;
    s += c < 0x80 ? 1 : 2;
  }
  return n;
}

/* --- vocabulary --- */

static int add_token (struct bpe *b, int64_t id, const char *bytes, int64_t n)
{
  memcpy (b->pool + b->pool_n, bytes, (size_t) n);
  b->token[id] = (struct token) { b->pool_n, (int32_t) n };
  b->pool_n += n;
  return 0;
}

/* The largest id of the vocabulary and of the added tokens, and the bytes that all of them take at most. */
static int measure (struct bpe *b, json_t *vocab, json_t *added, int64_t *bytes, struct err *e)
{
  const char *key;
  json_t *v;
  size_t i;
  int64_t top = -1;
  json_object_foreach (vocab, key, v) {
    int64_t id = json_is_integer (v) ? json_integer_value (v) : -1;
    if (id < 0 || id >= VOCAB_MAX) return user_err (e, "%s: model.vocab gives the token %.100s no id from 0 to %d", b->path, key, VOCAB_MAX - 1);
    top = MAX (top, id);
    *bytes += (int64_t) strlen (key);
  }
  json_array_foreach (added, i, v) {
    json_t *id = json_object_get (v, "id"), *text = json_object_get (v, "content");
    if (!json_is_integer (id) || json_integer_value (id) < 0 || json_integer_value (id) >= VOCAB_MAX || !json_is_string (text) || !json_string_length (text))
      return user_err (e, "%s: entry %zu of added_tokens has no id and content", b->path, i);
    top = MAX (top, json_integer_value (id));
    *bytes += (int64_t) json_string_length (text);
  }
  if (top < 0) return user_err (e, "%s: model.vocab is empty", b->path);
  b->t.vocab = top + 1;
  return 0;
}

static int read_vocab (struct bpe *b, json_t *vocab, struct err *e)
{
  const char *key;
  json_t *v;
  pair_table_make (&b->whole, (int64_t) json_object_size (vocab));
  for (int i = 0; i < 256; i++) b->byte_id[i] = -1;
  json_object_foreach (vocab, key, v) {
    int64_t id = json_integer_value (v);
    if (b->token[id].len >= 0) return user_err (e, "%s: model.vocab gives the id %lld to two tokens", b->path, (long long) id);
    char *copy = xstrdup (key, "bpe");
    int64_t n = bpe_bytes (copy);
    if (n < 0) strcpy (copy, key), n = (int64_t) strlen (key);   /* no bytes: no merge makes it */
    else {
      if (n == 1) b->byte_id[(unsigned char) copy[0]] = (int32_t) id;
      pair_table_put (&b->whole, XXH3_64bits (copy, (size_t) n) | 1, (struct pair_value) { 0, (int32_t) id });
    }
    add_token (b, id, copy, n);
    xfree (copy);
  }
  for (int i = 0; i < 256; i++) if (b->byte_id[i] < 0) return user_err (e, "%s: its vocabulary lacks the byte 0x%02x: it is not of the byte-level kind", b->path, i);
  return 0;
}

/* "a b", or ["a", "b"]. */
static int halves (json_t *m, char **left, char **right)
{
  const char *s = json_string_value (m), *space = s ? strchr (s, ' ') : NULL;
  const char *a = json_string_value (json_array_get (m, 0)), *z = json_string_value (json_array_get (m, 1));
  if (s && (!space || space == s || !space[1] || strchr (space + 1, ' '))) return -1;
  if (!s && (!a || !z || json_array_size (m) != 2)) return -1;
  *left = s ? xprintf ("%.*s", (int) (space - s), s) : xstrdup (a, "bpe");
  *right = xstrdup (s ? space + 1 : z, "bpe");
  return 0;
}

static int read_merge (struct bpe *b, json_t *vocab, json_t *m, size_t rank, struct err *e)
{
  char *left, *right, *both;
  if (halves (m, &left, &right)) return user_err (e, "%s: entry %zu of model.merges is no pair", b->path, rank);
  both = xprintf ("%s%s", left, right);
  json_t *l = json_object_get (vocab, left), *r = json_object_get (vocab, right), *x = json_object_get (vocab, both);
  int rc = l && r && x ? 0 : user_err (e, "%s: entry %zu of model.merges, %.80s and %.80s, speaks of a token that is not in the vocabulary", b->path, rank, left, right);
  if (!rc) pair_table_put (&b->merges, pair_key ((int32_t) json_integer_value (l), (int32_t) json_integer_value (r)), (struct pair_value) { (int32_t) rank, (int32_t) json_integer_value (x) });
  xfree (left), xfree (right), xfree (both);
  return rc;
}

static int read_merges (struct bpe *b, json_t *vocab, json_t *merges, struct err *e)
{
  size_t i;
  json_t *m;
  if (!json_is_array (merges)) return user_err (e, "%s has no model.merges", b->path);
  pair_table_make (&b->merges, (int64_t) json_array_size (merges));
  json_array_foreach (merges, i, m) if (read_merge (b, vocab, m, i, e)) return -1;
  return 0;
}

/* --- added tokens --- */

static int by_first (const void *x, const void *y)
{
  const struct added *a = x, *b = y;
  unsigned char p = (unsigned char) a->text[0], q = (unsigned char) b->text[0];
  return p != q ? p - q : b->len - a->len;
}

static void sort_set (struct added_set *s)
{
  if (s->n) qsort (s->list, (size_t) s->n, sizeof *s->list, by_first);
  for (int i = 0; i < s->n; i++) s->first[(unsigned char) s->list[i].text[0] + 1]++;
  for (int c = 0; c < 256; c++) s->first[c + 1] += s->first[c];
}

static int read_added (struct bpe *b, json_t *added, struct err *e)
{
  static const char *const refused[] = { "lstrip", "rstrip", "single_word" };
  size_t i, n = json_array_size (added);
  json_t *v;
  b->raw.list = xalloc ((n + 1) * sizeof (struct added), "bpe");
  b->normal.list = xalloc ((n + 1) * sizeof (struct added), "bpe");
  json_array_foreach (added, i, v) {
    const char *text = json_string_value (json_object_get (v, "content"));
    int64_t id = json_integer_value (json_object_get (v, "id")), len = (int64_t) strlen (text);
    for (int k = 0; k < LEN (refused); k++)
      if (json_is_true (json_object_get (v, refused[k]))) return user_err (e, "%s: the added token %.100s has %s, which is not offered", b->path, text, refused[k]);
    if (b->token[id].len < 0) add_token (b, id, text, len);
    struct added_set *s = json_is_true (json_object_get (v, "normalized")) ? &b->normal : &b->raw;
    s->list[s->n++] = (struct added) { xstrdup (text, "bpe"), (int32_t) len, (int32_t) id };
  }
  sort_set (&b->raw);
  sort_set (&b->normal);
  return 0;
}

/* --- how text is cut --- */

static int take_split (struct bpe *b, json_t *v, struct err *e)
{
  json_t *pattern = json_object_get (v, "pattern"), *regex = json_object_get (pattern, "Regex");
  const char *behavior = json_string_value (json_object_get (v, "behavior"));
  if (!json_is_string (regex)) return user_err (e, "%s: a Split without a pattern of the kind Regex is not offered", b->path);
  if (!behavior || strcmp (behavior, "Isolated") || json_is_true (json_object_get (v, "invert")))
    return user_err (e, "%s: a Split whose behavior is %.40s%s is not offered: Isolated is", b->path, behavior ? behavior : "not said", json_is_true (json_object_get (v, "invert")) ? ", inverted," : "");
  return bpe_pattern (b, &b->step[b->steps++], json_string_value (regex), e);
}

static int take_step (struct bpe *b, json_t *v, struct err *e)
{
  static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  const char *type = json_string_value (json_object_get (v, "type"));
  if (b->steps == STEPS) return user_err (e, "%s: pre_tokenizer has more than %d steps", b->path, STEPS);
  if (b->steps && b->step[b->steps - 1].kind == STEP_BYTES) return user_err (e, "%s: pre_tokenizer goes on after ByteLevel", b->path);
  if (!type) return user_err (e, "%s: a pre_tokenizer has no type", b->path);
  if (!strcmp (type, "Split")) return take_split (b, v, e);
  if (!strcmp (type, "Digits")) {
    b->step[b->steps++] = (struct step) { .kind = STEP_DIGITS, .each = json_is_true (json_object_get (v, "individual_digits")) };
    return 0;
  }
  if (strcmp (type, "ByteLevel")) return user_err (e, "%s: the pre_tokenizer %.60s is not offered: Split, Digits and ByteLevel are", b->path, type);
  struct step *s = &b->step[b->steps++];
  if (!json_is_false (json_object_get (v, "use_regex")) && bpe_pattern (b, s, gpt2, e)) return -1;
  s->kind = STEP_BYTES;
  s->prefix = !json_is_false (json_object_get (v, "add_prefix_space"));
  return 0;
}

static int read_steps (struct bpe *b, json_t *pre, struct err *e)
{
  const char *type = json_string_value (json_object_get (pre, "type"));
  json_t *list = json_object_get (pre, "pretokenizers"), *v;
  size_t i;
  if (!type) return user_err (e, "%s has no pre_tokenizer: byte-level BPE is read; of a SentencePiece model take tokenizer.model", b->path);
  if (strcmp (type, "Sequence")) { if (take_step (b, pre, e)) return -1; }
  else json_array_foreach (list, i, v) if (take_step (b, v, e)) return -1;
  if (!b->steps || b->step[b->steps - 1].kind != STEP_BYTES) return user_err (e, "%s: its pre_tokenizer does not end with ByteLevel: only byte-level BPE is read", b->path);
  return 0;
}

static int read_normalizer (struct bpe *b, json_t *n, struct err *e)
{
  const char *type = json_string_value (json_object_get (n, "type"));
  json_t *v;
  size_t i;
  if (!n || json_is_null (n)) return 0;
  if (type && !strcmp (type, "Sequence")) {
    json_array_foreach (json_object_get (n, "normalizers"), i, v) if (read_normalizer (b, v, e)) return -1;
    return 0;
  }
  if (!type || strcmp (type, "NFC")) return user_err (e, "%s: the normalizer %.60s is not offered: NFC is", b->path, type ? type : "without a type");
#ifndef HAVE_UTF8PROC
  return user_err (e, "%s needs NFC, and this program was built without utf8proc: install libutf8proc-dev and configure anew", b->path);
#endif
  b->nfc = true;
  return 0;
}

/* --- the whole --- */

static int check_model (struct bpe *b, json_t *model, struct err *e)
{
  static const char *const empty[] = { "continuing_subword_prefix", "end_of_word_suffix" };
  const char *type = json_string_value (json_object_get (model, "type"));
  if (!json_is_object (model)) return user_err (e, "%s is no tokenizer.json: it has no model", b->path);
  if (type && strcmp (type, "BPE")) return user_err (e, "%s: a model of the kind %.40s is not offered: BPE is", b->path, type);
  if (!json_is_object (json_object_get (model, "vocab"))) return user_err (e, "%s has no model.vocab", b->path);
  if (json_is_true (json_object_get (model, "byte_fallback"))) return user_err (e, "%s has byte_fallback: it is a SentencePiece model in another form; take its tokenizer.model", b->path);
  if (json_number_value (json_object_get (model, "dropout")) > 0) return user_err (e, "%s: model.dropout is not offered", b->path);
  for (int i = 0; i < LEN (empty); i++)
    if (json_string_length (json_object_get (model, empty[i]))) return user_err (e, "%s: model.%s is not offered", b->path, empty[i]);
  b->ignore_merges = json_is_true (json_object_get (model, "ignore_merges"));
  return 0;
}

/* The id of the token that ends a document. */
static int find_eod (struct bpe *b, json_t *root, const char *name, struct err *e)
{
  static const char *const known[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", "<eos>" };
  json_t *added = json_object_get (root, "added_tokens"), *vocab = json_object_get (json_object_get (root, "model"), "vocab"), *v;
  size_t i;
  for (int k = 0; k < (name ? 1 : LEN (known)); k++) {
    const char *want = name ? name : known[k];
    json_array_foreach (added, i, v)
      if (!strcmp (json_string_value (json_object_get (v, "content")), want)) return b->t.eod = json_integer_value (json_object_get (v, "id")), 0;
    if ((v = json_object_get (vocab, want))) return b->t.eod = json_integer_value (v), 0;
  }
  if (name) return user_err (e, "%s has no token %.100s", b->path, name);
  return user_err (e, "%s has none of the tokens that are known to end a document (<|endoftext|>, <|end_of_text|>, </s>): name it by --eod TOKEN", b->path);
}

static int read_root (struct bpe *b, json_t *root, const char *eod, struct err *e)
{
  json_t *model = json_object_get (root, "model"), *vocab = json_object_get (model, "vocab"), *added = json_object_get (root, "added_tokens");
  int64_t bytes = 0;
  if (check_model (b, model, e) || measure (b, vocab, added, &bytes, e)) return -1;
  b->token = xalloc ((size_t) b->t.vocab * sizeof *b->token, "bpe");
  b->pool = xalloc ((size_t) bytes + 1, "bpe");
  for (int64_t i = 0; i < b->t.vocab; i++) b->token[i].len = -1;
  if (read_vocab (b, vocab, e) || read_merges (b, vocab, json_object_get (model, "merges"), e) || read_added (b, added, e)) return -1;
  if (read_normalizer (b, json_object_get (root, "normalizer"), e) || read_steps (b, json_object_get (root, "pre_tokenizer"), e)) return -1;
  return find_eod (b, root, eod, e);
}

int bpe_read (struct bpe *b, const char *path, const char *json, int64_t n, const char *eod, struct err *e)
{
  json_error_t why;
  json_t *root = json_loadb (json, (size_t) n, JSON_REJECT_DUPLICATES, &why);
  if (!root) return user_err (e, "%s line %d: %s", path, why.line, why.text);
  int rc = read_root (b, root, eod, e);
  json_decref (root);
  return rc;
}
