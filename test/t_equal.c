/* The mesh does not change the mathematics: the same model, data and seed on every mesh, sharding, schedule, accumulation and recomputation against one rank.
   One launch runs all cases, each on the first ranks of the world. np: 8
   Limits (DESIGN.md 6.1): initial weights to the bit; each tensor's gradient after step 1 within 3e-6 relative L2; losses and norms of 20 steps within 1e-5;
   the first batch's loss in evaluation within 1e-6 of that in training. */
#include "tap.h"
#include "tiny_grad.h"
#include <math.h>

enum { STEPS = 20 };
static int steps = STEPS;   /* EQUAL_STEPS: fewer, where ranks share a GPU and each collective waits for its turn */

/* Options in words, on top of the common ones; model: which reference it is compared with. A leading = asks for the same bits as the case before, a
   leading ~ allows what gradients rounded to bf16 on the wire bring: 6e-3 a tensor, 1e-3 losses and norms; a leading % what other codes bring, where a mesh rounds to bf16
   elsewhere: gradients no further off than 8 bits themselves are from bf16, losses 1e-3, norms 2e-2. */
struct test_case { const char *model; int world; const char *options; };

/* The references: one rank, micro-batches of two. */
static const struct { const char *name, *options; } models[] = {
  { "llama", "" },
  { "tied", "--model.tied true" },
  { "qwen2", "--model.qkv_bias true" },
  { "qwen3", "--model.qk_norm true --model.head_dim 12" },
  { "fp8", "--train.dtype fp8" },
  { "bf16", "--train.dtype bf16" },
  { "odd", "--model.layers 5 --model.kv_heads 4 --model.vocab 263" },
};

static const struct test_case cases[] = {
#include "equal_cases.h"
};

struct outcome { double eval, loss[STEPS], norm[STEPS]; float *init, *grad; int64_t n; };

static void train (const struct conf *c, MPI_Comm comm, struct outcome *o)
{
  struct tiny run;
  tiny_open (&run, c, comm, 0);
  tiny_collect (&run.s, &run.m, false, 1, &o->init, &o->n);
  o->eval = tiny_eval (&run, 1);
  for (int64_t t = 1; t <= steps; t++) {
    struct step_result r;
    tiny_step (&run, t, &r);
    o->loss[t - 1] = r.loss;
    o->norm[t - 1] = r.norm;
    if (t == 1) tiny_collect (&run.s, &run.m, true, 1 / r.tokens, &o->grad, &o->n);
  }
  tiny_close (&run);
}

static double worst_grad (const struct conf *c, const struct outcome *a, const struct outcome *b, char name[96]) { return tiny_worst (c, a->grad, b->grad, name); }

static double worst_of (const double *a, const double *b)
{
  double w = 0;
  for (int i = 0; i < steps; i++) {
    double r = fabs (a[i] - b[i]) / fabs (b[i]);
    if (!(r <= w)) w = r;
  }
  return w;
}

static int model_index (const char *name)
{
  for (int i = 0; i < LEN (models); i++)
    if (!strcmp (models[i].name, name)) return i;
  die ("no model %s", name);
}

/* Relative differences that are allowed; a case of the same bits has those of the case before. */
struct bound { double grad, loss, norm; };

/* One rank in 8 bits follows bf16, and is not bf16. The worst tensor's gradient's distance. */
static double check_eight (const struct outcome *eight, const struct outcome *wide, int rank)
{
  struct conf c;
  char name[96] = "";
  double g = 0, l = 0, m = 0;
  tiny_options (&c, "--train.dtype fp8", "");
  if (rank == 0) {
    g = worst_grad (&c, eight, wide, name), l = worst_of (eight->loss, wide->loss), m = worst_of (eight->norm, wide->norm);
    printf ("# 8 bits from bf16: gradient %.1e (%s), loss %.1e, norm %.1e\n", g, name, l, m);
  }
  tap_ok (rank || (g > 1e-2 && g < 0.25 && l < 2e-3 && m < 3e-2), "fp8 follows bf16 over %d steps", steps);
  return g;
}

/* Is a case of this model among those asked for? */
static bool wanted (const char *model, const char *only)
{
  char text[1400];
  bool any = !only || strstr ("fp8", only);   /* that one is compared with another reference */
  for (int i = 0; i < LEN (cases) && !any; i++) {
    snprintf (text, sizeof text, "%s %s", cases[i].model, cases[i].options);
    any = !strcmp (cases[i].model, model) && strstr (text, only);
  }
  return any;
}

/* 8 bits at these sizes the cpu device alone multiplies. */
static bool without (const char *model) { return getenv ("TEST_DEVICE") && !strcmp (model, "fp8"); }

int main (int argc, char **argv)
{
  static struct outcome ref[LEN (models)], last;
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  double noise = 0.1;
  const char *only = getenv ("EQUAL_ONLY");   /* a part of a case's text */
  const char *world = getenv ("EQUAL_WORLD"), *fewer = getenv ("EQUAL_STEPS"), *device = getenv ("TEST_DEVICE");   /* WORLD 2: one rank and two */
  if (fewer) steps = MAX (1, MIN (STEPS, atoi (fewer)));
  struct conf c;
  for (int i = 0; i < LEN (models); i++) {
    if (!wanted (models[i].name, only) || without (models[i].name)) continue;
    tiny_options (&c, models[i].options, "");
    if (rank == 0) train (&c, MPI_COMM_SELF, &ref[i]);
    MPI_Bcast (ref[i].loss, STEPS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0) printf ("# %s: loss %.6f -> %.6f, norm %.4f\n", models[i].name, ref[i].loss[0], ref[i].loss[steps - 1], ref[i].norm[0]);
  }
  if (!without ("fp8") && (!only || strstr ("fp8", only))) noise = check_eight (&ref[model_index ("fp8")], &ref[model_index ("bf16")], rank);
  struct bound bound = { 0 };
  for (int i = 0; i < LEN (cases); i++) {
    const struct test_case *t = &cases[i];
    char text[1400], name[96] = "";
    snprintf (text, sizeof text, "%s %s", t->model, t->options);
    if (only && !strstr (text, only)) continue;
    if (t->world > size || (world && MAX (t->world, 2) != atoi (world))) continue;
    if (without (t->model) || (device && strstr (text, "--debug."))) continue;   /* debug: how the cpu device sends */
    int k = model_index (t->model), ok = 1;
    bool same = t->options[0] == '=', rough = t->options[0] == '~', eight = t->options[0] == '%';
    if (!same) bound = eight ? (struct bound) { noise, 1e-3, 2e-2 } : rough ? (struct bound) { 6e-3, 1e-3, 1e-3 } : (struct bound) { 3e-6, 1e-5, 1e-5 };
    tiny_options (&c, models[k].options, t->options + (same || rough || eight));
    MPI_Comm comm;
    double t0 = now ();
    MPI_Comm_split (MPI_COMM_WORLD, rank < t->world ? 0 : MPI_UNDEFINED, rank, &comm);
    struct outcome o = { 0 };
    if (rank < t->world) train (&c, comm, &o);
    if (rank == 0) {
      int init = !memcmp (o.init, ref[k].init, (size_t) o.n * 4);
      double g = worst_grad (&c, &o, &ref[k], name), l = worst_of (o.loss, ref[k].loss), m = worst_of (o.norm, ref[k].norm);
      ok = init && g <= bound.grad && l <= bound.loss && m <= bound.norm && fabs (o.eval - o.loss[0]) <= 1e-6 * o.loss[0];
      printf ("# init %s, gradient %.1e (%s), loss %.1e, norm %.1e, %.1f s\n", init ? "same" : "DIFFERS", g, name, l, m, now () - t0);
      if (same) ok = ok && !memcmp (o.loss, last.loss, sizeof o.loss) && !memcmp (o.norm, last.norm, sizeof o.norm) && !memcmp (o.grad, last.grad, (size_t) o.n * 4);
      free (last.grad);
      last = o;
    }
    tap_ok (ok, "%d ranks: %s%s", t->world, text, same ? " (same bits as before)" : "");
    if (comm != MPI_COMM_NULL) MPI_Comm_free (&comm);
  }
  tap_done ();
  MPI_Finalize ();
  return 0;
}
