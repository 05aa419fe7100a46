/* ckpt_any: what one mesh wrote, another loads: its tensors and moments to the byte, and the loss of its next step to 1e-6. */
#ifndef CKPT_ANY_H
#define CKPT_ANY_H
#include "tap.h"
#include "ckpt.h"
#include "tiny_run.h"
#include <math.h>
#include <unistd.h>

struct any_mesh { int ranks; const char *options; };

static float *any_part (struct tiny *t, enum ckpt_kind k, int unit)
{
  struct ushard *u = &t->s.sh.u[unit];
  return k == CKPT_MASTER ? u->master : k == CKPT_M ? u->m : u->v;
}

static void any_get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  struct tiny *t = ctx;
  dev_get (&t->d, t->s.q, dst, any_part (t, k, unit) + lo, n * 4);
}

static void any_put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  struct tiny *t = ctx;
  dev_put (&t->d, t->s.q, any_part (t, k, unit) + lo, src, n * 4);
}

static struct ckpt_state any_state (struct tiny *t, int64_t step)
{
  return (struct ckpt_state) { .conf = t->s.c, .config = "model: tiny\n", .mesh = &t->m, .units = &t->s.sh.units, .step = step, .tokens = step * 1000,
    .updates = step_updates (&t->s), .get = any_get, .put = any_put, .ctx = t };
}

/* Elements of all tensors and moments that differ between two files; -1: unreadable. One process. */
static int64_t any_differ (const char *a, const char *b)
{
  struct err e = { 0 };
  const struct ckpt_tensor *t;
  struct ckpt_file *f[2] = { ckpt_open (a, &e), ckpt_open (b, &e) };
  int64_t wrong = f[0] && f[1] ? 0 : -1, n = wrong ? 0 : ckpt_tensors (f[0], &t);
  for (int64_t i = 0; i < n; i++) {
    struct strip s = { 0, 0, t[i].cols, 0, t[i].rows * t[i].cols };
    float *x = malloc ((size_t) s.count * 4), *y = malloc ((size_t) s.count * 4);
    for (int k = 0; k < CKPT_KINDS; k++) {
      if (ckpt_read (f[0], k, i, &s, x, &e) || ckpt_read (f[1], k, ckpt_find (f[1], t[i].name), &s, y, &e)) wrong = -1;
      for (int64_t j = 0; j < s.count && wrong >= 0; j++) wrong += memcmp (x + j, y + j, 4) != 0;
    }
    free (x);
    free (y);
  }
  if (e.msg[0]) printf ("# %s\n", e.msg);
  ckpt_close (f[0]);
  ckpt_close (f[1]);
  return wrong;
}

/* This mesh on the first ranks of the world; false: I am none of them. */
static bool any_open (struct tiny *t, struct conf *c, const struct any_mesh *m, const char *model, MPI_Comm *comm, int rank)
{
  MPI_Comm_split (MPI_COMM_WORLD, rank < m->ranks ? 0 : MPI_UNDEFINED, rank, comm);
  if (rank >= m->ranks) return false;
  char all[512];
  snprintf (all, sizeof all, "--train.global_batch 24 --train.micro_batch 1 %s", model);
  tiny_options (c, all, m->options);
  tiny_open (t, c, *comm, 0);
  return true;
}

/* Two steps, a checkpoint as step 2 of DIR, and the loss of the third. */
static double any_write (const struct any_mesh *m, const char *model, const char *dir, int rank)
{
  struct tiny t;
  struct conf c;
  struct err e = { 0 };
  struct step_result r = { 0 };
  MPI_Comm comm;
  if (any_open (&t, &c, m, model, &comm, rank)) {
    for (int i = 1; i <= 2; i++) tiny_step (&t, i, &r);
    struct ckpt_state s = any_state (&t, 2);
    must (!ckpt_save (&s, dir, &e), "%s", e.msg);
    tiny_step (&t, 3, &r);
    tiny_close (&t);
    MPI_Comm_free (&comm);
  }
  MPI_Bcast (&r.loss, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return r.loss;
}

/* Load that, write it again as step 3, and the loss of the third step. */
static double any_read (const struct any_mesh *m, const char *model, const char *dir, int rank)
{
  struct tiny t;
  struct conf c;
  struct err e = { 0 };
  struct step_result r = { 0 };
  char path[CKPT_PATH];
  MPI_Comm comm;
  snprintf (path, sizeof path, "%s/checkpoints/step_00000002.h5", dir);
  if (any_open (&t, &c, m, model, &comm, rank)) {
    struct ckpt_state s = any_state (&t, 0);
    must (!ckpt_load (&s, path, false, &e), "%s", e.msg);
    step_set_updates (&t.s, s.updates);
    shard_stale (&t.s.sh);
    s = any_state (&t, 3);
    must (!ckpt_save (&s, dir, &e), "%s", e.msg);
    tiny_step (&t, 3, &r);
    tiny_close (&t);
    MPI_Comm_free (&comm);
  }
  MPI_Bcast (&r.loss, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return r.loss;
}

/* Each of FROM to each of TO; one point for each of FROM. */
static void any_matrix (const char *what, const char *model, const struct any_mesh *from, int froms, const struct any_mesh *to, int tos, int rank)
{
  char dir[200], cmd[240], a[CKPT_PATH], b[CKPT_PATH];
  snprintf (dir, sizeof dir, "%s/ckpt_any.%d", tap_tmp (), (int) getpid ());
  MPI_Bcast (dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  snprintf (a, sizeof a, "%s/checkpoints/step_00000002.h5", dir);
  snprintf (b, sizeof b, "%s/checkpoints/step_00000003.h5", dir);
  for (int i = 0; i < froms; i++) {
    double loss = any_write (&from[i], model, dir, rank), most = 0;
    int64_t differ = 0;
    for (int k = 0; k < tos; k++) {
      double other = any_read (&to[k], model, dir, rank), off = fabs (other - loss) / fabs (loss);
      int64_t d = rank ? 0 : any_differ (a, b);
      if (!rank && (d || off > 1e-6)) printf ("# %d ranks %s to %d ranks %s: %lld elements differ, loss %.9g and %.9g\n", from[i].ranks, from[i].options, to[k].ranks, to[k].options,
                                              (long long) d, loss, other);
      differ += d != 0;
      most = fmax (most, off);
    }
    tap_ok (!differ && most <= 1e-6, "%s, %d ranks %s: %d meshes hold the same to the byte, next loss within %.1e", what, from[i].ranks, from[i].options, tos, most);
    if (!rank && system (cmd)) perror (cmd);
    MPI_Barrier (MPI_COMM_WORLD);
  }
}
#endif
