/* tiny_run: small training runs on the cpu device for tests that try many meshes in one launch, each on the first ranks of the world. */
#ifndef TINY_RUN_H
#define TINY_RUN_H
#include "opt.h"
#include "step.h"
#include <stdlib.h>
#include <string.h>

static const char *const tiny_common[] = { "--train.seq_len", "32", "--train.global_batch", "8", "--train.micro_batch", "2", "--train.steps", "20",
  "--train.dtype", "fp32", "--optimizer.lr", "1e-3", "--schedule.warmup", "3", "--schedule.min_lr", "1e-4", "--optimizer.clip", "1.0", "--data.document_mask", "true",
  "--run.threads", "1" };

static inline uint32_t tiny_mix (uint64_t x) { return (uint32_t) (hash_bytes (&x, sizeof x, 7) >> 16); }

/* Sample J: Markov-like text so that there is something to learn, some targets masked, documents of random length. */
static inline void tiny_sample (int64_t j, int64_t vocab, int64_t seq, const struct host_batch *b, int64_t at)
{
  int32_t id = (int32_t) (tiny_mix ((uint64_t) j) % (uint32_t) vocab), doc = 0;
  for (int i = 0; i < seq; i++) {
    uint32_t r = tiny_mix ((uint64_t) (j * 1000 + i + 1));
    b->ids[at + i] = id;
    b->doc[at + i] = doc;
    b->pos[at + i] = i - doc;
    bool end = r % 17 == 0;
    if (end) doc = i + 1;
    id = r % 4 ? (id * 7 + 3) % (int32_t) vocab : (int32_t) ((r >> 8) % (uint32_t) vocab);
    b->target[at + i] = (r >> 4) % 5 == (uint32_t) j % 2 ? -1 : id;
  }
}

/* This rank's micro-batches of step STEP. */
static inline void tiny_fill (const struct step *s, int64_t step, struct host_batch *b)
{
  const struct conf *c = s->c;
  int64_t micro = c->train.micro_batch, seq = c->train.seq_len;
  for (int a = 0; a < s->mbs; a++)
    for (int64_t k = 0; k < micro; k++)
      tiny_sample ((step - 1) * c->train.global_batch + (a * s->dp + s->dp_rank) * micro + k, c->arch.vocab, seq, &b[a], k * seq);
}

static inline int tiny_words (char *text, const char **argv)
{
  int n = 0;
  for (char *t = strtok (text, " "); t; t = strtok (NULL, " ")) argv[n++] = t;
  return n;
}

/* The model `tiny` with the common options, then those in A, then those in B: the same option may be said twice, the later one wins. */
static inline void tiny_options (struct conf *c, const char *a, const char *b)
{
  char text[2][1024];
  const char *argv[128];
  struct err e = { 0 };
  int n = 0;
  argv[n++] = "--model";
  argv[n++] = "tiny";
  for (int i = 0; i < LEN (tiny_common); i++) argv[n++] = tiny_common[i];
  snprintf (text[0], sizeof text[0], "%s", a);
  snprintf (text[1], sizeof text[1], "%s", b);
  n += tiny_words (text[0], argv + n);
  n += tiny_words (text[1], argv + n);
  conf_default (c);
  for (int i = 0; i < n; i += 2)
    for (int j = i + 2; j < n; j += 2)
      if (!strcmp (argv[i], argv[j])) {
        argv[i + 1] = argv[j + 1];
        memmove (&argv[j], &argv[j + 2], (size_t) (n - j - 2) * sizeof *argv);
        n -= 2, j -= 2;
      }
  if (conf_load (c, NULL, n, (char **) argv, &e)) {
    printf ("Bail out! %s\n", e.msg);
    exit (1);
  }
}

static inline void tiny_shape (const struct conf *c, int world, struct mesh_shape *s)
{
  struct err e = { 0 };
  int64_t want[AXIS_N] = { [AXIS_TP] = c->mesh.tp, [AXIS_PP] = c->mesh.pp, [AXIS_DP_SHARD] = c->mesh.dp_shard, [AXIS_DP_REPLICATE] = c->mesh.dp_replicate };
  memset (s, 0, sizeof *s);
  must (!mesh_order (c->mesh.order, s->order, &e) && !mesh_fill (want, world, s->dim, &e), "%s", e.msg);
  s->no_shard = c->sharding.strategy == NO_SHARD;
  s->kv_rep = s->dim[AXIS_TP] > c->arch.kv_heads ? s->dim[AXIS_TP] / (int) c->arch.kv_heads : 1;
}

/* A run that stands: initial weights made, no step done. */
struct tiny { struct mesh m; struct dev d; struct step s; struct host_batch *b; int32_t *ids; int64_t bytes; };

/* Collective over COMM. C stays the caller's until tiny_close. MEMORY: bytes of the device, 0 = not known. OPENED: called when the device is open, before memory is taken. */
static inline void tiny_open_with (struct tiny *t, const struct conf *c, MPI_Comm comm, int64_t memory, void (*opened) (struct dev *d))
{
  struct err e = { 0 };
  struct mesh_shape shape;
  int world;
  memset (t, 0, sizeof *t);
  MPI_Comm_size (comm, &world);
  tiny_shape (c, world, &shape);
  if (mesh_open (&t->m, comm, &e) || mesh_split (&t->m, &shape, true, &e)) die ("%s", e.msg);
  struct dev_conf dc = { .local_rank = t->m.local_rank, .local_size = t->m.local_size, .threads = 1, .comm_delay_ms = c->debug.comm_delay_ms,
    .comm_chunk = c->debug.comm_chunk, .sync_send = c->debug.sync_send, .shared_gpu = getenv ("TEST_DEVICE") && !getenv ("TEST_OWN_GPU") };
  if (dev_open (&t->d, getenv ("TEST_DEVICE") ? getenv ("TEST_DEVICE") : "cpu", &dc, &e)) die ("%s", e.msg);
  if (opened) opened (&t->d);
  t->d.memory = memory;
  if (step_plan (&t->s, c, &t->m, &t->d, &e)) die ("%s", e.msg);
  step_start (&t->s, &t->m);
  shard_init (&t->s.sh);
  int64_t n = t->s.b.g.n;
  t->b = calloc ((size_t) t->s.mbs, sizeof *t->b);
  t->bytes = t->s.mbs * n * 16;
  t->ids = dev_reserve (&t->d, MEM_STAGE, SPACE_PINNED, t->bytes, &e);
  for (int i = 0; i < t->s.mbs; i++) {
    int32_t *p = t->ids + 4 * i * n;
    t->b[i] = (struct host_batch) { p, p + n, p + 2 * n, p + 3 * n };
  }
}

static inline void tiny_open (struct tiny *t, const struct conf *c, MPI_Comm comm, int64_t memory) { tiny_open_with (t, c, comm, memory, NULL); }

/* Step STEP, from 1. Collective. */
static inline void tiny_step (struct tiny *t, int64_t step, struct step_result *r)
{
  tiny_fill (&t->s, step, t->b);
  step_train (&t->s, t->b, opt_lr (t->s.c, step), r);
}

/* The loss of step STEP's batch under the weights of now. Collective. */
static inline double tiny_eval (struct tiny *t, int64_t step)
{
  struct step_result r;
  tiny_fill (&t->s, step, t->b);
  step_eval (&t->s, t->b, &r);
  return r.loss;
}

static inline void tiny_close (struct tiny *t)
{
  dev_release (&t->d, MEM_STAGE, SPACE_PINNED, t->ids, t->bytes);
  free (t->b);
  step_close (&t->s);
  dev_close (&t->d);
  mesh_close (&t->m);
}

/* MPI and what the program does around it. */
static inline void tiny_begin (int *argc, char ***argv, int *rank, int *size)
{
  wait_before_mpi ();
  MPI_Init (argc, argv);
  MPI_Comm_rank (MPI_COMM_WORLD, rank);
  MPI_Comm_size (MPI_COMM_WORLD, size);
  base_rank (*rank, *size, NULL);
  wait_init (*size);
}
#endif
