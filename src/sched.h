/* sched: pipeline schedules as data. Pure: no MPI, no device.

   A schedule is, for each stage, an array of actions that one interpreter (step.c) runs in order. A stage holds `chunks` model chunks
   (1, or more for interleaved schedules); virtual stage v = chunk * pp + stage. Sources: GPipe (Huang et al. 2019); 1F1B, PipeDream-flush (Narayanan et al. 2021,
   arXiv:2104.04473); interleaved 1F1B (the same); ZB-H1 (Qi et al. 2023, arXiv:2401.10241). */
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
  bool forward_only;    /* evaluation: F, SEND_F, RECV_F only */
  int *count;           /* [pp] */
  struct action **act;  /* [pp][count[stage]] */
  int *in_flight;       /* [pp * chunks]: most micro-batches of a chunk whose activations live at once (F done, backward not) on stage s: in_flight[s * chunks + c] */
};

/* Make a schedule. 0, or -1 with the sentence (interleaved: mbs must be a multiple of pp; chunks > 1 only there). */
int  sched_make (struct sched *s, int kind, int pp, int chunks, int mbs, bool forward_only, struct err *e);
void sched_free (struct sched *s);

/* Would it end? Zero-buffer rendezvous: SEND and RECV complete together, each directed link (from, to, direction) is an in-order queue of its
   own; issue == false: a stage blocks at each SEND/RECV until it is matched (synchronous), true: SENDs are queued and a stage blocks only where it uses what it receives.
   Also checks that each F and B happens exactly once per (mb, chunk), in the order of dependencies, B_WEIGHT after B_INPUT, OPT last. 0, or -1 naming stage and action. */
int  sched_check (const struct sched *s, bool issue, struct err *e);

/* Draw as text, one row a stage, time to the right, with unit costs tf, tb, tw for F, B_INPUT, B_WEIGHT (B = tb + tw). Prints the bubble share. */
void sched_draw (const struct sched *s, int tf, int tb, int tw, FILE *f);
/* Idle share of the slowest stage's span under the same unit costs: (pp - 1) / (mbs + pp - 1) for 1F1B with tb + tw = 2 tf. */
double sched_bubble (const struct sched *s, int tf, int tb, int tw);

const char *act_name (int kind);
#endif
