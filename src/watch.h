/* watch: a thread of each rank that ends the job when the rank makes no progress (a peer is dead or frozen, a link hangs, a disk does not answer), or when a rank of
   its node is gone.

   Progress is any operation issued on the device or any new phase (base_phase). Work between two operations must be shorter than the limit. The threads of a node share a
   board on which each keeps what its rank is doing, so that the one who speaks can tell who never arrived; those of other nodes leave theirs in RUN_DIR when they fire. One
   rank speaks, all of its node end with EXIT_WORLD, those that cannot by themselves (SIGSTOP) are killed; a rank that is alone on its node is named and left to the launcher.
   A rank that dies is seen by two neighbours as the kernel ends it, through a lock that it holds: before its files are closed, by which a launcher sees it, so that the word is out
   before the launcher ends the rest. The watch lasts through MPI_Finalize. System calls only. Time in which the whole process was stopped does not count: a job may be suspended. */
#ifndef WATCH_H
#define WATCH_H
#include "dev.h"
#include "mesh.h"

/* Before MPI_Init: from now on a start that does not get on (a rank that is frozen in it, a host that does not answer) ends this process; the launcher takes the others along.
   SECONDS 0 = do nothing. */
void watch_start (double seconds);
/* Watch with the others: SECONDS 0 = do nothing. M's axes are made. Collective, once. */
void watch_open (const struct mesh *m, double seconds);
void watch_device (const struct dev *d);   /* its operations are progress from now on; borrowed until watch_ending */
void watch_dir (const char *dir);          /* where exit.json goes from now on; copied */
void watch_step (int64_t step);            /* the last step done, for exit.json */
/* This process is about to end and has said why (or needs not): nobody else should. In any thread or signal handler. */
void watch_leave (void);
/* The run has said its last word, the device is about to be closed: a rank that does not get through the rest, MPI_Finalize included, is named on stderr alone. */
void watch_ending (void);
void watch_stop (void);                    /* after MPI_Finalize */
#endif
