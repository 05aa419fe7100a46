/* A plan as one page to print and pin up: HTML with the pictures as SVG inside, no script, nothing fetched. Everything on it is in struct plan. */
#include "config.h"
#include "plan_page.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- axes ---- */

int page_ink_of (enum group_kind k)
{
  const char *a = plan_axis (k);
  return !strcmp (a, "tp") ? INK_TP : !strcmp (a, "pp") ? INK_PP : !strcmp (a, "dp_shard") ? INK_DP : !strcmp (a, "dp_replicate") ? INK_REP : INK_WORLD;
}

const struct page_axis page_axis[PAGE_AXES] = {
  { AXIS_TP, GROUP_TP, INK_TP }, { AXIS_PP, GROUP_F_OUT, INK_PP }, { AXIS_DP_SHARD, GROUP_SHARD, INK_DP }, { AXIS_DP_REPLICATE, GROUP_REP, INK_REP } };

bool page_is_drawn (const struct plan *p, int i) { return p->shape.dim[page_axis[i].axis] > 1; }

/* ---- memory ---- */

const char *const page_purpose[MEM_N] = { [MEM_WEIGHT] = "#4e79a7", [MEM_GATHER] = "#a0cbe8", [MEM_GRAD] = "#f28e2b", [MEM_MASTER] = "#59a14f", [MEM_MOMENT] = "#8cd17d",
  [MEM_ACT] = "#e15759", [MEM_LOGIT] = "#ff9d9a", [MEM_COMM] = "#b07aa1", [MEM_WORK] = "#9c755f", [MEM_STAGE] = "#d4a6c8" };

/* Stages that a table or a row of bars shows: all up to MOST, else the first and the last ones. */
static bool stage_shown (const struct plan *p, int i, int most) { return p->stages <= most || i < most / 2 || i >= p->stages - most / 2 || i == p->worst; }

static void bar (const struct plan *p, int stage, int y, int h, double scale, int left, FILE *f)
{
  const struct plan_stage *s = &p->stage[stage];
  double x = left;
  char t[24];
  for (int i = 0; i <= MEM_N; i++) {
    double bytes = i < MEM_N ? (double) s->mem[SPACE_DEVICE][i] : (double) p->outside, w = bytes * scale;
    if (w <= 0) continue;
    fprintf (f, "<rect x='%.1f' y='%d' width='%.1f' height='%d' fill='%s'><title>%s %s</title></rect>", x, y, w, h, i < MEM_N ? page_purpose[i] : "#c8c8c8",
             i < MEM_N ? purpose_name (i) : "outside of the arenas", plan_gb (bytes, t));
    if (w > 62) fprintf (f, "<text x='%.1f' y='%d' class='w' style='fill:%s'>%s</text>", x + w / 2, y + h / 2 + 4, page_on (i < MEM_N ? page_purpose[i] : "#c8c8c8"), plan_gb (bytes, t));
    x += w;
  }
}

static void memory (const struct plan *p, FILE *f)
{
  const struct plan_stage *s = &p->stage[p->worst];
  char t[24], u[24], v[24];
  int left = 84, width = 1200, shown = 0;
  double most = MAX ((double) p->capacity, (double) (s->device + p->outside)), scale = (width - left - 10) / most;
  for (int i = 0; i < p->stages; i++) shown += stage_shown (p, i, 8);
  int h = shown == 1 ? 34 : 22, tall = 26 + shown * (h + 6);
  fprintf (f, "<section><h2>Memory of a GPU</h2><p><b class='%s'>%s</b> of %s: %s %s.", p->fits ? "good" : "bad", plan_gb ((double) (s->device + p->outside), t),
           plan_gb ((double) p->capacity, u), plan_gb (fabs ((double) p->over), v), p->fits ? "free" : "too many: it does not fit");
  fprintf (f, " State alone by the rule of %d bytes a parameter: %s for the model, ", (int) (14 + dtype_size (p->c.sharding.grad_dtype)), plan_gb ((double) p->rule_state, t));
  fprintf (f, "%s a GPU; weights kept, gradients, master and moments are here %s exactly.</p>\n", plan_gb (p->rule_rank, u), plan_gb ((double) p->state, v));
  fprintf (f, "<div class='wide'><svg viewBox='0 0 %d %d' style='max-width:%dpx' role='img'>", width, tall, width);
  for (int i = 0, y = 4; i < p->stages; i++) {
    if (!stage_shown (p, i, 8)) continue;
    fprintf (f, "<text x='4' y='%d' class='s'>%s %d</text><rect x='%d' y='%d' width='%.1f' height='%d' class='b'/>", y + h / 2 + 4, p->stages > 1 ? "stage" : "rank", p->stages > 1 ? i : s->rank, left, y,
             (double) p->capacity * scale, h);
    bar (p, i, y, h, scale, left, f);
    y += h + 6;
  }
  double x = left + (double) p->capacity * scale;
  fprintf (f, "<path d='M%.1f 0V%d' stroke='#000' stroke-width='2'/><text x='%.1f' y='%d' class='e'>%s of the GPU</text></svg></div>\n", x, tall - 18, x, tall - 4, plan_gb ((double) p->capacity, t));
  fputs ("<p class='key'>", f);
  for (int i = 0; i <= MEM_N; i++)
    if (i == MEM_N || s->mem[SPACE_DEVICE][i]) {
      fprintf (f, "<span><i style='background:%s'></i>", i < MEM_N ? page_purpose[i] : "#c8c8c8");
      page_put (f, i < MEM_N ? purpose_name (i) : "outside of the arenas");
      fprintf (f, " %s</span> ", plan_gb (i < MEM_N ? (double) s->mem[SPACE_DEVICE][i] : (double) p->outside, t));
    }
  fputs ("</p></section>\n", f);
}

/* ---- the time-line ---- */

enum { LINE_W = 1200, LINE_LEFT = 84, LINE_H = 26, STRIP = 7 };

static const struct { const char *word, *fill; } act_look[ACT_N] = {
  [ACT_F] = { "forward", "#9ecae1" }, [ACT_B] = { "backward", "#a1d99b" }, [ACT_B_INPUT] = { "backward by input", "#a1d99b" }, [ACT_B_WEIGHT] = { "backward by weight", "#41ab5d" },
  [ACT_OPT] = { "optimizer", "#fdae6b" }, [ACT_REDUCE] = { "last reductions", "#d9d9d9" } };

static double span_end (const struct plan *p)
{
  double end = 0;
  for (int i = 0; i < p->stages; i++)
    for (int k = 0; k < p->stage[i].spans; k++) end = MAX (end, p->stage[i].span[k].end);
  return end;
}

/* 1, 2 or 5 times a power of ten, so that about N of them make SPAN. */
static double tick (double span, int n)
{
  double raw = span / n, ten = pow (10, floor (log10 (raw)));
  return raw / ten < 1.5 ? ten : raw / ten < 3.5 ? 2 * ten : raw / ten < 7.5 ? 5 * ten : 10 * ten;
}

/* Computation of one action, which waits now and then for a link: what is nearer than a pixel is drawn as one. */
static void actions (const struct plan_stage *s, int y, double scale, bool words, FILE *f)
{
  const struct plan_span *first = NULL;
  double end = 0;
  for (int k = 0; k <= s->spans; k++) {
    const struct plan_span *a = k < s->spans ? &s->span[k] : NULL;
    if (a && (a->lane || a->act < 0 || a->act >= ACT_N || !act_look[a->act].fill)) continue;
    if (a && first && a->act == first->act && a->mb == first->mb && a->chunk == first->chunk && (a->begin - end) * scale < 1) {
      end = a->end;
      continue;
    }
    double x = first ? LINE_LEFT + first->begin * scale : 0, w = first ? (end - first->begin) * scale : 0;
    if (w >= 0.15) {
      fprintf (f, "<rect x='%.1f' y='%d' width='%.1f' height='%d' fill='%s'%s/>", x, y, w, LINE_H, act_look[first->act].fill, w > 3 ? " class='g'" : "");
      if (words && w > 16 && first->mb >= 0) fprintf (f, "<text x='%.1f' y='%d' class='q'>%d</text>", x + w / 2, y + 17, first->mb);
    }
    first = a;
    if (a) end = a->end;
  }
}

/* A strip for an axis: dark where one of its collectives runs. Thousands of spans become runs of pixels. */
static void strip (const struct plan_stage *s, int which, int y, double scale, FILE *f)
{
  bool on[LINE_W] = { 0 };
  for (int k = 0; k < s->spans; k++) {
    const struct plan_span *a = &s->span[k];
    if (!a->lane || page_ink_of (a->lane - 1) != which) continue;
    int from = (int) (a->begin * scale), to = (int) ceil (a->end * scale);
    for (int x = MAX (from, 0); x < MIN (to, LINE_W); x++) on[x] = true;
  }
  for (int x = 0; x < LINE_W; x++) {
    int from = x;
    while (x < LINE_W && on[x]) x++;
    if (x > from) fprintf (f, "<rect x='%d' y='%d' width='%d' height='%d' fill='%s'/>", LINE_LEFT + from, y, x - from, STRIP - 2, page_ink[which]);
  }
}

static bool has_strip (const struct plan *p, int which)
{
  for (int i = 0; i < PAGE_AXES; i++) if (page_axis[i].ink == which && page_is_drawn (p, i)) return true;
  return which == INK_REP && p->shape.no_shard && p->shape.dim[AXIS_DP_SHARD] > 1;
}

static void time_line (const struct plan *p, FILE *f)
{
  double end = MAX (span_end (p), 1e-9), scale = (LINE_W - LINE_LEFT - 6) / end, each = tick (end, 10);
  int shown = 0, strips = 0, y = 22;
  bool used[ACT_N] = { 0 };
  char t[24], u[24];
  for (int i = 0; i < p->stages; i++) {
    shown += stage_shown (p, i, 16);
    for (int k = 0; k < p->stage[i].spans; k++) if (!p->stage[i].span[k].lane) used[p->stage[i].span[k].act] = true;
  }
  for (int i = 0; i < INK_WORLD; i++) strips += has_strip (p, i);
  if (shown > 4) strips = 0;
  int each_h = LINE_H + strips * STRIP + 7, tall = y + shown * each_h + 4;
  fprintf (f, "<section><h2>One step on the clock</h2><p>%s a step (predicted): computation %.1f %%, waiting for links %.1f %%, waiting for other stages %.1f %%; waits are white. ",
           page_seconds (p->step, t), 100 * p->compute, 100 * p->exposed, 100 * p->bubble);
  if (p->shown < p->mbs) fprintf (f, "Shown are %lld of %lld micro-batches: the middle of the step repeats itself. ", (long long) p->shown, (long long) p->mbs);
  if (strips) fputs ("The strips below a stage are its links at work. ", f);
  if (shown < p->stages) fprintf (f, "%d of %d stages are shown. ", shown, p->stages);
  fprintf (f, "</p>\n<div class='wide'><svg viewBox='0 0 %d %d' style='max-width:%dpx' role='img'>", LINE_W, tall, LINE_W);
  for (double x = 0; x <= end * 1.0001; x += each)
    fprintf (f, "<path d='M%.1f 14V%d' class='x'/><text x='%.1f' y='11' class='%c'>%s</text>", LINE_LEFT + x * scale, tall, LINE_LEFT + x * scale, x * scale > LINE_W - LINE_LEFT - 40 ? 'e' : 'r',
             x > 0 ? page_seconds (x, u) : "0");
  for (int i = 0; i < p->stages; i++) {
    if (!stage_shown (p, i, 16)) continue;
    const struct plan_stage *s = &p->stage[i];
    fprintf (f, "<text x='4' y='%d' class='s'>stage %d</text><rect x='%d' y='%d' width='%.1f' height='%d' class='i'/>", y + 17, i, LINE_LEFT, y, end * scale, LINE_H);
    actions (s, y, scale, true, f);
    for (int k = 0, n = 0; k < INK_WORLD && strips; k++)
      if (has_strip (p, k)) strip (s, k, y + LINE_H + 2 + STRIP * n++, scale, f);
    y += each_h;
  }
  fputs ("</svg></div>\n<p class='key'>", f);
  for (int i = 0; i < ACT_N; i++) if (used[i] && act_look[i].word) fprintf (f, "<span><i style='background:%s'></i>%s</span> ", act_look[i].fill, act_look[i].word);
  fputs ("<span><i style='background:#fff;border:1px solid #999'></i>idle</span> ", f);
  static const char *const word[] = { "tp", "pp", "dp_shard", "dp_replicate" };
  for (int k = 0; k < INK_WORLD && strips; k++) if (has_strip (p, k)) fprintf (f, "<span><i style='background:%s;height:5px'></i>%s link</span> ", page_ink[k], word[k]);
  fputs ("</p></section>\n", f);
}

/* ---- ledgers ---- */

static void comm_ledger (const struct plan *p, int stage, FILE *f)
{
  const struct plan_stage *s = &p->stage[stage];
  char a[24], b[24], c[24], t[96];
  if (!s->lines) return;
  if (p->stages > 1) fprintf (f, "<h3>what a GPU of stage %d sends in a step</h3><table>", stage);
  else fputs ("<h3>what a GPU sends in a step</h3><table>", f);
  page_heads (f, "axis|#ranks|collective|link|#calls|#bytes|#time|#exposed");
  for (int i = 0; i < s->lines; i++) {
    const struct plan_line *l = &s->line[i];
    const struct plan_group *g = &s->group[l->group];
    fprintf (f, "<tr><td style='color:%s'>%s</td><td class='n'>%d</td>", page_ink[page_ink_of (l->group)], plan_axis (l->group), g->n);
    snprintf (t, sizeof t, "%s, %s%s", group_name (l->group), op_name (l->op), l->tree ? " (tree)" : "");
    page_cell (f, false, t);
    snprintf (t, sizeof t, g->cross && g->sharers > 1 ? "%.50s, shared by %d" : "%.50s", g->link, g->sharers);
    page_cell (f, false, t);
    fprintf (f, "<td class='n'>%lld</td><td class='n' title='%lld bytes'>%s</td><td class='n'>%s</td><td class='n'>%s</td></tr>\n", (long long) l->calls, (long long) l->bytes, plan_gb ((double) l->bytes, a),
             page_seconds (l->busy, b), page_seconds (l->exposed, c));
  }
  fputs ("</table>\n", f);
}

static void memory_ledger (const struct plan *p, FILE *f)
{
  char words[400] = "purpose", w[64];
  for (int i = 0; i < p->stages; i++)
    if (stage_shown (p, i, 4)) snprintf (words + strlen (words), sizeof words - strlen (words), p->stages > 1 ? "|#stage %d" : "|#bytes", i);
  fputs ("<h3>memory of a GPU, bytes</h3><table>", f);
  page_heads (f, words);
  for (int k = 0; k <= MEM_N + 1; k++) {
    if (k < MEM_N && !p->stage[p->worst].mem[SPACE_DEVICE][k]) continue;
    fprintf (f, "<tr%s>", k > MEM_N ? " class='sum'" : "");
    page_cell (f, false, k < MEM_N ? purpose_name (k) : k == MEM_N ? "outside of the arenas" : "sum");
    for (int i = 0; i < p->stages; i++)
      if (stage_shown (p, i, 4))
        fprintf (f, "<td class='n'>%s</td>", page_grouped ((double) (k < MEM_N ? p->stage[i].mem[SPACE_DEVICE][k] : k == MEM_N ? p->outside : p->stage[i].device + p->outside), w));
    fputs ("</tr>\n", f);
  }
  fputs ("</table>\n", f);
}

static void choice_table (const struct plan *p, const struct plan_choice *c, int n, FILE *f)
{
  char step[24], gb[24], tokens[64], text[400];
  fputs ("<div class='wide'><table class='choices'>", f);
  page_heads (f, "mesh and settings|#GPUs|#tokens/s|#MFU|#step|#exposed|#bubble|#memory|waits most for");
  for (int i = 0; i < n; i++) {
    snprintf (text, sizeof text, "%s%s%s", c[i].name, *c[i].name ? ": " : "", c[i].text);
    fputs (c[i].fits ? "<tr>" : "<tr class='off'>", f);
    page_cell (f, false, text);
    fprintf (f, "<td class='n'>%d</td>", c[i].gpus);
    if (c[i].tokens_s > 0)
      fprintf (f, "<td class='n'>%s</td><td class='n'>%.1f %%</td><td class='n'>%s</td><td class='n'>%.1f %%</td><td class='n'>%.1f %%</td>", page_grouped (c[i].tokens_s, tokens), 100 * c[i].mfu,
               page_seconds (c[i].step, step), 100 * c[i].exposed, 100 * c[i].bubble);
    else fputs ("<td colspan='5'></td>", f);
    fprintf (f, "<td class='n'>%s%s</td>", plan_gb ((double) (c[i].device + p->outside), gb), c[i].fits ? "" : ", too much");
    page_cell (f, false, c[i].tokens_s > 0 ? c[i].limit : "");
    fputs ("</tr>\n", f);
  }
  fputs ("</table></div>", f);
}

enum { RANKED = 12 };   /* of a search's list on the page */

static void choices (const struct plan *p, FILE *f)
{
  if (p->choices) {
    fprintf (f, "<section><h2>%s</h2>", p->fits ? "The search, best first" : "What would fit");
    if (p->tried) fprintf (f, "<p>%lld ways were timed, %lld do not fit, %lld are not possible.</p>", (long long) p->tried, (long long) p->too_big, (long long) p->refused);
    if (p->least_gpus) fprintf (f, "<p>The smallest number of GPUs of this kind that fits: %d.</p>", p->least_gpus);
    choice_table (p, p->choice, MIN (p->choices, RANKED), f);
    fputs ("</section>\n", f);
  }
  if (p->others) {
    fputs ("<section><h2>Meshes that people draw, each at its best</h2>", f);
    choice_table (p, p->other, p->others, f);
    fputs ("</section>\n", f);
  }
}

static void notes (const struct plan *p, FILE *f)
{
  if (!p->notes) return;
  fputs ("<section><h2>What to know</h2><ul>", f);
  for (int i = 0; i < p->notes; i++) fputs ("<li>", f), page_put (f, p->note[i]), fputs ("</li>\n", f);
  fputs ("</ul></section>\n", f);
}

/* ---- the whole ---- */

static void head (const struct plan *p, FILE *f)
{
  const struct conf *c = &p->c;
  char t[64], u[24], v[64], w[64];
  count_text (p->params, u);
  fputs ("<h1>", f);
  page_put (f, c->model);
  fprintf (f, ", %s parameters, on %d &#215; ", u, p->gpus);
  page_put (f, p->m.gpu);
  fputs ("</h1>\n<p>", f);
  fprintf (f, "%s: ", p->shape.dim[AXIS_DP_REPLICATE] > 1 ? "Mesh (replicas, shards, pp, tp)" : "Mesh (dp, pp, tp)");
  if (p->shape.dim[AXIS_DP_REPLICATE] > 1) fprintf (f, "<b>(%d, %d, %d, %d)</b>", p->shape.dim[AXIS_DP_REPLICATE], p->shape.dim[AXIS_DP_SHARD], p->shape.dim[AXIS_PP], p->shape.dim[AXIS_TP]);
  else fprintf (f, "<b>(%d, %d, %d)</b>", p->shape.dim[AXIS_DP_SHARD], p->shape.dim[AXIS_PP], p->shape.dim[AXIS_TP]);
  fprintf (f, " on %d node%s of %d GPUs", p->nodes, p->nodes > 1 ? "s" : "", p->m.gpus);
  if (p->nodes > 1) {
    fputs (", ", f);
    page_put (f, p->m.nic);
    fputs (" between them", f);
  }
  fprintf (f, "; %s, wrap ", plan_word ("sharding.strategy", c, t));
  page_put (f, c->sharding.wrap);
  fprintf (f, ", recompute %s", plan_word ("recompute.mode", c, v));
  if (p->stages > 1) fprintf (f, ", schedule %s", plan_word ("pipeline.schedule", c, w));
  if (c->mesh.tp > 1 && c->mesh.tp_overlap > 1) fprintf (f, ", tp in %lld parts beside products", (long long) c->mesh.tp_overlap);
  fprintf (f, ". A step is %lld sequences of %lld tokens: %lld micro-batch%s of %lld on each of %d data ranks.</p>\n", (long long) c->train.global_batch, (long long) c->train.seq_len,
           (long long) p->mbs, p->mbs > 1 ? "es" : "", (long long) c->train.micro_batch, p->shape.dim[AXIS_DP_SHARD] * p->shape.dim[AXIS_DP_REPLICATE]);
  fputs ("<div class='tiles'>", f);
  page_tile (f, page_grouped (p->tokens_s, t), "tokens/s (predicted)", "");
  page_tile (f, page_grouped (p->tokens_s / p->gpus, t), "tokens/s a GPU", "");
  snprintf (t, sizeof t, "%.1f %%", 100 * p->mfu);
  page_tile (f, t, "MFU", "");
  page_tile (f, page_seconds (p->step, u), "a step", "");
  snprintf (t, sizeof t, "%.1f %%", 100 * p->exposed);
  page_tile (f, t, "waiting for links", p->exposed > 0.3 ? "bad" : "");
  snprintf (t, sizeof t, "%.1f %%", 100 * p->bubble);
  if (p->stages > 1) page_tile (f, t, "pipeline bubble", p->bubble > 0.3 ? "bad" : "");
  page_tile (f, plan_gb ((double) (p->stage[p->worst].device + p->outside), u), p->fits ? "memory: fits" : "memory: does NOT fit", p->fits ? "good" : "bad");
  fputs ("</div>\n", f);
}

void plan_page (const struct plan *p, FILE *f)
{
  fputs ("<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><meta name='viewport' content='width=device-width, initial-scale=1'/><title>", f);
  page_put (f, p->c.model);
  fprintf (f, " on %d GPUs</title><style>%s</style></head><body>\n", p->gpus, page_style);
  head (p, f);
  page_mesh (p, f);
  memory (p, f);
  time_line (p, f);
  notes (p, f);
  choices (p, f);
  fputs ("<section><h2>The ledgers</h2><div class='two'><div>", f);
  comm_ledger (p, 0, f);
  if (p->stages > 1) comm_ledger (p, p->stages - 1, f);
  fputs ("</div><div>", f);
  memory_ledger (p, f);
  fputs ("</div></div></section>\n<footer>", f);
  fputs ("Memory and bytes are those that the run will have, exactly: they are counted by the trainer's own code. Times are predicted from the machine's figures (", f);
  page_put (f, p->m.name);
  fputs ("). MFU counts 6 N + 6 L d T a token, N the matrix parameters with the head and without the lookup table, against the peak of the data sheet. A byte counts once, at its sender.</footer>\n</body></html>\n", f);
}
