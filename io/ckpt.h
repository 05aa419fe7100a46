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

/* Seconds of the phases of a save on this rank: the empty file, its own writing with checksums, to the disk (which begins beside the writing, and includes
   the others'), the rest; and the bytes that it wrote. */
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
  /* For saves: where my part of UNIT from LO on lies in host memory, which stands still until the save is over. Any thread. NULL: it lies nowhere, only get gives it. */
  const float *(*see) (void *ctx, enum ckpt_kind k, int unit, int64_t lo);
  /* For loads: where the host itself may lay my part of UNIT from LO on down; `put` is then not called. Any thread. NULL: put takes all. */
  float *(*lay) (void *ctx, enum ckpt_kind k, int unit, int64_t lo);
  int threads;                   /* of this rank that see and lay may serve at once; 0: as many as it has cores, at most 4 */
  int64_t block;                 /* elements that a checksum covers in what is saved; 0: 65536, which is the most */
  enum dtype moments;            /* m and v in the file: DT_F32, or DT_BF16 for half the bytes (a resumed run is then not the same to the bit) */
  const char *spike;             /* for saves: what spike.h keeps, as text; NULL: nothing */
  char *spike_read;              /* from loads: the same, xalloc'd for the caller; NULL: there is none */
  int64_t stripes, stripe_bytes; /* how a file system that stripes (Lustre) lays the file out; 0: as its folder says */
  struct ckpt_cost *cost;        /* filled by a save that succeeds; NULL: not wanted */
};

/* Collective over mesh->world. 0, or -1 with the sentence: then the file is gone and older checkpoints are as they were. Host memory: 1 MiB a thread and the index. */
int ckpt_save (const struct ckpt_state *s, const char *run_dir, struct err *e);

/* The same in parts, with training in between. ckpt_begin makes the empty file and takes its room; from ckpt_go on a thread of each rank writes what `get` gives (which must
   then be what stood there at the step of the save, and callable from that thread). When no rank is busy any more, ckpt_next brings all of them to the next phase.
   What S points to must live until the end, but for config. */
struct ckpt_saving;
int  ckpt_begin (const struct ckpt_state *s, const char *run_dir, struct ckpt_saving **v, struct err *e);   /* collective: 0, or -1 and *v is NULL */
void ckpt_go (struct ckpt_saving *v);                          /* local, once; never called: the work is done inside of ckpt_next */
bool ckpt_busy (const struct ckpt_saving *v);                  /* local: ckpt_next would have to wait here */
int  ckpt_next (struct ckpt_saving **v, struct err *e);        /* collective: 1 more to come; 0 the checkpoint is there, -1 it failed, and *v is NULL */
int  ckpt_finish (struct ckpt_saving **v, struct err *e);      /* collective: to the end. 0 or -1 */

/* Collective. Fills step, tokens, updates (when it returns 0) and, by put, all that this rank holds (owned or copied). Each rank reads what it needs and its share of the
   checksums; after -1 the state that put filled is worth nothing. WEIGHTS_ONLY: the masters. */
int ckpt_load (struct ckpt_state *s, const char *path, bool weights_only, struct err *e);

/* Collective over WORLD. The newest good checkpoint with step < BELOW (INT64_MAX: any); rank 0 looks, warns of those that it skips, and tells all. 1, 0 if none, -1. */
int ckpt_newest (const char *run_dir, MPI_Comm world, int64_t below, char path[static CKPT_PATH], int64_t *step, struct err *e);

/* Collective. Load the newest checkpoint of the run that can be loaded; a damaged one is named and the one before it taken, or (FALLBACK false) is an error. 1, 0 if there is
   none, -1 (also where there are some and none can be loaded: training anew in their place is for the user to decide). */
int ckpt_resume (struct ckpt_state *s, const char *run_dir, bool fallback, struct err *e);

/* One rank. Remove all but the KEEP newest good ones (0: keep all) and what killed saves left behind; never the newest good one, never a file that is not ours. */
void ckpt_prune (const char *run_dir, int64_t keep);

/* One process. Format, index, sizes, every checksum, each element exactly once, and all values finite. */
int ckpt_verify (const char *path, struct err *e);
int verify_main (int argc, char **argv);   /* `pretrain verify CHECKPOINT...`: argv[0] is the command's name; returns the exit code */

/* The version of the HDF5 library, "1.10.8". */
void ckpt_library (char out[static 32]);

/* What the file says about itself; the texts are xalloc'd, NULL where there is none. */
struct ckpt_head { int64_t step, tokens; double updates; char *config, *mesh, *program, *spike; int ranks; enum dtype moments; };
int  ckpt_head_read (const char *path, struct ckpt_head *h, struct err *e);   /* local */
void ckpt_head_free (struct ckpt_head *h);

/* --- one checkpoint open for reading, for whoever wants its tensors. Local: no MPI; each rank of a parallel program may open it. --- */
struct ckpt_file;
struct ckpt_tensor { const char *name; int ndim; int64_t rows, cols; };   /* one dimension of n: [n, 1] */

/* Opens PATH: format, version, index and sizes are checked, data are not read. NULL with the sentence. Borrows nothing. */
struct ckpt_file *ckpt_open (const char *path, struct err *e);
void ckpt_close (struct ckpt_file *f);                                    /* NULL is legal */
const struct ckpt_head *ckpt_file_head (const struct ckpt_file *f);       /* borrowed */
/* The tensors in the order of the model, borrowed; returns how many. */
int64_t ckpt_tensors (const struct ckpt_file *f, const struct ckpt_tensor **list);
int64_t ckpt_find (const struct ckpt_file *f, const char *name);          /* its place in the list, -1 */

/* Elements [start, start + count), row-major, of a rectangle COLS wide with its corner at (row0, col0) of a tensor. The whole tensor: { 0, 0, cols, 0, rows * cols }. */
struct strip { int64_t row0, col0, cols, start, count; };
/* Those elements of kind K of TENSOR into dst[count], whatever mesh wrote them, as fp32. -1 with the sentence: an element is missing or there twice, or the disk fails. No
   checksums are compared: ckpt_verify does. */
int ckpt_read (struct ckpt_file *f, enum ckpt_kind k, int64_t tensor, const struct strip *s, float *dst, struct err *e);
#endif
