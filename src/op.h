/* op: the operations of a device as records of their arguments. Plain C that C++ and CUDA read too; dev.h says what a device is.

   Shapes are written slowest index first, row-major, without gaps unless a stride is given. Counts and strides are elements. */
#ifndef OP_H
#define OP_H
#include <stdbool.h>
#include <stdint.h>
#include "dtype.h"

struct group;

/* ---- operations ------------------------------------------------------------------------------------------------------------------- */
enum op_kind {
  /* memory */ OP_COPY, OP_ZERO, OP_AXPBY, OP_INIT,
  /* maths  */ OP_GEMM, OP_GEMM_GROUPED, OP_NORM, OP_NORM_BWD, OP_ROPE, OP_ATTN, OP_ATTN_BWD, OP_SWIGLU, OP_SWIGLU_BWD, OP_COLSUM,
               OP_EMBED, OP_EMBED_BWD, OP_XENT_MAX, OP_XENT_SUM, OP_XENT_STATS, OP_XENT_GRAD, OP_SUMSQ, OP_AMAX, OP_CHECKSUM, OP_STEP_VARS, OP_ADAMW,
  /* fp8    */ OP_QUANT, OP_GEMM_FP8,
  /* collectives; all take struct coll */
               OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_BROADCAST, OP_SEND, OP_RECV, OP_ALL_TO_ALL,
  OP_N
};
#define OP_COLL_FIRST OP_ALL_GATHER


/* dst[r][0..bytes) = src[r][..] for r < rows; pitches in bytes; rows 0 means 1. Any two spaces. No overlap. */
struct op_copy { void *dst; const void *src; int64_t bytes, rows, dst_pitch, src_pitch; };
struct op_zero { void *dst; int64_t bytes; };
/* y[i] = alpha x[i] + beta y[i], computed in fp32 and rounded once; x and y F32 or BF16; beta 0 does not read y. alpha, beta exact. x == y legal. */
struct op_axpby { void *y; const void *x; int64_t n; enum dtype yt, xt; float alpha, beta; };
/* Elements [start, start + n) of the local part [.., cols] of a parameter into dst[0..n) (F32): std * normal of the element's global index, or `value`.
   Local element i is (row0 + i / cols, col0 + i % cols) of the global matrix [.., gcols]; local rows >= rows are padding and become 0. rng.h defines the numbers. */
struct op_init { float *dst; int64_t start, n, cols, row0, rows, col0, gcols; bool normal; float std, value; uint64_t seed, key; };

/* C[m,n] = op(A)[m,k] op(B)[k,n] + beta C (+ bias[n] to each row). op = transpose where ta / tb: A is stored [k,m] then, B [n,k]. A and B have type ab,
   C type ct (F32 or BF16; F32 with BF16 operands legal), bias type ab. Sums in fp32. beta 0 or 1. ld 0 = dense. */
struct op_gemm { int64_t m, n, k, lda, ldb, ldc; const void *a, *b; void *c; const void *bias; enum dtype ab, ct; bool ta, tb; float beta; };
/* For g < groups: rows [off[g], off[g+1]) of A [max_rows, k] times B_g [k,n] (tb: [n,k]) into the same rows of C. off: I32 [groups + 1] on the device, off[groups] <= max_rows. */
struct op_gemm_grouped { int64_t groups, max_rows, n, k; const int32_t *off; const void *a, *b; void *c; enum dtype ab, ct; bool tb; float beta; };

/* RMSNorm of rows x inner vectors of length dim. Row r's vectors lie at x + r * x_stride + i * dim (y likewise with y_stride; 0 = inner * dim).
   s = x (+ res, then also written to sum; res and sum dense like x, type t); rstd = 1 / sqrt (mean (s^2) + eps); y = s * rstd * w. w has type wt. rstd F32 [rows, inner]. x == y, sum == x legal. */
struct op_norm { int64_t rows, inner, dim, x_stride, y_stride; const void *x, *res, *w; void *sum, *y; float *rstd; float eps; enum dtype t, wt; };
/* dx = (backward of dy) (+ dres); dw (type gt) = dw_beta * dw + this. x is s above. Strides as above for x, dy (y_stride) and dx (dx_stride). dx == dy, dx == dres legal.
   Deterministic: one order of summation for dw whatever the thread count. */
struct op_norm_bwd { int64_t rows, inner, dim, x_stride, y_stride, dx_stride; const void *dy, *x, *w, *dres; const float *rstd; void *dx, *dw; float dw_beta; enum dtype t, wt, gt; };

/* Rotate `heads` vectors of head_dim of each of n tokens in place, half-split (element i with i + head_dim/2). Token t's heads start at x + t * stride.
   table: F32 [positions, head_dim] = cos (first half) and sin (second half); position of token t is pos[t] (I32) or, pos NULL, pos0 + t % seq. inverse: rotate back. */
struct op_rope { void *x; int64_t n, heads, head_dim, stride, seq, pos0; const int32_t *pos; const float *table; bool inverse; enum dtype t; };

/* Causal attention of batch x sq queries on sk keys; o = softmax (q k^T / sqrt (head_dim)) v. Token t of sequence b of q lies at q + (b * sq + t) * q_stride + h * head_dim;
   k, v: (b * sk + t) * kv_stride; o: o_stride. Query head h uses KV head h * kv_heads / heads. Query i has position q0 + i, key j has k0 + j; i sees j if
   k0 + j <= q0 + i, k0 + j >= doc[b * sq + i] (I32, position of the first token of the query's document; NULL = 0), and within `window` positions (0 = any).
   lse F32 [batch, heads, sq] = log of the sum of exp of the scaled scores. merge: o and lse already hold a part over other keys and become the softmax over both.
   A query that sees no key gives o = 0, lse = -inf. */
struct op_attn { int64_t batch, sq, sk, heads, kv_heads, head_dim, q_stride, kv_stride, o_stride, q0, k0, window; const void *q, *k, *v; void *o; float *lse; const int32_t *doc; bool merge; enum dtype t; };
/* dq, dk, dv (strides as q, k, v; d_q_stride / d_kv_stride) from d_o (o_stride), o and lse of the forward (over all keys). delta: scratch F32 [batch, heads, sq]. accumulate: add to dk, dv, dq. */
struct op_attn_bwd { struct op_attn f; const void *d_o; void *dq, *dk, *dv; int64_t dq_stride, dkv_stride; float *delta; bool accumulate; };

/* gu [n, 2 f] = gate | up of each row; out [n, f] = silu (gate) * up. */
struct op_swiglu { int64_t n, f; const void *gu; void *out; enum dtype t; };
/* dgu [n, 2 f] from d_out [n, f] and gu; out (NULL or [n, f]) gets the forward's result again. dgu == gu legal. */
struct op_swiglu_bwd { int64_t n, f; const void *gu, *d_out; void *dgu, *out; enum dtype t; };
/* dst[c] (type gt) = beta * dst[c] + sum over rows of x[r * stride + c]: gradient of a bias. Deterministic. */
struct op_colsum { int64_t rows, cols, stride; const void *x; void *dst; float beta; enum dtype t, gt; };

/* out [n, dim] = rows v0 .. v0 + rows of the vocabulary are local in table [rows, dim] (type t); other ids give zeros. ids I32 [n]. */
struct op_embed { int64_t n, dim, v0, rows; const int32_t *ids; const void *table; void *out; enum dtype t; };
/* dtable [rows, dim] (type gt) = beta * dtable + sum of dy over the tokens with each id. Deterministic: tokens in order. work: I32 [2 n + 2 rows + 2] scratch. */
struct op_embed_bwd { int64_t n, dim, v0, rows; const int32_t *ids; const void *dy; void *dtable; float beta; int32_t *work; enum dtype t, gt; };

/* Cross-entropy over a vocabulary cut by tp. logits [n, ld], columns [0, cols) real with global id v0 + column, [cols, ld) padding. target I32 [n], global id, negative = not in the loss.
   XENT_MAX:  max[i] = max over real columns.                       (then all-reduce MAX over tp)
   XENT_SUM:  st[i] = sum exp (logit - max), st[n + i] = target's logit - max if it is local, else 0.  (then all-reduce SUM over tp)
   XENT_STATS: both in one pass, for a vocabulary that is not cut.
   XENT_GRAD: acc[0] += sum over valid i of log st[i] - st[n + i], acc[1] += number of valid (acc F64, may be NULL: other tp ranks); if grad, in place
              logits = (softmax - onehot), 0 for invalid rows and padding: the gradient of the *sum* of losses, divided by nothing. */
struct op_xent { int64_t n, ld, cols, v0; void *logits; const int32_t *target; float *max, *st; double *acc; bool grad; enum dtype t; };

/* acc[0] += weight * sum x^2, acc[1] += number of values that are not finite (F64). Sums in fp64 in one order. weight 0: finite check alone. */
struct op_sumsq { const void *x; int64_t n; enum dtype t; double weight; double *acc; };
/* dst[0] = max |x|, NaN left out: for scaled types. */
struct op_amax { const void *x; int64_t n; enum dtype t; float *dst; };

/* sum[0] += sum over i < n of checksum_term (bits of x[i], i), modulo 2^64 (checksum.h): the same on every device. Types of 1, 2, 4 and 8 bytes. */
struct op_checksum { const void *x; int64_t n; enum dtype t; uint64_t *sum; };

/* ---- 8-bit products ----
   A tensor in 8 bits is codes and a unit: x ~ code * unit. The unit is the smallest power of two (2^-126 to 2^126) by which max |x| does not leave the type's range. So scaling
   itself is exact, and how a value rounds does not depend on the rest of its tensor, but for those 2^14 (E4M3) or 2^30 (E5M2) times smaller than the largest: cutting a
   tensor over ranks, each with a unit of its own, changes nothing else. */

/* Codes of type `to` of x [rows, cols] (F32 or BF16, dense): q [rows, cols] as it lies, qt [cols, rows] turned, either NULL. s F32 [8], aligned to 16 bytes: s[0] in, max |x|
   (OP_AMAX); s[OP_UNIT] out, the unit (1 where s[0] is 0; NaN where it is not finite, so that no product hides it). rows and cols are multiples of 16. */
enum { OP_UNIT = 4 };   /* 16 bytes on: cuBLASLt takes units at such addresses alone */
struct op_quant { int64_t rows, cols; const void *x; void *q, *qt; float *s; enum dtype t, to; };
/* C[m,n] = a_unit b_unit A[m,k] B[n,k]^T + beta C (+ bias[n] to each row): k runs fastest in both, all dense. A of type at, B bt (E4M3 or E5M2, not both E5M2), C ct (F32 or BF16), bias
   BF16 and with BF16 C only. Sums in fp32. beta 0 or 1. m, n and k are multiples of 16, all pointers of 16 bytes. */
struct op_gemm_fp8 { int64_t m, n, k; const void *a, *b; const float *a_unit, *b_unit; void *c; const void *bias; enum dtype at, bt, ct; float beta; };

/* The scalars of a step, on the device, so that no launch holds a number that changes with the step. All F64. */
struct step_vars {
  double lr, clip;                        /* in, copied from the host each step; clip 0 = off */
  double loss_limit, norm_limit;          /* in, alike: above these the step is a spike; 0 = none is */
  double sumsq, bad, loss, tokens;        /* in: sums over the world: |sum of token gradients|^2, values not finite, sum of losses, valid tokens */
  double norm, scale, skip;               /* out: sqrt (sumsq) / tokens; factor for gradients (clip and 1 / tokens); 1 or STEP_SPIKE = leave the state alone */
  double b1t, b2t, updates;               /* state: beta1^t, beta2^t (start at 1), optimizer steps taken; checkpoints keep `updates` */
};
/* From the inputs of vars: the outputs, and (unless skipped) the state moves on by one update. skip = bad > 0 or norm not finite or tokens == 0; STEP_SPIKE where
   loss / tokens > loss_limit or norm > norm_limit. scale = min (1, clip / norm) / tokens. */
enum { STEP_SPIKE = 2 };
struct op_step_vars { struct step_vars *vars; double beta1, beta2; };
/* Unless vars->skip: g = grad * scale; m, v as usual; master -= lr (mhat / (sqrt (vhat) + eps) + decay * master); weight (NULL or BF16 / F32 [n], type wt) = master rounded.
   Skipped: nothing changes (weight is still written). Arithmetic per element in fp32, source Loshchilov & Hutter 2019. */
struct op_adamw { int64_t n; float *master, *m, *v; const void *grad; void *weight; const struct step_vars *vars; double beta1, beta2, eps, decay; enum dtype gt, wt; };

/* Collectives. count is elements per rank for all-gather, reduce-scatter and all-to-all (a rank's piece), of the whole buffer for the others. t = type of the wire and of `in`.
   ALL_GATHER      out [n * count] = pieces in rank order; in NULL = in place (own piece already at out + rank * count).
   REDUCE_SCATTER  (where beta is 1 `in` may be used as scratch)
                   out [count] (type ot) = beta * out + sum over ranks of piece `rank` of their in [n * count]. in may have type it != t: it is rounded to t for the wire.
                   Sums in fp32 in rank order, rounded once. out may alias no part of in but the own piece, unless beta = 1.
   ALL_REDUCE      out = sum or max over ranks, in rank order; in NULL = in place. F32, BF16 or F64. in and out have type it; where that is not t every share is rounded to t
                   for the wire, and so is the sum where it travels too (all but small ones): all ranks hold the same.
   BROADCAST       from root, in place in out.
   SEND, RECV      to / from the other rank of a group of two; matched in order. RECV writes out, SEND reads in.
   ALL_TO_ALL      n pieces; with counts: send_count[n], recv_count[n] (host arrays, elements, alive until done), pieces packed in rank order. */
struct op_coll { struct group *g; const void *in; void *out; int64_t count; enum dtype t, it, ot; float beta; bool max; int root; const int64_t *send_count, *recv_count; };

struct op {
  enum op_kind kind;
  union {
    struct op_copy copy; struct op_zero zero; struct op_axpby axpby; struct op_init init; struct op_gemm gemm; struct op_gemm_grouped grouped;
    struct op_norm norm; struct op_norm_bwd norm_bwd; struct op_rope rope; struct op_attn attn; struct op_attn_bwd attn_bwd; struct op_swiglu swiglu;
    struct op_swiglu_bwd swiglu_bwd; struct op_colsum colsum; struct op_embed embed; struct op_embed_bwd embed_bwd; struct op_xent xent; struct op_sumsq sumsq;
    struct op_amax amax; struct op_checksum checksum; struct op_step_vars step_vars; struct op_adamw adamw; struct op_quant quant;
    struct op_gemm_fp8 gemm_fp8; struct op_coll coll;
  };
};
#endif
