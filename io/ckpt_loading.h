/* ckpt_loading: a load under way. ckpt_load.c agrees on the file and plans on each rank what it takes from where and which checksums it compares; ckpt_fetch.c does it. */
#ifndef CKPT_LOADING_H
#define CKPT_LOADING_H
#include "ckpt_int.h"

/* What RANK's datasets (u.b counts from their first element) have of my piece (u.a). end: one past the last element of the dataset; reach: the largest end of the takes of
   that rank so far. */
struct take { int rank, piece; struct run u; int64_t end, reach; };

/* Blocks [from, to) of a dataset. check: their checksums are mine to compare. */
struct task { int kind, rank; int64_t from, to; bool check; };

struct loader {
  const struct ckpt_state *s;
  MPI_Comm world;
  struct ckpt_file f;
  struct index mine;             /* of this model: tensors only */
  int32_t *map;                  /* my tensor -> the file's */
  int kinds;                     /* to load */
  struct piece *piece;
  int pieces;
  bool *windowed;                /* [pieces] its rows lie scattered and the host cannot lay them down one by one: put together window by window */
  struct take *take;             /* by rank, b */
  int64_t takes, room;
  int64_t *first;                /* [ranks + 1] takes of a rank */
  uint8_t *use;                  /* [all blocks, by rank] enum use */
  struct task *task;             /* in the order of the file */
  int64_t tasks, task_room;
};

int32_t loader_tensor (const struct loader *l, const struct piece *p);   /* of the file */
struct strip loader_strip (const struct piece *p);
/* The work of this rank. 0, or -1 with the sentence. */
int  loader_fetch (struct loader *l, struct err *e);
#endif
