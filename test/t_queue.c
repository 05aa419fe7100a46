/* Queues, events, groups that share a communicator, links, graphs and memory of the cpu device. np: 1 2 3 4 8 */
#include "cpu_bed.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct dev_conf plain = { .threads = 1 };

static void settle (struct bed *b, struct queue *from)
{
  b->d.ops->record (&b->d, from, b->ev[0]);
  b->d.ops->wait (&b->d, b->q, b->ev[0]);
}
static struct group *open_group (struct bed *b, int n, int me, const int *member, int tag)
{
  return b->d.ops->group_open (&b->d, &(struct group_spec) { .comm = MPI_COMM_WORLD, .n = n, .rank = me, .member = member, .tag = tag,
                               .stage = b->stage, .stage_bytes = b->stage_bytes });
}
static void sum_in (struct bed *b, struct queue *q, struct group *g, void *out, int64_t count)
{
  dev_op (&b->d, q, OP_ALL_REDUCE, coll, .g = g, .out = out, .count = count, .t = DT_F32);
}
static float *floats (struct bed *b, int i) { return cpu_at (b->buf[i]); }
static void fill (float *p, int64_t n, float x) { for (int64_t i = 0; i < n; i++) p[i] = x; }
static bool all_are (const float *p, int64_t n, float x)
{
  bool good = true;
  for (int64_t i = 0; i < n; i++) good &= p[i] == x;
  return good;
}

/* Ranks of one parity, backwards: group order is not the communicator's. */
static void subsets (void)
{
  struct bed b = { 0 };
  int member[64], n = 0, me = 0;
  for (int r = size - 1; r >= 0; r--)
    if (r % 2 == rank % 2) { if (r == rank) me = n; member[n++] = r; }
  bed_open (&b, &plain, n, me, member, 4 << 20);
  float *in = floats (&b, 0), *out = floats (&b, 1), want = 0;
  fill (in, 3000, (float) rank);
  dev_op (&b.d, b.cq, OP_ALL_GATHER, coll, .g = b.g, .in = b.buf[0], .out = b.buf[1], .count = 3000, .t = DT_F32);
  settle (&b, b.cq);
  bool good = true;
  for (int i = 0; i < n; i++) good &= all_are (out + 3000 * i, 3000, (float) member[i]), want += (float) member[i];
  tap_ok (good, "a subset gathers in group order");
  sum_in (&b, b.cq, b.g, b.buf[0], 3000);
  settle (&b, b.cq);
  tap_ok (all_are (in, 3000, want), "a subset sums");
  bed_close (&b);
}

/* Two groups of all ranks on one communicator and two queues, issued in another order by odd ranks. */
static void tags (void)
{
  struct bed b = { 0 };
  bed_open (&b, &(struct dev_conf) { .threads = 1, .comm_chunk = 500, .sync_send = true }, size, rank, NULL, 4 << 20);
  struct group *g = open_group (&b, size, rank, NULL, 8);
  struct queue *q = b.d.ops->queue_open (&b.d, QUEUE_COMM, "other", NULL, 0);
  void *stage = dev_reserve (&b.d, MEM_COMM, SPACE_DEVICE, 4 << 20, &e);
  g->stage = cpu_at (stage);
  fill (floats (&b, 0), 5000, 1);
  fill (floats (&b, 1), 5000, 10);
  for (int i = 0; i < 2; i++) {
    bool first = (i + rank) % 2 == 0;
    sum_in (&b, first ? b.cq : q, first ? b.g : g, b.buf[first ? 0 : 1], 5000);
  }
  settle (&b, b.cq);
  settle (&b, q);
  tap_ok (all_are (floats (&b, 0), 5000, (float) size) && all_are (floats (&b, 1), 5000, 10 * (float) size),
          "groups with tags of their own do not mix, in whatever order they are issued");
  b.d.ops->group_close (&b.d, g);
  dev_release (&b.d, MEM_COMM, SPACE_DEVICE, stage, 4 << 20);
  bed_close (&b);
}

/* A ring of links: to the next rank and from the one before, each a group of two and a queue; the sends are issued first and would deadlock if they blocked. */
static void links (void)
{
  struct bed b = { 0 };
  int next = (rank + 1) % size, prev = (rank + size - 1) % size;
  bed_open (&b, &(struct dev_conf) { .threads = 1, .sync_send = true, .comm_chunk = 1000 }, 1, 0, NULL, 4 << 20);
  struct queue *oq = b.d.ops->queue_open (&b.d, QUEUE_COMM, "out", NULL, 0), *iq = b.d.ops->queue_open (&b.d, QUEUE_COMM, "in", NULL, 0);
  struct group *out = open_group (&b, 2, 0, (int[]) { rank, next }, 21), *in = open_group (&b, 2, 1, (int[]) { prev, rank }, 21);
  bool good = true;
  int64_t before = sent;
  for (int k = 0; k < 3 && size > 1; k++) {
    fill (floats (&b, 0), 4500, (float) (100 * k + rank));
    dev_op (&b.d, oq, OP_SEND, coll, .g = out, .in = b.buf[0], .count = 4500, .t = DT_F32);
    dev_op (&b.d, iq, OP_RECV, coll, .g = in, .out = b.buf[1], .count = 4500, .t = DT_F32);
    settle (&b, iq);
    good &= all_are (floats (&b, 1), 4500, (float) (100 * k + prev));
    settle (&b, oq);
  }
  tap_ok (good, "a ring of links carries what was sent, in order");
  if (size > 1)
    tap_ok (sent - before == 3 * 18000 && group_stat (out, OP_SEND)->bytes == 3 * 18000 && group_stat (in, OP_RECV)->bytes == 0,
            "a send counts its bytes, a receive none");
  b.d.ops->group_close (&b.d, out);
  b.d.ops->group_close (&b.d, in);
  bed_close (&b);
}

/* Collectives of a device so opened do not end before `let_go`, however slow the machine. */
static const struct dev_conf held_conf = { .threads = 1, .comm_delay_ms = 1e9, .comm_chunk = 2000 };
static void let_go (struct queue *q, double delay) { q->run.delay = delay; }

/* A collective ends while maths runs; waited for at once it is exposed. */
static void overlap (void)
{
  struct bed b = { 0 };
  bed_open (&b, &held_conf, size, rank, NULL, 4 << 20);
  struct coll_stat *s = group_stat (b.g, OP_ALL_REDUCE);
  fill (floats (&b, 0), 10000, 1);
  sum_in (&b, b.cq, b.g, b.buf[0], 10000);
  b.d.ops->record (&b.d, b.cq, b.ev[1]);
  dev_op (&b.d, b.q, OP_GEMM, gemm, .m = 10, .n = 100);
  bool early = b.cq->done == b.cq->issued;
  char stuck[100];
  dev_stuck (&b.d, stuck, sizeof stuck);
  tap_ok (!strncmp (stuck, "shard all-reduce 1 of ", 22), "what is under way can be told: %s", stuck);
  let_go (b.cq, 0.01);
  for (int i = 0; i < 5000 && b.cq->done < b.cq->issued; i++) dev_op (&b.d, b.q, OP_GEMM, gemm, .m = 10, .n = 200);
  bool hidden = b.cq->done == b.cq->issued;
  b.d.ops->wait (&b.d, b.q, b.ev[1]);
  tap_ok (!early && hidden && s->exposed == 0, "a collective ends while maths polls");
  dev_stuck (&b.d, stuck, sizeof stuck);
  tap_ok (!strcmp (stuck, "none"), "and what is done is not");
  tap_ok (s->busy >= 0.010 && all_are (floats (&b, 0), 10000, (float) size), "and has taken the time asked for");
  b.d.conf.comm_delay_ms = 10;
  double begin = now ();
  sum_in (&b, b.cq, b.g, b.buf[0], 10000);
  double wait = now (), before = s->busy;
  settle (&b, b.cq);
  tap_ok (s->exposed >= 0.010 - (wait - begin) && s->exposed <= now () - wait && s->busy >= before, "waited for at once it is exposed");
  bed_close (&b);
}

/* A copy on one comm queue waits for a collective on another; maths behind a collective on the same queue waits for its turn. */
static void between_queues (void)
{
  struct bed b = { 0 };
  bed_open (&b, &held_conf, size, rank, NULL, 4 << 20);
  struct queue *q = b.d.ops->queue_open (&b.d, QUEUE_COMM, "second", NULL, 0);
  fill (floats (&b, 0), 1000, 2);
  fill (floats (&b, 1), 1000, 5);
  sum_in (&b, b.cq, b.g, b.buf[0], 1000);
  dev_op (&b.d, b.cq, OP_AXPBY, axpby, .y = b.buf[0], .x = b.buf[0], .n = 1000, .alpha = 3);
  b.d.ops->record (&b.d, b.cq, b.ev[1]);
  b.d.ops->wait (&b.d, q, b.ev[1]);
  dev_op (&b.d, q, OP_COPY, copy, .dst = b.buf[1], .src = b.buf[0], .bytes = 4000);
  bool held = q->done == 0 && all_are (floats (&b, 1), 1000, 5);
  let_go (b.cq, 0);
  b.d.ops->record (&b.d, q, b.ev[1]);
  dev_op (&b.d, b.cq, OP_ZERO, zero, .dst = b.buf[2], .bytes = 4000);   /* more behind the record changes nothing */
  b.d.ops->sync (&b.d, b.ev[1]);
  tap_ok (held && all_are (floats (&b, 1), 1000, 6 * (float) size), "an event orders two comm queues, with maths between");
  float got;
  b.d.ops->fetch (&b.d, b.ev[1], &got, floats (&b, 1) + 7, 4, NULL);
  tap_ok (got == 6 * (float) size, "a value is fetched after its event");
  tap_ok (b.d.op_count[OP_AXPBY] == 1 && b.d.op_count[OP_COPY] == 1, "operations are counted once");
  bed_close (&b);
}

static void fused (void)
{
  struct bed b = { 0 };
  bed_open (&b, &(struct dev_conf) { .threads = 1, .comm_delay_ms = 3 }, size, rank, NULL, 4 << 20);
  fill (floats (&b, 0), 100, (float) rank);
  double before = now ();
  dev_gather_gemm (&b.d, b.q, b.cq, b.ev, &(struct op_coll) { .g = b.g, .in = b.buf[0], .out = b.buf[1], .count = 100, .t = DT_F32 },
                   &(struct op_gemm) { .m = 1, .n = 100, .k = 10 });
  tap_ok (gemm_end > before + 0.003 && floats (&b, 1)[100 * size - 1] == (float) (size - 1) && b.d.flops == 2000, "gather, then GEMM");
  dev_gemm_scatter (&b.d, b.q, b.cq, b.ev, &(struct op_gemm) { .m = 1, .n = 100 },
                    &(struct op_coll) { .g = b.g, .in = b.buf[1], .out = b.buf[2], .count = 100, .t = DT_F32, .it = DT_F32, .ot = DT_F32 });
  tap_ok (b.cq->done == b.cq->issued && all_are (floats (&b, 2), 100, (float) (rank * size)), "GEMM, then scatter; the compute queue is behind both");
  bed_close (&b);
}

static void graphs (void)
{
  struct bed b = { 0 };
  bed_open (&b, &plain, size, rank, NULL, 4 << 20);
  fill (floats (&b, 0), 2000, 1);
  b.d.ops->graph_begin (&b.d, b.q);
  dev_op (&b.d, b.q, OP_AXPBY, axpby, .y = b.buf[0], .x = b.buf[0], .n = 2000, .alpha = 2);
  b.d.ops->record (&b.d, b.q, b.ev[0]);
  b.d.ops->wait (&b.d, b.cq, b.ev[0]);
  sum_in (&b, b.cq, b.g, b.buf[0], 2000);
  settle (&b, b.cq);
  dev_op (&b.d, b.q, OP_GEMM, gemm, .m = 0, .n = 7, .k = 1);
  struct graph *g = b.d.ops->graph_end (&b.d, b.q);
  tap_ok (all_are (floats (&b, 0), 2000, 1) && b.d.op_count[OP_AXPBY] == 0 && group_stat (b.g, OP_ALL_REDUCE)->calls == 0, "recording does nothing and counts nothing");
  float want = 1;
  for (int i = 0; i < 3; i++) {
    b.d.ops->graph_launch (&b.d, b.q, g);
    want *= 2 * (float) size;
  }
  tap_ok (all_are (floats (&b, 0), 2000, want), "a launched graph does it, as often as launched");
  tap_ok (b.d.op_count[OP_AXPBY] == 3 && b.d.op_count[OP_ALL_REDUCE] == 3 && group_stat (b.g, OP_ALL_REDUCE)->calls == 3
          && group_stat (b.g, OP_ALL_REDUCE)->bytes == 3 * coll_bytes (OP_ALL_REDUCE, size, 2000, 4), "counters included");
  b.d.ops->graph_free (&b.d, g);
  bed_close (&b);
}

/* Rank 0 waits for MPI while the others wait for a collective that rank 0 has yet to drive through its rounds. */
static void waits_drive (void)
{
  struct bed b = { 0 };
  bed_open (&b, &(struct dev_conf) { .threads = 1, .comm_chunk = 100 }, size, rank, NULL, 4 << 20);
  fill (floats (&b, 0), 5000, 1);
  sum_in (&b, b.cq, b.g, b.buf[0], 5000);
  if (rank) settle (&b, b.cq);
  mesh_barrier (MPI_COMM_WORLD);
  settle (&b, b.cq);
  tap_ok (all_are (floats (&b, 0), 5000, (float) size), "a wait for MPI drives pending collectives");
  bed_close (&b);
}

/* Does reading (or writing) P end a child by SIGSEGV? */
static bool faults (char *p, bool writes)
{
  pid_t pid = fork ();
  if (pid == 0) {
    signal (SIGSEGV, SIG_DFL);
    setrlimit (RLIMIT_CORE, &(struct rlimit) { 0 });
    if (writes) *(volatile char *) p = 1;
    else (void) *(volatile char *) p;
    _exit (0);
  }
  int status = 0;
  waitpid (pid, &status, 0);
  return WIFSIGNALED (status) && WTERMSIG (status) == SIGSEGV;
}

static void memory (void)
{
  struct dev d;
  struct err none = { 0 }, much = { 0 };
  tap_ok (dev_open (&d, "abacus", &plain, &none) == -1 && strstr (none.msg, "abacus"), "an unknown device is refused by name");
  if (dev_open (&d, "cpu", &plain, &e)) die ("%s", e.msg);
  struct queue *q = d.ops->queue_open (&d, QUEUE_COMPUTE, "compute", NULL, 0);
  char *p = dev_reserve (&d, MEM_ACT, SPACE_DEVICE, 10 << 20, &e), *r = dev_reserve (&d, MEM_WORK, SPACE_DEVICE, 5000, &e);
  char *pin = dev_reserve (&d, MEM_STAGE, SPACE_PINNED, 3 << 20, &e), text[6] = "", zero[4096] = "";
  tap_ok (faults (p, false) && faults (p + 5000000, true) && faults (r, false), "device memory faults when touched outside of the device");
  tap_ok (!faults (pin, true) && !((uintptr_t) p & 4095) && !memcmp (cpu_at (r), zero, 4096), "pinned memory is the host's; memory is aligned and zero");
  dev_put (&d, q, p + 77, "hello", 6);
  dev_get (&d, q, text, p + 77, 6);
  tap_ok (!strcmp (text, "hello"), "put and get");
  tap_ok (d.mem[SPACE_DEVICE].reserved[MEM_ACT] == 10 << 20 && d.mem[SPACE_DEVICE].reserved[MEM_WORK] == 5000
          && d.mem[SPACE_PINNED].reserved[MEM_STAGE] == 3 << 20, "reserved bytes are counted by space and purpose");
  tap_ok (!dev_reserve (&d, MEM_LOGIT, SPACE_DEVICE, (int64_t) 1 << 50, &much) && strstr (much.msg, "do not fit") && strstr (much.msg, "logits")
          && d.mem[SPACE_DEVICE].reserved[MEM_LOGIT] == 0, "more than there is is refused with a sentence: %s", much.msg);
  dev_release (&d, MEM_ACT, SPACE_DEVICE, p, 10 << 20);
  char *again = dev_reserve (&d, MEM_ACT, SPACE_DEVICE, 4 << 20, &e);
  tap_ok (again == p && ((char *) cpu_at (again))[77] == 0 && faults (p + (5 << 20), true), "what was given back is zero when handed out again");
  dev_release (&d, MEM_ACT, SPACE_DEVICE, again, 4 << 20);
  dev_release (&d, MEM_WORK, SPACE_DEVICE, r, 5000);
  dev_release (&d, MEM_STAGE, SPACE_PINNED, pin, 3 << 20);
  dev_close (&d);
}

static void write_file (const char *root, const char *name, const char *text)
{
  char path[400];
  snprintf (path, sizeof path, "%s/%s", root, name);
  for (char *s = strchr (path + strlen (root) + 1, '/'); s; s = strchr (s + 1, '/')) {
    *s = 0;
    mkdir (path, 0700);
    *s = '/';
  }
  FILE *f = fopen (path, "w");
  must (f && fputs (text, f) >= 0 && !fclose (f), "cannot write %s", path);
}

/* A made-up node: what is available, and the limits of a job's cgroup and of the one above it. */
static void node_memory (void)
{
  char root[200], command[240];
  snprintf (root, sizeof root, "%s/t_queue.XXXXXX", tap_tmp ());
  must (mkdtemp (root), "%s", root);
  write_file (root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
  bool bare = cpu_node_room (root) == 8000 << 10;
  write_file (root, "proc/self/cgroup", "0::/job/step\n");
  write_file (root, "sys/fs/cgroup/job/step/memory.max", "max\n");
  write_file (root, "sys/fs/cgroup/job/step/memory.current", "100\n");
  bool unlimited = cpu_node_room (root) == 8000 << 10;
  write_file (root, "sys/fs/cgroup/job/memory.max", "500000\n");
  write_file (root, "sys/fs/cgroup/job/memory.current", "300000\n");
  write_file (root, "sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 50000\nfile 7\n");
  bool v2 = cpu_node_room (root) == 250000;
  write_file (root, "proc/self/cgroup", "3:cpuset:/x\n5:memory:/job\n");
  write_file (root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "90000\n");
  write_file (root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "60000\n");
  bool v1 = cpu_node_room (root) == 30000;
  snprintf (command, sizeof command, "rm -rf %s", root);
  tap_ok (bare && unlimited && v2 && v1 && !system (command), "memory is the node's, less where a cgroup says so");
}

static void formulas (void)
{
  tap_ok (coll_bytes (OP_ALL_REDUCE, 4, 256, 4) == 3072 && coll_bytes (OP_ALL_REDUCE, 4, 257, 4) == 2 * 3 * 65 * 4, "small all-reduces are gathered");
  tap_ok (coll_bytes (OP_ALL_GATHER, 3, 10, 2) == 40 && coll_bytes (OP_BROADCAST, 3, 10, 2) == 14 && coll_bytes (OP_SEND, 2, 5, 4) == 20
          && coll_bytes (OP_RECV, 2, 5, 4) == 0, "ring volumes");
  struct op a = { .kind = OP_ATTN, .attn = { .batch = 2, .sq = 50, .sk = 60, .heads = 3, .head_dim = 8, .q0 = 7, .k0 = 3 } };
  bool good = true;
  for (int w = 0; w < 70; w += 9) {
    double pairs = 0;
    a.attn.window = w;
    for (int i = 0; i < 50; i++)
      for (int j = 0; j < 60; j++) pairs += 3 + j <= 7 + i && (!w || 7 + i - (3 + j) < w);
    good &= dev_flops (&a) == 4 * 8 * 2 * 3 * pairs;
  }
  tap_ok (good, "attention's operations are those of the visible pairs");
}

/* libmpich calls ours where UCX is beneath it; elsewhere nobody does, and it must not fall over. */
static void yields (void)
{
  unsigned (*f) (void *) = (unsigned (*) (void *)) dlsym (RTLD_DEFAULT, "ucp_worker_progress"), (*next) (void *) = (unsigned (*) (void *)) dlsym (RTLD_NEXT, "ucp_worker_progress");
  tap_ok (f && f != next && (next || f (NULL) == 0), "blocking MPI calls pass through ours");
}

int main (int argc, char **argv)
{
  bed_begin (&argc, &argv);
  formulas ();
  yields ();
  memory ();
  node_memory ();
  subsets ();
  tags ();
  links ();
  overlap ();
  between_queues ();
  fused ();
  graphs ();
  waits_drive ();
  bed_end ();
  return 0;
}
