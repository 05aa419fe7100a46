/* The picture of the mesh: pure, of (shape, node map) alone, so that the plan of 16,384 ranks and the start of 8 draw with the
   same hand. */
#include "config.h"
#include "mesh.h"
#include <string.h>

enum { PER_LINE = 8, ALL_SHOWN = 64, HEAD_LINES = 6, TAIL_LINES = 2 };   /* up to 64 ranks every one is shown */

/* Ranks of each node, ascending: rank of node n are list[start[n] .. start[n + 1]). */
struct places { int nodes, *start, *list; };

static struct places places_make (const int *node, int world)
{
  struct places p = { 0 };
  for (int r = 0; r < world; r++) p.nodes = MAX (p.nodes, node[r] + 1);
  p.start = xalloc ((size_t) (p.nodes + 2) * sizeof (int), "mesh");
  p.list = xalloc ((size_t) world * sizeof (int), "mesh");
  for (int r = 0; r < world; r++) p.start[node[r] + 2]++;   /* counts, two further on, so that filling leaves the starts */
  for (int n = 0; n < p.nodes; n++) p.start[n + 2] += p.start[n + 1];
  for (int r = 0; r < world; r++) p.list[p.start[node[r] + 1]++] = r;
  return p;
}

static void places_free (struct places *p)
{
  xfree (p->start);
  xfree (p->list);
}

void mesh_ranks_text (const int *r, int n, char *out, size_t size)
{
  bool dense = n > 2 && r[n - 1] - r[0] == n - 1;
  for (int i = 1; i < n; i++) dense &= r[i] == r[i - 1] + 1;
  if (n == 1) snprintf (out, size, "%d", r[0]);
  else if (dense) snprintf (out, size, "%d-%d", r[0], r[n - 1]);
  else if (n > PER_LINE) snprintf (out, size, "%d, %d, %d, ..., %d", r[0], r[1], r[2], r[n - 1]);
  else
    for (int i = 0, at = 0; i < n; i++) at += snprintf (out + at, size - at, "%s%d", i ? ", " : "", r[i]);
}

static void cell_text (const struct mesh_shape *s, int rank, char *out, size_t size)
{
  int c[AXIS_N];
  mesh_coord (s, rank, c);
  if (s->dim[AXIS_DP_REPLICATE] > 1)
    snprintf (out, size, "(%d,%d,%d,%d)", c[AXIS_DP_REPLICATE], c[AXIS_DP_SHARD], c[AXIS_PP], c[AXIS_TP]);
  else snprintf (out, size, "(%d,%d,%d)", c[AXIS_DP_SHARD], c[AXIS_PP], c[AXIS_TP]);
}

/* Widest cell: the last coordinates have the most digits. */
static int cell_width (const struct mesh_shape *s)
{
  char text[64];
  cell_text (s, mesh_world (s) - 1, text, sizeof text);
  return (int) strlen (text);
}

static const enum axis listed[AXIS_N] = { AXIS_TP, AXIS_PP, AXIS_DP_SHARD, AXIS_DP_REPLICATE };

/* How far rank 0's group along axis A reaches: its last node, and whether it has a member on NODE. */
static int reach (const struct mesh_shape *s, enum axis a, const int *node_of, int node, bool *here)
{
  int c[AXIS_N] = { 0 }, last = 0;
  *here = false;
  for (int i = 0; i < s->dim[a]; i++) {
    c[a] = i;
    int n = node_of[mesh_rank (s, c)];
    *here |= n == node;
    last = MAX (last, n);
  }
  return last;
}

/* "p d ": a column for each axis that leaves node 0. */
static void put_marks (const struct mesh_shape *s, const int *node_of, int node, bool first, FILE *f)
{
  for (int i = 0; i < AXIS_N; i++) {
    enum axis a = listed[i];
    bool here;
    int last = s->dim[a] > 1 ? reach (s, a, node_of, node, &here) : 0;
    char letter = a == AXIS_DP_REPLICATE ? 'r' : axis_table[a].name[0];
    if (last) fprintf (f, "%c ", here && first ? letter : node < last || (node == last && first) ? '|' : ' ');
  }
}

static void draw_line (const struct mesh_shape *s, const struct places *p, const int *marks, int node, int first, int width, FILE *f)
{
  int from = p->start[node] + first, to = MIN (from + PER_LINE, p->start[node + 1]);
  char label[32] = "", ranks[96], cell[64];
  if (!first) snprintf (label, sizeof label, "node %d", node);
  mesh_ranks_text (p->list + from, to - from, ranks, sizeof ranks);
  fprintf (f, "  %-9s", label);
  if (marks) put_marks (s, marks, node, !first, f);
  for (int i = from; i < to; i++) {
    cell_text (s, p->list[i], cell, sizeof cell);
    fprintf (f, " %-*s", width, cell);
  }
  fprintf (f, "  rank%s %s\n", to - from > 1 ? "s" : "", ranks);
}

static void draw_nodes (const struct mesh_shape *s, const struct places *p, const int *marks, FILE *f)
{
  int lines = 0, line = 0, width = cell_width (s), world = mesh_world (s);
  for (int n = 0; n < p->nodes; n++) lines += (int) ceil_div (p->start[n + 1] - p->start[n], PER_LINE);
  for (int n = 0; n < p->nodes; n++)
    for (int i = 0; i < p->start[n + 1] - p->start[n]; i += PER_LINE, line++) {
      bool hidden = world > ALL_SHOWN && line >= HEAD_LINES && line < lines - TAIL_LINES;
      if (!hidden) draw_line (s, p, marks, n, i, width, f);
      else if (line == HEAD_LINES) fprintf (f, "  ...\n");
    }
}

/* How many groups along an axis have ranks on more than one node. */
static int crossing (const struct mesh_shape *s, enum axis a, const int *node)
{
  int c[AXIS_N], world = mesh_world (s), n = 0;
  for (int r = 0; r < world; r++) {
    mesh_coord (s, r, c);
    if (c[a]) continue;
    bool cross = false;
    for (int i = 1; i < s->dim[a] && !cross; i++) {
      c[a] = i;
      cross = node[mesh_rank (s, c)] != node[r];
    }
    n += cross;
  }
  return n;
}

static void draw_axis (const struct mesh_shape *s, enum axis a, const int *node, FILE *f)
{
  int c[AXIS_N] = { 0 }, n = s->dim[a], groups = mesh_world (s) / n, cross = crossing (s, a, node);
  int *member = xalloc ((size_t) n * sizeof (int), "mesh");
  for (int i = 0; i < n; i++) {
    c[a] = i;
    member[i] = mesh_rank (s, c);
  }
  char ranks[96], name[32], where[96] = "inside a node";
  mesh_ranks_text (member, n, ranks, sizeof ranks);
  xfree (member);
  bool rep = s->dim[AXIS_DP_REPLICATE] > 1;
  snprintf (name, sizeof name, "%s %d", a == AXIS_DP_SHARD && !rep ? "dp" : axis_table[a].name, n);
  if (cross) snprintf (where, sizeof where, "crosses nodes: %d of %d groups", cross, groups);
  int where_width = mesh_world (s) > 1000 ? 37 : 32;
  fprintf (f, "  %-*s %-*s ranks %s%s; cuts %s\n", rep ? 14 : 9, name, where_width, where, ranks, groups > 1 ? ", ..." : "",
           a == AXIS_DP_SHARD && s->no_shard ? axis_table[AXIS_DP_REPLICATE].cuts : axis_table[a].cuts);
}

static void draw_title (const struct mesh_shape *s, int nodes, FILE *f)
{
  bool rep = s->dim[AXIS_DP_REPLICATE] > 1;
  fprintf (f, "mesh: ");
  if (rep) fprintf (f, "dp_replicate %d x dp_shard %d", s->dim[AXIS_DP_REPLICATE], s->dim[AXIS_DP_SHARD]);
  else fprintf (f, "dp %d", s->dim[AXIS_DP_SHARD]);
  fprintf (f, " x pp %d x tp %d = %d rank%s on %d node%s; each cell is (%s,pp,tp)\n", s->dim[AXIS_PP], s->dim[AXIS_TP],
           mesh_world (s), mesh_world (s) > 1 ? "s" : "", nodes, nodes > 1 ? "s" : "", rep ? "rep,shard" : "dp");
}

static void draw (const struct mesh_shape *s, const int *node, bool marked, void (*say) (void *ctx, enum axis a, FILE *f), void *ctx, FILE *f)
{
  struct places p = places_make (node, mesh_world (s));
  draw_title (s, p.nodes, f);
  draw_nodes (s, &p, marked ? node : NULL, f);
  for (int i = 0; i < AXIS_N; i++) {
    if (s->dim[listed[i]] == 1) continue;
    draw_axis (s, listed[i], node, f);
    if (say) say (ctx, listed[i], f);
  }
  places_free (&p);
}

void mesh_draw (const struct mesh_shape *s, const int *node, FILE *f) { draw (s, node, false, NULL, NULL, f); }

void mesh_draw_marked (const struct mesh_shape *s, const int *node, void (*say) (void *ctx, enum axis a, FILE *f), void *ctx, FILE *f)
{
  draw (s, node, true, say, ctx, f);
}
