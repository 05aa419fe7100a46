/* maths: what the tests of the cpu device's maths share. The test stands in for the device: it hands out addresses of an
   inaccessible range, as the
   device does, and calls the table cpu_maths. References are computed in binary64. */
#ifndef MATHS_H
#define MATHS_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "dev_cpu.h"
#include "tap.h"

uintptr_t cpu_base, cpu_span, cpu_delta;
int cpu_threads = 1;
static int64_t polls;
void cpu_poll (void) { polls++; }

#define SPAN ((size_t) 512 << 20)
static size_t used;

static void device_open (void)
{
  char *hidden = mmap (NULL, SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *bytes = mmap (NULL, SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  cpu_base = (uintptr_t) hidden;
  cpu_span = SPAN;
  cpu_delta = (uintptr_t) bytes - cpu_base;
}

/* ---- tensors ---- */
static uint64_t seed = 1;
static double uniform (void)   /* [-1, 1) */
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double) (int64_t) seed * 0x1p-63;
}

/* n elements of type t on the device, red zones of NaN bytes around them. */
static void *tensor (int64_t n, enum dtype t)
{
  size_t bytes = (size_t) round_up (n * dtype_size (t) + 256, 64);
  char *p = (char *) cpu_base + used;
  used += bytes;
  if (used > SPAN) { fprintf (stderr, "test memory is too small\n"); exit (1); }
  memset (cpu_at (p), 0xff, bytes);
  return p + 64;
}
static double get (const void *p, int64_t i, enum dtype t)
{
  const void *h = cpu_at (p);
  return t == DT_F64 ? ((const double *) h)[i] : t == DT_I32 ? ((const int32_t *) h)[i] : t == DT_F32 ? ((const float *) h)[i]
    : bf16_to_f32 (((const bf16 *) h)[i]);
}
static void set (void *p, int64_t i, enum dtype t, double x)
{
  void *h = cpu_at (p);
  if (t == DT_F64) ((double *) h)[i] = x;
  else if (t == DT_I32) ((int32_t *) h)[i] = (int32_t) x;
  else if (t == DT_F32) ((float *) h)[i] = (float) x;
  else ((bf16 *) h)[i] = f32_to_bf16 ((float) x);
}
static void *filled (int64_t n, enum dtype t, double scale)
{
  void *p = tensor (n, t);
  for (int64_t i = 0; i < n; i++) set (p, i, t, scale * uniform ());
  return p;
}
static inline void *copy_of (const void *p, int64_t n, enum dtype t)
{
  void *q = tensor (n, t);
  memcpy (cpu_at (q), cpu_at (p), (size_t) (n * dtype_size (t)));
  return q;
}
static inline int same (const void *a, const void *b, int64_t n, enum dtype t) { return !memcmp (cpu_at (a), cpu_at (b),
  (size_t) (n * dtype_size (t))); }
static int zones (const void *p, int64_t n, enum dtype t)
{
  const unsigned char *h = cpu_at (p);
  for (int i = 1; i <= 64; i++) if (h[-i] != 0xff) return 0;
  for (int64_t i = n * dtype_size (t); i < n * dtype_size (t) + 64; i++) if (h[i] != 0xff) return 0;
  return 1;
}

static void run (const struct op *o) { cpu_maths[o->kind] (o); }
#define OP(KIND, field, ...) run (&(struct op) { .kind = KIND, .field = { __VA_ARGS__ } })

/* ---- what is close enough ---- */
static double round_to (double x, enum dtype t) { return t == DT_F32 ? (float) x : t == DT_BF16
  ? bf16_to_f32 (f32_to_bf16 ((float) x)) : x; }

/* got[at[i]] (type t) against ref[i], i < n (at NULL: all). F32: RMS error within TOL of the RMS value. BF16: within `rounding`
   times what rounding the result costs,
   1.5 where nothing but inputs is rounded. */
static double rounding = 1.5;
static double floor_f32, floor_bf16;   /* an error of each element that is allowed beside, where terms cancel */
static int close_at (const void *got, enum dtype t, const int64_t *at, const double *ref, int64_t n, double tol, const char *what)
{
  double err = 0, ideal = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    double e = get (got, at ? at[i] : i, t) - ref[i], r = round_to (ref[i], t) - ref[i];
    err += e * e;
    ideal += r * r;
    size += ref[i] * ref[i];
  }
  double least = sqrt ((double) n) * (t == DT_BF16 ? floor_bf16 : floor_f32);
  double bound = least + (t == DT_BF16 ? rounding * sqrt (ideal) + 1e-6 * sqrt (size) : tol * sqrt (size) + 1e-30);
  int good = sqrt (err) <= bound;
  if (!good) fprintf (stderr, "# %s: error %g, bound %g, size %g\n", what, sqrt (err), bound, sqrt (size));
  return good;
}
static inline int close_to (const void *got, enum dtype t, const double *ref, int64_t n, const char *what)
{
  return close_at (got, t, NULL, ref, n, 1e-6, what);
}

/* Zeros, alive until the end of the test. */
static struct block { struct block *next; double x[]; } *blocks;
static double *doubles (int64_t n)
{
  struct block *b = calloc (1, sizeof *b + ((size_t) n + 1) * sizeof (double));
  b->next = blocks;
  blocks = b;
  return b->x;
}
static void forget (void)
{
  for (struct block *b; (b = blocks);) blocks = b->next, free (b);
  used = 0;
}
static inline double *values (const void *p, int64_t n, enum dtype t)
{
  double *v = doubles (n);
  for (int64_t i = 0; i < n; i++) v[i] = get (p, i, t);
  return v;
}

static const enum dtype types[] = { DT_F32, DT_BF16 };
#define EACH_TYPE(t) for (int t##_ = 0; t##_ < 2; t##_++) for (enum dtype t = types[t##_], t##1 = 1; t##1; t##1 = 0)

static int maths_main (int argc, char **argv, void (*const test[]) (void), int n)
{
  MPI_Init (&argc, &argv);
  device_open ();
  for (int i = 0; i < n; i++) test[i] (), forget ();
  tap_done ();
  MPI_Finalize ();
  return 0;
}
#endif
