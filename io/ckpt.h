/* ckpt: checkpoints. One HDF5 file each, RUN_DIR/checkpoints/step_00000050.h5, written in parallel; share/doc/checkpoint.txt describes it.

   Each rank owns one 1-D dataset of each kind (master weights, m, v); each global element lies in exactly one of them. A table says where each piece lies in the
   global tensors, so that any mesh loads what any other wrote. A file is written under NAME.tmp, synced and then renamed: a name that exists is a whole checkpoint.

   Collective functions leave the same return value and the same sentence on every rank. Errors: EXIT_USER = not for this model, no such file; EXIT_WORLD = disk or damage. */
#ifndef CKPT_H
#define CKPT_H
#include "mesh.h"
#include "unit.h"

enum ckpt_kind { CKPT_MASTER, CKPT_M, CKPT_V, CKPT_KINDS };   /* /param, /exp_avg, /exp_avg_sq */
enum { CKPT_PATH = STR + 64 };                                /* room of a path */

/* Seconds of the phases of a save on this rank: the empty file, get and write with checksums, to the disk, the rest; and the bytes that it wrote. */
struct ckpt_cost { double create, write, sync, seal; int64_t bytes; };

/* What the trainer hands over. All pointers are borrowed for the call. */
struct ckpt_state {
  const struct conf *conf;       /* of it only the architecture is used */
  const char *config;            /* the effective configuration as text, kept in the file; NULL: none */
  const struct mesh *mesh;       /* world, shape, coord, rank, size, local_rank */
  const struct units *units;
  int64_t step, tokens;          /* steps done; tokens seen */
  double updates;                /* updates of the optimizer (a skipped step makes none) */
  /* Elements [lo, lo + n) (shard indices) of my part of UNIT from the device to the host, and back. The copy is done on return. Padding is never asked for nor put. */
  void (*get) (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst);
  void (*put) (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src);
  void *ctx;
  struct ckpt_cost *cost;        /* filled by ckpt_save; NULL: not wanted */
};

/* Collective over mesh->world. 0, or -1 with the sentence: then the file is gone and older checkpoints are as they were. Host memory: 8 MiB a rank and the index on rank 0. */
int ckpt_save (const struct ckpt_state *s, const char *run_dir, struct err *e);

/* Collective. Fills step, tokens, updates (when it returns 0) and, by put, all that this rank holds (owned or copied). Checksums are verified before the first put. WEIGHTS_ONLY: the masters. */
int ckpt_load (struct ckpt_state *s, const char *path, bool weights_only, struct err *e);

/* Collective over WORLD. The newest good checkpoint with step < BELOW (INT64_MAX: any); rank 0 looks, warns of those that it skips, and tells all. 1, 0 if none, -1. */
int ckpt_newest (const char *run_dir, MPI_Comm world, int64_t below, char path[static CKPT_PATH], int64_t *step, struct err *e);

/* Collective. Load the newest checkpoint of the run that can be loaded; a damaged one is named and the one before it taken. 1, 0 if there is none, -1 (also where
   there are some and none can be loaded: training anew in their place is for the user to decide). */
int ckpt_resume (struct ckpt_state *s, const char *run_dir, struct err *e);

/* One rank. Remove all but the KEEP newest good ones (0: keep all) and what killed saves left behind; never the newest good one, never a file that is not ours. */
void ckpt_prune (const char *run_dir, int64_t keep);

/* One process. Format, index, sizes, every checksum, and each element exactly once. */
int ckpt_verify (const char *path, struct err *e);
int verify_main (int argc, char **argv);   /* `pretrain verify CHECKPOINT...`: argv[0] is the command's name; returns the exit code */

/* One process. What the file says about itself; config and mesh are xalloc'd. */
struct ckpt_head { int64_t step, tokens; double updates; char *config, *mesh; int ranks; };
int  ckpt_head_read (const char *path, struct ckpt_head *h, struct err *e);
void ckpt_head_free (struct ckpt_head *h);
#endif
