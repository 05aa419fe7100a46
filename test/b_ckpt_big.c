/* Checkpoints beyond what 31 bits count: one tensor, one dataset and one slice of more than 2^31 bytes. Writes 7.4 GB to TMPDIR (/tmp).
   np: 1 2 */
#include "tap.h"
#include "ckpt.h"
#include <stdlib.h>
#include <unistd.h>

struct big { struct conf conf; struct mesh mesh; struct units units; struct ckpt_state s; int64_t wrong, seen; };

static float element (const struct big *b, enum ckpt_kind k, int64_t lo) { return (float) ((lo + b->units.shard_rank * b->units.unit[0].shard) % 16777213) + (float) k; }

static void get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  for (int64_t i = 0; i < n; i++) dst[i] = unit ? (float) unit : element (ctx, k, lo + i);
}

static void put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  struct big *b = ctx;
  b->seen += n;
  for (int64_t i = 0; i < n; i++) b->wrong += src[i] != (unit ? (float) unit : element (b, k, lo + i));
}

int main (int argc, char **argv)
{
  struct big b = { 0 };
  struct err e = { 0 };
  char dir[200], path[CKPT_PATH], cmd[240];
  MPI_Init (&argc, &argv);
  must (!mesh_open (&b.mesh, MPI_COMM_WORLD, &e), "%s", e.msg);
  base_rank (b.mesh.rank, b.mesh.size, NULL);
  struct mesh_shape shape = { .dim = { 1, 1, b.mesh.size, 1 }, .order = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE }, .kv_rep = 1 };
  must (!mesh_split (&b.mesh, &shape, false, &e), "%s", e.msg);
  conf_default (&b.conf);
  b.conf.arch = (struct arch) { .dim = 2048, .heads = 1, .kv_heads = 1, .head_dim = 2, .ffn = 8, .vocab = 300000, .layers = 1, .tied = true, .norm_eps = 1e-5, .rope_theta = 1e4 };
  struct unit_place p = { 1, 0, 1, 0, 1, b.mesh.size, b.mesh.rank, 64 };
  must (!units_make (&b.units, &b.conf, &p, &e), "%s", e.msg);
  b.s = (struct ckpt_state) { .conf = &b.conf, .mesh = &b.mesh, .units = &b.units, .step = 1, .get = get, .put = put, .ctx = &b };
  snprintf (dir, sizeof dir, "%s/b_ckpt_big.%d", tap_tmp (), b.mesh.size);
  snprintf (path, sizeof path, "%s/checkpoints/step_00000001.h5", dir);
  tap_ok (!ckpt_save (&b.s, dir, &e), "saved: %s", e.msg);
  int rc = ckpt_load (&b.s, path, false, &e);
  tap_ok (!rc && !b.wrong && b.seen > INT64_C (1800000000) / b.mesh.size, "loaded, no element of %lld wrong: %s", (long long) b.seen, e.msg);
  tap_ok (b.mesh.rank || !ckpt_verify (path, &e), "verified: %s", e.msg);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  if (!b.mesh.rank && system (cmd)) perror (cmd);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
