/* np: 1
   The random numbers: known answers, statistics, bijection, and equality with test/rng.py to the bit. */
#include "tap.h"
#include "rng.h"
#include <stdlib.h>

enum { N = 1000000, BIG = 100000 };

static void known_answers (void)
{
  uint32_t zero[4] = { 0 }, ones[4] = { ~0u, ~0u, ~0u, ~0u }, pi[4] = { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 };
  static const uint32_t answer[3][4] = { { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
                                         { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
                                         { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } };
  rng_philox (zero, 0);
  rng_philox (ones, ~(uint64_t) 0);
  rng_philox (pi, 0x299f31d0a4093822u);
  tap_ok (!memcmp (zero, answer[0], 16) && !memcmp (ones, answer[1], 16) && !memcmp (pi, answer[2], 16),
          "philox4x32-10 gives the published vectors");
  tap_ok (rng_key ("") == 0xcbf29ce484222325u && rng_key ("foobar") == 0x85944171f73967e8u, "fnv-1a gives the published hashes");
  tap_ok (rng_exact (), "products are rounded before they are added");
}

static int by_value (const void *a, const void *b)
{
  float x = *(const float *) a, y = *(const float *) b;
  return (x > y) - (x < y);
}

/* Moments, neighbours and the distance from the normal distribution, each against about 4 standard errors (KS: 1.63 is 1 %). */
static void statistics (uint64_t seed, const char *name)
{
  uint64_t key = rng_key (name);
  float *z = malloc (N * sizeof *z);
  rng_fill (seed, key, 0, N, 1, z);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag[5] = { 0 }, other[2] = { 0 }, d = 0;
  for (int i = 0; i < N; i++) {
    double x = z[i], q = x * x;
    m1 += x / N, m2 += q / N, m3 += q * x / N, m4 += q * q / N;
    for (int k = 1; k < 5; k++) lag[k] += x * z[(i + k) % N] / N;
    other[0] += x * rng_normal (seed + 1, key, (uint64_t) i) / N;
    other[1] += x * rng_normal (seed, key + 1, (uint64_t) i) / N;
  }
  tap_ok (fabs (m1) < 0.004 && fabs (m2 - 1) < 0.006 && fabs (m3) < 0.016 && fabs (m4 - 3) < 0.04,
          "seed %llu, %s: mean %.5f, variance %.5f, skew %.5f, kurtosis %.4f", (unsigned long long) seed, name, m1, m2, m3, m4);
  int free_ = fabs (other[0]) < 0.004 && fabs (other[1]) < 0.004;
  for (int k = 1; k < 5; k++) free_ &= fabs (lag[k]) < 0.004;
  tap_ok (free_, "neighbours, seeds and tensors are not correlated");
  qsort (z, N, sizeof *z, by_value);
  for (int i = 0; i < N; i++) d = fmax (d, fabs (0.5 * erfc (-z[i] / sqrt (2)) - (i + 0.5) / N));
  tap_ok (d * sqrt (N) < 1.63, "Kolmogorov-Smirnov distance x sqrt (n) is %.3f", d * sqrt (N));
  free (z);
}

static void alignment (void)
{
  int good = 1;
  float run[40], z[4];
  for (uint64_t start = (1ull << 33) - 9; start < (1ull << 33) + 9; start++)
    for (int n = 0; n < 12; n++) {
      run[n] = -77;
      rng_fill (5, 6, start, n, 0.5f, run);
      for (int i = 0; i < n; i++) good &= run[i] == rng_scale (0.5f, rng_normal (5, 6, start + (uint64_t) i));
      good &= run[n] == -77;
    }
  rng_normal4 (5, 6, 100, z);
  for (int i = 0; i < 4; i++) good &= z[i] == rng_normal (5, 6, (uint64_t) (400 + i));
  tap_ok (good, "a run of any start and length is its single values");
}

static int by_word (const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
  return (x > y) - (x < y);
}

/* The images of [first, first + count) under the order of n are distinct and below n. */
static int distinct (uint64_t seed, uint64_t epoch, uint64_t first, int64_t count, uint64_t n)
{
  int good = 1;
  uint64_t *image = malloc ((size_t) count * sizeof *image);
  for (int64_t i = 0; i < count; i++) good &= (image[i] = rng_permute (seed, epoch, first + (uint64_t) i, n)) < n;
  qsort (image, (size_t) count, sizeof *image, by_word);
  for (int64_t i = 1; i < count; i++) good &= image[i] != image[i - 1];
  free (image);
  return good;
}

static void permutations (void)
{
  int good = 1;
  for (uint64_t n = 1; n <= 2000; n++) good &= distinct (n, n % 3, 0, (int64_t) n, n);
  tap_ok (good, "the order is a bijection for n = 1 .. 2000");
  good = distinct (1, 0, 0, BIG, BIG);
  for (uint32_t r = 0; r < 12; r++) {
    uint32_t x[4] = { r };
    rng_philox (x, 99);
    uint64_t n = (((uint64_t) x[0] << 32 | x[1]) >> (4 * r)) + BIG;
    good &= distinct (r, r, (((uint64_t) x[2] << 32 | x[3]) % (n - BIG + 1)), BIG / 10, n);
  }
  tap_ok (good, "and distinct for n of any size up to 2^64");
}

/* Each index is as likely at each place: chi-square of 5 x 5 counts over 2000 epochs, 16 degrees of freedom (39.3: 0.1 %). */
static void fairness (void)
{
  enum { M = 5, EPOCHS = 2000 };
  double count[M][M] = { { 0 } }, chi = 0, mean = (double) EPOCHS / M;
  for (uint64_t e = 0; e < EPOCHS; e++)
    for (int i = 0; i < M; i++) count[i][rng_permute (1, e, (uint64_t) i, M)]++;
  for (int i = 0; i < M * M; i++) chi += pow (count[i / M][i % M] - mean, 2) / mean;
  tap_ok (chi < 39.3, "five samples over 2000 epochs: chi-square %.1f", chi);
}

/* One line of rng.py: a case and its values. 1 if ours are the same. */
static int same_line (char *line)
{
  char *end, *kind = strtok (line, " "), *name;
  uint64_t seed = strtoull (strtok (NULL, " "), &end, 10);
  if (!strcmp (kind, "permute")) {
    uint64_t v[4];
    for (int i = 0; i < 4; i++) v[i] = strtoull (strtok (NULL, " "), &end, 10);
    return rng_permute (seed, v[0], v[1], v[2]) == v[3];
  }
  name = strtok (NULL, " ");
  char *where = strtok (NULL, " ");
  int good = 1, is_weight = !strcmp (kind, "weight"), n = 0;
  for (char *w; (w = strtok (NULL, " \n")); n++) {
    float z = rng_normal (seed, rng_key (name), (is_weight ? 0 : strtoull (where, &end, 10)) + (uint64_t) n);
    if (is_weight) z = rng_scale ((float) atof (where), z);
    uint32_t bits;
    memcpy (&bits, &z, 4);
    good &= bits == strtoul (w, NULL, 16);
  }
  return good && n == 64;
}

static void against_python (void)
{
  const char *python = getenv ("PYTHON"), *dir = getenv ("srcdir");
  char command[4096], line[4096];
  snprintf (command, sizeof command, "'%s' '%s/test/rng.py' table", python ? python : "/usr/bin/python3", dir ? dir : ".");
  int good = 1, n = 0;
  FILE *f = popen (command, "r");
  for (; f && fgets (line, sizeof line, f); n++) good &= same_line (line);
  tap_ok (f && !pclose (f) && n == 432, "rng.py ran (%d lines)", n);
  tap_ok (good, "its values are ours to the bit");
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  known_answers ();
  statistics (1, "model.embed_tokens.weight");
  statistics (0xdeadbeefcafe, "model.layers.7.mlp.up_proj.weight");
  alignment ();
  permutations ();
  fairness ();
  against_python ();
  tap_done ();
  MPI_Finalize ();
  return 0;
}
