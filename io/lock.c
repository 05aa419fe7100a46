/* One run at a time in a run's folder: a job submitted twice, or a launcher that started N single programs, would write over itself. The kernel gives the
   lock back when the process ends in whatever way. Where there are no locks (some Lustre and NFS mounts) there is no guard. */
#include "config.h"
#include "metrics.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Who holds it, in the owner's own words. */
static void owner (int fd, char out[static 128])
{
  ssize_t n = pread (fd, out, 127, 0);
  out[MAX (n, 0)] = 0;
  out[strcspn (out, "\n")] = 0;
  if (!out[0]) strcpy (out, "another process");
}

int run_lock (const char *dir, int *lock, struct err *e)
{
  char path[1200], text[128];
  struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
  snprintf (path, sizeof path, "%s/.lock", dir);
  *lock = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (*lock < 0) return user_err (e, "run.dir: cannot write %s: %s", path, strerror (errno));
  if (fcntl (*lock, F_SETLK, &whole)) {
    if (errno != EACCES && errno != EAGAIN) return 0;
    owner (*lock, text);
    run_unlock (*lock);
    *lock = -1;
    return user_err (e, "run.dir: %s is in use by %s: wait for its end or give another run.dir (if there is no such process any more, remove %s)", dir, text, path);
  }
  int n = snprintf (text, sizeof text, "process %d on host %s\n", (int) getpid (), base_host ());
  if (ftruncate (*lock, 0) || pwrite (*lock, text, (size_t) n, 0) != n) return 0;   /* a full disk: the name is missed, no more */
  return 0;
}

int run_held (const char *dir)
{
  char path[1200], text[128], own[128];
  struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
  snprintf (path, sizeof path, "%s/.lock", dir);
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  bool told = !fcntl (fd, F_GETLK, &whole);
  owner (fd, text);
  close (fd);
  if (told && whole.l_type != F_UNLCK) return 1;
  snprintf (own, sizeof own, " on host %s", base_host ());
  const char *host = strstr (text, " on host ");
  return told && host && !strcmp (host, own) ? 0 : -1;
}

void run_unlock (int lock)
{
  if (lock >= 0) close (lock);
}
