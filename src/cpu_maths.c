#include "config.h"
#include <omp.h>
#include <stdlib.h>
#include "cpu_ops.h"

cpu_exec *const cpu_maths[OP_COLL_FIRST] = {
  [OP_COPY] = cpu_copy, [OP_ZERO] = cpu_zero, [OP_AXPBY] = cpu_axpby, [OP_INIT] = cpu_init,
  [OP_GEMM] = cpu_gemm, [OP_GEMM_GROUPED] = cpu_gemm_grouped,
  [OP_NORM] = cpu_norm, [OP_NORM_BWD] = cpu_norm_bwd, [OP_ROPE] = cpu_rope, [OP_ATTN] = cpu_attn, [OP_ATTN_BWD] = cpu_attn_bwd,
  [OP_SWIGLU] = cpu_swiglu, [OP_SWIGLU_BWD] = cpu_swiglu_bwd, [OP_COLSUM] = cpu_colsum, [OP_EMBED] = cpu_embed,
  [OP_EMBED_BWD] = cpu_embed_bwd,
  [OP_XENT_MAX] = cpu_xent_max, [OP_XENT_SUM] = cpu_xent_sum, [OP_XENT_STATS] = cpu_xent_stats, [OP_XENT_GRAD] = cpu_xent_grad,
  [OP_SUMSQ] = cpu_sumsq, [OP_AMAX] = cpu_amax, [OP_CHECKSUM] = cpu_checksum, [OP_STEP_VARS] = cpu_step_vars, [OP_ADAMW] = cpu_adamw,
  [OP_QUANT] = cpu_quant, [OP_GEMM_FP8] = cpu_gemm_fp8,
};

#define SLICE_NS 4e6    /* work between two polls, on one thread */
#define SPLIT_NS 3e4    /* less than this is not worth waking other threads */

static void run_slice (int64_t lo, int64_t hi, double ns, cpu_body *body, const void *arg)
{
  int64_t parts = MIN ((int64_t) cpu_threads, hi - lo);
  if (parts < 2 || (double) (hi - lo) * ns < SPLIT_NS) { body (arg, lo, hi); return; }
  #pragma omp parallel for num_threads (cpu_threads) schedule (static, 1)
  for (int64_t p = 0; p < parts; p++) body (arg, lo + (hi - lo) * p / parts, lo + (hi - lo) * (p + 1) / parts);
}

void cpu_for (int64_t n, double ns, cpu_body *body, const void *arg)
{
  int64_t slices = MAX (1, MIN (n, (int64_t) ceil ((double) n * ns / SLICE_NS)));
  for (int64_t s = 0; s < slices; s++) {
    run_slice (n * s / slices, n * (s + 1) / slices, ns, body, arg);
    cpu_poll ();
  }
}

static bool claimed;

void cpu_claim (void)
{
  must (!claimed, "an operation that needs the scratch of the cpu device began inside another: it is on a queue that is driven by polls");
  claimed = true;
}

void cpu_yield (void) { claimed = false; }

static struct { void *p; int64_t bytes; } scratch[CPU_THREADS_MAX];

void *cpu_scratch (int tid, int64_t bytes)
{
  must (tid < CPU_THREADS_MAX, "more than %d compute threads", CPU_THREADS_MAX);
  if (scratch[tid].bytes < bytes) {
    free (scratch[tid].p);
    scratch[tid].p = aligned_alloc (4096, (size_t) round_up (bytes, 4096));
    must (scratch[tid].p, "out of host memory: %lld bytes for the scratch of a compute thread", (long long) bytes);
    scratch[tid].bytes = bytes;
  }
  return scratch[tid].p;
}
