/* layer: forward and backward of one block in terms of device operations: transformer layer, embedding, head with loss.

   Tensor parallelism with sequence parallelism: the residual stream is cut over tp by tokens ([nt, dim] a rank, nt = n / tp), gathered to [n, dim] before a column-parallel GEMM and
   reduce-scattered after a row-parallel one. With tp 1 the same code issues no collectives. mesh.tp_overlap: the n tokens of the flattened [batch, seq] are cut into so many parts and
   each part over the ranks, consecutive tokens each, so that a part is gathered into its place and a product of one part can run while the next is on its way.
   A layer's output is left as two terms, h (after attention) and m (the MLP's output), whose sum the next norm takes in one pass. */
#ifndef LAYER_H
#define LAYER_H
#include "chan.h"
#include "conf.h"
#include "keep.h"

struct geom {                       /* shapes of a micro-batch on this rank */
  int64_t batch, seq, n, nt;        /* sequences, tokens each, tokens, tokens of my tp part */
  int64_t dim, heads, kv_heads, head_dim, qkv, att, ffn;   /* local heads; qkv = (heads + 2 kv_heads) head_dim; att = heads head_dim; local ffn */
  int64_t vocab, v0, v_real;        /* local rows of the vocabulary, first global id, real ones among them */
  int64_t loss_chunk;               /* tokens whose logits exist at once */
  int tp, tp_rank, parts;           /* parts: of a gather or scatter over tp (mesh.tp_overlap), 1 with tp 1 */
  enum dtype t, gt;                 /* compute type; storage type of gradients */
  bool fp8;                         /* the layers' products are in 8 bits (linear.h) */
};
void geom_make (struct geom *g, const struct conf *c, int tp, int tp_rank, int64_t memory);
/* Bytes of the logits that exist at once, on a device of so many bytes (0: not known): 1/96, 256 MiB at least, 2 GiB at most. */
int64_t logit_room (int64_t memory);

/* Inputs of a micro-batch in device memory, I32 [n] each; doc and pos NULL unless documents are masked. */
struct batch { int32_t *ids, *target, *doc, *pos; };

/* What a layer keeps from forward to backward; NULL fields are not kept and live in the scratch layer instead. */
struct layer_acts {
  void *x;                  /* [nt, dim] input of the layer */
  void *y1, *y2;            /* [nt, dim] normed */
  void *qkv, *raw;          /* [n, qkv] after norm and RoPE; [n, (heads + kv_heads) head_dim] before the head norms */
  void *o, *h;              /* [n, att] attention's output; [nt, dim] x + attention */
  void *gu, *act;           /* [n, 2 ffn], [n, ffn] */
  float *rstd1, *rstd2, *rstdq, *rstdk, *lse;
  /* fp8: turned codes [dim, n], [dim, n], [ffn, n], [att, n], the first two (with tp 1) and the third kept in place of what they are made from; largest and unit of each, [4][8] (op_quant) */
  void *y1t, *y2t, *actt, *ot;
  float *s;
  /* kept between B_INPUT and B_WEIGHT where a schedule splits the backward */
  void *d2, *d1, *dqkv;     /* gradients [nt, dim] of the MLP's output and of attention's, [n, qkv] */
  void *dw[P_KNORM + 1];    /* gradients of the norms (type gt), indexed by enum pid */
};

/* A unit's weights and gradients as the block sees them, by parameter. beta 0: the gradient is written, 1: added to. */
struct weights {
  const void *w[P_N];
  void *g[P_N];
  float beta[P_N];
  struct { const void *q, *qt; const float *unit; } code[P_N];   /* fp8: codes of the matrices P_Q (with k and v), P_O, P_GATE (with up) and P_DOWN, as they lie and turned */
};

enum part_of { PART_INPUT = 1, PART_WEIGHT = 2, PART_BOTH = 3 };

/* Everything a block's code needs. Owned by the step. */
struct blocks {
  struct dev *d;
  struct queue *q;
  struct chans *ch;
  const struct arch *a;
  struct geom g;
  struct layer_acts scratch;        /* stands in for what is not kept */
  void *m;                          /* [nt, dim] MLP output of the layer just done */
  void *dy, *dact, *d_o, *dqkv;     /* [nt, dim], [n, ffn], [n, att], [n, qkv] */
  float *delta;                     /* [batch, heads, seq] */
  void *fullA, *fullB;              /* [n, dim], tp > 1 only */
  void *code, *turned;              /* fp8: codes of the operand at hand, as it lies; of a gradient, turned; [n, the widest] each */
  float *s;                         /* fp8: a gradient's largest and unit */
  void *logits;                     /* [loss_chunk, vocab] */
  float *xmax, *xst;                /* [loss_chunk], [2 loss_chunk] */
  int32_t *embed_work;
  const float *rope;                /* F32 [positions, head_dim] */
};

/* Memory of the blocks' scratch for a stage; keep: what all of its layers keep (keep.h), KEEP_ALL where it has none. Run by the layout function. */
void blocks_layout (struct blocks *b, struct arenas *A, int keep, bool embed, bool head, bool split);
/* Memory of a layer that keeps KEEP of one micro-batch; split: B_INPUT and B_WEIGHT apart. */
void layer_layout (const struct blocks *b, struct layer_acts *l, struct arenas *A, int keep, bool split);

/* x -> l->h and b->m. h, m: the two terms of the input (m NULL: the input is already in l->x). */
void layer_forward (struct blocks *b, const struct layer_acts *l, const struct weights *w, const struct batch *in, const void *h, const void *m);
/* d [nt, dim]: gradient of the layer's output, replaced by that of its input (PART_INPUT). PART_WEIGHT alone: d is not used. */
void layer_backward (struct blocks *b, const struct layer_acts *l, const struct weights *w, const struct batch *in, void *d, int keep, enum part_of part);
/* h of a layer just run forward (kept or scratch). */
void *layer_h (const struct blocks *b, const struct layer_acts *l);

/* Embedding: x [nt, dim] from the ids. */
void embed_forward (struct blocks *b, const struct weights *w, const struct batch *in, void *x);
void embed_backward (struct blocks *b, const struct weights *w, const struct batch *in, const void *d);

/* Head: x [nt, dim], the last layer's output. Loss into acc (F64: sum, valid tokens; NULL on ranks that do not report). grad: also d [nt, dim] and the weights' gradients, both at
   once whatever the schedule. */
void head_loss (struct blocks *b, const struct weights *w, const struct batch *in, const void *x, void *d, double *acc, bool grad);
/* Logits (type t) of token TOKEN of the micro-batch over the whole padded vocabulary, [tp * vocab], in device memory of the blocks, on every tp rank. */
void *head_logits (struct blocks *b, const struct weights *w, const void *x, int64_t token);
#endif
