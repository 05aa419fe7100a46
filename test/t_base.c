/* np: 1 2 */
#include "tap.h"
#include "base.h"
#include "dtype.h"
#include <math.h>
#include <string.h>

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  struct err e = { 0 };
  tap_ok (user_err (&e, "a %d", 1) == -1 && user_err (&e, "b") == -1 && !strcmp (e.msg, "a 1") && e.code == EXIT_USER,
          "the first message is kept");
  void *p = xalloc (10, "t");
  char *s = xprintf ("%d", 77);
  tap_ok (base_live () == 2 && base_live_bytes () == 13, "host memory is counted");
  xfree (p);
  xfree (s);
  tap_ok (base_live () == 0 && base_live_bytes () == 0, "and balances to zero");
  int good = 1;
  for (uint32_t h = 0; h < 65536; h++) {
    float f = bf16_to_f32 ((bf16) h);
    if (!isnan (f)) good &= f32_to_bf16 (f) == h;
    else good &= isnan (bf16_to_f32 (f32_to_bf16 (f)));
  }
  tap_ok (good, "all 65,536 bf16 values round-trip");
  tap_ok (f32_to_bf16 (1.00390625f) == 0x3f80 && f32_to_bf16 (1.01171875f) == 0x3f82, "ties go to even");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
