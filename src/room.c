#include "config.h"
#include "room.h"
#include <string.h>

static void full (struct conf *c) { c->recompute.mode = RECOMPUTE_FULL; }
static void chosen (struct conf *c) { c->recompute.mode = RECOMPUTE_AUTO; c->recompute.every = 1; }
static void gradients (struct conf *c) { c->sharding.grad_dtype = c->sharding.reduce_dtype = DT_BF16; }
static void sharded (struct conf *c) { c->sharding.strategy = FULL_SHARD; c->sharding.reshard = RESHARD_AUTO; }
static void one (struct conf *c) { c->train.micro_batch = 1; }
static void offloaded (struct conf *c) { c->sharding.cpu_offload = OFFLOAD_OPTIMIZER; }

/* The cheapest first. */
static const struct { const char *option; void (*change) (struct conf *c); } remedy[] = {
  { "recompute.mode auto", chosen }, { "sharding.strategy FULL_SHARD", sharded }, { "sharding.grad_dtype and reduce_dtype bf16", gradients },
  { "recompute.mode full", full }, { "train.micro_batch 1", one }, { "sharding.cpu_offload optimizer", offloaded },
};

/* Up to three options that alone would make it fit, as text; how many. */
static int remedies (const struct conf *c, const struct mesh *m, struct dev *d, int64_t room, room_needs *needs, char *out, size_t size)
{
  int n = 0;
  size_t at = 0;
  struct conf *x = xalloc (sizeof *x, "options");
  for (int i = 0; i < LEN (remedy) && n < 3; i++) {
    char t[24];
    *x = *c;
    remedy[i].change (x);
    int64_t need = memcmp (x, c, sizeof *x) ? needs (x, m, d) : -1;
    if (need < 0 || need > room) continue;
    bytes_text (need, t);
    at += (size_t) snprintf (out + at, size - at, "%s%s (%s)", n ? ", or " : "", remedy[i].option, t);
    n++;
  }
  xfree (x);
  return n;
}

int room_check (int64_t need, const struct conf *c, const struct mesh *m, struct dev *d, room_needs *needs, struct err *e)
{
  int64_t room = d->memory - d->ops->limits->outside;
  char a[24], b[24], o[24], over[24], text[300] = "";
  if (!d->memory || d->blind || d->ops->limits->host_memory || need <= room) return 0;
  bytes_text (need, a);
  bytes_text (d->memory, b);
  bytes_text (d->ops->limits->outside, o);
  bytes_text (need - room, over);
  if (!remedies (c, m, d, room, needs, text, sizeof text))
    snprintf (text, sizeof text, "more ranks in mesh.dp_shard, mesh.tp or mesh.pp (pretrain plan finds how many), or a smaller model or sequence");
  return user_err (e, "a rank needs %s, %s more than fit on a device of %s, of which %s are left for context and libraries. What would fit: %s", a, over, b, o, text);
}
