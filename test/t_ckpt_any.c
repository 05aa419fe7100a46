/* Four meshes from four others; all of them in b_ckpt_any (make bigcheck).
   np: 4 */
#include "ckpt_any.h"

int main (int argc, char **argv)
{
  static const struct any_mesh from[] = {
    { 4, "--mesh.dp 2 --mesh.tp 2" }, { 4, "--mesh.pp 2 --mesh.tp 2 --sharding.strategy SHARD_OPT" },
    { 4, "--mesh.tp 4" }, { 3, "--mesh.dp 3 --sharding.wrap size:50000" },
  };
  static const struct any_mesh to[] = {
    { 1, "--mesh.dp 1" }, { 4, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --sharding.strategy HYBRID_SHARD" },
    { 4, "--mesh.pp 4" }, { 4, "--mesh.tp 4" },
  };
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  any_matrix ("tiny", "", from, LEN (from), to, LEN (to), rank);
  any_matrix ("tied", "--model.tied true", from + 1, 1, to + 1, 2, rank);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
