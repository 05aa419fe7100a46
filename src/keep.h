/* keep: what a layer keeps of a micro-batch from its forward to its backward, as a set of parts; the backward makes the rest again by the same operations,
   so that the bits do not depend on the choice. A layer's input is always kept. Pure. */
#ifndef KEEP_H
#define KEEP_H
#include "conf.h"

enum keep {
  KEEP_NORMS = 1,      /* both normed inputs: again by reading x and h once more */
  KEEP_SWIGLU = 2,     /* SwiGLU's output: falls out of its backward for one write */
  KEEP_GATE_UP = 4,    /* gate and up: again by a GEMM */
  KEEP_QKV = 8,        /* q, k, v after RoPE, and what head norms read: again by a GEMM */
  KEEP_ATTN = 16,      /* attention's output and its log-sum-exp: attention once more */
  KEEP_RESIDUAL = 32,  /* h, the residual stream after attention: again by the output projection */
  KEEP_ALL = 63,
};
/* Between backward by input and by weight the buffers of these hold what the latter reads. */
#define KEEP_SPLIT (KEEP_GATE_UP | KEEP_ATTN | KEEP_RESIDUAL)

/* "norms,qkv" into a set; none and empty text are the empty set, all is all. 0, or -1 with the sentence. */
int  keep_parse (const char *text, int *set, struct err *e);
/* "norms, qkv"; "nothing but its input", "everything". */
void keep_text (int set, char out[static 96]);

/* What LAYER (from 1) keeps by recompute.mode none, selective or full; auto: the empty set. */
int  keep_of (const struct conf *c, int64_t layer);
/* In fp8 normed inputs are kept as turned codes, from which no product can be done again: keeping norms without qkv and gate_up is of no use, and keep_of does not. */
bool keep_usable (const struct conf *c, int set);
#endif
