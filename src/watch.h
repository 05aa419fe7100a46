/* watch: a thread of each rank that ends the job when the rank makes no progress: a peer is dead or frozen, a link hangs, a disk does not answer.

   Progress is any operation issued on the device or any new phase (base_phase). Work between two operations must be shorter than the limit. The thread
   makes system calls only; it ends the process, and the launcher takes the others along. */
#ifndef WATCH_H
#define WATCH_H
#include "dev.h"
#include "mesh.h"

/* Which processes are the ranks of this node: those found stopped when the thread fires are ended with it. Collective over the node; before watch_start. */
void watch_peers (const struct mesh *m);
/* Start watching: SECONDS 0 = do nothing. DIR: where exit.json goes, NULL or "" for none; copied. D is borrowed until watch_stop. */
void watch_start (const struct dev *d, double seconds, const char *dir);
void watch_step (int64_t step);    /* the last step done, for exit.json */
void watch_stop (void);
#endif
