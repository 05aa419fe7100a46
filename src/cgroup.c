#include "config.h"
#include "cgroup.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOUNT "/sys/fs/cgroup"
#define NO_LIMIT (INT64_MAX / 2)   /* version 1 says 2^63 less a page */

/* Names in version 2, in version 1. */
static const struct { const char *limit, *use, *cache, *kills, *kills_file; } names[] = {
  { "memory.max", "memory.current", "inactive_file ", "oom_kill ", "memory.events" },
  { "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "oom_kill ", "memory.oom_control" } };

static int64_t number (const char *dir, const char *file, const char *key)
{
  char path[CGROUP_PATH + 64];
  snprintf (path, sizeof path, "%s/%s", dir, file);
  return file_number (path, key);
}

/* One up, the root of the hierarchy being the last. */
static bool up (char *dir)
{
  char *mount = strstr (dir, MOUNT), *slash = strrchr (dir, '/');
  char *end = mount ? mount + sizeof MOUNT - 1 : NULL;
  if (!end || slash < end || (slash == end && !strcmp (slash, "/memory"))) return false;
  *slash = 0;
  return true;
}

/* The next memory cgroup that TEXT, /proc/self/cgroup, names: 0::/a/b (version 2) or 5:memory:/a/b (1). */
static bool next (char **text, const char *root, char dir[static CGROUP_PATH])
{
  for (char *line; (line = strsep (text, "\n")) && *line;) {
    char *name = strchr (line, ':'), *at = name ? strchr (name + 1, ':') : NULL;
    bool v2 = at && at == name + 1;
    if (!at || (!v2 && strncmp (name, ":memory:", 8))) continue;
    snprintf (dir, CGROUP_PATH, "%s" MOUNT "%s%s", root, v2 ? "" : "/memory", strcmp (at + 1, "/") ? at + 1 : "");
    return true;
  }
  return false;
}

static char *read_names (const char *root, char text[static 4096])
{
  char path[300];
  snprintf (path, sizeof path, "%s/proc/self/cgroup", root);
  file_text (path, text, 4096);
  return text;
}

/* Limit less use. Cached files count as use but give way. */
static int64_t room_of (const char *dir)
{
  int64_t room = INT64_MAX;
  for (int i = 0; i < LEN (names); i++) {
    int64_t max = number (dir, names[i].limit, ""), use = number (dir, names[i].use, ""), cache = number (dir, "memory.stat", names[i].cache);
    if (max >= 0 && use >= 0) room = MIN (room, MAX (max - use + MAX (cache, 0), 0));
  }
  return room;
}

int64_t cgroup_room (const char *root)
{
  char text[4096], dir[CGROUP_PATH], *rest = read_names (root, text);
  int64_t room = INT64_MAX;
  while (next (&rest, root, dir))
    do {
      int64_t here = room_of (dir);
      room = MIN (room, here);
    } while (up (dir));
  return room;
}

void cgroup_own (const char *root, char dir[static CGROUP_PATH])
{
  char text[4096], *rest = read_names (root, text);
  while (next (&rest, root, dir))
    do
      if (cgroup_kills (dir) >= 0) return;
    while (up (dir));
  dir[0] = 0;
}

int64_t cgroup_kills (const char *dir)
{
  int64_t n = -1;
  for (int i = 0; dir[0] && i < LEN (names) && n < 0; i++) n = number (dir, names[i].kills_file, names[i].kills);
  return n;
}

int64_t cgroup_limit (const char *dir)
{
  char at[CGROUP_PATH];
  int64_t least = INT64_MAX;
  snprintf (at, sizeof at, "%s", dir);
  do
    for (int i = 0; i < LEN (names); i++) {
      int64_t max = number (at, names[i].limit, "");
      if (max >= 0 && max < NO_LIMIT) least = MIN (least, max);
    }
  while (up (at));
  return least;
}
