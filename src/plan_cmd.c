/* pretrain plan: the command line of the planner. */
#include "config.h"
#include "import.h"
#include "plan.h"
#include "step.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ask { int gpus; const char *machine, *page, *trace, *emit, *name; bool search; };

static const struct own { const char *name; size_t at; const char *what; } own[] = {   /* what NULL: a flag */
  { "--gpus", offsetof (struct ask, gpus), "number of GPUs" },
  { "--machine", offsetof (struct ask, machine), "machine" },
  { "--page", offsetof (struct ask, page), "file" },
  { "--trace", offsetof (struct ask, trace), "file" },
  { "--emit", offsetof (struct ask, emit), "kind" },
  { "--name", offsetof (struct ask, name), "name" },
  { "--search", offsetof (struct ask, search), NULL },
};

static int set_own (struct ask *a, const struct own *o, const char *value, struct err *e)
{
  char *end;
  if (!o->what) return *(bool *) ((char *) a + o->at) = true, 0;
  if (!value || !*value) return user_err (e, "%s needs a %s", o->name, o->what);
  if (o->at != offsetof (struct ask, gpus)) return *(const char **) ((char *) a + o->at) = value, 0;
  long n = strtol (value, &end, 10);
  if (*end || n < 1 || n > 1 << 20) return user_err (e, "--gpus expects a number of GPUs, not `%.100s`", value);
  return a->gpus = (int) n, 0;
}

/* Take the planner's own options out of argv; what stays is for the run. */
static int own_options (struct ask *a, int *argc, char **argv, struct err *e)
{
  int n = 0;
  for (int i = 0; i < *argc; i++) {
    const char *value = NULL;
    int k = 0;
    for (; k < LEN (own); k++) {
      size_t len = strlen (own[k].name);
      if (strncmp (argv[i], own[k].name, len) || (argv[i][len] && argv[i][len] != '=')) continue;
      value = argv[i][len] ? argv[i] + len + 1 : NULL;
      break;
    }
    if (k == LEN (own)) argv[n++] = argv[i];
    else {
      if (own[k].what && !value && i + 1 < *argc) value = argv[++i];
      if (set_own (a, &own[k], value, e)) return -1;
    }
  }
  *argc = n;
  if (a->emit && strcmp (a->emit, "sbatch")) return user_err (e, "--emit knows sbatch, not `%.100s`", a->emit);
  return 0;
}

/* One screen that teaches the two ledgers. */
static const char help_text[] =
  "usage: pretrain plan [RUN.yaml] --gpus N --machine NAME [--search] [--page FILE] [--option value ...]\n"
  "\n"
  "What a run will cost, before it runs; one process, no GPU. The trainer's own code runs on a device that computes nothing:\n"
  "memory and bytes are exactly those that the run will have, times are predicted.\n"
  "  --gpus N         GPUs in all\n"
  "  --machine NAME   what they can do and what is between them, as a100-80g-ib200 (share/machines), or a path to such a file\n"
  "  --search         the best of all meshes; what you say (--mesh.tp 8, --sharding.strategy ...) stays. The default where no\n"
  "                   RUN.yaml and nothing of mesh and sharding is given\n"
  "  --page FILE      the same as one HTML page to print: mesh, memory, the step on the clock, ledgers; --trace FILE: for Perfetto\n"
  "  --emit sbatch    NAME.yaml and NAME.sbatch, which run it (--name NAME)\n"
  "  --from-accelerate FILE, --from-torchtitan FILE, --from-megatron FLAGS, --from-hf config.json   settings of other systems\n"
  "All options of a run are understood (pretrain --help). A batch left out is 16 k tokens a GPU, 16 M at most.\n"
  "\n"
  "The memory ledger. A parameter costs 2 bytes of bf16 weight, 4 of master, 4 + 4 of moments and 2 of gradient: 16, or 18 with\n"
  "fp32 gradients. 7B is 112 GB, 13B 208 GB, 70B 1.12 TB: divide by the ranks that share it, dp_shard x pp x tp, and it must be\n"
  "well below a GPU's memory, because what comes on top is not small: the layers gathered just now, whole gradients before they\n"
  "are reduced, activations (recompute.mode makes them again), logits, and what the driver and NCCL take (outside).\n"
  "\n"
  "The communication ledger, bytes that a GPU sends in a step. P parameters of its stage and tp slice, N ranks of dp_shard, A\n"
  "micro-batches, w and g bytes of a weight and of a gradient on the wire (2 and 4), S = sequences x tokens x dim x w, t ranks of tp:\n"
  "  NO_SHARD        2 P g (N - 1) / N        once            tp   10 S (t - 1) / t a layer and micro-batch\n"
  "  SHARD_OPT       P (g + w) (N - 1) / N    once            pp   S / t each way a boundary and micro-batch\n"
  "  SHARD_GRAD_OP   P (A g + w) (N - 1) / N\n"
  "  FULL_SHARD      A P (2 w + g) (N - 1) / N, less what stays gathered where the backward begins\n"
  "  HYBRID_SHARD    FULL_SHARD inside, and 2 (P / N) g (R - 1) / R over R replicas once\n"
  "The rule of thumb 2 M (N - 1) / N is SHARD_OPT in bf16. It does not grow with N: what grows is latency, and communication's share\n"
  "of a batch that stays. Bytes over bandwidth is the time at a link; NVLink, a card a GPU and a card a node are an order apart each.\n"
  "Exposed is what computation waits for: above 30 % of the step, change the mesh. tp hides little (mesh.tp_overlap): keep it on NVLink;\n"
  "gathers hide behind layers that compute longer; pp sends least, and idles (pp - 1) / (A + pp - 1) of the time.\n"
  "Read the page downwards: does it fit, which line of the ledger waits on which link, what would another mesh do.\n";

/* What a plan takes where the user says nothing: the model's sequences, and a batch of the usual size: 16 k tokens a GPU, 16 M at most. */
static void fill_in (struct conf *c, int gpus)
{
  if (!conf_given (c, "train.seq_len")) c->train.seq_len = c->arch.max_seq ? MIN (c->arch.max_seq, 8192) : 4096;
  if (conf_given (c, "train.global_batch")) return;
  int64_t tokens = MIN ((int64_t) gpus << 14, 1 << 24), batch = 1;
  while (2 * batch * c->train.seq_len <= tokens) batch *= 2;
  c->train.global_batch = batch;
}

/* Nothing is said of how to cut. */
static bool open_question (const struct conf *c)
{
  static const char *const cut[] = { "mesh.dp_replicate", "mesh.dp_shard", "mesh.pp", "mesh.tp", "sharding.strategy", "sharding.reshard", "train.micro_batch", "recompute.mode" };
  for (int i = 0; i < LEN (cut); i++)
    if (conf_given (c, cut[i])) return false;
  return true;
}

/* Spans of collectives for page and trace: a plan made by a search has none. */
static int with_trace (struct plan *p, struct err *e)
{
  struct plan *q = xalloc (sizeof *q, "plan");
  int rc = plan_make (q, &p->c, &p->m, p->gpus, &(struct plan_want) { .trace = true }, e);
  if (!rc) {
    struct plan_stage *stage = p->stage;
    p->stage = q->stage;
    q->stage = stage;
    p->shown = q->shown;
    for (int i = 0; i < p->stages; i++)   /* links are names in the plan's own machine */
      for (int k = 0; k < GROUP_N; k++) p->stage[i].group[k].link = machine_link (&p->m, p->stage[i].group[k].cross);
  }
  plan_free (q);
  xfree (q);
  return rc;
}

static int write_file (const struct plan *p, const char *path, void (*write) (const struct plan *, FILE *), struct err *e)
{
  FILE *f = fopen (path, "w");
  if (!f) return user_err (e, "cannot write %s: %s", path, strerror (errno));
  write (p, f);
  bool bad = ferror (f);
  if (fclose (f) || bad) return world_err (e, "cannot write %s: %s", path, strerror (errno));
  printf ("wrote %s\n", path);
  return 0;
}

static int files (struct plan *p, const struct ask *a, struct err *e)
{
  if ((a->page || a->trace) && with_trace (p, e)) return -1;
  if (a->page && write_file (p, a->page, plan_page, e)) return -1;
  if (a->trace && write_file (p, a->trace, plan_trace, e)) return -1;
  return a->emit ? plan_emit (p, a->name, e) : 0;
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
  if (!rc && !a.machine) rc = user_err (e, "plan: say on which machine: --machine a100-80g-ib200");
  rc = rc || machine_load (m, a.machine, e) || import_load (c, yaml, &argc, argv, &a.gpus, stdout, e);
  if (!rc && !a.gpus) rc = user_err (e, "plan: say how many GPUs: --gpus 64");
  if (!rc) {
    fill_in (c, a.gpus);
    a.search |= !yaml && open_question (c);
    rc = a.search ? plan_search (p, c, m, a.gpus, e) : plan_make (p, c, m, a.gpus, NULL, e);
  }
  if (!rc && !p->fits) plan_help (p);
  if (!rc && a.search && p->fits) plan_others (p, c);
  if (!rc) {
    plan_explain (p);
    plan_print (p, stdout);
    if (!p->fits) a.emit = NULL;   /* page and trace show what is wrong; a script would not run */
    rc = files (p, &a, e);
    if (!rc && !p->fits) {
      char t[24];
      rc = user_err (e, "plan: does not fit, %s too many on a GPU", plan_gb ((double) p->over, t));
    }
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
  if (argc > 1 && (!strcmp (argv[1], "--help") || !strcmp (argv[1], "-h"))) return fputs (help_text, stdout), EXIT_DONE;
  if (!plan (argc - 1, argv + 1, &e)) return EXIT_DONE;
  say (SAY_ERROR, "%s", e.msg);
  return e.code ? e.code : EXIT_USER;
}
