/* pretrain plan: the command line of the planner. */
#include "config.h"
#include "plan.h"
#include "step.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ask { int gpus; const char *machine; bool search, json; };

/* Take the planner's own options out of argv; what stays is for the run. */
static int own_options (struct ask *a, int *argc, char **argv, struct err *e)
{
  int n = 0;
  for (int i = 0; i < *argc; i++) {
    static const struct { const char *name; bool value; } own[] = { { "--gpus", true }, { "--machine", true }, { "--search", false } };
    int k = 0;
    const char *value = NULL;
    for (; k < LEN (own); k++) {
      size_t len = strlen (own[k].name);
      if (strncmp (argv[i], own[k].name, len) || (argv[i][len] && argv[i][len] != '=')) continue;
      value = argv[i][len] ? argv[i] + len + 1 : NULL;
      break;
    }
    if (k == LEN (own)) {
      argv[n++] = argv[i];
      continue;
    }
    if (own[k].value && !value) value = ++i < *argc ? argv[i] : NULL;
    if (own[k].value && (!value || !*value)) return user_err (e, "%s needs a value", own[k].name);
    char *end;
    switch (k) {
    case 0:
      a->gpus = (int) strtol (value, &end, 10);
      if (*end || a->gpus < 1 || a->gpus > 1 << 20) return user_err (e, "--gpus expects a number of GPUs, not `%.100s`", value);
      break;
    case 1: a->machine = value; break;
    default: a->search = true;
    }
  }
  *argc = n;
  return 0;
}

static void help (FILE *f)
{
  fprintf (f, "usage: pretrain plan [RUN.yaml] --gpus N --machine NAME [--search] [--option value ...]\n");
}

/* What a plan takes where the user says nothing: the model's sequences, and a batch of the usual size: 16 k tokens a GPU, 16 M at most. */
static void fill_in (struct conf *c, int gpus)
{
  if (!conf_given (c, "train.seq_len")) c->train.seq_len = c->arch.max_seq ? MIN (c->arch.max_seq, 8192) : 4096;
  if (conf_given (c, "train.global_batch")) return;
  int64_t tokens = MIN ((int64_t) gpus << 14, 1 << 24), batch = 1;
  while (2 * batch * c->train.seq_len <= tokens) batch *= 2;
  c->train.global_batch = batch;
}

static int plan (int argc, char **argv, struct err *e)
{
  struct ask a = { 0 };
  struct conf *c = xalloc (sizeof *c, "plan");
  struct machine *m = xalloc (sizeof *m, "plan");
  struct plan *p = xalloc (sizeof *p, "plan");
  const char *yaml = argc && strncmp (argv[0], "--", 2) ? argv[0] : NULL;
  if (yaml) argc--, argv++;
  conf_default (c);
  int rc = own_options (&a, &argc, argv, e);
  if (!rc && !a.gpus) rc = user_err (e, "plan: say how many GPUs: --gpus 64");
  if (!rc && !a.machine) rc = user_err (e, "plan: say on which machine: --machine a100-80g-ib200");
  rc = rc || machine_load (m, a.machine, e) || conf_load (c, yaml, argc, argv, e);
  if (!rc) {
    fill_in (c, a.gpus);
    rc = a.search ? plan_search (p, c, m, a.gpus, e) : plan_make (p, c, m, a.gpus, NULL, e);
  }
  if (!rc && !p->fits) plan_help (p);
  if (!rc && a.search && p->fits) plan_others (p, c);
  if (!rc) {
    plan_explain (p);
    plan_print (p, stdout);
  }
  plan_free (p);
  xfree (p);
  xfree (m);
  xfree (c);
  return rc;
}

int plan_main (int argc, char **argv)
{
  struct err e = { 0 };
  if (argc > 1 && (!strcmp (argv[1], "--help") || !strcmp (argv[1], "-h"))) return help (stdout), EXIT_DONE;
  if (!plan (argc - 1, argv + 1, &e)) return EXIT_DONE;
  say (SAY_ERROR, "%s", e.msg);
  return e.code ? e.code : EXIT_USER;
}
