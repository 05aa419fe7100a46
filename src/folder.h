/* folder: RUN_DIR as a launch finds and leaves it. A launch that is refused, whenever that is, leaves an older run there as it was: its options, records and checkpoints; its own
   word stands in exit.json then, and the run's last word in exit.old.json. */
#ifndef FOLDER_H
#define FOLDER_H
#include "job.h"

struct folder {
  bool own;    /* this rank holds the lock and writes: rank 0 */
  bool there;  /* any rank may leave word in exit.json */
  int lock;    /* -1: none */
};

/* Make run.dir, hold it, say in exit.json that a launch is under way. The options go into config.yaml where nothing was trained yet. Collective. 0 or -1, agreed. */
int  folder_take (struct folder *f, struct job *j, struct err *e);
/* The launch is not refused any more, it is about to train: its options take the place of older ones, and an older run's last word goes. Rank 0 does, others may call it.
   0 or -1 with the sentence. Local. */
int  folder_stands (const struct folder *f, const struct job *j, struct err *e);
void folder_leave (struct folder *f);
#endif
