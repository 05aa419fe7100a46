/* ckpt_int: what the files of ckpt share. Only these include hdf5.h. */
#ifndef CKPT_INT_H
#define CKPT_INT_H
#include <hdf5.h>
#include "ckpt.h"

#define CKPT_FORMAT "tessera checkpoint"
enum { CKPT_VERSION = 3, CKPT_OLDEST = 2, CKPT_NAME = 96 };
#define CKPT_BLOCK ((int64_t) 1 << 16)         /* elements that a checksum covers, and that are read at once: what a core keeps in its cache between disk, checksum and place */
#define CKPT_STAGE ((int64_t) 1 << 20)         /* bytes of a staging buffer */
enum { CKPT_ALIGN = 4096 };                    /* where datasets of some size begin: ranks share no page of the file */
extern const char *const ckpt_group[CKPT_KINDS];

/* --- the index: rows as they lie in the file ---------------------------------------------------------------------------------------- */
struct row_tensor {              /* /index/tensors */
  char name[CKPT_NAME];
  int32_t ndim;
  int64_t shape[2];              /* 1-D: [n, 0] */
  int32_t stage;                 /* pipeline stage that wrote it */
  int32_t tp_axis;               /* dimension that tp cuts, -1 = none */
  char dtype[8], moments[8];     /* types in the file: fp32; fp32 or bf16 */
} __attribute__ ((packed));
/* /index/slices: elements [offset, offset + count) of RANK's datasets are elements [start, start + count), row-major, of the rectangle of TENSOR that is COLS wide
   and has its corner at (row0, col0). A 1-D tensor counts as one column. */
struct row_slice { int32_t tensor, rank; int64_t offset, count, start, row0, col0, cols; } __attribute__ ((packed));
/* sum: XXH3-64 of the sums of the dataset's blocks; in format 2 of its bytes */
struct row_rank { int32_t rank, dp_replicate, dp_shard, pp, tp; int64_t count; uint64_t sum[CKPT_KINDS]; } __attribute__ ((packed));

struct index {
  struct row_tensor *tensor;     /* all owned */
  struct row_slice *slice;
  struct row_rank *rank;
  uint64_t *sum;                 /* /index/sums: XXH3-64 of each block's bytes, by rank, kind and block; NULL in format 2 */
  int64_t sums, block;           /* elements of a block; in format 2 of what is read at once */
  int64_t *where;                /* [ranks * CKPT_KINDS] byte of the file where each dataset begins; of files that are read, and on rank 0 of one that is written */
  int64_t tensors, slices, ranks;
  int64_t *sum_at;               /* of index_sort: [ranks] where the sums of a rank begin */
  int64_t *first, *order;        /* of index_sort: slices of tensor t are slice[order[first[t]]] .. slice[order[first[t + 1] - 1]] */
};
void index_free (struct index *x);
/* Of each of RANK's datasets. */
static inline int64_t index_blocks (const struct index *x, int64_t rank) { return x->rank[rank].count / x->block + (x->rank[rank].count % x->block > 0); }
/* index_sort has been called: the sums of the blocks of dataset KIND of RANK; NULL in format 2. */
const uint64_t *index_sums (const struct index *x, int kind, int64_t rank);
/* Sums that all datasets of X have together; -1: more than an index can have. */
int64_t index_sums_all (const struct index *x);
/* Is each dataset's sum that of its blocks' sums? */
bool index_sums_good (const struct index *x);
void index_sort (struct index *x);
/* The tensors of A, without stages. */
void index_of_arch (struct index *x, const struct arch *a);
/* The tensor that element AT of a writer's datasets belongs to; "?". */
const char *index_tensor_at (const struct index *x, int64_t rank, int64_t at);
/* Position of parameter ID of BLOCK in the table of index_of_arch. */
int  index_find (const struct arch *a, int64_t block, enum pid id);
/* Are the rows possible, and is each tensor's number of elements that of its slices? Else the sentence. */
int  index_check (const struct index *x, struct err *e);
/* No element of any tensor lies in two slices. Takes the square of a tensor's slices. */
int  index_overlap (const struct index *x, struct err *e);
uint64_t index_hash (const struct index *x);
/* Is the model of FILE that of MINE (same names and shapes)? map[i] = row in FILE of tensor i of MINE. Else what is missing, unexpected, of other shape.
   UNTIE: a head that the file has not, because it is tied there, is the embedding. */
int  index_match (const struct index *file, const struct index *mine, bool untie, int32_t *map, struct err *e);

/* --- checksums: XXH3-64, seed 0 ------------------------------------------------------------------------------------------------------- */
uint64_t sum_of (const void *p, int64_t bytes);
/* Of what comes piece by piece: added, then ended, which begins anew. */
struct sum;
struct sum *sum_new (void);
void sum_free (struct sum *s);
void sum_add (struct sum *s, const void *p, int64_t bytes);
uint64_t sum_end (struct sum *s);
/* Copies that leave the cache to others, for what is not looked at soon. Other threads see them after copy_end. */
void copy_past (void *dst, const void *src, int64_t bytes);
void copy_end (void);
/* Both at once. */
void sum_copy (struct sum *s, void *dst, const void *src, int64_t bytes);

/* --- where pieces meet -------------------------------------------------------------------------------------------------------------- */
static inline struct strip strip_of_slice (const struct row_slice *s) { return (struct strip) { s->row0, s->col0, s->cols, s->start, s->count }; }
/* ROWS runs of WIDTH elements, from A's element a, a + a_stride, ... to B's element b, ... (counted from each strip's first). */
struct run { int64_t a, b, width, rows, a_stride, b_stride; };
enum { RUNS_MAX = 9 };
/* What A and B have in common; returns the number of runs. */
int strips_meet (const struct strip *a, const struct strip *b, struct run run[static RUNS_MAX]);
/* Do runs of one strip have an element of it (of their A) in common? */
bool runs_collide (const struct run *p, const struct run *q);

/* --- files -------------------------------------------------------------------------------------------------------------------------- */
void ckpt_folder (const char *run_dir, char out[static CKPT_PATH]);
void ckpt_name (const char *run_dir, int64_t step, char out[static CKPT_PATH]);

/* HDF5 stays silent between these (its own printing off), which nest; why = its deepest words about the last failure. */
void h5_begin (void);
void h5_end (void);
const char *h5_why (void);

/* Serial driver, no locks. Negative with the sentence. Waits up to WAIT seconds for a name that other clients of a network file system made. */
hid_t h5_open (const char *path, bool writable, double wait, struct err *e);
hid_t h5_create (const char *path, struct err *e);   /* HDF5 1.8 and later read it; its metadata carry checksums */
int   h5_plain (const char *path, int flags, double wait, struct err *e);   /* open(2) alike */
/* The same in memory. Negative with the sentence. */
hid_t h5_image (struct err *e);
int64_t h5_image_size (hid_t f);   /* brought up to date; its bytes, -1 */
/* The next stretch [*from, *to) of what was written, from *to on: its bytes, lent; NULL: no more. In between may lie what was not. */
const char *h5_image_next (hid_t f, int64_t *from, int64_t *to);
int   h5_attr (hid_t obj, const char *name, hid_t type, int64_t n, const void *p);       /* write; n < 0: a scalar; creates it if it is not there */
int   h5_attr_text (hid_t obj, const char *name, const char *text);
int   h5_get (hid_t obj, const char *name, hid_t type, void *p);                         /* a scalar */
char *h5_get_text (hid_t obj, const char *name);                                         /* xalloc'd, NULL if it is no text */
hid_t h5_dataset (hid_t group, const char *name, hid_t type, int64_t n);                 /* 1-D, contiguous, allocated, not filled */
hid_t h5_rank_dataset (hid_t file, int kind, int64_t rank);
hid_t h5_type (enum dtype t);                              /* fp32 or bf16 as they lie in the file; to be closed */
void h5_widen (float *p, int64_t n);                       /* n bf16 at the end of p[n] become fp32 */

int h5_index_create (hid_t file, const struct index *x);   /* /index/...: creates and writes all */
int h5_index_ranks (hid_t file, const struct index *x);    /* writes /index/ranks, /index/sums and the hash again */
/* Head and index of an open file: format, version, complete, tables checked, dataset sizes right. path is for the sentence. */
int h5_head (hid_t file, const char *path, struct ckpt_head *h, struct index *x, struct err *e);

/* --- a file open for reading: HDF5 tells where the datasets lie, then plain reads fetch them ---------------------------------------------- */
struct ckpt_file {
  char path[CKPT_PATH];
  int fd;                        /* -1 = not open yet */
  struct ckpt_head head;
  struct index index;            /* sorted */
  struct ckpt_tensor *list;      /* [index.tensors] */
  uint64_t *mark;                /* a bit an element of a window: set once */
  float *buf;                    /* CKPT_STAGE bytes */
};
/* Opened, its head read. 0 or -1; file_close in both cases (also of one that was never opened, fd -1). */
int  file_open (struct ckpt_file *f, const char *path, struct err *e);
/* The same on the other ranks, after index and head.moments came from a rank that opened it. WAIT: seconds in which the name must be seen. */
int  file_join (struct ckpt_file *f, const char *path, double wait, struct err *e);
void file_close (struct ckpt_file *f);
enum dtype file_type (const struct ckpt_file *f, int kind);
/* Elements [at, at + n) of a dataset as they lie in the file. Any thread. */
int  file_plain (const struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, void *dst, struct err *e);
/* The same as fp32. */
int  file_get (const struct ckpt_file *f, int kind, int rank, int64_t at, int64_t n, float *dst, struct err *e);
/* Was block B of a dataset, whose bytes were added to W, as its checksum says? Format 2 has a sum for a dataset alone: there blocks come in order, this does nothing, and
   file_whole compares at the end (and does nothing for format 3). Any thread. */
int  file_check (const struct ckpt_file *f, int kind, int rank, int64_t b, struct sum *w, struct err *e);
int  file_whole (const struct ckpt_file *f, int kind, int rank, struct sum *w, struct err *e);

/* --- several threads of a rank ------------------------------------------------------------------------------------------------------- */
enum { TEAM_MAX = 8 };
/* WORK (ctx, who) on N threads (at most TEAM_MAX), who from 0; the caller is one of them, and those that cannot be had are missed. Signals stay with the caller.
   0, or -1 if any failed. */
int  ckpt_threads (const struct ckpt_state *s);
int  team_run (int n, int (*work) (void *ctx, int who), void *ctx);

/* --- ranks -------------------------------------------------------------------------------------------------------------------------- */
/* All learn whether any failed: 0, or -1 on all with the lowest failing rank's sentence ("rank N: " before it if not all failed alike). */
int  ckpt_agree (MPI_Comm c, int failed, struct err *e);
void ckpt_bcast (MPI_Comm c, void *p, int64_t bytes);       /* from rank 0, any size */
#endif
