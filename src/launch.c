/* Did the launcher and MPI understand each other? A launcher without the PMI that MPI speaks starts N single programs, each of
   which believes to be rank 0 of 1: they would train N times the same and write over each other. Only the environment tells. */
#include "config.h"
#include "mesh.h"
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* Where a launcher ends the job at the first bad exit, the silent programs must not leave before the speaker has spoken. */
enum { HOLD_SECONDS = 5 };

/* A non-negative number in the environment, or -1. */
static int64_t env_number (const char *name)
{
  const char *s = name ? getenv (name) : NULL;
  char *end;
  if (!s || !*s) return -1;
  long long v = strtoll (s, &end, 10);
  return *end || v < 0 ? -1 : v;
}

/* Who sets what, in this order: mpiexec inside a Slurm step starts proxies of its own, so PMI_SIZE knows better than SLURM_*. */
static const struct launcher {
  const char *size, *rank, *who, *remedy;
} launchers[] = {
  { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun",
    "this program is built with MPICH: launch it with MPICH's own mpiexec (mpiexec.mpich on Debian) or with srun --mpi=pmi2" },
  { "PMI_SIZE", "PMI_RANK", "the launcher",
    "it speaks another PMI than this MPICH: launch with the mpiexec of the same MPICH (mpiexec.mpich on Debian) "
    "or with srun --mpi=pmi2" },
  { "PALS_SIZE", "PALS_RANKID", "PALS", "launch with the mpiexec of the MPICH that this program is built with" },
  { "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun", "launch with srun --mpi=pmi2, or with mpiexec inside sbatch or salloc" },
  { "SLURM_NTASKS", "SLURM_PROCID", "srun", "launch with srun --mpi=pmi2, or with mpiexec inside sbatch or salloc" },
  { NULL, "PMIX_RANK", "a PMIx launcher", "this MPICH speaks PMI: launch with its own mpiexec or with srun --mpi=pmi2" },
};

/* Slurm gives the batch script and an interactive shell ids of their own at the top of the range: one process there is as it
   should be. */
static bool in_slurm_step (void)
{
  int64_t id = env_number ("SLURM_STEP_ID");
  return id >= 0 && id < 0xfffffff0;
}

/* Processes that L says it started: 0 if it says nothing. */
static int64_t claimed (const struct launcher *l)
{
  int64_t n = env_number (l->size), rank = env_number (l->rank);
  if (l->rank[0] == 'S' && !in_slurm_step ()) return 0;
  if (!l->size) return rank > 0 ? rank + 1 : 0;   /* PMIx names no size: a rank above 0 is not alone */
  return MAX (n, 0);
}

int mesh_launch_check (int world_size, struct err *e)
{
  for (int i = 0; i < LEN (launchers) && world_size == 1; i++) {
    const struct launcher *l = &launchers[i];
    int64_t n = claimed (l), rank = env_number (l->rank);
    if (n == 1) return 0;
    if (!n) continue;
    base_rank (rank > 0 ? (int) rank : 0, (int) MIN (n, (int64_t) INT32_MAX), NULL);
    if (rank > 0) sleep (HOLD_SECONDS);
    return user_err (e, "%s started %s%" PRId64 " processes, but each of them is a single program, rank 0 of 1 (%s=%s); %s",
                     l->who, l->size ? "" : "at least ", n,
                     l->size ? l->size : l->rank, getenv (l->size ? l->size : l->rank), l->remedy);
  }
  return 0;
}
