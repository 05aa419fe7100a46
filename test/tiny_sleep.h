/* tiny_sleep: a message now and then starts late, on each rank at other times. The linker takes these for MPI's own, so that a test which includes this
   has peers of uneven pace. Off at first. */
#ifndef TINY_SLEEP_H
#define TINY_SLEEP_H
#include "base.h"
#include <mpi.h>
#include <unistd.h>

static struct { bool on; int one_in, most_us; uint64_t state; int64_t slept; } tiny_nap = { .one_in = 16, .most_us = 400 };

static inline uint64_t tiny_random (void)
{
  tiny_nap.state = (tiny_nap.state + (uint64_t) base_rank_get ()) * 6364136223846793005u + 1442695040888963407u;
  return tiny_nap.state >> 33;
}

static inline void tiny_sleep (void)
{
  if (!tiny_nap.on || tiny_random () % (uint64_t) tiny_nap.one_in) return;
  usleep ((useconds_t) (tiny_random () % (uint64_t) tiny_nap.most_us));
  tiny_nap.slept++;
}

#define SLEEPY(NAME, BUFFER) \
  __attribute__ ((visibility ("default"))) int MPI_##NAME (BUFFER b, int n, MPI_Datatype t, int peer, int tag, MPI_Comm c, MPI_Request *r) \
  { tiny_sleep (); return PMPI_##NAME (b, n, t, peer, tag, c, r); }
SLEEPY (Isend, const void *)
SLEEPY (Issend, const void *)
SLEEPY (Irecv, void *)
#endif
