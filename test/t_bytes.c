/* Counted bytes, bytes that reach MPI, bytes by formula, bytes by the plan: four sources that agree exactly, for each rank, group and kind of collective; and the memory
   that was planned is the memory that was reserved. np: 8
   (a) the counters of the groups; (b) the messages of two steps, seen by standing between the program and MPI: size, communicator, tag, destination;
   (c) the ledger, from the formulas of DESIGN.md section 5; (d) the same step on the sim device, on a virtual mesh without MPI. One launch runs all cases, each on the first ranks of the world. */
#include "tap.h"
#include "ledger.h"
#include "plan.h"
#include "tiny_run.h"

enum { STEPS = 2, WORLD_MAX = 64 };

/* ---- (b): MPI ---- */

/* Bytes sent to each world rank under each tag, which names the group of the sender (mesh_spec), while `on`; calls that are none of ours. */
static struct { bool on; int64_t sent[GROUP_N][WORLD_MAX], wrong_tag, strays; } seen;

static void saw (int64_t bytes, MPI_Datatype t, int dest, int tag, MPI_Comm comm)
{
  MPI_Group g, w;
  int size, world;
  if (!seen.on) return;
  if (tag < 0 || tag >= GROUP_N) { seen.wrong_tag++; return; }
  PMPI_Type_size (t, &size);
  PMPI_Comm_group (comm, &g);
  PMPI_Comm_group (MPI_COMM_WORLD, &w);
  PMPI_Group_translate_ranks (g, 1, &dest, w, &world);
  PMPI_Group_free (&g);
  PMPI_Group_free (&w);
  seen.sent[tag][world] += bytes * size;
}

#define NOW(NAME) int MPI_##NAME (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c) \
  { saw (n, t, to, tag, c); return PMPI_##NAME (b, n, t, to, tag, c); }
#define LATER(NAME) int MPI_##NAME (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r) \
  { saw (n, t, to, tag, c); return PMPI_##NAME (b, n, t, to, tag, c, r); }
NOW (Send) NOW (Ssend) NOW (Bsend) NOW (Rsend)
LATER (Isend) LATER (Issend) LATER (Ibsend) LATER (Irsend)

/* No other call may carry bytes in a step. */
#define STRAY(NAME, PARAMETERS, ...) int MPI_##NAME PARAMETERS { seen.strays += seen.on; return PMPI_##NAME (__VA_ARGS__); }
STRAY (Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), b, n, t, root, c)
STRAY (Ibcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r), b, n, t, root, c, r)
STRAY (Allreduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c), a, b, n, t, op, c)
STRAY (Iallreduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request *r), a, b, n, t, op, c, r)
STRAY (Reduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, int root, MPI_Comm c), a, b, n, t, op, root, c)
STRAY (Allgather, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c), a, n, t, b, m, u, c)
STRAY (Iallgather, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *r), a, n, t, b, m, u, c, r)
STRAY (Alltoall, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c), a, n, t, b, m, u, c)
STRAY (Reduce_scatter_block, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c), a, b, n, t, op, c)
STRAY (Ireduce_scatter_block, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request *r), a, b, n, t, op, c, r)
STRAY (Sendrecv, (const void *a, int n, MPI_Datatype t, int to, int tag, void *b, int m, MPI_Datatype u, int from, int gat, MPI_Comm c, MPI_Status *s),
       a, n, t, to, tag, b, m, u, from, gat, c, s)
STRAY (Barrier, (MPI_Comm c), c)
STRAY (Ibarrier, (MPI_Comm c, MPI_Request *r), c, r)

/* ---- the three against each other ---- */

static struct coll_stat counted (struct step *s, enum group_kind g, int op)
{
  return s->ch.c[g].g ? *group_stat (s->ch.c[g].g, op) : (struct coll_stat) { 0 };
}

/* Counters and ledger agree for each group and kind; prints what does not. */
static int counters_agree (struct step *s, const struct ledger *l, int rank)
{
  int ok = 1;
  for (int g = 0; g < GROUP_N; g++)
    for (int op = OP_COLL_FIRST; op < OP_N; op++) {
      struct coll_stat c = counted (s, g, op);
      struct ledger_line f = ledger_sum (l, g, op);
      if (c.calls == STEPS * f.calls && c.bytes == STEPS * f.bytes) continue;
      ok = 0;
      fprintf (stderr, "# rank %d, %s, %s: counted %g calls %g bytes a step, by formula %lld calls %lld bytes\n", rank, group_name (g), op_name (op),
               (double) c.calls / STEPS, (double) c.bytes / STEPS, (long long) f.calls, (long long) f.bytes);
    }
  return ok;
}

/* The plan of this rank says what was counted and what was reserved, to the byte; prints what it does not. */
static int plan_agrees (const struct tiny *t, const struct conf *c, int rank, int64_t memory)
{
  struct machine m = { .gpus = WORLD_MAX, .memory = (double) memory, .bandwidth = 1, .stream = 1, .peak = { 1, 1 }, .gemm = { .best = 1 }, .attn = { 1, 1, 1 }, .nvlink = 1, .pcie = 1,
    .nics = 1, .nic_bandwidth = 1, .nic_share = 1, .system = 1 };
  struct plan_stage s;
  struct err e = { 0 };
  int ok = 1;
  snprintf (m.device, sizeof m.device, "%s", t->d.ops->name);
  if (plan_rank (&s, c, &m, &t->m.shape, rank, 0, &e)) die ("%s", e.msg);
  for (int sp = 0; sp < SPACE_N; sp++)
    for (int p = 0; p < MEM_N; p++) {
      if (s.mem[sp][p] == t->d.mem[sp].reserved[p]) continue;
      ok = 0;
      fprintf (stderr, "# rank %d, %s: reserved %lld bytes, by the plan %lld\n", rank, purpose_name (p), (long long) t->d.mem[sp].reserved[p], (long long) s.mem[sp][p]);
    }
  for (int g = 0; g < GROUP_N; g++)
    for (int op = OP_COLL_FIRST; op < OP_N; op++) {
      struct coll_stat is = t->s.ch.c[g].g ? *group_stat (t->s.ch.c[g].g, op) : (struct coll_stat) { 0 };
      struct plan_line x = { 0 };
      for (int i = 0; i < s.lines; i++)
        if ((int) s.line[i].group == g && (int) s.line[i].op == op) x = s.line[i];
      if (is.calls == STEPS * x.calls && is.bytes == STEPS * x.bytes) continue;
      ok = 0;
      fprintf (stderr, "# rank %d, %s, %s: counted %g calls %g bytes a step, by the plan %lld calls %lld bytes\n", rank, group_name (g), op_name (op), (double) is.calls / STEPS,
               (double) is.bytes / STEPS, (long long) x.calls, (long long) x.bytes);
    }
  if (t->d.flops == STEPS * s.flops) return ok;
  fprintf (stderr, "# rank %d: %g operations a step, by the plan %g\n", rank, t->d.flops / STEPS, s.flops);
  return 0;
}

/* A replica check finds nothing after these steps, and sends what formula and plan say. */
static int check_agrees (struct tiny *t, const struct conf *c, int rank, int64_t memory)
{
  struct machine m = { .gpus = WORLD_MAX, .memory = (double) memory, .bandwidth = 1, .stream = 1, .peak = { 1, 1 }, .gemm = { .best = 1 }, .attn = { 1, 1, 1 }, .nvlink = 1, .pcie = 1,
    .nics = 1, .nic_bandwidth = 1, .nic_share = 1, .system = 1 };
  struct ledger l;
  struct plan_stage p;
  struct err e = { 0 };
  struct coll_stat was[GROUP_N];
  snprintf (m.device, sizeof m.device, "%s", t->d.ops->name);
  for (int g = 0; g < GROUP_N; g++) was[g] = counted (&t->s, g, OP_ALL_GATHER);
  int ok = replicas_agree (&t->s.replicas);
  if (!ok) fprintf (stderr, "# rank %d: replicas differ\n", rank);
  ledger_replica_check (&l, c, &t->m.shape, rank);
  if (plan_rank (&p, c, &m, &t->m.shape, rank, 0, &e)) die ("%s", e.msg);
  for (int g = 0; g < GROUP_N; g++) {
    struct coll_stat is = counted (&t->s, g, OP_ALL_GATHER);
    struct ledger_line f = ledger_sum (&l, g, OP_ALL_GATHER);
    struct plan_line x = { 0 };
    for (int i = 0; i < p.checks; i++)
      if ((int) p.check[i].group == g) x = p.check[i];
    int64_t calls = is.calls - was[g].calls, bytes = is.bytes - was[g].bytes;
    if (calls == f.calls && bytes == f.bytes && calls == x.calls && bytes == x.bytes) continue;
    ok = 0;
    fprintf (stderr, "# rank %d, replica check, %s: counted %lld bytes, by formula %lld, by the plan %lld\n", rank, group_name (g), (long long) bytes, (long long) f.bytes, (long long) x.bytes);
  }
  if (l.lines && !(p.check_seconds > 0)) ok = 0, fprintf (stderr, "# rank %d: the plan's check takes no time\n", rank);
  return ok;
}

/* What MPI saw under G's tag went to G's members, not to me, to each the same, and is what was counted. */
static int messages_agree (struct step *s, const struct mesh_shape *m, enum group_kind g, int rank)
{
  int member[mesh_world (m)], me, n = mesh_group (m, rank, g, member, &me), ok = 1;
  int64_t count = 0, rest = 0;
  for (int op = OP_COLL_FIRST; op < OP_N; op++) count += counted (s, g, op).bytes;
  for (int i = 0; i < WORLD_MAX; i++) rest += seen.sent[g][i];
  for (int i = 0; i < n; i++) {
    int64_t to = seen.sent[g][member[i]];
    ok = ok && to == (i == me ? 0 : count / (n - 1));
    rest -= to;
  }
  if (ok && !rest) return 1;
  fprintf (stderr, "# rank %d, %s: counted %lld bytes in a group of %d, MPI saw to its members", rank, group_name (g), (long long) count, n);
  for (int i = 0; i < n; i++) fprintf (stderr, " %lld", (long long) seen.sent[g][member[i]]);
  fprintf (stderr, ", to others %lld\n", (long long) rest);
  return 0;
}

static int run_case (const struct conf *c, MPI_Comm comm, int rank, int64_t memory)
{
  struct tiny t;
  struct ledger l;
  struct err e = { 0 };
  struct step_result r;
  tiny_open (&t, c, comm, memory);
  for (int g = 0; g < GROUP_N; g++)
    if (t.s.ch.c[g].g) memset (&((struct group_head *) t.s.ch.c[g].g)->stat, 0, sizeof (struct group_stat));
  memset (&seen, 0, sizeof seen);
  t.d.flops = 0;
  PMPI_Barrier (comm);
  seen.on = true;
  for (int i = 1; i <= STEPS; i++) tiny_step (&t, i, &r);
  t.d.ops->drain (&t.d);
  seen.on = false;
  if (ledger_kept (&l, c, &t.m.shape, rank, memory, t.d.ops->limits->align, t.s.keep, &e)) die ("%s", e.msg);
  int ok = counters_agree (&t.s, &l, rank) && !seen.strays && !seen.wrong_tag;
  for (int g = 0; g < GROUP_N; g++) ok = messages_agree (&t.s, &t.m.shape, g, rank) && ok;
  if (l.params != t.s.sh.units.total) fprintf (stderr, "# rank %d: P %lld, by formula %lld\n", rank, (long long) t.s.sh.units.total, (long long) l.params);
  ok = ok && l.params == t.s.sh.units.total;
  ok = plan_agrees (&t, c, rank, memory) && ok;
  ok = check_agrees (&t, c, rank, memory) && ok;
  tiny_close (&t);
  return ok;
}

static const struct { int world; const char *options; int64_t memory; } cases[] = {
#include "bytes_cases.h"
};

/* ---- the formulas by themselves ---- */

static void ledger_of (struct ledger *l, int world, const char *options, const char *more, int rank)
{
  struct conf c;
  struct mesh_shape s;
  struct err e = { 0 };
  tiny_options (&c, options, more);
  tiny_shape (&c, world, &s);
  if (ledger_make (l, &c, &s, rank, 0, 64, &e)) die ("%s", e.msg);
}

/* FULL_SHARD's gathers of equal units (a vocabulary whose matrix is none of a layer's size): 2 A U less what stays at the turns. */
static void check_turns (void)
{
  int bad = 0;
  for (int u = 1; u <= 12; u++)
    for (int k = 1; k <= 6; k++)
      for (int a = 1; a <= 4; a++) {
        char more[256];
        struct ledger l;
        snprintf (more, sizeof more, "--mesh.dp_shard 2 --model.layers %d --sharding.prefetch %d --train.micro_batch 1 --train.global_batch %d", u, k - 1, 2 * a);
        ledger_of (&l, 2, "", more, 0);
        int64_t calls = ledger_sum (&l, GROUP_SHARD, OP_ALL_GATHER).calls;
        int64_t ends = k > 1 ? 2 : 2 * a;   /* embedding and head share slots: both stay from two slots on */
        bad += calls != ledger_gathers (u, k, a) + ends;
      }
  tap_ok (!bad, "gathers of 1 to 12 layers, 1 to 6 slots, 1 to 4 micro-batches are 2 A U less (2 A - 1) min (U, K), and the ends'");
}

static bool near (double x, double y) { return x > 0.999 * y && x < 1.001 * y; }

/* 7B over 64 ranks, bf16 on the wire: M = 13.5 GB of weights. The article's 2 M (N - 1) / N is a gather and a reduce-scatter: ZeRO-1, and ZeRO-2 of one
   micro-batch. FULL_SHARD gathers a layer twice a micro-batch, less the turn, the embedding and the head once: nearly half as much again. */
static void check_7b (void)
{
  static const char model[] = "--model llama2-7b --train.dtype bf16 --train.micro_batch 1 --train.seq_len 4096 --sharding.reduce_dtype bf16";
  static const struct { const char *options; double ends, layers, gradients; } row[] = {   /* times that each is sent */
    { "--train.global_batch 64 --sharding.strategy NO_SHARD", 0, 0, 2 },
    { "--train.global_batch 64 --sharding.strategy SHARD_OPT", 1, 1, 1 },
    { "--train.global_batch 64 --sharding.strategy SHARD_GRAD_OP", 1, 1, 1 },
    { "--train.global_batch 256 --sharding.strategy SHARD_GRAD_OP", 1, 1, 4 },
    { "--train.global_batch 64 --sharding.strategy FULL_SHARD --sharding.prefetch 0", 1, 2 - 1 / 32., 1 },
    { "--train.global_batch 256 --sharding.strategy FULL_SHARD --sharding.prefetch 0", 4, 8 - 7 / 32., 4 },
    { "--train.global_batch 256 --sharding.strategy FULL_SHARD --sharding.prefetch 2", 1, 8 - 21 / 32., 4 },
    { "--train.global_batch 256 --sharding.strategy FULL_SHARD --sharding.reshard step", 1, 1, 4 },
  };
  double m = 6.7384e9, ends = 2 * 32000. * 4096;
  for (int i = 0; i < LEN (row); i++) {
    struct ledger l;
    ledger_of (&l, 64, model, row[i].options, 17);
    double b = (double) (ledger_sum (&l, GROUP_SHARD, OP_N).bytes + ledger_sum (&l, GROUP_REP, OP_N).bytes) / 2 * 64 / 63;
    tap_ok (near (b, row[i].ends * ends + row[i].layers * (m - ends) + row[i].gradients * m), "7B on 64: %.2f M (N - 1) / N for %s", b / m, row[i].options);
  }
}

/* 70B on (dp 4, pp 2, tp 8): a gather and a reduce-scatter move 12.9 GB a rank (13.1 of 70.0e9 parameters), not 26, which leaves PP out. */
static void check_70b (void)
{
  struct ledger l;
  double sum = 0;
  for (int stage = 0; stage < 2; stage++) {
    ledger_of (&l, 64, "--model llama2-70b --train.dtype bf16 --train.seq_len 4096 --train.micro_batch 1 --train.global_batch 64 --sharding.reduce_dtype bf16",
               "--mesh.dp_shard 4 --mesh.pp 2 --mesh.tp 8 --sharding.strategy SHARD_OPT", stage * 8);
    sum += (double) ledger_sum (&l, GROUP_SHARD, OP_N).bytes;
  }
  tap_ok (near (sum / 2, 2 * 68.977e9 / 16 * 2 * 3 / 4), "70B on (4, 2, 8): a gather and a reduce-scatter move %.2f GB", sum / 2e9);
  double s = 2.0 * 4096 * 8192, tp = (double) ledger_sum (&l, GROUP_TP, OP_N).bytes;
  tap_ok (near (tp, 16 * (10 * 40 + 2) * s * 7 / 8), "tp of it: %.1f GB, 10 S (t - 1) / t for each of 40 layers, 2 for the head, 16 micro-batches", tp / 1e9);
  tap_ok (ledger_sum (&l, GROUP_B_OUT, OP_SEND).bytes == (int64_t) (16 * s / 8), "pp of it: S / t for each micro-batch");
}

int main (int argc, char **argv)
{
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  const char *only = getenv ("BYTES_ONLY");   /* a part of a case's text */
  for (int i = 0; i < LEN (cases); i++) {
    struct conf c;
    MPI_Comm comm;
    int ok = 1;
    if (only && !strstr (cases[i].options, only)) continue;
    tiny_options (&c, cases[i].options, "--run.replica_check_steps 1");
    MPI_Comm_split (MPI_COMM_WORLD, rank < cases[i].world ? 0 : MPI_UNDEFINED, rank, &comm);
    if (rank < cases[i].world) ok = run_case (&c, comm, rank, cases[i].memory);
    tap_ok (ok, "%d ranks: %s", cases[i].world, cases[i].options);
    if (comm != MPI_COMM_NULL) MPI_Comm_free (&comm);
  }
  if (!only) {
    check_turns ();
    check_7b ();
    check_70b ();
  }
  tap_done ();
  MPI_Finalize ();
  return 0;
}
