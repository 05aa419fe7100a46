/* What recompute.mode auto chooses: it fits, more memory makes it no slower, nothing that would fit is left out, it is near the best of all choices; the
   numbers of a 7B model on one H200, and whether cast weights stay. No memory is touched. np: 1 */
#include "tap.h"
#include "dev_limits.h"
#include "fit.h"
#include "tiny_run.h"
#include <math.h>

/* A device that hands out addresses and has the sizes and speeds of an H200. */
static int64_t taken, outside;   /* of the last plan: bytes in arenas, bytes to leave free */
static void *reserve (struct dev *d, enum space s, int64_t bytes, struct err *e)
{
  (void) d, (void) e;
  if (s == SPACE_DEVICE) taken += bytes;
  return (void *) (uintptr_t) 4096;
}
static void release (struct dev *d, enum space s, void *p, int64_t bytes) { (void) d, (void) p, (void) bytes, (void) s; }

static struct dev_limits limits;
static struct dev_ops ops;
static void h200 (struct dev *d, int64_t memory)
{
  limits = (struct dev_limits) { LIMITS_CUDA };
  ops = dev_cpu;
  ops.name = "h200";
  ops.limits = &limits;
  ops.reserve = reserve;
  ops.release = release;
  *d = (struct dev) { .ops = &ops, .memory = memory };
}

struct plan { struct conf c; struct mesh m; struct dev d; struct step s; };

/* The step of rank RANK of WORLD, planned and not started. */
static void plan (struct plan *p, int world, int rank, int64_t memory, const char *a, const char *b)
{
  struct err e = { 0 };
  memset (p, 0, sizeof *p);
  tiny_options (&p->c, a, b);
  tiny_shape (&p->c, world, &p->m.shape);
  p->m.size = world;
  p->m.rank = rank;
  mesh_coord (&p->m.shape, rank, p->m.coord);
  h200 (&p->d, memory);
  taken = 0;
  if (step_plan (&p->s, &p->c, &p->m, &p->d, &e)) die ("%s", e.msg);
  outside = dev_outside (&p->d, p->s.group_n);
}

static int64_t first_layer (const struct step *s) { return MAX (s->chunk[0].first, 1); }

static double seconds (const struct step *s)
{
  double t = 0;
  for (int l = 0; l < s->chunk[0].layers; l++) t += fit_seconds (&s->b, s->keep[first_layer (s) + l]);
  return t;
}

/* ---- laws ---- */

static const char base[] = "--recompute.mode auto --train.dtype bf16 --model.layers 6 --model.dim 512 --model.ffn 1536 --train.seq_len 512";
static const struct { int world; const char *options; } shapes[] = {
  { 1, "--sharding.strategy NO_SHARD" },
  { 2, "--mesh.tp 2 --sharding.strategy NO_SHARD" },
  { 2, "--mesh.pp 2 --pipeline.schedule zbh1 --train.micro_batch 1 --sharding.strategy NO_SHARD" },
  { 4, "--mesh.dp_shard 4 --model.qk_norm true --train.micro_batch 1" },
};

static void check_laws (void)
{
  for (int i = 0; i < LEN (shapes); i++) {
    struct plan p;
    int over = 0, slower = 0, idle = 0, sizes = 0;
    int64_t least, most;
    plan (&p, shapes[i].world, 0, 0, base, shapes[i].options);   /* memory not known: the least */
    least = taken;
    step_close (&p.s);
    plan (&p, shapes[i].world, 0, INT64_C (1) << 40, base, shapes[i].options);
    most = taken;
    int kept_all = seconds (&p.s) == 0;
    step_close (&p.s);
    double last = INFINITY;
    for (int64_t m = least; m < most + (most - least) / 8; m += (most - least) / 40) {
      plan (&p, shapes[i].world, 0, m + outside, base, shapes[i].options);
      double t = seconds (&p.s);
      over += taken > m;
      slower += t > last * (1 + 1e-9);
      last = t;
      sizes++;
      for (int l = 0; l < p.s.chunk[0].layers; l++)   /* a layer alone could do better in what is left */
        for (int k = 0; k <= KEEP_ALL; k++) {
          int has = p.s.keep[first_layer (&p.s) + l];
          int64_t more = (fit_bytes (&p.s.b, k, p.s.split) - fit_bytes (&p.s.b, has, p.s.split)) * p.s.chunk[0].slots;
          bool allowed = (k & has) == has && k != has && (!p.s.split || !(~k & KEEP_SPLIT));
          idle += allowed && fit_seconds (&p.s.b, k) < fit_seconds (&p.s.b, has) && more + 16384 <= m - taken;
        }
      step_close (&p.s);
    }
    tap_ok (kept_all && !over && !slower && !idle, "%d sizes of memory from %.1f to %.1f MB fit, more is no slower, none is left idle (%d over, %d slower, %d idle): %s", sizes,
            least / 1e6, most / 1e6, over, slower, idle, shapes[i].options);
  }
}

/* All choices of three layers among all sets: the best that fits by the closed sum of bytes. */
static void check_best (void)
{
  struct plan p;
  static int64_t bytes[KEEP_ALL + 1];
  static double t[KEEP_ALL + 1];
  double worst = 0;
  static const char three[] = "--recompute.mode auto --train.dtype bf16 --model.layers 3 --model.dim 512 --model.ffn 1536 --train.seq_len 512 --sharding.strategy NO_SHARD";
  for (int step = 1; step < 20; step++) {
    plan (&p, 1, 0, 0, three, "");
    for (int k = 0; k <= KEEP_ALL; k++) bytes[k] = fit_bytes (&p.s.b, k, false), t[k] = fit_seconds (&p.s.b, k);
    int64_t base_bytes = taken - 3 * bytes[0], room = 3 * bytes[0] + step * (3 * bytes[KEEP_ALL] - 3 * bytes[0]) / 20;
    step_close (&p.s);
    double best = INFINITY;
    for (int a = 0; a <= KEEP_ALL; a++)
      for (int b = a; b <= KEEP_ALL; b++)
        for (int c = b; c <= KEEP_ALL; c++)
          if (bytes[a] + bytes[b] + bytes[c] <= room && t[a] + t[b] + t[c] < best) best = t[a] + t[b] + t[c];
    plan (&p, 1, 0, base_bytes + room + outside, three, "");
    worst = fmax (worst, (seconds (&p.s) - best) / (3 * t[0]));
    step_close (&p.s);
  }
  tap_ok (worst < 0.05, "three layers: slower than the best of all choices by at most %.1f %% of full recomputation", 100 * worst);
}

/* All ranks of a stage choose alike, whatever parts of norms and KV copies fall to them. */
static void check_alike (void)
{
  static const char options[] = "--mesh.dp_shard 4 --mesh.tp 4 --train.micro_batch 1 --train.global_batch 4";
  struct plan p;
  int other = 0;
  plan (&p, 16, 0, 0, base, options);
  int64_t least = taken;
  step_close (&p.s);
  for (int i = 1; i < 30; i++) {
    int first[8];
    for (int rank = 0; rank < 16; rank++) {
      plan (&p, 16, rank, least + i * INT64_C (1000000) + outside, base, options);
      if (!rank) memcpy (first, p.s.keep, 7 * sizeof *first);
      other += memcmp (first, p.s.keep, 7 * sizeof *first) != 0;
      step_close (&p.s);
    }
  }
  tap_ok (!other, "16 ranks (dp 4, tp 4, KV heads copied) choose alike at 29 sizes of memory");
}

/* ---- 7B on an H200 ---- */

static void check_7b (void)
{
  static const char model[] = "--model llama2-7b --train.dtype bf16 --train.seq_len 4096 --sharding.grad_dtype bf16 --recompute.mode auto --data.document_mask false";
  int64_t memory = (int64_t) (139.8 * 0x1p30);
  for (int mb = 2; mb <= 6; mb++) {
    struct plan p;
    char more[128], text[96];
    snprintf (more, sizeof more, "--train.micro_batch %d --train.global_batch %d", mb, mb);
    plan (&p, 1, 0, memory, model, more);
    double t = seconds (&p.s), all = 32 * fit_seconds (&p.s.b, 0);
    bool full = taken > memory - outside - (INT64_C (1) << 29);
    printf ("# %d x 4096: %.1f GiB, cast weights %s, %.0f ms of recomputation (full: %.0f)\n", mb, taken / 0x1p30, p.s.sh.kept ? "stay" : "go", 1e3 * t, 1e3 * all);
    for (int l = 1, n = 1; l <= 32; l += n, n = 1) {
      while (l + n <= 32 && p.s.keep[l + n] == p.s.keep[l]) n++;
      keep_text (p.s.keep[l], text);
      printf ("#   %d layers keep %s\n", n, text);
    }
    tap_ok (taken <= memory - outside && (full || t == 0) && t < 0.45 * all, "7B, %d x 4096: fits, memory is used to the last half GiB or nothing is made again", mb);
    step_close (&p.s);
  }
}

/* What does not fit is refused, with both numbers; a byte of reserve more or less decides. */
static void check_refusal (void)
{
  static const char model[] = "--model llama2-7b --train.dtype bf16 --train.seq_len 4096 --train.micro_batch 4 --train.global_batch 4 --data.document_mask false --sharding.strategy NO_SHARD";
  struct plan p;
  struct err e = { 0 };
  plan (&p, 1, 0, INT64_C (1) << 38, model, "--train.loss_chunk 1024");
  int64_t need = taken;
  step_close (&p.s);
  int refused[2];
  for (int i = 0; i < 2; i++) {
    h200 (&p.d, need + outside - i * 4096);
    refused[i] = step_plan (&p.s, &p.c, &p.m, &p.d, &e);
    step_close (&p.s);
  }
  tap_ok (!refused[0] && refused[1] && strstr (e.msg, "a rank needs") && strstr (e.msg, "768.00 MiB being left"), "a step that fits to the byte goes, one that does not is refused: %s", e.msg);
}

int main (int argc, char **argv)
{
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  check_laws ();
  check_best ();
  check_alike ();
  check_7b ();
  check_refusal ();
  tap_done ();
  MPI_Finalize ();
  return 0;
}
