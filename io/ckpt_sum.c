/* XXH3-64 in this machine's vectors, which is several times the library's speed; the same values. GCC's O3 takes the loop over the stripes of a block apart, which makes it half as
   fast as O2 does (52 against 96 GB/s from a core's cache). */
#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize ("O2")
#endif
#include "ckpt_int.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

struct sum { XXH3_state_t state; };

uint64_t sum_of (const void *p, int64_t bytes) { return XXH3_64bits (p, (size_t) bytes); }

struct sum *sum_new (void)
{
  void *s = XXH3_createState ();   /* aligned for the vectors */
  must (s, "out of host memory");
  XXH3_64bits_reset (s);
  return s;
}

void sum_free (struct sum *s) { XXH3_freeState ((XXH3_state_t *) s); }

void sum_add (struct sum *s, const void *p, int64_t bytes) { XXH3_64bits_update (&s->state, p, (size_t) bytes); }

uint64_t sum_end (struct sum *s)
{
  uint64_t h = XXH3_64bits_digest (&s->state);
  XXH3_64bits_reset (&s->state);
  return h;
}
