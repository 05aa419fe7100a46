/* nvml: how the rank's GPU is doing, by NVIDIA's management library, which is opened at run time (libnvidia-ml.so.1) and never linked. A thread of its own looks at the utilisation
   ten times a second; the library allows that, and it waits for no work of the GPU. One GPU a process. Local. */
#ifndef NVML_H
#define NVML_H
#include "base.h"

struct gpu_state {
  double utilization;               /* 0 .. 1: share of the time since the last nvml_read that a kernel ran, mean of the samples */
  double idle;                      /* share of these samples at which none did (below 5 %) */
  int dips;                         /* how often it fell so low from at least 50 % */
  double seconds;                   /* that the samples span */
  int64_t memory_used, memory_total;/* bytes, of all processes */
  double power, power_limit;        /* W; this and what follows: NaN where the card does not tell */
  double clock, clock_max, memory_clock;   /* MHz of the multiprocessors, of the memory */
  double temperature;               /* degrees C */
  uint64_t throttle;                /* why the clock is below its maximum: NVML's bits */
};

/* Watch the GPU at PCI address PCI ("0000:17:00.0"). 0, or -1 with the sentence: no library, no such GPU. */
int  nvml_open (const char *pci, struct err *e);
void nvml_close (void);                   /* legal when it is not open */
/* As it is now, and since the last call. False where it is not open or the library fails. */
bool nvml_read (struct gpu_state *out);

/* Names of the reasons in BITS that slow the GPU down ("power cap, hardware thermal"); being idle and clocks that the user set are none. "" if there are none. */
enum { NVML_REASONS = 6 };
extern const struct nvml_reason { uint64_t bit; const char *name, *word; } nvml_reason[NVML_REASONS];   /* name: for people, word: a_key */
const char *nvml_throttle_text (uint64_t bits, char out[static 160]);
#endif
