/* What several ranks hold is the same on all of them, to the bit, after 20 steps: parameters that tp does not cut, copies of KV heads, a tied embedding on
   two stages, replicas of dp; and their moments. Then: peers of uneven pace change nothing, with overlap and without. np: 8 */
#include "tap.h"
#include "tiny_sleep.h"
#include "tiny_run.h"

enum { STEPS = 20 };

/* All elements of the model in block order, each with the least and the largest bits that some rank holds, and by how many it is held. */
struct census { int64_t n, off[64][P_N]; int64_t *least, *most; int *held; };   /* signed: some MPI takes unsigned ones for such */

static void census_open (struct census *c, const struct arch *a)
{
  int64_t rows, cols;
  c->n = 0;
  for (int64_t b = 0; b < a->layers + 2; b++) {
    enum pid ids[P_N];
    int k = block_params (a, b, ids);
    for (int i = 0; i < k; i++) param_shape (a, ids[i], &rows, &cols), c->off[b][ids[i]] = c->n, c->n += rows * cols;
  }
  c->least = calloc ((size_t) c->n, sizeof *c->least);
  c->most = calloc ((size_t) c->n, sizeof *c->most);
  c->held = calloc ((size_t) c->n, sizeof *c->held);
  for (int64_t i = 0; i < c->n; i++) c->least[i] = INT64_MAX;
}

static void census_close (struct census *c) { free (c->least), free (c->most), free (c->held); }

static void count_in (struct census *c, const struct step *s, const struct piece *p, const float *array)
{
  const struct part *part = &p->slot->part;
  int64_t rows, cols, n = p->hi - p->lo;
  uint32_t *v = malloc ((size_t) n * 4 + 4);
  param_shape (&s->c->arch, p->slot->id, &rows, &cols);
  dev_get (s->d, s->q, v, array + p->lo, n * 4);
  for (int64_t k = 0; k < n; k++) {
    int64_t l = p->start + k, i = c->off[p->slot->block][p->slot->id] + (part->row0 + l / part->cols) * cols + part->col0 + l % part->cols;
    c->least[i] = MIN (c->least[i], v[k]);
    c->most[i] = MAX (c->most[i], v[k]);
    c->held[i]++;
  }
  free (v);
}

/* Elements held by several ranks, in *several; returns how many of them differ. Collective over COMM. WHICH: 0 masters, 1 and 2 moments. */
static int64_t differ (const struct step *s, MPI_Comm comm, int which, int64_t *several)
{
  struct census c;
  struct piece *list;
  census_open (&c, &s->c->arch);
  int pieces = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < pieces; i++) {
    const struct ushard *u = &s->sh.u[list[i].unit];
    count_in (&c, s, &list[i], which == 0 ? u->master : which == 1 ? u->m : u->v);
  }
  xfree (list);
  MPI_Allreduce (MPI_IN_PLACE, c.least, (int) c.n, MPI_INT64_T, MPI_MIN, comm);
  MPI_Allreduce (MPI_IN_PLACE, c.most, (int) c.n, MPI_INT64_T, MPI_MAX, comm);
  MPI_Allreduce (MPI_IN_PLACE, c.held, (int) c.n, MPI_INT, MPI_SUM, comm);
  int64_t bad = 0;
  *several = 0;
  for (int64_t i = 0; i < c.n; i++) {
    *several += c.held[i] > 1;
    bad += c.held[i] < 1 || c.least[i] != c.most[i];
  }
  census_close (&c);
  return bad;
}

static void same_on_all (int world, const char *options)
{
  int rank;
  int64_t several = 0, bad = 0;
  double loss[2] = { 0 };
  MPI_Comm comm;
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_split (MPI_COMM_WORLD, rank < world ? 0 : MPI_UNDEFINED, rank, &comm);
  if (rank < world) {
    struct conf c;
    struct tiny run;
    struct step_result r;
    tiny_options (&c, options, "");
    tiny_open (&run, &c, comm, 0);
    for (int64_t t = 1; t <= STEPS; t++) tiny_step (&run, t, &r), loss[t > 1] = r.loss;
    for (int w = 0; w < 3; w++) bad += differ (&run.s, comm, w, &several);
    tiny_close (&run);
    MPI_Comm_free (&comm);
  }
  if (!rank) printf ("# %lld differ; loss %.4f to %.4f\n", (long long) bad, loss[0], loss[1]);
  tap_ok (!bad && (rank >= world || (several && loss[1] < loss[0])), "%d ranks: %lld elements are held by several, the same on all: %s", world, (long long) several, options);
}

static void losses (const char *options, bool sleepy, double loss[STEPS])
{
  struct conf c;
  struct tiny run;
  tiny_options (&c, "--mesh.dp_shard 2 --mesh.pp 2 --mesh.tp 2 --train.micro_batch 1", options);
  tiny_open (&run, &c, MPI_COMM_WORLD, 0);
  tiny_nap.on = sleepy;
  for (int64_t t = 1; t <= STEPS; t++) {
    struct step_result r;
    tiny_step (&run, t, &r);
    loss[t - 1] = r.loss;
  }
  tiny_nap.on = false;
  tiny_close (&run);
}

static void uneven_pace (void)
{
  double want[STEPS], is[STEPS];
  losses ("--run.overlap false", false, want);
  static const char *const options[] = { "--run.overlap true", "--run.overlap true --debug.sync_send true", "--run.overlap false" };
  for (int i = 0; i < LEN (options); i++) {
    tiny_nap.slept = 0;
    losses (options[i], true, is);
    tap_ok (!memcmp (want, is, sizeof is) && tiny_nap.slept > STEPS, "dp 2 x pp 2 x tp 2, late messages on all ranks (%lld on this one): the same losses: %s",
            (long long) tiny_nap.slept, options[i]);
  }
}

int main (int argc, char **argv)
{
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  same_on_all (4, "--mesh.tp 4 --model.qkv_bias true");
  same_on_all (4, "--mesh.tp 4 --model.qk_norm true --train.dtype bf16");
  same_on_all (4, "--mesh.tp 2 --mesh.pp 2 --model.tied true --train.micro_batch 1");
  same_on_all (4, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD --train.micro_batch 1");
  same_on_all (8, "--mesh.tp 4 --mesh.dp_shard 2 --sharding.strategy NO_SHARD --train.dtype bf16 --sharding.reduce_dtype bf16");
  same_on_all (8, "--mesh.tp 8 --recompute.mode full");
  uneven_pace ();
  tap_done ();
  MPI_Finalize ();
  return 0;
}
