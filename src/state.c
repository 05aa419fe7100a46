#include "state.h"
#include <string.h>
#include <sys/stat.h>

static float *part_of (struct job *j, enum ckpt_kind k, int unit)
{
  const struct ushard *u = &j->s.sh.u[unit];
  return k == CKPT_MASTER ? u->master : k == CKPT_M ? u->m : u->v;
}

static void get (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  struct job *j = ctx;
  shard_settle (&j->s.sh);
  dev_get (&j->d, j->s.q, dst, part_of (j, k, unit) + lo, n * 4);
}

static void put (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, const float *src)
{
  struct job *j = ctx;
  dev_put (&j->d, j->s.q, part_of (j, k, unit) + lo, src, n * 4);
}

/* Where it lies, for the host, while nothing runs. */
static float *lay (void *ctx, enum ckpt_kind k, int unit, int64_t lo)
{
  struct job *j = ctx;
  return (float *) j->d.ops->host (&j->d, part_of (j, k, unit)) + lo;
}

static const float *see (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return lay (ctx, k, unit, lo); }

struct ckpt_state state_of (struct job *j, int64_t step, int64_t tokens)
{
  const struct conf *c = &j->c;
  bool open = j->d.ops->host (&j->d, part_of (j, CKPT_MASTER, 0)) != NULL;
  return (struct ckpt_state) { .conf = c, .mesh = &j->m, .units = &j->s.sh.units, .step = step, .tokens = tokens, .get = get, .put = put, .ctx = j,
    .lay = open ? lay : NULL, .see = open ? see : NULL, .moments = c->run.save_moments, .stripes = c->run.stripe_count, .stripe_bytes = c->run.stripe_size };
}

/* ---- the copy of the state in host memory ---- */

/* Where part K of UNIT lies in the copy. */
static float *copy_of (const struct saver *s, enum ckpt_kind k, int unit)
{
  int64_t at = 0;
  const struct units *u = &s->j->s.sh.units;
  for (int i = 0; i < unit; i++) at += u->unit[i].shard;
  return s->copy + at * CKPT_KINDS + u->unit[unit].shard * k;
}

static float *lay_copied (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return copy_of (ctx, k, unit) + lo; }
static const float *see_copied (void *ctx, enum ckpt_kind k, int unit, int64_t lo) { return lay_copied (ctx, k, unit, lo); }

static void get_copied (void *ctx, enum ckpt_kind k, int unit, int64_t lo, int64_t n, float *dst)
{
  memcpy (dst, copy_of (ctx, k, unit) + lo, (size_t) n * 4);
}

/* What was loaded into the copy to where it belongs. */
static void copy_back (struct saver *s, int kinds)
{
  struct job *j = s->j;
  for (int i = 0; i < j->s.sh.units.count; i++)
    for (int k = 0; k < kinds; k++)
      dev_op (&j->d, j->s.q, OP_COPY, copy, .dst = part_of (j, k, i), .src = copy_of (s, k, i), .bytes = j->s.sh.units.unit[i].shard * 4);
  j->d.ops->drain (&j->d);
}

/* ---- loading ---- */

/* load.from: a file, or a run's folder. Rank 0 looks. Collective. */
static int load_from (struct job *j, struct ckpt_state *s, struct err *e)
{
  char path[CKPT_PATH] = "";
  const char *from = j->c.load.from;
  struct stat st;
  int64_t step;
  int folder = j->m.rank == 0 && !stat (from, &st) && S_ISDIR (st.st_mode);
  MPI_Request q;
  MPI_Ibcast (&folder, 1, MPI_INT, 0, j->m.world, &q);
  wait_all (1, &q);
  int found = folder ? ckpt_newest (from, j->m.world, INT64_MAX, path, &step, e) : 1;
  if (!found) return user_err (e, "load.from: %s has no checkpoint", from);
  if (found < 0 || ckpt_load (s, folder ? path : from, j->c.load.weights_only, e)) return -1;
  say (SAY_INFO, "began from %s, step %lld%s", folder ? path : from, (long long) s->step, j->c.load.weights_only ? ", its weights alone" : "");
  if (!j->c.load.weights_only) return 1;
  s->step = s->tokens = 0, s->updates = 0;
  xfree (s->spike_read);
  s->spike_read = NULL;
  return 1;
}

/* What was loaded is the state of now. */
static void adopt (struct job *j, const struct ckpt_state *s, struct place_in_data *at)
{
  *at = (struct place_in_data) { s->step, s->tokens, s->spike_read };
  step_set_updates (&j->s, s->updates);
  shard_stale (&j->s.sh);
}

int state_resume (struct job *j, struct saver *copy, struct place_in_data *at, const char *dir, struct err *e)
{
  struct ckpt_state s = state_of (j, 0, 0);
  bool through = !s.lay && copy && copy->copy;
  if (through) s.lay = lay_copied, s.ctx = copy;
  int found = ckpt_resume (&s, dir, j->c.load.fallback, e), own = found, kinds = CKPT_KINDS;
  if (!found && j->c.load.from[0]) {
    shard_init (&j->s.sh);   /* what is not loaded: moments */
    found = load_from (j, &s, e);
    if (j->c.load.weights_only) kinds = 1;
  }
  if (found <= 0) return found;
  if (through) copy_back (copy, kinds);
  adopt (j, &s, at);
  return own ? STATE_OWN : STATE_OTHER;
}

/* Nothing works on the state any more. */
static void settle (struct job *j)
{
  shard_settle (&j->s.sh);
  j->d.ops->drain (&j->d);
}

int state_back (struct job *j, struct saver *copy, struct place_in_data *at, const char *path, struct err *e)
{
  struct ckpt_state s = state_of (j, 0, 0);
  bool through = !s.lay && copy && copy->copy;
  settle (j);
  if (through) s.lay = lay_copied, s.ctx = copy;
  if (ckpt_load (&s, path, false, e)) return -1;
  if (through) copy_back (copy, CKPT_KINDS);
  adopt (j, &s, at);
  return 0;
}

/* ---- saving ---- */

void saver_open (struct saver *s, struct job *j)
{
  struct err e = { 0 };
  *s = (struct saver) { .j = j, .bytes = shard_copy_bytes (&j->s.sh) };
  if (!s->bytes) return;   /* the last save is waited for */
  s->copy = dev_reserve (&j->d, MEM_STAGE, SPACE_PINNED, s->bytes, &e);
  if (mesh_agree (&j->m, !s->copy, &e)) {
    say (SAY_INFO, "checkpoints are written while training waits: there is no room for a copy of the state in host memory (%s)", e.msg);
    if (s->copy) dev_release (&j->d, MEM_STAGE, SPACE_PINNED, s->copy, s->bytes);
    s->copy = NULL;
    j->c.run.save_async = false;   /* its plan is that of such a run */
    return;
  }
  memset (s->copy, 0, (size_t) s->bytes);   /* the first touch of memory costs more than the copy: now, and not in a save */
  s->q = j->d.ops->queue_open (&j->d, QUEUE_COPY, "save", NULL, 0);
  s->ready = j->d.ops->event_open (&j->d);
  s->copied = j->d.ops->event_open (&j->d);
}

void saver_close (struct saver *s)
{
  if (!s->copy) return;
  struct dev *d = &s->j->d;
  s->j->s.sh.hold = NULL;
  d->ops->event_close (d, s->ready);
  d->ops->queue_close (d, s->q);
  d->ops->event_close (d, s->copied);
  dev_release (d, MEM_STAGE, SPACE_PINNED, s->copy, s->bytes);
  s->copy = NULL;
}

/* The state of now into host memory, on a queue of its own; the optimizer waits for it. */
static void copy_state (struct saver *s)
{
  struct job *j = s->j;
  const struct dev_ops *ops = j->d.ops;
  shard_settle (&j->s.sh);
  ops->record (&j->d, j->s.q, s->ready);
  ops->wait (&j->d, s->q, s->ready);
  for (int i = 0; i < j->s.sh.units.count; i++)
    for (int k = 0; k < CKPT_KINDS; k++)
      dev_op (&j->d, s->q, OP_COPY, copy, .dst = copy_of (s, k, i), .src = part_of (j, k, i), .bytes = j->s.sh.units.unit[i].shard * 4);
  ops->record (&j->d, s->q, s->copied);
  j->s.sh.hold = s->copied;
}

/* The end of a save, good or bad. */
static int ended (struct saver *s, int rc, struct err *e)
{
  const struct conf *c = &s->j->c;
  if (!rc && s->going) say (SAY_INFO, "checkpoint of step %lld in %.1f s, training stood still for %.3f", (long long) s->step, now () - s->began, s->blocked);
  else if (!rc) say (SAY_INFO, "checkpoint of step %lld in %.1f s", (long long) s->step, now () - s->began);
  if (!rc) s->longest = MAX (s->longest, now () - s->began);
  if (!rc && s->j->m.rank == 0) ckpt_prune (c->run.dir, c->run.keep);
  if (!rc || c->run.save_error == SAVE_ERROR_STOP || s->last) return rc;
  say (SAY_WARN, "step %lld has no checkpoint, and training goes on (run.save_error): %s", (long long) s->step, e->msg);
  *e = (struct err) { 0 };
  return 0;
}

int saver_finish (struct saver *s, struct err *e)
{
  if (!s->v) return 0;
  double t = now ();
  base_phase ("save");
  saver_kick (s);
  int rc = ckpt_finish (&s->v, e);
  s->blocked += now () - t;
  return ended (s, rc, e);
}

/* Cores that computing leaves to a rank's writers; on a GPU it takes none. */
static int spare_cores (const struct job *j)
{
  int computing = j->d.conf.threads, all = wait_cores (j->m.local_size) / MAX (1, j->m.local_size);
  return computing ? MIN (4, MAX (1, all - computing)) : 0;
}

int saver_save (struct saver *s, const struct place_in_data *at, bool last, struct err *e)
{
  int64_t step = at->step;
  struct job *j = s->j;
  if (s->v) say (SAY_INFO, "the checkpoint of step %lld is still being written at step %lld: training waits for it", (long long) s->step, (long long) step);
  if (saver_finish (s, e)) return -1;
  base_phase ("save");
  bool behind = s->copy && !last;
  char *text = conf_text (&j->c);
  struct ckpt_state state = state_of (j, step, at->tokens);
  state.config = text;
  state.spike = at->spike;
  state.updates = step_updates (&j->s);
  bool through = s->copy && (behind || !state.see);   /* the copy's memory */
  if (through) state.get = get_copied, state.see = see_copied, state.ctx = s;
  if (behind) state.threads = spare_cores (j);
  else settle (j);
  s->step = step;
  s->began = now ();
  s->going = false;
  s->last = last;
  int rc = ckpt_begin (&state, j->c.run.dir, &s->v, e);
  xfree (text);
  if (!rc && through) copy_state (s);
  if (!rc && through && !behind) j->d.ops->sync (&j->d, s->copied);
  if (!rc && behind) {
    s->blocked = now () - s->began;
    return 0;
  }
  if (!rc) rc = ckpt_finish (&s->v, e);
  return ended (s, rc, e);
}

void saver_kick (struct saver *s)
{
  if (!s->v || s->going) return;
  s->j->d.ops->sync (&s->j->d, s->copied);
  s->going = true;
  ckpt_go (s->v);
}

double saver_seconds (const struct saver *s)
{
  int64_t bytes = 0;
  const struct units *u = &s->j->s.sh.units;
  if (s->longest > 0 || !s->j->c.run.save) return s->longest;
  for (int i = 0; i < u->count; i++) bytes += u->unit[i].shard * 4 * CKPT_KINDS;
  return (double) bytes / 100e6;
}

bool saver_busy (const struct saver *s) { return s->v && ckpt_busy (s->v); }

int saver_next (struct saver *s, struct err *e)
{
  if (!s->v) return 0;
  double t = now ();
  int rc = ckpt_next (&s->v, e);
  s->blocked += now () - t;
  return rc > 0 ? 0 : ended (s, rc, e);
}
