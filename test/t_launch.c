/* Launches that made N single programs, told by the environment. np: 1 */
#include "tap.h"
#include "mesh.h"
#include <stdlib.h>
#include <string.h>

/* In place of the C library's: nobody waits here, and the wait is seen. */
static unsigned slept;
unsigned sleep (unsigned seconds)
{
  slept += seconds;
  return 0;
}

static const char *const known[] = { "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                                     "PALS_SIZE", "PALS_RANKID",
                                     "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_JOB_ID" };

/* The verdict in environment ENV ("A=1 B=2"): the sentence, or "". */
static const char *verdict (const char *env, int world)
{
  static struct err e;
  char copy[256], *save;
  snprintf (copy, sizeof copy, "%s", env);
  for (int i = 0; i < LEN (known); i++) unsetenv (known[i]);
  for (char *p = strtok_r (copy, " ", &save); p; p = strtok_r (NULL, " ", &save)) {
    *strchr (p, '=') = 0;
    setenv (p, p + strlen (p) + 1, 1);
  }
  base_rank (0, 1, NULL);
  memset (&e, 0, sizeof e);
  slept = 0;
  int rc = mesh_launch_check (world, &e);
  return rc == (e.msg[0] ? -1 : 0) ? e.msg : "return value and sentence disagree";
}

static void fine (const char *what, const char *env, int world)
{
  const char *got = verdict (env, world);
  tap_ok (!got[0], "%s is fine%s%s", what, got[0] ? ": " : "", got);
}

static void refused (const char *what, const char *env, const char *a, const char *b, int rank)
{
  const char *got = verdict (env, 1);
  tap_ok (strstr (got, a) && strstr (got, b) && base_rank_get () == rank && (slept > 0) == (rank > 0),
          "%s is refused: %s", what, got);
}

int main (void)
{
  fine ("no launcher", "", 1);
  fine ("a batch script of 64 tasks", "SLURM_JOB_ID=7 SLURM_NTASKS=64 SLURM_PROCID=0", 1);
  fine ("a batch step", "SLURM_JOB_ID=7 SLURM_NTASKS=64 SLURM_STEP_ID=4294967291 SLURM_PROCID=0", 1);
  fine ("an interactive step", "SLURM_JOB_ID=7 SLURM_NTASKS=64 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1", 1);
  fine ("srun of one task in a job of many",
        "SLURM_JOB_ID=7 SLURM_NTASKS=64 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", 1);
  fine ("srun --mpi=pmi2 -n 4", "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 PMI_SIZE=4 PMI_RANK=2", 4);
  fine ("mpiexec -n 1 whose proxies are a Slurm step",
        "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 PMI_SIZE=1 PMI_RANK=0", 1);
  fine ("mpiexec -n 8 whose proxies are a Slurm step",
        "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMI_SIZE=8 PMI_RANK=5", 8);
  fine ("Open MPI's mpirun -n 1", "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0", 1);
  refused ("srun without PMI", "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=64 SLURM_NTASKS=64 SLURM_PROCID=3",
           "srun started 64 processes", "srun --mpi=pmi2", 3);
  refused ("an old srun that names no step size", "SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=0", "srun started 4",
           "srun --mpi=pmi2", 0);
  refused ("srun --mpi=pmix", "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 PMIX_RANK=1", "srun started 4",
           "mpi=pmi2", 1);
  refused ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 PMIX_RANK=2", "Open MPI's mpirun started 4",
           "MPICH's own mpiexec", 2);
  refused ("another MPICH's mpiexec", "PMI_SIZE=4 PMI_RANK=1", "PMI_SIZE=4", "mpiexec of the same MPICH", 1);
  refused ("a PMIx launcher", "PMIX_RANK=3", "at least 4 processes", "PMI", 3);
  tap_ok (base_live () == 0, "nothing is left behind");
  tap_done ();
  return 0;
}
