/* spans: how long collectives took (busy), how long the compute queue waited for them (exposed), and for what phase it worked, by pairs of events that are read when the host
   fetches a step's result. While a trace is on, each pair is a span of it too. */
#include "cuda.h"
#include <string.h>

struct span { cudaEvent_t e[2]; double *to, *also; bool ended, read; struct dev_span about; };

/* A ring in the order of issue: spans first .. last - 1, number i at i & (room - 1). */
struct spans {
  struct span *s;
  int64_t first, last, room;
  int64_t open;               /* the phase under way; -1: none */
  cudaEvent_t base;           /* of a trace: an event, and when the host saw it */
  double base_host;
};

static struct span *at (struct spans *a, int64_t i) { return &a->s[i & (a->room - 1)]; }

void spans_open (struct cuda *c)
{
  c->spans = H->xalloc (sizeof *c->spans, "spans");
  c->spans->open = -1;
  CU (cudaEventCreate (&c->spans->base));
}

void spans_close (struct cuda *c)
{
  struct spans *a = c->spans;
  for (int64_t i = 0; i < a->room; i++)
    for (int k = 0; k < 2; k++) cudaEventDestroy (a->s[i].e[k]);
  cudaEventDestroy (a->base);
  H->xfree (a->s);
  H->xfree (a);
}

/* All events of the ring are in use when it grows. */
static void grow (struct spans *a)
{
  int64_t room = a->room ? 2 * a->room : 256;
  struct span *s = H->xalloc ((size_t) room * sizeof *s, "spans");
  for (int64_t i = a->first; i < a->last; i++) s[i & (room - 1)] = *at (a, i);
  for (int64_t i = a->last; i < a->first + room; i++)
    for (int k = 0; k < 2; k++) CU (cudaEventCreate (&s[i & (room - 1)].e[k]));
  H->xfree (a->s);
  a->s = s;
  a->room = room;
}

int64_t spans_begin (struct cuda *c, struct queue *q, double *to, double *also, const struct dev_span *about)
{
  struct spans *a = c->spans;
  if (a->last - a->first == a->room) grow (a);
  struct span *s = at (a, a->last);
  s->to = to;
  s->also = also;
  s->ended = s->read = false;
  s->about = *about;
  s->about.queue = q->name;
  CU (cudaEventRecord (s->e[0], q->s));
  return a->last++;
}

void spans_end (struct cuda *c, struct queue *q, int64_t i)
{
  struct span *s = at (c->spans, i);
  CU (cudaEventRecord (s->e[1], q->s));
  s->ended = true;
}

/* The host's time of event E of a trace. */
static double host_time (const struct spans *a, cudaEvent_t e)
{
  float ms = 0;
  CU (cudaEventElapsedTime (&ms, a->base, e));
  return a->base_host + 1e-3 * (double) ms;
}

static void trace (struct dev *d, const struct spans *a, const struct span *s)
{
  struct dev_span x = s->about;
  x.begin = host_time (a, s->e[0]);
  x.end = host_time (a, s->e[1]);
  H->dev_span_add (d, &x);
}

/* Is S over and not in the figures yet? Then it is now. */
static void read_one (struct dev *d, const struct spans *a, struct span *s)
{
  float ms = 0;
  if (s->read || !s->ended) return;
  cudaError_t r = cudaEventElapsedTime (&ms, s->e[0], s->e[1]);
  if (r == cudaErrorNotReady) return;
  CU (r);
  if (s->to) *s->to += 1e-3 * (double) ms;
  if (s->also) *s->also += 1e-3 * (double) ms;
  if (d->trace.on) trace (d, a, s);
  s->read = true;
}

/* A send that its peer has not taken yet holds back no other. */
void spans_read (struct dev *d)
{
  struct spans *a = ((struct cuda *) d->impl)->spans;
  for (int64_t i = a->first; i < a->last; i++) read_one (d, a, at (a, i));
  while (a->first < a->last && at (a, a->first)->read) a->first++;
  cudaGetLastError ();   /* not ready is no error */
}

/* A group goes: nothing may be added to its figures later. The device is idle or the job is ending. */
void spans_forget (struct dev *d)
{
  struct spans *a = ((struct cuda *) d->impl)->spans;
  spans_read (d);
  a->first = a->last;
  a->open = -1;
}

/* ---- phases and traces ---- */

void cuda_phase (struct dev *d, struct queue *q, enum step_phase p, int32_t tag)
{
  struct cuda *c = d->impl;
  struct spans *a = c->spans;
  if (d->recording) return;
  if (a->open >= 0) {
    spans_end (c, q, a->open);
    range_end ();
  }
  a->open = -1;
  c->phase = p;
  if (p == PHASE_NONE) return;
  a->open = spans_begin (c, q, &d->phase[p].seconds, NULL, &(struct dev_span) { .kind = SPAN_PHASE, .name = H->phase_name (p), .tag = tag });
  range_begin (H->phase_name (p));
}

/* An event now, and between which of the host's times it came to pass. */
static void set_base (struct dev *d, struct spans *a, cudaStream_t s)
{
  double best = 1e9;
  for (int i = 0; i < 16; i++) {   /* elapsed times are taken from the last record of an event: it has to be a quick one */
    double t0 = H->now ();
    CU (cudaEventRecord (a->base, s));
    CU (cudaEventSynchronize (a->base));
    double t = H->now () - t0;
    a->base_host = t0 + t / 2;
    d->trace.error = t / 2;
    if (i >= 8 && t <= 1.5 * best) return;
    if (t < best) best = t;
  }
}

void cuda_trace (struct dev *d, bool on)
{
  struct cuda *c = d->impl;
  spans_read (d);
  if (on && c->queues) set_base (d, c->spans, c->queues->s);
}
