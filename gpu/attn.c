/* Which attention: cuDNN's where it was found and offers the shape, else ours. */
#include "cuda.h"

/* What the backward likes to have. Ours needs little. cuDNN's, where the order of sums is free, takes fp32 sums of dq, and with
   grouped heads dk and dv of each query head, of as many sequences as fill the chip (cudnn.c); its deterministic form would take
   all of dS, which is left to those who give a queue that much. */
int64_t cuda_attn_work (const struct op_attn *f)
{
  struct op_attn_bwd b = { .f = *f };
  int64_t own = k_attn_bwd_work (&b);
#ifdef HAVE_CUDNN
  int64_t n = 1, blocks = f->heads * ((f->sq + 127) / 128);
  while (n < f->batch && (n * blocks < 1024 || f->batch % n)) n++;
  int64_t sums = n * f->heads * f->sq * f->head_dim * (f->heads > f->kv_heads ? 8 : 4) + (1 << 20);
  if (f->t == DT_BF16 && sums > own) return sums;
#endif
  return own;
}

void cuda_attn (struct dev *d, struct queue *q, const struct op *o)
{
#ifdef HAVE_CUDNN
  if (cudnn_attn (d, q, &o->attn)) return;
#endif
  (void) d;
  CU (k_attn (&o->attn, q->s));
}

void cuda_attn_bwd (struct dev *d, struct queue *q, const struct op *o)
{
#ifdef HAVE_CUDNN
  if (cudnn_attn_bwd (d, q, &o->attn_bwd)) return;
#endif
  (void) d;
  int64_t need = k_attn_bwd_work (&o->attn_bwd);
  MUST (need <= q->work_bytes, "attention needs %lld bytes of workspace, the queue has %lld", (long long) need,
      (long long) q->work_bytes);
  CU (k_attn_bwd (&o->attn_bwd, q->work, q->s));
}
