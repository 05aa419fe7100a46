/* ckpt_saving: a save under way. ckpt_save.c leads it through its phases on the main thread of each rank (MPI, HDF5), ckpt_make.c makes the empty file, ckpt_write.c does
   the work of a phase by system calls alone, on a thread where the save runs behind training. */
#ifndef CKPT_SAVING_H
#define CKPT_SAVING_H
#include <pthread.h>
#include <stdatomic.h>
#include "ckpt_int.h"

/* A stretch of my part, slice by slice: where the elements of my datasets come from. */
struct source { int unit; int64_t lo, n; };

enum { SAVE_RUN = 4 };           /* blocks written at once: fewer calls, in which ranks wait for each other, and little enough for the core's cache */

struct ckpt_saving {
  struct ckpt_state s;           /* a copy; config is used by ckpt_begin only */
  MPI_Comm world;
  int rank, local_rank;
  struct index index;            /* rank 0: of all ranks; others: the tensors */
  struct row_rank me;
  struct row_slice *slice;       /* mine */
  struct source *source;         /* [slices] */
  int slices;
  char name[CKPT_PATH], tmp[CKPT_PATH + 8], folder[CKPT_PATH];
  int64_t at[CKPT_KINDS];        /* byte of the file where my datasets begin */
  int64_t bytes;                 /* rank 0: of the whole file */
  hid_t h5;                      /* rank 0: the file without its elements, in memory; -1 */
  int fd;                        /* of tmp, -1 */
  int threads;                   /* that may write at once */
  float *buf;                    /* a run of blocks for each */
  uint64_t *sum;                 /* [CKPT_KINDS * blocks] of my datasets' blocks */
  int64_t blocks;                /* of each of them */
  int phase;
  double began, t[4];            /* seconds of the phases */
  double wrote, disk;            /* when my writing ended; seconds of it in which the disk was started, which belong to sync */
  bool behind;                   /* work is done by a thread */
  bool running;                  /* there is one now */
  pthread_t thread;
  int (*work) (struct ckpt_saving *v);
  int rc;                        /* of the work, and its sentence; the main thread looks at them when `done` */
  struct err err;
  atomic_bool done;
  _Atomic int64_t written;       /* bytes, for the watchdog */
};

/* Rank 0: NAME.tmp with its structure and its blocks; index.where says where datasets begin. 0 or -1. */
int make_file (struct ckpt_saving *v, const char *run_dir, struct err *e);
/* Rank 0: checksums and `complete` into it. 0 or -1. */
int make_complete (struct ckpt_saving *v, struct err *e);

/* The work of the phases: 0, or -1 with v->err. */
int save_write (struct ckpt_saving *v);   /* my elements and their checksums */
int save_sync (struct ckpt_saving *v);    /* one rank of each node: its pages to the disk */
int save_name (struct ckpt_saving *v);    /* rank 0: size, sync, rename, sync of the folder */
/* Begin a phase's work, and wait for its end. */
void save_start (struct ckpt_saving *v, int (*work) (struct ckpt_saving *v));
int  save_wait (struct ckpt_saving *v);
#endif
