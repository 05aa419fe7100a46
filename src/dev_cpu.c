/* The cpu device: its table, and how many threads it has. Memory, queues and collectives are in cpu_*.c beside it. */
#include "config.h"
#include "cpu_queue.h"
#include "cpu_vec.h"
#include "dev_limits.h"
#include "mesh.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cpu_threads = 1;

static int devices_open;

/* Never a library's default: eight ranks with all cores each run GEMMs eight times slower. */
static int choose_threads (const struct dev_conf *c)
{
  if (c->threads > 0) return c->threads;
  const char *env = getenv ("OMP_NUM_THREADS");
  if (env && atoi (env) > 0) return MIN (atoi (env), CPU_THREADS_MAX);
  int ranks = MAX (c->local_size, 1);
  return MIN (MAX (wait_cores (ranks) / ranks, 1), CPU_THREADS_MAX);
}

static int cpu_open (struct dev *d, const struct dev_conf *c, struct err *e)
{
  if (c->threads > CPU_THREADS_MAX) return user_err (e, "run.threads %d is above the cpu device's largest, %d", c->threads, CPU_THREADS_MAX);
  struct cpu *cpu = xalloc (sizeof *cpu, "cpu device");
  if (cpu_mem_open (cpu, c->local_size, e)) {
    xfree (cpu);
    return -1;
  }
  d->impl = cpu;
  d->conf.threads = cpu_threads = choose_threads (c);
  omp_set_num_threads (cpu_threads);
  if (!devices_open++) wait_drive (cpu_drive);
  return 0;
}

static void cpu_close (struct dev *d)
{
  cpu_queues_free (d);
  if (!--devices_open) wait_drive (NULL);
  xfree (d->impl);
}

static int64_t cpu_memory (struct dev *d)
{
  return (int64_t) sysconf (_SC_PHYS_PAGES) * sysconf (_SC_PAGESIZE) / MAX (d->conf.local_size, 1);
}

/* statm: pages of address space, then resident ones. */
static int64_t cpu_used (struct dev *d)
{
  (void) d;
  long long all = 0, resident = 0;
  FILE *f = fopen ("/proc/self/statm", "r");
  if (f && fscanf (f, "%lld %lld", &all, &resident) != 2) resident = 0;
  if (f) fclose (f);
  return resident * sysconf (_SC_PAGESIZE);
}

static void *cpu_host (struct dev *d, void *p) { return (void) d, cpu_at (p); }

static const struct dev_limits limits = { LIMITS_CPU };

const struct dev_ops dev_cpu = {
  .name = "cpu", .limits = &limits, .open = cpu_open, .close = cpu_close, .memory = cpu_memory, .used = cpu_used, .reserve = cpu_reserve, .release = cpu_release, .host = cpu_host,
  .queue_open = cpu_queue_open, .queue_close = cpu_queue_close, .event_open = cpu_event_open, .event_close = cpu_event_close,
  .record = cpu_record, .wait = cpu_wait, .sync = cpu_sync, .drain = cpu_drain, .fetch = cpu_fetch, .tuned = dev_tuned_none, .tune = dev_tune_none,
  .group_open = cpu_group_open, .group_close = cpu_group_close,
  .phase = cpu_phase, .trace = cpu_trace,
  .graph_begin = cpu_graph_begin, .graph_end = cpu_graph_end, .graph_launch = cpu_graph_launch, .graph_free = cpu_graph_free,
  .op = { [0 ... OP_N - 1] = cpu_issue },
};
