#include "config.h"
#include "hdf.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 1 };     /* of processor time: an honest file takes a few thousandths */
struct answer { int rc; struct err e; };

/* All N bytes; false if the other end is gone. */
static bool send_all (int fd, const void *p, size_t n)
{
  for (const char *c = p; n; ) {
    ssize_t k = write (fd, c, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    c += k, n -= (size_t) k;
  }
  return true;
}

static bool take_all (int fd, void *p, size_t n)
{
  for (char *c = p; n; ) {
    ssize_t k = read (fd, c, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    c += k, n -= (size_t) k;
  }
  return true;
}

/* What goes wrong here is told by the parent: no handler of MPI's, and nothing on the terminal. */
static void be_quiet (void)
{
  static const int fatal[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT, SIGHUP, SIGXCPU };
  struct rlimit cpu = { SECONDS, SECONDS }, core = { 0, 0 };
  sigset_t none;
  int nothing = open ("/dev/null", O_WRONLY);
  for (int i = 0; i < LEN (fatal); i++) signal (fatal[i], SIG_DFL);
  sigemptyset (&none);
  sigprocmask (SIG_SETMASK, &none, NULL);
  setrlimit (RLIMIT_CPU, &cpu);
  setrlimit (RLIMIT_CORE, &core);
  if (nothing >= 0) dup2 (nothing, 1), dup2 (nothing, 2);
}

static _Noreturn void child (int to, int (*look) (void *ctx, struct err *e), void *ctx, const void *out, size_t bytes)
{
  struct answer a = { 0 };
  be_quiet ();
  a.rc = look (ctx, &a.e);
  _exit (send_all (to, &a, sizeof a) && (a.rc || send_all (to, out, bytes)) ? 0 : 1);
}

static int fallen (const char *path, int status, struct err *e)
{
  int sig = WIFSIGNALED (status) ? WTERMSIG (status) : 0;
  if (sig == SIGXCPU || sig == SIGKILL) return user_err (e, "%s cannot be read as HDF5: the library does not come to an end with it", path);
  return user_err (e, "%s cannot be read as HDF5: it is damaged, the library falls over it (%s)", path, sig ? strsignal (sig) : "no answer");
}

int hdf_apart (const char *path, int (*look) (void *ctx, struct err *e), void *ctx, void *out, size_t bytes, struct err *e)
{
  struct answer a = { 0 };
  int end[2], status = 0;
  if (pipe2 (end, O_CLOEXEC)) return look (ctx, e);
  pid_t pid = fork ();
  if (!pid) child (end[1], look, ctx, out, bytes);
  close (end[1]);
  bool whole = pid > 0 && take_all (end[0], &a, sizeof a) && (a.rc || take_all (end[0], out, bytes));
  close (end[0]);
  if (pid < 0) return look (ctx, e);
  while (waitpid (pid, &status, 0) < 0 && errno == EINTR) continue;
  if (!whole) return fallen (path, status, e);
  a.e.msg[sizeof a.e.msg - 1] = 0;
  if (a.rc && e && !e->msg[0]) *e = a.e;
  return a.rc ? -1 : 0;
}
