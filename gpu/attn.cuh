/* attn: attention in plain loops, for fp32 (checks) and for what the fast kernels do not take. Inside of attn*.cu. */
#ifndef ATTN_CUH
#define ATTN_CUH
#include <limits.h>
#include "kernels.h"
cudaError_t plain_attn (const struct op_attn *o, cudaStream_t s);
cudaError_t plain_attn_bwd (const struct op_attn_bwd *w, cudaStream_t s);
#endif
