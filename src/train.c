#include "config.h"
#include "data.h"
#include "dump.h"
#include "folder.h"
#include "job.h"
#include "metrics.h"
#include "observe.h"
#include "opt.h"
#include "spike.h"
#include "state.h"
#include "stop.h"
#include "train.h"
#include "tune.h"
#include "watch.h"
#include "tokenizer.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct run {
  struct job j;
  struct data *train, *valid;
  struct host_batch *batch;
  struct observer *seen;
  bool evaluated;            /* since the last step */
  struct saver saver;
  int64_t step, tokens;      /* done */
  struct spike spike;
  int64_t checked;           /* step of the last replica check, which found nothing; 0: none */
  int bad_steps;             /* skipped in a row */
  struct folder folder;
  bool kept;                 /* the state is that of a checkpoint in run.dir */
  int here;                  /* steps of this launch */
  double slowest;            /* seconds of the slowest of them with its evaluation, the first left out where there are more */
  char end[96];              /* why it ended, for exit.json */
};

/* ---- data ---- */

/* Was the token file made by data.tokenizer? Files of this program's say kind and hash; what others say is compared as it stands. */
static int check_tokenizer (const struct conf *c, const char *file, const struct data *d, struct err *e)
{
  const char *made = data_info (d)->tokenizer, *name = c->data.tokenizer;
  char own[TOKENIZER_NAME] = "";
  if (!made[0] || !name[0] || !strcmp (made, name)) return 0;
  bool ours = !strncmp (made, "bpe ", 4) || !strncmp (made, "sentencepiece ", 14);
  if (ours && strcmp (name, "bytes") && tokenizer_name (name, own, e)) return -1;
  if (ours && !strcmp (made, own)) return 0;
  return user_err (e, "data.tokenizer is %s%s%s%s, but %s was made with %s%s", name, own[0] ? " (" : "", own, own[0] ? ")" : "", file, made,
                   ours && !own[0] ? ": set data.tokenizer to that file" : "");
}

static void close_data (struct run *r)
{
  if (r->train) data_close (r->train);
  if (r->valid) data_close (r->valid);
  r->train = r->valid = NULL;
}

static int open_here (struct run *r, struct err *e)
{
  const struct conf *c = &r->j.c;
  bool tail = !c->data.valid[0] || !strcmp (c->data.valid, c->data.train);
  double cut = tail ? 1 - c->data.valid_fraction : 1;
  int bad = 0;
  if (!c->data.train[0]) bad = user_err (e, "data.train is not given: a token file made by pretrain tokenize");
  bad = bad || data_open (&r->train, c->data.train, c->data.format, c->arch.vocab, c->train.seq_len, 0, cut, e);
  if (!bad && !tail) bad = data_open (&r->valid, c->data.valid, c->data.format, c->arch.vocab, c->train.seq_len, 0, 1, e);
  if (!bad && tail && cut < 1) bad = data_open (&r->valid, c->data.train, c->data.format, c->arch.vocab, c->train.seq_len, cut, 1, e);
  if (!bad && c->data.document_mask && !data_info (r->train)->documents)
    bad = user_err (e, "data.document_mask: %s does not say where its documents end", c->data.train);
  return bad || check_tokenizer (c, c->data.train, r->train, e) || (r->valid && check_tokenizer (c, tail ? c->data.train : c->data.valid, r->valid, e)) ? -1 : 0;
}

/* Rank 0 first: files that it sees the others may see a little later, where the job has just made them (NFS). */
static int open_after_root (struct run *r, struct err *e)
{
  enum { LATE = 3 };   /* seconds */
  int bad = r->j.m.rank ? 0 : open_here (r, e), seen = !bad;
  MPI_Request q;
  MPI_Ibcast (&seen, 1, MPI_INT, 0, r->j.m.world, &q);
  wait_all (1, &q);
  if (!r->j.m.rank) return bad;
  for (double end = now () + (seen ? LATE : 0); (bad = open_here (r, e)) && now () < end; usleep (100000)) {
    close_data (r);
    *e = (struct err) { 0 };
  }
  return bad;
}

/* The corpus for training and validation; all ranks must see the same. Collective. */
static int open_data (struct run *r, struct err *e)
{
  base_phase ("data");
  int bad = open_after_root (r, e);
  if (mesh_agree (&r->j.m, bad, e)) return -1;
  char *a = data_text (r->train), *b = r->valid ? data_text (r->valid) : xstrdup ("", "text"), *text = xprintf ("%s\n%s", a, b);
  bad = mesh_same (&r->j.m, "data", text, e);
  xfree (a);
  xfree (b);
  xfree (text);
  return bad;
}

/* All micro-batches of a pass over global_batch samples from FIRST on into pinned memory; samples from LIMIT on are kept out of the loss. Local. */
static int fill (struct run *r, struct data *d, int64_t step, int64_t limit, struct err *e)
{
  const struct conf *c = &r->j.c;
  const struct step *s = &r->j.s;
  for (int a = 0; a < s->mbs; a++) {
    int64_t first = data_first (step, c->train.global_batch, a, s->dp, s->dp_rank, c->train.micro_batch);
    struct host_batch *b = &r->batch[a];
    bool doc = c->data.document_mask;
    if (data_batch (d, (uint64_t) c->train.seed, first, c->train.micro_batch, doc, b->ids, b->target, doc ? b->doc : NULL, doc ? b->pos : NULL, e) < 0) return -1;
    for (int64_t i = 0; i < s->b.g.n; i++)
      if (first + i / s->b.g.seq >= limit) b->target[i] = -1;
  }
  return 0;
}

/* ---- state ---- */

/* A run anew among the checkpoints of an older one: these would be kept as the newest, and resumed from. Collective. */
static int refuse_old (struct run *r, struct err *e)
{
  char path[CKPT_PATH];
  int64_t step;
  const char *dir = r->j.c.run.dir;
  int found = ckpt_newest (dir, r->j.m.world, INT64_MAX, path, &step, e);
  if (found > 0) user_err (e, "run.resume is false, but %s holds checkpoints up to step %lld: give another run.dir, or move %s/checkpoints away", dir, (long long) step, dir);
  return found ? -1 : 0;
}

/* The run is where AT says, whose text is freed. BACK: in its midst. Local: the same on all ranks. */
static int stand (struct run *r, struct place_in_data *at, bool back, struct err *e)
{
  r->step = at->step;
  r->tokens = at->tokens;
  int bad = spike_take (&r->spike, at->spike, back);
  xfree (at->spike);
  return bad ? world_err (e, "what the checkpoint of step %lld says of spikes is damaged (attribute spike)", (long long) r->step) : 0;
}

static int save (struct run *r, bool last, struct err *e)
{
  struct place_in_data at = { r->step, r->tokens, spike_text (&r->spike) };
  int rc = saver_save (&r->saver, &at, last, e);
  xfree (at.spike);
  return rc;
}

/* The newest good checkpoint, or initial weights. Collective. */
static int restore (struct run *r, struct err *e)
{
  base_phase ("load");
  if (!r->j.c.run.resume && refuse_old (r, e)) return -1;
  if (r->j.c.run.resume) {
    struct place_in_data at = { 0 };
    int found = state_resume (&r->j, &r->saver, &at, r->j.c.run.dir, e);
    if (found < 0) return -1;
    if (found) {
      r->kept = found == STATE_OWN;
      if (stand (r, &at, false, e)) return -1;
      say (SAY_INFO, "resumed at step %lld (%lld tokens)", (long long) r->step, (long long) r->tokens);
      return 0;
    }
  }
  shard_init (&r->j.s.sh);
  return 0;
}

/* ---- debug.dump: tensors for the referee ---- */

static void dump (struct run *r, const char *what, bool grad, double scale)
{
  const struct step *s = &r->j.s;
  struct piece *list;
  shard_settle (&r->j.s.sh);
  int n = units_pieces (&s->sh.units, &list);
  for (int i = 0; i < n; i++) {
    struct piece p = units_owned (&list[i], s->tp, s->tp_rank, s->sh.replicas, s->sh.replica);
    int64_t len = p.hi - p.lo, rows, cols;
    if (len <= 0) continue;
    char name[96];
    float *x = xalloc ((size_t) len * 4, "dump");
    param_shape (&s->c->arch, p.slot->id, &rows, &cols);
    param_name (&s->c->arch, p.slot->block, p.slot->id, name);
    const struct ushard *u = &s->sh.u[p.unit];
    if (grad && s->sh.gt == DT_BF16) {
      bf16 *h = xalloc ((size_t) len * 2, "dump");
      dev_get (&r->j.d, s->q, h, at_elem (u->grad, p.lo, DT_BF16), len * 2);
      for (int64_t k = 0; k < len; k++) x[k] = bf16_to_f32 (h[k]);
      xfree (h);
    } else dev_get (&r->j.d, s->q, x, grad ? (float *) u->grad + p.lo : u->master + p.lo, len * 4);
    for (int64_t k = 0; k < len; k++) x[k] = (float) (x[k] * scale);
    dump_piece (s->c->debug.dump, what, name, cols, p.slot->part.row0, p.slot->part.col0, p.slot->part.cols, p.start, len, x);
    xfree (x);
  }
  xfree (list);
  mesh_barrier (r->j.m.world);
}

/* ---- the loop ---- */

/* Seconds for which one more step and a save must find room. */
static double need (const struct run *r) { return 2 * r->slowest + 2 * saver_seconds (&r->saver) + 15; }

/* Did any rank FAIL? Why does any want to stop? Would any wait for the save under way? Collective. */
struct verdict { int failed, stop, busy; };
static struct verdict verdict (struct run *r, int failed)
{
  struct verdict v = { failed != 0, stop_wish (&r->j.m, need (r)), saver_busy (&r->saver) };
  MPI_Request q;
  MPI_Iallreduce (MPI_IN_PLACE, &v, 3, MPI_INT, MPI_MAX, r->j.m.world, &q);
  wait_all (1, &q);
  return v;
}

/* Ends early, without a loss, where there is a wish to stop: then *STOP says why. */
static int evaluate (struct run *r, double *loss, enum stop_why *stop, struct err *e)
{
  double sum = 0, tokens = 0;
  const struct conf *c = &r->j.c;
  base_phase ("evaluation");
  for (int64_t b = 1; b <= c->eval.batches; b++) {
    struct step_result out;
    int64_t limit = data_info (r->valid)->samples;
    if ((b - 1) * c->train.global_batch >= limit) break;
    int failed = fill (r, r->valid, b, limit, e);
    struct verdict v = verdict (r, failed);
    if (v.failed) return mesh_agree (&r->j.m, failed, e);
    if ((*stop = v.stop)) return 0;
    step_eval (&r->j.s, r->batch, &out);
    if (out.tokens > 0) sum += out.loss * out.tokens, tokens += out.tokens;
  }
  *loss = sum / tokens;
  return 0;
}

static int stopped (struct run *r, enum stop_why why)
{
  snprintf (r->end, sizeof r->end, "stopped on request (%s)", stop_text (why));
  say (SAY_INFO, "%s after step %lld; %s", r->end, (long long) r->step,
       r->j.c.run.save ? "a checkpoint is saved, the same command goes on from it" : "nothing is saved, as run.save false asks");
  if (r->j.m.rank == 0) stop_done (why);
  return EXIT_STOPPED + 1;
}

/* debug.slow_rank: its data come late. */
static void slow_down (const struct run *r)
{
  const struct conf *c = &r->j.c;
  if (c->debug.slow_rank != r->j.m.rank) return;
  double ms = c->debug.slow_ms;
  nanosleep (&(struct timespec) { (time_t) (ms / 1e3), (long) (fmod (ms, 1e3) * 1e6) }, NULL);
}

/* debug.spike_batch: its targets are all a token that hardly occurs. */
static void make_spike (struct run *r)
{
  int32_t rare = (int32_t) r->j.c.arch.vocab - 2;
  for (int a = 0; a < r->j.s.mbs; a++)
    for (int64_t i = 0; i < r->j.s.b.g.n; i++)
      if (r->batch[a].target[i] >= 0) r->batch[a].target[i] = rare;
}

/* Do the ranks that hold the same state hold the same bits? -1 with the sentence. Collective. */
static int check_replicas (struct run *r, bool flip, struct err *e)
{
  struct job *j = &r->j;
  struct replicas *p = &j->s.replicas;
  base_phase ("replica check");
  if (flip && j->c.debug.flip_rank == j->m.rank && !replicas_flip (p, (enum replica_kind) j->c.debug.flip_kind, j->c.debug.flip_tensor))
    say_all (SAY_WARN, "debug.flip_tensor: this rank holds no such in common with others");
  bool mine = replicas_agree (p);
  int differ = !mine;
  MPI_Request q;
  MPI_Iallreduce (MPI_IN_PLACE, &differ, 1, MPI_INT, MPI_MAX, j->m.world, &q);
  wait_all (1, &q);
  if (differ) return replicas_tell (p, &j->m, mine, r->step, r->checked, e);
  r->checked = r->step;
  return 0;
}

/* The newest checkpoint, but before those that were made because the run was to stop: to go back to the same place as a run that was not stopped. 1, 0: there is none, -1. Collective. */
static int back_to (struct run *r, char path[static CKPT_PATH], struct err *e)
{
  const struct conf *c = &r->j.c;
  char newest[CKPT_PATH];
  int64_t step, below = INT64_MAX;
  int rc = ckpt_newest (c->run.dir, r->j.m.world, below, newest, &step, e);
  if (rc <= 0) return rc;
  memcpy (path, newest, CKPT_PATH);
  while (c->run.save_every && step % c->run.save_every) {
    below = step;
    if (ckpt_newest (c->run.dir, r->j.m.world, below, newest, &step, e) <= 0) return 1;
    if (step % c->run.save_every == 0) memcpy (path, newest, CKPT_PATH);
  }
  return 1;
}

/* The step just done is a spike, its update was left out. Returns 1 if the run went back, 0, -1 with the sentence. Collective. */
static int on_spike (struct run *r, const struct step_result *out, int64_t batch, struct err *e)
{
  struct metrics_spike s = { "skip", r->step, batch, -1, out->loss, out->norm, 0, 0 };
  char path[CKPT_PATH];
  int64_t from = r->step;
  spike_scores (&r->spike, out->loss, out->norm, &s.z_loss, &s.z_norm);
  say (SAY_WARN, "step %lld is a spike: loss %.4f (%.1f standard deviations above the last %lld steps), gradient norm %.3f (%.1f)", (long long) from, out->loss, s.z_loss,
       (long long) r->spike.n, out->norm, s.z_norm);
  observe_spike (r->seen, &s);
  if (spike_hit (&r->spike, batch, e)) return -1;
  if (r->j.c.spike.action == SPIKE_SKIP) return say (SAY_WARN, "its update is left out (spike.action)"), 0;
  if (saver_finish (&r->saver, e)) return -1;
  base_phase ("rollback");
  int found = r->j.c.run.save ? back_to (r, path, e) : 0;
  if (found < 0) return -1;
  if (!found) return say (SAY_WARN, "its update is left out: there is no checkpoint to go back to"), 0;
  struct place_in_data at = { 0 };
  if (state_back (&r->j, &r->saver, &at, path, e)) return -1;
  int64_t first = spike_batch (&r->spike, at.step + 1);
  if (stand (r, &at, true, e)) return -1;
  spike_leave_out (&r->spike, first, batch);
  s.action = "rollback";
  s.back_to = r->step;
  observe_back (r->seen, r->step);
  observe_spike (r->seen, &s);
  r->bad_steps = 0;
  say (SAY_WARN, "back to %s; batches %lld to %lld are left out (spike.action)", path, (long long) first, (long long) batch);
  return 1;
}

/* One step with what belongs to it. Returns 0 to go on, an exit code + 1 to end, -1 with the sentence. Collective. */
static int one_step (struct run *r, struct err *e)
{
  const struct conf *c = &r->j.c;
  char phase[64];
  struct step_result out;
  double t = now (), lr = opt_lr (c, r->step + 1), eval;
  snprintf (phase, sizeof phase, "step %lld", (long long) r->step + 1);
  base_phase (phase);
  observe_begin (r->seen);
  int64_t batch = spike_batch (&r->spike, r->step + 1);
  int failed = fill (r, r->train, batch, INT64_MAX, e);
  if (c->debug.spike_batch == batch) make_spike (r);
  slow_down (r);
  r->j.s.poison = c->debug.nan_rank == r->j.m.rank && c->debug.nan_step == r->step + 1;
  bool dumps = c->debug.dump[0] && r->step + 1 == c->debug.dump_step;
  if (dumps) dump (r, "init", false, 1);
  spike_limits (&r->spike, &r->j.s.loss_limit, &r->j.s.norm_limit);
  observe_train (r->seen);
  step_train (&r->j.s, r->batch, lr, &out);
  observe_lap (r->seen, LAP_STEP);
  saver_kick (&r->saver);
  /* After the step, though it could travel beside it: a wish that came in the midst of it is heard now, and not a whole step later. */
  struct verdict v = verdict (r, failed);
  if (v.failed) return mesh_agree (&r->j.m, failed, e);
  watch_step (++r->step);
  r->kept = false;
  r->tokens += c->train.global_batch * c->train.seq_len;
  bool bad = out.skipped && !out.spike;
  r->bad_steps = bad ? r->bad_steps + 1 : 0;
  if (!out.skipped) spike_add (&r->spike, out.loss, out.norm);
  if (bad) say (SAY_WARN, "step %lld skipped: the gradient is not finite (%d in a row)", (long long) r->step, r->bad_steps);
  if (dumps) dump (r, "grad", true, 1 / out.tokens);
  observe_end (r->seen, r->step, !r->evaluated);
  if (out.spike) {
    int back = on_spike (r, &out, batch, e);
    if (back) return back < 0 ? -1 : 0;
  }
  bool last = r->step == c->train.steps;
  enum stop_why stop = v.stop;
  bool due = r->valid && c->eval.batches && (last || (c->eval.every && r->step % c->eval.every == 0));
  r->evaluated = due && !stop;
  if (r->evaluated && evaluate (r, &eval, &stop, e)) return -1;
  observe_lap (r->seen, LAP_EVAL);
  if (r->here++ < 2) r->slowest = 0;
  r->slowest = MAX (r->slowest, now () - t);
  observe_record (r->seen, &out, lr, r->tokens, due && !stop ? &eval : NULL);
  if (r->bad_steps >= c->train.max_bad_steps)
    return user_err (e, "diverged: %d steps in a row had values that are not finite (train.max_bad_steps), the last good step is %lld", r->bad_steps, (long long) r->step - r->bad_steps),
           e->code = EXIT_DIVERGED, -1;
  if (!v.busy && saver_next (&r->saver, e)) return -1;
  bool saves = c->run.save && (last || stop || (c->run.save_every && r->step % c->run.save_every == 0)), flip = c->debug.flip_step == r->step;
  if (c->run.replica_check_steps && (saves || r->step % c->run.replica_check_steps == 0 || flip) && check_replicas (r, flip, e)) return -1;
  if (saves)
    if (save (r, last || stop, e)) return -1;
  observe_lap (r->seen, LAP_SAVE);
  return stop && !last ? stopped (r, stop) : 0;
}

/* A wish from before the first step. Not of time: a job that has time for nothing but its start would be started for ever. Collective. */
static int stop_at_start (struct run *r, struct err *e)
{
  enum stop_why why = stop_agreed (&r->j.m, -1);
  if (!why) return 0;
  if (r->j.c.run.save && !r->kept && save (r, true, e)) return -1;
  return stopped (r, why);
}

static void announce (const struct run *r)
{
  const struct conf *c = &r->j.c;
  char n[24];
  int threads = r->j.d.conf.threads, cores = wait_cores (r->j.m.local_size);
  if (r->j.m.rank) return;
  count_text (arch_params (&c->arch), n);
  printf ("pretrain: %s, %s parameters, %s, %lld steps of %lld x %lld tokens on %d rank%s\n", c->model, n, precision_name (c), (long long) c->train.steps,
          (long long) c->train.global_batch, (long long) c->train.seq_len, r->j.m.size, r->j.m.size == 1 ? "" : "s");
  printf ("ranks of a node: %d on %d core%s", r->j.m.local_size, cores, cores == 1 ? "" : "s");
  if (threads) printf (", %d compute thread%s each", threads, threads == 1 ? "" : "s");   /* a GPU has none */
  if (r->j.gpus[0]) printf (", GPU%s %s", r->j.m.local_size == 1 ? "" : "s", r->j.gpus);
  printf ("\n\n");
  mesh_draw (&r->j.m.shape, r->j.m.node_of, stdout);
  printf ("\n");
  step_memory (&r->j.s, stdout);
  printf ("\n");
  fflush (stdout);
}

static int train (struct run *r, const char *yaml, int argc, char **argv, struct err *e)
{
  const struct conf *c = &r->j.c;
  if (job_options (&r->j, yaml, argc, argv, e)) return -1;
  if (spike_open (&r->spike, c, e)) return -1;
  stop_open (c->run.dir, c->run.max_minutes);
  watch_open (&r->j.m, c->run.watchdog);
  if (open_data (r, e) || folder_take (&r->folder, &r->j, e)) return -1;
  watch_dir (c->run.dir);
  if (job_start (&r->j, e)) return -1;
  watch_device (&r->j.d);
  saver_open (&r->saver, &r->j);
  announce (r);
  r->batch = job_batches (&r->j, r->j.s.mbs, e);
  if (mesh_agree (&r->j.m, !r->batch, e) || restore (r, e)) return -1;
  r->seen = observe_open (&r->j, r->step, e);
  if (mesh_agree (&r->j.m, !r->seen || folder_stands (&r->folder, &r->j, e), e)) return -1;
  if (r->step >= c->train.steps) say (SAY_INFO, "nothing to do: step %lld of %lld is reached", (long long) r->step, (long long) c->train.steps);
  tune_load (&r->j, r->step > 0);
  bool fresh = !r->step;
  observe_plan (r->seen);
  int rc = r->step < c->train.steps ? stop_at_start (r, e) : 0;
  while (!rc && r->step < c->train.steps) {
    rc = one_step (r, e);
    if (fresh && r->step == 1 && rc >= 0) tune_share (&r->j), fresh = false;
  }
  if (rc >= 0 && r->here) observe_report (r->seen);
  return rc;
}

static struct run *the_run;
static void last_words (int code, const char *sentence)
{
  watch_leave ();
  if (the_run->folder.there || the_run->folder.own) exit_write (the_run->j.c.run.dir, code, sentence, the_run->step);
}

/* The watchdog's time before MPI is up, and so before all ranks have read the options together: mistakes in them are told then. */
static void watch_early (const char *yaml, int argc, char **argv)
{
  struct conf *c = xalloc (sizeof *c, "options");
  struct err e = { 0 };
  conf_default (c);
  say_level (SAY_ERROR);
  if (!conf_load (c, yaml, argc, argv, &e)) watch_start (c->run.watchdog);
  say_level (SAY_INFO);
  xfree (c);
}

int train_main (int argc, char **argv)
{
  argc--, argv++;
  struct run *r = xalloc (sizeof *r, "run");
  struct err e = { 0 };
  char *yaml = job_operand (&argc, &argv);
  stop_signals ();
  watch_early (yaml, argc, argv);
  int code = job_init (&r->j, &argc, &argv);
  if (code) {
    watch_stop ();
    xfree (r);
    return code;
  }
  r->folder.lock = -1;
  the_run = r;
  base_last_words (last_words);
  int rc = train (r, yaml, argc, argv, &e);
  struct err late = { 0 };
  if (saver_finish (&r->saver, &late) && rc >= 0) rc = -1, e = late;
  saver_close (&r->saver);
  code = rc > 0 ? rc - 1 : EXIT_DONE;
  if (r->folder.own) exit_write (r->j.c.run.dir, rc < 0 ? e.code : code, rc < 0 ? e.msg : code ? r->end : "done", r->step);
  folder_leave (&r->folder);
  base_last_words (NULL);
  mesh_barrier (r->j.m.world);   /* whoever dies from here on does so after the run's last word */
  watch_ending ();
  observe_close (r->seen);
  if (r->batch) dev_release (&r->j.d, MEM_STAGE, SPACE_PINNED, r->batch[0].ids, r->j.s.mbs * r->j.s.b.g.n * 16);
  xfree (r->batch);
  spike_close (&r->spike);
  close_data (r);
  code = job_end (&r->j, code, rc < 0 ? &e : NULL);
  watch_stop ();
  xfree (r);
  return code;
}
