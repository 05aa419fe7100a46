/* swiglu: silu (gate) * up and its backward; a thread takes one pack of a row's gate and of its up. */
#include "common.cuh"

#define BLOCK 256

template <class T> DEV float sigmoid (float x)
{
  float e = exp_for<T> (-x);
  return sizeof (T) == 2 ? __fdividef (1.f, 1.f + e) : 1.f / (1.f + e);
}

/* Blocks of a row follow each other; a row's last may be ragged. */
struct place { int64_t row; int c; };
template <int V> DEV struct place place_of (int blocks_row)
{
  struct place p;
  unsigned row = blockIdx.x / (unsigned) blocks_row;
  p.row = row;
  p.c = (int) ((blockIdx.x - row * (unsigned) blocks_row) * BLOCK + threadIdx.x) * V;
  return p;
}

template <int V, class T> __global__ void __launch_bounds__ (BLOCK) swiglu (const T *gu, T *out, int f, int blocks_row)
{
  struct place p = place_of<V> (blocks_row);
  if (p.c >= f) return;
  const T *g = gu + p.row * 2 * f + p.c;
  float x[V], y[V];
  load_f32 (g, x);
  load_f32 (g + f, y);
  #pragma unroll
  for (int i = 0; i < V; i++) x[i] = x[i] * sigmoid<T> (x[i]) * y[i];
  store_f32 (out + p.row * f + p.c, x);
}

template <int V, class T> __global__ void __launch_bounds__ (BLOCK) swiglu_bwd (const T *gu, const T *d_out, T *dgu, T *out,
  int f, int blocks_row)
{
  struct place p = place_of<V> (blocks_row);
  if (p.c >= f) return;
  int64_t at = p.row * 2 * f + p.c;
  float x[V], y[V], z[V], a[V];
  load_f32 (gu + at, x);
  load_f32 (gu + at + f, y);
  load_f32 (d_out + p.row * f + p.c, z);
  #pragma unroll
  for (int i = 0; i < V; i++) {
    float s = sigmoid<T> (x[i]), silu = x[i] * s;
    a[i] = silu * y[i];
    x[i] = z[i] * y[i] * s * (1.f + x[i] * (1.f - s));
    y[i] = z[i] * silu;
  }
  store_f32 (dgu + at, x);
  store_f32 (dgu + at + f, y);
  if (out) store_f32 (out + p.row * f + p.c, a);
}

cudaError_t k_swiglu (const struct op_swiglu *o, cudaStream_t s)
{
  if (o->n <= 0 || o->f <= 0) return cudaGetLastError ();
  WITH_TYPE (o->t, T,
    const int V = 16 / sizeof (T);
    bool ok = fits (o->gu, V, o->t) && fits (o->out, V, o->t) && o->f % V == 0;
    int row = (int) ceil_div (o->f, BLOCK * (ok ? V : 1));
    unsigned blocks = (unsigned) (o->n * row);
    if (ok) swiglu<V><<<blocks, BLOCK, 0, s>>> ((const T *) o->gu, (T *) o->out, (int) o->f, row);
    else swiglu<1><<<blocks, BLOCK, 0, s>>> ((const T *) o->gu, (T *) o->out, (int) o->f, row));
  return cudaGetLastError ();
}

cudaError_t k_swiglu_bwd (const struct op_swiglu_bwd *o, cudaStream_t s)
{
  if (o->n <= 0 || o->f <= 0) return cudaGetLastError ();
  WITH_TYPE (o->t, T,
    const int V = 16 / sizeof (T);
    bool ok = fits (o->gu, V, o->t) && fits (o->d_out, V, o->t) && fits (o->dgu, V, o->t) && fits (o->out, V, o->t)
      && o->f % V == 0;
    int row = (int) ceil_div (o->f, BLOCK * (ok ? V : 1));
    unsigned blocks = (unsigned) (o->n * row);
    if (ok) swiglu_bwd<V><<<blocks, BLOCK, 0, s>>> ((const T *) o->gu, (const T *) o->d_out, (T *) o->dgu, (T *) o->out,
      (int) o->f, row);
    else swiglu_bwd<1><<<blocks, BLOCK, 0, s>>> ((const T *) o->gu, (const T *) o->d_out, (T *) o->dgu, (T *) o->out, (int) o->f,
      row));
  return cudaGetLastError ();
}
