#include "config.h"
#include "convert_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const conv_small[] = { "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "vocab.json",
                                   "merges.txt", "chat_template.jinja", NULL };

int conv_take (int *argc, char **argv, const char *word, const char **value, struct err *e)
{
  int n = 0, rc = 0;
  size_t len = strlen (word);
  for (int i = 0; i < *argc; i++) {
    if (!strncmp (argv[i], word, len) && argv[i][len] == '=') *value = argv[i] + len + 1;
    else if (strcmp (argv[i], word)) argv[n++] = argv[i];
    else if (++i < *argc) *value = argv[i];
    else rc = user_err (e, "%s wants a value", word);
  }
  *argc = n;
  return rc;
}

/* conf_load reads files: TEXT becomes one without a name. */
static int text_file (const char *text, char path[static 64], struct err *e)
{
  int fd = memfd_create ("configuration", MFD_CLOEXEC);
  size_t n = strlen (text);
  if (fd < 0 || write (fd, text, n) != (ssize_t) n || lseek (fd, 0, SEEK_SET) < 0) return world_err (e, "no room for a text of %zu bytes: %s", n, strerror (errno)), -1;
  snprintf (path, 64, "/proc/self/fd/%d", fd);
  return fd;
}

int conv_open (struct conv *v, const char *text, int argc, char **argv, struct err *e)
{
  char path[64], ranks[16], *all[64];
  const char *more[] = { "--mesh.tp", "1", "--mesh.pp", "1", "--mesh.dp_replicate", "1", "--mesh.dp_shard", ranks, "--sharding.strategy", "FULL_SHARD", "--sharding.wrap", "layer",
    "--pipeline.schedule", "1f1b", "--pipeline.chunks", "1", "--pipeline.split", "", "--train.micro_batch", "1", "--train.global_batch", "0" };
  int n = 0;
  snprintf (ranks, sizeof ranks, "%d", v->j.m.size);
  for (int i = 0; i < argc && n < 40; i++) all[n++] = argv[i];
  for (int i = 0; i < LEN (more); i++) all[n++] = (char *) more[i];
  int fd = text_file (text, path, e), rc = fd < 0 ? -1 : job_options (&v->j, path, n, all, e);
  if (fd >= 0) close (fd);
  if (mesh_agree (&v->j.m, rc, e)) return -1;
  struct unit_place place = { .tp = 1, .pp = 1, .chunks = 1, .shards = v->j.m.size, .shard_rank = v->j.m.coord[AXIS_DP_SHARD], .align = 64 };
  rc = units_make (&v->u, &v->j.c, &place, e);
  if (mesh_agree (&v->j.m, rc, e)) return -1;
  v->units_up = true;
  places_make (&v->p, &v->j.c.arch, &v->u);
  return 0;
}

int conv_end (struct conv *v, int code, const struct err *e)
{
  st_close (&v->st);
  places_free (&v->p);
  if (v->units_up) units_free (&v->u);
  return job_end (&v->j, code, e);
}

struct ckpt_state conv_state (struct conv *v)
{
  return (struct ckpt_state) { .conf = &v->j.c, .mesh = &v->j.m, .units = &v->u, .get = places_get, .put = places_put, .ctx = &v->p };
}

int conv_copy (const char *from, const char *to, const char *name, struct err *e)
{
  char block[65536], *a = xprintf ("%s/%s", from, name), *b = xprintf ("%s/%s", to, name);
  int in = open (a, O_RDONLY | O_CLOEXEC), out = in < 0 ? -1 : open (b, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), rc = in >= 0;
  ssize_t n = 0;
  while (out >= 0 && (n = read (in, block, sizeof block)) > 0)
    if (write (out, block, (size_t) n) != n) n = -1;
  if (in >= 0 && (out < 0 || n < 0)) rc = world_err (e, "cannot copy %s to %s: %s", a, b, strerror (errno));
  if (in >= 0) close (in);
  if (out >= 0) close (out);
  xfree (a);
  xfree (b);
  return rc;
}

void conv_say_rate (struct conv *v, const char *what, const char *where, double seconds)
{
  int64_t sum;
  char text[24], params[24];
  MPI_Request q;
  MPI_Iallreduce (&v->p.bytes, &sum, 1, MPI_INT64_T, MPI_SUM, v->j.m.world, &q);
  wait_all (1, &q);
  bytes_text (sum, text);
  count_text (arch_params (&v->j.c.arch), params);
  say (SAY_INFO, "%s %s: %s parameters, %lld tensors, %s in %.2f s (%.2f GB/s)", what, where, params, (long long) v->p.n, text, seconds, (double) sum / 1e9 / seconds);
}
