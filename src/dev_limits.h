/* dev_limits: the bounds of the devices that a layout depends on, as data, so that the planner's sim device can stand for a device that this machine does not have and need not
   open. Each device's own table is made from its row. (dev.h says what the fields mean.) */
#ifndef DEV_LIMITS_H
#define DEV_LIMITS_H

#include "dev.h"

static inline int64_t cpu_attn_work (const struct op_attn *f, bool deterministic, int64_t room) { (void) f, (void) deterministic, (void) room; return 0; }

/* cuDNN's backward, by sequences that make a chip's worth of blocks. Deterministic: it keeps all of dS, bf16 [sequences, heads, sq, sk]; with at least a gigabyte of that it
   passes our own. In any order: fp32 sums of dq, and with grouped heads dk and dv of each query head. Its own small needs on top: a sixteenth and 16 MiB. */
static inline int64_t cuda_attn_work (const struct op_attn *f, bool deterministic, int64_t room)
{
  int64_t one = f->heads * f->sq * (deterministic ? 2 * f->sk : f->head_dim * (f->heads > f->kv_heads ? 8 : 4)), n = f->batch;
  one += one / 16 + (16 << 20) / f->batch;
  while (n > 1 && (n * one > room || f->batch % n)) n--;
  return f->t == DT_BF16 && n * one <= room ? n * one : 0;
}

#define LIMITS_CPU  .align = 64,  .queue_work = 0,         .comm_stage = 4 << 20, .wire_stage = 4 << 20,  .wire_cast = true, .host_memory = true, .outside = 128 << 20, \
  .rate = { .gemm = { [DT_F32] = 150e9, [DT_BF16] = 300e9 }, .attn = { [DT_F32] = 60e9, [DT_BF16] = 80e9 }, .copy = 8e9, .link = 2e9 }, .attn_work = cpu_attn_work
#define LIMITS_CUDA .align = 256, .queue_work = 160 << 20, .comm_stage = 1 << 20, .wire_stage = 64 << 20, .wire_cast = true, .outside = 768 << 20, .group_outside = 704 << 20, \
  .rate = { .gemm = { [DT_F32] = 45e12, [DT_BF16] = 680e12 }, .attn = { [DT_F32] = 10e12, [DT_BF16] = 550e12 }, .copy = 3.8e12, .link = 300e9 }, .attn_work = cuda_attn_work

#endif
