/* Memory of the cpu device. One mapping of address space serves the process: its first half is handed out and never accessible, the bytes lie in
   its second half, cpu_delta further, and are enabled when reserved. */
#include "config.h"
#include "cgroup.h"
#include "cpu_queue.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uintptr_t cpu_base, cpu_span, cpu_delta;

static const size_t PAGE = 4096, HUGE = 2 << 20;

struct range { uintptr_t at, end; };   /* of handed out addresses, whole huge pages */
static struct range *used;
static int used_n, used_room;

static void *map (void *at, size_t bytes, int prot, int flags)
{
  void *p = mmap (at, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

/* A limit on address space (ulimit -v) is met halfway. */
static int map_span (struct err *e)
{
  for (size_t span = (size_t) 1 << 42; span >= (size_t) 1 << 30; span /= 2) {
    char *p = map (NULL, 2 * span + HUGE, PROT_NONE, MAP_NORESERVE);
    if (!p) continue;
    cpu_base = ((uintptr_t) p + HUGE - 1) / HUGE * HUGE;
    cpu_span = cpu_delta = span;
    return 0;
  }
  return world_err (e, "cannot map address space for the cpu device: %s (ulimit -v?)", strerror (errno));
}

/* ---- how much there is ---- */

int64_t cpu_node_room (const char *root)
{
  char path[300];
  snprintf (path, sizeof path, "%s/proc/meminfo", root);
  int64_t room = file_number (path, "MemAvailable:"), limit = cgroup_room (root);
  return room < 0 ? limit : MIN (room, limit);
}

int cpu_mem_open (struct cpu *c, int ranks, struct err *e)
{
  if (!cpu_base && map_span (e)) return -1;
  c->ranks = MAX (ranks, 1);
  c->budget = cpu_node_room ("") / c->ranks;
  return 0;
}

/* ---- device memory ---- */

/* First gap of LEN bytes; -1 if none. *at: where; returns the index to insert at. */
static int find_gap (size_t len, uintptr_t *at)
{
  uintptr_t from = cpu_base;
  for (int i = 0; i <= used_n; i++) {
    uintptr_t to = i < used_n ? used[i].at : cpu_base + cpu_span;
    if (to - from >= len) { *at = from; return i; }
    if (i < used_n) from = used[i].end;
  }
  return -1;
}

static void insert (int i, uintptr_t at, size_t len)
{
  if (used_n == used_room) {
    used_room = used_room ? 2 * used_room : 64;
    used = realloc (used, (size_t) used_room * sizeof *used);
    must (used, "out of host memory for %d ranges", used_room);
  }
  memmove (used + i + 1, used + i, (size_t) (used_n - i) * sizeof *used);
  used[i] = (struct range) { at, at + len };
  used_n++;
}

static void *device_reserve (size_t bytes)
{
  uintptr_t at;
  size_t len = (bytes + HUGE - 1) / HUGE * HUGE;
  int i = find_gap (len, &at);
  if (i < 0 || mprotect ((void *) (at + cpu_delta), bytes, PROT_READ | PROT_WRITE)) return NULL;
  madvise ((void *) (at + cpu_delta), bytes, MADV_HUGEPAGE);
  insert (i, at, len);
  return (void *) at;
}

static void device_release (void *p, size_t bytes)
{
  int i = 0;
  while (i < used_n && used[i].at != (uintptr_t) p) i++;
  must (i < used_n, "memory at %p was not reserved", p);
  memmove (used + i, used + i + 1, (size_t) (--used_n - i) * sizeof *used);
  must (map (cpu_at (p), bytes, PROT_NONE, MAP_NORESERVE | MAP_FIXED), "cannot give memory back: %s", strerror (errno));
}

static void *host_reserve (size_t bytes)
{
  void *p = map (NULL, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE);
  if (p) madvise (p, bytes, MADV_HUGEPAGE);
  return p;
}

static size_t pages (int64_t bytes) { return ((size_t) MAX (bytes, 1) + PAGE - 1) / PAGE * PAGE; }

void *cpu_reserve (struct dev *d, enum space s, int64_t bytes, struct err *e)
{
  struct cpu *c = d->impl;
  size_t len = pages (bytes);
  if (c->reserved + (int64_t) len > c->budget) {
    char want[24], have[24], room[24];
    bytes_text ((int64_t) len, want);
    bytes_text (c->reserved, have);
    bytes_text (c->budget, room);
    user_err (e, "%s more do not fit: this rank holds %s of the %s that are its share of the node's free memory (%d ranks)", want, have, room, c->ranks);
    return NULL;
  }
  void *p = s == SPACE_DEVICE ? device_reserve (len) : host_reserve (len);
  if (!p) user_err (e, "cannot map %lld bytes: %s", (long long) bytes, strerror (errno));
  else c->reserved += (int64_t) len;
  return p;
}

void cpu_release (struct dev *d, enum space s, void *p, int64_t bytes)
{
  struct cpu *c = d->impl;
  size_t len = pages (bytes);
  if (s == SPACE_DEVICE) device_release (p, len);
  else munmap (p, len);
  c->reserved -= (int64_t) len;
}
