/* XXH3-64 in the widest vectors of the machine that runs, several times the speed of those that every machine has; the same values. And copies past the cache, beneath which a
   core sums: while stores wait for memory, it has nothing else to do. */
#include "config.h"
#include <string.h>
#include "ckpt_int.h"
#ifdef HAVE_XXH3_64BITS_UPDATE_DISPATCH
#include <xxhash.h>
#include <xxh_x86dispatch.h>
#else   /* in those of the build. GCC's O3 takes the loop over the stripes of a block apart, which makes it half as fast as O2 does (52 against 96 GB/s from a core's cache). */
#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize ("O2")
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { LINE = 64, SHORT = 256, PIECE = 4096 };   /* bytes: of a cache line; copied the plain way; copied and summed in turn, few enough for the stores that a core has under way */

uint64_t sum_of (const void *p, int64_t bytes) { return XXH3_64bits (p, (size_t) bytes); }

struct sum *sum_new (void)
{
  void *s = XXH3_createState ();   /* aligned for the vectors */
  must (s, "out of host memory");
  XXH3_64bits_reset (s);
  return s;
}

void sum_free (struct sum *s) { XXH3_freeState ((XXH3_state_t *) s); }

void sum_add (struct sum *s, const void *p, int64_t bytes) { XXH3_64bits_update ((XXH3_state_t *) s, p, (size_t) bytes); }

uint64_t sum_end (struct sum *s)
{
  uint64_t h = XXH3_64bits_digest ((XXH3_state_t *) s);
  XXH3_64bits_reset ((XXH3_state_t *) s);
  return h;
}

/* --- past the cache --- */

#ifdef __x86_64__

/* TO at the beginning of a line, whole lines. */
__attribute__ ((target ("avx"))) static void copy_lines (char *to, const char *from, int64_t bytes)
{
  for (int64_t i = 0; i < bytes; i += LINE) {
    __m256i a = _mm256_loadu_si256 ((const __m256i *) (from + i)), b = _mm256_loadu_si256 ((const __m256i *) (from + i + LINE / 2));
    _mm256_stream_si256 ((__m256i *) (to + i), a);
    _mm256_stream_si256 ((__m256i *) (to + i + LINE / 2), b);
  }
}

void copy_past (void *dst, const void *src, int64_t bytes)
{
  char *to = dst;
  const char *from = src;
  if (bytes < SHORT || !__builtin_cpu_supports ("avx")) {
    memcpy (to, from, (size_t) bytes);
    return;
  }
  int64_t head = (int64_t) (-(uintptr_t) to % LINE), lines = (bytes - head) / LINE * LINE, tail = bytes - head - lines;
  memcpy (to, from, (size_t) head);
  copy_lines (to + head, from + head, lines);
  memcpy (to + head + lines, from + head + lines, (size_t) tail);
}

void copy_end (void) { _mm_sfence (); }

#else

void copy_past (void *dst, const void *src, int64_t bytes) { memcpy (dst, src, (size_t) bytes); }
void copy_end (void) { }

#endif

void sum_copy (struct sum *s, void *dst, const void *src, int64_t bytes)
{
  char *to = dst;
  const char *from = src;
  for (int64_t n; bytes; bytes -= n, to += n, from += n) {
    n = MIN (PIECE - (int64_t) ((uintptr_t) to % LINE), bytes);   /* the next begins at a line */
    copy_past (to, from, n);
    sum_add (s, from, n);
  }
}
