/* offload: AdamW on state that lies in pinned host memory. Pieces of master and moments come to the device on one copy queue, are updated there on a queue of
   their own, and leave on another, PLACES of them under way at once; what computes goes on beside them as far as events let it. The same operations on the same
   numbers as without: the same bits. */
#ifndef OFFLOAD_H
#define OFFLOAD_H
#include "arena.h"

enum { OFFLOAD_PLACES = 3, OFFLOAD_PIECE = 8 << 20 };   /* elements */

struct offloader {
  struct dev *d;
  struct queue *in, *opt, *out;
  int64_t piece;
  int next;                         /* place of the next piece */
  struct { float *master, *m, *v; void *weight; struct event *loaded, *done, *left; } place[OFFLOAD_PLACES];
  struct step_vars *vars;           /* of the update under way; the next step overwrites its own */
  struct event *go, *flushed;
};

/* Device memory for pieces of at most PIECE elements; weights: [piece] of type t too, for weights that go to host memory. Run by the layout function. */
void offload_layout (struct offloader *o, struct arenas *A, int64_t piece, bool weights, enum dtype t);
void offload_open (struct offloader *o, struct dev *d);
void offload_close (struct offloader *o);                /* after a drain */

/* An update begins when all that Q was given is done; VARS are copied. hold (may be NULL): host memory is not written before it. */
void offload_begin (struct offloader *o, struct queue *q, const struct step_vars *vars, struct event *hold);
/* A's master, m and v are host addresses, grad a device address; the weights go to A's weight (device) or, where it is not NULL, to HOST. vars are those of the beginning. */
void offload_update (struct offloader *o, const struct op_adamw *a, void *host);
/* EV is done when the weights given so far are where they belong. */
void offload_mark (struct offloader *o, struct event *ev, bool host);
void offload_end (struct offloader *o);
/* Q goes on after the last update has left for the host: master and moments may be read and written there. */
void offload_settle (struct offloader *o, struct queue *q);
#endif
