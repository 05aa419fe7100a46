#include "config.h"
#include "host.h"
#include "mesh.h"
#include "build_id.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void bcast (const struct group_spec *s, void *buf, int bytes)
{
  MPI_Request q[s->n];
  int n = 0;
  for (int i = 1; i < s->n; i++) {
    int first = s->member ? s->member[0] : 0, other = s->member ? s->member[i] : i;
    if (s->rank == 0) MPI_Isend (buf, bytes, MPI_BYTE, other, s->tag, s->comm, &q[n++]);
    else if (s->rank == i) MPI_Irecv (buf, bytes, MPI_BYTE, first, s->tag, s->comm, &q[n++]);
  }
  wait_all (n, q);
}

static void die_words (const char *file, int line, int code, const char *fmt, ...)
{
  char text[2048];
  va_list ap;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  die_at (file, line, code, "%s", text);
}

static const struct host host = { .abi = HOST_ABI, .size = sizeof host, .build = BUILD_ID, .say = say, .die_at = die_words, .user_err = user_err, .xalloc = xalloc, .xfree = xfree,
  .wait_idle = wait_idle, .now = now, .bcast = bcast, .dev_count = dev_count, .dev_flops = dev_flops, .dev_coll_bytes = dev_coll_bytes, .dev_span_add = dev_span_add,
  .phase_name = phase_name, .dev_stuck = dev_stuck,
  .group_name = group_name, .op_name = op_name, .give_up = base_give_up };

static bool find (const char *name, char path[PATH_MAX])
{
  char exe[PATH_MAX] = "";
  ssize_t n = readlink ("/proc/self/exe", exe, sizeof exe - 1);
  if (n > 0 && strrchr (exe, '/')) *strrchr (exe, '/') = 0;
  const char *const form[] = { "%s/%s.so", "%s/../gpu/%s.so", "%s/../lib/tessera/%s.so" };
  for (int i = 0; i < LEN (form); i++) {
    snprintf (path, PATH_MAX, form[i], exe, name);
    if (!access (path, R_OK)) return true;
  }
  snprintf (path, PATH_MAX, "%s/%s.so", MODULE_DIR, name);
  return !access (path, R_OK);
}

bool module_there (const char *name)
{
  char path[PATH_MAX];
  return find (name, path);
}

const struct dev_ops *module_open (const char *name, struct err *e)
{
  char path[PATH_MAX];
  if (!find (name, path)) return user_err (e, "this build has no device %s (no %s.so beside the program or in %s)", name, name, MODULE_DIR), NULL;
  void *so = dlopen (path, RTLD_NOW | RTLD_LOCAL);
  if (!so) return user_err (e, "device %s cannot be opened: %s", name, dlerror ()), NULL;
  module_entry *entry = (module_entry *) dlsym (so, "dev_module");
  const struct dev_ops *ops = entry ? entry (&host) : NULL;
  if (!ops) return user_err (e, "%s was built from other sources than this program: build and install both together", path), NULL;
  return ops;
}
