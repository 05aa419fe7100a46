/* The pure half of mesh: who stands where, as arithmetic on (dims, order, rank). No MPI call here: the planner asks the same
   functions. */
#include "config.h"
#include "mesh.h"
#include <inttypes.h>
#include <string.h>

const struct axis_row axis_table[AXIS_N] = {
  [AXIS_TP]           = { AXIS_TP, "tp", "each layer's matrices, and the sequence between them" },
  [AXIS_PP]           = { AXIS_PP, "pp", "layers" },
  [AXIS_DP_SHARD]     = { AXIS_DP_SHARD, "dp_shard", "batch, and parameters with their state" },
  [AXIS_DP_REPLICATE] = { AXIS_DP_REPLICATE, "dp_replicate", "batch" },
};

/* The order in which people list the axes: data first. */
static const enum axis spoken[AXIS_N] = { AXIS_DP_REPLICATE, AXIS_DP_SHARD, AXIS_PP, AXIS_TP };

int mesh_world (const struct mesh_shape *s)
{
  int64_t n = 1;
  for (int a = 0; a < AXIS_N; a++) n = mul_exact (n, s->dim[a]);
  must (n >= 1 && n <= INT32_MAX, "a mesh of %" PRId64 " ranks", n);
  return (int) n;
}

void mesh_coord (const struct mesh_shape *s, int rank, int coord[AXIS_N])
{
  for (int i = 0; i < AXIS_N; i++) {
    enum axis a = s->order[i];
    coord[a] = rank % s->dim[a];
    rank /= s->dim[a];
  }
}

int mesh_rank (const struct mesh_shape *s, const int coord[AXIS_N])
{
  int rank = 0;
  for (int i = AXIS_N - 1; i >= 0; i--) rank = rank * s->dim[s->order[i]] + coord[s->order[i]];
  return rank;
}

/* ---- groups ---- */

/* A group of RANK is the run coord[axis] = first, first + step, ... of one axis, or of dp as a whole. */
static int along (const struct mesh_shape *s, const int *at, enum axis a, int first, int n, int *member, int *me)
{
  int c[AXIS_N];
  memcpy (c, at, sizeof c);
  for (int i = 0; i < n; i++) {
    c[a] = first + i;
    member[i] = mesh_rank (s, c);
  }
  *me = at[a] - first;
  return n;
}

static int all_dp (const struct mesh_shape *s, const int *at, int *member, int *me)
{
  int c[AXIS_N], shard = s->dim[AXIS_DP_SHARD], n = shard * s->dim[AXIS_DP_REPLICATE];
  memcpy (c, at, sizeof c);
  for (int i = 0; i < n; i++) {
    c[AXIS_DP_SHARD] = i % shard;
    c[AXIS_DP_REPLICATE] = i / shard;
    member[i] = mesh_rank (s, c);
  }
  *me = at[AXIS_DP_REPLICATE] * shard + at[AXIS_DP_SHARD];
  return n;
}

static int alone (const struct mesh_shape *s, const int *at, int *member, int *me)
{
  member[0] = mesh_rank (s, at);
  *me = 0;
  return 1;
}

/* Two stages, {from, to}; this rank is one of them. */
static int pair (const struct mesh_shape *s, const int *at, int from, int to, int *member, int *me)
{
  int c[AXIS_N], pp = s->dim[AXIS_PP];
  memcpy (c, at, sizeof c);
  c[AXIS_PP] = (from + pp) % pp;
  member[0] = mesh_rank (s, c);
  c[AXIS_PP] = (to + pp) % pp;
  member[1] = mesh_rank (s, c);
  *me = member[1] == mesh_rank (s, at);
  return 2;
}

int mesh_group (const struct mesh_shape *s, int rank, enum group_kind k, int *member, int *me)
{
  int at[AXIS_N], pp = s->dim[AXIS_PP], world = mesh_world (s), rep = MAX (s->kv_rep, 1);
  mesh_coord (s, rank, at);
  int stage = at[AXIS_PP];
  bool end = stage == 0 || stage == pp - 1;
  switch (k) {
  case GROUP_WORLD:
    for (int i = 0; i < world; i++) member[i] = i;
    *me = rank;
    return world;
  case GROUP_SHARD:
    return s->no_shard ? alone (s, at, member, me) : along (s, at, AXIS_DP_SHARD, 0, s->dim[AXIS_DP_SHARD], member, me);
  case GROUP_REP:
    return s->no_shard ? all_dp (s, at, member, me) : along (s, at, AXIS_DP_REPLICATE, 0, s->dim[AXIS_DP_REPLICATE], member, me);
  case GROUP_TP: return along (s, at, AXIS_TP, 0, s->dim[AXIS_TP], member, me);
  case GROUP_KV: return along (s, at, AXIS_TP, at[AXIS_TP] / rep * rep, rep, member, me);
  default: break;
  }
  if (pp == 1 || (k == GROUP_TIED && !end)) return alone (s, at, member, me);
  switch (k) {
  case GROUP_TIED:  return pair (s, at, 0, pp - 1, member, me);
  case GROUP_F_IN:  return pair (s, at, stage - 1, stage, member, me);
  case GROUP_F_OUT: return pair (s, at, stage, stage + 1, member, me);
  case GROUP_B_IN:  return pair (s, at, stage + 1, stage, member, me);
  case GROUP_B_OUT: return pair (s, at, stage, stage - 1, member, me);
  default: die ("no group of kind %d", k);
  }
}

bool mesh_tp_crosses (const struct mesh_shape *s, const int *node)
{
  int c[AXIS_N], world = mesh_world (s);
  for (int r = 0; r < world; r++) {
    mesh_coord (s, r, c);
    c[AXIS_TP] = 0;
    if (node[r] != node[mesh_rank (s, c)]) return true;
  }
  return false;
}

/* ---- what the user wrote ---- */

static int axis_find (const char *name, size_t n)
{
  for (int a = 0; a < AXIS_N; a++)
    if (strlen (axis_table[a].name) == n && !memcmp (axis_table[a].name, name, n)) return a;
  return -1;
}

int mesh_order (const char *text, enum axis order[AXIS_N], struct err *e)
{
  static const char form[] = "it lists tp, pp and dp (or dp_shard and dp_replicate), each once, fastest first, such as tp-pp-dp";
  unsigned seen = 0;
  int n = 0;
  for (const char *p = text; ; p++) {
    size_t len = strcspn (p, "-");
    enum axis add[2] = { AXIS_DP_SHARD, AXIS_DP_REPLICATE };
    bool dp = len == 2 && !memcmp (p, "dp", 2);
    int one = axis_find (p, len);
    if (!dp && one < 0) return user_err (e, "mesh.order %s: no axis \"%.*s\"; %s", text, (int) len, p, form);
    if (!dp) add[0] = one;
    for (int i = 0; i < (dp ? 2 : 1); i++) {
      if (seen & 1u << add[i]) return user_err (e, "mesh.order %s: %s appears twice; %s", text, axis_table[add[i]].name, form);
      seen |= 1u << add[i];
      order[n++] = add[i];
    }
    if (!*(p += len)) break;
  }
  for (int a = 0; a < AXIS_N; a++)
    if (!(seen & 1u << a)) return user_err (e, "mesh.order %s: %s is missing; %s", text, axis_table[a].name, form);
  return 0;
}

/* "dp_shard 3 x pp 2 x tp 2" of the axes that were given. */
static void product_text (const int64_t want[AXIS_N], char *out, size_t size)
{
  size_t n = 0;
  out[0] = 0;
  for (int i = 0; i < AXIS_N; i++) {
    enum axis a = spoken[i];
    if (!want[a] || (a == AXIS_DP_REPLICATE && want[a] == 1)) continue;
    n += snprintf (out + n, size - n, "%s%s %" PRId64, n ? " x " : "", axis_table[a].name, want[a]);
  }
}

/* The axis that takes the ranks that remain: the only one left out, or of several dp_shard; -1: none. */
static int taker (const int64_t want[AXIS_N])
{
  int n = 0, last = -1;
  for (int a = 0; a < AXIS_N; a++)
    if (!want[a]) n++, last = a;
  return !want[AXIS_DP_SHARD] ? AXIS_DP_SHARD : n == 1 ? last : -1;
}

int mesh_fill (const int64_t want[AXIS_N], int world, int dim[AXIS_N], struct err *e)
{
  char text[160];
  const int64_t far = (int64_t) INT32_MAX + 1;   /* the product stops there: it does not fit anyway, and must not overflow */
  int64_t product = 1;
  product_text (want, text, sizeof text);
  for (int a = 0; a < AXIS_N; a++) {
    if (want[a] < 0 || want[a] > INT32_MAX)
      return user_err (e, "mesh.%s %" PRId64 " is no number of ranks", axis_table[a].name, want[a]);
    if (want[a]) product = MIN (mul_exact (product, want[a]), far);
  }
  int rest = taker (want);
  if (product == far) return user_err (e, "mesh: %s is far more than the %d ranks", text, world);
  if (product > world || (rest < 0 && product != world))
    return user_err (e, "mesh: %s = %" PRId64 ", but there are %d ranks%s", text, product, world,
                     product > 1 && world == 1 ? ": start it with mpiexec -n N" : "");
  if (world % product)
    return user_err (e, "mesh: %s = %" PRId64 " does not divide the %d ranks, of which %s takes the rest", text, product, world,
                     axis_table[rest].name);
  for (int a = 0; a < AXIS_N; a++) dim[a] = want[a] ? (int) want[a] : 1;
  if (rest >= 0) dim[rest] = (int) (world / product);
  return 0;
}
