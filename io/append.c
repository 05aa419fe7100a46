#include "config.h"
#include "append.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

void append_put (struct append *a, const void *data, size_t n)
{
  ssize_t put = write (a->fd, data, n);
  if (put == (ssize_t) n) {
    a->size += put;
    return;
  }
  const char *why = put < 0 ? strerror (errno) : "no space left for a whole record";
  if (put > 0 && ftruncate (a->fd, a->size)) why = "a torn record cannot be cut off";
  if (!a->warned) say (SAY_WARN, "%s: %s; training goes on, %s will be missing", a->path, why, a->losing);
  a->warned = true;
}
