/* One loss over more than 2^31 logits on the GPU: rows at both ends and where a 32-bit index would wrap against the same rows alone on the cpu device. np: 1 */
#include "config.h"
#include <math.h>
#include "dev.h"
#include "mesh.h"
#include "tap.h"

enum { ROWS = 16800, COLS = 128256, PART = 600, LOOK = 3 };   /* 2.15e9 logits, 4.3 GB of bf16 */
static struct dev gpu, cpu;
static struct queue *gq, *cq;

/* Rows [row, row + n) of the logits, alike on both devices: multiples of 0.02 in bf16. */
static void make (struct dev *d, struct queue *q, float *wide, bf16 *to, int64_t row, int64_t n)
{
  dev_op (d, q, OP_INIT, init, .dst = wide, .start = 0, .n = n * COLS, .cols = COLS, .row0 = row, .rows = n, .gcols = COLS, .normal = true, .std = 2, .seed = 5, .key = 77);
  dev_op (d, q, OP_AXPBY, axpby, .y = to, .x = wide, .n = n * COLS, .yt = DT_BF16, .xt = DT_F32, .alpha = 1);
}

static void loss (struct dev *d, struct queue *q, int64_t n, void *logits, const int32_t *target, float *stat, double *acc)
{
  static const enum op_kind step[] = { OP_XENT_MAX, OP_XENT_SUM, OP_XENT_GRAD };
  for (int i = 0; i < LEN (step); i++)
    dev_issue (d, q, &(struct op) { .kind = step[i], .xent = { .n = n, .ld = COLS, .cols = COLS - 7, .logits = logits, .target = target, .max = stat,
      .st = stat + n, .acc = acc, .grad = true, .t = DT_BF16 } });
}

static int32_t target_of (int64_t row) { return row % 5 == 4 ? -1 : (int32_t) (row * 7919 % (COLS - 7)); }

/* LOOK rows from ROW: the gradient and the statistics that the GPU left against the cpu's. */
static double compare (const bf16 *logits, const float *gstat, int64_t row)
{
  struct err e = { 0 };
  int64_t n = LOOK * (int64_t) COLS;
  char *m = dev_reserve (&cpu, MEM_ACT, SPACE_DEVICE, n * 8 + 4096, &e);
  must (m, "%s", e.msg);
  float *w = (float *) m, *stat = (float *) (m + n * 6 + 1024);
  bf16 *l = (bf16 *) (m + n * 4), *mine = xalloc ((size_t) n * 2, "test"), *its = xalloc ((size_t) n * 2, "test");
  int32_t t[LOOK], *target = (int32_t *) (m + n * 6 + 2048);
  float a[3 * LOOK], b[3 * LOOK];
  for (int i = 0; i < LOOK; i++) t[i] = target_of (row + i);
  make (&cpu, cq, w, l, row, LOOK);
  dev_put (&cpu, cq, target, t, sizeof t);
  loss (&cpu, cq, LOOK, l, target, stat, (double *) (m + n * 6 + 3072));
  dev_get (&cpu, cq, mine, l, n * 2);
  dev_get (&cpu, cq, a, stat, sizeof a);
  dev_get (&gpu, gq, its, logits + row * COLS, n * 2);
  for (int k = 0; k < 3; k++) dev_get (&gpu, gq, b + k * LOOK, gstat + k * (int64_t) ROWS + row, LOOK * 4);
  double diff = 0, norm = 0, far = 0;
  for (int64_t i = 0; i < n; i++) {
    double x = bf16_to_f32 (mine[i]), y = bf16_to_f32 (its[i]);
    diff += (x - y) * (x - y), norm += x * x;
  }
  for (int i = 0; i < 3 * LOOK; i++) far = fmax (far, fabs (a[i] - b[i]) / fmax (1, fabs (a[i])));
  dev_release (&cpu, MEM_ACT, SPACE_DEVICE, m, n * 8 + 4096);
  xfree (mine);
  xfree (its);
  return fmax (sqrt (diff / norm), far);
}

int main (int argc, char **argv)
{
  struct err e = { 0 };
  struct dev_conf conf = { .local_size = 1 };
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  base_rank (0, 1, NULL);
  wait_init (1);
  int64_t n = (int64_t) ROWS * COLS, bytes = n * 2 + (int64_t) PART * COLS * 4 + ROWS * 16 + 8192;
  int no = dev_open (&gpu, "cuda", &conf, &e);
  if (no || gpu.ops->memory (&gpu) < bytes + ((int64_t) 2 << 30)) {
    printf ("1..0 # SKIP %s\n", no ? e.msg : "the GPU has too little memory");
    MPI_Finalize ();
    return 0;
  }
  if (argc > 1) {   /* --probe: there is one */
    dev_close (&gpu);
    MPI_Finalize ();
    return 0;
  }
  must (!dev_open (&cpu, "cpu", &conf, &e), "%s", e.msg);
  char *m = dev_reserve (&gpu, MEM_LOGIT, SPACE_DEVICE, bytes, &e);
  int64_t work = gpu.ops->limits->queue_work, cwork = cpu.ops->limits->queue_work;
  void *gw = dev_reserve (&gpu, MEM_WORK, SPACE_DEVICE, work, &e), *cw = dev_reserve (&cpu, MEM_WORK, SPACE_DEVICE, MAX (cwork, 4096), &e);
  must (m && gw && cw, "%s", e.msg);
  gq = gpu.ops->queue_open (&gpu, QUEUE_COMPUTE, "gpu", gw, work);
  cq = cpu.ops->queue_open (&cpu, QUEUE_COMPUTE, "cpu", cw, cwork);
  bf16 *logits = (bf16 *) m;
  float *wide = (float *) (m + n * 2), *stat = wide + (int64_t) PART * COLS;
  int32_t *target = (int32_t *) (stat + 3 * ROWS), t[ROWS];
  double acc[2] = { 0 }, *total = (double *) round_up ((int64_t) (uintptr_t) (target + ROWS), 256);
  for (int64_t r = 0; r < ROWS; r += PART) make (&gpu, gq, wide, logits + r * COLS, r, PART);
  int64_t valid = 0;
  for (int64_t r = 0; r < ROWS; r++) t[r] = target_of (r), valid += t[r] >= 0;
  dev_put (&gpu, gq, target, t, sizeof t);
  dev_put (&gpu, gq, total, acc, sizeof acc);
  loss (&gpu, gq, ROWS, logits, target, stat, total);
  dev_get (&gpu, gq, acc, total, sizeof acc);
  double mean = acc[0] / acc[1];
  tap_ok (acc[1] == (double) valid && fabs (mean - 13.76) < 0.1, "%lld logits: %lld valid rows, mean loss %.4f", (long long) n, (long long) acc[1], mean);
  int64_t wrap = ((int64_t) 1 << 31) / COLS - 1;
  const int64_t rows[] = { 0, ((int64_t) 1 << 30) / COLS - 1, wrap, ROWS - LOOK };
  for (int i = 0; i < LEN (rows); i++) {
    double far = compare (logits, stat, rows[i]);
    tap_ok (far < 3e-3, "rows from %lld: gradient and statistics within %.1e of the cpu device's", (long long) rows[i], far);
  }
  gpu.ops->queue_close (&gpu, gq);
  cpu.ops->queue_close (&cpu, cq);
  dev_release (&gpu, MEM_LOGIT, SPACE_DEVICE, m, bytes);
  dev_release (&gpu, MEM_WORK, SPACE_DEVICE, gw, work);
  dev_release (&cpu, MEM_WORK, SPACE_DEVICE, cw, MAX (cwork, 4096));
  dev_close (&gpu);
  dev_close (&cpu);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
