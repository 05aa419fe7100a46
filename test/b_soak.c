/* Communicators that share ranks, for long: dp 2 x pp 2 x tp 2 with overlap while messages start late at random on each rank. A deadlock shows as a timeout, a
   missing wait as other losses. make bigcheck. np: 8 */
#include "tap.h"
#include "tiny_sleep.h"
#include "tiny_run.h"

enum { STEPS = 50, REPEATS = 20, LONG = 2000 };

static void run (const char *options, int steps, double *loss)
{
  struct conf c;
  struct tiny t;
  tiny_options (&c, "--mesh.dp_shard 2 --mesh.pp 2 --mesh.tp 2 --train.micro_batch 1", options);
  tiny_open (&t, &c, MPI_COMM_WORLD, 0);
  for (int64_t i = 1; i <= steps; i++) {
    struct step_result r;
    tiny_step (&t, i, &r);
    loss[i - 1] = r.loss;
  }
  tiny_close (&t);
}

int main (int argc, char **argv)
{
  static double want[STEPS], is[LONG];
  int rank, size, same = 0;
  tiny_begin (&argc, &argv, &rank, &size);
  run ("--run.overlap false", STEPS, want);
  tiny_nap.on = true;
  for (int i = 0; i < REPEATS; i++) {
    run (i % 2 ? "--run.overlap true --debug.sync_send true" : "--run.overlap true", STEPS, is);
    same += !memcmp (want, is, sizeof want);
  }
  tap_ok (same == REPEATS, "%d of %d times the same losses of %d steps", same, REPEATS, STEPS);
  run ("--train.steps 2000", LONG, is);
  tap_ok (is[LONG - 1] < is[0], "%d steps with %lld sleeps: loss %.4f to %.4f", LONG, (long long) tiny_nap.slept, is[0], is[LONG - 1]);
  tap_done ();
  MPI_Finalize ();
  return 0;
}
