#include "config.h"
#include "convert.h"
#include "convert_int.h"
#include "full.h"
#include "hf_config.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
  "usage: [mpiexec -n N] pretrain import DIR --from hf [--run.dir RUN_DIR] [--option value ...]\n"
  "       [mpiexec -n N] pretrain import FILE.h5 --from full [--run.dir RUN_DIR] [--option value ...]\n"
  "\n"
  "Makes a checkpoint in RUN_DIR that any mesh loads, and RUN_DIR/config.yaml and RUN_DIR/model.yaml that say which model it is.\n"
  "  hf     DIR has config.json and safetensors (Llama, Mistral, Qwen2, Qwen3); the checkpoint is of step 0, with moments of zero.\n"
  "         Its small files (tokenizer and so on) are kept in RUN_DIR/hf\n"
  "  full   FILE.h5 is what `pretrain export --to full` wrote; step and moments come along\n"
  "Options of a run go into RUN_DIR/config.yaml, such as --train.seq_len 4096.\n";

/* --- Hugging Face --- */

/* The model of config.json as a configuration. */
static int hf_text (const char *dir, char **text, struct err *e)
{
  struct hf_config h;
  struct conf c;
  if (file_wanted (dir, FILE_HF, e) || hf_config_read (&h, dir, NULL, NULL, e)) return -1;
  conf_default (&c);
  c.arch = h.arch;
  const char *slash = strrchr (dir, '/');
  snprintf (c.model, sizeof c.model, "%s", slash && slash[1] ? slash + 1 : dir);
  if (!strcmp (h.dtype, "float32")) c.train.precision = PREC_FP32;
  else if (*h.dtype) c.train.precision = PREC_BF16;
  *text = conf_text (&c);
  return 0;
}

/* Buffers that old files hold beside the weights; what they say follows from config.json. */
static bool no_weight (const char *name)
{
  const char *end = strstr (name, ".self_attn.rotary_emb.inv_freq");
  return end && !end[strlen (".self_attn.rotary_emb.inv_freq")];
}

/* A tied model may have been written with its head: the embedding once more. */
static int same_head (const struct st *s, const struct st_tensor *head, struct err *e)
{
  enum { N = 1 << 16 };
  const struct st_tensor *embed = st_find (s, "model.embed_tokens.weight");
  float *a = xalloc (N * 4, "import"), *b = xalloc (N * 4, "import");
  int rc = embed && embed->count == head->count && wire_row[embed->type].real && wire_row[head->type].real ? 0 : -1;
  for (int64_t i = 0, n; i < head->count && !rc; i += n) {
    n = MIN (N, head->count - i);
    rc = wire_get (s->fd[embed->file], s->path[embed->file], embed->at, embed->type, i, n, a, e)
         || wire_get (s->fd[head->file], s->path[head->file], head->at, head->type, i, n, b, e) || memcmp (a, b, (size_t) n * 4) ? -1 : 0;
  }
  xfree (a);
  xfree (b);
  return rc ? user_err (e, "%s: tie_word_embeddings is true, but lm_head.weight is there and differs from model.embed_tokens.weight", s->path[head->file]) : 0;
}

static void shape_text (int ndim, const int64_t *shape, char out[static 128])
{
  int at = snprintf (out, 128, "[");
  for (int i = 0; i < ndim && at < 100; i++) at += snprintf (out + at, 128 - (size_t) at, "%s%lld", i ? ", " : "", (long long) shape[i]);
  snprintf (out + at, 128 - (size_t) at, "]");
}

static bool fits (const struct st_tensor *t, const struct place_tensor *want)
{
  return t->ndim == want->ndim && t->shape[0] == want->shape[0] && (t->ndim == 1 || t->shape[1] == want->shape[1]) && wire_row[t->type].real;
}

/* Each tensor of the model where the files have it; all differences are told. */
static int hf_match (struct conv *v, const char *dir, struct err *e)
{
  struct differ d = { 0 };
  struct st *s = &v->st;
  struct place *at = places_add (&v->p, CKPT_MASTER);
  bool *used = xalloc ((size_t) s->n + 1, "import");
  for (int64_t i = 0; i < v->p.n; i++) {
    const struct place_tensor *want = &v->p.tensor[i];
    const struct st_tensor *t = st_find (s, want->name);
    if (!t) { differ_say (dir, &d.missing, "tensor %s is missing", want->name); continue; }
    used[t - s->tensor] = true;
    at[i] = (struct place) { s->fd[t->file], s->path[t->file], t->at, t->type };
    if (fits (t, want)) continue;
    char a[128], b[128];
    shape_text (t->ndim, t->shape, a);
    shape_text (want->ndim, want->shape, b);
    differ_say (dir, &d.other, "tensor %s is %s %s, the model has %s%s", t->name, wire_row[t->type].name, a, b, wire_row[t->type].real ? "" : " of F32, BF16, F16 or F64");
  }
  const struct st_tensor *head = v->j.c.arch.tied ? st_find (s, "lm_head.weight") : NULL;
  for (int64_t i = 0; i < s->n; i++)
    if (!used[i] && &s->tensor[i] != head && !no_weight (s->tensor[i].name)) differ_say (dir, &d.unexpected, "tensor %.200s is not in the model", s->tensor[i].name);
  xfree (used);
  if (differ_err (&d, dir, e)) return -1;
  return head && !v->j.m.rank ? same_head (s, head, e) : 0;
}

static int hf_open (struct conv *v, const char *dir, struct err *e)
{
  int bad = st_open (&v->st, dir, e) || hf_match (v, dir, e);
  return mesh_agree (&v->j.m, bad, e);
}

/* Tokenizer and the like, for the run and for a later export. */
static int keep_small (const char *dir, const char *run_dir, struct err *e)
{
  char *to = xprintf ("%s/hf", run_dir);
  int rc = job_folder (to, e);
  for (int i = 0; conv_small[i] && rc >= 0; i++) rc = conv_copy (dir, to, conv_small[i], e);
  xfree (to);
  return rc < 0 ? -1 : 0;
}

/* --- FULL --- */

static int full_open (struct conv *v, const char *path, struct err *e)
{
  int bad = full_find (&v->p, path, e);
  int fd = bad ? -1 : open (path, O_RDONLY | O_CLOEXEC);
  if (!bad && fd < 0) bad = world_err (e, "cannot open %s: %s", path, strerror (errno));
  v->st.path = xalloc (sizeof *v->st.path, "import");   /* kept open and closed like a safetensors file */
  v->st.fd = xalloc (sizeof *v->st.fd, "import");
  v->st.path[0] = xstrdup (path, "import");
  v->st.fd[0] = fd;
  v->st.files = 1;
  for (int k = 0; k < CKPT_KINDS && !bad; k++)
    for (int64_t i = 0; i < v->p.n && v->p.at[k]; i++) v->p.at[k][i].fd = fd, v->p.at[k][i].path = v->st.path[0];
  return mesh_agree (&v->j.m, bad, e);
}

/* --- the run's folder --- */

/* model.yaml: the lines of `model:` in the configuration, as a file that `model: PATH` reads. */
static void put_model (const char *text, FILE *f)
{
  const char *s = strstr (text, "model:\n");
  for (s = s ? s + 7 : ""; s[0] == ' '; s += strcspn (s, "\n"), s += *s == '\n')
    if (strncmp (s, "  name:", 7)) fprintf (f, "%.*s\n", (int) strcspn (s + 2, "\n"), s + 2);
}

static int write_text (const char *dir, const char *name, const char *text, bool model, struct err *e)
{
  char *path = xprintf ("%s/%s", dir, name);
  FILE *f = fopen (path, "w");
  if (f && model) put_model (text, f);
  else if (f) fputs (text, f);
  int bad = !f || ferror (f);
  if (f && fclose (f)) bad = 1;
  if (bad) world_err (e, "cannot write %s: %s", path, strerror (errno));
  xfree (path);
  return -bad;
}

static int prepare (struct conv *v, const char *from, bool hf, const char *text, struct err *e)
{
  const char *dir = v->j.c.run.dir;
  char folder[CKPT_PATH];
  int64_t step;
  int found = ckpt_newest (dir, v->j.m.world, INT64_MAX, folder, &step, e);
  if (found < 0) return -1;
  if (found) return user_err (e, "%s has checkpoints already (%s): name another run.dir", dir, folder);
  int bad = v->j.m.rank ? 0 : job_folder (dir, e) || (hf && keep_small (from, dir, e)) || write_text (dir, "config.yaml", text, false, e) || write_text (dir, "model.yaml", text, true, e);
  return mesh_agree (&v->j.m, bad, e);
}

/* A tokenizer that came with the model is the run's, unless the user names one. */
static void own_tokenizer (struct conv *v, const char *from)
{
  static const char *const name[] = { "tokenizer.model", "tokenizer.json" };   /* where both are, the second is the first in another form */
  struct conf *c = &v->j.c;
  for (int i = 0; i < LEN (name) && !strcmp (c->data.tokenizer, "bytes"); i++) {
    char *path = xprintf ("%s/%s", from, name[i]);
    if (!access (path, R_OK)) snprintf (c->data.tokenizer, sizeof c->data.tokenizer, "%.1000s/hf/%s", c->run.dir, name[i]);
    xfree (path);
  }
}

static int save (struct conv *v, const char *path, bool hf, const struct full_head *h, struct err *e)
{
  double start = now ();
  if (hf) own_tokenizer (v, path);
  char *text = conf_text (&v->j.c);
  int rc = prepare (v, path, hf, text, e);
  struct ckpt_state s = conv_state (v);
  s.config = text;
  s.step = h->step, s.tokens = h->tokens, s.updates = h->updates;
  base_phase ("import");
  if (!rc) rc = ckpt_save (&s, v->j.c.run.dir, e);
  xfree (text);
  char name[CKPT_PATH];
  snprintf (name, sizeof name, "%.*s/checkpoints/step_%08lld.h5", STR, v->j.c.run.dir, (long long) h->step);
  if (!rc) conv_say_rate (v, "imported into", name, now () - start);
  return rc;
}

static int import (struct conv *v, const char *path, int argc, char **argv, struct err *e)
{
  const char *from = NULL;
  char *text = NULL;
  struct full_head h = { 0 };
  int bad = conv_take (&argc, argv, "--from", &from, e);
  if (!bad && !path) bad = user_err (e, "import what? pretrain import DIR --from hf, or FILE.h5 --from full");
  if (!bad && !from) bad = user_err (e, "import %s: --from hf or --from full is needed", path);
  bool hf = from && !strcmp (from, "hf"), full = from && !strcmp (from, "full");
  if (!bad && !hf && !full) bad = user_err (e, "--from %s is not known: hf or full", from);
  if (!bad && !v->j.m.rank) bad = hf ? hf_text (path, &text, e) : full_head (path, &h, e);
  if (mesh_agree (&v->j.m, bad, e)) return -1;
  if (!text) text = h.config;
  text = mesh_share_text (&v->j.m, text);
  MPI_Request q;
  double head[3] = { (double) h.step, (double) h.tokens, h.updates };
  MPI_Ibcast (head, 3, MPI_DOUBLE, 0, v->j.m.world, &q);
  wait_all (1, &q);
  h = (struct full_head) { (int64_t) head[0], (int64_t) head[1], head[2], NULL };
  int rc = conv_open (v, text, argc, argv, e);
  xfree (text);
  return rc || (hf ? hf_open (v, path, e) : full_open (v, path, e)) || save (v, path, hf, &h, e) ? -1 : 0;
}

int import_main (int argc, char **argv)
{
  argc--, argv++;
  if (argc > 0 && !strcmp (argv[0], "--help")) return fputs (help, stdout), EXIT_DONE;
  struct conv *v = xalloc (sizeof *v, "import");
  struct err e = { 0 };
  char *path = job_operand (&argc, &argv);
  int code = job_init (&v->j, &argc, &argv);
  if (!code) code = conv_end (v, 0, import (v, path, argc, argv, &e) ? &e : NULL);
  xfree (v);
  return code;
}
