/* pretrain doctor: which of its three kinds is asked for. */
#include "config.h"
#include "doctor.h"
#include <string.h>
#include <sys/stat.h>

static const char help[] =
  "usage: mpiexec -n N pretrain doctor [RUN.yaml] [--device auto|cpu|cuda] [--dir FOLDER] [--option value ...]\n"
  "       pretrain doctor RUN_DIR [RUN_DIR ...]\n"
  "       mpiexec -n N pretrain doctor --calibrate [FILE.yaml] [--device cpu|cuda] [--spread PERCENT]\n"
  "\n"
  "The first looks at this launch: ranks, nodes, cores and who may use which, memory, GPUs, MPI, shared memory, the file system of FOLDER\n"
  "(default: here), links; says what is wrong and what to do. With RUN.yaml or options of a run it checks the mesh on these nodes as well.\n"
  "Some seconds. Start it as the run will be started.\n"
  "\n"
  "The second reads what a run left behind: out of memory before the first step, fewer tokens on more ranks, checkpoints that do not load,\n"
  "computation that stands still again and again, a loss that diverges. Of several runs it compares those of different size.\n"
  "\n"
  "Both end with status 0 where nothing is wrong and 2 where something is.\n"
  "\n"
  "The third measures this machine as N ranks see it, all at once: products by shape, attention, memory, the links between ranks; and writes\n"
  "a machine file (cpu.yaml) for pretrain plan --machine FILE.yaml. Every figure says that it was measured, where and when. It is done\n"
  "three times, and medians are written; nothing is, where the rounds differ by more than PERCENT (15) or a rank had not that much of its\n"
  "processors. A minute or less; best with as many ranks a node as a run will have.\n";

struct finding *finding_add (struct findings *f, enum finding_kind k)
{
  struct finding *x = &f->list[MIN (f->n, LEN (f->list) - 1)];
  f->n = MIN (f->n + 1, LEN (f->list));
  *x = (struct finding) { .kind = k };
  return x;
}

int finding_print (const struct findings *f, const char *none, FILE *out)
{
  int wrong = 0;
  for (int i = 0; i < f->n; i++) {
    const struct finding *x = &f->list[i];
    wrong += x->kind == FINDING_WRONG;
    fprintf (out, "%s %s\n%s%s%s", x->kind == FINDING_WRONG ? "wrong:" : "note: ", x->what, x->remedy[0] ? "   do: " : "", x->remedy, x->remedy[0] ? "\n" : "");
  }
  if (!wrong) fprintf (out, "%s\n", none);
  return wrong ? EXIT_USER : EXIT_DONE;
}

int doctor_main (int argc, char **argv)
{
  struct stat s;
  for (int i = 1; i < argc; i++) {
    if (!strcmp (argv[i], "--help") || !strcmp (argv[i], "-h")) return fputs (help, stdout), EXIT_DONE;
    if (!strcmp (argv[i], "--calibrate")) return doctor_calibrate (argc, argv);
  }
  bool folder = argc > 1 && !stat (argv[1], &s) && S_ISDIR (s.st_mode);
  return folder ? doctor_runs (argc, argv) : doctor_launch (argc, argv);
}
