/* dev_cpu: inside of the cpu device, shared by its files only. */
#ifndef DEV_CPU_H
#define DEV_CPU_H
#include "dev.h"

/* Device memory is handed out as addresses of a range that is never accessible; the bytes lie `cpu_delta` further. cpu_at turns a device address
   into a usable one and leaves every other address (pinned, host, NULL) alone. */
extern uintptr_t cpu_base, cpu_span, cpu_delta;
static inline void *cpu_at (const void *p)
{
  return (void *) ((uintptr_t) p - cpu_base < cpu_span ? (uintptr_t) p + cpu_delta : (uintptr_t) p);
}

/* Compute threads of this rank; maths loops use `#pragma omp parallel for num_threads (cpu_threads)`. */
extern int cpu_threads;

/* Drive pending collectives. Maths calls it from the main thread, outside parallel regions, at least every 5 ms of work: long work is cut into slices,
   cut alike whatever is pending. */
void cpu_poll (void);

/* The maths, executed at once; dev_cpu.c's queues decide when. All pointers in ops are device or host addresses: use cpu_at. */
typedef void cpu_exec (const struct op *o);
extern cpu_exec *const cpu_maths[OP_COLL_FIRST];   /* dev_cpu_*.c; no NULL */
#endif
