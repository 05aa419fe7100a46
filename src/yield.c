#include "config.h"
#include "yield.h"
#include "mesh.h"
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool held;
static int idle;

void yield_hold (bool on) { held = on; idle = 0; }

static bool main_thread (void)
{
  static _Thread_local int is;
  if (!is) is = syscall (SYS_gettid) == getpid () ? 1 : -1;
  return is > 0;
}

/* Other threads (a plugin of NCCL may bring some) and our own waits go straight through. */
__attribute__ ((visibility ("default"))) unsigned ucp_worker_progress (void *worker)
{
  static unsigned (*next) (void *);
  if (!next) next = (unsigned (*) (void *)) dlsym (RTLD_NEXT, "ucp_worker_progress");
  if (!next) return 0;
  unsigned moved = next (worker);
  if (held || !main_thread ()) return moved;
  if (moved) idle = 0;
  else wait_idle (&idle);
  return moved;
}
