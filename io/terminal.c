#include "config.h"
#include "terminal.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { FALLBACK = 80, GENERATIONS = 8 };

static int columns (int fd)
{
  struct winsize w = { 0 };
  if (!isatty (fd)) return 0;
  return !ioctl (fd, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : FALLBACK;
}

/* The name and the parent of process PID. */
static int parent_of (int pid, char name[static 64])
{
  char path[64];
  int parent = 0;
  snprintf (path, sizeof path, "/proc/%d/stat", pid);
  FILE *f = fopen (path, "r");
  if (!f || fscanf (f, "%*d (%63[^)]) %*c %d", name, &parent) != 2) parent = 0;
  if (f) fclose (f);
  return parent;
}

/* What the launcher passes on goes to its own standard output. */
static int launcher_width (int pid)
{
  char path[64], to[64] = "";
  snprintf (path, sizeof path, "/proc/%d/fd/1", pid);
  if (readlink (path, to, sizeof to - 1) < 0 || (strncmp (to, "/dev/pts/", 9) && strncmp (to, "/dev/tty", 8))) return 0;
  int fd = open (path, O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  int w = fd < 0 ? 0 : columns (fd);
  if (fd >= 0) close (fd);
  return w;
}

int terminal_width (void)
{
  int w = columns (1);
  if (w) return w;
  for (int pid = (int) getppid (), i = 0; pid > 1 && i < GENERATIONS; i++) {
    char name[64] = "";
    int next = parent_of (pid, name);
    if (!strncmp (name, "mpiexec", 7) || !strncmp (name, "mpirun", 6)) return launcher_width (pid);
    pid = next;
  }
  return 0;
}
