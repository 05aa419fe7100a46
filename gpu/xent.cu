/* xent: cross-entropy over a vocabulary; a block a row, and no more than the row's length of memory each time. */
#include "common.cuh"

#define BLOCK 512
#define LOSS_BLOCK 1024

/* f (values, count) for the packs of a row that this thread takes, then for the elements after the last pack. */
template <int V, class T, class F> DEV void each (const T *x, int64_t n, F f)
{
  const int U = 4;
  int packs = (int) (n / V), i = threadIdx.x;
  for (; i + (U - 1) * BLOCK < packs; i += U * BLOCK) {
    pack<T, V> p[U];
    #pragma unroll
    for (int u = 0; u < U; u++) p[u] = load<V> (x + (int64_t) (i + u * BLOCK) * V);
    #pragma unroll
    for (int u = 0; u < U; u++) {
      float a[V];
      unpack (p[u], a);
      f (a);
    }
  }
  for (; i < packs; i += BLOCK) {
    float a[V];
    load_f32 (x + (int64_t) i * V, a);
    f (a);
  }
  for (int64_t j = (int64_t) packs * V + threadIdx.x; j < n; j += BLOCK) {
    float a[1] = { to_f32 (x[j]) };
    f (a);
  }
}

struct row_max {
  float m;
  template <int V> DEV_OP void operator() (const float (&a)[V])
  {
    #pragma unroll
    for (int i = 0; i < V; i++) m = fmaxf (m, a[i]);
  }
};
template <class T> struct row_sum {
  float m, s;
  template <int V> DEV_OP void operator() (const float (&a)[V])
  {
    float t = 0;
    #pragma unroll
    for (int i = 0; i < V; i++) t += exp_for<T> (a[i] - m);
    s += t;
  }
};
/* Both in one pass: the sum so far is scaled down when a larger maximum comes. */
template <class T> struct row_both {
  float m, s;
  template <int V> DEV_OP void operator() (const float (&a)[V])
  {
    float most = a[0], t = 0;
    #pragma unroll
    for (int i = 1; i < V; i++) most = fmaxf (most, a[i]);
    if (most > m) {
      s *= exp_for<T> (m - most);
      m = most;
    }
    float base = m == -INFINITY ? 0 : m;
    #pragma unroll
    for (int i = 0; i < V; i++) t += exp_for<T> (a[i] - base);
    s += t;
  }
};

template <class T> DEV void write_sum (const struct op_xent &o, const T *x, float m, float s)
{
  int64_t row = blockIdx.x, at = (int64_t) o.target[row] - o.v0;
  o.st[row] = s;
  o.st[o.n + row] = o.target[row] >= 0 && at >= 0 && at < o.cols ? to_f32 (x[at]) - m : 0;
}

template <int V, class T> __global__ void __launch_bounds__ (BLOCK) xent_max (const struct op_xent o)
{
  const T *x = (const T *) o.logits + blockIdx.x * o.ld;
  row_max f = { -INFINITY };
  each<V> (x, o.cols, [&] (auto &a) { f (a); });
  float m = block_fold<BLOCK> (f.m, op_max ());
  if (!threadIdx.x) o.max[blockIdx.x] = m;
}

template <int V, class T> __global__ void __launch_bounds__ (BLOCK) xent_sum (const struct op_xent o)
{
  const T *x = (const T *) o.logits + blockIdx.x * o.ld;
  row_sum<T> f = { o.max[blockIdx.x], 0 };
  each<V> (x, o.cols, [&] (auto &a) { f (a); });
  float s = block_fold<BLOCK> (f.s, op_sum ());
  if (!threadIdx.x) write_sum (o, x, f.m, s);
}

template <int V, class T> __global__ void __launch_bounds__ (BLOCK) xent_stats (const struct op_xent o)
{
  const T *x = (const T *) o.logits + blockIdx.x * o.ld;
  row_both<T> f = { -INFINITY, 0 };
  each<V> (x, o.cols, [&] (auto &a) { f (a); });
  float m = block_fold<BLOCK> (f.m, op_max ());
  float s = block_fold<BLOCK> (f.s == 0 ? 0 : f.s * exp_for<T> (f.m - m), op_sum ());
  if (threadIdx.x) return;
  o.max[blockIdx.x] = m;
  write_sum (o, x, m, s);
}

/* One block: the order is fixed, and 8,192 logarithms are nothing beside the logits. */
__global__ void __launch_bounds__ (LOSS_BLOCK) xent_loss (const struct op_xent o)
{
  double loss = 0, valid = 0;
  for (int64_t r = threadIdx.x; r < o.n; r += LOSS_BLOCK)
    if (o.target[r] >= 0) {
      loss += log ((double) o.st[r]) - o.st[o.n + r];
      valid++;
    }
  loss = block_fold<LOSS_BLOCK> (loss, op_sum ());
  valid = block_fold<LOSS_BLOCK> (valid, op_sum ());
  if (threadIdx.x) return;
  o.acc[0] += loss;
  o.acc[1] += valid;
}

/* Softmax less the target's one, of the pack at column c; columns from cols on are 0. */
template <int V, class T> DEV void grad_pack (const struct op_xent &o, int64_t c, int64_t at, float m, float scale, float (&a)[V])
{
  #pragma unroll
  for (int i = 0; i < V; i++) a[i] = exp_for<T> (a[i] - m) * scale;
  if ((uint64_t) (at - c) < V)
    #pragma unroll
    for (int i = 0; i < V; i++) a[i] -= at - c == i ? 1.f : 0.f;
  if (c + V > o.cols)
    #pragma unroll
    for (int i = 0; i < V; i++) if (c + i >= o.cols) a[i] = 0;
}

template <int V, class T> __global__ void __launch_bounds__ (BLOCK) xent_grad (const struct op_xent o)
{
  const int U = 4;
  T *x = (T *) o.logits + blockIdx.x * o.ld;
  int64_t target = o.target[blockIdx.x], at = target - o.v0;
  int packs = (int) (o.ld / V), i = threadIdx.x;
  if (target < 0) {
    for (; i < packs; i += BLOCK) store (x + (int64_t) i * V, pack<T, V> {});
    return;
  }
  if (at < 0 || at >= o.cols) at = -V;
  float m = o.max[blockIdx.x], scale = 1 / o.st[blockIdx.x];
  for (; i < packs; i += U * BLOCK) {
    pack<T, V> p[U];
    #pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * BLOCK < packs) p[u] = load<V> (x + (int64_t) (i + u * BLOCK) * V);
    #pragma unroll
    for (int u = 0; u < U; u++) {
      int64_t c = (int64_t) (i + u * BLOCK) * V;
      float a[V];
      if (c >= o.ld) continue;
      unpack (p[u], a);
      grad_pack<V, T> (o, c, at, m, scale, a);
      store_f32 (x + c, a);
    }
  }
}

/* Packs where every row begins on 16 bytes. */
#define LAUNCH(KERNEL, o, s) WITH_TYPE (o->t, T, \
    const int V = 16 / sizeof (T); \
    if (fits (o->logits, V, o->t) && o->ld % V == 0) KERNEL<V, T><<<(unsigned) o->n, BLOCK, 0, s>>> (*o); \
    else KERNEL<1, T><<<(unsigned) o->n, BLOCK, 0, s>>> (*o))

cudaError_t k_xent_max (const struct op_xent *o, cudaStream_t s)
{
  if (o->n > 0) LAUNCH (xent_max, o, s);
  return cudaGetLastError ();
}

cudaError_t k_xent_sum (const struct op_xent *o, cudaStream_t s)
{
  if (o->n > 0) LAUNCH (xent_sum, o, s);
  return cudaGetLastError ();
}

cudaError_t k_xent_stats (const struct op_xent *o, cudaStream_t s)
{
  if (o->n > 0) LAUNCH (xent_stats, o, s);
  return cudaGetLastError ();
}

int64_t k_xent_grad_work (const struct op_xent *o) { (void) o; return 0; }

cudaError_t k_xent_grad (const struct op_xent *o, void *work, cudaStream_t s)
{
  (void) work;
  if (o->n <= 0) return cudaGetLastError ();
  if (o->acc) xent_loss<<<1, LOSS_BLOCK, 0, s>>> (*o);
  if (o->grad) LAUNCH (xent_grad, o, s);
  return cudaGetLastError ();
}
