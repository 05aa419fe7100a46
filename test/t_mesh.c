/* The mesh under MPI: node map, communicators, groups as the devices get them, and how ranks agree. np: 1 2 4 8 */
#include "tap.h"
#include "mesh.h"
#include <stdlib.h>
#include <string.h>

static struct mesh m;
static int virtual_nodes;   /* 2 where MPICH was asked to show two, ranks dealt in turn */

static struct mesh_shape shape (int rep, int shard, int pp, int tp, const char *order)
{
  struct mesh_shape s = { .dim = { [AXIS_DP_REPLICATE] = rep, [AXIS_DP_SHARD] = shard, [AXIS_PP] = pp, [AXIS_TP] = tp },
                          .kv_rep = 1 };
  struct err e = { 0 };
  mesh_order (order, s.order, &e);
  return s;
}

static void node_map (void)
{
  int good = m.nodes == virtual_nodes && m.local_size == m.size / m.nodes && m.node == m.rank % m.nodes
             && m.local_rank == m.rank / m.nodes;
  for (int r = 0; r < m.size; r++) good &= m.node_of[r] == r % m.nodes;
  tap_ok (good, "node map: %d ranks on %d nodes", m.size, m.nodes);
}

/* The group as a device gets it, back in world ranks, is the pure function's. */
static int spec_good (enum group_kind k)
{
  int want[64], member[64], world[64], mine, me;
  int n = mesh_group (&m.shape, m.rank, k, want, &me);
  struct group_spec s;
  mesh_spec (&m, k, &s, member);
  if (n == 1) return s.n == 1 && s.rank == 0 && s.comm == MPI_COMM_SELF && !s.member;
  for (int i = 0; i < n; i++) world[i] = s.member ? s.member[i] : i;
  MPI_Group from, to;
  MPI_Comm_group (s.comm, &from);
  MPI_Comm_group (MPI_COMM_WORLD, &to);
  MPI_Group_translate_ranks (from, n, world, to, member);
  MPI_Group_free (&from);
  MPI_Group_free (&to);
  MPI_Comm_rank (s.comm, &mine);
  return s.n == n && s.rank == me && s.kind == k && !memcmp (member, want, n * sizeof (int)) && world[me] == mine;
}

/* Both ends of each link use one tag, and a message sent by OUT arrives by IN. */
static int link_carries (enum group_kind out, enum group_kind in)
{
  int a[64], b[64], sent = m.rank, got = -1, want;
  struct group_spec to, from;
  mesh_spec (&m, out, &to, a);
  mesh_spec (&m, in, &from, b);
  if (to.n == 1) return from.n == 1;
  MPI_Sendrecv (&sent, 1, MPI_INT, to.member[1], to.tag, &got, 1, MPI_INT, from.member[0], from.tag, m.pp, MPI_STATUS_IGNORE);
  int w[2];
  mesh_group (&m.shape, m.rank, in, w, &want);
  return got == w[0];
}

static void axes (struct mesh_shape s, const char *what)
{
  struct err e = { 0 };
  int rc = mesh_split (&m, &s, true, &e), good = rc == 0, tp, pp, dp;
  MPI_Comm_rank (m.tp, &tp);
  MPI_Comm_rank (m.pp, &pp);
  MPI_Comm_rank (m.dp, &dp);
  good &= tp == m.coord[AXIS_TP] && pp == m.coord[AXIS_PP]
          && dp == m.coord[AXIS_DP_REPLICATE] * s.dim[AXIS_DP_SHARD] + m.coord[AXIS_DP_SHARD];
  for (enum group_kind k = 0; k < GROUP_N; k++) good &= spec_good (k);
  good &= link_carries (GROUP_F_OUT, GROUP_F_IN) && link_carries (GROUP_B_OUT, GROUP_B_IN);
  tap_ok (good, "communicators and groups of %s", what);
  MPI_Comm_free (&m.tp);
  MPI_Comm_free (&m.pp);
  MPI_Comm_free (&m.dp);
}

static void all_axes (void)
{
  int n = m.size, two = n > 1 ? 2 : 1;
  struct mesh_shape s = shape (1, n / two, 1, two, "tp-pp-dp");
  s.kv_rep = two;
  axes (s, "dp x tp, KV heads replicated");
  s = shape (1, n / two, two, 1, "dp-pp-tp");
  s.no_shard = true;
  axes (s, "dp x pp, not sharded, dp fastest");
  axes (shape (1, 1, n, 1, "tp-pp-dp"), "pp alone");
  axes (shape (two, n / two, 1, 1, "tp-pp-dp_replicate-dp_shard"), "replicas, side by side");
  if (n == 8) axes (shape (1, 2, 2, 2, "tp-dp-pp"), "dp 2 x pp 2 x tp 2");
}

static void refusal (void)
{
  if (m.nodes < 2) return;
  struct err e = { 0 };
  struct mesh_shape s = shape (1, m.size / 2, 1, 2, "tp-pp-dp");
  int rc = mesh_split (&m, &s, false, &e);
  char want[200];
  snprintf (want, sizeof want, "the tp group of ranks 0, 1 spans node 0 (%s) and node 1 (%s)", base_host (), base_host ());
  tap_ok (rc == -1 && e.code == EXIT_USER && strstr (e.msg, want) && strstr (e.msg, "--mesh.tp_across_nodes true"),
          "tp across nodes is refused: %s", e.msg);
  s = shape (1, 2, 1, m.size / 2, "dp-pp-tp");
  e.msg[0] = 0;
  tap_ok (mesh_split (&m, &s, false, &e) == 0 && m.tp != MPI_COMM_NULL, "tp within the nodes is not");
  MPI_Comm_free (&m.tp);
  MPI_Comm_free (&m.pp);
  MPI_Comm_free (&m.dp);
}

/* Rank r fails if bit r of who is set, with its own sentence or the common one. */
static int agreed (unsigned who, int own, int code, struct err *e)
{
  memset (e, 0, sizeof *e);
  int failed = who >> m.rank & 1;
  if (failed) {
    if (own) snprintf (e->msg, sizeof e->msg, "disk %d is full", m.rank);
    else strcpy (e->msg, "no such file");
    e->code = code;
  }
  return mesh_agree (&m, failed, e);
}

static void agree (void)
{
  struct err e;
  unsigned all = (1u << m.size) - 1, last = 1u << (m.size - 1);
  char want[64];
  tap_ok (agreed (0, 0, 0, &e) == 0 && !e.msg[0], "all is well");
  tap_ok (agreed (all, 0, EXIT_USER, &e) == -1 && !strcmp (e.msg, "no such file") && e.code == EXIT_USER,
          "all fail alike: one sentence");
  if (m.size > 1) snprintf (want, sizeof want, "rank %d: disk %d is full", m.size - 1, m.size - 1);
  else strcpy (want, "disk 0 is full");
  tap_ok (agreed (last, 1, EXIT_WORLD, &e) == -1 && !strcmp (e.msg, want) && e.code == EXIT_WORLD,
          "one fails: all know who and why: %s", e.msg);
  if (m.size < 4) return;
  tap_ok (agreed (last | 2, 1, EXIT_WORLD, &e) == -1 && !strcmp (e.msg, "rank 1: disk 1 is full"),
          "two fail: the lower one speaks");
  memset (&e, 0, sizeof e);
  tap_ok (mesh_agree (&m, m.rank == 2, NULL) == -1, "a failure without a sentence is a failure");
}

/* Ranks from FIRST on have B, those before A. */
static int same (const char *a, const char *b, int first, struct err *e)
{
  memset (e, 0, sizeof *e);
  return mesh_same (&m, "configuration", m.rank >= first ? b : a, e);
}

static void compare (void)
{
  static const char a[] = "model: tiny\ntrain:\n  seq_len: 64\n  steps: 5\n";
  static const char b[] = "model: tiny\ntrain:\n  seq_len: 128\n  steps: 5\n";
  struct err e;
  tap_ok (same (a, a, 0, &e) == 0 && !e.msg[0] && same ("", "", 0, &e) == 0, "the same text on all ranks");
  if (m.size < 4) return;
  tap_ok (same (b, a, 3, &e) == -1 && !strcmp (e.msg, "rank 3 differs in configuration: train.seq_len: 64 vs 128 on rank 0")
          && e.code == EXIT_USER, "%s", e.msg);
  tap_ok (same (a, b, 1, &e) == -1 && !strcmp (e.msg, "rank 1 differs in configuration: train.seq_len: 128 vs 64 on rank 0"),
          "the lowest that differs speaks");
  tap_ok (same ("a.b: 1\nc: 2\n", "a.b: 1\nd: 2\n", 2, &e) == -1
          && !strcmp (e.msg, "rank 2 differs in configuration: \"d: 2\" vs \"c: 2\" on rank 0"), "%s", e.msg);
  tap_ok (same ("x", "x\ny: 1", 2, &e) == -1 && strstr (e.msg, "\"y: 1\" vs \"\" on rank 0"), "a text that ends early: %s",
          e.msg);
  tap_ok (same ("x: 1", "x: 1\n", 2, &e) == -1 && strstr (e.msg, "rank 2 differs"), "a newline is a difference: %s", e.msg);
  size_t n = 3 << 20;
  char *big = malloc (n + 1);
  memset (big, 'a', n);
  for (size_t i = 79; i < n; i += 80) big[i] = '\n';
  big[n] = 0;
  int alike = same (big, big, 0, &e) == 0;
  if (m.rank == 3) big[n - 1] = 'b';
  tap_ok (alike && same (big, big, 0, &e) == -1 && strstr (e.msg, "rank 3 differs"), "a long text, and its last letter");
  free (big);
}

/* Ranks and their GPUs. Nodes are numbered in turn (virtual_nodes). */
static int taken (const char *id, bool shared, char *words, struct err *e)
{
  memset (e, 0, sizeof *e);
  return mesh_devices (&m, id, shared, words, 128, e);
}

static void devices (void)
{
  struct err e;
  char id[16], words[128], want[128] = "", sentence[64];
  int last = m.local_size - 1;
  snprintf (id, sizeof id, "1b:%d", m.local_rank);
  for (int i = 0; i < m.local_size; i++) snprintf (want + strlen (want), 16, "%s1b:%d", i ? ", " : "", i);
  tap_ok (!taken (id, false, words, &e) && !strcmp (words, want), "a GPU for each rank, the same names on each node: %s", words);
  tap_ok (!taken ("", false, words, &e), "no GPU at all");
  if (last < 1) return;
  /* on the last node the first and the last rank have one GPU */
  int a = m.nodes - 1, b = a + last * m.nodes;
  if (m.rank == b) strcpy (id, "1b:0");
  snprintf (sentence, sizeof sentence, "ranks %d, %d of host", a, b);
  int bad = taken (id, false, words, &e);
  tap_ok (bad && strstr (e.msg, sentence) && strstr (e.msg, "the GPU 1b:0:") && e.code == EXIT_USER, "two ranks on one: refused on all, with their numbers");
  tap_ok (!taken (id, true, words, &e), "and allowed where it is asked for");
}

int main (int argc, char **argv)
{
  const char *size = getenv ("PMI_SIZE");
  virtual_nodes = size && atoi (size) >= 4 ? 2 : 1;
  if (virtual_nodes == 2) setenv ("MPIR_CVAR_NUM_CLIQUES", "2", 1);
  MPI_Init (&argc, &argv);
  struct err e = { 0 };
  wait_init (size ? atoi (size) : 1);
  tap_ok (mesh_open (&m, MPI_COMM_WORLD, &e) == 0, "open");
  node_map ();
  devices ();
  all_axes ();
  refusal ();
  agree ();
  compare ();
  struct mesh_shape s = shape (1, m.size, 1, 1, "tp-pp-dp"), wrong = shape (1, m.size + 1, 1, 1, "tp-pp-dp");
  tap_ok (mesh_split (&m, &wrong, true, &e) == -1, "a shape of another size is refused");
  tap_ok (mesh_split (&m, &s, false, &e) == 0, "split once more");
  mesh_close (&m);
  tap_ok (base_live () == 0 && m.world == MPI_COMM_NULL && m.dp == MPI_COMM_NULL, "nothing is left behind");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
