#include "config.h"
#include "folder.h"
#include "metrics.h"
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Records or checkpoints: options that belong to them are not to be lost. */
static bool trained (const char *dir)
{
  char path[STR + 32];
  struct stat s;
  bool found = false;
  snprintf (path, sizeof path, "%s/metrics.jsonl", dir);
  if (!stat (path, &s)) return true;
  snprintf (path, sizeof path, "%s/checkpoints", dir);
  DIR *d = opendir (path);
  for (struct dirent *f; d && !found && (f = readdir (d));) found = f->d_name[0] != '.';
  if (d) closedir (d);
  return found;
}

/* Whole or not at all. */
static int write_options (const struct conf *c, struct err *e)
{
  char path[STR + 32], tmp[STR + 32];
  snprintf (path, sizeof path, "%s/config.yaml", c->run.dir);
  snprintf (tmp, sizeof tmp, "%s/config.yaml.tmp", c->run.dir);
  FILE *f = fopen (tmp, "w");
  if (f) conf_dump (c, f);
  int bad = !f || ferror (f);
  if (f && fclose (f)) bad = 1;
  if (!bad && !rename (tmp, path)) return 0;
  int why = errno;
  unlink (tmp);
  return user_err (e, "run.dir: cannot write %s: %s", path, strerror (why));
}

int folder_take (struct folder *f, struct job *j, struct err *e)
{
  const char *dir = j->c.run.dir;
  char path[STR + 32];
  int bad = 0;
  *f = (struct folder) { .lock = -1 };
  if (!j->m.rank) {
    bad = job_folder (dir, e);
    snprintf (path, sizeof path, "%s/checkpoints", dir);
    bad = bad || job_folder (path, e) || run_lock (dir, &f->lock, e);
    f->own = !bad;
    bool old = !bad && trained (dir);
    bad = bad || (!old && write_options (&j->c, e));
    if (!bad && exit_begin (dir, old)) bad = user_err (e, "run.dir: cannot write %s/exit.json: %s", dir, strerror (errno));
  }
  bad = mesh_agree (&j->m, bad, e);
  f->there = !bad;
  return bad;
}

int folder_stands (const struct folder *f, const struct job *j, struct err *e)
{
  if (!f->own) return 0;
  if (write_options (&j->c, e)) return -1;
  exit_stands (j->c.run.dir);
  return 0;
}

void folder_leave (struct folder *f)
{
  run_unlock (f->lock);
  f->own = f->there = false;
  f->lock = -1;
}
