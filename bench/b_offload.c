/* AdamW on state in host memory: verified, then timed in one run.
   usage: bench/b_offload [DEVICE [MILLIONS]]: how fast copies between device and host are, one way and both ways at once; then an update of so many parameters (bf16 gradients
   and weights on the device) with the state on the device, streamed through it as sharding.cpu_offload does, and on the host's cores with gradients copied out
   and weights back; milliseconds for 10^9 parameters, and the ratios. */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mesh.h"
#include "offload.h"

enum { REPS = 3 };
static struct dev D, host;
static struct queue *Q, *in, *out;
static struct step_vars *vars;
static struct err e;

static void *reserve (enum space s, int64_t bytes)
{
  void *p = dev_reserve (&D, MEM_WORK, s, bytes, &e);
  if (!p) die ("%s", e.msg);
  return p;
}

static double since (double start)
{
  D.ops->drain (&D);
  return now () - start;
}

static struct op_adamw update (int64_t n, float *state, void *grad, void *weight)
{
  return (struct op_adamw) { .n = n, .master = state, .m = state + n, .v = state + 2 * n, .grad = grad, .weight = weight, .vars = vars, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
    .decay = 0.1, .gt = DT_BF16, .wt = DT_BF16 };
}

static void fill (float *p, int64_t n, uint64_t key, bool positive)
{
  dev_op (&D, Q, OP_INIT, init, .dst = p, .n = n, .cols = n, .rows = 1, .gcols = n, .normal = !positive, .std = 0.02f, .value = 1e-4f, .seed = 1, .key = key);
}

static void state_init (float *state, void *grad, int64_t n)
{
  for (int k = 0; k < 3; k++) fill (state + k * n, n, (uint64_t) k, k == 2);
  dev_op (&D, Q, OP_AXPBY, axpby, .y = grad, .x = state, .n = n, .yt = DT_BF16, .xt = DT_F32, .alpha = 0.5f);
  D.ops->drain (&D);
}

static void streamed (struct offloader *o, const struct op_adamw *a)
{
  offload_begin (o, Q, vars, NULL);
  offload_update (o, a, NULL);
  offload_end (o);
}

static bool same (const void *a, const void *b, int64_t bytes)
{
  char *x = xalloc ((size_t) bytes, "bench"), *y = xalloc ((size_t) bytes, "bench");
  dev_get (&D, Q, x, a, bytes);
  dev_get (&D, Q, y, b, bytes);
  bool r = !memcmp (x, y, (size_t) bytes);
  xfree (x);
  xfree (y);
  return r;
}

static void verify (struct offloader *o)
{
  int64_t n = 3 * o->piece / 2 + 7;
  float *near = reserve (SPACE_DEVICE, n * 12), *far = reserve (SPACE_PINNED, n * 12);
  char *grad = reserve (SPACE_DEVICE, n * 2), *w = reserve (SPACE_DEVICE, n * 4 + 64);
  state_init (near, grad, n);
  dev_op (&D, Q, OP_COPY, copy, .dst = far, .src = near, .bytes = n * 12);
  struct op_adamw a = update (n, near, grad, w), b = update (n, far, grad, w + 2 * round_up (n, 16));
  dev_issue (&D, Q, &(struct op) { .kind = OP_ADAMW, .adamw = a });
  streamed (o, &b);
  D.ops->drain (&D);
  bool ok = same (near, far, n * 12) && same (a.weight, b.weight, n * 2);
  printf ("verified: %s\n", ok ? "the same bits on the device and streamed" : "BITS DIFFER");
  if (!ok) exit (1);
  dev_release (&D, MEM_WORK, SPACE_DEVICE, near, n * 12);
  dev_release (&D, MEM_WORK, SPACE_PINNED, far, n * 12);
  dev_release (&D, MEM_WORK, SPACE_DEVICE, grad, n * 2);
  dev_release (&D, MEM_WORK, SPACE_DEVICE, w, n * 4 + 64);
}

/* GB/s of copies of BYTES to and from the device, or both. */
static double copies (void *dev_a, void *dev_b, void *host_a, void *host_b, int64_t bytes, bool to, bool from)
{
  double best = 1e9;
  for (int i = 0; i < REPS; i++) {
    double t = now ();
    if (to) dev_op (&D, in, OP_COPY, copy, .dst = dev_a, .src = host_a, .bytes = bytes);
    if (from) dev_op (&D, out, OP_COPY, copy, .dst = host_b, .src = dev_b, .bytes = bytes);
    best = MIN (best, since (t));
  }
  return 1e-9 * (double) bytes / best;
}

int main (int argc, char **argv)
{
  const char *name = argc > 1 ? argv[1] : "cuda";
  int64_t n = (argc > 2 ? atoll (argv[2]) : 1000) * 1000000;
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  base_rank (0, 1, NULL);
  wait_init (1);
  struct dev_conf dc = { .local_size = 1 };
  if (dev_open (&D, name, &dc, &e) || dev_open (&host, "cpu", &dc, &e)) die ("%s", e.msg);
  Q = D.ops->queue_open (&D, QUEUE_COMPUTE, "compute", NULL, 0);
  in = D.ops->queue_open (&D, QUEUE_COPY, "in", NULL, 0);
  out = D.ops->queue_open (&D, QUEUE_COPY, "out", NULL, 0);
  struct queue *hq = host.ops->queue_open (&host, QUEUE_COMPUTE, "host", NULL, 0);
  vars = reserve (SPACE_DEVICE, sizeof *vars);
  struct step_vars v = { .lr = 1e-3, .scale = 1, .b1t = 0.9, .b2t = 0.95 };
  dev_put (&D, Q, vars, &v, sizeof v);

  struct offloader o = { 0 };
  struct arenas A;
  arenas_init (&A, &D);
  for (int pass = 0; pass < 2; pass++) {
    offload_layout (&o, &A, OFFLOAD_PIECE, false, DT_BF16);
    if (!pass && arenas_reserve (&A, &e)) die ("%s", e.msg);
  }
  offload_open (&o, &D);
  verify (&o);

  double t = now (), pin;
  float *far = reserve (SPACE_PINNED, n * 12);
  pin = now () - t;
  char *grad = reserve (SPACE_DEVICE, n * 2), *w = reserve (SPACE_DEVICE, n * 2), *grad_host = reserve (SPACE_PINNED, n * 2);
  state_init (far, grad, n);
  printf ("device %s, %lld million parameters; %.1f GB of pinned memory taken in %.1f s\n", name, (long long) n / 1000000, (double) n * 12e-9, pin);
  double to = copies (grad, w, far, grad_host, n * 2, true, false), from = copies (grad, w, far, grad_host, n * 2, false, true);
  state_init (far, grad, n);
  double both = copies (w, grad, far, grad_host, n * 2, true, true);
  printf ("copies: to the device %.1f GB/s, from it %.1f, each way at once %.1f\n", to, from, both);

  struct op_adamw a = update (n, far, grad, w);
  double on_device = 1e9, stream = 1e9, cores = 1e9;
  for (int i = 0; i < REPS; i++) {
    t = now ();
    streamed (&o, &a);
    stream = MIN (stream, since (t));
  }
  a.grad = grad_host;
  a.weight = grad_host;   /* each element is read before it is written */
  a.vars = &v;
  for (int i = 0; i < REPS; i++) {
    t = now ();
    dev_issue (&host, hq, &(struct op) { .kind = OP_ADAMW, .adamw = a });
    cores = MIN (cores, now () - t);
  }
  int64_t small = MIN (n, 200000000);
  float *near = reserve (SPACE_DEVICE, small * 12);
  state_init (near, grad, small);
  a = update (small, near, grad, w);
  for (int i = 0; i < REPS; i++) {
    t = now ();
    dev_issue (&D, Q, &(struct op) { .kind = OP_ADAMW, .adamw = a });
    on_device = MIN (on_device, since (t));
  }
  double each = 1e12 / (double) n, copied = 2 * (double) n / 1e9 * (1 / to + 1 / from);
  printf ("update, ms for 10^9 parameters: on the device %.1f; streamed through it %.1f (%.1f GB/s each way); on %d cores of the host %.1f, and %.1f with both copies not hidden\n",
          on_device * 1e12 / (double) small, stream * each, 12e-9 * (double) n / stream, host.conf.threads, cores * each, (cores + copied) * each);
  printf ("ratio: on the host's cores / streamed %.2f (without copies %.2f)\n", (cores + copied) / stream, cores / stream);
  offload_close (&o);
  MPI_Finalize ();
  return 0;
}
