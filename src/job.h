/* job: from the command line to a rank that is ready to compute, the same for every command that runs the model under MPI.

   Order: options, launch check, mesh, comparison of the ranks, device, memory, groups. A mistake of the user's is agreed on by all ranks before the next collective. */
#ifndef JOB_H
#define JOB_H
#include "step.h"

struct job {
  struct conf c;
  struct mesh m;
  struct dev d;
  struct step s;
  char gpus[256];        /* of this node's ranks, in words; empty on cpu */
  bool mesh_up, dev_up, planned, started;
};

/* MPI up, launch checked, node map made. Returns 0, or the exit code after rank 0 has said why. */
int  job_init (struct job *j, int *argc, char ***argv);
/* Options (YAML path or NULL, then argv), resolved against the world; all ranks compared; communicators split. Collective. 0 or -1, agreed. */
int  job_options (struct job *j, const char *yaml, int argc, char **argv, struct err *e);
/* Device, memory, groups. Collective. 0 or -1, agreed. */
int  job_start (struct job *j, struct err *e);
/* Print E once, tidy up, MPI_Finalize; returns the code that the process exits with. e NULL or empty: code. Collective. */
int  job_end (struct job *j, int code, const struct err *e);

/* Pinned or host arrays for MBS micro-batches, counted as staging. */
struct host_batch *job_batches (struct job *j, int mbs, struct err *e);

/* mkdir -p. 0, or -1 with the sentence. Local. */
int job_folder (const char *path, struct err *e);

/* Split argv after the subcommand into the first operand (a path; NULL if it starts with --) and the rest. */
char *job_operand (int *argc, char ***argv);
#endif
