#include "arena.h"
#include <string.h>

void arenas_init (struct arenas *A, struct dev *d)
{
  memset (A, 0, sizeof *A);
  A->d = d;
  A->align = d->ops->limits->align;
}

void *arena_take (struct arenas *A, enum purpose p, enum space s, int64_t bytes)
{
  if (bytes <= 0) return NULL;
  struct arena *a = &A->a[s][p];
  int64_t at = round_up (a->used, A->align);
  a->used = at + bytes;
  if (a->base) must (a->used <= a->size, "the layout of %s took more in its second run", purpose_name (p));
  return a->base ? a->base + at : (void *) (uintptr_t) (A->align + at);
}

void *arena_tensor (struct arenas *A, enum purpose p, int64_t n, enum dtype t)
{
  return arena_take (A, p, SPACE_DEVICE, mul_exact (n, dtype_size (t)));
}

int arenas_reserve (struct arenas *A, struct err *e)
{
  for (int s = 0; s < SPACE_N; s++)
    for (int p = 0; p < MEM_N; p++) {
      struct arena *a = &A->a[s][p];
      a->size = round_up (a->used, A->align);
      a->used = 0;
      if (a->size && !(a->base = dev_reserve (A->d, p, s, a->size, e))) return -1;
    }
  return 0;
}

void arenas_release (struct arenas *A)
{
  for (int s = 0; s < SPACE_N; s++)
    for (int p = 0; p < MEM_N; p++) {
      struct arena *a = &A->a[s][p];
      if (a->base) dev_release (A->d, p, s, a->base, a->size);
      a->base = NULL;
    }
}
