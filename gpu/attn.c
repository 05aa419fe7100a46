/* Which attention: cuDNN's where it was found and offers the shape, else ours. */
#include "cuda.h"

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
