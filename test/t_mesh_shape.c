/* The pure half of the mesh: coordinates, groups, what the user wrote, the picture. np: 1 */
#include "tap.h"
#include "mesh.h"
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };
static const char *const orders[] = { "tp-pp-dp", "tp-dp-pp", "pp-tp-dp", "dp-pp-tp", "tp-pp-dp_replicate-dp_shard",
                                      "dp_shard-tp-dp_replicate-pp" };

static struct mesh_shape shape (int rep, int shard, int pp, int tp, const char *order)
{
  struct mesh_shape s = { .dim = { [AXIS_DP_REPLICATE] = rep, [AXIS_DP_SHARD] = shard, [AXIS_PP] = pp, [AXIS_TP] = tp },
                          .kv_rep = 1 };
  struct err e = { 0 };
  if (mesh_order (order, s.order, &e)) printf ("# %s\n", e.msg);
  return s;
}

static int same_but (const struct mesh_shape *s, int a, int b, unsigned axes)
{
  int x[AXIS_N], y[AXIS_N], good = 1;
  mesh_coord (s, a, x);
  mesh_coord (s, b, y);
  for (int i = 0; i < AXIS_N; i++) good &= x[i] == y[i] || (axes >> i & 1);
  return good;
}

/* Coordinates and ranks are two names of one thing, and each coordinate occurs once. */
static int coords_good (const struct mesh_shape *s)
{
  int c[AXIS_N], good = 1;
  for (int r = 0; r < mesh_world (s); r++) {
    mesh_coord (s, r, c);
    good &= mesh_rank (s, c) == r;
    for (int a = 0; a < AXIS_N; a++) good &= c[a] >= 0 && c[a] < s->dim[a];
  }
  return good;
}

/* Every member of a group sees the same list, stands in it where `me` says, and differs in the group's axes alone. */
static int group_good (const struct mesh_shape *s, enum group_kind k, int size, unsigned axes)
{
  int a[MOST], b[MOST], me, you, good = 1;
  for (int r = 0; r < mesh_world (s); r++) {
    int n = mesh_group (s, r, k, a, &me);
    good &= n == size && me < n && a[me] == r;
    for (int i = 0; i < n && good; i++) {
      good &= mesh_group (s, a[i], k, b, &you) == n && you == i && !memcmp (a, b, n * sizeof *a);
      good &= same_but (s, a[0], a[i], axes);
    }
  }
  return good;
}

/* What leaves by OUT arrives at the other end's IN, one stage further, at the same place of the other axes. */
static int link_good (const struct mesh_shape *s, enum group_kind out, enum group_kind in, int step)
{
  int a[2], b[2], me, you, c[AXIS_N], d[AXIS_N], pp = s->dim[AXIS_PP], good = 1;
  for (int r = 0; r < mesh_world (s); r++) {
    int n = mesh_group (s, r, out, a, &me);
    if (pp == 1) {
      good &= n == 1 && a[0] == r && me == 0;
      continue;
    }
    good &= n == 2 && me == 0 && a[0] == r && mesh_group (s, a[1], in, b, &you) == 2 && you == 1 && !memcmp (a, b, sizeof a);
    mesh_coord (s, r, c);
    mesh_coord (s, a[1], d);
    good &= d[AXIS_PP] == (c[AXIS_PP] + step + pp) % pp && same_but (s, r, a[1], 1u << AXIS_PP);
  }
  return good;
}

static int tied_good (const struct mesh_shape *s)
{
  int a[2], me, c[AXIS_N], d[AXIS_N], last = s->dim[AXIS_PP] - 1, good = 1;
  for (int r = 0; r < mesh_world (s); r++) {
    mesh_coord (s, r, c);
    int n = mesh_group (s, r, GROUP_TIED, a, &me), end = last > 0 && (c[AXIS_PP] == 0 || c[AXIS_PP] == last);
    good &= n == (end ? 2 : 1) && a[me] == r;
    if (!end) continue;
    mesh_coord (s, a[1], d);
    good &= me == (c[AXIS_PP] == last) && d[AXIS_PP] == last && same_but (s, a[0], a[1], 1u << AXIS_PP);
  }
  return good;
}

static int all_good (struct mesh_shape *s)
{
  const unsigned tp = 1u << AXIS_TP, shard = 1u << AXIS_DP_SHARD, rep = 1u << AXIS_DP_REPLICATE;
  int good = coords_good (s) && tied_good (s);
  good &= group_good (s, GROUP_WORLD, mesh_world (s), ~0u) && group_good (s, GROUP_TP, s->dim[AXIS_TP], tp);
  good &= group_good (s, GROUP_SHARD, s->dim[AXIS_DP_SHARD], shard) && group_good (s, GROUP_REP, s->dim[AXIS_DP_REPLICATE], rep);
  good &= link_good (s, GROUP_F_OUT, GROUP_F_IN, 1) && link_good (s, GROUP_B_OUT, GROUP_B_IN, -1);
  s->no_shard = true;
  good &= group_good (s, GROUP_SHARD, 1, 0)
          && group_good (s, GROUP_REP, s->dim[AXIS_DP_SHARD] * s->dim[AXIS_DP_REPLICATE], shard | rep);
  s->no_shard = false;
  for (s->kv_rep = 1; s->kv_rep <= s->dim[AXIS_TP]; s->kv_rep *= 2)
    if (s->dim[AXIS_TP] % s->kv_rep == 0) good &= group_good (s, GROUP_KV, s->kv_rep, tp);
  return good;
}

static void laws (void)
{
  static const int dims[][4] = { { 1, 1, 1, 1 }, { 1, 2, 2, 2 }, { 1, 3, 2, 4 }, { 2, 3, 4, 2 }, { 2, 2, 1, 8 }, { 1, 4, 3, 1 },
                                 { 3, 1, 5, 2 }, { 1, 4, 2, 8 } };
  for (int o = 0; o < LEN (orders); o++) {
    int good = 1;
    for (int i = 0; i < LEN (dims); i++) {
      struct mesh_shape s = shape (dims[i][0], dims[i][1], dims[i][2], dims[i][3], orders[o]);
      good &= all_good (&s);
    }
    tap_ok (good, "coordinates, groups and links of %d meshes in the order %s", LEN (dims), orders[o]);
  }
}

static void places (void)
{
  struct mesh_shape s = shape (1, 4, 2, 8, "tp-pp-dp");
  int c[AXIS_N], m[MOST], me;
  mesh_coord (&s, 29, c);
  tap_ok (c[AXIS_TP] == 5 && c[AXIS_PP] == 1 && c[AXIS_DP_SHARD] == 1, "rank 29 of (dp 4, pp 2, tp 8) is (1,1,5)");
  tap_ok (mesh_group (&s, 29, GROUP_SHARD, m, &me) == 4 && m[0] == 13 && m[1] == 29 && m[2] == 45 && m[3] == 61 && me == 1,
          "its shard group is every 16th rank");
  tap_ok (mesh_group (&s, 5, GROUP_F_OUT, m, &me) == 2 && m[0] == 5 && m[1] == 13, "its stage 0 hands on to the next node");
  s.kv_rep = 4;
  tap_ok (mesh_group (&s, 29, GROUP_KV, m, &me) == 4 && m[0] == 28 && m[3] == 31 && me == 1,
          "ranks with the same KV heads are neighbours");
  s = shape (1, 4, 2, 8, "tp-dp-pp");
  mesh_coord (&s, 29, c);
  tap_ok (c[AXIS_TP] == 5 && c[AXIS_DP_SHARD] == 3 && c[AXIS_PP] == 0, "in the order tp-dp-pp it is (3,0,5)");
  s = shape (2, 2, 1, 1, "tp-pp-dp_replicate-dp_shard");
  s.no_shard = true;
  tap_ok (mesh_group (&s, 1, GROUP_REP, m, &me) == 4 && m[0] == 0 && m[1] == 2 && m[2] == 1 && m[3] == 3 && me == 2,
          "data ranks are in order of (replicate, shard), however they lie");
}

static int fills (int64_t rep, int64_t shard, int64_t pp, int64_t tp, int world, const char *want)
{
  int64_t w[AXIS_N] = { [AXIS_DP_REPLICATE] = rep, [AXIS_DP_SHARD] = shard, [AXIS_PP] = pp, [AXIS_TP] = tp };
  int d[AXIS_N];
  struct err e = { 0 };
  char got[sizeof e.msg];
  if (mesh_fill (w, world, d, &e)) strcpy (got, e.msg);
  else sprintf (got, "%d %d %d %d", d[AXIS_DP_REPLICATE], d[AXIS_DP_SHARD], d[AXIS_PP], d[AXIS_TP]);
  if (strcmp (got, want)) printf ("# got: %s\n", got);
  return !strcmp (got, want);
}

static void fill (void)
{
  tap_ok (fills (0, 0, 0, 0, 8, "1 8 1 1") && fills (0, 0, 2, 2, 8, "1 2 2 2") && fills (2, 0, 0, 2, 8, "2 2 1 2"),
          "dp_shard takes the ranks that remain");
  tap_ok (fills (1, 2, 2, 0, 16, "1 2 2 4") && fills (0, 4, 1, 1, 16, "4 4 1 1"), "a single axis left out takes them");
  tap_ok (fills (1, 2, 2, 2, 8, "1 2 2 2") && fills (0, 2, 0, 4, 8, "1 2 1 4") && fills (0, 0, 0, 0, 1, "1 1 1 1"),
          "a mesh that fits stays as it is");
  tap_ok (fills (0, 3, 2, 2, 8, "mesh: dp_shard 3 x pp 2 x tp 2 = 12, but there are 8 ranks"),
          "too many: the product and the ranks");
  tap_ok (fills (2, 2, 1, 1, 8, "mesh: dp_replicate 2 x dp_shard 2 x pp 1 x tp 1 = 4, but there are 8 ranks"), "too few");
  tap_ok (fills (0, 2, 0, 2, 8, "mesh: dp_shard 2 x tp 2 = 4, but there are 8 ranks"),
          "too few, with two axes left out beside dp_shard");
  tap_ok (fills (0, 0, 3, 2, 8, "mesh: pp 3 x tp 2 = 6 does not divide the 8 ranks, of which dp_shard takes the rest"),
          "what remains is no whole number");
  tap_ok (fills (0, -1, 0, 0, 8, "mesh.dp_shard -1 is no number of ranks")
          && fills (0, 0, 0, INT64_MAX, 8, "mesh.tp 9223372036854775807 is no number of ranks"),
          "no number of ranks");
  tap_ok (fills (2, 2147483647, 2147483647, 2147483647, 8,
                 "mesh: dp_replicate 2 x dp_shard 2147483647 x pp 2147483647 x tp 2147483647 is far more than the 8 ranks"),
          "a product beyond all ranks does not overflow");
}

static int order_is (const char *text, enum axis a, enum axis b, enum axis c, enum axis d)
{
  enum axis o[AXIS_N];
  struct err e = { 0 };
  return !mesh_order (text, o, &e) && o[0] == a && o[1] == b && o[2] == c && o[3] == d;
}

static int order_bad (const char *text, const char *word)
{
  enum axis o[AXIS_N];
  struct err e = { 0 };
  return mesh_order (text, o, &e) == -1 && strstr (e.msg, word) && e.code == EXIT_USER;
}

static void order (void)
{
  tap_ok (order_is ("tp-pp-dp", AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE)
          && order_is ("tp-dp-pp", AXIS_TP, AXIS_DP_SHARD, AXIS_DP_REPLICATE, AXIS_PP)
          && order_is ("tp-pp-dp_shard-dp_replicate", AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE)
          && order_is ("dp_replicate-tp-pp-dp_shard", AXIS_DP_REPLICATE, AXIS_TP, AXIS_PP, AXIS_DP_SHARD), "orders");
  tap_ok (order_bad ("tp-pp", "dp_shard is missing") && order_bad ("tp-pp-dp-tp", "tp appears twice")
          && order_bad ("tp-pp-dp-dp_shard", "dp_shard appears twice")
          && order_bad ("tp-xx-dp", "no axis \"xx\"") && order_bad ("", "no axis \"\"")
          && order_bad ("tp-pp-dp-", "no axis \"\"") && order_bad ("tp_pp_dp", "no axis"),
          "orders that are none are named");
}

/* The picture as a string; per: ranks of a node, by blocks or dealt out in turn. */
static char *picture (struct mesh_shape s, int per, int dealt)
{
  int w = mesh_world (&s), *node = xalloc (w * sizeof (int), "test");
  for (int i = 0; i < w; i++) node[i] = dealt ? i % (w / per) : i / per;
  char *text;
  size_t size;
  FILE *f = open_memstream (&text, &size);
  mesh_draw (&s, node, f);
  fclose (f);
  xfree (node);
  return text;
}

static int lines_of (const char *t, size_t *widest)
{
  int n = 0;
  for (*widest = 0; *t; t += strcspn (t, "\n") + 1, n++) *widest = strcspn (t, "\n") > *widest ? strcspn (t, "\n") : *widest;
  return n;
}

static int has (const char *t, const char *a, const char *b) { return strstr (t, a) && strstr (t, b); }

static void draw (void)
{
  size_t wide;
  char *t = picture (shape (1, 4, 2, 8, "tp-pp-dp"), 8, 0);
  tap_ok (has (t, "mesh: dp 4 x pp 2 x tp 8 = 64 ranks on 8 nodes", "\n  node 3    (1,1,0) (1,1,1)"),
          "64 ranks: node 3 holds (1,1,*)");
  tap_ok (has (t, "  tp 8      inside a node", "ranks 0-7")
          && has (t, "  pp 2      crosses nodes: 32 of 32 groups", "ranks 0, 8,")
          && has (t, "  dp 4      crosses nodes: 16 of 16 groups", "ranks 0, 16, 32, 48,"),
          "each axis says whether it crosses nodes");
  tap_ok (lines_of (t, &wide) == 12 && wide <= 130, "12 lines, none over 130 columns");
  free (t);
  t = picture (shape (1, 2, 2, 2, "tp-pp-dp"), 4, 1);
  tap_ok (has (t, "node 1    (0,0,1) (0,1,1) (1,0,1) (1,1,1)  ranks 1, 3, 5, 7", "  tp 2      crosses nodes: 4 of 4 groups")
          && has (t, "  dp 2      inside", "  pp 2      inside"),
          "8 ranks dealt to 2 nodes: tp crosses, the others do not");
  free (t);
  t = picture (shape (1, 3, 2, 1, "tp-pp-dp"), 2, 0);
  tap_ok (has (t, "  pp 2      inside a node", "  dp 3      crosses nodes: 2 of 2 groups") && !strstr (t, "  tp 1 "),
          "an axis of one rank has no line");
  free (t);
  t = picture (shape (2, 2, 2, 8, "tp-pp-dp"), 8, 0);
  tap_ok (has (t, "(rep,shard,pp,tp)", "node 7    (1,1,1,0)") && has (t, "dp_shard 2 ", "dp_replicate 2 "),
          "replicas have a coordinate of their own");
  free (t);
  t = picture (shape (1, 256, 8, 8, "tp-pp-dp"), 8, 0);
  tap_ok (lines_of (t, &wide) < 16 && has (t, "\n  ...\n", "node 2047 (255,7,0)") && strstr (t, "ranks 0, 64, 128, ..., 16320"),
          "16,384 ranks: the first and the last nodes");
  free (t);
}

static void crosses (void)
{
  struct mesh_shape s = shape (1, 2, 1, 4, "tp-pp-dp");
  static const int by_four[8] = { 0, 0, 0, 0, 1, 1, 1, 1 }, by_two[8] = { 0, 0, 1, 1, 2, 2, 3, 3 };
  static const int last[8] = { 0, 0, 0, 0, 1, 1, 1, 2 };
  tap_ok (!mesh_tp_crosses (&s, by_four) && mesh_tp_crosses (&s, by_two) && mesh_tp_crosses (&s, last),
          "tp groups that span nodes are seen");
}

int main (void)
{
  laws ();
  places ();
  fill ();
  order ();
  draw ();
  crosses ();
  tap_ok (base_live () == 0, "nothing is left behind");
  tap_done ();
  return 0;
}
