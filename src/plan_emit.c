/* What runs a plan: a YAML file that says all that differs from the defaults, and a batch script after share/slurm/cpu.sbatch. */
#include "config.h"
#include "conf_int.h"
#include "plan.h"
#include "share.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Letters, digits, dots and dashes: what a file and a job may be called without quotes. */
static void default_name (const struct plan *p, char out[static 200])
{
  const char *slash = strrchr (p->c.model, '/'), *model = slash ? slash + 1 : p->c.model;
  size_t n = 0;
  for (const char *s = model; *s && n < 100; s++)
    if (isalnum ((unsigned char) *s) || (n && strchr (".-", *s))) out[n++] = *s;
  out[n] = 0;
  snprintf (out + n, 200 - n, "%s%d", n ? "-" : "run-", p->gpus);
}

static int check_name (const char *name, struct err *e)
{
  static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
  if (!name[strspn (name, fine)] && *name != '-' && strlen (name) < 180) return 0;
  return user_err (e, "--name `%.100s`: letters, digits, dots, dashes and slashes are expected", name);
}

static FILE *create (const char *name, const char *end, char path[static 256], struct err *e)
{
  snprintf (path, 256, "%.190s%s", name, end);
  FILE *f = fopen (path, "w");
  if (!f) user_err (e, "cannot write %s: %s", path, strerror (errno));
  return f;
}

static int done (FILE *f, const char *path, struct err *e)
{
  bool bad = ferror (f);
  if (fclose (f) || bad) return world_err (e, "cannot write %s: %s", path, strerror (errno));
  printf ("wrote %s\n", path);
  return 0;
}

static int yaml (const struct plan *p, const char *name, struct err *e)
{
  char path[256];
  FILE *f = create (name, ".yaml", path, e);
  struct conf *c = xalloc (sizeof *c, "emit");
  const char *base = strrchr (name, '/') ? strrchr (name, '/') + 1 : name;
  int rc = -1;
  if (!f) goto out;
  *c = p->c;
  snprintf (c->run.device, sizeof c->run.device, "%s", p->m.device);
  if (!strcmp (c->run.dir, "runs/default")) snprintf (c->run.dir, sizeof c->run.dir, "runs/%.180s", base);
  fprintf (f, "# As planned for %d x %s (%s): %.0f tokens/s predicted. What is not said here is as pretrain --help has it.\n", p->gpus, p->m.gpu, p->m.name, p->tokens_s);
  if (!*c->data.train) {
    fprintf (f, "# Put your token file here: pretrain tokenize makes one.\n");
    snprintf (c->data.train, sizeof c->data.train, "tokens.h5");
  }
  conf_dump_said (c, f);
  rc = done (f, path, e);
 out:
  xfree (c);
  return rc;
}

/* The part that all batch scripts have in common: cpu.sbatch from this line on. */
static const char common[] = "# ---- from here on the scripts of this folder and of `pretrain plan --emit sbatch` are the same\n";

static int copy_common (FILE *to, struct err *e)
{
  char path[STR], line[512];
  if (!share_find ("slurm", "cpu.sbatch", path, sizeof path)) return user_err (e, "slurm/cpu.sbatch is not found among the files that come with the program (set TESSERA_SHARE)");
  FILE *from = fopen (path, "r");
  if (!from) return user_err (e, "cannot read %s: %s", path, strerror (errno));
  bool on = false;
  while (fgets (line, sizeof line, from)) {
    if (on) fputs (line, to);
    on = on || !strcmp (line, common);
  }
  fclose (from);
  return on ? 0 : user_err (e, "%s is another version's: it lacks the line that begins what all scripts share", path);
}

static void head (FILE *f, const struct plan *p, const char *base, int each)
{
  bool gpu = strcmp (p->m.device, "cpu");
  fprintf (f, "#!/bin/bash\n# %s on %d node%s of %d: mesh dp_replicate %d x dp_shard %d x pp %d x tp %d, order %s. Submit it where %s.yaml lies:  sbatch %s.sbatch [--option value ...]\n", p->c.model, p->nodes,
           p->nodes > 1 ? "s" : "", each, p->shape.dim[AXIS_DP_REPLICATE], p->shape.dim[AXIS_DP_SHARD], p->shape.dim[AXIS_PP], p->shape.dim[AXIS_TP], p->c.mesh.order, base, base);
  fprintf (f, "# Partition, account, time and cores a rank are the cluster's: change the lines below, or give them to sbatch.\n"
           "#SBATCH --job-name=%s\n#SBATCH --nodes=%d\n#SBATCH --ntasks=%d\n#SBATCH --ntasks-per-node=%d\n", base, p->nodes, p->gpus, each);
  if (gpu) fprintf (f, "#SBATCH --gpus-per-node=%d\n", each);
  fprintf (f, "#SBATCH --cpus-per-task=%d\n%s#SBATCH --time=24:00:00\n#SBATCH --output=%s-%%j.out\n#SBATCH --open-mode=append\n", gpu ? 8 : 4,
           p->nodes > 1 || gpu ? "#SBATCH --exclusive\n#SBATCH --mem=0\n" : "", base);
  fputs ("# Back into the queue after a failed node or preemption. Five minutes before the time is up USR1: save, stop, queue again.\n#SBATCH --requeue\n#SBATCH --signal=B:USR1@300\n\n", f);
  fprintf (f, "# The order of ranks is part of the plan: node after node, as both launchers do it.\nset -- %s.yaml \"$@\"\n\n", base);
}

static int script (const struct plan *p, const char *name, struct err *e)
{
  char path[256];
  const char *base = strrchr (name, '/') ? strrchr (name, '/') + 1 : name;
  FILE *f = create (name, ".sbatch", path, e);
  if (!f) return -1;
  head (f, p, base, MIN (p->m.gpus, p->gpus));
  fputs (common, f);
  int bad = copy_common (f, e);
  return done (f, path, e) || bad ? -1 : 0;
}

int plan_emit (const struct plan *p, const char *name, struct err *e)
{
  char own[200];
  if (!name) default_name (p, own), name = own;
  return check_name (name, e) || yaml (p, name, e) || script (p, name, e) ? -1 : 0;
}
