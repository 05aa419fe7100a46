/* pretrain doctor --calibrate: a machine file of the machine at hand. All ranks compute at once, as in a run; the slowest counts. What is measured goes through the device, as in a
   run. A minute or less. */
#include "config.h"
#include "doctor.h"
#include "job.h"
#include "machine.h"
#include <errno.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 96 << 20, SHAPES = 15, ROUNDS = 3, BATCH = 32 };   /* ROOM: bytes of each of three operands */
static const int64_t shape[SHAPES][3] = { { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 1024, 1024 }, { 1024, 4096, 1024 }, { 1024, 1024, 4096 }, { 2048, 2048, 512 },
  { 512, 1024, 1024 }, { 2048, 256, 2048 }, { 1024, 768, 768 }, { 512, 8192, 768 }, { 4096, 512, 512 }, { 2048, 2048, 2048 },
  { 8192, 1024, 128 }, { 8192, 256, 256 }, { 8192, 128, 1024 } };

struct bench {
  struct job *j;
  struct dev *d;
  struct queue *q, *cq;
  struct event *ev;
  void *a, *b, *c;
  int64_t by;                 /* extents of products are multiplied by it: 4 on a GPU */
  struct group *g;
  union {                     /* what is measured; a figure of the file is the median over rounds */
    struct { double rate[SHAPES], rate32, copy, stream, forward, backward, link, net, launch, head64, link_small, net_small; };
    double all[SHAPES + 11];
  };
  double got;                 /* share of its processors that a rank had in the products, the least of ranks and rounds */
  double spread, typical; int widest;   /* the most over the least of the rounds, less 1: the largest and the median of the first STEADY figures, and whose the largest is */
};
enum { FIGURES = LEN (((struct bench *) 0)->all), STEADY = FIGURES - 4 };
_Static_assert (offsetof (struct bench, got) - offsetof (struct bench, all) == FIGURES * sizeof (double), "a name for each figure");

static double slowest (const struct bench *b, double t)
{
  MPI_Request r;
  double most;
  MPI_Iallreduce (&t, &most, 1, MPI_DOUBLE, MPI_MAX, b->j->m.world, &r);
  wait_all (1, &r);
  return most;
}

/* Seconds of O on queue Q: the best of as many runs as the slowest rank makes in a tenth of a second, at least 5; all ranks make the same number. Where computing is short
   a run is several in a row, as in a step: what it costs to start one and to hear of its end is then hidden. A collective is alone, for its latency. */
static double seconds_of (struct bench *b, struct queue *q, const struct op *o)
{
  double best = 1e30, once = 0;
  int64_t runs = 3, batch = 1;
  for (int64_t i = 0; i < runs; i++) {
    double t = now ();
    for (int64_t k = 0; k < batch; k++) dev_issue (b->d, q, o);
    b->d->ops->record (b->d, q, b->ev);
    b->d->ops->sync (b->d, b->ev);
    t = (now () - t) / (double) batch;
    if (i > 1) best = MIN (best, t);
    if (i != 1) continue;
    once = MAX (slowest (b, t), 1e-7);
    if (q == b->q) batch = (int64_t) MIN (MAX (1e-3 / once, 1), BATCH);
    runs = (int64_t) MIN (MAX (0.1 / once / (double) batch, 5), 2000) + 1;
  }
  return slowest (b, best);
}

static double processor_seconds (void)
{
  struct timespec t;
  clock_gettime (CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void products (struct bench *b)
{
  double wall = now (), busy = processor_seconds ();
  for (int i = 0; i <= SHAPES; i++) {
    const int64_t *s = shape[i < SHAPES ? i : 1], m = s[0] * b->by, n = s[1] * b->by, k = s[2] * b->by;
    enum dtype t = i < SHAPES ? DT_BF16 : DT_F32;
    struct op o = { .kind = OP_GEMM, .gemm = { .m = m, .n = n, .k = k, .tb = true, .a = b->a, .b = b->b, .c = b->c, .ab = t, .ct = t } };
    double rate = dev_flops (&o) / seconds_of (b, b->q, &o);
    if (i < SHAPES) b->rate[i] = rate;
    else b->rate32 = rate;
  }
  double got = (processor_seconds () - busy) / (now () - wall) / MAX (b->d->conf.threads, 1);
  b->got = MIN (b->got, -slowest (b, -got));
}

static double attention (struct bench *b, int64_t head, bool backward)
{
  int64_t s = 512 * b->by, heads = 8, w = heads * head, bytes = s * w * 2;
  struct op_attn f = { .batch = 1, .sq = s, .sk = s, .heads = heads, .kv_heads = heads, .head_dim = head, .q_stride = w, .kv_stride = w, .o_stride = w, .q = b->a, .k = at_bytes (b->a, bytes),
    .v = at_bytes (b->a, 2 * bytes), .o = b->b, .lse = at_bytes (b->b, bytes), .t = DT_BF16 };
  struct op o = { .kind = OP_ATTN, .attn = f };
  double forward = dev_flops (&o) / seconds_of (b, b->q, &o);
  if (!backward) return forward;
  o = (struct op) { .kind = OP_ATTN_BWD, .attn_bwd = { .f = f, .d_o = at_bytes (b->b, 2 * bytes), .dq = b->c, .dk = at_bytes (b->c, bytes), .dv = at_bytes (b->c, 2 * bytes), .dq_stride = w,
    .dkv_stride = w, .delta = at_bytes (b->c, 3 * bytes) } };
  return dev_flops (&o) / seconds_of (b, b->q, &o);
}

static void memory (struct bench *b)
{
  int64_t n = ROOM / 2, rows = n / 4096 / 2;
  b->copy = 2.0 * (double) n / seconds_of (b, b->q, &(struct op) { .kind = OP_COPY, .copy = { .dst = b->c, .src = b->a, .bytes = n } });
  b->launch = seconds_of (b, b->q, &(struct op) { .kind = OP_COPY, .copy = { .dst = b->c, .src = b->a, .bytes = 64 } });
  struct op swiglu = { .kind = OP_SWIGLU, .swiglu = { .n = rows / 2, .f = 4096, .gu = b->a, .out = b->c, .t = DT_BF16 } };
  b->stream = 3.0 * (double) (rows / 2) * 4096 * 2 / seconds_of (b, b->q, &swiglu);
}

/* Bandwidth of a large all-gather over COMM, and the time of a small one. */
static void links (struct bench *b, MPI_Comm comm, int n, int rank, double *rate, double *small)
{
  int64_t stage = MAX (b->d->ops->limits->comm_stage, 4 << 20), each = round_up (ROOM / 4 / n, 256);
  *rate = *small = 0;
  if (n == 1) return;
  struct err e = { 0 };
  void *room = dev_reserve (b->d, MEM_COMM, SPACE_DEVICE, stage, &e);
  must (room, "%s", e.msg);
  struct group *g = b->d->ops->group_open (b->d, &(struct group_spec) { .comm = comm, .n = n, .rank = rank, .tag = 3, .stage = room, .stage_bytes = stage });
  struct op o = { .kind = OP_ALL_GATHER, .coll = { .g = g, .in = b->a, .out = b->b, .count = each / 2, .t = DT_BF16, .it = DT_BF16, .ot = DT_BF16 } };
  *rate = (double) (n - 1) * (double) each / seconds_of (b, b->cq, &o);
  o.coll.count = 32;
  *small = seconds_of (b, b->cq, &o);
  b->d->ops->drain (b->d);
  b->d->ops->group_close (b->d, g);
  dev_release (b->d, MEM_COMM, SPACE_DEVICE, room, stage);
}

/* ---- the file ---- */

struct fitted { double best, half_k, half_tiles, error; };

/* The formula of machine.h nearest to the measured products, in logarithms. UNITS as in the file. */
static struct fitted fit (const struct bench *b, double peak, double units)
{
  struct fitted f = { .error = 1e30 };
  for (double half_k = 0; half_k <= 512; half_k = half_k ? half_k * 1.5 : 8)
    for (double half_tiles = 0; half_tiles <= 16; half_tiles = half_tiles ? half_tiles * 1.5 : 0.05) {
      double sum = 0, squares = 0;
      for (int i = 0; i < SHAPES; i++) {
        double m = (double) (shape[i][0] * b->by), n = (double) (shape[i][1] * b->by), k = (double) (shape[i][2] * b->by), waves = m * n / (128.0 * 256.0 * units);
        double x = log (b->rate[i] / (peak * k / (k + half_k) * waves / (waves + half_tiles)));
        sum += x;
        squares += x * x;
      }
      double error = sqrt (MAX (squares / SHAPES - sum * sum / SHAPES / SHAPES, 0));
      if (error < f.error) f = (struct fitted) { MIN (exp (sum / SHAPES), 1), half_k, half_tiles, error };
    }
  return f;
}

static void write_file (const struct bench *b, FILE *f)
{
  const struct mesh *m = &b->j->m;
  const char *device = b->d->ops->name, *host = base_host ();
  double peak = 0, units = strcmp (device, "cpu") ? 132 : 1, host_memory = (double) sysconf (_SC_PHYS_PAGES) * (double) sysconf (_SC_PAGESIZE);
  char day[32];
  time_t t = time (NULL);
  strftime (day, sizeof day, "%Y-%m-%d", localtime (&t));
  for (int i = 0; i < SHAPES; i++) peak = MAX (peak, b->rate[i]);
  struct fitted g = fit (b, peak, units);
  bool cross = m->nodes > 1;
  double link = b->link > 0 ? b->link : b->copy / 2, small = b->link > 0 ? b->link_small : b->launch, net = cross ? b->net : link, net_small = cross ? b->net_small : small;
  fprintf (f, "# %s as %d rank%s of %s see%s it, %d compute thread%s each. Written by: mpiexec -n %d pretrain doctor --calibrate\n", host, m->size, m->size > 1 ? "s" : "", device, m->size > 1 ? "" : "s",
           b->d->conf.threads, b->d->conf.threads > 1 ? "s" : "", m->size);
  fprintf (f, "name: %s\nsource:\n  gpu: \"measured on %s, %s: the peaks are the fastest product of this run; memory as the device says\"\n", device, host, day);
  fprintf (f, "  gemm: \"measured on %s, %s: %d products of bf16, all ranks at once, medians of %d rounds, which differ by %.0f %% (median); the formula fitted on them, rms %.0f %%\"\n", host, day, SHAPES, ROUNDS,
           100 * b->typical, 100 * g.error);
  fprintf (f, "  attention: \"measured on %s, %s: causal, bf16, 8 heads of 128 and of 64, %lld tokens\"\n", host, day, (long long) (512 * b->by));
  if (b->link > 0) fprintf (f, "  nvlink: \"measured on %s, %s: all-gather of %d MiB over the %d ranks of a node, and of 64 bytes\"\n", host, day, ROOM / 4 >> 20, m->local_size);
  else fprintf (f, "  nvlink: \"not measured, as there was one rank a node: half of the copy bandwidth stands here\"\n");
  if (cross) fprintf (f, "  nic: \"measured on %s, %s: all-gather over %d nodes, and of 64 bytes\"\n", host, day, m->nodes);
  else fprintf (f, "  nic: \"not measured, as there was one node: the figures inside of the node stand here\"\n");
  fprintf (f, "device: %s\n", device);
  fprintf (f, "gpu: {name: %s, memory: %.0f MiB, outside: %.0f MiB, bandwidth: %.3f GB/s, stream: %.3f, launch: %.2f us, units: %.0f, peak_bf16: %.4g GFLOP/s, peak_fp32: %.4g GFLOP/s}\n",
           strcmp (device, "cpu") ? device : "CPU rank", (double) b->d->ops->memory (b->d) / 0x1p20, (double) b->d->ops->limits->outside / 0x1p20, b->copy / 1e9, MIN (b->stream / b->copy, 1),
           1e6 * b->launch, units, peak / 1e9, b->rate32 / 1e9);
  fprintf (f, "gemm:\n  best: %.3f\n  half_k: %.1f\n  half_tiles: %.3f\n  points: [", g.best, g.half_k, g.half_tiles);
  for (int i = 0; i < SHAPES; i++)
    fprintf (f, "%s%s%lld %lld %lld %.1f GFLOP/s", i ? ", " : "", i && i % 4 == 0 ? "\n    " : "", (long long) (shape[i][0] * b->by), (long long) (shape[i][1] * b->by),
             (long long) (shape[i][2] * b->by), b->rate[i] / 1e9);
  fprintf (f, "]\nattention: {forward: %.2f GFLOP/s, backward: %.2f GFLOP/s, head64: %.3f, half_seq: 0}\n", b->forward / 1e9, b->backward / 1e9, b->head64);
  fprintf (f, "node: {gpus: %d, nvlink: %.3f GB/s, nvlink_latency: %.2f us, pcie: %.3f GB/s, memory: %.0f MiB, host_bandwidth: %.3f GB/s}\n", m->local_size, link / 1e9,
           1e6 * small / 2 / m->local_size, b->copy / 1e9, host_memory / 0x1p20, b->copy * m->local_size / 1e9);
  fprintf (f, "nic: {name: %s, count: 1, bandwidth: %.3f GB/s, share: 1, latency: %.2f us}\n", cross ? "network" : "none", net / 1e9, 1e6 * net_small / 2 / MAX (m->nodes, 1));
  fprintf (f, "comm: {launch: %.2f us}\n", 1e6 * small / 2);
}

/* ---- the command ---- */

static void one_round (struct bench *b)
{
  const struct mesh *m = &b->j->m;
  products (b);
  memory (b);
  b->forward = attention (b, 128, false);
  b->backward = attention (b, 128, true);
  b->head64 = MIN (attention (b, 64, false) / b->forward, 1);
  links (b, m->node_comm, m->local_size, m->local_rank, &b->link, &b->link_small);
  if (m->nodes > 1) links (b, m->world, m->size, m->rank, &b->net, &b->net_small);
}

static int rising (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* Rounds one after the other, so that what disturbs one figure for a second does not disturb it in all of them. */
static void rounds (struct bench *b)
{
  double got[FIGURES][ROUNDS], spread[STEADY];
  b->got = 1;
  for (int r = 0; r < ROUNDS; r++) {
    one_round (b);
    for (int i = 0; i < FIGURES; i++) got[i][r] = b->all[i];
  }
  for (int i = 0; i < FIGURES; i++) {
    qsort (got[i], ROUNDS, sizeof (double), rising);
    b->all[i] = got[i][ROUNDS / 2];
    if (i >= STEADY) continue;
    spread[i] = got[i][0] > 0 ? got[i][ROUNDS - 1] / got[i][0] - 1 : 0;
    if (spread[i] > b->spread) b->spread = spread[i], b->widest = i;
  }
  qsort (spread, STEADY, sizeof (double), rising);
  b->typical = spread[STEADY / 2];
}

static int measure (struct job *j, const char *device, struct bench *b, struct err *e)
{
  struct dev_conf dc = { .local_rank = j->m.local_rank, .local_size = j->m.local_size };
  int bad = dev_open (&j->d, device, &dc, e);
  j->dev_up = !bad;
  if (mesh_agree (&j->m, bad, e)) return -1;
  b->d = &j->d;
  b->by = strcmp (j->d.ops->name, "cpu") ? 4 : 1;
  void **const room[] = { &b->a, &b->b, &b->c };
  for (int i = 0; i < LEN (room) && !bad; i++) bad = !(*room[i] = dev_reserve (b->d, MEM_ACT, SPACE_DEVICE, ROOM * b->by, e)) ? -1 : 0;
  int64_t work = b->d->ops->limits->queue_work;
  void *space = work && !bad ? dev_reserve (b->d, MEM_WORK, SPACE_DEVICE, work, e) : NULL;
  if (work && !space) bad = -1;
  if (mesh_agree (&j->m, bad, e)) return -1;
  b->q = b->d->ops->queue_open (b->d, QUEUE_COMPUTE, "compute", space, work);
  b->cq = b->d->ops->queue_open (b->d, QUEUE_COMM, "comm", NULL, 0);
  b->ev = b->d->ops->event_open (b->d);
  for (int i = 0; i < 2; i++)   /* numbers like those of a run: zeros would make products faster than they are */
    dev_op (b->d, b->q, OP_INIT, init, .dst = i ? b->b : b->a, .n = ROOM * b->by / 4, .cols = 1024, .rows = ROOM * b->by / 4096, .gcols = 1024, .normal = true, .std = 0.02f, .seed = 1, .key = i);
  rounds (b);
  b->d->ops->drain (b->d);
  b->d->ops->event_close (b->d, b->ev);
  b->d->ops->queue_close (b->d, b->q);
  b->d->ops->queue_close (b->d, b->cq);
  if (space) dev_release (b->d, MEM_WORK, SPACE_DEVICE, space, work);
  for (int i = 0; i < LEN (room); i++) dev_release (b->d, MEM_ACT, SPACE_DEVICE, *room[i], ROOM * b->by);
  return 0;
}

static const char *figure_name (int i, int64_t by, char out[static 64])
{
  static const char *const rest[] = { "a product in fp32", "copies", "elementwise work", "attention forward", "attention backward", "gathers in a node", "gathers between nodes" };
  if (i >= SHAPES) return rest[i - SHAPES];
  snprintf (out, 64, "the product %lld x %lld x %lld", (long long) (shape[i][0] * by), (long long) (shape[i][1] * by), (long long) (shape[i][2] * by));
  return out;
}

static int steady (const struct bench *b, double most, struct err *e)
{
  char t[64];
  const char *widest = figure_name (b->widest, b->by, t);
  say (SAY_INFO, "%d rounds: a figure differs by %.0f %% between them (median), %s by %.0f %%", ROUNDS, 100 * b->typical, widest, 100 * b->spread);
  if (!strcmp (b->d->ops->name, "cpu") && b->got < 1 - most)
    return user_err (e, "a rank had %.0f %% of its processors: something else runs here, and nothing was written; measure when it is quiet, or allow it: --spread %.0f", 100 * b->got,
                     ceil (100 - 100 * b->got));
  if (b->typical <= most) return 0;
  return user_err (e, "figures of %d rounds differ by %.0f %% (median; %s by %.0f %%): something else runs here, and nothing was written; measure when it is quiet, or allow it: --spread %.0f",
                   ROUNDS, 100 * b->typical, widest, 100 * b->spread, ceil (100 * b->typical));
}

static int calibrate (struct job *j, const char *device, const char *path, double spread, struct err *e)
{
  struct bench *b = xalloc (sizeof *b, "calibration");
  b->j = j;
  base_phase ("calibrate");
  int rc = measure (j, device, b, e), bad = 0;
  if (!rc && !j->m.rank) bad = steady (b, spread, e);
  if (!rc && !bad && !j->m.rank) {
    FILE *f = fopen (path, "w");
    if (!f) bad = user_err (e, "cannot write %s: %s", path, strerror (errno));
    else {
      write_file (b, f);
      bool broken = ferror (f);
      if (fclose (f) || broken) bad = world_err (e, "cannot write %s: %s", path, strerror (errno));
    }
    struct machine *m = xalloc (sizeof *m, "calibration");
    if (!bad) bad = machine_load (m, path, e);
    if (!bad) say (SAY_INFO, "wrote %s: %.4g GFLOP/s of bf16 products, %.3g GB/s of memory, %.3g GB/s between ranks (each)\nplan with: pretrain plan --gpus %d --machine %s ...", path,
                   m->peak[DT_BF16] / 1e9, m->bandwidth / 1e9, m->nvlink / 1e9, j->m.size, path);
    xfree (m);
  }
  if (!rc) rc = mesh_agree (&j->m, bad, e);
  xfree (b);
  return rc;
}

static int options (int argc, char **argv, const char **device, const char **path, double *spread, struct err *e)
{
  char *end = "";
  bool asked = false;
  for (int i = 1; i < argc; i++) {
    bool more = i + 1 < argc && strncmp (argv[i + 1], "--", 2);
    if (!strcmp (argv[i], "--calibrate")) {
      asked = true;
      if (more) *path = argv[++i];
    } else if (!strcmp (argv[i], "--device") && more) *device = argv[++i];
    else if (!strcmp (argv[i], "--spread") && more) *spread = strtod (argv[++i], &end) / 100;
    else return user_err (e, "doctor: `%.100s` is not understood: pretrain doctor --calibrate [FILE.yaml] [--device cpu|cuda] [--spread PERCENT]", argv[i]);
  }
  if (strcmp (*device, "cpu") && strcmp (*device, "cuda")) return user_err (e, "doctor: --device is cpu or cuda, not `%.100s`", *device);
  if (*end || !(*spread >= 0)) return user_err (e, "doctor: --spread is a percentage, such as 20");
  if (!strchr (*path, '/') && !strstr (*path, ".y")) return user_err (e, "doctor: the file's name ends in .yaml, so that --machine takes it for a path: not `%.100s`", *path);
  return asked ? 0 : user_err (e, "doctor: say --calibrate [FILE.yaml] to measure this machine");
}

int doctor_calibrate (int argc, char **argv)
{
  struct job *j = xalloc (sizeof *j, "job");
  struct err e = { 0 };
  const char *device = "cpu", *path = "cpu.yaml";
  double spread = 0.15;
  int code = job_init (j, &argc, &argv);
  if (!code) {
    int bad = options (argc, argv, &device, &path, &spread, &e);
    bad = mesh_agree (&j->m, bad, &e) || calibrate (j, device, path, spread, &e);
    code = job_end (j, bad ? EXIT_USER : EXIT_DONE, &e);
  }
  xfree (j);
  return code;
}
