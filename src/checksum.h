/* checksum: the term of one element in OP_CHECKSUM, the same on every device. The finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit numbers: an element
   whose bits differ always changes its term, and so the sum where it is the only one. */
#ifndef CHECKSUM_H
#define CHECKSUM_H
#include <stdint.h>

#ifdef __CUDACC__
#define CHECKSUM_FN static __host__ __device__ __forceinline__
#else
#define CHECKSUM_FN static inline
#endif

/* BITS: of the element, zeros above; I: its index. */
CHECKSUM_FN uint64_t checksum_term (uint64_t bits, uint64_t i)
{
  uint64_t x = bits + (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
#endif
