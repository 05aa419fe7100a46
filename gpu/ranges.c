/* ranges: NVTX ranges of the host's thread, which NVIDIA's profilers show; without one they cost a test of a pointer. NVTX is headers alone. A file of its own: they include
   the system's unistd.h, whose names are others' here. */
#if __has_include (<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
void range_begin (const char *name) { nvtxRangePushA (name); }
void range_end (void) { nvtxRangePop (); }
#else
void range_begin (const char *name) { (void) name; }
void range_end (void) { }
#endif
