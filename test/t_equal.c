/* The mesh does not change the mathematics: the same model, data and seed on every mesh, sharding, schedule, accumulation and recomputation against one rank.
   One launch runs all cases, each on the first ranks of the world. np: 8
   Limits (DESIGN.md 6.1): initial weights to the bit; each tensor's gradient after step 1 within 3e-6 relative L2; losses and norms of 20 steps within 1e-5;
   the first batch's loss in evaluation within 1e-6 of that in training. */
#include "tap.h"
#include "tiny_run.h"
#include <math.h>

enum { STEPS = 20 };

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

/* All tensors of the model in block order as one array on every rank of the mesh, from what each rank owns. */
static void collect (struct step *s, struct mesh *m, bool grad, double scale, float **out, int64_t *count)
{
  const struct arch *a = &s->c->arch;
  int64_t off[64][P_N], n = 0, rows, cols;
  for (int64_t b = 0; b < a->layers + 2; b++) {
    enum pid ids[P_N];
    int k = block_params (a, b, ids);
    for (int i = 0; i < k; i++) param_shape (a, ids[i], &rows, &cols), off[b][ids[i]] = n, n += rows * cols;
  }
  float *x = calloc ((size_t) n, 4);
  struct piece *list;
  int pieces = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < pieces; i++) {
    struct piece p = units_owned (&list[i], s->tp, s->tp_rank, s->sh.replicas, s->sh.replica);
    const struct part *part = &p.slot->part;
    param_shape (a, p.slot->id, &rows, &cols);
    float *v = malloc ((size_t) (p.hi - p.lo) * 4 + 4);
    if (p.hi > p.lo) dev_get (s->d, s->q, v, (grad ? (float *) s->sh.u[p.unit].grad : s->sh.u[p.unit].master) + p.lo, (p.hi - p.lo) * 4);
    for (int64_t k = 0; k < p.hi - p.lo; k++) {
      int64_t l = p.start + k;
      x[off[p.slot->block][p.slot->id] + (part->row0 + l / part->cols) * cols + part->col0 + l % part->cols] = (float) (v[k] * scale);
    }
    free (v);
  }
  xfree (list);
  *out = malloc ((size_t) n * 4);
  *count = n;
  MPI_Allreduce (x, *out, (int) n, MPI_FLOAT, MPI_SUM, m->world);
  free (x);
}

static void train (const struct conf *c, MPI_Comm comm, struct outcome *o)
{
  struct tiny run;
  tiny_open (&run, c, comm, 0);
  collect (&run.s, &run.m, false, 1, &o->init, &o->n);
  o->eval = tiny_eval (&run, 1);
  for (int64_t t = 1; t <= STEPS; t++) {
    struct step_result r;
    tiny_step (&run, t, &r);
    o->loss[t - 1] = r.loss;
    o->norm[t - 1] = r.norm;
    if (t == 1) collect (&run.s, &run.m, true, 1 / r.tokens, &o->grad, &o->n);
  }
  tiny_close (&run);
}

/* Largest relative L2 difference of a tensor's gradient. */
static double worst_grad (const struct conf *c, const struct outcome *a, const struct outcome *b, char name[96])
{
  int64_t at = 0, rows, cols;
  double worst = 0;
  for (int64_t blk = 0; blk < c->arch.layers + 2; blk++) {
    enum pid ids[P_N];
    int k = block_params (&c->arch, blk, ids);
    for (int i = 0; i < k; i++) {
      double diff = 0, norm = 0;
      param_shape (&c->arch, ids[i], &rows, &cols);
      for (int64_t j = 0; j < rows * cols; j++, at++) {
        diff += (a->grad[at] - b->grad[at]) * (double) (a->grad[at] - b->grad[at]);
        norm += b->grad[at] * (double) b->grad[at];
      }
      double r = sqrt (diff / norm);
      if (!(r <= worst)) worst = r, param_name (&c->arch, blk, ids[i], name);
    }
  }
  return worst;
}

static double worst_of (const double *a, const double *b)
{
  double w = 0;
  for (int i = 0; i < STEPS; i++) {
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
  tap_ok (rank || (g > 1e-2 && g < 0.25 && l < 2e-3 && m < 3e-2), "fp8 follows bf16 over %d steps", STEPS);
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

int main (int argc, char **argv)
{
  static struct outcome ref[LEN (models)], last;
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  double noise = 0.1;
  const char *only = getenv ("EQUAL_ONLY");   /* a part of a case's text */
  struct conf c;
  for (int i = 0; i < LEN (models); i++) {
    if (!wanted (models[i].name, only)) continue;
    tiny_options (&c, models[i].options, "");
    if (rank == 0) train (&c, MPI_COMM_SELF, &ref[i]);
    MPI_Bcast (ref[i].loss, STEPS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0) printf ("# %s: loss %.6f -> %.6f, norm %.4f\n", models[i].name, ref[i].loss[0], ref[i].loss[STEPS - 1], ref[i].norm[0]);
  }
  if (!only || strstr ("fp8", only)) noise = check_eight (&ref[model_index ("fp8")], &ref[model_index ("bf16")], rank);
  struct bound bound = { 0 };
  for (int i = 0; i < LEN (cases); i++) {
    const struct test_case *t = &cases[i];
    char text[1400], name[96] = "";
    snprintf (text, sizeof text, "%s %s", t->model, t->options);
    if (only && !strstr (text, only)) continue;
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
