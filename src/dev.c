#include "config.h"
#include "dev.h"
#include "host.h"
#include <stdio.h>
#include <string.h>

static const char *const purpose_word[MEM_N] = {
  [MEM_WEIGHT] = "weights", [MEM_GATHER] = "gathered units", [MEM_GRAD] = "gradients", [MEM_MASTER] = "master weights", [MEM_MOMENT] = "moments",
  [MEM_ACT] = "activations", [MEM_LOGIT] = "logits", [MEM_COMM] = "communication", [MEM_WORK] = "workspace", [MEM_STAGE] = "staging",
};
const char *purpose_name (enum purpose p) { return purpose_word[p]; }

static const char *const op_word[OP_N] = {
  [OP_COPY] = "copy", [OP_ZERO] = "zero", [OP_AXPBY] = "axpby", [OP_INIT] = "init", [OP_GEMM] = "gemm", [OP_GEMM_GROUPED] = "gemm grouped",
  [OP_NORM] = "norm", [OP_NORM_BWD] = "norm backward", [OP_ROPE] = "rope", [OP_ATTN] = "attention", [OP_ATTN_BWD] = "attention backward",
  [OP_SWIGLU] = "swiglu", [OP_SWIGLU_BWD] = "swiglu backward", [OP_COLSUM] = "column sum", [OP_EMBED] = "embedding", [OP_EMBED_BWD] = "embedding backward",
  [OP_XENT_MAX] = "loss max", [OP_XENT_SUM] = "loss sum", [OP_XENT_STATS] = "loss statistics", [OP_XENT_GRAD] = "loss gradient", [OP_SUMSQ] = "sum of squares", [OP_AMAX] = "amax", [OP_CHECKSUM] = "checksum",
  [OP_STEP_VARS] = "step variables", [OP_ADAMW] = "adamw", [OP_QUANT] = "quantise", [OP_GEMM_FP8] = "gemm fp8", [OP_ALL_GATHER] = "all-gather", [OP_REDUCE_SCATTER] = "reduce-scatter",
  [OP_ALL_REDUCE] = "all-reduce", [OP_BROADCAST] = "broadcast", [OP_SEND] = "send", [OP_RECV] = "receive", [OP_ALL_TO_ALL] = "all-to-all",
};
const char *op_name (enum op_kind k) { return op_word[k]; }

static const char *const group_word[GROUP_N] = {
  [GROUP_WORLD] = "world", [GROUP_SHARD] = "shard", [GROUP_REP] = "replicas", [GROUP_TP] = "tp", [GROUP_KV] = "kv replicas", [GROUP_TIED] = "tied embedding",
  [GROUP_F_IN] = "forward in", [GROUP_F_OUT] = "forward out", [GROUP_B_IN] = "backward in", [GROUP_B_OUT] = "backward out",
};
const char *group_name (enum group_kind k) { return group_word[k]; }

static const char *const phase_word[PHASE_N] = { [PHASE_NONE] = "none", [PHASE_FORWARD] = "forward", [PHASE_BACKWARD] = "backward", [PHASE_OPTIMIZER] = "optimizer" };
const char *phase_name (enum step_phase p) { return phase_word[p]; }

/* ---- bytes and flops ---- */

int64_t coll_bytes (enum op_kind k, int n, int64_t count, int64_t size)
{
  int64_t all = mul_exact (count, size);
  switch (k) {
  case OP_ALL_GATHER: case OP_REDUCE_SCATTER: case OP_ALL_TO_ALL: return (n - 1) * all;
  case OP_ALL_REDUCE: return all <= 1024 ? (n - 1) * all : 2 * (n - 1) * ceil_div (count, n) * size;
  case OP_BROADCAST: return ceil_div ((n - 1) * all, n);
  case OP_SEND: return all;
  default: return 0;
  }
}

/* What goes to the others when the pieces differ. */
static int64_t uneven_bytes (const struct op_coll *c)
{
  const struct group_head *g = (const struct group_head *) c->g;
  int64_t sum = 0;
  for (int r = 0; r < g->n; r++) sum += r == g->rank ? 0 : c->send_count[r];
  return sum * dtype_size (c->t);
}

/* Sum of clamp (y, 0, sk) over y <= x. */
static double clamped_sum (double x, double sk)
{
  if (x <= 0) return 0;
  return x <= sk ? x * (x + 1) / 2 : sk * (sk + 1) / 2 + (x - sk) * sk;
}

/* Pairs of query and key that the mask lets through; document bounds, which only the device knows, are not looked at. */
static double attn_pairs (const struct op_attn *f)
{
  double first = (double) (f->q0 - f->k0 + 1), last = first + (double) f->sq - 1, sk = (double) f->sk, w = (double) f->window;
  double pairs = clamped_sum (last, sk) - clamped_sum (first - 1, sk);
  if (f->window) pairs -= clamped_sum (last - w, sk) - clamped_sum (first - 1 - w, sk);
  return pairs * (double) f->batch * (double) f->heads;
}

double dev_flops (const struct op *o)
{
  switch (o->kind) {
  case OP_GEMM: return 2.0 * (double) o->gemm.m * (double) o->gemm.n * (double) o->gemm.k;
  case OP_GEMM_FP8: return 2.0 * (double) o->gemm_fp8.m * (double) o->gemm_fp8.n * (double) o->gemm_fp8.k;
  case OP_GEMM_GROUPED: return 2.0 * (double) o->grouped.max_rows * (double) o->grouped.n * (double) o->grouped.k;
  case OP_ATTN: return 4.0 * (double) o->attn.head_dim * attn_pairs (&o->attn);
  case OP_ATTN_BWD: return 8.0 * (double) o->attn_bwd.f.head_dim * attn_pairs (&o->attn_bwd.f);
  default: return 0;
  }
}

char *dev_tuned_none (struct dev *d) { (void) d; return NULL; }
void dev_tune_none (struct dev *d, const char *text, bool use) { (void) d, (void) text, (void) use; }

/* ---- open and close ---- */

static const struct dev_ops *const device[] = { &dev_cpu, &dev_sim };

/* The table of a device holds pointers and nothing else; a NULL among them would be found only in the middle of a run. */
static int check_complete (const struct dev_ops *ops, struct err *e)
{
  const void *slot[sizeof *ops / sizeof (void *)];
  _Static_assert (sizeof slot == sizeof *ops, "struct dev_ops holds pointers only");
  memcpy (slot, ops, sizeof slot);
  int first_op = (int) (offsetof (struct dev_ops, op) / sizeof (void *));
  for (int i = 0; i < LEN (slot); i++) {
    if (slot[i]) continue;
    if (i >= first_op) return user_err (e, "device %s cannot do %s", ops->name, op_name ((enum op_kind) (i - first_op)));
    return user_err (e, "device %s is incomplete: entry %d of its table is empty", ops->name ? ops->name : "?", i);
  }
  return 0;
}

int dev_open (struct dev *d, const char *name, const struct dev_conf *c, struct err *e)
{
  *d = (struct dev) { .conf = *c };
  for (int i = 0; i < LEN (device) && !d->ops; i++)
    if (!strcmp (device[i]->name, name)) d->ops = device[i];
  if (!d->ops && !(d->ops = module_open (name, e))) return -1;
  if (check_complete (d->ops, e) || d->ops->open (d, c, e)) {
    d->ops = NULL;
    return -1;
  }
  return 0;
}

void dev_close (struct dev *d)
{
  if (d->ops) d->ops->close (d);
  xfree (d->trace.span);
  *d = (struct dev) { 0 };
}

/* ---- operations ---- */

int64_t dev_coll_bytes (const struct op *o)
{
  const struct op_coll *c = &o->coll;
  if (o->kind == OP_ALL_TO_ALL && c->send_count) return uneven_bytes (c);
  return coll_bytes (o->kind, ((const struct group_head *) c->g)->n, c->count, dtype_size (c->t));
}

void dev_count (struct dev *d, const struct op *o)
{
  d->op_count[o->kind]++;
  d->flops += dev_flops (o);
  if (o->kind < OP_COLL_FIRST) return;
  struct coll_stat *s = group_stat (o->coll.g, o->kind);
  const struct group_head *g = (const struct group_head *) o->coll.g;
  int64_t bytes = dev_coll_bytes (o);
  s->calls++;
  s->bytes += bytes;
  d->note[d->notes++ % COLL_NOTES] = (struct coll_note) { o->kind, g->kind, bytes, ++d->issued[g->kind] };
}

void dev_oldest (const struct dev *d, struct coll_note *out)
{
  *out = (struct coll_note) { 0 };
  for (int64_t i = MAX (d->notes - COLL_NOTES, 0); i < d->notes && !out->seq; i++)
    if (d->note[i % COLL_NOTES].seq > d->done[d->note[i % COLL_NOTES].group]) *out = d->note[i % COLL_NOTES];
}

void dev_stuck (const struct dev *d, char *out, size_t size)
{
  size_t n = (size_t) snprintf (out, size, "none");
  bool told[GROUP_N] = { false }, any = false;
  for (int64_t i = MAX (d->notes - COLL_NOTES, 0); i < d->notes; i++) {
    const struct coll_note *c = &d->note[i % COLL_NOTES];
    int64_t later = d->issued[c->group] - c->seq;
    char text[24];
    if (c->seq <= d->done[c->group] || told[c->group]) continue;
    bytes_text (c->bytes, text);
    if (!any) n = 0;
    if (n < size) n += (size_t) snprintf (out + n, size - n, "%s%s %s %lld of %s", any ? ", " : "", group_name (c->group), op_name (c->op), (long long) c->seq, text);
    if (n < size && later > 0) n += (size_t) snprintf (out + n, size - n, " and %lld behind it", (long long) later);
    told[c->group] = any = true;
  }
}

void dev_issue (struct dev *d, struct queue *q, const struct op *o)
{
  if (!d->recording) dev_count (d, o);
  d->ops->op[o->kind] (d, q, o);
}

/* TO is given nothing more before what FROM has is done. */
static void order (struct dev *d, struct queue *from, struct queue *to, struct event *ev)
{
  d->ops->record (d, from, ev);
  d->ops->wait (d, to, ev);
}

void dev_gather_gemm (struct dev *d, struct queue *q, struct queue *cq, struct event *ev[2], const struct op_coll *gather, const struct op_gemm *gemm)
{
  order (d, q, cq, ev[0]);
  dev_issue (d, cq, &(struct op) { .kind = OP_ALL_GATHER, .coll = *gather });
  order (d, cq, q, ev[1]);
  dev_issue (d, q, &(struct op) { .kind = OP_GEMM, .gemm = *gemm });
}

void dev_gemm_scatter (struct dev *d, struct queue *q, struct queue *cq, struct event *ev[2], const struct op_gemm *gemm, const struct op_coll *scatter)
{
  dev_issue (d, q, &(struct op) { .kind = OP_GEMM, .gemm = *gemm });
  order (d, q, cq, ev[0]);
  dev_issue (d, cq, &(struct op) { .kind = OP_REDUCE_SCATTER, .coll = *scatter });
  order (d, cq, q, ev[1]);
}

/* ---- spans ---- */

void dev_trace (struct dev *d, bool on)
{
  if (on) d->trace.n = 0;
  d->ops->trace (d, on);
  d->trace.on = on;
}

void dev_span_add (struct dev *d, const struct dev_span *s)
{
  if (d->trace.n == d->trace.room)
    d->trace.span = xrealloc (d->trace.span, (size_t) (d->trace.room = 2 * d->trace.room + 4096) * sizeof *s, "trace");
  d->trace.span[d->trace.n++] = *s;
}

/* ---- memory ---- */

void *dev_reserve (struct dev *d, enum purpose p, enum space s, int64_t bytes, struct err *e)
{
  struct err why = { 0 };
  void *at = d->ops->reserve (d, s, bytes, &why);
  if (!at) user_err (e, "%s: %s", purpose_name (p), why.msg);
  else d->mem[s].reserved[p] += bytes;
  return at;
}

void dev_release (struct dev *d, enum purpose p, enum space s, void *ptr, int64_t bytes)
{
  if (!ptr) return;
  d->ops->release (d, s, ptr, bytes);
  d->mem[s].reserved[p] -= bytes;
}

int64_t dev_reserved (const struct dev *d)
{
  int64_t sum = 0;
  for (int s = 0; s < (d->ops->limits->host_memory ? SPACE_N : SPACE_DEVICE + 1); s++)
    for (int p = 0; p < MEM_N; p++) sum += d->mem[s].reserved[p];
  return sum;
}

int64_t dev_outside (const struct dev *d, const int n[GROUP_N])
{
  int groups = 0;
  for (int k = 0; k < GROUP_N; k++) groups += n[k] > 1;
  return d->ops->limits->outside + groups * d->ops->limits->group_outside;
}

void dev_measure (struct dev *d) { d->outside = MAX (d->ops->used (d) - dev_reserved (d), 1); }

static void copy_now (struct dev *d, struct queue *q, void *dst, const void *src, int64_t bytes)
{
  struct event *ev = d->ops->event_open (d);
  dev_op (d, q, OP_COPY, copy, .dst = dst, .src = src, .bytes = bytes);
  d->ops->record (d, q, ev);
  d->ops->sync (d, ev);
  d->ops->event_close (d, ev);
}

void *dev_host_none (struct dev *d, void *p) { return (void) d, (void) p, NULL; }

void dev_put (struct dev *d, struct queue *q, void *dst, const void *src, int64_t bytes) { copy_now (d, q, dst, src, bytes); }
void dev_get (struct dev *d, struct queue *q, void *dst, const void *src, int64_t bytes) { copy_now (d, q, dst, src, bytes); }
