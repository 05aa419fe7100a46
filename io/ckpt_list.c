#include "ckpt_int.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ckpt_folder (const char *run_dir, char out[static CKPT_PATH]) { snprintf (out, CKPT_PATH, "%.*s/checkpoints", STR, run_dir); }

void ckpt_name (const char *run_dir, int64_t step, char out[static CKPT_PATH])
{
  snprintf (out, CKPT_PATH, "%.*s/checkpoints/step_%08lld.h5", STR, run_dir, (long long) step);
}

/* --- what a run has --- */

struct found { int64_t step; bool tmp; char name[64]; };

/* step_N.h5 or step_N.h5.tmp, however many digits. */
static bool ours (const char *name, struct found *f)
{
  char *end;
  if (strncmp (name, "step_", 5) || name[5] < '0' || name[5] > '9' || strlen (name) >= sizeof f->name) return false;
  errno = 0;
  f->step = strtoll (name + 5, &end, 10);
  if (errno || strncmp (end, ".h5", 3)) return false;
  f->tmp = !strcmp (end + 3, ".tmp");
  strcpy (f->name, name);
  return f->tmp || !end[3];
}

static int newest_first (const void *a, const void *b)
{
  int64_t x = ((const struct found *) a)->step, y = ((const struct found *) b)->step;
  return x < y ? 1 : x > y ? -1 : strcmp (((const struct found *) a)->name, ((const struct found *) b)->name);
}

/* All files of ours in FOLDER, newest first, into *list (xfree it); none if the folder is not there, -1 if it cannot be read. */
static int list_files (const char *folder, struct found **list, struct err *e)
{
  int n = 0;
  struct found f;
  *list = NULL;
  DIR *d = opendir (folder);
  if (!d) return errno == ENOENT ? 0 : world_err (e, "%s: %s", folder, strerror (errno));
  for (struct dirent *t; (t = readdir (d));) {
    if (!ours (t->d_name, &f)) continue;
    *list = xrealloc (*list, (size_t) (n + 1) * sizeof f, "ckpt");
    (*list)[n++] = f;
  }
  closedir (d);
  if (n) qsort (*list, (size_t) n, sizeof f, newest_first);
  return n;
}

/* Whole as far as the head, the index and the sizes tell; and does it hold the step that its name says? */
static int look (const char *path, int64_t step, struct err *e)
{
  struct ckpt_head h = { 0 };
  if (ckpt_head_read (path, &h, e)) return -1;
  int64_t inside = h.step;
  ckpt_head_free (&h);
  if (inside != step) return world_err (e, "%s holds step %lld", path, (long long) inside);
  return 0;
}

static int stop_at (const struct err *why, struct err *e)
{
  return world_err (e, "%s; move it away, or let load.fallback take the one before", why->msg);
}

/* What rank 0 found, told to all. */
struct newest { int64_t rc, step, skipped; char path[CKPT_PATH]; };

/* STRICT: one that is no whole checkpoint is an error. */
static void newest_here (const char *run_dir, int64_t below, bool strict, struct newest *out, struct err *e)
{
  char folder[CKPT_PATH];
  struct found *list;
  ckpt_folder (run_dir, folder);
  int n = list_files (folder, &list, e);
  out->rc = n < 0 ? -1 : 0;
  for (int i = 0; i < n && !out->rc; i++) {
    struct err why = { 0 };
    if (list[i].tmp || list[i].step >= below) continue;
    snprintf (out->path, CKPT_PATH, "%.*s/checkpoints/%s", STR - 2, run_dir, list[i].name);
    if (look (out->path, list[i].step, &why)) {
      if (strict) out->rc = stop_at (&why, e);
      else say (SAY_WARN, "skipping a checkpoint: %s", why.msg);
      out->skipped++;
      continue;
    }
    out->step = list[i].step;
    out->rc = 1;
  }
  xfree (list);
}

static int find (const char *run_dir, MPI_Comm world, int64_t below, bool strict, struct newest *out, struct err *e)
{
  int rank;
  memset (out, 0, sizeof *out);
  MPI_Comm_rank (world, &rank);
  if (!rank) newest_here (run_dir, below, strict, out, e);
  if (ckpt_agree (world, out->rc < 0, e)) return -1;
  ckpt_bcast (world, out, sizeof *out);
  return (int) out->rc;
}

int ckpt_newest (const char *run_dir, MPI_Comm world, int64_t below, char path[static CKPT_PATH], int64_t *step, struct err *e)
{
  struct newest f;
  int rc = find (run_dir, world, below, false, &f, e);
  if (rc <= 0) return rc;
  memcpy (path, f.path, CKPT_PATH);
  *step = f.step;
  return 1;
}

int ckpt_resume (struct ckpt_state *s, const char *run_dir, bool fallback, struct err *e)
{
  struct newest f = { .step = INT64_MAX };
  struct err local = { 0 };
  int64_t skipped = 0;
  if (!e) e = &local;
  for (;;) {
    int rc = find (run_dir, s->mesh->world, f.step, !fallback, &f, e);
    skipped += f.skipped;
    if (rc < 0) return -1;
    if (!rc && skipped) return user_err (e, "none of the %lld checkpoints in %s/checkpoints can be loaded; move them away to begin anew", (long long) skipped, run_dir);
    if (!rc) return 0;
    struct err why = { 0 };
    if (!ckpt_load (s, f.path, false, &why)) return 1;
    if (why.code != EXIT_WORLD) return *e = why, -1;   /* of another model: older ones will be too */
    if (!fallback) return stop_at (&why, e);
    say (SAY_WARN, "skipping a checkpoint: %s", why.msg);
    skipped++;
  }
}

static void remove_file (const char *folder, const char *name)
{
  char path[CKPT_PATH + 64];
  snprintf (path, sizeof path, "%s/%s", folder, name);
  if (unlink (path) && errno != ENOENT) say (SAY_WARN, "cannot remove %s: %s", path, strerror (errno));
}

void ckpt_prune (const char *run_dir, int64_t keep)
{
  char folder[CKPT_PATH], path[CKPT_PATH + 64];
  struct found *list;
  struct err e = { 0 };
  ckpt_folder (run_dir, folder);
  int64_t good = 0;
  int n = list_files (folder, &list, &e);
  for (int i = 0; i < n; i++) {
    struct err why = { 0 };
    snprintf (path, sizeof path, "%s/%s", folder, list[i].name);
    if (list[i].tmp) {
      if (good) remove_file (folder, list[i].name);   /* older than a good one: no save that is going on */
    } else if ((keep > 0 || !good) && !look (path, list[i].step, &why) && good++ >= keep && keep > 0)
      remove_file (folder, list[i].name);
  }
  xfree (list);
}
