/* A module in the place of the cuda device, for hosts without a GPU: what the program says when a module cannot be used, and which rank takes which GPU.

   FAKE_CUDA=old: built from other sources. FAKE_CUDA=none: no GPU. FAKE_CUDA=hang: opening it takes for ever. FAKE_GPUS=a,b: the GPUs of the ranks of a node in turn. It can be opened; asked for its memory, it writes its name into the file taken and ends the job. */
#include "build_id.h"
#include "host.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct host *H;

static bool is (const char *what)
{
  const char *s = getenv ("FAKE_CUDA");
  return s && !strcmp (s, what);
}

static int fake_open (struct dev *d, const struct dev_conf *c, struct err *e)
{
  if (is ("none")) return H->user_err (e, "no GPU can be used here (fake): run with --run.device cpu");
  while (is ("hang")) pause ();
  const char *s = getenv ("FAKE_GPUS");
  for (int i = 0; s && i < c->local_rank; i++) s = strchr (s, ',') ? strchr (s, ',') + 1 : NULL;
  snprintf (d->id, sizeof d->id, "%.*s", s ? (int) strcspn (s, ",") : 1, s ? s : "?");
  snprintf (d->libraries, sizeof d->libraries, "NCCL 1.2.3 (fake)");
  return 0;
}
static void fake_close (struct dev *d) { (void) d; }
static int64_t fake_memory (struct dev *d)
{
  FILE *f = fopen ("taken", "a");   /* what a rank says may be lost when another ends the job */
  if (f) fprintf (f, "%s\n", d->id), fclose (f);
  H->die_at (__FILE__, __LINE__, EXIT_WORLD, "GPU %s is taken", d->id);
  return 0;
}
static void never (void) { abort (); }

static const struct dev_limits limits = { .align = 256 };
static struct dev_ops ops;

__attribute__ ((visibility ("default"))) const struct dev_ops *dev_module (const struct host *h)
{
  if (strcmp (h->build, BUILD_ID) || is ("old")) return NULL;
  H = h;
  void (*slot[sizeof ops / sizeof (void *)]) (void);
  for (size_t i = 0; i < sizeof slot / sizeof *slot; i++) slot[i] = never;
  memcpy (&ops, slot, sizeof ops);
  ops.name = "cuda";
  ops.limits = &limits;
  ops.open = fake_open;
  ops.close = fake_close;
  ops.memory = fake_memory;
  return &ops;
}
