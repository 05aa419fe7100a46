#include "chan.h"
#include <string.h>

void chans_layout (struct chans *cs, struct arenas *A, const int n[GROUP_N], bool wire)
{
  const struct dev_limits *l = A->d->ops->limits;
  for (int k = 0; k < GROUP_N; k++) {
    bool gradients = k == GROUP_SHARD || k == GROUP_REP || k == GROUP_TIED;
    cs->stage_bytes[k] = wire && gradients ? l->wire_stage : l->comm_stage;
    cs->stage[k] = n[k] > 1 ? arena_take (A, MEM_COMM, SPACE_DEVICE, cs->stage_bytes[k]) : NULL;
  }
}

void chans_open (struct chans *cs, struct dev *d, struct queue *q, bool overlap, const enum group_kind order[GROUP_N],
                 void (*spec) (void *, enum group_kind, struct group_spec *), void *ctx)
{
  cs->d = d;
  cs->q = q;
  cs->overlap = overlap;
  for (int i = 0; i < GROUP_N; i++) {
    enum group_kind k = order[i];
    struct chan *c = &cs->c[k];
    struct group_spec s = { .kind = k };
    spec (ctx, k, &s);
    *c = (struct chan) { .kind = k, .n = s.n, .rank = s.rank };
    if (s.n < 2) continue;
    s.stage = cs->stage[k];
    s.stage_bytes = cs->stage_bytes[k];
    c->g = d->ops->group_open (d, &s);
    c->q = d->ops->queue_open (d, QUEUE_COMM, group_name (k), NULL, 0);
    c->ready = d->ops->event_open (d);
    c->done = d->ops->event_open (d);
    for (int i = 0; i < CHAN_MARKS && k == GROUP_TP; i++) c->mark[i] = d->ops->event_open (d);
  }
}

void chans_close (struct chans *cs)
{
  for (int k = GROUP_N - 1; k >= 0; k--) {
    struct chan *c = &cs->c[k];
    if (!c->g) continue;
    cs->d->ops->queue_close (cs->d, c->q);
    cs->d->ops->event_close (cs->d, c->ready);
    cs->d->ops->event_close (cs->d, c->done);
    for (int i = 0; i < CHAN_MARKS && c->mark[i]; i++) cs->d->ops->event_close (cs->d, c->mark[i]);
    cs->d->ops->group_close (cs->d, c->g);
    memset (c, 0, sizeof *c);
  }
}

void chan_after (struct chans *cs, enum group_kind k)
{
  struct chan *c = &cs->c[k];
  if (!c->g) return;
  cs->d->ops->record (cs->d, cs->q, c->ready);
  cs->d->ops->wait (cs->d, c->q, c->ready);
}

void chan_wait (struct chans *cs, enum group_kind k)
{
  struct chan *c = &cs->c[k];
  if (!c->g) return;
  cs->d->ops->record (cs->d, c->q, c->done);
  cs->d->ops->wait (cs->d, cs->q, c->done);
}

void chan_mark (struct chans *cs, enum group_kind k, int i)
{
  struct chan *c = &cs->c[k];
  if (c->g) cs->d->ops->record (cs->d, c->q, c->mark[i]);
}

void chan_wait_mark (struct chans *cs, enum group_kind k, int i)
{
  struct chan *c = &cs->c[k];
  if (c->g) cs->d->ops->wait (cs->d, cs->q, c->mark[i]);
}

static void issue (struct chans *cs, enum group_kind k, enum op_kind kind, struct op_coll coll)
{
  struct chan *c = &cs->c[k];
  chan_after (cs, k);
  coll.g = c->g;
  dev_issue (cs->d, c->q, &(struct op) { .kind = kind, .coll = coll });
  /* A send's peer may still be computing: waiting here for it would order more than the schedule does. */
  if (!cs->overlap && kind != OP_SEND && kind != OP_RECV) chan_wait (cs, k);
}

void chan_gather (struct chans *cs, enum group_kind k, const void *in, void *out, int64_t count, enum dtype t)
{
  issue (cs, k, OP_ALL_GATHER, (struct op_coll) { .in = in, .out = out, .count = count, .t = t, .it = t, .ot = t });
}

void chan_scatter (struct chans *cs, enum group_kind k, const void *in, void *out, int64_t count, enum dtype wire, enum dtype it, enum dtype ot, float beta)
{
  issue (cs, k, OP_REDUCE_SCATTER, (struct op_coll) { .in = in, .out = out, .count = count, .t = wire, .it = it, .ot = ot, .beta = beta });
}

void chan_reduce (struct chans *cs, enum group_kind k, void *x, int64_t count, enum dtype wire, enum dtype t, bool max)
{
  issue (cs, k, OP_ALL_REDUCE, (struct op_coll) { .out = x, .count = count, .t = wire, .it = t, .ot = t, .max = max });
}

void chan_send (struct chans *cs, enum group_kind k, const void *x, int64_t count, enum dtype t)
{
  issue (cs, k, OP_SEND, (struct op_coll) { .in = x, .count = count, .t = t, .it = t, .ot = t });
}

void chan_recv (struct chans *cs, enum group_kind k, void *x, int64_t count, enum dtype t)
{
  issue (cs, k, OP_RECV, (struct op_coll) { .out = x, .count = count, .t = t, .it = t, .ot = t });
}
