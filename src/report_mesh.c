/* The sections of a report on the mesh with what its links carried, on memory, and on the plan beside what was measured. */
#include "config.h"
#include "machine.h"
#include "plan_page.h"
#include "report.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

bool report_dims (const struct past *p, int dim[4])
{
  const struct past_launch *l = p->launches ? &p->launch[p->launches - 1] : NULL;
  const int64_t conf[4] = { p->c.mesh.tp, p->c.mesh.pp, p->c.mesh.dp_shard, p->c.mesh.dp_replicate };
  int64_t n = 1;
  for (int i = 0; i < 4; i++) {
    int64_t x = l && l->dim[i] > 0 ? l->dim[i] : p->why.msg[0] ? 0 : conf[i];
    if (x < 1 || x > 1 << 20) return false;
    n *= dim[i] = (int) x;
    if (n > 1 << 20) return false;
  }
  return true;
}

void report_dims_text (const int dim[4], char out[static 96])
{
  static const char *const name[4] = { "tp", "pp", "dp_shard", "dp_replicate" };
  out[0] = 0;
  for (int i = 3; i >= 0; i--)
    if (dim[i] > 1) snprintf (out + strlen (out), 96 - strlen (out), "%s%s %d", out[0] ? ", " : "", name[i], dim[i]);
  if (!out[0]) strcpy (out, "one rank");
}

/* ---- links ---- */

/* What rank 0's groups of an axis carried, a step. */
struct load { double calls, bytes, busy, exposed; };

static struct load load_of (const struct past *p, int ink)
{
  struct load l = { 0 };
  for (int g = 0; g < GROUP_N && p->plain; g++)
    for (int k = 0; k < OP_N - OP_COLL_FIRST; k++) {
      const struct coll_stat *s = &p->comm[g][k];
      if (page_ink_of (g) != ink) continue;
      l.calls += (double) s->calls / (double) p->plain;
      l.bytes += (double) s->bytes / (double) p->plain;
      l.busy += s->busy / (double) p->plain;
      l.exposed += s->exposed / (double) p->plain;
    }
  return l;
}

static void link_row (const char *name, int n, int ink, const struct load *l, bool cross, bool told, double seconds, FILE *f)
{
  char a[24], b[24], t[64];
  fprintf (f, "<tr><td><svg width='34' height='12' viewBox='0 0 34 12'><path d='M2 6H32' stroke='%s' class='l'/><circle cx='6' cy='6' r='3.5' fill='%s'/><circle cx='28' cy='6' r='3.5' fill='%s'/></svg> <b>%s%s%.0d</b></td>",
           page_ink[ink], page_ink[ink], page_ink[ink], name, n > 1 ? " " : "", n > 1 ? n : 0);
  page_cell (f, false, !told ? "" : cross ? "between nodes" : "inside a node");
  page_cell (f, true, page_grouped (l->calls, t));
  page_cell (f, true, plan_gb (l->bytes, a));
  page_cell (f, true, page_seconds (l->busy, b));
  snprintf (t, sizeof t, l->bytes > 1e5 && l->busy > 0 ? "%s/s" : "", plan_gb (l->bytes / l->busy, a));
  page_cell (f, true, t);
  snprintf (t, sizeof t, "%s, %.1f %%", page_seconds (l->exposed, a), isfinite (seconds) && seconds > 0 ? 100 * l->exposed / seconds : 0);
  page_cell (f, true, t);
  fputs ("</tr>\n", f);
}

/* A plan that has only what the picture asks for. */
static void picture (struct plan *x, const struct past *p, const int dim[4])
{
  const struct past_launch *l = p->launches ? &p->launch[p->launches - 1] : NULL;
  struct err e = { 0 };
  const enum axis axis[4] = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE };
  x->gpus = 1;
  for (int i = 0; i < 4; i++) x->gpus *= x->shape.dim[axis[i]] = dim[i];
  if (p->why.msg[0] || mesh_order (p->c.mesh.order, x->shape.order, &e)) mesh_order ("tp-pp-dp", x->shape.order, NULL);
  x->shape.kv_rep = 1;
  x->shape.no_shard = p->c.sharding.strategy == NO_SHARD;
  x->stages = dim[1];
  x->nodes = l ? MIN (MAX (l->nodes, 1), x->gpus) : 1;
  x->m.gpus = (int) ceil_div (x->gpus, x->nodes);
  x->nodes = (int) ceil_div (x->gpus, x->m.gpus);
  x->node_of = xalloc ((size_t) x->gpus * sizeof (int), "report");
  for (int r = 0; r < x->gpus; r++) x->node_of[r] = r / x->m.gpus;
}

/* Does rank 0's line along axis I leave its node? */
static bool crosses (const struct plan *x, int i)
{
  int c[AXIS_N] = { 0 };
  c[page_axis[i].axis] = x->shape.dim[page_axis[i].axis] - 1;
  return x->node_of[mesh_rank (&x->shape, c)] > 0;
}

static int ink_here (const struct plan *x, int i) { return page_axis[i].axis == AXIS_DP_SHARD && x->shape.no_shard ? INK_REP : page_axis[i].ink; }

void report_mesh (const struct past *p, bool many, FILE *f)
{
  int dim[4];
  if (!report_dims (p, dim)) return;
  struct plan *x = xalloc (sizeof *x, "report");
  struct page_label label[PAGE_AXES] = { 0 };
  double seconds = p->plain ? p->plain_seconds / (double) p->plain : NAN;   /* of the steps that the loads are of */
  bool told = p->launches && p->launch[p->launches - 1].nodes > 0;
  char t[24];
  picture (x, p, dim);
  if (many) fputs ("<h3>", f), page_put (f, p->name), fputs ("</h3>", f);
  fprintf (f, "<p>Each cell is (%s, pp, tp). Lines are the groups of rank 0%s.%s%s</p>\n", dim[3] > 1 ? "replica, shard" : "dp", p->plain ? ", with the bytes that it sent over them in a step" : "",
           x->stages > 1 ? " Colours are pipeline stages." : "", told ? "" : " On how many nodes the ranks were is not known.");
  if (p->plain && x->gpus > 1) {
    fputs ("<div class='wide'><table>", f);
    page_heads (f, "axis|link|#calls a step|#bytes a step|#time at the link|#rate|#waited for, of a step");
    for (int i = 0; i < PAGE_AXES; i++) {
      struct load l = load_of (p, ink_here (x, i));
      if (!page_is_drawn (x, i)) continue;
      snprintf (label[i].text, sizeof label[i].text, "%s", plan_gb (l.bytes, t));
      link_row (page_axis[i].axis == AXIS_DP_SHARD && dim[3] == 1 ? "dp" : axis_table[page_axis[i].axis].name, dim[i], ink_here (x, i), &l, crosses (x, i), told, seconds, f);
    }
    struct load w = load_of (p, INK_WORLD);
    link_row ("all ranks", 1, INK_WORLD, &w, x->nodes > 1, told, seconds, f);
    fputs ("</table></div>\n", f);
  }
  page_grid (x, p->plain ? label : NULL, f);
  xfree (x->node_of);
  xfree (x);
}

/* ---- memory ---- */

static double purpose_of (const struct past *p, int i)
{
  const json_t *v = json_object_get (json_object_get (p->last, "memory"), i < MEM_N ? purpose_name (i) : "outside");
  return json_is_number (v) ? json_number_value (v) : 0;
}

static double memory_of (const struct past *p)
{
  double sum = 0;
  for (int i = 0; i <= MEM_N; i++) sum += purpose_of (p, i);
  return sum;
}

void report_memory (const struct past *p, int n, FILE *f)
{
  double most = 0;
  char t[24];
  for (int i = 0; i < n; i++) most = MAX (most, memory_of (&p[i]));
  if (most <= 0) return;
  fputs ("<section><h2>Memory of rank 0</h2>", f);
  for (int i = 0; i < n; i++) {
    double x = 0, scale = 1200 / most;
    if (memory_of (&p[i]) <= 0) continue;
    fputs ("<p>", f);
    if (n > 1) fputs ("<b>", f), page_put (f, p[i].name), fputs ("</b>: ", f);
    fprintf (f, "%s in its arenas and beside them</p><div class='wide'><svg viewBox='0 0 1200 34' class='stack' role='img'>", plan_gb (memory_of (&p[i]), t));
    for (int k = 0; k <= MEM_N; k++) {
      double bytes = purpose_of (&p[i], k), w = bytes * scale;
      if (w <= 0) continue;
      fprintf (f, "<rect x='%.1f' y='0' width='%.1f' height='34' fill='%s'><title>%s %s</title></rect>", x, w, k < MEM_N ? page_purpose[k] : "#8f9aa3", k < MEM_N ? purpose_name (k) : "outside of the arenas",
               plan_gb (bytes, t));
      if (w > 62) fprintf (f, "<text x='%.1f' y='22' style='fill:%s'>%s</text>", x + w / 2, page_on (k < MEM_N ? page_purpose[k] : "#8f9aa3"), plan_gb (bytes, t));
      x += w;
    }
    fputs ("</svg></div>\n<p class='key'>", f);
    for (int k = 0; k <= MEM_N; k++)
      if (purpose_of (&p[i], k) > 0)
        fprintf (f, "<span><i style='background:%s'></i>%s %s</span> ", k < MEM_N ? page_purpose[k] : "#8f9aa3", k < MEM_N ? purpose_name (k) : "outside of the arenas", plan_gb (purpose_of (&p[i], k), t));
    fputs ("</p>\n", f);
  }
  fputs ("</section>\n", f);
}

/* ---- the plan ---- */

static void plan_row (const char *what, const char *planned, const char *measured, const char *mood, const char *word, FILE *f)
{
  fputs ("<tr>", f);
  page_cell (f, false, what);
  page_cell (f, true, planned);
  page_cell (f, true, measured);
  fprintf (f, "<td class='%s'>%s</td></tr>\n", mood, word);
}

/* Times by the machine that the run named; they are predictions. */
static void predicted (const struct past *p, FILE *f)
{
  struct machine *m = xalloc (sizeof *m, "report");
  struct plan *x = xalloc (sizeof *x, "report");
  struct err e = { 0 };
  char a[24], b[24], word[64];
  double seconds = past_median (p, PAST_SECONDS, 0, p->steps), share = past_median (p, PAST_SHARE, 0, p->steps);
  int ranks = past_ranks (p, p->launches - 1);
  if (!p->why.msg[0] && p->c.run.machine[0] && ranks > 0 && isfinite (seconds) && !machine_load (m, p->c.run.machine, &e) && !plan_make (x, &p->c, m, ranks, &(struct plan_want) { 0 }, &e)) {
    snprintf (word, sizeof word, "%+.0f %% against the prediction", 100 * (seconds / x->step - 1));
    plan_row ("time of a step", page_seconds (x->step, a), page_seconds (seconds, b), "", word, f);
    snprintf (a, sizeof a, "%.1f %%", 100 * x->exposed);
    snprintf (b, sizeof b, "%.1f %%", 100 * share);
    if (isfinite (share)) plan_row ("of it waiting for links", a, b, "", "predicted; waits of rank 0", f);
  }
  plan_free (x);
  xfree (x);
  xfree (m);
}

void report_plan (const struct past *p, bool many, FILE *f)
{
  const json_t *o = json_object_get (p->last, "plan");
  bool agrees = json_is_true (json_object_get (o, "agrees"));
  double bytes = 0, memory = memory_of (p) - purpose_of (p, MEM_N);
  char a[24], b[24];
  if (!json_is_object (o)) return;
  for (int ink = 0; ink < INKS; ink++) bytes += load_of (p, ink).bytes;
  if (many) fputs ("<h3>", f), page_put (f, p->name), fputs ("</h3>", f);
  fputs ("<div class='wide'><table>", f);
  page_heads (f, "rank 0|#planned|#measured| ");
  plan_row ("memory in arenas", plan_gb ((double) json_integer_value (json_object_get (o, "memory")), a), plan_gb (memory, b), agrees ? "good" : "bad", agrees ? "as planned, to the byte" : "not as planned", f);
  plan_row ("bytes sent in a step", plan_gb ((double) json_integer_value (json_object_get (o, "bytes")), a), p->plain ? plan_gb (bytes, b) : "", agrees ? "good" : "bad",
            agrees ? "each step as planned, to the byte" : "not as planned", f);
  predicted (p, f);
  fputs ("</table></div>\n", f);
}
