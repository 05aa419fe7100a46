#include "config.h"
#include "share.h"
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES = 5 };

/* Place I into OUT; false if there is none here. */
static bool place (int i, char out[static PATH_MAX])
{
  static const char *const below[PLACES] = { "", "/../share", "/../share/tessera", SHARE_SOURCE, SHARE_INSTALLED };
  out[0] = 0;
  if (i == 0) {
    const char *env = getenv ("TESSERA_SHARE");
    if (env && *env) snprintf (out, PATH_MAX, "%s", env);
  } else if (i >= 3) {
    snprintf (out, PATH_MAX, "%s", below[i]);
  } else {
    char exe[PATH_MAX];
    ssize_t n = readlink ("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    char *slash = strrchr (exe, '/');
    if (slash) *slash = 0;
    if ((size_t) n + strlen (below[i]) < PATH_MAX) strcat (strcpy (out, exe), below[i]);
  }
  return out[0] != 0;
}

bool share_find (const char *folder, const char *name, char *out, size_t size)
{
  char dir[PATH_MAX];
  for (int i = 0; i < PLACES; i++) {
    if (!place (i, dir)) continue;
    int n = snprintf (out, size, "%s/%s/%s", dir, folder, name);
    if (n > 0 && (size_t) n < size && access (out, F_OK) == 0) return true;
  }
  return false;
}

void share_each (const char *folder, const char *ext, void (*fn) (void *, const char *), void *ctx)
{
  char dir[PATH_MAX], path[PATH_MAX + 256], name[256];
  for (int i = 0; i < PLACES; i++) {
    if (!place (i, dir)) continue;
    snprintf (path, sizeof path, "%s/%s", dir, folder);
    DIR *d = opendir (path);
    for (struct dirent *f; d && (f = readdir (d)); ) {
      size_t n = strlen (f->d_name), x = strlen (ext);
      if (n <= x || strcmp (f->d_name + n - x, ext)) continue;
      snprintf (name, sizeof name, "%.*s", (int) (n - x), f->d_name);
      fn (ctx, name);
    }
    if (d) closedir (d);
  }
}
