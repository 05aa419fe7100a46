/* One step for peer_step.py to judge:  peer_step DIR [--option value ...]
   trains one step of the model tiny with these options on TEST_DEVICE and leaves in DIR: config.yaml; tensors.txt (name rows cols, in the order of the files);
   init.f32, grad.f32 (mean), final.f32 (after AdamW); ids.i32, target.i32 (-1: not in the loss) of the batch [batch, seq]; logits.f32 of its first sequence
   [seq, vocab] under the initial weights; loss.txt. */
#include "tiny_grad.h"
#include <sys/stat.h>

static FILE *create (const char *dir, const char *name)
{
  char path[1024];
  snprintf (path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen (path, "wb");
  must (f, "cannot write %s", path);
  return f;
}

static void leave (const char *dir, const char *name, const void *x, int64_t n)
{
  FILE *f = create (dir, name);
  must (fwrite (x, 4, (size_t) n, f) == (size_t) n && !fclose (f), "cannot write %s/%s", dir, name);
}

static void leave_names (const char *dir, const struct arch *a)
{
  FILE *f = create (dir, "tensors.txt");
  for (int64_t b = 0; b < a->layers + 2; b++) {
    enum pid ids[P_N];
    int k = block_params (a, b, ids);
    for (int i = 0; i < k; i++) {
      int64_t rows, cols;
      char name[96];
      param_shape (a, ids[i], &rows, &cols);
      param_name (a, b, ids[i], name);
      fprintf (f, "%s %lld %lld\n", name, (long long) rows, (long long) (param_ndim (ids[i]) == 1 ? 0 : cols));
    }
  }
  fclose (f);
}

int main (int argc, char **argv)
{
  struct conf c;
  struct tiny run;
  struct step_result r;
  char options[1024] = "";
  int rank, size;
  float *x;
  int64_t n;
  tiny_begin (&argc, &argv, &rank, &size);
  if (argc < 2) return 2;
  const char *dir = argv[1];
  for (int i = 2; i < argc; i++) snprintf (options + strlen (options), sizeof options - strlen (options), "%s ", argv[i]);
  mkdir (dir, 0777);
  tiny_options (&c, "--data.document_mask false", options);
  tiny_open (&run, &c, MPI_COMM_SELF, 0);
  const struct arch *a = &c.arch;
  int64_t seq = c.train.seq_len;
  must (run.s.mbs == 1, "one micro-batch is wanted");
  FILE *f = create (dir, "config.yaml");
  conf_dump (&c, f);
  fclose (f);
  leave_names (dir, a);
  tiny_collect (&run.s, &run.m, false, 1, &x, &n);
  leave (dir, "init.f32", x, n);
  free (x);
  tiny_fill (&run.s, 1, run.b);
  leave (dir, "ids.i32", run.b[0].ids, run.s.b.g.n);
  leave (dir, "target.i32", run.b[0].target, run.s.b.g.n);
  x = malloc ((size_t) (seq * a->vocab) * 4);
  for (int64_t i = 0; i < seq; i++) step_logits (&run.s, run.b, i, x + i * a->vocab);
  leave (dir, "logits.f32", x, seq * a->vocab);
  free (x);
  tiny_step (&run, 1, &r);
  tiny_collect (&run.s, &run.m, true, 1 / r.tokens, &x, &n);
  leave (dir, "grad.f32", x, n);
  free (x);
  tiny_collect (&run.s, &run.m, false, 1, &x, &n);
  leave (dir, "final.f32", x, n);
  free (x);
  f = create (dir, "loss.txt");
  fprintf (f, "%.9g %.9g\n", r.loss, r.norm);
  fclose (f);
  tiny_close (&run);
  MPI_Finalize ();
  return 0;
}
