#include "config.h"
#include "convert.h"
#include "convert_int.h"
#include "full.h"
#include "hf_config.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
  "usage: [mpiexec -n N] pretrain export CKPT --to hf DIR [--dtype bf16] [--shard_size 5G] [--like DIR2]\n"
  "       [mpiexec -n N] pretrain export CKPT --to full FILE.h5 [--weights_only true]\n"
  "\n"
  "CKPT is RUN_DIR/checkpoints/step_*.h5 of any mesh, or a RUN_DIR (its newest checkpoint).\n"
  "  hf     config.json and safetensors; several files with an index where they would grow above --shard_size bytes\n"
  "         --dtype fp32, bf16 or fp16 (left out: bf16, or fp32 where the run's train.dtype is fp32)\n"
  "         --like a Hugging Face folder whose token ids and tokenizer files come along (left out: RUN_DIR/hf, if it is there)\n"
  "  full   one HDF5 file with one dataset a tensor, fp32, with both moments unless --weights_only true\n";

struct want { const char *to, *out, *dtype, *shard, *like, *weights; };

/* --- Hugging Face --- */

static int64_t size_of (const char *s)
{
  char *end;
  double v = strtod (s, &end), unit = *end == 'k' ? 1e3 : *end == 'M' ? 1e6 : *end == 'G' ? 1e9 : *end == 'T' ? 1e12 : 1;
  if (unit > 1) end++;
  return end == s || *end || !(v * unit >= 1) || v * unit > 9e18 ? -1 : (int64_t) (v * unit);
}

/* The tensors of the model as those of the files, in the type that was asked for. */
static void st_of_places (struct st *s, const struct places *p, enum wire type)
{
  s->n = p->n;
  s->tensor = xalloc ((size_t) p->n * sizeof *s->tensor, "export");
  for (int64_t i = 0; i < p->n; i++) {
    const struct place_tensor *t = &p->tensor[i];
    s->tensor[i] = (struct st_tensor) { .name = xstrdup (t->name, "export"), .type = type, .ndim = t->ndim, .shape = { t->shape[0], t->ndim > 1 ? t->shape[1] : 0 }, .count = t->count };
  }
}

static int write_config (const struct conv *v, const struct want *w, enum wire type, struct err *e)
{
  struct hf_config h = { .bos = -1, .eos = -1, .pad = -1 }, like;
  struct err why = { 0 };
  if (w->like && hf_config_read (&like, w->like, NULL, NULL, &why)) return user_err (e, "--like: %s", why.msg);
  if (w->like) h = like;
  h.arch = v->j.c.arch;
  snprintf (h.dtype, sizeof h.dtype, "%s", type == W_F32 ? "float32" : type == W_BF16 ? "bfloat16" : "float16");
  char *text = hf_config_text (&h, e), *path = xprintf ("%s/config.json", w->out);
  FILE *f = text ? fopen (path, "w") : NULL;
  int bad = !text || !f || fputs (text, f) < 0;
  if (f && fclose (f)) bad = 1;
  if (text && bad) world_err (e, "cannot write %s: %s", path, strerror (errno));
  xfree (text);
  xfree (path);
  return -bad;
}

static int small_files (const struct want *w, struct err *e)
{
  for (int i = 0; w->like && conv_small[i]; i++)
    if (strcmp (conv_small[i], "config.json") && conv_copy (w->like, w->out, conv_small[i], e) < 0) return -1;
  return 0;
}

/* Weights left there by another export would be taken for these. */
static int folder_free (const char *dir, struct err *e)
{
  static const char *const name[] = { "model.safetensors", "model.safetensors.index.json" };
  for (int i = 0; i < LEN (name); i++) {
    char *path = xprintf ("%s/%s", dir, name[i]);
    int bad = access (path, F_OK) ? 0 : user_err (e, "%s is there already: name another folder, or remove it", path);
    xfree (path);
    if (bad) return -1;
  }
  return 0;
}

static int load (struct conv *v, const char *ckpt, bool weights, struct err *e)
{
  struct ckpt_state s = conv_state (v);
  base_phase ("export");
  if (ckpt_load (&s, ckpt, weights, e)) return -1;
  int bad = v->p.err.msg[0] != 0;
  if (bad) *e = v->p.err;
  return mesh_agree (&v->j.m, bad, e);
}

static void close_files (struct st *s)
{
  for (int f = 0; f < s->files; f++) {
    if (s->fd[f] >= 0) must (!close (s->fd[f]), "cannot write %s: %s", s->path[f], strerror (errno));
    s->fd[f] = -1;
  }
}

static int to_hf (struct conv *v, const char *ckpt, const struct want *w, struct err *e)
{
  struct st *s = &v->st;
  enum wire type = w->dtype ? wire_find (w->dtype) : v->j.c.train.dtype == DT_F32 ? W_F32 : W_BF16;
  int64_t limit = w->shard ? size_of (w->shard) : 5000000000;
  int bad = 0;
  if (type != W_F32 && type != W_BF16 && type != W_F16) bad = user_err (e, "--dtype %s: fp32, bf16 or fp16", w->dtype);
  else if (limit < 1) bad = user_err (e, "--shard_size %s is no number of bytes, such as 5G", w->shard);
  if (mesh_agree (&v->j.m, bad, e)) return -1;
  st_of_places (s, &v->p, type);
  st_layout (s, w->out, limit);
  if (!v->j.m.rank) bad = job_folder (w->out, e) || folder_free (w->out, e) || write_config (v, w, type, e) || small_files (w, e) || st_create (s, e);
  if (mesh_agree (&v->j.m, bad, e)) return -1;
  if (mesh_agree (&v->j.m, st_reopen (s, e), e)) return -1;
  struct place *at = places_add (&v->p, CKPT_MASTER);
  for (int64_t i = 0; i < s->n; i++) at[i] = (struct place) { s->fd[s->tensor[i].file], s->path[s->tensor[i].file], s->tensor[i].at, type };
  int rc = load (v, ckpt, true, e);
  close_files (s);
  mesh_barrier (v->j.m.world);
  if (!rc) rc = mesh_agree (&v->j.m, v->j.m.rank ? 0 : st_finish (s, w->out, e), e);
  if (rc && !v->j.m.rank) st_remove (s);
  return rc;
}

/* --- FULL --- */

/* Rank 0 knows where the datasets lie. */
static void share_places (struct conv *v, int kinds)
{
  MPI_Request q;
  for (int k = 0; k < kinds; k++) {
    struct place *at = v->j.m.rank ? places_add (&v->p, k) : v->p.at[k];
    for (int64_t i = 0; i < v->p.n; i++) {
      MPI_Ibcast (&at[i].at, 1, MPI_INT64_T, 0, v->j.m.world, &q);
      wait_all (1, &q);
      at[i].type = W_F32;
    }
  }
}

static int to_full (struct conv *v, const char *ckpt, const struct ckpt_head *h, const struct want *w, struct err *e)
{
  int kinds = w->weights && strcmp (w->weights, "false") ? 1 : CKPT_KINDS, fd = -1;
  char *tmp = xprintf ("%s.tmp", w->out);
  struct full_head head = { h->step, h->tokens, h->updates, h->config };
  int bad = w->weights && strcmp (w->weights, "false") && strcmp (w->weights, "true") ? user_err (e, "--weights_only %s: true or false", w->weights) : 0;
  if (!bad && !v->j.m.rank) bad = full_create (&v->p, tmp, kinds, &head, e);
  if (mesh_agree (&v->j.m, bad, e)) goto out;
  share_places (v, kinds);
  fd = open (tmp, O_WRONLY | O_CLOEXEC);
  bad = fd < 0 ? world_err (e, "cannot open %s: %s", tmp, strerror (errno)) : 0;
  if (mesh_agree (&v->j.m, bad, e)) { bad = -1; goto out; }
  for (int k = 0; k < kinds; k++)
    for (int64_t i = 0; i < v->p.n; i++) v->p.at[k][i].fd = fd, v->p.at[k][i].path = w->out;
  bad = load (v, ckpt, kinds == 1, e);
  if (close (fd) && !bad) bad = world_err (e, "cannot write %s: %s", tmp, strerror (errno));
  fd = -1;
  bad = mesh_agree (&v->j.m, bad, e) ? -1 : mesh_agree (&v->j.m, v->j.m.rank ? 0 : full_finish (tmp, w->out, e), e);
 out:
  if (fd >= 0) close (fd);
  if (bad && !v->j.m.rank) unlink (tmp);
  xfree (tmp);
  return bad ? -1 : 0;
}

/* --- the command --- */

static int take_words (struct want *w, int *argc, char **argv, struct err *e)
{
  const struct { const char *word; const char **value; } word[] = { { "--to", &w->to }, { "--dtype", &w->dtype }, { "--shard_size", &w->shard }, { "--like", &w->like },
    { "--weights_only", &w->weights } };
  int n = 0;
  /* `--to hf DIR`: the word after the kind is the place. */
  for (int i = 0; i < *argc; i++) {
    argv[n++] = argv[i];
    if (strcmp (argv[i], "--to") || i + 2 >= *argc || !strncmp (argv[i + 2], "--", 2)) continue;
    argv[n++] = argv[i + 1];
    w->out = argv[i + 2];
    i += 2;
  }
  *argc = n;
  for (int i = 0; i < LEN (word); i++) if (conv_take (argc, argv, word[i].word, word[i].value, e)) return -1;
  if (!w->to) return user_err (e, "--to hf DIR or --to full FILE.h5 is needed");
  if (strcmp (w->to, "hf") && strcmp (w->to, "full")) return user_err (e, "--to %s is not known: hf or full", w->to);
  if (!w->out) return user_err (e, "--to %s: and where? --to %s", w->to, strcmp (w->to, "hf") ? "full FILE.h5" : "hf DIR");
  if (*argc) return user_err (e, "export: %s is not known; see pretrain export --help", argv[0]);
  return 0;
}

/* A run's folder stands for its newest checkpoint. */
static int find_ckpt (struct conv *v, const char *path, char out[static CKPT_PATH], struct err *e)
{
  struct stat st;
  int64_t step;
  int dir = v->j.m.rank ? 0 : !stat (path, &st) && S_ISDIR (st.st_mode) && file_kind (path) == FILE_OTHER;
  MPI_Request q;
  MPI_Ibcast (&dir, 1, MPI_INT, 0, v->j.m.world, &q);
  wait_all (1, &q);
  snprintf (out, CKPT_PATH, "%.*s", CKPT_PATH - 1, path);
  if (!dir) return mesh_agree (&v->j.m, v->j.m.rank ? 0 : file_wanted (path, FILE_SHARDED, e), e);
  int found = ckpt_newest (path, v->j.m.world, INT64_MAX, out, &step, e);
  return found > 0 ? 0 : found < 0 ? -1 : user_err (e, "%s has no checkpoint", path);
}

/* RUN_DIR/hf of RUN_DIR/checkpoints/X.h5, if import left it there. */
static const char *default_like (const char *ckpt, char out[static CKPT_PATH + 8])
{
  snprintf (out, CKPT_PATH + 8, "%s", ckpt);
  for (int i = 0; i < 2; i++) {
    char *slash = strrchr (out, '/');
    if (!slash) return NULL;
    *slash = 0;
  }
  strcat (out, "/hf");
  return file_kind (out) == FILE_HF ? out : NULL;
}

static int export (struct conv *v, const char *path, int argc, char **argv, struct err *e)
{
  struct want w = { 0 };
  struct ckpt_head h = { 0 };
  char ckpt[CKPT_PATH], like[CKPT_PATH + 8];
  double start = now ();
  int bad = take_words (&w, &argc, argv, e);
  if (!bad && !path) bad = user_err (e, "export what? pretrain export CKPT --to hf DIR");
  if (mesh_agree (&v->j.m, bad, e) || find_ckpt (v, path, ckpt, e)) return -1;
  if (!w.like) w.like = default_like (ckpt, like);
  bad = ckpt_head_read (ckpt, &h, e);
  if (!bad && (!h.config || !*h.config)) bad = user_err (e, "%s does not say which model it is: it has no config", ckpt);
  if (mesh_agree (&v->j.m, bad, e)) return ckpt_head_free (&h), -1;
  int rc = conv_open (v, h.config, 0, NULL, e);
  if (!rc) rc = strcmp (w.to, "hf") ? to_full (v, ckpt, &h, &w, e) : to_hf (v, ckpt, &w, e);
  ckpt_head_free (&h);
  if (!rc) conv_say_rate (v, "exported to", w.out, now () - start);
  return rc;
}

int export_main (int argc, char **argv)
{
  argc--, argv++;
  if (argc > 0 && !strcmp (argv[0], "--help")) return fputs (help, stdout), EXIT_DONE;
  struct conv *v = xalloc (sizeof *v, "export");
  struct err e = { 0 };
  char *path = job_operand (&argc, &argv);
  int code = job_init (&v->j, &argc, &argv);
  if (!code) code = conv_end (v, 0, export (v, path, argc, argv, &e) ? &e : NULL);
  xfree (v);
  return code;
}
