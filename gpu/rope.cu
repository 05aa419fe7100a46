/* rope: rotary positions, in place. A thread turns one pack of the first half of a head and its partner in the second, of two
   heads at a time: thread (chunk of the half head, head, token). */
#include "common.cuh"

#define HEADS 2   /* of a thread, at a time */

template <int V, class T> __global__ void __launch_bounds__ (512) rope (const struct op_rope o)
{
  int64_t token = (int64_t) blockIdx.x * blockDim.z + threadIdx.z;
  if (token >= o.n) return;
  int64_t seq = o.seq ? o.seq : o.n;
  int64_t pos = o.pos ? o.pos[token] : o.pos0 + (o.n >> 31 ? token % seq : (int64_t) ((uint32_t) token % (uint32_t) seq));
  int half = (int) o.head_dim / 2, heads = (int) o.heads, step = blockDim.y;
  for (int c = threadIdx.x * V; c < half; c += blockDim.x * V) {
    const float *row = o.table + pos * o.head_dim + c;
    T *x = (T *) o.x + token * o.stride + c;
    float cosine[V], sine[V];
    load_f32 (row, cosine);
    load_f32 (row + half, sine);
    for (int h = threadIdx.y; h < heads; h += HEADS * step) {
      pack<T, V> p[HEADS], q[HEADS];
      #pragma unroll
      for (int u = 0; u < HEADS; u++) {
        if (h + u * step >= heads) continue;
        p[u] = load<V> (x + (int64_t) (h + u * step) * o.head_dim);
        q[u] = load<V> (x + (int64_t) (h + u * step) * o.head_dim + half);
      }
      #pragma unroll
      for (int u = 0; u < HEADS; u++) {
        float a[V], b[V];
        if (h + u * step >= heads) continue;
        unpack (p[u], a);
        unpack (q[u], b);
        #pragma unroll
        for (int i = 0; i < V; i++) {
          float s = o.inverse ? -sine[i] : sine[i], t = a[i];
          a[i] = add (mul (t, cosine[i]), -mul (b[i], s));
          b[i] = add (mul (b[i], cosine[i]), mul (t, s));
        }
        store_f32 (x + (int64_t) (h + u * step) * o.head_dim, a);
        store_f32 (x + (int64_t) (h + u * step) * o.head_dim + half, b);
      }
    }
  }
}

template <int V, class T> static void rope_of (const struct op_rope *o, cudaStream_t s)
{
  int x = (int) max64 (1, min64 (o->head_dim / 2 / V, 64)), y = (int) min64 (ceil_div (o->heads, HEADS), 256 / x),
    z = (int) min64 (max64 (1, 256 / (x * y)), 64);
  rope<V, T><<<(unsigned) ceil_div (o->n, z), dim3 (x, y, z), 0, s>>> (*o);
}

cudaError_t k_rope (const struct op_rope *o, cudaStream_t s)
{
  if (o->n <= 0 || o->heads <= 0) return cudaGetLastError ();
  WITH_TYPE (o->t, T,
    const int V = 16 / sizeof (T);
    bool ok = fits (o->x, V, o->t) && fits (o->table, V, DT_F32) && o->stride % V == 0 && o->head_dim / 2 % V == 0
      && o->head_dim % 2 == 0;
    if (ok) rope_of<V, T> (o, s);
    else rope_of<1, T> (o, s));
  return cudaGetLastError ();
}
