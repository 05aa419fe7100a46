/* pretrain: the program. Each command is a row of a table. */
#include "config.h"
#include "ckpt.h"
#include "conf.h"
#include "doctor.h"
#include "plan.h"
#include "convert.h"
#include "report.h"
#include "sample.h"
#include "tokenize.h"
#include "train.h"
#include <string.h>

static int help_main (int argc, char **argv);
static int version_main (int argc, char **argv);
static int man_main (int argc, char **argv);

static const struct command {
  const char *name, *args, *help;
  int (*main) (int argc, char **argv);   /* argv[0] is the command's word */
} commands[] = {
  { "train", "RUN.yaml [--option value ...]", "train (the word may be left out); resumes by itself from the newest good checkpoint", train_main },
  { "doctor", "[RUN.yaml | RUN_DIR...] | --calibrate ...", "what is wrong with this launch (under mpiexec), or with a run; measure for the planner", doctor_main },
  { "plan", "[RUN.yaml] --gpus N --machine NAME ...", "what a run will cost, and which mesh is best; pretrain plan --help", plan_main },
  { "tokenize", "[--tokenizer FILE] IN.txt... OUT.h5", "text to a token file", tokenize_main },
  { "sample", "RUN_DIR [--prompt TEXT] [--tokens 200] ...", "text from a checkpoint", sample_main },
  { "import", "DIR --from hf | FILE.h5 --from full", "a checkpoint out of others' files", import_main },
  { "export", "CKPT --to hf DIR | --to full FILE.h5", "a checkpoint for other programs", export_main },
  { "verify", "CHECKPOINT...", "check checkpoints; two of one step: do they hold the same?", verify_main },
  { "report", "RUN_DIR... [--output FILE.html]", "draw runs as one page: curves, mesh, memory, incidents", report_main },
  { "--help", "", "this, and all options", help_main },
  { "-h", "", "the same", help_main },
  { "--version", "", "the version", version_main },
  { "--man", "", "the options in the form of the manual page", man_main },
};

static int version_main (int argc, char **argv)
{
  (void) argc, (void) argv;
  printf ("pretrain (Tessera) %s\n", PACKAGE_VERSION);
  return EXIT_DONE;
}

static int man_main (int argc, char **argv)
{
  (void) argc, (void) argv;
  conf_man (stdout);
  return EXIT_DONE;
}

static void usage (FILE *f)
{
  fprintf (f, "usage: mpiexec -n N pretrain RUN.yaml [--option value ...]\n       pretrain COMMAND ...\n\n");
  for (int i = 0; i < LEN (commands); i++) fprintf (f, "  %-10s %-36s %s\n", commands[i].name, commands[i].args, commands[i].help);
}

static int help_main (int argc, char **argv)
{
  (void) argc, (void) argv;
  usage (stdout);
  printf ("\nOptions of a run, as --name value, --name=value or in RUN.yaml:\n\n");
  conf_help (stdout);
  return EXIT_DONE;
}

int main (int argc, char **argv)
{
  if (argc < 2) {
    usage (stderr);
    return EXIT_USER;
  }
  for (int i = 0; i < LEN (commands); i++)
    if (!strcmp (argv[1], commands[i].name)) {
      bool train = commands[i].main == train_main;
      if (train && argc > 2 && (!strcmp (argv[2], "--help"))) return help_main (0, NULL);
      return commands[i].main (argc - 1, argv + 1);
    }
  return train_main (argc, argv);
}
