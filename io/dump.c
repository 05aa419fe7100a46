#include "config.h"
#include "dump.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void folder (const char *path) { must (!mkdir (path, 0777) || errno == EEXIST, "cannot make %s: %s", path, strerror (errno)); }

void dump_piece (const char *dir, const char *sub, const char *name, int64_t gcols, int64_t row0, int64_t col0, int64_t cols_loc, int64_t start, int64_t count, const float *x)
{
  char path[2048];
  folder (dir);
  snprintf (path, sizeof path, "%s/%s", dir, sub);
  folder (path);
  snprintf (path, sizeof path, "%s/%s/%s.f32", dir, sub, name);
  int f = open (path, O_WRONLY | O_CREAT, 0666);
  must (f >= 0, "cannot write %s: %s", path, strerror (errno));
  for (int64_t i = 0, n; i < count; i += n) {   /* a run within a row at a time */
    int64_t l = start + i, col = l % cols_loc;
    n = MIN (cols_loc - col, count - i);
    int64_t at = (row0 + l / cols_loc) * gcols + col0 + col;
    must (pwrite (f, x + i, (size_t) n * 4, at * 4) == (ssize_t) (n * 4), "cannot write %s: %s", path, strerror (errno));
  }
  must (!close (f), "cannot write %s: %s", path, strerror (errno));
}
