/* A library to preload: one kind of file call fails, is slow, comes short or waits for the test, on one rank or on all.

     FAULT=CALL:ERRNO      pwrite, pread, open, fopen, access, fsync, rename, flock or MPI_Finalize, and the number that errno gets; 0: the call is done, slowly (FAULT_US), in part (FAULT_SHORT)
                           or late (FAULT_HOLD)
                           path for CALL: whatever names a file; lock: flock and fcntl's locks
     FAULT_PATH=WORD       only files with this in their path; not given: those below a folder `checkpoints`
     FAULT_RANK=R          only on this rank (PMI_RANK); others: on all but rank 0; not given: on all
     FAULT_AFTER=N         the first N calls do well
     FAULT_COUNT=N         so many fail, then all do well again; not given: all
     FAULT_US=N            microseconds that each such call takes more
     FAULT_SHORT=1         pwrite and pread move at most 1000 bytes
     FAULT_KILL=1          SIGKILL instead of an error
     FAULT_EAT=MB          so much memory is taken and written to first
     FAULT_HOLD=NAME       the first such call makes the file NAME, so that a test knows where the process stands, and waits until NAME.go is there or the program has caught a signal

   Apart from these, FAULT_HEARD=NAME: the first signal that the program catches makes the file NAME. */
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static atomic_bool caught;
static void (*handler[65]) (int);

static long number (const char *name, long otherwise)
{
  const char *s = getenv (name);
  return s ? atol (s) : otherwise;
}

static void leave (const char *name)
{
  int fd = (int) syscall (SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) close (fd);
}

/* A minute at most: a test that has died must not leave processes behind. */
static void hold (void)
{
  char go[4096];
  const char *name = getenv ("FAULT_HOLD");
  if (!name) return;
  snprintf (go, sizeof go, "%s.go", name);
  leave (name);
  for (int ms = 0; ms < 60000 && !caught && syscall (SYS_faccessat, AT_FDCWD, go, F_OK); ms += 2) usleep (2000);
}

static void eat (void)
{
  size_t bytes = (size_t) number ("FAULT_EAT", 0) << 20;
  char *p = bytes ? mmap (NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
  for (size_t i = 0; p != MAP_FAILED && i < bytes; i += 4096) p[i] = 1;
}

/* Signals do not shorten it. */
static void slow (void)
{
  long us = number ("FAULT_US", 0);
  struct timespec t = { us / 1000000, us % 1000000 * 1000 };
  while (nanosleep (&t, &t) && errno == EINTR) ;
}

static bool named (const char *fault, const char *call)
{
  static const char *const path[] = { "open", "fopen", "access", "stat", "mkdir", "rename" };
  size_t n = strlen (call);
  if (!strncmp (fault, call, n) && fault[n] == ':') return true;
  for (size_t i = 0; !strncmp (fault, "path:", 5) && i < sizeof path / sizeof *path; i++)
    if (!strcmp (path[i], call)) return true;
  return !strncmp (fault, "lock:", 5) && strstr (call, "lock");
}

static bool on_this_rank (void)
{
  const char *want = getenv ("FAULT_RANK"), *rank = getenv ("PMI_RANK");
  if (!want) return true;
  return rank && (strcmp (want, "others") ? atol (rank) == atol (want) : atol (rank) > 0);
}

/* Is CALL on this file to be disturbed? Then errno's number, or 0 for a call that shall be done all the same; -1: leave it alone. */
static int disturbed (const char *call, const char *path)
{
  const char *fault = getenv ("FAULT"), *word = getenv ("FAULT_PATH");
  if (!fault || !named (fault, call) || !strstr (path, word ? word : "/checkpoints") || !on_this_rank ()) return -1;
  long at = calls++, after = number ("FAULT_AFTER", 0);
  if (at < after || at - after >= number ("FAULT_COUNT", 1L << 60)) return -1;
  if (number ("FAULT_KILL", 0)) kill (getpid (), SIGKILL);
  if (at == after) hold (), eat ();
  slow ();
  return atoi (strchr (fault, ':') + 1);
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

FILE *fopen (const char *path, const char *mode)
{
  int e = disturbed ("fopen", path);
  return e > 0 ? errno = e, NULL : REAL (fopen) (path, mode);
}

int access (const char *path, int how)
{
  int e = disturbed ("access", path);
  return e > 0 ? errno = e, -1 : REAL (access) (path, how);
}

#define STAT(name, type) \
  int name (const char *path, struct type *s) \
  { \
    int e = disturbed ("stat", path); \
    return e > 0 ? errno = e, -1 : REAL (name) (path, s); \
  }
STAT (stat, stat)
STAT (lstat, stat)
STAT (stat64, stat64)
STAT (lstat64, stat64)

int mkdir (const char *path, mode_t mode)
{
  int e = disturbed ("mkdir", path);
  return e > 0 ? errno = e, -1 : REAL (mkdir) (path, mode);
}

#define FCNTL(name) \
  int name (int fd, int what, ...) \
  { \
    va_list ap; \
    va_start (ap, what); \
    void *arg = va_arg (ap, void *); \
    va_end (ap); \
    int e = what == F_SETLK || what == F_SETLKW ? disturbed_fd ("lock", fd) : -1; \
    return e > 0 ? errno = e, -1 : REAL (name) (fd, what, arg); \
  }
FCNTL (fcntl)
FCNTL (fcntl64)

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

static void on_signal (int sig)
{
  const char *name = getenv ("FAULT_HEARD");
  if (handler[sig]) handler[sig] (sig);
  caught = true;
  if (name) leave (name);
}

/* The program's own handler, and a note that it was called. */
int sigaction (int sig, const struct sigaction *a, struct sigaction *old)
{
  struct sigaction mine;
  bool notes = (getenv ("FAULT_HOLD") || getenv ("FAULT_HEARD")) && (sig == SIGTERM || sig == SIGUSR1) && a && !(a->sa_flags & SA_SIGINFO) && a->sa_handler != SIG_IGN && a->sa_handler != SIG_DFL;
  if (!notes) return REAL (sigaction) (sig, a, old);
  mine = *a;
  handler[sig] = a->sa_handler;
  mine.sa_handler = on_signal;
  return REAL (sigaction) (sig, &mine, old);
}

int MPI_Finalize (void);
int MPI_Finalize (void)
{
  const char *word = getenv ("FAULT_PATH");
  disturbed ("MPI_Finalize", word ? word : "/checkpoints");
  return REAL (MPI_Finalize) ();
}
