/* Laws of a step that have a right answer known beforehand, on meshes of up to four ranks: mean over valid tokens, norm of a
   gradient of ones, decay alone, angles of RoPE, the learning rate's warm-up. np: 4 */
#include "tap.h"
#include "opt.h"
#include "step.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a step on the first ranks of the world ---- */

struct rig {
  struct conf c;
  struct mesh m;
  struct dev d;
  struct step s;
  MPI_Comm comm;
};

static int rank;
static struct err e;

static void options (struct conf *c, const char *a, const char *b)
{
  char text[1600];
  char *argv[128];
  int n = 0;
  snprintf (text, sizeof text, "%s %s --run.threads 1 --train.dtype fp32", a, b);
  for (char *t = strtok (text, " "); t; t = strtok (NULL, " ")) argv[n++] = t;
  conf_default (c);
  must (!conf_load (c, NULL, n, argv, &e), "%s", e.msg);
}

/* Collective over the world; false on ranks that have no part in it. */
static bool rig_open (struct rig *r, int world, const char *a, const char *b)
{
  memset (r, 0, sizeof *r);
  options (&r->c, a, b);
  MPI_Comm_split (MPI_COMM_WORLD, rank < world ? 0 : MPI_UNDEFINED, rank, &r->comm);
  if (rank >= world) return false;
  const struct conf *c = &r->c;
  struct mesh_shape s = { .no_shard = c->sharding.strategy == NO_SHARD };
  int64_t want[AXIS_N] = { [AXIS_TP] = c->mesh.tp, [AXIS_PP] = c->mesh.pp, [AXIS_DP_SHARD] = c->mesh.dp_shard,
                           [AXIS_DP_REPLICATE] = c->mesh.dp_replicate };
  must (!mesh_order (c->mesh.order, s.order, &e) && !mesh_fill (want, world, s.dim, &e), "%s", e.msg);
  s.kv_rep = s.dim[AXIS_TP] > c->arch.kv_heads ? s.dim[AXIS_TP] / (int) c->arch.kv_heads : 1;
  must (!mesh_open (&r->m, r->comm, &e) && !mesh_split (&r->m, &s, true, &e), "%s", e.msg);
  struct dev_conf dc = { .local_rank = r->m.local_rank, .local_size = r->m.local_size, .threads = 1 };
  must (!dev_open (&r->d, "cpu", &dc, &e) && !step_plan (&r->s, c, &r->m, &r->d, &e), "%s", e.msg);
  step_start (&r->s, &r->m);
  return true;
}

static void rig_close (struct rig *r)
{
  if (r->comm == MPI_COMM_NULL) return;
  step_close (&r->s);
  dev_close (&r->d);
  mesh_close (&r->m);
  MPI_Comm_free (&r->comm);
}

/* ---- state, element by element: WHAT of parameter ID of BLOCK at row, column of the global matrix ---- */

enum what { MASTER, GRAD };
typedef float rule (const struct step *s, const struct slot *slot, int64_t row, int64_t col);

static float *array (struct ushard *u, enum what w) { return w == MASTER ? u->master : u->grad; }

/* F of element K of a piece. */
static float at (const struct step *s, const struct piece *p, int64_t k, rule *f)
{
  const struct part *part = &p->slot->part;
  return f (s, p->slot, part->row0 + (p->start + k) / part->cols, part->col0 + (p->start + k) % part->cols);
}

static void put_all (struct step *s, enum what w, rule *f)
{
  struct piece *list;
  int n = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < s->sh.units.count; i++) {
    float *zero = calloc ((size_t) s->sh.units.unit[i].shard, 4);
    dev_put (s->d, s->q, array (&s->sh.u[i], w), zero, s->sh.units.unit[i].shard * 4);
    free (zero);
  }
  for (int i = 0; i < n; i++) {
    const struct piece *p = &list[i];
    float *x = malloc ((size_t) (p->hi - p->lo) * 4 + 4);
    for (int64_t k = 0; k < p->hi - p->lo; k++) x[k] = at (s, p, k, f);
    dev_put (s->d, s->q, array (&s->sh.u[p->unit], w) + p->lo, x, (p->hi - p->lo) * 4);
    free (x);
  }
  xfree (list);
  shard_stale (&s->sh);
}

/* Largest |x - f| over the masters. */
static double farthest (struct step *s, rule *f)
{
  struct piece *list;
  double worst = 0;
  int n = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < n; i++) {
    const struct piece *p = &list[i];
    float *x = malloc ((size_t) (p->hi - p->lo) * 4 + 4);
    dev_get (s->d, s->q, x, s->sh.u[p->unit].master + p->lo, (p->hi - p->lo) * 4);
    for (int64_t k = 0; k < p->hi - p->lo; k++) {
      double a = fabs (x[k] - (double) at (s, p, k, f));
      if (!(a <= worst)) worst = a;
    }
    free (x);
  }
  xfree (list);
  return worst;
}

/* ---- loss: a sum over valid tokens divided by their number ---- */

/* Layers that add nothing; token A stands on axis 0, all others on axis 1; the head says 0 for id 0, z for id 1, nothing for the
   rest, where log (1 + e^z) is 2 for A and 10 for others. A target of 0 then costs just that. */
static float two_losses (const struct step *s, const struct slot *slot, int64_t row, int64_t col)
{
  (void) s;
  double r = sqrt ((double) s->c->arch.dim), z = col == 0 ? log (exp (2) - 1) : col == 1 ? log (exp (10) - 1) : 0;
  switch (slot->id) {
  case P_NORM1: case P_NORM2: case P_NORM: return 1;
  case P_EMBED: return col == (row == 5 ? 0 : 1) ? 1000 : 0;
  case P_HEAD:  return row == 0 ? 0 : row == 1 ? (float) (z / r) : col < 2 ? -100 : 0;
  default:      return 0;
  }
}

static struct host_batch *make_batch (struct rig *r, int32_t **mem, int64_t *bytes)
{
  struct step *s = &r->s;
  struct host_batch *b = calloc ((size_t) s->mbs, sizeof *b);
  int64_t n = s->b.g.n;
  *bytes = s->mbs * n * 16;
  int32_t *p = *mem = dev_reserve (&r->d, MEM_STAGE, SPACE_PINNED, *bytes, &e);
  for (int i = 0; i < s->mbs; i++, p += 4 * n) b[i] = (struct host_batch) { p, p + n, p + 2 * n, p + 3 * n };
  for (int a = 0; a < s->mbs; a++)
    for (int64_t k = 0; k < n; k++) {
      int64_t j = (a * s->dp + s->dp_rank) * s->b.g.batch + k / s->b.g.seq, t = k % s->b.g.seq;   /* sample, place */
      b[a].ids[k] = j == 0 ? 5 : 6;
      b[a].target[k] = (j == 0 && t == 3) || (j == 1 && t < 9) ? 0 : -1;   /* further samples have no valid token */
    }
  return b;
}

static void mean_loss (int world, const char *options)
{
  static const char model[] = "--model.dim 16 --model.layers 2 --model.heads 2 --model.kv_heads 2 --model.ffn 16 "
    "--model.vocab 40 --train.seq_len 16 --optimizer.lr 0 --train.global_batch 4";
  struct rig r;
  struct step_result t = { .loss = 9.2 }, v = t;
  t.tokens = v.tokens = 10;
  if (rig_open (&r, world, model, options)) {
    int32_t *mem;
    int64_t bytes;
    struct host_batch *b = make_batch (&r, &mem, &bytes);
    put_all (&r.s, MASTER, two_losses);
    step_eval (&r.s, b, &v);
    step_train (&r.s, b, 0, &t);
    dev_release (&r.d, MEM_STAGE, SPACE_PINNED, mem, bytes);
    free (b);
  }
  tap_ok (fabs (t.loss - 9.2) < 1e-5 && fabs (v.loss - 9.2) < 1e-5 && t.tokens == 10 && v.tokens == 10,
          "%d ranks: (2, 1) and (90, 9) make 9.2 in training and validation: %s", world, options);
  rig_close (&r);
}

static void mean_losses (void)
{
  mean_loss (1, "--train.micro_batch 4");
  mean_loss (1, "--train.micro_batch 1");
  mean_loss (2, "--train.micro_batch 1 --mesh.dp_shard 2");
  mean_loss (2, "--train.micro_batch 1 --mesh.dp_shard 2 --sharding.strategy NO_SHARD");
  mean_loss (2, "--train.micro_batch 1 --mesh.pp 2");
  mean_loss (2, "--train.micro_batch 2 --mesh.tp 2");
  mean_loss (4, "--train.micro_batch 1 --mesh.dp_shard 4 --sharding.strategy SHARD_OPT");
  mean_loss (4, "--train.micro_batch 1 --mesh.dp_shard 2 --mesh.tp 2 --train.loss_chunk 5");
  mean_loss (4, "--train.micro_batch 1 --mesh.pp 2 --mesh.tp 2");
  mean_loss (4, "--train.micro_batch 1 --mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD");
}

/* ---- norm: each global element once ---- */

/* Before the sums over tp what is replicated there is a partial sum: so many ranks share a gradient of one. */
static float share (const struct slot *slot) { return 1 / (float) slot->part.rep_size; }

/* 16 ones of a matrix that tp cuts and 4 of a norm that it does not. */
static float twenty (const struct step *s, const struct slot *slot, int64_t row, int64_t col)
{
  (void) s, (void) row, (void) col;
  return slot->block == 1 && (slot->id == P_GATE || slot->id == P_NORM1) ? share (slot) : 0;
}
static float ones (const struct step *s, const struct slot *slot, int64_t row, int64_t col)
{
  (void) s, (void) row, (void) col;
  return share (slot);
}

/* The norm that the step would clip by, of gradients as they are when all reductions over dp are done. */
static double norm_of (struct rig *r, rule *f)
{
  struct step_vars v = { .clip = 1, .tokens = r->m.rank == 0, .b1t = 1, .b2t = 1 };
  put_all (&r->s, GRAD, f);
  dev_put (&r->d, r->s.q, r->s.sh.vars, &v, sizeof v);
  shard_norms (&r->s.sh);
  dev_get (&r->d, r->s.q, &v, r->s.sh.vars, sizeof v);
  return v.scale == 1 / v.norm && !v.skip ? v.norm : NAN;
}

static void norms (int world, const char *options)
{
  static const char model[] = "--model.dim 4 --model.layers 2 --model.heads 4 --model.kv_heads 2 --model.head_dim 6 "
    "--model.ffn 4 --model.vocab 41 --train.seq_len 16 --train.micro_batch 1 --train.global_batch 4";
  struct rig r;
  double a = sqrt (20), b = 1, want = 1;
  if (rig_open (&r, world, model, options)) {
    a = norm_of (&r, twenty);
    b = norm_of (&r, ones);
    want = sqrt ((double) arch_params (&r.c.arch));
  }
  tap_ok (fabs (a - 4.472136) < 1e-6 && fabs (b - want) < 1e-9 * want,
          "%d ranks: 16 + 4 ones have the norm %.6f, all ones %.6f: %s", world, a, b, options);
  rig_close (&r);
}

static void all_norms (void)
{
  norms (1, "--model.qkv_bias true --model.qk_norm true");
  norms (2, "--mesh.dp_shard 2 --model.tied true");
  norms (2, "--mesh.dp_replicate 2 --sharding.strategy NO_SHARD --mesh.dp_shard 1");
  norms (2, "--mesh.pp 2 --model.tied true");
  norms (2, "--mesh.tp 2 --model.qkv_bias true --model.qk_norm true");
  norms (4, "--mesh.tp 4");
  norms (4, "--mesh.tp 4 --model.qkv_bias true --model.qk_norm true --model.tied true");
  norms (4, "--mesh.tp 2 --mesh.dp_shard 2 --sharding.strategy SHARD_OPT");
  norms (4, "--mesh.tp 2 --mesh.pp 2 --model.tied true --model.qk_norm true");
  norms (4, "--mesh.dp_shard 4 --sharding.strategy SHARD_GRAD_OP");
  norms (4, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD");
  norms (4, "--mesh.dp_replicate 2 --mesh.dp_shard 1 --mesh.tp 2 --sharding.strategy NO_SHARD");
}

/* ---- decay alone ---- */

static float before (const struct step *s, const struct slot *slot, int64_t row, int64_t col)
{
  (void) s;
  return param_ndim (slot->id) == 1 ? (float) (0.7 + 0.01 * (double) row) : (float) (1 + (double) ((row * 7 + col) % 16) / 16);
}
static float after (const struct step *s, const struct slot *slot, int64_t row, int64_t col)
{
  return param_ndim (slot->id) == 1 ? before (s, slot, row, col) : (float) (0.904382 * before (s, slot, row, col));
}
static float nothing (const struct step *s, const struct slot *slot, int64_t row, int64_t col)
{
  (void) s, (void) slot, (void) row, (void) col;
  return 0;
}

/* Have all vectors the bits that they had? */
static bool vectors_same (struct step *s)
{
  struct piece *list;
  bool same = true;
  int n = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < n; i++) {
    const struct piece *p = &list[i];
    if (param_ndim (p->slot->id) != 1) continue;
    float *x = malloc ((size_t) (p->hi - p->lo) * 4 + 4);
    dev_get (s->d, s->q, x, s->sh.u[p->unit].master + p->lo, (p->hi - p->lo) * 4);
    for (int64_t k = 0; k < p->hi - p->lo; k++) {
      float w = before (s, p->slot, p->slot->part.row0 + p->start + k, 0);
      same &= !memcmp (&w, &x[k], 4);
    }
    free (x);
  }
  xfree (list);
  return same;
}

static void decay_steps (struct rig *r, int steps)
{
  for (int i = 0; i < steps; i++) {
    double in[2] = { 0.1, 1 }, sums[4] = { 0, 0, 0, r->m.rank == 0 };
    dev_put (&r->d, r->s.q, &r->s.sh.vars->lr, in, sizeof in);
    dev_put (&r->d, r->s.q, &r->s.sh.vars->sumsq, sums, sizeof sums);
    shard_norms (&r->s.sh);
    shard_optimize (&r->s.sh);
  }
}

static void decay (int world, const char *options)
{
  static const char model[] = "--model.dim 24 --model.layers 2 --model.heads 4 --model.kv_heads 2 --model.ffn 16 "
    "--model.vocab 41 --model.qkv_bias true --model.qk_norm true --train.seq_len 16 --train.micro_batch 1 --train.global_batch 4 "
    "--optimizer.weight_decay 0.1";
  struct rig r;
  double far = 0, updates = 10;
  bool same = true;
  if (rig_open (&r, world, model, options)) {
    shard_init (&r.s.sh);
    put_all (&r.s, MASTER, before);
    put_all (&r.s, GRAD, nothing);
    decay_steps (&r, 5);
    step_set_updates (&r.s, step_updates (&r.s));   /* as after loading a checkpoint */
    decay_steps (&r, 5);
    far = farthest (&r.s, after);
    same = vectors_same (&r.s);
    updates = step_updates (&r.s);
  }
  tap_ok (far < 2e-6 && same && updates == 10,
          "%d ranks: ten steps without a gradient are 0.904382 for matrices, nothing for vectors: %s", world, options);
  rig_close (&r);
}

static void decays (void)
{
  decay (1, "");
  decay (2, "--mesh.pp 2 --model.tied true");
  decay (4, "--mesh.dp_shard 4");
  decay (4, "--mesh.dp_shard 4 --sharding.wrap model");
  decay (4, "--mesh.dp_shard 4 --sharding.strategy NO_SHARD");
  decay (4, "--mesh.tp 4");
  decay (4, "--mesh.dp_shard 2 --mesh.tp 2 --sharding.strategy SHARD_OPT");
}

/* ---- RoPE at far positions ---- */

/* The table that a step makes, turned by, against angles in binary80. */
static void angles (void)
{
  enum { DIM = 64 };
  static const int64_t at[] = { 0, 1, 257, 4095, 8191, 131071 };
  struct rig r;
  double worst = 0;
  static const char model[] = "--model.dim 8 --model.layers 1 --model.heads 1 --model.head_dim 64 --model.ffn 8 --model.vocab 8 "
    "--model.rope_theta 500000 --train.seq_len 131072 --train.micro_batch 1 --train.global_batch 1 "
    "--train.loss_chunk 128 --recompute.mode full";
  if (rig_open (&r, 1, model, "")) {
    float *t = malloc (4 * DIM);
    void *x = dev_reserve (&r.d, MEM_WORK, SPACE_DEVICE, 4 * DIM, &e);
    int32_t *pos = dev_reserve (&r.d, MEM_WORK, SPACE_DEVICE, 64, &e);
    for (int k = 0; k < LEN (at); k++) {
      for (int i = 0; i < DIM; i++) t[i] = i < DIM / 2;
      int32_t p = (int32_t) at[k];
      dev_put (&r.d, r.s.q, x, t, 4 * DIM);
      dev_put (&r.d, r.s.q, pos, &p, 4);
      dev_op (&r.d, r.s.q, OP_ROPE, rope, .x = x, .n = 1, .heads = 1, .head_dim = DIM, .stride = DIM, .seq = 1, .pos = pos,
              .table = r.s.rope, .t = DT_F32);
      dev_get (&r.d, r.s.q, t, x, 4 * DIM);
      for (int i = 0; i < DIM / 2; i++) {
        long double angle = (long double) at[k] * expl (-logl (500000) * i / (DIM / 2));
        worst = fmax (worst, fmax (fabs (t[i] - (double) cosl (angle)), fabs (t[DIM / 2 + i] - (double) sinl (angle))));
      }
    }
    dev_release (&r.d, MEM_WORK, SPACE_DEVICE, x, 4 * DIM);
    dev_release (&r.d, MEM_WORK, SPACE_DEVICE, pos, 64);
    free (t);
  }
  tap_ok (worst < 2e-7, "cosines and sines up to position 131071 are within %.1e", worst);
  rig_close (&r);
}

/* ---- learning rate ---- */

static void rates (void)
{
  struct conf c;
  bool good = true;
  options (&c, "--model tiny --optimizer.lr 1e-3 --train.steps 100",
           "--schedule.warmup 10 --schedule.type cosine --schedule.steps 100 --schedule.min_lr 1e-4");
  for (int t = 1; t <= 10; t++) good &= fabs (opt_lr (&c, t) - 1e-4 * t) < 1e-18;
  tap_ok (good, "warm-up of 10 to 1e-3: 1e-4 at step 1, 1e-3 at step 10");
  tap_ok (fabs (opt_lr (&c, 55) - 5.5e-4) < 1e-15 && opt_lr (&c, 100) == 1e-4 && opt_lr (&c, 1000) == 1e-4,
          "cosine: half way at step 55, the least at step 100 and after");
}

int main (int argc, char **argv)
{
  int size;
  wait_before_mpi ();
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  wait_init (size);
  mean_losses ();
  all_norms ();
  decays ();
  angles ();
  rates ();
  tap_done ();
  MPI_Finalize ();
  return 0;
}
