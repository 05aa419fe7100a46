#include "config.h"
#include "bpe.h"
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* --- tables --- */

void pair_table_make (struct pair_table *t, int64_t n)
{
  int64_t room = 16;
  while (room < 2 * n) room *= 2;
  *t = (struct pair_table) { xalloc ((size_t) room * sizeof *t->key, "bpe"), xalloc ((size_t) room * sizeof *t->value, "bpe"), room - 1, 0 };
}

void pair_table_put (struct pair_table *t, uint64_t key, struct pair_value v)
{
  for (uint64_t i = key * 0x9e3779b97f4a7c15 >> 20;; i++) {
    i &= (uint64_t) t->mask;
    if (t->key[i] == key) return;
    if (t->key[i]) continue;
    t->key[i] = key;
    t->value[i] = v;
    t->n++;
    return;
  }
}

/* --- words that were seen before --- */

enum { CACHE = 1 << 16, WORDS = CACHE / 2, WORD_MAX = 48, POOL = 4 << 20 };
struct cache {
  struct entry { uint64_t hash; uint32_t word, ids; uint16_t len, n; } entry[CACHE];   /* len 0: free */
  char pool[POOL];
  int32_t ids[WORDS * 8];
  uint32_t words, pool_n, ids_n;
};

static void cache_clear (struct cache *c)
{
  memset (c->entry, 0, sizeof c->entry);
  c->words = c->pool_n = c->ids_n = 0;
}

/* Where the word is, or would be. */
static struct entry *cache_find (struct cache *c, const char *p, int64_t n, uint64_t hash)
{
  for (uint64_t i = hash;; i++) {
    struct entry *x = &c->entry[i & (CACHE - 1)];
    if (!x->len || (x->hash == hash && x->len == n && !memcmp (c->pool + x->word, p, (size_t) n))) return x;
  }
}

static void cache_put (struct cache *c, struct entry *x, const char *p, int64_t n, uint64_t hash, const int32_t *ids, int64_t count)
{
  if (c->words + 1 >= WORDS || c->pool_n + n > POOL || c->ids_n + count > LEN (c->ids)) {
    cache_clear (c);
    x = cache_find (c, p, n, hash);
  }
  memcpy (c->pool + c->pool_n, p, (size_t) n);
  memcpy (c->ids + c->ids_n, ids, (size_t) count * sizeof *ids);
  *x = (struct entry) { hash, c->pool_n, c->ids_n, (uint16_t) n, (uint16_t) count };
  c->words++;
  c->pool_n += (uint32_t) n;
  c->ids_n += (uint32_t) count;
}

/* --- merging: the pair of least rank first, of equal ones the leftmost --- */

static inline struct pair_value rank_of (const struct bpe *b, int32_t left, int32_t right)
{
  const struct pair_value *v = pair_table_get (&b->merges, pair_key (left, right));
  return v ? *v : (struct pair_value) { INT32_MAX, -1 };
}

enum { SHORT = 64 };

/* A short word: look for the least each time. */
static void merge_short (const struct bpe *b, const unsigned char *p, int n, struct ids *out)
{
  int32_t id[SHORT];
  struct pair_value v[SHORT];   /* of id[i] and id[i + 1] */
  for (int i = 0; i < n; i++) id[i] = b->byte_id[p[i]];
  for (int i = 0; i < n - 1; i++) v[i] = rank_of (b, id[i], id[i + 1]);
  while (n > 1) {
    int best = 0;
    for (int i = 1; i < n - 1; i++) if (v[i].rank < v[best].rank) best = i;
    if (v[best].rank == INT32_MAX) break;
    id[best] = v[best].id;
    memmove (id + best + 1, id + best + 2, (size_t) (n - best - 2) * sizeof *id);
    if (best + 2 < n) memmove (v + best + 1, v + best + 2, (size_t) (n - best - 2) * sizeof *v);
    n--;
    if (best < n - 1) v[best] = rank_of (b, id[best], id[best + 1]);
    if (best > 0) v[best - 1] = rank_of (b, id[best - 1], id[best]);
  }
  for (int i = 0; i < n; i++) ids_put (out, id[i]);
}

/* A long one: a heap of rank and place; entries that no longer hold are dropped as they come up. */
struct heap { uint64_t *at; int64_t n; };

static void heap_push (struct heap *h, uint64_t x)
{
  int64_t i = h->n++;
  for (; i && h->at[(i - 1) / 2] > x; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
  h->at[i] = x;
}

static uint64_t heap_pop (struct heap *h)
{
  uint64_t top = h->at[0], x = h->at[--h->n];
  int64_t i = 0;
  for (int64_t k; (k = 2 * i + 1) < h->n; i = k) {
    if (k + 1 < h->n && h->at[k + 1] < h->at[k]) k++;
    if (h->at[k] >= x) break;
    h->at[i] = h->at[k];
  }
  h->at[i] = x;
  return top;
}

struct link { int32_t id; uint32_t left, right; };   /* id -1: merged away */
#define NONE UINT32_MAX

static void consider (const struct bpe *b, const struct link *l, uint32_t i, struct heap *h)
{
  if (i == NONE || l[i].right == NONE) return;
  struct pair_value v = rank_of (b, l[i].id, l[l[i].right].id);
  if (v.id >= 0) heap_push (h, (uint64_t) v.rank << 32 | i);
}

static void merge_long (const struct bpe *b, const unsigned char *p, int64_t n, struct ids *out)
{
  struct link *l = xalloc ((size_t) n * sizeof *l, "bpe");
  struct heap h = { xalloc ((size_t) n * 3 * sizeof *h.at, "bpe"), 0 };   /* each merge adds two at most */
  for (int64_t i = 0; i < n; i++) l[i] = (struct link) { b->byte_id[p[i]], i ? (uint32_t) i - 1 : NONE, i + 1 < n ? (uint32_t) i + 1 : NONE };
  for (int64_t i = 0; i < n; i++) consider (b, l, (uint32_t) i, &h);
  while (h.n) {
    uint64_t x = heap_pop (&h);
    uint32_t i = (uint32_t) x, r = l[i].right;
    if (l[i].id < 0 || r == NONE) continue;
    struct pair_value v = rank_of (b, l[i].id, l[r].id);
    if (v.id < 0 || (uint64_t) v.rank != x >> 32) continue;
    l[i].id = v.id;
    l[r].id = -1;
    l[i].right = l[r].right;
    if (l[r].right != NONE) l[l[r].right].left = i;
    consider (b, l, i, &h);
    consider (b, l, l[i].left, &h);
  }
  for (uint32_t i = 0; i != NONE; i = l[i].right) ids_put (out, l[i].id);
  xfree (l);
  xfree (h.at);
}

static void merge (const struct bpe *b, const char *p, int64_t n, uint64_t hash, struct ids *out)
{
  if (b->ignore_merges) {
    const struct pair_value *v = pair_table_get (&b->whole, hash | 1);
    if (v && b->token[v->id].len == n && !memcmp (b->pool + b->token[v->id].off, p, (size_t) n)) {
      ids_put (out, v->id);
      return;
    }
  }
  if (n <= SHORT) merge_short (b, (const unsigned char *) p, (int) n, out);
  else merge_long (b, (const unsigned char *) p, n, out);
}

static void word (struct bpe *b, const char *p, int64_t n, struct ids *out)
{
  if (n == 1) {
    ids_put (out, b->byte_id[(unsigned char) *p]);
    return;
  }
  uint64_t hash = XXH3_64bits (p, (size_t) n);
  if (n > WORD_MAX) {
    merge (b, p, n, hash, out);
    return;
  }
  struct entry *x = cache_find (b->cache, p, n, hash);
  if (!x->len) {
    int64_t first = out->n;
    merge (b, p, n, hash, out);
    cache_put (b->cache, x, p, n, hash, out->at + first, out->n - first);
    return;
  }
  for (int i = 0; i < x->n; i++) ids_put (out, b->cache->ids[x->ids + (uint32_t) i]);
}

/* --- the three calls --- */

static int bpe_encode (struct tokenizer *t, const char *text, int64_t n, struct ids *out, struct err *e)
{
  struct bpe *b = (struct bpe *) t;
  char *fixed;
  text = utf8_whole (text, &n, &fixed);
  int rc = bpe_split (b, text, n, &(struct bpe_sink) { word, out }, e);
  xfree (fixed);
  return rc;
}

static void bpe_decode (struct tokenizer *t, const int32_t *ids, int64_t count, char **text, int64_t *n)
{
  const struct bpe *b = (const struct bpe *) t;
  int64_t room = *n;
  for (int64_t i = 0; i < count; i++) if (ids[i] >= 0 && ids[i] < t->vocab) room += MAX (b->token[ids[i]].len, 0);
  *text = xrealloc (*text, (size_t) room + 1, "text");
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= t->vocab || b->token[ids[i]].len < 0) continue;
    memcpy (*text + *n, b->pool + b->token[ids[i]].off, (size_t) b->token[ids[i]].len);
    *n += b->token[ids[i]].len;
  }
}

static void free_set (struct added_set *s)
{
  for (int i = 0; i < s->n; i++) xfree (s->list[i].text);
  xfree (s->list);
}

static void bpe_close (struct tokenizer *t)
{
  struct bpe *b = (struct bpe *) t;
  bpe_split_free (b);
  free_set (&b->raw);
  free_set (&b->normal);
  xfree (b->merges.key), xfree (b->merges.value);
  xfree (b->whole.key), xfree (b->whole.value);
  xfree (b->token);
  xfree (b->pool);
  xfree (b->path);
  xfree (b->cache);
  xfree (b);
}

static const struct tokenizer_ops bpe_ops = { bpe_encode, bpe_decode, bpe_close };

struct tokenizer *bpe_open (const char *path, const char *json, int64_t n, const char *eod, struct err *e)
{
  struct bpe *b = xalloc (sizeof *b, "bpe");
  b->t.ops = &bpe_ops;
  b->path = xstrdup (path, "bpe");
  b->cache = xalloc (sizeof *b->cache, "bpe");
  if (!bpe_read (b, path, json, n, eod, e)) return &b->t;
  bpe_close (&b->t);
  return NULL;
}
