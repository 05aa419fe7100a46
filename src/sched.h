/* sched: pipeline schedules as data. Pure: no MPI, no device.

   A schedule is, for each stage, an array of actions that one interpreter (step.c) runs in order. A stage holds `chunks` model
   chunks (1, or more for interleaved schedules); virtual stage v = chunk * pp + stage. Sources: GPipe (Huang et al. 2019); 1F1B,
   PipeDream-flush (Narayanan et al. 2021, arXiv:2104.04473); interleaved 1F1B (the same); ZB-H1 (Qi et al. 2023,
   arXiv:2401.10241). */
#ifndef SCHED_H
#define SCHED_H
#include <stdio.h>
#include "base.h"

enum act_kind {
  ACT_F,          /* forward of micro-batch mb through chunk */
  ACT_B,          /* whole backward */
  ACT_B_INPUT,    /* backward by input */
  ACT_B_WEIGHT,   /* backward by weight, after B_INPUT of the same mb and chunk */
  ACT_SEND_F, ACT_RECV_F,   /* activations to / from the neighbour (virtual stage + 1 / - 1) */
  ACT_SEND_B, ACT_RECV_B,   /* gradients to / from the neighbour (virtual stage - 1 / + 1) */
  ACT_GATHER, ACT_RELEASE,  /* weights of chunk are gathered for / let go after a run of uses (mb = -1) */
  ACT_REDUCE,     /* gradients of chunk are complete for this step: the last reduction may start */
  ACT_OPT,        /* optimizer step */
  ACT_N
};

struct action { int16_t kind; int16_t chunk; int32_t mb; int16_t peer; };   /* peer: stage to send to or receive from, else -1 */

struct sched {
  int kind;             /* enum schedule_kind of conf.h */
  int pp, chunks, mbs;  /* stages, chunks a stage, micro-batches a step */
  bool forward_only;    /* evaluation: no backward, no REDUCE, no OPT */
  int *count;           /* [pp] */
  struct action **act;  /* [pp][count[stage]] */
  int *in_flight;       /* [pp * chunks]: most micro-batches of a chunk whose activations live at once (F begun, backward not
                           ended) on stage s: in_flight[s * chunks + c]; 1 in evaluation */
  int *recv_ahead;      /* [pp]: most RECVs posted and not yet used at once, the buffers that receiving needs: 1, interleaved 2 */
};

/* Where the actions stand. A SEND comes right after the F, B or B_INPUT that makes its data; a RECV right after the F, B or
   B_INPUT before the one that uses its data, or (interleaved, now and then) after an earlier one. So a row reads:
   computation, its SEND and the RECV of the next in either order, B_WEIGHTs if any, next computation. The order is one in
   which even fully blocking sends end, for every schedule: sched_make plays such a run and writes down what it sees. GATHER
   of the first chunk comes first; where a chunk follows another: RELEASE, GATHER, use. REDUCE of a chunk follows its last B
   or B_WEIGHT and that one's SEND (in evaluation there is none); then RELEASE; OPT last (chunk and mb -1). Gradients of a
   chunk are added in the order of micro-batches in every schedule. */

/* Make a schedule. 0, or -1 with the sentence (interleaved: pp and chunks of 2 or more, mbs a multiple of pp unless forward_only;
   chunks > 1 only there). ZB-H1 is made for equal times of F, B_INPUT and B_WEIGHT. */
int  sched_make (struct sched *s, int kind, int pp, int chunks, int mbs, bool forward_only, struct err *e);
void sched_free (struct sched *s);

/* Would it end? Zero-buffer rendezvous: SEND and RECV complete together, each directed link (from, to, direction) is an in-
   order queue of its own; issue == false: a stage blocks at each SEND/RECV until it is matched (synchronous), true: SENDs
   and RECVs are queued and a stage blocks only where it uses what it receives. What passes false passes every waiting
   between the two: it is constrained most. Also checks that each F and B happens exactly once per (mb, chunk), in the order
   of dependencies, B_WEIGHT after B_INPUT, uses between GATHER and RELEASE, REDUCE after the chunk's last backward, OPT
   last. 0, or -1 naming stage, index and action; of a deadlock the ring of waits. */
int  sched_check (const struct sched *s, bool issue, struct err *e);

/* Begin of each action under unit costs tf, tb, tw for F, B_INPUT, B_WEIGHT (B = tb + tw), sending free:
   start[stage][index], the caller's arrays, or start NULL. issue as above. Returns the span; -1 if it never ends. For a
   schedule that sched_check accepts. */
int64_t sched_times (const struct sched *s, bool issue, int tf, int tb, int tw, int64_t **start);

/* Draw as text, one row a stage, time to the right, under the same costs; a dot is idle time. I is B_INPUT, W is B_WEIGHT;
   a letter after the micro-batch is the chunk. Prints the bubble share. */
void sched_draw (const struct sched *s, int tf, int tb, int tw, FILE *f);
/* Idle share of the slowest stage's span under the same unit costs: (pp - 1) / (mbs + pp - 1) for 1F1B with tb + tw = 2 tf. */
double sched_bubble (const struct sched *s, int tf, int tb, int tw);

const char *act_name (int kind);
/* `stage 1, action 7 (SEND_B of micro-batch 0, chunk 1, to stage 0)` into OUT; returns OUT. */
char *act_text (const struct sched *s, int stage, int index, char out[static 128]);
#endif
