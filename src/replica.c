#include "config.h"
#include "replica.h"
#include <stdlib.h>
#include <string.h>

static const char *const kind_word[REPLICA_KINDS] = { "master weights", "first moments", "second moments", "weights" };

/* ---- what is held by several ---- */

static void add (struct replicas *r, const struct piece *p)
{
  r->entry = xrealloc (r->entry, (size_t) (r->entries + REPLICA_KINDS) * sizeof *r->entry, "replicas");
  for (int k = 0; k < REPLICA_KINDS; k++) r->entry[r->entries++] = (struct replica_entry) { (enum replica_kind) k, *p };
}

/* Of which group P is held by all members beside the replicas of dp; GROUP_N: of none. */
static enum group_kind shared_by (const struct shard *s, const struct piece *p, const int n[GROUP_N])
{
  bool tied = s->tied_here && p->slot->id == P_EMBED && s->units.unit[p->unit].slots == 1;
  if (n[GROUP_TP] > 1 && param_table[p->slot->id].cut == CUT_NONE) return GROUP_TP;
  if (n[GROUP_KV] > 1 && param_table[p->slot->id].cut == CUT_KV && p->slot->part.rep_size > 1) return GROUP_KV;
  return n[GROUP_TIED] > 1 && tied ? GROUP_TIED : GROUP_N;
}

void replicas_make (struct replicas *r, struct shard *sh, const int group_n[GROUP_N])
{
  static const enum group_kind kind[REPLICA_GROUPS] = { GROUP_TP, GROUP_KV, GROUP_TIED, GROUP_REP };
  struct piece *list;
  *r = (struct replicas) { .sh = sh };
  if (!sh->c->run.replica_check_steps) return;
  int n = units_pieces (&sh->units, &list);
  for (int g = 0; g < REPLICA_GROUPS; g++) {
    int lo = r->entries;
    for (int i = 0; i < n; i++)
      if (kind[g] == GROUP_REP ? group_n[GROUP_REP] > 1 && shared_by (sh, &list[i], group_n) == GROUP_N : shared_by (sh, &list[i], group_n) == kind[g]) add (r, &list[i]);
    r->group[g].kind = kind[g];
    r->group[g].n = MAX (1, group_n[kind[g]]);
    r->group[g].lo = kind[g] == GROUP_REP ? 0 : lo;
    r->group[g].hi = r->entries;
    if (r->group[g].n > 1) r->digests += r->group[g].n;
  }
  xfree (list);
}

void replicas_layout (struct replicas *r, struct arenas *A)
{
  int64_t bytes = r->digests ? (r->entries + r->digests) * 8 : 0;
  r->sums = arena_take (A, MEM_WORK, SPACE_DEVICE, bytes);
  r->host = arena_take (A, MEM_STAGE, SPACE_PINNED, bytes);
}

void replicas_free (struct replicas *r)
{
  if (r->end) r->sh->d->ops->event_close (r->sh->d, r->end);
  xfree (r->entry);
  memset (r, 0, sizeof *r);
}

/* ---- the check ---- */

/* NULL: there is none of its own between steps. */
static void *address (const struct replicas *r, const struct replica_entry *x)
{
  const struct ushard *u = &r->sh->u[x->piece.unit];
  void *w = x->kind == REPLICA_WEIGHT ? shard_own_weight (r->sh, x->piece.unit) : NULL;
  if (x->kind == REPLICA_WEIGHT) return w ? at_elem (w, x->piece.lo, r->sh->t) : NULL;
  return (x->kind == REPLICA_MASTER ? u->master : x->kind == REPLICA_M ? u->m : u->v) + x->piece.lo;
}

static enum dtype type (const struct replicas *r, const struct replica_entry *x) { return x->kind == REPLICA_WEIGHT ? r->sh->t : DT_F32; }

static void issue (struct replicas *r)
{
  struct shard *s = r->sh;
  struct queue *q = s->ch->q;
  uint64_t *digest = r->sums + r->entries;
  shard_settle (s);
  dev_op (s->d, q, OP_ZERO, zero, .dst = r->sums, .bytes = (r->entries + r->digests) * 8);
  for (int i = 0; i < r->entries; i++) {
    const struct replica_entry *x = &r->entry[i];
    const void *at = address (r, x);
    if (at) dev_op (s->d, q, OP_CHECKSUM, checksum, .x = at, .n = x->piece.hi - x->piece.lo, .t = type (r, x), .sum = r->sums + i);
  }
  for (int g = 0; g < REPLICA_GROUPS; g++) {
    int lo = r->group[g].lo, n = r->group[g].hi - lo;
    struct chan *c = &s->ch->c[r->group[g].kind];
    if (r->group[g].n < 2) continue;
    dev_op (s->d, q, OP_CHECKSUM, checksum, .x = r->sums + lo, .n = n, .t = DT_F64, .sum = digest + c->rank);
    chan_gather (s->ch, r->group[g].kind, NULL, digest, 1, DT_F64);
    chan_wait (s->ch, r->group[g].kind);
    digest += r->group[g].n;
  }
}

/* The members' numbers are alike. */
static bool alike (const uint64_t *digest, int n)
{
  for (int i = 1; i < n; i++)
    if (digest[i] != digest[0]) return false;
  return true;
}

bool replicas_agree (struct replicas *r)
{
  struct dev *d = r->sh->d;
  struct queue *q = r->sh->ch->q;
  int64_t bytes = (r->entries + r->digests) * 8;
  bool same = true;
  if (!r->digests) return true;
  if (!r->end) r->end = d->ops->event_open (d);
  issue (r);
  dev_op (d, q, OP_COPY, copy, .dst = r->host, .src = r->sums, .bytes = bytes);
  d->ops->record (d, q, r->end);
  uint64_t *got = xalloc ((size_t) bytes, "replicas"), *zero = xalloc ((size_t) bytes, "replicas"), *digest = got + r->entries;
  d->ops->fetch (d, r->end, got, r->host, bytes, zero);
  for (int g = 0; g < REPLICA_GROUPS; g++) {
    if (r->group[g].n < 2) continue;
    same &= alike (digest, r->group[g].n);
    digest += r->group[g].n;
  }
  if (!same) memcpy (r->host, got, (size_t) bytes);
  xfree (zero);
  xfree (got);
  return same;
}

/* ---- who errs ---- */

/* What a rank says of a part that a group of it does not agree on. */
struct witness { char name[96], host[64]; int kind, rank; int64_t row0, col0, start, n; uint64_t sum; };
enum { WITNESSES = 64 };   /* of a rank */

/* Mark the entries on which a group that does not agree differs. Collective over such a group. */
static void compare (const struct replicas *r, const struct mesh *m, int g, const uint64_t *digest, bool *mark)
{
  int n = r->group[g].n, lo = r->group[g].lo, len = r->group[g].hi - lo, member[m->size], me;
  if (n < 2 || alike (digest, n) || !len) return;
  mesh_group (&m->shape, m->rank, r->group[g].kind, member, &me);
  uint64_t *all = xalloc ((size_t) n * (size_t) len * 8, "replicas");
  MPI_Request *q = xalloc (2 * (size_t) n * sizeof *q, "replicas");
  int posted = 0, tag = GROUP_N + 1 + g;
  for (int i = 0; i < n; i++) {
    if (i == me) memcpy (all + (int64_t) i * len, r->host + lo, (size_t) len * 8);
    if (i == me) continue;
    MPI_Irecv (all + (int64_t) i * len, len, MPI_UINT64_T, member[i], tag, m->world, &q[posted++]);
    MPI_Isend (r->host + lo, len, MPI_UINT64_T, member[i], tag, m->world, &q[posted++]);
  }
  wait_all (posted, q);
  for (int k = 0; k < len; k++)
    for (int i = 1; i < n; i++) mark[lo + k] |= all[(int64_t) i * len + k] != all[k];
  xfree (q);
  xfree (all);
}

static void param_of (const struct replicas *r, const struct replica_entry *x, char name[96]) { param_name (&r->sh->c->arch, x->piece.slot->block, x->piece.slot->id, name); }

static int testify (const struct replicas *r, const struct mesh *m, struct witness *out)
{
  bool *mark = xalloc ((size_t) MAX (r->entries, 1), "replicas");
  const uint64_t *digest = r->host + r->entries;
  int n = 0;
  for (int g = 0; g < REPLICA_GROUPS; g++) {
    if (r->group[g].n < 2) continue;
    compare (r, m, g, digest, mark);
    digest += r->group[g].n;
  }
  for (int i = 0; i < r->entries && n < WITNESSES; i++) {
    const struct replica_entry *x = &r->entry[i];
    const struct part *part = &x->piece.slot->part;
    if (!mark[i]) continue;
    out[n] = (struct witness) { .kind = x->kind, .rank = m->rank, .row0 = part->row0, .col0 = part->col0, .start = x->piece.start, .n = x->piece.hi - x->piece.lo, .sum = r->host[i] };
    param_of (r, x, out[n].name);
    snprintf (out[n++].host, sizeof out->host, "%s", base_host ());
  }
  xfree (mark);
  return n;
}

static int same_part (const struct witness *a, const struct witness *b)
{
  return a->kind == b->kind && a->row0 == b->row0 && a->col0 == b->col0 && a->start == b->start && !strcmp (a->name, b->name);
}

/* How many of W[0..n) hold what W[i] holds. */
static int votes (const struct witness *w, int n, int i)
{
  int k = 0;
  for (int j = 0; j < n; j++) k += w[j].sum == w[i].sum;
  return k;
}

static size_t name_ranks (const struct witness *w, int n, char *out, size_t room)
{
  size_t at = 0;
  for (int i = 0; i < n && at < room; i++)
    at += (size_t) snprintf (out + at, room - at, "%srank %d on host %s", i == 0 ? "" : i == n - 1 ? " and " : ", ", w[i].rank, w[i].host);
  return at;
}

/* A judgement on one part, from those that hold it: who stands alone against most, or (0) nobody can be named. OUT: the sentence. */
static int judge (struct witness *w, int n, char *out, size_t room)
{
  int best = 0, odd = 0;
  char who[400], where[300];
  for (int i = 1; i < n; i++) best = votes (w, n, i) > votes (w, n, best) ? i : best;
  uint64_t right = w[best].sum;
  bool most = 2 * votes (w, n, best) > n;
  for (int i = 0; i < n; i++)
    if (!most || w[i].sum != right) {
      struct witness x = w[odd];
      w[odd] = w[i];
      w[i] = x;
      odd++;
    }
  name_ranks (w, MIN (odd, 4), who, sizeof who);
  snprintf (where, sizeof where, "%s, %s, %lld elements from %lld on", w->name, kind_word[w->kind], (long long) w->n, (long long) w->start);
  if (most) snprintf (out, room, "%s hold%s other bits than the %d ranks that hold the same (%s)", who, odd == 1 ? "s" : "", n - odd, where);
  else snprintf (out, room, "%s hold different bits of what should be the same (%s): one of them errs", who, where);
  return most ? odd : 0;
}

/* The clearest of all parts: one with a majority, else the first. */
static char *verdict (struct witness *w, int n)
{
  char text[900] = "", one[900];
  int parts = 0, named = 0;
  bool *seen = xalloc ((size_t) MAX (n, 1), "replicas");
  struct witness *part = xalloc ((size_t) MAX (n, 1) * sizeof *part, "replicas");
  for (int i = 0; i < n; i++) {
    int k = 0;
    if (seen[i]) continue;
    for (int j = i; j < n; j++)
      if (same_part (&w[i], &w[j])) part[k++] = w[j], seen[j] = true;
    int odd = judge (part, k, one, sizeof one);
    if (!parts++ || (odd && !named)) memcpy (text, one, sizeof text), named = odd;
  }
  xfree (part);
  xfree (seen);
  return parts > 1 ? xprintf ("%s, and %d more parts of tensors differ", text, parts - 1) : xstrdup (text, "replicas");
}

int replicas_tell (struct replicas *r, const struct mesh *m, bool agreed, int64_t step, int64_t good, struct err *e)
{
  struct witness *mine = xalloc (WITNESSES * sizeof *mine, "replicas"), *all = NULL;
  int *count = xalloc ((size_t) m->size * sizeof (int), "replicas"), *at = xalloc ((size_t) m->size * sizeof (int), "replicas"), sum = 0, n = agreed ? 0 : testify (r, m, mine);
  MPI_Datatype one;   /* counts are of witnesses: bytes of many ranks may be more than an int holds */
  MPI_Request q;
  MPI_Type_contiguous ((int) sizeof *mine, MPI_BYTE, &one);
  MPI_Type_commit (&one);
  MPI_Igather (&n, 1, MPI_INT, count, 1, MPI_INT, 0, m->world, &q);
  wait_all (1, &q);
  for (int i = 0; i < m->size && !m->rank; i++) at[i] = sum, sum += count[i];
  if (!m->rank) all = xalloc ((size_t) MAX (sum, 1) * sizeof *all, "replicas");
  MPI_Igatherv (mine, n, one, all, count, at, one, 0, m->world, &q);
  wait_all (1, &q);
  MPI_Type_free (&one);
  char *said = m->rank ? NULL : verdict (all, sum), since[64] = "";
  char *text = mesh_share_text (m, said);
  if (good) snprintf (since, sizeof since, ", step %lld was good", (long long) good);
  world_err (e, "replica check after step %lld%s: %s: memory or arithmetic has failed there; nothing of this state is saved", (long long) step, since, text);
  xfree (text);
  xfree (all);
  xfree (at);
  xfree (count);
  xfree (mine);
  return -1;
}

/* ---- for tests ---- */

bool replicas_flip (struct replicas *r, enum replica_kind kind, const char *name)
{
  struct dev *d = r->sh->d;
  shard_settle (r->sh);
  for (int i = 0; i < r->entries; i++) {
    struct replica_entry *x = &r->entry[i];
    char is[96];
    void *p = address (r, x);
    param_of (r, x, is);
    if (x->kind != kind || strncmp (is, name, strlen (name)) || !p) continue;
    int64_t size = dtype_size (type (r, x)), mid = (x->piece.hi - x->piece.lo) / 2;
    unsigned char *bits = xalloc (8, "flip");
    dev_get (d, r->sh->ch->q, bits, at_elem (p, mid, type (r, x)), size);
    bits[0] ^= 1;
    dev_put (d, r->sh->ch->q, at_elem (p, mid, type (r, x)), bits, size);
    xfree (bits);
    return true;
  }
  return false;
}
