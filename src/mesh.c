/* The half of mesh that speaks MPI: node map, communicators, and the two ways in which ranks agree. */
#include "config.h"
#include "mesh.h"
#include <inttypes.h>
#include <limits.h>
#include <string.h>

static void bcast (MPI_Comm c, int root, void *p, int bytes)
{
  MPI_Request r;
  MPI_Ibcast (p, bytes, MPI_BYTE, root, c, &r);
  wait_all (1, &r);
}

/* Signed on purpose: MPICH 4.0.2 compares unsigned values as if they were signed. */
static void min_all (const struct mesh *m, int64_t *v, int n)
{
  MPI_Request r;
  MPI_Iallreduce (MPI_IN_PLACE, v, n, MPI_INT64_T, MPI_MIN, m->world, &r);
  wait_all (1, &r);
}

/* ---- nodes ---- */

/* Nodes are numbered by their lowest rank. leader[r] = lowest rank of r's node; a node's number is taken where the leader is met,
   which is before its other ranks. */
static int number_nodes (const int *leader, int size, int *node_of)
{
  int nodes = 0;
  for (int r = 0; r < size; r++) node_of[r] = leader[r] == r ? nodes++ : node_of[leader[r]];
  return nodes;
}

int mesh_open (struct mesh *m, MPI_Comm comm, struct err *e)
{
  (void) e;
  MPI_Request r;
  memset (m, 0, sizeof *m);
  m->tp = m->pp = m->dp = MPI_COMM_NULL;
  MPI_Comm_idup (comm, &m->world, &r);
  wait_all (1, &r);
  MPI_Comm_rank (m->world, &m->rank);
  MPI_Comm_size (m->world, &m->size);
  MPI_Comm_split_type (m->world, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL, &m->node_comm);
  MPI_Comm_rank (m->node_comm, &m->local_rank);
  MPI_Comm_size (m->node_comm, &m->local_size);

  int mine = m->rank, *leader = xalloc ((size_t) m->size * sizeof (int), "mesh");
  bcast (m->node_comm, 0, &mine, sizeof mine);
  MPI_Iallgather (&mine, 1, MPI_INT, leader, 1, MPI_INT, m->world, &r);
  wait_all (1, &r);
  m->node_of = xalloc ((size_t) m->size * sizeof (int), "mesh");
  m->nodes = number_nodes (leader, m->size, m->node_of);
  m->node = m->node_of[m->rank];
  xfree (leader);
  return 0;
}

/* ---- axes ---- */

/* The name of the host on which rank WHO runs. Collective. */
static void host_of (const struct mesh *m, int who, char out[static 64])
{
  snprintf (out, 64, "%s", base_host ());
  bcast (m->world, who, out, 64);
}

/* Smallest number of ranks on a node. */
static int least_on_node (const struct mesh *m)
{
  int *count = xalloc ((size_t) m->nodes * sizeof (int), "mesh"), least = m->size;
  for (int r = 0; r < m->size; r++) count[m->node_of[r]]++;
  for (int n = 0; n < m->nodes; n++) least = MIN (least, count[n]);
  xfree (count);
  return least;
}

/* Name the first tp group that spans nodes. Every rank has the same map and finds the same group. */
static int refuse_tp (const struct mesh *m, struct err *e)
{
  int *g = xalloc ((size_t) m->size * sizeof (int), "mesh"), me, n = 0, other = 0;
  for (int r = 0; r < m->size && !other; r++) {
    n = mesh_group (&m->shape, r, GROUP_TP, g, &me);
    if (m->node_of[r] != m->node_of[g[0]]) other = r;
  }
  char a[64], b[64], ranks[64];
  int first = m->node_of[g[0]], second = m->node_of[other];
  host_of (m, g[0], a);
  host_of (m, other, b);
  mesh_ranks_text (g, n, ranks, sizeof ranks);
  user_err (e, "mesh: the tp group of ranks %s spans node %d (%s) and node %d (%s); "
            "tp speaks several times in each layer and belongs inside a node: "
            "choose a mesh.tp that divides the ranks of each node (%d), or ask for it with --mesh.tp_across_nodes true",
            ranks, first, a, second, b, least_on_node (m));
  xfree (g);
  return -1;
}

/* World rank to rank in the communicator of its axis (dp: both data axes): mesh_split orders them so. */
static int rank_in (const struct mesh *m, enum axis a, int world_rank)
{
  int c[AXIS_N];
  mesh_coord (&m->shape, world_rank, c);
  return a == AXIS_DP_SHARD ? c[AXIS_DP_REPLICATE] * m->shape.dim[AXIS_DP_SHARD] + c[AXIS_DP_SHARD] : c[a];
}

/* The ranks that agree with this one in every coordinate but AXIS; their first gives the colour. */
static MPI_Comm split (const struct mesh *m, enum axis a)
{
  int c[AXIS_N];
  memcpy (c, m->coord, sizeof c);
  c[a] = 0;
  if (a == AXIS_DP_SHARD) c[AXIS_DP_REPLICATE] = 0;
  MPI_Comm comm;
  MPI_Comm_split (m->world, mesh_rank (&m->shape, c), rank_in (m, a, m->rank), &comm);
  return comm;
}

int mesh_split (struct mesh *m, const struct mesh_shape *s, bool tp_across_nodes, struct err *e)
{
  if (mesh_world (s) != m->size) return user_err (e, "mesh: the axes make %d ranks, but there are %d", mesh_world (s), m->size);
  m->shape = *s;
  m->shape.kv_rep = MAX (s->kv_rep, 1);
  assert_ (s->dim[AXIS_TP] % m->shape.kv_rep == 0);
  mesh_coord (&m->shape, m->rank, m->coord);
  if (!tp_across_nodes && mesh_tp_crosses (&m->shape, m->node_of)) return refuse_tp (m, e);
  m->tp = split (m, AXIS_TP);
  m->pp = split (m, AXIS_PP);
  m->dp = split (m, AXIS_DP_SHARD);
  return 0;
}

void mesh_close (struct mesh *m)
{
  MPI_Comm *owned[] = { &m->dp, &m->pp, &m->tp, &m->node_comm, &m->world };
  for (int i = 0; i < LEN (owned); i++)
    if (*owned[i] != MPI_COMM_NULL) MPI_Comm_free (owned[i]);
  xfree (m->node_of);
  m->node_of = NULL;
}

/* Where a kind of group lives, and under which tag. Both ends of a link have the tag of the end that sends. */
static const struct { enum axis axis; enum group_kind tag; } home[GROUP_N] = {
  [GROUP_WORLD] = { AXIS_N, GROUP_WORLD },
  [GROUP_SHARD] = { AXIS_DP_SHARD, GROUP_SHARD },
  [GROUP_REP]   = { AXIS_DP_SHARD, GROUP_REP },
  [GROUP_TP]    = { AXIS_TP, GROUP_TP },
  [GROUP_KV]    = { AXIS_TP, GROUP_KV },
  [GROUP_TIED]  = { AXIS_PP, GROUP_TIED },
  [GROUP_F_IN]  = { AXIS_PP, GROUP_F_OUT },
  [GROUP_F_OUT] = { AXIS_PP, GROUP_F_OUT },
  [GROUP_B_IN]  = { AXIS_PP, GROUP_B_OUT },
  [GROUP_B_OUT] = { AXIS_PP, GROUP_B_OUT },
};

void mesh_spec (const struct mesh *m, enum group_kind k, struct group_spec *spec, int *member)
{
  int me, n = mesh_group (&m->shape, m->rank, k, member, &me);
  enum axis a = home[k].axis;
  *spec = (struct group_spec) { .kind = k, .comm = MPI_COMM_SELF, .n = n, .rank = me, .tag = home[k].tag };
  if (n == 1) return;
  spec->comm = a == AXIS_N ? m->world : a == AXIS_TP ? m->tp : a == AXIS_PP ? m->pp : m->dp;
  if (a == AXIS_N) return;
  for (int i = 0; i < n; i++) member[i] = rank_in (m, a, member[i]);
  spec->member = member;
}

/* ---- agreeing ---- */

struct owner { int rank; char id[32]; };   /* of a device; rank of the world */

/* The sentence of rank WHO becomes everybody's. */
static int spread (const struct mesh *m, int who, const char *head, struct err *e)
{
  struct err own = { 0 };
  if (m->rank == who && e) own = *e;
  bcast (m->world, who, &own, sizeof own);
  if (!own.msg[0]) strcpy (own.msg, "failed without a word");
  if (e) {
    snprintf (e->msg, sizeof e->msg, "%s%s", head, own.msg);
    e->code = own.code ? own.code : EXIT_USER;
  }
  return -1;
}

int mesh_agree (struct mesh *m, int failed, struct err *e)
{
  struct err none = { 0 };
  int64_t h = failed ? (int64_t) (hash_bytes (e ? e->msg : "", e ? strlen (e->msg) : 0, 1) | 1) : 0;
  int64_t v[3] = { failed ? m->rank : INT64_MAX, h, ~h };   /* MIN of ~h is the complement of the MAX of h */
  char head[32] = "";
  min_all (m, v, LEN (v));
  if (v[0] == INT64_MAX) return 0;
  if (v[1] != ~v[2]) snprintf (head, sizeof head, "rank %d: ", (int) v[0]);
  return spread (m, (int) v[0], head, e ? e : &none);
}

char *mesh_share_text (const struct mesh *m, char *text)
{
  int64_t n = text ? (int64_t) strlen (text) + 1 : 0;
  MPI_Request q;
  MPI_Ibcast (&n, 1, MPI_INT64_T, 0, m->world, &q);
  wait_all (1, &q);
  must (n <= INT32_MAX, "a text of %lld bytes is too long for one message", (long long) n);
  if (!n) return NULL;
  if (m->rank) text = xalloc ((size_t) n, "text");
  MPI_Ibcast (text, (int) n, MPI_CHAR, 0, m->world, &q);
  wait_all (1, &q);
  return text;
}

/* The world ranks of this node that use the device ID into rank[]; how many. */
static int users_of (const char *id, const struct owner *o, int n, int *rank)
{
  int users = 0;
  for (int i = 0; i < n; i++)
    if (!strcmp (o[i].id, id)) rank[users++] = o[i].rank;
  return users;
}

int mesh_devices (struct mesh *m, const char *id, bool shared, char *out, size_t size, struct err *e)
{
  struct owner mine = { .rank = m->rank }, *all = xalloc ((size_t) m->local_size * sizeof *all, "mesh");
  int *rank = xalloc ((size_t) m->local_size * sizeof (int), "mesh"), bad = 0;
  char ranks[64];
  MPI_Request r;
  snprintf (mine.id, sizeof mine.id, "%s", id);
  MPI_Iallgather (&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, m->node_comm, &r);
  wait_all (1, &r);
  out[0] = 0;
  for (int i = 0; i < m->local_size; i++) {
    size_t at = strlen (out);
    snprintf (out + at, size - at, "%s%s", at ? ", " : "", all[i].id);
  }
  for (int i = 0; i < m->local_size && !bad && !shared; i++) {
    int n = all[i].id[0] ? users_of (all[i].id, all, m->local_size, rank) : 0;
    if (n < 2) continue;
    mesh_ranks_text (rank, n, ranks, sizeof ranks);
    bad = user_err (e, "ranks %s of host %s would all use the GPU %s: start one rank a GPU, each of which sees all GPUs of its node or its own alone "
                    "(CUDA_VISIBLE_DEVICES); for tests --debug.shared_gpu true lets them share it", ranks, base_host (), all[i].id);
  }
  xfree (all);
  xfree (rank);
  return mesh_agree (m, bad, e);
}

/* Rank 0's text on every rank; xfree it. Cut, so that no count passes 2^31. */
static char *text_of_root (const struct mesh *m, const char *text)
{
  uint64_t n = strlen (text);
  bcast (m->world, 0, &n, sizeof n);
  char *t = xalloc (n + 1, "mesh");
  if (!m->rank) memcpy (t, text, n);
  for (uint64_t at = 0; at < n; at += 1 << 28) bcast (m->world, 0, t + at, (int) MIN (n - at, (uint64_t) 1 << 28));
  return t;
}

/* A line without its indentation; its length. */
static int bare (const char *line, const char **start)
{
  *start = line + strspn (line, " ");
  return (int) strcspn (*start, "\n");
}

/* "train." for a line that stands, indented, below "train:": the names of the enclosing mappings. */
static void path_of (const char *text, const char *line, char *out, size_t size)
{
  size_t depth = strspn (line, " ");
  char rest[128] = "";
  out[0] = 0;
  while (depth && line > text) {
    do line--; while (line > text && line[-1] != '\n');
    const char *name;
    size_t indent = strspn (line, " ");
    int n = bare (line, &name);
    if (indent >= depth || !n) continue;
    depth = indent;
    snprintf (out, size, "%.*s.%s", MIN ((int) strcspn (name, ":\n"), 100), name, rest);
    snprintf (rest, sizeof rest, "%s", out);
  }
}

/* The first line in which MINE and ROOT differ, in words: "train.seq_len: 64 vs 128 on rank 0". */
static void first_difference (const char *mine, const char *root, char *out, size_t size)
{
  const char *a = mine, *b = root, *x, *y;
  for (;;) {
    size_t na = strcspn (a, "\n"), nb = strcspn (b, "\n");
    if (na != nb || memcmp (a, b, na)) break;
    a += na + (a[na] == '\n');
    b += nb + (b[nb] == '\n');
    if (!*a || !*b) break;   /* one text ends here */
  }
  int nx = bare (a, &x), ny = bare (b, &y);
  char path[256];
  path_of (mine, a, path, sizeof path);
  int key = (int) strcspn (x, ":\n");
  bool same_key = x[key] == ':' && key < ny && !memcmp (x, y, key + 1);
  if (same_key) {
    y += key + 1 + strspn (y + key + 1, " ");
    snprintf (out, size, "%s%.*s vs %.*s on rank 0", path, MIN (nx, 400), x, MIN ((int) strcspn (y, "\n"), 400), y);
  }
  else snprintf (out, size, "\"%s%.*s\" vs \"%.*s\" on rank 0%s", path, MIN (nx, 400), x, MIN (ny, 400), y,
                 nx || ny ? "" : " at the end of the text");
}

int mesh_same (struct mesh *m, const char *name, const char *text, struct err *e)
{
  struct err own = { 0 };
  int64_t h = (int64_t) hash_bytes (text, strlen (text), 0), v[2] = { h, ~h };
  min_all (m, v, LEN (v));
  if (v[0] == ~v[1]) return 0;
  char *root = text_of_root (m, text), words[1200];
  int64_t who = strcmp (root, text) ? m->rank : INT64_MAX;
  if (who == m->rank) {
    first_difference (text, root, words, sizeof words);
    user_err (&own, "rank %d differs in %s: %s", m->rank, name, words);
  }
  xfree (root);
  min_all (m, &who, 1);
  spread (m, (int) who, "", &own);
  if (e) *e = own;
  return -1;
}
