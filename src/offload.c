#include "config.h"
#include "offload.h"

void offload_layout (struct offloader *o, struct arenas *A, int64_t piece, bool weights, enum dtype t)
{
  o->piece = piece;
  for (int i = 0; i < OFFLOAD_PLACES; i++) {
    o->place[i].master = arena_tensor (A, MEM_STAGE, piece, DT_F32);
    o->place[i].m = arena_tensor (A, MEM_STAGE, piece, DT_F32);
    o->place[i].v = arena_tensor (A, MEM_STAGE, piece, DT_F32);
    o->place[i].weight = weights ? arena_tensor (A, MEM_STAGE, piece, t) : NULL;
  }
  o->vars = arena_take (A, MEM_WORK, SPACE_DEVICE, sizeof *o->vars);
}

void offload_open (struct offloader *o, struct dev *d)
{
  const struct dev_ops *ops = d->ops;
  o->d = d;
  o->in = ops->queue_open (d, QUEUE_COPY, "offload in", NULL, 0);
  o->opt = ops->queue_open (d, QUEUE_HOST, "optimizer", NULL, 0);
  o->out = ops->queue_open (d, QUEUE_COPY, "offload out", NULL, 0);
  o->go = ops->event_open (d);
  o->flushed = ops->event_open (d);
  for (int i = 0; i < OFFLOAD_PLACES; i++) {
    o->place[i].loaded = ops->event_open (d);
    o->place[i].done = ops->event_open (d);
    o->place[i].left = ops->event_open (d);
  }
}

void offload_close (struct offloader *o)
{
  if (!o->d) return;
  const struct dev_ops *ops = o->d->ops;
  for (int i = 0; i < OFFLOAD_PLACES; i++) {
    ops->event_close (o->d, o->place[i].loaded);
    ops->event_close (o->d, o->place[i].done);
    ops->event_close (o->d, o->place[i].left);
  }
  ops->event_close (o->d, o->go);
  ops->event_close (o->d, o->flushed);
  ops->queue_close (o->d, o->in);
  ops->queue_close (o->d, o->opt);
  ops->queue_close (o->d, o->out);
  o->d = NULL;
}

/* The first pieces come in while the queue still computes: only their updates wait for it. */
void offload_begin (struct offloader *o, struct queue *q, const struct step_vars *vars, struct event *hold)
{
  const struct dev_ops *ops = o->d->ops;
  offload_settle (o, q);
  dev_op (o->d, q, OP_COPY, copy, .dst = o->vars, .src = vars, .bytes = sizeof *vars);
  ops->record (o->d, q, o->go);
  ops->wait (o->d, o->opt, o->go);
  offload_settle (o, o->in);
  if (hold) ops->wait (o->d, o->out, hold);
}

static void copy (struct offloader *o, struct queue *q, void *dst, const void *src, int64_t bytes)
{
  dev_op (o->d, q, OP_COPY, copy, .dst = dst, .src = src, .bytes = bytes);
}

/* Elements [AT, AT + N) of A. */
static void update_piece (struct offloader *o, const struct op_adamw *a, void *host, int64_t at, int64_t n)
{
  const struct dev_ops *ops = o->d->ops;
  struct op_adamw p = *a;
  int i = o->next;
  o->next = (i + 1) % OFFLOAD_PLACES;
  ops->wait (o->d, o->in, o->place[i].left);
  copy (o, o->in, o->place[i].master, a->master + at, n * 4);
  copy (o, o->in, o->place[i].m, a->m + at, n * 4);
  copy (o, o->in, o->place[i].v, a->v + at, n * 4);
  ops->record (o->d, o->in, o->place[i].loaded);

  ops->wait (o->d, o->opt, o->place[i].loaded);
  p.n = n;
  p.master = o->place[i].master;
  p.m = o->place[i].m;
  p.v = o->place[i].v;
  p.vars = o->vars;
  p.grad = at_elem (a->grad, at, a->gt);
  p.weight = host ? o->place[i].weight : a->weight ? at_elem (a->weight, at, a->wt) : NULL;
  dev_issue (o->d, o->opt, &(struct op) { .kind = OP_ADAMW, .adamw = p });
  ops->record (o->d, o->opt, o->place[i].done);

  ops->wait (o->d, o->out, o->place[i].done);
  if (host) copy (o, o->out, at_elem (host, at, a->wt), p.weight, n * dtype_size (a->wt));
  copy (o, o->out, a->master + at, p.master, n * 4);
  copy (o, o->out, a->m + at, p.m, n * 4);
  copy (o, o->out, a->v + at, p.v, n * 4);
  ops->record (o->d, o->out, o->place[i].left);
}

void offload_update (struct offloader *o, const struct op_adamw *a, void *host)
{
  for (int64_t at = 0; at < a->n; at += o->piece) update_piece (o, a, host, at, MIN (o->piece, a->n - at));
}

void offload_mark (struct offloader *o, struct event *ev, bool host) { o->d->ops->record (o->d, host ? o->out : o->opt, ev); }

void offload_end (struct offloader *o) { o->d->ops->record (o->d, o->out, o->flushed); }

void offload_settle (struct offloader *o, struct queue *q) { o->d->ops->wait (o->d, q, o->flushed); }
