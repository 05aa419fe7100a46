/* chan: the channels of a rank: each group that it communicates in, with its queue, and the order between that queue and the compute queue.

   A group of one member has no channel: chan_n is 1 and nothing is issued. */
#ifndef CHAN_H
#define CHAN_H
#include "arena.h"

enum { CHAN_MARKS = 16 };

struct chan {
  enum group_kind kind;
  int n, rank;
  struct group *g;
  struct queue *q;
  struct event *ready, *done;   /* compute -> channel, channel -> compute */
  struct event *mark[CHAN_MARKS];   /* tp: parts of a gather have come */
};

struct chans {
  struct dev *d;
  struct queue *q;              /* the compute queue */
  struct chan c[GROUP_N];
  bool overlap;                 /* off: the compute queue waits for each operation as soon as it is issued */
  void *stage[GROUP_N];
  int64_t stage_bytes[GROUP_N];
};

/* Staging memory of the groups with n[k] > 1; run by the layout function. wire: gradients travel in another type than they are kept in. */
void chans_layout (struct chans *cs, struct arenas *A, const int n[GROUP_N], bool wire);
/* Open the channels in this order of kinds, which lets no two ranks wait for each other. spec (ctx, k, &s) fills the group's description (stage is set here).
   Collective over every group. */
void chans_open (struct chans *cs, struct dev *d, struct queue *q, bool overlap, const enum group_kind order[GROUP_N], void (*spec) (void *ctx, enum group_kind k, struct group_spec *s), void *ctx);
void chans_close (struct chans *cs);

/* Channel K's queue goes on after what the compute queue was given so far; the other way round. No-ops where n is 1. */
void chan_after (struct chans *cs, enum group_kind k);
void chan_wait (struct chans *cs, enum group_kind k);
/* Mark I of channel K: what it was given so far; the compute queue goes on after it. Of GROUP_TP. */
void chan_mark (struct chans *cs, enum group_kind k, int i);
void chan_wait_mark (struct chans *cs, enum group_kind k, int i);

/* Issue a collective on channel K after what is on the compute queue so far. The caller orders the compute queue after it by chan_wait, or by an event of its own (record on chan q). */
void chan_gather (struct chans *cs, enum group_kind k, const void *in, void *out, int64_t count, enum dtype t);
void chan_scatter (struct chans *cs, enum group_kind k, const void *in, void *out, int64_t count, enum dtype wire, enum dtype it, enum dtype ot, float beta);
void chan_reduce (struct chans *cs, enum group_kind k, void *x, int64_t count, enum dtype wire, enum dtype t, bool max);
void chan_send (struct chans *cs, enum group_kind k, const void *x, int64_t count, enum dtype t);
void chan_recv (struct chans *cs, enum group_kind k, void *x, int64_t count, enum dtype t);
#endif
