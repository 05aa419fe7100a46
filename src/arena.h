/* arena: memory by purpose, sized before the first step, allocated once.

   A layout function takes slots from an arenas object; it runs twice. The first run only measures (the pointers are meaningless), then arenas_reserve
   asks the device for exactly that much, and the second run gives the real addresses. */
#ifndef ARENA_H
#define ARENA_H
#include "dev.h"

struct arena { char *base; int64_t used, size; };
struct arenas { struct dev *d; int64_t align; struct arena a[SPACE_N][MEM_N]; };

void  arenas_init (struct arenas *A, struct dev *d);
/* BYTES, aligned; 0 bytes give NULL. */
void *arena_take (struct arenas *A, enum purpose p, enum space s, int64_t bytes);
/* N elements of type T in device memory. */
void *arena_tensor (struct arenas *A, enum purpose p, int64_t n, enum dtype t);
/* After the measuring run. Local. 0, or -1 with the sentence. */
int   arenas_reserve (struct arenas *A, struct err *e);
void  arenas_release (struct arenas *A);
#endif
