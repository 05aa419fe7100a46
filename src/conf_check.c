/* conf_check: values that follow from others, and checks that need no mesh. */
#include "conf_int.h"
#include "keep.h"
#include "spike.h"
#include <stdlib.h>
#include <string.h>

typedef long long ll;

static int64_t schedule_steps (const struct conf *c) { return c->schedule.steps ? c->schedule.steps : c->train.steps; }

static int settle_arch (struct arch *a, struct err *e)
{
  if (!a->kv_heads) a->kv_heads = a->heads;
  if (a->head_dim || !a->heads) return 0;
  if (a->dim % a->heads)
    return user_err (e, "model.dim %lld is not a multiple of model.heads %lld: say model.head_dim", (ll) a->dim, (ll) a->heads);
  a->head_dim = a->dim / a->heads;
  return 0;
}

/* Was option NAME left to its default, now and in what was loaded before? */
static bool untouched (const struct conf *c, const bool *given, const char *name)
{
  int row = row_find (name);
  struct conf def;
  char is[STR], was[STR], want[256];
  row_get (&conf_row[row], c, is);
  row_set (&conf_row[row], &def, conf_row[row].def, false, want);
  row_get (&conf_row[row], &def, was);
  return !given[row] && !strcmp (is, was);
}

int conf_settle (struct conf *c, const bool *given, struct err *e)
{
  int64_t steps = schedule_steps (c);
  c->train.dtype = c->train.precision == PREC_FP32 ? DT_F32 : DT_BF16;
  if (untouched (c, given, "schedule.warmup")) c->schedule.warmup = MIN (c->schedule.warmup, steps / 10);
  if (untouched (c, given, "schedule.min_lr") && given[row_find ("optimizer.lr")]) c->schedule.min_lr = c->optimizer.lr / 10;
  if (c->schedule.type == LR_WSD && !c->schedule.decay) c->schedule.decay = MAX (1, steps / 10);
  return settle_arch (&c->arch, e);
}

static int check_batch (const struct conf *c, struct err *e)
{
  int64_t micro = c->train.micro_batch, global = c->train.global_batch;
  if (global && global < micro)
    return user_err (e, "train.global_batch %lld is smaller than train.micro_batch %lld", (ll) global, (ll) micro);
  if (global % micro)
    return user_err (e, "train.global_batch %lld is not a multiple of train.micro_batch %lld", (ll) global, (ll) micro);
  int64_t dp = MAX (c->mesh.dp_replicate, 1) * c->mesh.dp_shard;
  if (dp && global % (micro * dp))
    return user_err (e, "train.global_batch %lld is not a multiple of train.micro_batch %lld x dp %lld", (ll) global, (ll) micro,
                     (ll) dp);
  return 0;
}

static int check_schedule (const struct conf *c, struct err *e)
{
  int64_t steps = schedule_steps (c);
  if (c->schedule.warmup > steps)
    return user_err (e, "schedule.warmup %lld is longer than the schedule, %lld steps", (ll) c->schedule.warmup, (ll) steps);
  if (c->schedule.type == LR_WSD && c->schedule.decay > steps - c->schedule.warmup)
    return user_err (e, "schedule.warmup %lld and schedule.decay %lld are longer than the schedule, %lld steps",
                     (ll) c->schedule.warmup, (ll) c->schedule.decay, (ll) steps);
  if (c->schedule.type != LR_CONSTANT && c->schedule.min_lr > c->optimizer.lr)
    return user_err (e, "schedule.min_lr %g is above optimizer.lr %g", c->schedule.min_lr, c->optimizer.lr);
  return 0;
}

static int check_wrap (const char *wrap, struct err *e)
{
  char *end = NULL;
  if (!strcmp (wrap, "layer") || !strcmp (wrap, "model")) return 0;
  if (!strncmp (wrap, "size:", 5) && wrap[5] >= '1' && wrap[5] <= '9' && strtoll (wrap + 5, &end, 10) > 0 && end - wrap < 24
      && !*end) return 0;
  return user_err (e, "sharding.wrap expects layer, model or size:PARAMETERS (such as size:1000000), not `%s`", wrap);
}

/* tp-pp-dp: each of the axes once; dp stands for dp_shard-dp_replicate, which may also be named apart. */
static int check_order (const char *order, struct err *e)
{
  static const char *const axis[] = { "tp", "pp", "dp", "dp_shard", "dp_replicate" };
  int seen[LEN (axis)] = { 0 };
  bool bad = false;
  for (const char *s = order; ; s++) {
    size_t n = strcspn (s, "-");
    int i = 0;
    while (i < LEN (axis) && !(strlen (axis[i]) == n && !strncmp (axis[i], s, n))) i++;
    if (i == LEN (axis)) bad = true;
    else seen[i]++;
    s += n;
    if (!*s) break;
  }
  bool data = seen[2] ? seen[2] == 1 && !seen[3] && !seen[4] : seen[3] == 1 && seen[4] == 1;
  if (!bad && data && seen[0] == 1 && seen[1] == 1) return 0;
  return user_err (e, "mesh.order expects each of tp, pp and dp once (or dp_shard and dp_replicate for dp), such as tp-pp-dp, "
                   "not `%s`", order);
}

static int check_pipeline (const struct conf *c, struct err *e)
{
  if (c->pipeline.schedule != SCHED_INTERLEAVED && c->pipeline.chunks != 1)
    return user_err (e, "pipeline.chunks %lld needs pipeline.schedule interleaved", (ll) c->pipeline.chunks);
  if (c->pipeline.schedule == SCHED_INTERLEAVED && c->pipeline.chunks < 2)
    return user_err (e, "pipeline.schedule interleaved needs pipeline.chunks of 2 or more, not %lld", (ll) c->pipeline.chunks);
  int64_t stages = c->mesh.pp * c->pipeline.chunks;
  if (!stages) return 0;
  if (stages > c->arch.layers)
    return user_err (e, "model.layers %lld cannot fill mesh.pp %lld x pipeline.chunks %lld: each stage needs a layer",
                     (ll) c->arch.layers, (ll) c->mesh.pp, (ll) c->pipeline.chunks);
  int64_t *n = xalloc (stages * sizeof *n, "split");
  int rc = arch_split (&c->arch, (int) stages, c->pipeline.split, n, e);
  xfree (n);
  return rc;
}

static int check_mesh (const struct conf *c, struct err *e)
{
  const int64_t axis[] = { c->mesh.dp_replicate, c->mesh.dp_shard, c->mesh.pp, c->mesh.tp };
  static const char *const name[] = { "dp_replicate", "dp_shard", "pp", "tp" };
  for (int i = 0; i < LEN (axis); i++)
    if (axis[i] > 1 << 20) return user_err (e, "mesh.%s %lld is above the largest, %d", name[i], (ll) axis[i], 1 << 20);
  if (c->pipeline.chunks > 1 << 20)
    return user_err (e, "pipeline.chunks %lld is above the largest, %d", (ll) c->pipeline.chunks, 1 << 20);
  if (c->mesh.dp_replicate > 1 && c->sharding.strategy != HYBRID_SHARD && c->sharding.strategy != NO_SHARD)
    return user_err (e, "mesh.dp_replicate %lld needs sharding.strategy HYBRID_SHARD or NO_SHARD", (ll) c->mesh.dp_replicate);
  if (c->mesh.tp && arch_check_tp (&c->arch, (int) c->mesh.tp, e)) return -1;
  return check_order (c->mesh.order, e);
}

/* Counts that are multiplied with each other later on must leave room. */
static int check_size (const struct conf *c, struct err *e)
{
  const struct { const char *name; int64_t v; } row[] = {
    { "train.seq_len", c->train.seq_len }, { "train.micro_batch", c->train.micro_batch },
    { "train.global_batch", c->train.global_batch },
    { "run.threads", c->run.threads }, { "eval.batches", c->eval.batches },
  };
  for (int i = 0; i < LEN (row); i++)
    if (row[i].v >= INT64_C (1) << 31) return user_err (e, "%s %lld is above the largest, 2^31 - 1", row[i].name, (ll) row[i].v);
  if (c->train.steps > INT64_C (1) << 40) return user_err (e, "train.steps %lld is above the largest, 2^40", (ll) c->train.steps);
  if (c->schedule.steps > INT64_C (1) << 40)
    return user_err (e, "schedule.steps %lld is above the largest, 2^40", (ll) c->schedule.steps);
  return 0;
}

bool conf_profile (const char *text, int64_t *first, int64_t *last)
{
  long long a, b;
  char end;
  int n = sscanf (text, "%lld:%lld%c", &a, &b, &end);
  if (n < 2 && sscanf (text, "%lld%c", &a, &end) != 1) return false;
  *first = a;
  *last = n < 2 ? a : b;
  return n < 3 && a >= 1 && *last >= a;
}

static int check_skip (const struct conf *c, struct err *e)
{
  struct batch_range *list;
  int n, bad = spike_ranges (c->data.skip, &list, &n, e);
  if (!bad) xfree (list);
  if (!bad && c->spike.window > SPIKE_WINDOW_MAX) return user_err (e, "spike.window %lld is above the largest, %d", (ll) c->spike.window, SPIKE_WINDOW_MAX);
  if (!bad && c->spike.max > 1 << 20) return user_err (e, "spike.max %lld is above the largest, %d", (ll) c->spike.max, 1 << 20);
  return bad;
}

int conf_check (const struct conf *c, struct err *e)
{
  int set;
  if (arch_check (&c->arch, e) || check_size (c, e) || check_mesh (c, e) || check_pipeline (c, e) || check_batch (c, e)
      || check_schedule (c, e) || check_wrap (c->sharding.wrap, e) || check_skip (c, e) || keep_parse (c->recompute.keep, &set, e)) return -1;
  if (c->recompute.mode == RECOMPUTE_AUTO && c->recompute.every > 1)
    return user_err (e, "recompute.every %lld does not go with recompute.mode auto, which chooses the layers itself", (ll) c->recompute.every);
  int64_t first, last;
  if (c->run.profile[0] && !conf_profile (c->run.profile, &first, &last))
    return user_err (e, "run.profile expects FIRST:LAST, two steps such as 10:12, not `%s`", c->run.profile);
  if (c->arch.max_seq && c->train.seq_len > c->arch.max_seq)
    say (SAY_WARN, "train.seq_len %lld is longer than the model was made for, model.max_seq %lld", (ll) c->train.seq_len,
         (ll) c->arch.max_seq);
  return 0;
}
