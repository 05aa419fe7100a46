/* A library in the place of NVIDIA's libnvidia-ml.so.1, for hosts without a GPU. One GPU at 0000:01:00.0. It runs for 0.4 s and stands still for 0.2 s, by the clock.
   FAKE_NVML=lost: it falls off the bus once it was found; old: it does not tell power and clocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char gpu;
static int open_count;
static int is (const char *what) { const char *s = getenv ("FAKE_NVML"); return s && !strcmp (s, what); }
static int gone (void *d) { return d != &gpu || open_count < 1 ? 1 : is ("lost") ? 15 : 0; }
#define TELLS(d) do { int rc_ = gone (d); if (rc_) return rc_; if (is ("old")) return 3; } while (0)

int nvmlInit_v2 (void) { open_count++; return 0; }
int nvmlShutdown (void) { open_count--; return 0; }
const char *nvmlErrorString (int code) { return code == 6 ? "Not Found" : code == 15 ? "GPU is lost" : "Invalid Argument"; }
int nvmlDeviceGetHandleByPciBusId_v2 (const char *pci, void **d) { *d = &gpu; return strcmp (pci, "0000:01:00.0") ? 6 : 0; }
int nvmlDeviceGetUtilizationRates (void *d, unsigned out[2])   /* of the GPU, of its memory, percent */
{
  struct timespec t;
  if (gone (d)) return gone (d);
  clock_gettime (CLOCK_MONOTONIC, &t);
  out[0] = (t.tv_sec * 1000 + t.tv_nsec / 1000000) % 600 < 400 ? 98 : 0;
  out[1] = 40;
  return 0;
}
int nvmlDeviceGetMemoryInfo (void *d, unsigned long long out[3])
{
  out[0] = 150ull << 30, out[1] = 50ull << 30, out[2] = 100ull << 30;   /* total, free, used */
  return gone (d);
}
int nvmlDeviceGetPowerUsage (void *d, unsigned *x) { TELLS (d); *x = 612345; return 0; }
int nvmlDeviceGetEnforcedPowerLimit (void *d, unsigned *x) { TELLS (d); *x = 700000; return 0; }
int nvmlDeviceGetClockInfo (void *d, int which, unsigned *x) { TELLS (d); *x = which == 1 ? 1755 : which == 2 ? 3201 : 0; return 0; }
int nvmlDeviceGetMaxClockInfo (void *d, int which, unsigned *x) { TELLS (d); *x = which == 1 ? 1980 : 0; return 0; }
int nvmlDeviceGetTemperature (void *d, int which, unsigned *x) { TELLS (d); *x = which == 0 ? 61 : 0; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons (void *d, unsigned long long *x) { TELLS (d); *x = 0x4 | 0x1 | 0x40; return 0; }
