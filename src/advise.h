/* advise: what is slow in a run, and what to do, in a sentence of rank 0's, each once a launch: communication above 30 % of a step, a rank that all others wait for, a GPU whose
   utilisation falls to zero again and again. From the comparison of the ranks (account.h); nothing is said of less than a second of steps. */
#ifndef ADVISE_H
#define ADVISE_H
#include "account.h"

struct advised {
  bool communication, straggler, idle;   /* said */
  int slow, times;                       /* the rank that was slowest last, and how often in a row */
};

/* After account_share. Rank 0 may plan some meshes for it (the others wait at the next collective). Local. */
void advise (struct advised *x, const struct job *j, const struct account *a);
#endif
