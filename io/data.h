/* data: which tokens sample J of a run is made of. Local throughout: no MPI; every rank opens the files and maps them.

   Samples. A file of T tokens has W = (T - 1) / seq_len windows; window w is the seq_len + 1 tokens from w * seq_len on (inputs
   and, one further, targets). The run uses the n windows from floor (lo W) to floor (hi W): training takes [0, 1 - f),
   validation [1 - f, 1), which always holds the last window if f > 0. Sample j is in epoch j / n and is window rng_permute
   (seed, epoch, j % n, n) of the n. Nothing is stored: sample 10^12 costs what sample 0 does.

   Blends. "0.7:a.h5,0.3:b.idx" (weights of any sum; without any weight, each file by its number of windows). Weights become
   integers c_i >= 1 with sum Q = 65536 (largest remainders; divided by their common divisor). Turn p of Q goes to the file with
   the largest deficit c_i (p + 1) - Q * (turns it has had), the first among equals; after Q turns each has had exactly c_i and
   the table repeats. So sample j of the run is sample k = (j / Q) c_i + (turns of i before j % Q) of file i = turn[j % Q], in
   that file's own epoch k / n_i, with seed seed ^ i * 0x9e3779b97f4a7c15 (the first file's is the run's). A file never is more
   than one sample ahead of its share.

   Batches. Step s (from 1), micro-batch a, dp rank r of R take samples (s-1) G + (a R + r) mb + b, b < mb: what a step learns
   from does not depend on the mesh.

   Ids are compared with the vocabulary whenever a sample is read, all seq_len + 1 of them, so that every rank that reads it
   (first or last stage, any tp rank) finds the same one. */
#ifndef DATA_H
#define DATA_H
#include "base.h"

struct data;

struct data_info {
  int files;
  int64_t samples;         /* windows in use, all files */
  int64_t tokens;          /* in the files, whether in use or not */
  int64_t vocab;           /* largest attribute of the files; 0: none says */
  int64_t eod;             /* id that ends a document, of the first file; -1: not known */
  bool documents;          /* every file tells where its documents start */
  char tokenizer[128];     /* attribute of the files ("bytes"); "" if none says. Files of several tokenizers are refused */
};

/* SPEC: a path or a blend; FORMAT: NULL, auto, hdf5, megatron, u16 or u32 (see tokens.h). 0, or -1 with a sentence and *d ==
   NULL. Costs a look at each file's header, whatever its size. */
int  data_open (struct data **d, const char *spec, const char *format, int64_t vocab, int64_t seq_len, double lo, double hi,
                struct err *e);
void data_close (struct data *d);
const struct data_info *data_info (const struct data *d);   /* borrowed */

/* A line a file: path, size, count, type, hash of its header and of pieces of its content: for mesh_same. xfree it. */
char *data_text (const struct data *d);

/* How often SAMPLES samples of a run go through the file that they go through most often. */
double data_epochs (const struct data *d, int64_t samples);

/* Sample J >= 0: tokens[seq_len + 1], and mask[seq_len + 1] (1 = in the loss; may be NULL). -1 names an id outside the
   vocabulary. */
int  data_sample (struct data *d, uint64_t seed, int64_t j, int32_t *tokens, uint8_t *mask, struct err *e);

/* The first sample of a micro-batch. */
static inline int64_t data_first (int64_t step, int64_t global_batch, int64_t a, int64_t dp, int64_t dp_rank, int64_t micro_batch)
{
  return (step - 1) * global_batch + (a * dp + dp_rank) * micro_batch;
}

/* Samples FIRST .. FIRST + mb - 1, each array [mb, seq_len] or NULL. ids: inputs. targets: the next token, -1 where the mask
   takes it out of the loss. doc: the place in the sequence of the first token of this token's document; pos: the place in its
   document. A document starts after eod (or where Megatron's index says) if DOCUMENTS, else each sequence is one. The token
   after eod is a target like any other. Returns how many targets are in the loss, or -1 with a sentence (the first bad id of
   the lowest sample). Allocates nothing. */
int64_t data_batch (struct data *d, uint64_t seed, int64_t first, int64_t mb, bool documents, int32_t *ids, int32_t *targets,
                    int32_t *doc, int32_t *pos, struct err *e);

/* Read everything and check every id and table. 0 or -1. */
int  data_scan (struct data *d, struct err *e);
#endif
