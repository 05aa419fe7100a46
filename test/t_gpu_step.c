/* Whole steps of the cuda device against the cpu device, one rank, each family of models at sizes that the fast kernels take: the same initial weights, in fp32 (no
   TF32) each gradient of the first step and losses and norms of three within 1e-4. np: 1 */
#include "tap.h"
#include "tiny_grad.h"

enum { STEPS = 3 };

static const struct { const char *name, *options; } family[] = {
  { "llama2", "" },
  { "llama3, scaled positions", "--model.kv_heads 2 --model.rope_theta 500000 --model.rope_scaling.factor 8 --model.rope_scaling.original 32" },
  { "llama3.2, tied", "--model.kv_heads 2 --model.tied true" },
  { "mistral, a window", "--model.kv_heads 1 --model.window 40" },
  { "qwen2, biases", "--model.kv_heads 2 --model.qkv_bias true --model.norm_eps 1e-6" },
  { "qwen2, tied", "--model.kv_heads 2 --model.qkv_bias true --model.tied true" },
  { "qwen3, norms of heads", "--model.kv_heads 2 --model.qk_norm true --model.head_dim 128" },
  { "qwen3, tied", "--model.kv_heads 2 --model.qk_norm true --model.tied true --model.head_dim 32" },
  { "documents", "--model.kv_heads 2 --data.document_mask true" },
  { "odd sizes", "--model.heads 3 --model.kv_heads 3 --model.head_dim 40 --model.dim 120 --model.ffn 200 --model.vocab 263 --train.seq_len 77" },
  { "accumulation, recomputation", "--model.kv_heads 2 --train.micro_batch 1 --recompute.mode full" },
};

struct outcome { double loss[STEPS], norm[STEPS]; float *init, *grad; int64_t n; };

static void train (const char *device, const struct conf *c, struct outcome *o)
{
  struct tiny run;
  if (device) setenv ("TEST_DEVICE", device, 1);
  else unsetenv ("TEST_DEVICE");
  tiny_open (&run, c, MPI_COMM_SELF, 0);
  tiny_collect (&run.s, &run.m, false, 1, &o->init, &o->n);
  for (int t = 0; t < STEPS; t++) {
    struct step_result r;
    tiny_step (&run, t + 1, &r);
    o->loss[t] = r.loss;
    o->norm[t] = r.norm;
    if (!t) tiny_collect (&run.s, &run.m, true, 1 / r.tokens, &o->grad, &o->n);
  }
  tiny_close (&run);
}

int main (int argc, char **argv)
{
  struct dev probe;
  struct dev_conf alone = { .local_size = 1 };
  struct err e = { 0 };
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  if (dev_open (&probe, "cuda", &alone, &e)) {
    printf ("1..0 # SKIP no GPU: %s\n", e.msg);
    MPI_Finalize ();
    return 0;
  }
  dev_close (&probe);
  for (int i = 0; i < LEN (family); i++) {
    struct conf c;
    struct outcome a, b;
    char name[96] = "", given[512];
    double far = 0;
    tiny_options (&c, "--data.document_mask false --model.dim 256 --model.heads 4 --model.kv_heads 4 --model.layers 2 --model.ffn 512 --model.vocab 1000 "
                  "--train.seq_len 128 --train.micro_batch 2 --train.global_batch 4", family[i].options);
    snprintf (given, sizeof given, "%s", family[i].name);
    train (NULL, &c, &a);
    train ("cuda", &c, &b);
    double g = tiny_worst (&c, b.grad, a.grad, name);
    for (int t = 0; t < STEPS; t++) far = fmax (far, fmax (fabs (b.loss[t] / a.loss[t] - 1), fabs (b.norm[t] / a.norm[t] - 1)));
    int same = !memcmp (a.init, b.init, (size_t) a.n * 4);
    tap_ok (same && g <= 1e-4 && far <= 1e-4, "%s: weights %s, gradient %.1e (%s), losses and norms of %d steps %.1e", given, same ? "same" : "DIFFER", g, name, STEPS, far);
    free (a.init), free (a.grad), free (b.init), free (b.grad);
  }
  tap_done ();
  MPI_Finalize ();
  return 0;
}
