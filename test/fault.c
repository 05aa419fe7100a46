/* A library to preload: one kind of file call fails, is slow or comes short, on one rank or on all. It minds files below a folder `checkpoints` only.

     FAULT=CALL:ERRNO      pwrite, pread, open, fsync, rename or flock, and the number that errno gets; 0: the call is done, slowly (FAULT_US) or in part (FAULT_SHORT)
     FAULT_RANK=R          only on this rank (PMI_RANK); not given: on all
     FAULT_AFTER=N         the first N calls do well
     FAULT_COUNT=N         so many fail, then all do well again; not given: all
     FAULT_US=N            microseconds that each such call takes more
     FAULT_SHORT=1         pwrite and pread move at most 1000 bytes
     FAULT_KILL=1          SIGKILL instead of an error */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;

static long number (const char *name, long otherwise)
{
  const char *s = getenv (name);
  return s ? atol (s) : otherwise;
}

/* Is CALL on this file to be disturbed? Then errno's number, or 0 for a call that shall be done all the same; -1: leave it alone. */
static int disturbed (const char *call, const char *path)
{
  const char *fault = getenv ("FAULT"), *rank = getenv ("PMI_RANK");
  size_t n = strlen (call);
  if (!fault || strncmp (fault, call, n) || fault[n] != ':' || !strstr (path, "/checkpoints")) return -1;
  if (number ("FAULT_RANK", -1) >= 0 && (!rank || atol (rank) != number ("FAULT_RANK", -1))) return -1;
  long at = calls++, after = number ("FAULT_AFTER", 0);
  if (at < after || at - after >= number ("FAULT_COUNT", 1L << 60)) return -1;
  if (number ("FAULT_KILL", 0)) kill (getpid (), SIGKILL);
  if (number ("FAULT_US", 0)) usleep ((useconds_t) number ("FAULT_US", 0));
  return atoi (fault + n + 1);
}

static int disturbed_fd (const char *call, int fd)
{
  char link[40], path[4096];
  if (!getenv ("FAULT")) return -1;
  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink (link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  return disturbed (call, path);
}

#define REAL(name) ((__typeof__ (&name)) dlsym (RTLD_NEXT, #name))
#define MOVE(name, call, buf_type) \
  ssize_t name (int fd, buf_type buf, size_t n, off_t at) \
  { \
    int e = disturbed_fd (call, fd); \
    if (e > 0) return errno = e, -1; \
    if (e == 0 && number ("FAULT_SHORT", 0) && n > 1000) n = 1000; \
    return REAL (name) (fd, buf, n, at); \
  }
#define OPEN(name) \
  int name (const char *path, int flags, ...) \
  { \
    va_list ap; \
    va_start (ap, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg (ap, mode_t) : 0; \
    va_end (ap); \
    int e = disturbed ("open", path); \
    return e > 0 ? errno = e, -1 : REAL (name) (path, flags, mode); \
  }
MOVE (pwrite, "pwrite", const void *)
MOVE (pwrite64, "pwrite", const void *)
MOVE (pread, "pread", void *)
MOVE (pread64, "pread", void *)
OPEN (open)
OPEN (open64)

int fsync (int fd)
{
  int e = disturbed_fd ("fsync", fd);
  return e > 0 ? errno = e, -1 : REAL (fsync) (fd);
}

int flock (int fd, int op)
{
  int e = disturbed_fd ("flock", fd);
  return e > 0 ? errno = e, -1 : REAL (flock) (fd, op);
}

int rename (const char *from, const char *to)
{
  int e = disturbed ("rename", to);
  return e > 0 ? errno = e, -1 : REAL (rename) (from, to);
}
