/* kernels: launchers of our CUDA kernels, the header that .c and .cu share. Each takes the operation's record (src/op.h defines its meaning), launches on S and
   returns cudaGetLastError (). Nothing allocates or synchronises. 64-bit indices, 16-byte accesses where the addresses allow, results that depend on no order
   of execution (deterministic). */
#ifndef KERNELS_H
#define KERNELS_H
#include <cuda_runtime_api.h>
#include "op.h"
#ifdef __cplusplus
extern "C" {
#endif
cudaError_t k_axpby (const struct op_axpby *o, cudaStream_t s);
cudaError_t k_gemm_grouped (const struct op_gemm_grouped *o, cudaStream_t s);
cudaError_t k_init (const struct op_init *o, cudaStream_t s);
cudaError_t k_norm (const struct op_norm *o, cudaStream_t s);
/* dw is summed in two passes through WORK (fp32), k_norm_bwd_work bytes. */
cudaError_t k_norm_bwd (const struct op_norm_bwd *o, void *work, cudaStream_t s);
int64_t     k_norm_bwd_work (const struct op_norm_bwd *o);
cudaError_t k_rope (const struct op_rope *o, cudaStream_t s);
cudaError_t k_swiglu (const struct op_swiglu *o, cudaStream_t s);
cudaError_t k_swiglu_bwd (const struct op_swiglu_bwd *o, cudaStream_t s);
cudaError_t k_colsum (const struct op_colsum *o, void *work, cudaStream_t s);
int64_t     k_colsum_work (const struct op_colsum *o);
cudaError_t k_embed (const struct op_embed *o, cudaStream_t s);
cudaError_t k_embed_bwd (const struct op_embed_bwd *o, cudaStream_t s);
cudaError_t k_xent_max (const struct op_xent *o, cudaStream_t s);
cudaError_t k_xent_sum (const struct op_xent *o, cudaStream_t s);
/* max and st in one pass over the logits, the same as k_xent_max then k_xent_sum up to rounding: where no other rank holds a part of the vocabulary. */
cudaError_t k_xent_stats (const struct op_xent *o, cudaStream_t s);
cudaError_t k_xent_grad (const struct op_xent *o, void *work, cudaStream_t s);
int64_t     k_xent_grad_work (const struct op_xent *o);
cudaError_t k_sumsq (const struct op_sumsq *o, void *work, cudaStream_t s);
int64_t     k_sumsq_work (const struct op_sumsq *o);
cudaError_t k_amax (const struct op_amax *o, void *work, cudaStream_t s);
int64_t     k_amax_work (const struct op_amax *o);
cudaError_t k_checksum (const struct op_checksum *o, cudaStream_t s);
cudaError_t k_quant (const struct op_quant *o, cudaStream_t s);
cudaError_t k_step_vars (const struct op_step_vars *o, cudaStream_t s);
cudaError_t k_adamw (const struct op_adamw *o, cudaStream_t s);
/* out[i] (type ot) = sum, or maximum, over r < n in this order of src[r * stride + i] (type t), in fp32, + beta out[i], rounded once. No alias. */
struct fold { const void *src; int n; int64_t stride, count; enum dtype t, ot; void *out; float beta; bool max; };
cudaError_t k_fold (const struct fold *o, cudaStream_t s);
/* Our own attention: flash, tensor cores for bf16, plain fp32 for F32. work: k_attn_bwd_work bytes. */
cudaError_t k_attn (const struct op_attn *o, cudaStream_t s);
cudaError_t k_attn_bwd (const struct op_attn_bwd *o, void *work, cudaStream_t s);
int64_t     k_attn_bwd_work (const struct op_attn_bwd *o);
#ifdef __cplusplus
}
#endif
#endif
