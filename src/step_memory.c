/* The memory of a step as a table, and what it holds. */
#include "config.h"
#include "fit.h"

/* What a parameter that this rank owns costs, and where its weight is. */
static void memory_state (const struct step *s, FILE *f)
{
  const struct shard *h = &s->sh;
  static const char *const where[] = { [OFFLOAD_NONE] = "", [OFFLOAD_OPTIMIZER] = ", master and moments in host memory", [OFFLOAD_PARAMS] = ", all but the gradient in host memory" };
  bool apart = h->units.count && h->u[0].weight, whole = h->kept && h->shards == 1 && !h->alias;
  int grad = (int) dtype_size (h->gt), w = (int) dtype_size (h->t), weight = apart || whole ? w : 0;
  fprintf (f, "a parameter that a rank owns costs %d bytes: master 4, moments 8, gradient %d (%s)", 12 + grad + weight, grad, dtype_name (h->gt));
  if (weight) fprintf (f, ", weight %d (%s)", weight, dtype_name (h->t));
  fprintf (f, "%s\n", where[h->offload]);
  if (h->alias) fprintf (f, "the master is the weight that computes\n");
  else if (h->shards > 1) fprintf (f, "%s weights are gathered %s\n", dtype_name (h->t), h->kept ? "and stay" : "unit by unit");
  else if (!whole) fprintf (f, "%s weights are %s unit by unit\n", dtype_name (h->t), apart ? "brought" : "cast");
  if (h->fp8) fprintf (f, "where a matrix of a layer has its whole weight it has codes too, 2 bytes a parameter\n");
  if (h->offload != OFFLOAD_NONE) {
    char t[24];
    bytes_text (h->units.total / h->shards * (24 + (h->offload == OFFLOAD_PARAMS ? w : 0)), t);
    fprintf (f, "an update moves %s between device and host\n", t);
  }
}

/* Runs of layers of rank 0's stage that keep alike. */
static void memory_kept (const struct step *s, FILE *f)
{
  char set[96];
  double t = 0;
  if (s->c->recompute.mode == RECOMPUTE_NONE) return;
  for (int k = 0; k < s->chunks; k++) {
    int64_t l0 = MAX (s->chunk[k].first, 1), end = l0 + s->chunk[k].layers;
    for (int64_t l = l0, n = 1; l < end; l += n, n = 1) {
      while (l + n < end && s->keep[l + n] == s->keep[l]) n++;
      keep_text (s->keep[l], set);
      t += (double) n * fit_seconds (&s->b, s->keep[l]);
      if (n == 1) fprintf (f, "layer %lld keeps %s\n", (long long) l, set);
      else fprintf (f, "layers %lld to %lld keep %s\n", (long long) l, (long long) (l + n - 1), set);
    }
  }
  fprintf (f, "the rest is made again, by rough speeds in %.3g s of a step\n", t * s->mbs);
}

/* The device's rows, then those of host memory. */
void step_memory (const struct step *s, FILE *f)
{
  static const char *const where[] = { "", " (pinned)", " (host)" };
  const struct dev *d = s->d;
  int64_t total = dev_reserved (d), outside = d->outside ? d->outside : dev_outside (d, s->group_n);
  char t[24];
  fprintf (f, "memory of rank 0\n");
  for (int sp = 0; sp < SPACE_N; sp++)
    for (int p = 0; p < MEM_N; p++) {
      int64_t b = d->mem[sp].reserved[p];
      if (!b) continue;
      bytes_text (b, t);
      fprintf (f, "  %-14s %12s%s\n", purpose_name (p), t, where[sp]);
    }
  bytes_text (outside, t);
  fprintf (f, "  %-14s %12s (%s)\n", "outside", t, d->outside ? "context, code, libraries" : "context, code, libraries: left free, measured after the first step");
  bytes_text (total + outside, t);
  fprintf (f, "  %-14s %12s%s\n", "total", t, d->ops->limits->host_memory ? "" : " of the device");
  memory_state (s, f);
  memory_kept (s, f);
}
