/* yield: blocking MPI calls that give their core away.

   MPICH over UCX spins inside of every blocking call (MPI_Init, MPI_Comm_split, those inside HDF5) and takes the core from the rank that it waits for.
   yield.c defines ucp_worker_progress, which libmpich then binds to instead of UCX's; ours calls UCX's and backs off by wait_idle when nothing moved
   on a node with more ranks than cores. With another MPI nobody calls it. */
#ifndef YIELD_H
#define YIELD_H
#include <stdbool.h>

/* The program waits by itself (wait_all, the cpu device): between true and false the function above only passes on. Main thread. */
void yield_hold (bool on);
#endif
