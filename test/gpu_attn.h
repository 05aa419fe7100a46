/* gpu_attn: attention on a device with tensors of the test's own, for t_gpu_attn and b_gpu_attn. q, k and v (and their
   gradients) are slices of one buffer [batch * seq, (heads + 2 kv_heads) * head_dim + gap], as the model has them; with sq != sk
   they are buffers of their own. */
#ifndef GPU_ATTN_H
#define GPU_ATTN_H
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "dev.h"

struct rig { struct dev d; struct queue *q; void *work; int64_t work_bytes; };
static struct err rig_err;

static inline bool rig_open (struct rig *r, const char *name, int threads, int64_t work_bytes)
{
  if (dev_open (&r->d, name, &(struct dev_conf) { .local_size = 1, .threads = threads, .deterministic = true },
      &rig_err)) return false;
  r->work_bytes = work_bytes;
  r->work = work_bytes ? dev_reserve (&r->d, MEM_WORK, SPACE_DEVICE, work_bytes, &rig_err) : NULL;
  r->q = r->d.ops->queue_open (&r->d, QUEUE_COMPUTE, "compute", r->work, work_bytes);
  return true;
}
static inline void rig_close (struct rig *r)
{
  r->d.ops->drain (&r->d);
  r->d.ops->queue_close (&r->d, r->q);
  if (r->work) dev_release (&r->d, MEM_WORK, SPACE_DEVICE, r->work, r->work_bytes);
  dev_close (&r->d);
}

/* A tensor on a rig: n elements of type t. */
struct vec { struct rig *r; void *p; int64_t n; enum dtype t; };
static inline int64_t vec_bytes (const struct vec *v) { return (v->n * dtype_size (v->t) + 255) / 256 * 256; }
static inline struct vec vec_new (struct rig *r, int64_t n, enum dtype t)
{
  struct vec v = { r, NULL, n, t };
  v.p = dev_reserve (&r->d, MEM_ACT, SPACE_DEVICE, vec_bytes (&v), &rig_err);
  if (!v.p) die ("%s", rig_err.msg);
  return v;
}
static inline void vec_free (struct vec *v)
{
  if (v->p) dev_release (&v->r->d, MEM_ACT, SPACE_DEVICE, v->p, vec_bytes (v));
  v->p = NULL;
}
static inline void vec_put (struct vec *v, const float *x)   /* rounded to the vector's type */
{
  bf16 *h = malloc ((size_t) v->n * sizeof *h);
  if (v->t == DT_BF16) for (int64_t i = 0; i < v->n; i++) h[i] = f32_to_bf16 (x[i]);
  dev_put (&v->r->d, v->r->q, v->p, v->t == DT_BF16 ? (const void *) h : x, v->n * dtype_size (v->t));
  free (h);
}
static inline void vec_raw (struct vec *v, void *to) { dev_get (&v->r->d, v->r->q, to, v->p, v->n * dtype_size (v->t)); }
static inline void vec_get (struct vec *v, float *x)
{
  if (v->t != DT_BF16) { vec_raw (v, x); return; }
  bf16 *h = malloc ((size_t) v->n * sizeof *h);
  vec_raw (v, h);
  for (int64_t i = 0; i < v->n; i++) x[i] = bf16_to_f32 (h[i]);
  free (h);
}

static uint64_t rig_seed = 7;
static inline float normal (void)   /* near enough: the sum of four uniforms */
{
  float s = 0;
  for (int i = 0; i < 4; i++) {
    rig_seed = rig_seed * 6364136223846793005u + 1442695040888963407u;
    s += (float) (int32_t) (rig_seed >> 32) * 0x1p-31f;
  }
  return s * 0.866f;
}
/* n normal numbers, rounded to bf16 so that every type holds them exactly; after four million they repeat. */
static inline float *numbers (int64_t n, float scale)
{
  enum { PERIOD = 4000037 };
  float *x = malloc ((size_t) n * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = i < PERIOD ? bf16_to_f32 (f32_to_bf16 (scale * normal ())) : x[i - PERIOD];
  return x;
}
#endif
