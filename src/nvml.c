#include "config.h"
#include "nvml.h"
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const struct nvml_reason nvml_reason[NVML_REASONS] = {
  { 0x04, "power cap", "power_cap" }, { 0x08, "hardware slowdown", "hardware_slowdown" }, { 0x10, "sync boost", "sync_boost" }, { 0x20, "software thermal", "software_thermal" },
  { 0x40, "hardware thermal", "hardware_thermal" }, { 0x80, "power brake", "power_brake" },
};

/* ---- the library, as nvml.h of CUDA declares it ---- */

typedef struct nvml_device *device;
struct rates { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
enum { CLOCK_SM = 1, CLOCK_MEM = 2, TEMPERATURE_GPU = 0 };

static struct {
  int (*init) (void);
  int (*shutdown) (void);
  const char *(*error) (int code);
  int (*handle) (const char *pci, device *out);
  int (*rates) (device d, struct rates *out);
  int (*memory) (device d, struct memory *out);
  int (*power) (device d, unsigned *mw);
  int (*limit) (device d, unsigned *mw);
  int (*clock) (device d, int which, unsigned *mhz);
  int (*clock_max) (device d, int which, unsigned *mhz);
  int (*temperature) (device d, int which, unsigned *c);
  int (*throttle) (device d, unsigned long long *bits);
} lib;

/* In the order of the fields above. */
static const char *const symbol[] = { "nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUtilizationRates",
  "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetTemperature",
  "nvmlDeviceGetCurrentClocksThrottleReasons" };

/* Never closed: the driver's library does not like it. */
static int load (struct err *e)
{
  void *slot[LEN (symbol)];
  _Static_assert (sizeof slot == sizeof lib, "a symbol for each function");
  if (lib.init) return 0;
  void *so = dlopen ("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!so) return user_err (e, "NVML: %s", dlerror ());
  for (int i = 0; i < LEN (symbol); i++)
    if (!(slot[i] = dlsym (so, symbol[i]))) return user_err (e, "NVML: libnvidia-ml.so.1 has no %s", symbol[i]);
  memcpy (&lib, slot, sizeof lib);
  return 0;
}

/* ---- the sampler ---- */

static const double IDLE = 0.05, BUSY = 0.5, PERIOD = 0.1;

static struct {
  device gpu;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t stop;
  bool on, stopping, was_busy;
  int samples, idle, dips;    /* since the last read */
  double sum, since;
} w = { .lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER };

static void sample (void)
{
  struct rates r;
  if (lib.rates (w.gpu, &r)) return;
  double u = r.gpu / 100.0;
  w.samples++;
  w.sum += u;
  w.idle += u < IDLE;
  w.dips += u < IDLE && w.was_busy;
  w.was_busy = u >= BUSY || (w.was_busy && u >= IDLE);
}

static void *loop (void *arg)
{
  (void) arg;
  pthread_mutex_lock (&w.lock);
  while (!w.stopping) {
    struct timespec t;
    sample ();
    clock_gettime (CLOCK_REALTIME, &t);
    t.tv_nsec += (long) (PERIOD * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait (&w.stop, &w.lock, &t);
  }
  pthread_mutex_unlock (&w.lock);
  return NULL;
}

int nvml_open (const char *pci, struct err *e)
{
  if (load (e)) return -1;
  int rc = lib.init ();
  if (rc) return user_err (e, "NVML: %s", lib.error (rc));
  if ((rc = lib.handle (pci, &w.gpu))) {
    user_err (e, "NVML: GPU %s: %s", pci, lib.error (rc));
    lib.shutdown ();
    return -1;
  }
  w.since = now ();
  w.stopping = false;
  must (!pthread_create (&w.thread, NULL, loop, NULL), "cannot start the thread that watches the GPU");
  w.on = true;
  return 0;
}

void nvml_close (void)
{
  if (!w.on) return;
  pthread_mutex_lock (&w.lock);
  w.stopping = true;
  pthread_cond_signal (&w.stop);
  pthread_mutex_unlock (&w.lock);
  pthread_join (w.thread, NULL);
  w.on = false;
  lib.shutdown ();
}

/* ---- a reading ---- */

static double ask (int (*what) (device d, unsigned *out), double unit)
{
  unsigned x = 0;
  return what (w.gpu, &x) ? NAN : x * unit;
}

static double ask_of (int (*what) (device d, int which, unsigned *out), int which)
{
  unsigned x = 0;
  return what (w.gpu, which, &x) ? NAN : x;
}

static void averages (struct gpu_state *g)
{
  pthread_mutex_lock (&w.lock);
  if (!w.samples) sample ();
  g->utilization = w.samples ? w.sum / w.samples : 0;
  g->idle = w.samples ? (double) w.idle / w.samples : 0;
  g->dips = w.dips;
  g->seconds = now () - w.since;
  w.samples = w.idle = w.dips = 0;
  w.sum = 0;
  w.since = now ();
  pthread_mutex_unlock (&w.lock);
}

bool nvml_read (struct gpu_state *g)
{
  struct memory m = { 0 };
  unsigned long long bits = 0;
  *g = (struct gpu_state) { 0 };
  if (!w.on || lib.memory (w.gpu, &m)) return false;
  averages (g);
  g->memory_used = (int64_t) m.used;
  g->memory_total = (int64_t) m.total;
  g->power = ask (lib.power, 1e-3);
  g->power_limit = ask (lib.limit, 1e-3);
  g->clock = ask_of (lib.clock, CLOCK_SM);
  g->memory_clock = ask_of (lib.clock, CLOCK_MEM);
  g->clock_max = ask_of (lib.clock_max, CLOCK_SM);
  g->temperature = ask_of (lib.temperature, TEMPERATURE_GPU);
  if (!lib.throttle (w.gpu, &bits)) g->throttle = bits;
  return true;
}

const char *nvml_throttle_text (uint64_t bits, char out[static 160])
{
  size_t n = 0;
  out[0] = 0;
  for (int i = 0; i < NVML_REASONS; i++)
    if (bits & nvml_reason[i].bit) n += (size_t) snprintf (out + n, 160 - n, "%s%s", n ? ", " : "", nvml_reason[i].name);
  return out;
}
