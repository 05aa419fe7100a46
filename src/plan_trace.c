/* A plan as a trace for Chrome's about:tracing and Perfetto: a process a stage, a thread for computation and one for each group that communicates. */
#include "config.h"
#include "plan.h"
#include <jansson.h>
#include <stdio.h>

static void event (FILE *f, bool *first, json_t *o)
{
  must (o, "out of host memory for the trace");
  fputs (*first ? "\n" : ",\n", f);
  *first = false;
  json_dumpf (o, f, JSON_COMPACT | JSON_REAL_PRECISION (12));
  json_decref (o);
}

static void names (const struct plan *p, int stage, FILE *f, bool *first)
{
  const struct plan_stage *s = &p->stage[stage];
  bool used[GROUP_N + 1] = { true };
  char text[128];
  for (int i = 0; i < s->spans; i++) used[s->span[i].lane] = true;
  snprintf (text, sizeof text, "stage %d: %lld layers, rank %d", stage, (long long) s->layers, s->rank);
  event (f, first, json_pack ("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", "process_name", "pid", stage, "tid", 0, "args", "name", text));
  event (f, first, json_pack ("{s:s, s:s, s:i, s:i, s:{s:i}}", "ph", "M", "name", "process_sort_index", "pid", stage, "tid", 0, "args", "sort_index", stage));
  for (int k = 0; k <= GROUP_N; k++) {
    if (!used[k]) continue;
    if (k) snprintf (text, sizeof text, "%s: %s on %s", plan_axis (k - 1), group_name (k - 1), s->group[k - 1].link ? s->group[k - 1].link : "?");
    else snprintf (text, sizeof text, "computation");
    event (f, first, json_pack ("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", "thread_name", "pid", stage, "tid", k, "args", "name", text));
  }
}

/* Times in microseconds, as the format has them. */
static void span (const struct plan_span *a, int stage, FILE *f, bool *first)
{
  char name[64];
  if (a->lane) snprintf (name, sizeof name, "%s", op_name (a->op));
  else if (a->mb >= 0) snprintf (name, sizeof name, "%s %d", act_name (a->act), a->mb);
  else snprintf (name, sizeof name, "%s", act_name (a->act));
  event (f, first, json_pack ("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:{s:i, s:i}}", "ph", "X", "name", name, "cat", a->lane ? "link" : "compute", "pid", stage, "tid", a->lane,
                              "ts", 1e6 * a->begin, "dur", 1e6 * (a->end - a->begin), "args", "micro_batch", (int) a->mb, "chunk", (int) a->chunk));
}

void plan_trace (const struct plan *p, FILE *f)
{
  bool first = true;
  fputs ("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", f);
  for (int i = 0; i < p->stages; i++) {
    names (p, i, f, &first);
    for (int k = 0; k < p->stage[i].spans; k++) span (&p->stage[i].span[k], i, f, &first);
  }
  fputs ("\n]}\n", f);
}
