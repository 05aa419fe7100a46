/* Token files in HDF5 in which a byte is wrong: whatever HDF5 does with them (1.10.8 falls over some and never comes to an end with others), the answer is a sentence or a file
   that is as it says. */
#include "tap.h"
#include "hdf.h"
#include "tokens.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char byte[1 << 16];
static char path[200];

static size_t take_in (const char *name)
{
  char from[600];
  snprintf (from, sizeof from, "%s/test/corpus/hdf5/%s", getenv ("srcdir") ? getenv ("srcdir") : ".", name);
  FILE *f = fopen (from, "rb");
  must (f, "%s", from);
  size_t n = fread (byte, 1, sizeof byte, f);
  fclose (f);
  return n;
}

/* Byte AT of N changed by MASK. */
static int opens (size_t n, size_t at, unsigned char mask, struct err *e)
{
  struct tokens t;
  byte[at] ^= mask;
  FILE *f = fopen (path, "wb");
  must (f && fwrite (byte, 1, n, f) == n && !fclose (f), "%s", path);
  byte[at] ^= mask;
  *e = (struct err) { 0 };
  int rc = tokens_open (&t, path, "hdf5", 1000, e);
  if (!rc) rc = tokens_scan (&t, 1000, e);
  tokens_close (&t);
  return rc;
}

static void test_flips (const char *name)
{
  static const unsigned char mask[] = { 0xff, 0x80, 0x10 };
  size_t n = take_in (name);
  long good = 1, fine = 0, told = 0, fell = 0;
  for (size_t at = 0; at < n; at += at > 1400 && at < 1450 ? 1 : 13)
    for (int k = 0; k < LEN (mask); k++) {
      struct err e;
      int rc = opens (n, at, mask[k], &e);
      good &= rc == 0 || rc == -1;
      good &= rc ? strstr (e.msg, path) != NULL : !e.msg[0];
      fine += !rc, told += rc != 0, fell += strstr (e.msg, "falls over") != NULL;
    }
  tap_ok (good && fine && told, "%s with a byte changed: %ld mean nothing, %ld are told, of them HDF5 falls over %ld", name, fine, told, fell);
}

/* Bytes of the structure by which HDF5 1.10.8 falls over a file, and by which it never comes to an end. */
static void test_worst (void)
{
  struct err a, b;
  size_t n = take_in ("mask");
  int x = opens (n, 1709, 0xff, &a), y = opens (n, 1799, 0xff, &b);
  tap_ok ((x == 0 || strstr (a.msg, path)) && (y == 0 || strstr (b.msg, path)), "the worst of them: %s; %s", a.msg, b.msg);
}

/* --- the process of its own --- */

static int dies (void *ctx, struct err *e) { return (void) ctx, (void) e, raise (SIGSEGV); }
static int answers (void *ctx, struct err *e) { return (void) e, *(int *) ctx = 7, 0; }
static int refuses (void *ctx, struct err *e) { return *(int *) ctx = 9, user_err (e, "so it is"); }
static int spins (void *ctx, struct err *e)
{
  (void) ctx, (void) e;
  for (volatile long i = 0; i >= 0; i++) continue;
  return 0;
}

static void test_apart (void)
{
  struct err e = { 0 };
  int x = 1;
  tap_ok (!hdf_apart ("f", answers, &x, &x, sizeof x, &e) && x == 7, "its answer comes back");
  tap_ok (hdf_apart ("f", refuses, &x, &x, sizeof x, &e) == -1 && x == 7 && !strcmp (e.msg, "so it is") && e.code == EXIT_USER, "and its sentence");
  e = (struct err) { 0 };
  tap_ok (hdf_apart ("f", dies, &x, &x, sizeof x, &e) == -1 && x == 7 && strstr (e.msg, "f cannot be read as HDF5: it is damaged"), "it dies: %s", e.msg);
  e = (struct err) { 0 };
  double t = now ();
  tap_ok (hdf_apart ("f", spins, &x, &x, sizeof x, &e) == -1 && strstr (e.msg, "does not come to an end"), "it does not end: %s", e.msg);
  printf ("# after %.1f s\n", now () - t);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  snprintf (path, sizeof path, "%s/t_tokens_hdf5.XXXXXX", tap_tmp ());
  int fd = mkstemp (path);
  must (fd >= 0, "%s", path);
  close (fd);
  hdf_quiet ();
  test_apart ();
  test_flips ("bytes");
  test_worst ();
  unlink (path);
  tap_ok (base_live () == 0, "nothing is left allocated");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
