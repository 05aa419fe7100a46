/* cpu_ops: the functions of the table cpu_maths, one for each kind of operation; dev.h says what each does. */
#ifndef CPU_OPS_H
#define CPU_OPS_H
#include "cpu_vec.h"

/* cpu_elem.c */
cpu_exec cpu_copy, cpu_zero, cpu_axpby, cpu_rope, cpu_swiglu, cpu_swiglu_bwd, cpu_amax;
/* cpu_init.c */
cpu_exec cpu_init;
/* cpu_gemm.c */
cpu_exec cpu_gemm, cpu_gemm_grouped;
/* cpu_fp8.c */
cpu_exec cpu_quant, cpu_gemm_fp8;
/* cpu_norm.c */
cpu_exec cpu_norm, cpu_norm_bwd, cpu_colsum;
/* cpu_attn.c, cpu_attn_bwd.c */
cpu_exec cpu_attn, cpu_attn_bwd;
/* cpu_embed.c */
cpu_exec cpu_embed, cpu_embed_bwd;
/* cpu_xent.c */
cpu_exec cpu_xent_max, cpu_xent_sum, cpu_xent_stats, cpu_xent_grad;
/* cpu_checksum.c */
cpu_exec cpu_checksum;
/* cpu_opt.c */
cpu_exec cpu_sumsq, cpu_step_vars, cpu_adamw;
#endif
