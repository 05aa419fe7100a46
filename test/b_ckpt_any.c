/* Every mesh from every other, untied and tied.
   np: 8 */
#include "ckpt_any.h"

int main (int argc, char **argv)
{
  static const struct any_mesh mesh[] = {
    { 1, "--mesh.dp 1" }, { 2, "--mesh.dp 2" }, { 3, "--mesh.dp 3" }, { 8, "--mesh.dp 8" }, { 2, "--mesh.tp 2" }, { 8, "--mesh.tp 8" },
    { 4, "--mesh.pp 4" }, { 2, "--mesh.pp 2 --pipeline.split 3,1" }, { 4, "--mesh.dp 2 --mesh.tp 2 --sharding.strategy SHARD_GRAD_OP" },
    { 8, "--mesh.dp 2 --mesh.pp 2 --mesh.tp 2" }, { 8, "--mesh.dp_replicate 2 --mesh.dp_shard 2 --mesh.pp 2 --sharding.strategy HYBRID_SHARD" },
    { 4, "--mesh.dp 4 --sharding.strategy NO_SHARD" }, { 8, "--mesh.dp 2 --mesh.tp 4 --sharding.strategy SHARD_OPT --sharding.wrap model" },
    { 4, "--mesh.dp 2 --mesh.pp 2 --sharding.wrap size:70000 --pipeline.schedule zbh1" },
  };
  int rank, size;
  tiny_begin (&argc, &argv, &rank, &size);
  any_matrix ("untied", "", mesh, LEN (mesh), mesh, LEN (mesh), rank);
  any_matrix ("tied", "--model.tied true", mesh, LEN (mesh), mesh, LEN (mesh), rank);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
