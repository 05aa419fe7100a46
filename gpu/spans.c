/* spans: how long collectives took (busy) and how long the compute queue waited for them (exposed), by pairs of events that are read when the host fetches a step's result. */
#include "cuda.h"
#include <string.h>

struct span { cudaEvent_t e[2]; struct coll_stat *stat; bool exposed; };

/* In the order of issue, from first on, around the end of the array. */
struct spans { struct span *s; int first, n, room; };

void spans_open (struct cuda *c) { c->spans = H->xalloc (sizeof *c->spans, "spans"); }

void spans_close (struct cuda *c)
{
  struct spans *a = c->spans;
  for (int i = 0; i < a->room; i++)
    for (int k = 0; k < 2; k++) cudaEventDestroy (a->s[i].e[k]);
  H->xfree (a->s);
  H->xfree (a);
}

static void grow (struct spans *a)
{
  int room = a->room ? 2 * a->room : 256;
  struct span *s = H->xalloc ((size_t) room * sizeof *s, "spans");
  for (int i = 0; i < a->n; i++) s[i] = a->s[(a->first + i) % a->room];
  for (int i = a->n; i < room; i++)
    for (int k = 0; k < 2; k++) CU (cudaEventCreate (&s[i].e[k]));
  H->xfree (a->s);
  a->s = s;
  a->first = 0;
  a->room = room;
}

/* All events of the array are in use when it grows, so that none is lost: n is room then. */
int spans_begin (struct cuda *c, struct queue *q, struct coll_stat *stat, bool exposed)
{
  struct spans *a = c->spans;
  if (a->n == a->room) grow (a);
  int i = (a->first + a->n++) % a->room;
  a->s[i].stat = stat;
  a->s[i].exposed = exposed;
  CU (cudaEventRecord (a->s[i].e[0], q->s));
  return i;
}

void spans_end (struct cuda *c, struct queue *q, int i) { CU (cudaEventRecord (c->spans->s[i].e[1], q->s)); }

/* What is over, oldest first, into the figures of its group. */
void spans_read (struct cuda *c)
{
  struct spans *a = c->spans;
  while (a->n) {
    struct span *s = &a->s[a->first];
    float ms = 0;
    cudaError_t r = cudaEventElapsedTime (&ms, s->e[0], s->e[1]);
    if (r == cudaErrorNotReady) break;
    CU (r);
    *(s->exposed ? &s->stat->exposed : &s->stat->busy) += 1e-3 * (double) ms;
    a->first = (a->first + 1) % a->room;
    a->n--;
  }
  cudaGetLastError ();   /* not ready is no error */
}

/* A group goes: nothing may be added to its figures later. The device is idle or the job is ending. */
void spans_forget (struct cuda *c) { spans_read (c), c->spans->n = 0; }
