#include "config.h"
#include "keep.h"
#include "layer.h"
#include "ledger.h"
#include "sched.h"
#include <stdlib.h>
#include <string.h>

/* ---- what a rank holds ---- */

struct part_unit {
  int64_t block0, blocks;   /* its blocks: 0 the embedding, 1 .. layers, layers + 1 the head; blocks 0: the last stage's copy of a tied embedding */
  int chunk;
  int64_t n, shard;         /* padded elements; my part */
  int64_t norms, kv;        /* elements of my part that tp replicates: norms, KV heads with more than one holder */
  int room;                 /* units of about a size share slots: the largest of them */
};

/* The rank's place in the mesh and what follows from it. */
struct place {
  const struct conf *c;
  const struct arch *a;
  int64_t align;            /* elements */
  int tp, pp, stage, shards, shard, replicas, kv_rep, chunks, world;
  int64_t mbs, tokens;      /* A; b s */
  int64_t first[64], last[64];
  struct part_unit *unit;
  int units;
  int64_t memory;           /* of the device */
  bool fits;                /* whole weights, in a quarter of the memory */
  const int *keep;          /* by layer, from 1; NULL: as the configuration says */
};

/* Walks the parameters of a flat unit; what lies within [lo, hi) of norms and KV copies is added up. */
struct walk { int64_t n, lo, hi, align, norms, kv; };

static void take (struct walk *w, int64_t count, bool packed, int64_t *sum)
{
  int64_t at = packed ? w->n : round_up (w->n, w->align);
  w->n = at + count;
  if (sum) *sum += MAX (0, MIN (w->n, w->hi) - MAX (at, w->lo));
}

/* A tp slice of a layer: norms whole, q k v in one run, gate up in one run, KV heads at least one. */
static void walk_layer (struct walk *w, const struct place *p)
{
  const struct arch *a = p->a;
  int64_t h = a->dim, d = a->head_dim, q = a->heads / p->tp * d, kv = MAX (1, a->kv_heads / p->tp) * d, f = a->ffn / p->tp;
  int64_t *copies = p->kv_rep > 1 ? &w->kv : NULL;
  take (w, h, false, &w->norms);
  take (w, h, false, &w->norms);
  if (a->qk_norm) take (w, d, false, &w->norms), take (w, d, false, &w->norms);
  take (w, q * h, false, NULL);
  take (w, 2 * kv * h, true, copies);
  if (a->qkv_bias) take (w, q, false, NULL), take (w, 2 * kv, true, copies);
  take (w, h * q, false, NULL);
  take (w, 2 * f * h, false, NULL);
  take (w, h * f, false, NULL);
}

static int64_t vocab_rows (const struct place *p) { return round_up (ceil_div (p->a->vocab, p->tp), 8); }

static void walk_block (struct walk *w, const struct place *p, int64_t block)
{
  bool head = block == p->a->layers + 1;
  if (block > 0 && !head) walk_layer (w, p);
  if (head) take (w, p->a->dim, false, &w->norms);
  if (block == 0 || (head && !p->a->tied)) take (w, vocab_rows (p) * p->a->dim, false, NULL);
}

static void walk_unit (struct walk *w, const struct place *p, const struct part_unit *u)
{
  for (int64_t b = u->block0; b < u->block0 + u->blocks; b++) walk_block (w, p, b);
  if (!u->blocks) walk_block (w, p, 0);
}

static void finish_unit (struct place *p, struct part_unit *u)
{
  struct walk all = { .align = p->align };
  walk_unit (&all, p, u);
  u->n = round_up (all.n, p->shards * p->align);
  u->shard = u->n / p->shards;
  struct walk mine = { .align = p->align, .lo = u->shard * p->shard, .hi = u->shard * (p->shard + 1) };
  walk_unit (&mine, p, u);
  u->norms = mine.norms;
  u->kv = mine.kv;
}

static struct part_unit *add_unit (struct place *p, int chunk, int64_t block)
{
  p->unit = xrealloc (p->unit, (size_t) (p->units + 1) * sizeof *p->unit, "ledger");
  struct part_unit *u = &p->unit[p->units++];
  *u = (struct part_unit) { .block0 = block, .chunk = chunk };
  return u;
}

static bool split (const struct place *p) { return p->pp > 1 && p->c->pipeline.schedule == SCHED_ZBH1; }

/* sharding.wrap: each block, the whole chunk, or runs of blocks of at least so many elements. A tied embedding on a pipeline is a unit of its own, and so are
   embedding and head where the backward by weight of layers comes apart. */
static void make_units (struct place *p)
{
  const char *wrap = p->c->sharding.wrap;
  int64_t least = !strcmp (wrap, "layer") ? 1 : !strcmp (wrap, "model") ? INT64_MAX : atoll (wrap + strlen ("size:"));
  bool apart = split (p) || (p->a->tied && p->pp > 1);
  for (int k = 0; k < p->chunks; k++) {
    struct part_unit *u = NULL;
    struct walk w = { 0 };
    for (int64_t b = p->first[k]; b < p->last[k]; b++) {
      if (!u || (split (p) && b == p->a->layers + 1)) u = add_unit (p, k, b), w = (struct walk) { .align = p->align };
      u->blocks++;
      walk_block (&w, p, b);
      if (w.n >= least || (apart && b == 0)) u = NULL;
    }
  }
  if (p->a->tied && p->pp > 1 && p->stage == p->pp - 1) add_unit (p, p->chunks - 1, 0);
  for (int i = 0; i < p->units; i++) finish_unit (p, &p->unit[i]);
}

static int stand (struct place *p, const struct conf *c, const struct mesh_shape *s, int rank, int64_t align, struct err *e)
{
  int at[AXIS_N];
  mesh_coord (s, rank, at);
  int dp = s->dim[AXIS_DP_SHARD] * s->dim[AXIS_DP_REPLICATE];
  *p = (struct place) { .c = c, .a = &c->arch, .align = align / 2, .tp = s->dim[AXIS_TP], .pp = s->dim[AXIS_PP], .stage = at[AXIS_PP], .world = mesh_world (s) };
  p->shards = s->no_shard ? 1 : s->dim[AXIS_DP_SHARD];
  p->shard = s->no_shard ? 0 : at[AXIS_DP_SHARD];
  p->replicas = dp / p->shards;
  p->kv_rep = p->tp > c->arch.kv_heads ? p->tp / (int) c->arch.kv_heads : 1;
  p->chunks = p->pp > 1 && c->pipeline.schedule == SCHED_INTERLEAVED ? (int) c->pipeline.chunks : 1;
  p->tokens = c->train.micro_batch * c->train.seq_len;
  p->mbs = c->train.global_batch / (c->train.micro_batch * dp);
  int64_t stages = (int64_t) p->pp * p->chunks, n[stages], b = 1;
  if (arch_check_tp (p->a, p->tp, e) || arch_split (p->a, (int) stages, c->pipeline.split, n, e)) return -1;
  if (p->chunks > LEN (p->first)) return user_err (e, "ledger: %d chunks a stage are more than it can list", p->chunks);
  for (int64_t v = 0; v < stages; b += n[v], v++) {
    if (v % p->pp != p->stage) continue;
    p->first[v / p->pp] = v == 0 ? 0 : b;
    p->last[v / p->pp] = b + n[v] + (v == stages - 1);
  }
  make_units (p);
  return 0;
}

static bool holds (const struct place *p, int64_t block)
{
  for (int k = 0; k < p->chunks; k++)
    if (block >= p->first[k] && block < p->last[k]) return true;
  return false;
}
static bool has_embed (const struct place *p) { return holds (p, 0); }
static bool has_head (const struct place *p) { return holds (p, p->a->layers + 1); }

/* What a layer keeps: as it was given, or by recompute.mode and keep. */
static int kept (const struct place *p, int64_t layer) { return p->keep ? p->keep[layer] : keep_of (p->c, layer); }

/* ---- lines ---- */

static void add (struct ledger *l, const char *what, enum group_kind g, enum op_kind op, int64_t calls, int64_t bytes)
{
  if (!calls) return;
  must (l->lines < LEDGER_LINES, "the ledger has more than %d lines", LEDGER_LINES);
  l->line[l->lines++] = (struct ledger_line) { what, g, op, calls, bytes };
}

/* CALLS collectives of COUNT elements each. */
static void add_equal (struct ledger *l, const char *what, enum group_kind g, enum op_kind op, int n, int64_t calls, int64_t count, int64_t size)
{
  if (n > 1 && count) add (l, what, g, op, calls, calls * coll_bytes (op, n, count, size));
}

/* ---- dp: weights and gradients ---- */

/* The uses of a stage's weights in a step, in order, and where asked for the ends of units' backwards. with: at once with the use before (a tied head's matrix). */
struct use { int unit; bool with, end; };
struct uses { struct use *list; int n, room; bool ends; };

static void push_use (struct uses *u, int unit, bool with, bool end)
{
  if (end && !u->ends) return;
  if (u->n == u->room) u->list = xrealloc (u->list, (size_t) (u->room = 2 * u->room + 64) * sizeof *u->list, "ledger");
  u->list[u->n++] = (struct use) { unit, with, end };
}

static int unit_of (const struct place *p, int64_t block)
{
  for (int i = 0; i < p->units; i++)
    if (block >= p->unit[i].block0 && block < p->unit[i].block0 + p->unit[i].blocks) return i;
  return -1;
}

/* The unit of the matrix that a tied head shares with the embedding. */
static int tied_unit (const struct place *p) { return p->pp > 1 ? p->units - 1 : unit_of (p, 0); }

static void use_block (const struct place *p, struct uses *u, int64_t block)
{
  push_use (u, unit_of (p, block), false, false);
  if (block == p->a->layers + 1 && p->a->tied) push_use (u, tied_unit (p), true, false);
}

/* After a block's backward: those units end whose first block it is, and at the head the last stage's copy of a tied embedding. */
static void end_block (const struct place *p, struct uses *u, int64_t block)
{
  int i = unit_of (p, block);
  if (block == p->a->layers + 1 && p->a->tied && p->pp > 1) push_use (u, tied_unit (p), false, true);
  if (p->unit[i].block0 == block) push_use (u, i, false, true);
}

/* Backward by input, by weight or both. The embedding's and the head's come whole with the first. What needs no weights uses none: the embedding's, and a layer's
   by weight, unless it makes the normed inputs again. */
static void use_backward (const struct place *p, struct uses *u, const struct action *a)
{
  int64_t layers = p->a->layers, first = p->first[a->chunk], last = p->last[a->chunk];
  bool input = a->kind != ACT_B_WEIGHT, weight = a->kind != ACT_B_INPUT;
  for (int64_t b = last - 1; b >= first; b--) {
    bool end = b == 0 || b == layers + 1;
    if (b > 0 && (input || (!end && !(kept (p, b) & KEEP_NORMS)))) use_block (p, u, b);
    if (end ? input : weight) end_block (p, u, b);
  }
}

/* Forward: embedding and layers upwards; the head waits for the backward. */
static void use_action (const struct place *p, struct uses *u, const struct action *a)
{
  if (a->kind == ACT_F)
    for (int64_t b = p->first[a->chunk]; b < MIN (p->last[a->chunk], p->a->layers + 1); b++) use_block (p, u, b);
  if (a->kind == ACT_B || a->kind == ACT_B_INPUT || a->kind == ACT_B_WEIGHT) use_backward (p, u, a);
}

static int list_uses (const struct place *p, struct uses *u, bool ends, struct err *e)
{
  struct sched s;
  int kind = p->pp == 1 && p->c->pipeline.schedule != SCHED_GPIPE ? SCHED_1F1B : (int) p->c->pipeline.schedule;
  *u = (struct uses) { .ends = ends };
  if (sched_make (&s, kind, p->pp, p->chunks, (int) p->mbs, false, e)) return -1;
  for (int i = 0; i < s.count[p->stage]; i++) use_action (p, u, &s.act[p->stage][i]);
  sched_free (&s);
  return 0;
}

/* Gathers of each unit where it stays until a backward of it ends: one before the first use and one before the first use after each end. */
static void count_until_backward (const struct uses *u, int units, int64_t *gathers)
{
  bool *held = xalloc ((size_t) units, "ledger");
  for (int i = 0; i < u->n; i++) {
    int k = u->list[i].unit;
    gathers[k] += !held[k] && !u->list[i].end;
    held[k] = !u->list[i].end;
  }
  xfree (held);
}

/* Units whose sizes are within a quarter of the largest of them share slots: 1 + prefetch of them, and one more where a tied head needs two of a class at once. */
static void make_rooms (struct place *p)
{
  for (int i = 0; i < p->units; i++) p->unit[i].room = -1;
  for (;;) {
    int largest = -1;
    for (int i = 0; i < p->units; i++)
      if (p->unit[i].room < 0 && (largest < 0 || p->unit[i].n > p->unit[largest].n)) largest = i;
    if (largest < 0) return;
    for (int i = 0; i < p->units; i++)
      if (p->unit[i].room < 0 && p->unit[i].n + p->unit[i].n / 4 >= p->unit[largest].n) p->unit[i].room = largest;
  }
}

static int next_use (const struct uses *u, int unit, int from)
{
  while (from < u->n && u->list[from].unit != unit) from++;
  return from;
}

/* Make room for UNIT, wanted at use WHEN: where its class has its fill, the unit of the class goes that is used last. It is never one that is wanted up to WHEN. */
static void make_way (const struct place *p, const struct uses *u, bool *held, int unit, int at, int64_t fill)
{
  int last = -1, last_use = -1;
  int64_t n = 0;
  for (int i = 0; i < p->units; i++) {
    if (!held[i] || p->unit[i].room != p->unit[unit].room) continue;
    bool pinned = i == u->list[at].unit || (u->list[at].with && i == u->list[at - 1].unit);
    int use = pinned ? -1 : next_use (u, i, at + 1);
    n++;
    if (use > last_use) last = i, last_use = use;
  }
  if (n >= fill) held[last] = false;
}

static int64_t fill_of (const struct place *p, int unit)
{
  int head = unit_of (p, p->a->layers + 1), tied = p->a->tied && head >= 0 ? tied_unit (p) : head;
  return 1 + p->c->sharding.prefetch + (head != tied && p->unit[head].room == p->unit[tied].room && p->unit[unit].room == p->unit[head].room);
}

/* Gathers of each unit by slots with foresight: when a use comes, the weights of it and of the next PREFETCH uses are brought. */
static void count_slots (struct place *p, const struct uses *u, int64_t *gathers)
{
  bool *held = xalloc ((size_t) p->units, "ledger");
  int64_t prefetch = p->c->sharding.prefetch;
  make_rooms (p);
  for (int at = 0; at < u->n; at++)
    for (int when = at; when < u->n && when <= at + prefetch; when++) {
      int unit = u->list[when].unit;
      if (held[unit]) continue;
      make_way (p, u, held, unit, at, fill_of (p, unit));
      held[unit] = true;
      gathers[unit]++;
    }
  xfree (held);
}

/* Gathers a step of each unit, by strategy. */
static int count_gathers (struct place *p, int64_t *gathers, struct err *e)
{
  enum strategy st = p->c->sharding.strategy;
  enum reshard re = p->c->sharding.reshard;
  bool keeps = re == RESHARD_AUTO && p->pp > 1 && p->fits && p->c->sharding.cpu_offload != OFFLOAD_PARAMS;
  struct uses u;
  if (list_uses (p, &u, re == RESHARD_BACKWARD, e)) return -1;
  if (re == RESHARD_BACKWARD) count_until_backward (&u, p->units, gathers);
  else if (re == RESHARD_STEP || keeps || (st != FULL_SHARD && st != HYBRID_SHARD)) for (int i = 0; i < p->units; i++) gathers[i] = 1;
  else count_slots (p, &u, gathers);
  xfree (u.list);
  return 0;
}

/* w: (N - 1) / N of a unit for each gather. g: (N - 1) / N of a unit for each scatter, once a step where gradients stay whole, else each micro-batch. */
static int lines_shard (struct ledger *l, struct place *p, struct err *e)
{
  if (p->shards == 1) return 0;
  int64_t w = dtype_size (p->c->train.dtype), g = dtype_size (p->c->sharding.reduce_dtype), calls = 0, bytes = 0;
  int64_t *gathers = xalloc ((size_t) p->units * sizeof *gathers, "ledger");
  int rc = count_gathers (p, gathers, e);
  for (int i = 0; i < p->units; i++) calls += gathers[i], bytes += gathers[i] * coll_bytes (OP_ALL_GATHER, p->shards, p->unit[i].shard, w);
  xfree (gathers);
  add (l, "weights", GROUP_SHARD, OP_ALL_GATHER, calls, bytes);
  int64_t times = p->c->sharding.strategy == SHARD_OPT ? 1 : p->mbs;
  add (l, "gradients", GROUP_SHARD, OP_REDUCE_SCATTER, times * p->units, times * (p->shards - 1) * (l->params / p->shards) * g);
  return rc;
}

/* 2 (P / N) g (R - 1) / R over replicas, rounded up for each unit; a tied embedding between the first and the last stage as over two replicas. */
static void lines_replicas (struct ledger *l, const struct place *p)
{
  int64_t g = dtype_size (p->c->sharding.reduce_dtype), bytes = 0;
  for (int i = 0; i < p->units; i++) bytes += coll_bytes (OP_ALL_REDUCE, p->replicas, p->unit[i].shard, g);
  if (p->replicas > 1) add (l, "gradients over replicas", GROUP_REP, OP_ALL_REDUCE, p->units, bytes);
  if (!p->a->tied || p->pp == 1 || (p->stage && p->stage < p->pp - 1)) return;
  add_equal (l, "tied embedding", GROUP_TIED, OP_ALL_REDUCE, 2, 1, p->unit[p->stage ? p->units - 1 : 0].shard, g);
}

/* ---- tp ---- */

/* Collectives of S / t a part, each (t - 1) / t S: a layer's, by what its backward does again. Forward: 2 gathers before and 2 scatters after the GEMMs.
   Backward: the gradients of both outputs and both normed inputs are gathered, both inputs' gradients scattered: 6, so 10 in all. Where q k v are made again
   their input is gathered once more, where the residual stream is, its output projection scatters once more: 12 with full recomputation (gate and up
   share the gather of their input with the gradient by weight). Apart, the backward by weight gathers the gradients of both outputs again: 2 more. */

static void lines_layers (struct ledger *l, const struct place *p, int64_t part, int64_t w)
{
  int64_t gathers = 0, scatters = 0, parts = p->c->mesh.tp_overlap;
  for (int64_t b = 1; b <= p->a->layers; b++) {
    if (!holds (p, b)) continue;
    gathers += p->mbs * (2 + 4 + 2 * split (p) + !(kept (p, b) & KEEP_QKV));
    scatters += p->mbs * (2 + 2 + !(kept (p, b) & KEEP_RESIDUAL));
  }
  add_equal (l, "layers", GROUP_TP, OP_ALL_GATHER, p->tp, gathers * parts, part / parts, w);
  add_equal (l, "layers", GROUP_TP, OP_REDUCE_SCATTER, p->tp, scatters * parts, part / parts, w);
}

/* The statistics of the loss: of each chunk of C tokens the largest logit (C fp32) and two sums (2 C fp32). */
static void lines_loss (struct ledger *l, const struct place *p, int64_t w)
{
  int64_t most = MAX (128, logit_room (p->memory) / (vocab_rows (p) * w)), even = round_up (ceil_div (p->tokens, ceil_div (p->tokens, most)), 16);
  int64_t chunk = MIN (p->c->train.loss_chunk ? p->c->train.loss_chunk : MIN (most, even), p->tokens);
  int64_t whole = p->tokens / chunk, rest = p->tokens % chunk;
  add_equal (l, "loss: largest", GROUP_TP, OP_ALL_REDUCE, p->tp, p->mbs * whole, chunk, 4);
  add_equal (l, "loss: sums", GROUP_TP, OP_ALL_REDUCE, p->tp, p->mbs * whole, 2 * chunk, 4);
  if (!rest) return;
  add_equal (l, "loss: largest, rest", GROUP_TP, OP_ALL_REDUCE, p->tp, p->mbs, rest, 4);
  add_equal (l, "loss: sums, rest", GROUP_TP, OP_ALL_REDUCE, p->tp, p->mbs, 2 * rest, 4);
}

static void lines_tp (struct ledger *l, const struct place *p)
{
  int64_t w = dtype_size (p->c->train.dtype), part = p->tokens / p->tp * p->a->dim, parts = p->c->mesh.tp_overlap, norms = 0, kv = 0;
  int64_t gs = dtype_size (p->c->sharding.grad_dtype);
  if (p->tp == 1) return;
  lines_layers (l, p, part, w);
  if (has_embed (p)) {
    add_equal (l, "embedding", GROUP_TP, OP_REDUCE_SCATTER, p->tp, p->mbs * parts, part / parts, w);
    add_equal (l, "embedding", GROUP_TP, OP_ALL_GATHER, p->tp, p->mbs * parts, part / parts, w);
  }
  if (has_head (p)) {
    add_equal (l, "head", GROUP_TP, OP_ALL_GATHER, p->tp, p->mbs * parts, part / parts, w);
    add_equal (l, "head", GROUP_TP, OP_REDUCE_SCATTER, p->tp, p->mbs * parts, part / parts, w);
    lines_loss (l, p, w);
  }
  for (int i = 0; i < p->units; i++) norms += p->unit[i].norms, kv += p->unit[i].kv;
  add_equal (l, "norms' gradients", GROUP_TP, OP_ALL_REDUCE, p->tp, 1, norms, gs);
  add_equal (l, "KV copies' gradients", GROUP_KV, OP_ALL_REDUCE, p->kv_rep, 1, kv, gs);
}

/* ---- pp ---- */

/* S / t each way at each boundary between virtual stages, each micro-batch. */
static void lines_pp (struct ledger *l, const struct place *p)
{
  if (p->pp == 1) return;
  int64_t up = p->mbs * (p->chunks - has_head (p)), down = p->mbs * (p->chunks - has_embed (p));
  int64_t part = p->tokens / p->tp * p->a->dim, w = dtype_size (p->c->train.dtype);
  add_equal (l, "activations", GROUP_F_OUT, OP_SEND, 2, up, part, w);
  add_equal (l, "activations", GROUP_F_IN, OP_RECV, 2, down, part, w);
  add_equal (l, "gradients of activations", GROUP_B_OUT, OP_SEND, 2, down, part, w);
  add_equal (l, "gradients of activations", GROUP_B_IN, OP_RECV, 2, up, part, w);
}

int ledger_make (struct ledger *l, const struct conf *c, const struct mesh_shape *s, int rank, int64_t memory, int64_t align, struct err *e)
{
  return ledger_kept (l, c, s, rank, memory, align, NULL, e);
}

int ledger_kept (struct ledger *l, const struct conf *c, const struct mesh_shape *s, int rank, int64_t memory, int64_t align, const int *keep, struct err *e)
{
  struct place p;
  *l = (struct ledger) { 0 };
  if (!keep && c->recompute.mode == RECOMPUTE_AUTO) return user_err (e, "ledger: recompute.mode auto needs the sets that were chosen");
  if (stand (&p, c, s, rank, align, e)) return -1;
  p.keep = keep;
  for (int i = 0; i < p.units; i++) l->params += p.unit[i].n;
  l->units = p.units;
  l->micro_batches = p.mbs;
  p.memory = memory;
  p.fits = l->params * dtype_size (c->train.dtype) <= memory / 4;
  int rc = lines_shard (l, &p, e);
  lines_replicas (l, &p);
  lines_tp (l, &p);
  lines_pp (l, &p);
  /* squared norm, values that are not finite, loss, valid tokens: four fp64 */
  add_equal (l, "scalars", GROUP_WORLD, OP_ALL_REDUCE, p.world, 1, 4, 8);
  xfree (p.unit);
  return rc;
}

void ledger_replica_check (struct ledger *l, const struct conf *c, const struct mesh_shape *s, int rank)
{
  static const enum group_kind kind[] = { GROUP_TP, GROUP_KV, GROUP_TIED, GROUP_REP };
  int *member = xalloc ((size_t) mesh_world (s) * sizeof (int), "ledger"), me, at[AXIS_N];
  mesh_coord (s, rank, at);
  bool end = at[AXIS_PP] == 0 || at[AXIS_PP] == s->dim[AXIS_PP] - 1;
  *l = (struct ledger) { 0 };
  for (int i = 0; i < LEN (kind); i++) {
    int n = mesh_group (s, rank, kind[i], member, &me);
    if (n < 2 || (kind[i] == GROUP_TIED && !(c->arch.tied && end))) continue;
    l->line[l->lines++] = (struct ledger_line) { "checksums", kind[i], OP_ALL_GATHER, 1, 8 * (n - 1) };
  }
  xfree (member);
}

struct ledger_line ledger_sum (const struct ledger *l, enum group_kind g, enum op_kind op)
{
  struct ledger_line sum = { group_name (g), g, op, 0, 0 };
  for (int i = 0; i < l->lines; i++) {
    const struct ledger_line *x = &l->line[i];
    if (x->group == g && (op == OP_N || x->op == op)) sum.calls += x->calls, sum.bytes += x->bytes;
  }
  return sum;
}
