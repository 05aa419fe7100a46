/* The mesh on the page: nodes as rows, GPUs as columns, the groups of rank 0 as lines; for many nodes a map of them. */
#include "config.h"
#include "plan_page.h"
#include <stdio.h>
#include <string.h>

/* With NO_SHARD the replicas are all of dp. */
static enum group_kind group_drawn (const struct plan *p, int i)
{
  return page_axis[i].axis == AXIS_DP_SHARD && p->shape.no_shard ? GROUP_REP : page_axis[i].group;
}

/* A fill for stage I of N: a walk around the circle of hues that starts at blue. */
static const char *fill_of (int i, int n, char out[static 40])
{
  snprintf (out, 40, "hsl(%d,70%%,%d%%)", (205 + (n > 1 ? i * 360 / MIN (n, 12) : 0)) % 360, i / 12 % 2 ? 80 : 89);
  return out;
}

/* World ranks of rank 0's line along axis A. */
static int line_of (const struct plan *p, enum axis a, int *member)
{
  int c[AXIS_N] = { 0 };
  for (int i = 0; i < p->shape.dim[a]; i++) {
    c[a] = i;
    member[i] = mesh_rank (&p->shape, c);
  }
  return p->shape.dim[a];
}

static int stage_of (const struct plan *p, int rank)
{
  int c[AXIS_N];
  mesh_coord (&p->shape, rank, c);
  return c[AXIS_PP];
}

static void coord_text (const struct plan *p, int rank, char out[static 64])
{
  int c[AXIS_N];
  mesh_coord (&p->shape, rank, c);
  if (p->shape.dim[AXIS_DP_REPLICATE] > 1)
    snprintf (out, 64, "(%d,%d,%d,%d)", c[AXIS_DP_REPLICATE], c[AXIS_DP_SHARD], c[AXIS_PP], c[AXIS_TP]);
  else snprintf (out, 64, "(%d,%d,%d)", c[AXIS_DP_SHARD], c[AXIS_PP], c[AXIS_TP]);
}

/* ---- the mesh: nodes as rows, GPUs as columns ---- */

enum { CELL_W = 104, CELL_H = 40, GAP = 10, LEVEL = 24, SIDE = 46, WHOLE = 128 };   /* up to WHOLE GPUs every one is drawn */

struct grid { const struct plan *p; const struct page_label *label; FILE *f; int cols, left, top, cell_w, shown; };

static int row_y (const struct grid *g, int row) { return g->top + row * (CELL_H + GAP); }
static int col_x (const struct grid *g, int col) { return g->left + col * (g->cell_w + GAP); }

static int place_in_node (const struct plan *p, int rank) { return rank % p->m.gpus; }

/* Rank 0's group along an axis: does it take several places in a node, several nodes, and more nodes than are drawn? */
struct lie { int n, *member; bool in_row, in_col, hidden; int last_row, last_col; };

static struct lie lie_of (const struct plan *p, int i, int shown)
{
  struct lie l = { .n = p->shape.dim[page_axis[i].axis] };
  l.member = xalloc ((size_t) l.n * sizeof (int), "page");
  line_of (p, page_axis[i].axis, l.member);
  for (int k = 0; k < l.n; k++) {
    int row = p->node_of[l.member[k]], col = place_in_node (p, l.member[k]);
    l.in_col |= row > 0;
    l.in_row |= col > 0;
    l.hidden |= row >= shown;
    if (row < shown) l.last_row = MAX (l.last_row, row);
    l.last_col = MAX (l.last_col, col);
  }
  return l;
}

static const char *axis_word (const struct plan *p, int i)
{
  return page_axis[i].axis == AXIS_DP_SHARD && p->shape.dim[AXIS_DP_REPLICATE] == 1 ? "dp" : page_axis[i].axis == AXIS_DP_SHARD ? "shard" :
    page_axis[i].axis == AXIS_DP_REPLICATE ? "repl" : axis_table[page_axis[i].axis].name;
}

/* Above the first row: the members that lie in the first node. */
static void bracket_above (const struct grid *g, int i, const struct lie *l, int level)
{
  int y = g->top - 14 - LEVEL * level, x0 = col_x (g, 0) + g->cell_w / 2 - 9 * (level + 1), x1 = col_x (g, l->last_col) + g->cell_w / 2 - 9 * (level + 1);
  const char *c = page_ink[page_axis[i].ink];
  fprintf (g->f, "<path d='M%d %dH%d' stroke='%s' class='l'/>", x0, y, x1, c);
  for (int k = 0; k < l->n && g->p->node_of[l->member[k]] == 0; k++) {
    int x = col_x (g, place_in_node (g->p, l->member[k])) + g->cell_w / 2 - 9 * (level + 1);
    fprintf (g->f, "<path d='M%d %dV%d' stroke='%s' class='t'/><circle cx='%d' cy='%d' r='3.5' fill='%s'/>", x, y, g->top, c, x, y, c);
  }
}

/* Its words, over all lines. */
static void word_above (const struct grid *g, int i, const struct lie *l, int level)
{
  int y = g->top - 14 - LEVEL * level, x1 = col_x (g, l->last_col) + g->cell_w / 2 - 9 * (level + 1);
  const char *c = page_ink[page_axis[i].ink];
  fprintf (g->f, "<text x='%d' y='%d' style='fill:%s' class='a'>%s %d%s%s%s</text>", x1 + 10, y + 5, c, axis_word (g->p, i), l->n, page_axis[i].axis == AXIS_PP ? " &#8594;" : "",
           g->label && g->label[i].text[0] ? ", " : "", g->label ? g->label[i].text : "");
}

/* At the left: the nodes in which it has members; dashed where it goes on below what is drawn. */
static void bracket_beside (const struct grid *g, int i, const struct lie *l, int level)
{
  int x = g->left - 16 - SIDE * level, y0 = row_y (g, 0) + CELL_H / 2, y1 = row_y (g, l->last_row) + CELL_H / 2;
  const char *c = page_ink[page_axis[i].ink];
  fprintf (g->f, "<path d='M%d %dV%d' stroke='%s' class='l'/>", x, y0, y1, c);
  if (l->hidden) fprintf (g->f, "<path d='M%d %dV%d' stroke='%s' class='l' stroke-dasharray='6 4'/>", x, y1, row_y (g, g->shown) + 6, c);
  for (int k = 0, last = -1; k < l->n; k++) {
    int row = g->p->node_of[l->member[k]], y = row_y (g, row) + CELL_H / 2 + (level ? 5 - 5 * level : 5);
    if (row == last || row >= g->shown) continue;
    last = row;
    fprintf (g->f, "<path d='M%d %dH%d' stroke='%s' class='t'/><circle cx='%d' cy='%d' r='3.5' fill='%s'/>", x, y, g->left, c, x, y, c);
    if (page_axis[i].axis == AXIS_PP && k) fprintf (g->f, "<path d='M%d %dl5 -9h-10z' fill='%s'/>", x, y - 3, c);
  }
  fprintf (g->f, "<text x='%d' y='%d' style='fill:%s' class='p'>%s %d</text>", x, g->top - 12 - 15 * level, c, axis_word (g->p, i), l->n);
  if (g->label && g->label[i].text[0])
    fprintf (g->f, "<text transform='translate(%d %d) rotate(-90)' style='fill:%s' class='r'>%s</text>", x - 6, (y0 + y1) / 2, c, g->label[i].text);
}

static void one_cell (const struct grid *g, int rank)
{
  const struct plan *p = g->p;
  char text[64], fill[40];
  int x = col_x (g, place_in_node (p, rank)), y = row_y (g, p->node_of[rank]);
  coord_text (p, rank, text);
  fprintf (g->f, "<rect x='%d' y='%d' width='%d' height='%d' rx='4' fill='%s' class='c'/>", x, y, g->cell_w, CELL_H, fill_of (stage_of (p, rank), p->stages, fill));
  fprintf (g->f, "<text x='%d' y='%d' class='k'>%s</text><text x='%d' y='%d' class='r'>rank %d</text>", x + g->cell_w / 2, y + 18, text, x + g->cell_w / 2, y + 33, rank);
}

static void draw_grid (const struct plan *p, const struct page_label *label, int nodes, FILE *f)
{
  struct lie lie[PAGE_AXES] = { 0 };
  int ups = 0, sides = 0, up = 0, side = 0;
  bool wide = p->shape.dim[AXIS_DP_REPLICATE] > 1 || p->gpus > 1000, more = nodes < p->nodes;
  for (int i = 0; i < PAGE_AXES; i++) {
    if (!page_is_drawn (p, i)) continue;
    lie[i] = lie_of (p, i, nodes);
    ups += lie[i].in_row;
    sides += lie[i].in_col;
  }
  struct grid g = { p, label, f, MIN (p->m.gpus, p->gpus), 84 + SIDE * sides, MAX (24 + LEVEL * ups, 21 + 15 * sides), wide ? 124 : CELL_W, nodes };
  int w = col_x (&g, g.cols) + (label ? 170 : 60), h = row_y (&g, nodes) + (more ? 30 : 2);
  fprintf (f, "<svg viewBox='0 0 %d %d' style='max-width:%dpx;min-width:%dpx' role='img'>", w, h, w, w * 3 / 4);
  for (int r = 0; r < nodes; r++) {
    int y = row_y (&g, r);
    fprintf (f, "<rect x='%d' y='%d' width='%d' height='%d' rx='7' class='b'/><text x='4' y='%d' class='h'>node %d</text>", g.left - 5, y - 4, g.cols * (g.cell_w + GAP) - GAP + 10, CELL_H + 8, y + 25, r);
  }
  for (int r = 0; r < p->gpus && p->node_of[r] < nodes; r++) one_cell (&g, r);
  for (int i = 0; i < PAGE_AXES; i++) {
    if (lie[i].in_row) bracket_above (&g, i, &lie[i], up++);
    if (lie[i].in_col) bracket_beside (&g, i, &lie[i], side++);
  }
  for (int i = 0, k = 0; i < PAGE_AXES; i++) {
    if (lie[i].in_row) word_above (&g, i, &lie[i], k++);
    xfree (lie[i].member);
  }
  if (more) fprintf (f, "<text x='4' y='%d' class='h'>... and %d more nodes: all of them are below</text>", row_y (&g, nodes) + 20, p->nodes - nodes);
  fputs ("</svg>\n", f);
}

/* Nodes after which the same stages come again: a row of the map holds whole periods. */
static int period (const struct plan *p)
{
  int n = p->gpus / p->shape.dim[p->shape.order[AXIS_N - 1]];
  for (int i = AXIS_N - 1; i > 0 && p->shape.dim[p->shape.order[i]] == 1; i--) n = p->gpus / p->shape.dim[p->shape.order[i - 1]];
  return MAX (1, n / p->m.gpus);
}

/* Every node as a square in the colour of the stage of its first GPU, with a dot where rank 0's group of an axis has a member. */
static void draw_map (const struct plan *p, FILE *f)
{
  int each = period (p), cols = each > 64 ? 64 : each * (64 / each), size = MAX (9, MIN (26, 1280 / MIN (cols, p->nodes)));
  cols = MIN (cols, p->nodes);
  int rows = (int) ceil_div (p->nodes, cols), left = 84, w = left + cols * size + 4, h = rows * size + 4;
  char fill[40];
  fprintf (f, "<h3>all %d nodes: a square is a node of %d GPUs, its colour the pipeline stage of its first GPU; dots mark the groups of rank 0</h3>", p->nodes, p->m.gpus);
  fprintf (f, "<svg viewBox='0 0 %d %d' style='max-width:%dpx;min-width:%dpx' role='img'>", w, h, w, w * 3 / 4);
  for (int n = 0; n < p->nodes; n++) {
    int rank = n * p->m.gpus, x = left + n % cols * size, y = 2 + n / cols * size;
    if (n % cols == 0) fprintf (f, "<text x='4' y='%d' class='s'>node %d</text>", y + size / 2 + 4, n);
    fprintf (f, "<rect x='%d' y='%d' width='%d' height='%d' fill='%s' class='m'/>", x, y, size - 2, size - 2, fill_of (stage_of (p, rank), p->stages, fill));
  }
  int *m = xalloc ((size_t) p->gpus * sizeof (int), "page");
  for (int i = 0, k = 0; i < PAGE_AXES; i++) {
    if (!page_is_drawn (p, i)) continue;
    int n = line_of (p, page_axis[i].axis, m), last = -1;
    for (int j = 0; j < n; j++) {
      int node = p->node_of[m[j]];
      if (node == last) continue;
      last = node;
      fprintf (f, "<circle cx='%d' cy='%d' r='%.1f' fill='%s'/>", left + node % cols * size + (int) ((k + 1) * size / 4.5), 2 + node / cols * size + size / 2 - 1, size / 9.0 + .4,
               page_ink[page_axis[i].ink]);
    }
    k++;
  }
  xfree (m);
  fputs ("</svg>\n", f);
}

/* Per axis: what it cuts, over which link, how many bytes, how long. */
static void axis_table_out (const struct plan *p, FILE *f)
{
  const struct plan_stage *s = &p->stage[0];
  char a[24], b[24], c[24], t[96];
  fputs ("<div class='wide'><table>", f);
  page_heads (f, "axis|cuts|link|#a GPU sends a step|#time at the link|#of it exposed");
  for (int i = 0; i < PAGE_AXES; i++) {
    if (!page_is_drawn (p, i)) continue;
    const struct plan_group *g = &s->group[group_drawn (p, i)];
    double bytes = 0, busy = 0, exposed = 0;
    for (int k = 0; k < s->lines; k++)
      if (page_ink_of (s->line[k].group) == page_ink_of (group_drawn (p, i))) bytes += (double) s->line[k].bytes, busy += s->line[k].busy, exposed += s->line[k].exposed;
    const char *name = page_axis[i].axis == AXIS_DP_SHARD && p->shape.dim[AXIS_DP_REPLICATE] == 1 ? "dp" : axis_table[page_axis[i].axis].name;
    fprintf (f, "<tr><td style='white-space:nowrap'><svg width='34' height='12' viewBox='0 0 34 12'><path d='M2 6H32' stroke='%s' class='l'/><circle cx='6' cy='6' r='3.5' fill='%s'/><circle cx='28' cy='6' r='3.5' fill='%s'/></svg> <b>%s %d</b></td>",
             page_ink[page_axis[i].ink], page_ink[page_axis[i].ink], page_ink[page_axis[i].ink], name, p->shape.dim[page_axis[i].axis]);
    page_cell (f, false, page_axis[i].axis == AXIS_DP_SHARD && p->shape.no_shard ? axis_table[AXIS_DP_REPLICATE].cuts : axis_table[page_axis[i].axis].cuts);
    if (!g->cross) snprintf (t, sizeof t, "%.60s, inside a node", g->link);
    else if (g->sharers > 1) snprintf (t, sizeof t, "%.60s, shared by %d groups", g->link, g->sharers);
    else snprintf (t, sizeof t, "%.60s", g->link);
    page_cell (f, false, t);
    page_cell (f, true, plan_gb (bytes, a));
    page_cell (f, true, page_seconds (busy, b));
    page_cell (f, true, page_seconds (exposed, c));
    fputs ("</tr>\n", f);
  }
  fputs ("</table></div>\n", f);
}

void page_grid (const struct plan *p, const struct page_label *label, FILE *f)
{
  bool whole = p->gpus <= WHOLE && p->nodes <= WHOLE / 8;
  fputs ("<div class='grid wide'>", f);
  draw_grid (p, label, whole ? p->nodes : MIN (p->nodes, MAX (4, MIN (8, period (p)))), f);
  if (!whole) draw_map (p, f);
  fputs ("</div>\n", f);
}

void page_mesh (const struct plan *p, FILE *f)
{
  bool rep = p->shape.dim[AXIS_DP_REPLICATE] > 1;
  fprintf (f, "<section><h2>The mesh</h2><p>Each cell is (%s, pp, tp). Lines are the groups of rank 0; all others lie alike.%s</p>\n", rep ? "replica, shard" : "dp",
           p->stages > 1 ? " Colours are pipeline stages." : "");
  if (p->gpus > 1) axis_table_out (p, f);
  page_grid (p, NULL, f);
  fputs ("</section>\n", f);
}
