/* algo: which algorithm of cuBLASLt does a product of a shape: what was measured here, what another rank measured, what is kept with the run (src/tune.h). As text, a line each:
   the shape, then the algorithm in hexadecimal. The first line names library and GPU, without which an algorithm means nothing. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry { char shape[ALGO_SHAPE]; cublasLtMatmulAlgo_t algo; };
static struct entry *table;
static int entries, room;
static bool in_use;

static void head (const struct cuda *c, char *t, size_t size)
{
  struct cudaDeviceProp p;
  CU (cudaGetDeviceProperties (&p, c->gpu));
  snprintf (t, size, "cuBLASLt %zu on %.80s", cublasLtGetVersion (), p.name);
}

static struct entry *find (const char *shape)
{
  for (int i = 0; i < entries; i++)
    if (!strcmp (table[i].shape, shape)) return &table[i];
  return NULL;
}

bool algo_in_use (void) { return in_use; }

bool algo_known (const char *shape, cublasLtMatmulAlgo_t *out)
{
  const struct entry *e = find (shape);
  if (e) *out = e->algo;
  return e;
}

void algo_keep (const char *shape, const cublasLtMatmulAlgo_t *algo)
{
  struct entry *e = find (shape);
  if (!e) {
    if (entries == room) {
      int more = room ? 2 * room : 64;
      struct entry *t = H->xalloc ((size_t) more * sizeof *t, "gemm table");
      if (entries) memcpy (t, table, (size_t) entries * sizeof *t);
      H->xfree (table);
      table = t;
      room = more;
    }
    e = &table[entries++];
    snprintf (e->shape, sizeof e->shape, "%s", shape);
  }
  e->algo = *algo;
}

char *cuda_tuned (struct dev *d)
{
  char title[128];
  if (!entries) return NULL;
  head (d->impl, title, sizeof title);
  size_t hex = 2 * sizeof (cublasLtMatmulAlgo_t), at = (size_t) snprintf (NULL, 0, "%s\n", title);
  char *t = H->xalloc (at + (size_t) entries * (ALGO_SHAPE + hex + 3) + 1, "gemm table");
  sprintf (t, "%s\n", title);
  for (int i = 0; i < entries; i++) {
    at += (size_t) sprintf (t + at, "%s: ", table[i].shape);
    for (size_t b = 0; b < sizeof table[i].algo; b++) at += (size_t) sprintf (t + at, "%02x", ((const unsigned char *) &table[i].algo)[b]);
    at += (size_t) sprintf (t + at, "\n");
  }
  return t;
}

static bool read_algo (const char *hex, cublasLtMatmulAlgo_t *a)
{
  for (size_t b = 0; b < sizeof *a; b++) {
    unsigned v;
    if (sscanf (hex + 2 * b, "%2x", &v) != 1) return false;
    ((unsigned char *) a)[b] = (unsigned char) v;
  }
  return true;
}

void cuda_tune (struct dev *d, const char *text, bool use)
{
  char title[128], shape[ALGO_SHAPE];
  head (d->impl, title, sizeof title);
  size_t n = strlen (title);
  if (text && (strncmp (text, title, n) || text[n] != '\n'))
    H->say (SAY_INFO, "the products of this run were measured with %.*s, here is %s: measured again", (int) strcspn (text, "\n"), text, title), text = NULL;
  for (const char *at = text ? strchr (text, '\n') : NULL; at && at[1]; at = strchr (at, '\n')) {
    const char *colon = strchr (++at, ':');
    cublasLtMatmulAlgo_t a;
    if (!colon || colon - at >= (ptrdiff_t) sizeof shape || colon[1] != ' ') break;
    snprintf (shape, (size_t) (colon - at) + 1, "%s", at);
    if (read_algo (colon + 2, &a)) algo_keep (shape, &a);
  }
  in_use = use;
  gemm_close ();   /* plans are made anew, by the table */
}

void algo_close (void)
{
  H->xfree (table);
  table = NULL;
  entries = room = 0;
  in_use = false;
}
