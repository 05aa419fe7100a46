#include "config.h"
#include "sample.h"
#include "state.h"
#include "tokenizer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct want {
  const char *prompt;
  const char *eod;           /* the token that ends a document, where the tokenizer's own is not known */
  const char *ids, *logits;  /* "5,17,3": the prompt as ids; a file for the logits after each of them */
  int64_t tokens, top_k, seed;
  double temperature;        /* 0: the likeliest */
};

static void usage (FILE *f)
{
  fputs ("usage: mpiexec -n N pretrain sample RUN_DIR [--prompt TEXT] [--tokens 200] [--temperature 0.8] [--top_k 0] [--sample_seed 1] [--eod TOKEN] [--option value ...]\n"
         "       mpiexec -n N pretrain sample RUN_DIR --ids 5,17,3 --logits FILE.f32\n"
         "Text from the newest checkpoint of a run, by its data.tokenizer. The window is computed again for each token.\n"
         "--logits: fp32 [ids, vocabulary], what the model says after each of the ids, in place of text.\n", f);
}

/* Our own options out of argv; the others stay, in order. */
static int take_options (struct want *w, int *argc, char **argv, struct err *e)
{
  int n = 0;
  *w = (struct want) { .prompt = "", .tokens = 200, .seed = 1, .temperature = 0.8 };
  for (int i = 0; i < *argc; i++) {
    const char *a = argv[i], *v = i + 1 < *argc ? argv[i + 1] : NULL;
    static const char *const mine[] = { "--prompt", "--tokens", "--temperature", "--top_k", "--sample_seed", "--ids", "--logits", "--eod" };
    int k = 0, near = -1;
    for (int j = 0; j < LEN (mine); j++)   /* a prefix or one letter too many of one of ours, which the options of a run would not name */
      if (strcmp (a, mine[j]) && (!strncmp (a, mine[j], strlen (a)) || !strncmp (a, mine[j], strlen (mine[j]))) && strlen (a) > 4) near = j;
    if (near >= 0) return user_err (e, "%s: there is no such option; the nearest is %s", a, mine[near]);
    while (k < LEN (mine) && strcmp (a, mine[k])) k++;
    if (k == LEN (mine)) {
      argv[n++] = argv[i];
      continue;
    }
    if (!v) return user_err (e, "%s wants a value", a);
    char *end = "";
    i++;
    if (k == 0) w->prompt = v;
    if (k == 1) w->tokens = strtoll (v, &end, 10);
    if (k == 2) w->temperature = strtod (v, &end);
    if (k == 3) w->top_k = strtoll (v, &end, 10);
    if (k == 4) w->seed = strtoll (v, &end, 10);
    if (k == 5) w->ids = v;
    if (k == 6) w->logits = v;
    if (k == 7) w->eod = v;
    if (*end || end == v || w->tokens < 0 || w->temperature < 0 || w->top_k < 0) return user_err (e, "%s %s: not a number that is possible here", a, v);
  }
  *argc = n;
  return 0;
}

/* Options that fit the run's configuration to this world: one sequence a rank, and another mesh where the run's does not fill it. */
static int fit (const char *yaml, int world, int argc, char **argv, char *out[32], struct err *e)
{
  static char text[16];
  struct conf c;
  int n = 0;
  conf_default (&c);
  if (conf_load (&c, yaml, 0, NULL, e)) return -1;
  for (int i = 0; i < argc && n < 16; i++) out[n++] = argv[i];
  bool given = false;
  for (int i = 0; i < argc; i++) given |= !strncmp (argv[i], "--mesh.", 7);
  int64_t cut = c.mesh.tp * c.mesh.pp;
  const char *more[] = { "--train.micro_batch", "1", "--train.global_batch", "0", "--sharding.strategy", "FULL_SHARD", "--mesh.dp_replicate", "1", "--mesh.dp_shard", text,
    "--mesh.tp", "1", "--mesh.pp", "1", "--pipeline.split", "" };
  bool keep = world % cut == 0;
  snprintf (text, sizeof text, "%lld", (long long) (keep ? world / cut : world));
  int k = given ? 6 : keep ? 10 : LEN (more);
  for (int i = 0; i < k; i++) out[n++] = (char *) more[i];
  return n;
}

static uint64_t random_bits (uint64_t seed, uint64_t i)
{
  uint64_t x[2] = { seed, i };
  return hash_bytes (x, sizeof x, 0x5a);
}

static int by_value (const void *a, const void *b)
{
  float x = *(const float *) a, y = *(const float *) b;
  return (x < y) - (x > y);
}

/* One id from the logits: temperature, the top_k likeliest, one uniform number. */
static int32_t draw (const float *logit, int64_t n, const struct want *w, int64_t i)
{
  int64_t best = 0;
  for (int64_t k = 1; k < n; k++)
    if (logit[k] > logit[best]) best = k;
  if (w->temperature == 0) return (int32_t) best;
  float least = -INFINITY;
  if (w->top_k > 0 && w->top_k < n) {
    float *s = xalloc ((size_t) n * 4, "sample");
    memcpy (s, logit, (size_t) n * 4);
    qsort (s, (size_t) n, 4, by_value);
    least = s[w->top_k - 1];
    xfree (s);
  }
  double sum = 0, at = 0;
  for (int64_t k = 0; k < n; k++)
    if (logit[k] >= least) sum += exp ((logit[k] - logit[best]) / w->temperature);
  double u = (double) (random_bits ((uint64_t) w->seed, (uint64_t) i) >> 11) * 0x1p-53 * sum;
  for (int64_t k = 0; k < n; k++) {
    if (logit[k] < least) continue;
    at += exp ((logit[k] - logit[best]) / w->temperature);
    if (at > u) return (int32_t) k;
  }
  return (int32_t) best;
}

/* The last window of the text as a batch. */
static int64_t window (const struct job *j, const int32_t *text, int64_t n, struct host_batch *b)
{
  int64_t seq = j->s.b.g.seq, len = MIN (n, seq);
  for (int64_t i = 0; i < seq; i++) {
    b->ids[i] = i < len ? text[n - len + i] : 0;
    b->target[i] = -1;
    b->doc[i] = 0;
    b->pos[i] = (int32_t) i;
  }
  return len;
}

/* The ids of W->ids; *list is xalloc'd. Their number, or -1. */
static int64_t parse_ids (const char *s, int64_t vocab, int32_t **list, struct err *e)
{
  int64_t n = 0;
  *list = xalloc ((strlen (s) / 2 + 2) * sizeof **list, "sample");
  for (char *end; *s; s = end + (*end == ',')) {
    long long v = strtoll (s, &end, 10);
    if (end == s || (*end && *end != ',') || v < 0 || v >= vocab) return user_err (e, "--ids: %.20s is no id below %lld, or no comma follows", s, (long long) vocab);
    (*list)[n++] = (int32_t) v;
  }
  return n ? n : user_err (e, "--ids is empty");
}

/* F32 [n, vocab] into W->logits: what follows each of the ids, which are taken as they are. */
static int dump_logits (struct job *j, const struct want *w, struct err *e)
{
  int64_t vocab = j->c.arch.vocab;
  int32_t *ids = NULL;
  int64_t n = parse_ids (w->ids ? w->ids : "", vocab, &ids, e);
  if (n > j->s.b.g.seq) n = user_err (e, "--ids has %lld ids, a window %lld: set --train.seq_len", (long long) n, (long long) j->s.b.g.seq);
  struct host_batch *b = n < 0 ? NULL : job_batches (j, j->s.mbs, e);
  int coord[AXIS_N] = { [AXIS_PP] = j->s.pp - 1 };
  bool writes = j->m.rank == mesh_rank (&j->m.shape, coord);
  FILE *f = b && writes ? fopen (w->logits, "wb") : NULL;
  if (b && writes && !f) n = user_err (e, "cannot write %s", w->logits);
  int bad = mesh_agree (&j->m, n < 0 || !b, e);
  float *logit = xalloc ((size_t) vocab * 4, "sample");
  for (int64_t i = 0; i < n && !bad; i++) {
    window (j, ids, n, b);
    step_logits (&j->s, b, i, logit);
    if (f) must (fwrite (logit, 4, (size_t) vocab, f) == (size_t) vocab, "cannot write %s", w->logits);
  }
  if (f) must (!fclose (f), "cannot write %s", w->logits);
  if (b) dev_release (&j->d, MEM_STAGE, SPACE_PINNED, b[0].ids, j->s.mbs * j->s.b.g.n * 16);
  xfree (b);
  xfree (logit);
  xfree (ids);
  return bad;
}

/* What was decoded beyond *SHOWN bytes, up to a character that is not whole yet. */
static void show (struct tokenizer *t, const int32_t *ids, int64_t n, int64_t *shown, bool all)
{
  char *text = NULL;
  int64_t size = 0, skip, end;
  tokenizer_decode (t, ids, n, &text, &size);
  for (end = *shown; text && end < size; end += skip) {
    skip = 0;
    end = utf8_bad (text, end, size, &skip);
    if (end + skip >= size && !all) break;   /* its bytes may still come */
  }
  if (text && all) end = size;
  if (text && end > *shown) fwrite (text + *shown, 1, (size_t) (end - *shown), stdout), fflush (stdout), *shown = end;
  xfree (text);
}

static int generate (struct job *j, const struct want *w, struct tokenizer *t, struct err *e)
{
  int64_t vocab = j->c.arch.vocab, n = 0, shown = 0;
  struct ids prompt = { 0 };
  struct host_batch *b = job_batches (j, j->s.mbs, e);
  int bad = !b || tokenizer_encode (t, w->prompt, (int64_t) strlen (w->prompt), &prompt, e);
  if (mesh_agree (&j->m, bad, e)) return xfree (prompt.at), -1;
  int32_t *text = xalloc ((size_t) (prompt.n + w->tokens + 1) * 4, "sample");
  float *logit = xalloc ((size_t) vocab * 4, "sample");
  text[n++] = (int32_t) t->eod;   /* a document begins after the end of another */
  for (int64_t i = 0; i < prompt.n; i++) text[n++] = prompt.at[i];
  int coord[AXIS_N] = { [AXIS_PP] = j->s.pp - 1 }, source = mesh_rank (&j->m.shape, coord);
  if (j->m.rank == 0) show (t, text + 1, n - 1, &shown, true);
  for (int64_t i = 0; i < w->tokens; i++) {
    int64_t len = window (j, text, n, b);
    if (step_logits (&j->s, b, len - 1, logit) && j->m.rank == source) text[n] = draw (logit, vocab, w, i);
    MPI_Request q;
    MPI_Ibcast (&text[n], 1, MPI_INT32_T, source, j->m.world, &q);
    wait_all (1, &q);
    if (text[n] == t->eod) break;
    n++;
    if (j->m.rank == 0) show (t, text + 1, n - 1, &shown, false);
  }
  if (j->m.rank == 0) show (t, text + 1, n - 1, &shown, true), putchar ('\n');
  dev_release (&j->d, MEM_STAGE, SPACE_PINNED, b[0].ids, j->s.mbs * j->s.b.g.n * 16);
  xfree (b);
  xfree (text);
  xfree (logit);
  xfree (prompt.at);
  return 0;
}

static int sample (struct job *j, const char *dir, int argc, char **argv, struct err *e)
{
  struct want w;
  char yaml[STR + 32], *fitted[48];
  struct place_in_data at = { 0 };
  if (!dir) return user_err (e, "which run? pretrain sample RUN_DIR");
  snprintf (yaml, sizeof yaml, "%s/config.yaml", dir);
  int n = -1, bad = take_options (&w, &argc, argv, e);
  if (!bad && access (yaml, R_OK)) bad = user_err (e, "%s is no run's folder: it has no config.yaml", dir);
  bad = bad || (n = fit (yaml, j->m.size, argc, argv, fitted, e)) < 0;
  if (mesh_agree (&j->m, bad, e)) return -1;
  if (job_options (j, yaml, n, fitted, e) || job_start (j, e)) return -1;
  struct tokenizer *t = w.logits ? NULL : tokenizer_open (j->c.data.tokenizer, w.eod, e);
  bad = !w.logits && !t;
  if (t && t->vocab > j->c.arch.vocab)
    bad = user_err (e, "the tokenizer %s has %lld ids, the model %lld: it is of another model", j->c.data.tokenizer, (long long) t->vocab, (long long) j->c.arch.vocab);
  if (mesh_agree (&j->m, bad, e)) return tokenizer_close (t), -1;
  int found = state_resume (j, NULL, &at, dir, e), rc = found < 0 ? -1 : 0;
  xfree (at.spike);
  if (!found) rc = user_err (e, "%s has no checkpoint yet", dir);
  else if (!rc) rc = w.logits ? dump_logits (j, &w, e) : generate (j, &w, t, e);
  tokenizer_close (t);
  return rc;
}

int sample_main (int argc, char **argv)
{
  argc--, argv++;
  if (argc > 0 && !strcmp (argv[0], "--help")) return usage (stdout), EXIT_DONE;
  struct job *j = xalloc (sizeof *j, "job");
  struct err e = { 0 };
  char *dir = job_operand (&argc, &argv);
  int code = job_init (j, &argc, &argv);
  if (!code) {
    say_level (SAY_WARN);
    code = job_end (j, 0, sample (j, dir, argc, argv, &e) ? &e : NULL);
  }
  xfree (j);
  return code;
}
