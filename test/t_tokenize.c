/* np: 1
   pretrain tokenize: what is in the file, where documents end, standard input, and what is said when it fails. */
#include "tap.h"
#include "data.h"
#include "tokens.h"
#include "tokenize.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[256], said[4096];

static void write_file (const char *name, const void *p, size_t n)
{
  FILE *f = fopen (name, "wb");
  if (!f || fwrite (p, 1, n, f) != n || fclose (f)) abort ();
}

/* Run the command in a child, so that limits and descriptors are its own; what it prints goes into SAID. INPUT: its standard
   input, or NULL. */
static int run (const char *input, rlim_t limit, char **argv)
{
  int argc = 0, status;
  while (argv[argc]) argc++;
  fflush (stdout);
  pid_t pid = fork ();
  if (!pid) {
    int out = open ("said", O_WRONLY | O_CREAT | O_TRUNC, 0666), in = open (input ? input : "/dev/null", O_RDONLY);
    dup2 (out, 1), dup2 (out, 2), dup2 (in, 0);
    if (limit) setrlimit (RLIMIT_FSIZE, &(struct rlimit) { limit, limit });
    int rc = tokenize_main (argc, argv);
    fflush (stdout);
    _exit (base_live () ? 77 : rc);
  }
  waitpid (pid, &status, 0);
  int fd = open ("said", O_RDONLY);
  ssize_t n = read (fd, said, sizeof said - 1);
  said[n > 0 ? n : 0] = 0;
  close (fd);
  return WIFEXITED (status) ? WEXITSTATUS (status) : 100 + WTERMSIG (status);
}
#define RUN(input, limit, ...) run (input, limit, (char *[]) { "tokenize", __VA_ARGS__, NULL })

/* The file's tokens as text: 256 is '|'. Checks the attributes. */
static const char *text_of (const char *name)
{
  static char text[4096];
  struct tokens t;
  struct err e = { 0 };
  int32_t row[4096];
  if (tokens_open (&t, name, NULL, 257, &e)) return strcpy (text, e.msg);
  bool good = t.vocab == 257 && t.eod == 256 && t.kind->bytes == 2 && !strcmp (t.tokenizer, "bytes");
  good &= t.count < (int64_t) sizeof text;
  if (!good || tokens_read (&t, 0, t.count, 257, row, &e)) sprintf (text, "bad: %s", e.msg);
  else
    for (int64_t i = 0; i <= t.count; i++) text[i] = i == t.count ? 0 : row[i] == 256 ? '|' : row[i] ? (char) row[i] : '0';
  tokens_close (&t);
  return text;
}

static void is (const char *name, const char *want, int rc, const char *what)
{
  const char *got = text_of (name);
  if (!tap_ok (!rc && !strcmp (got, want), "%s", what))
    printf ("# exit %d, said: %s# got:  %s\n# want: %s\n", rc, said, got, want);
}

static void documents (void)
{
  write_file ("a.txt", "one\ntwo\n", 8);
  write_file ("b.txt", "three", 5);
  write_file ("empty.txt", "", 0);
  write_file ("d.txt", "\n\nA\nB\n\n\nC\r\n\r\nD\rE\n\n", 18);
  int rc = RUN (NULL, 0, "--tokenizer", "bytes", "a.txt", "empty.txt", "b.txt", "o.h5");
  is ("o.h5", "one\ntwo\n|three|", rc, "each input is a document, empty ones none");
  tap_ok (!strncmp (said, "o.h5: 15 tokens, 2 documents, vocabulary 257", 44), "it says so");
  is ("o.h5", "one\ntwo\n|three|", RUN (NULL, 0, "a.txt", "b.txt", "o.h5"), "over an older file");
  is ("l.h5", "one|two|three|A|B|C|D\rE|", RUN (NULL, 0, "--documents", "lines", "a.txt", "b.txt", "d.txt", "l.h5"),
      "each line is a document");
  is ("b.h5", "one\ntwo\n|A\nB\n|C\r\n|D\rE\n|three|", RUN (NULL, 0, "--documents=blank", "a.txt", "d.txt", "b.txt", "b.h5"),
      "empty lines stand between documents");
  write_file ("cr.txt", "x\n\r", 3);
  is ("c.h5", "x\n\r|", RUN (NULL, 0, "--documents", "blank", "cr.txt", "c.h5"), "a CR at the end is text");
  is ("c.h5", "x|\r|", RUN (NULL, 0, "--documents", "lines", "cr.txt", "c.h5"), "also by lines");
  is ("s.h5", "three|", RUN ("b.txt", 0, "-", "s.h5"), "standard input");
  mkfifo ("pipe", 0666);
  pid_t pid = fork ();
  if (!pid) {
    int fd = open ("pipe", O_WRONLY);
    _exit (write (fd, "p|q\nr", 5) != 5);
  }
  is ("p.h5", "p|q|r|", RUN (NULL, 0, "--documents", "lines", "pipe", "p.h5"), "a pipe, read twice");
  waitpid (pid, NULL, 0);
}

/* Larger than every buffer, and all 256 bytes. */
static void large (void)
{
  enum { N = 3000001 };
  unsigned char *p = malloc (N);
  for (int i = 0; i < N; i++) p[i] = (unsigned char) (i * 2654435761u >> 13);
  write_file ("large.txt", p, N);
  int64_t lines = 0;
  for (int i = 0; i < N; i++) lines += p[i] == '\n';
  int rc = RUN (NULL, 0, "large.txt", "large.h5"), good = 1;
  struct tokens t;
  struct err e = { 0 };
  int32_t *row = malloc ((N + 1) * sizeof *row);
  good &= !tokens_open (&t, "large.h5", NULL, 257, &e) && t.count == N + 1 && !tokens_read (&t, 0, N + 1, 257, row, &e);
  for (int i = 0; i < N && good; i++) good &= row[i] == p[i];
  tap_ok (!rc && good && row[N] == 256, "3 MB of all bytes come back, uint16, 256 at the end");
  tokens_close (&t);
  rc = RUN (NULL, 0, "--documents", "blank", "large.txt", "large.h5");
  tap_ok (!rc, "documents over the edges of buffers");
  free (p), free (row);
}

static void fails (int rc, int want, const char *words, const char *out)
{
  char tmp[64], line[512];
  snprintf (tmp, sizeof tmp, "%s.tmp", out);
  snprintf (line, sizeof line, "pretrain: %s", words);
  size_t n = strlen (line);
  bool same = line[n - 1] == '*' ? !strncmp (said, line, n - 1) : !strncmp (said, line, n) && said[n] == '\n';
  if (!tap_ok (rc == want && same && access (out, F_OK) && access (tmp, F_OK), "exit %d: %s", want, words))
    printf ("# exit %d, said: %s", rc, said);
}

static void mistakes (void)
{
  mkdir ("folder", 0777);
  fails (RUN (NULL, 0, "gone.txt", "x.h5"), 2, "cannot open gone.txt: No such file or directory", "x.h5");
  fails (RUN (NULL, 0, "folder", "x.h5"), 2, "folder is a folder, not a text file", "x.h5");
  fails (RUN (NULL, 0, "empty.txt", "x.h5"), 2, "there is no text in empty.txt", "x.h5");
  fails (RUN (NULL, 0, "a.txt"), 2, "tokenize: name at least one text file and the output: pretrain tokenize IN.txt... OUT.h5",
         "x.h5");
  fails (RUN (NULL, 0, "a.txt", "b.txt"), 2, "tokenize: the last name is the output and must end in .h5, not b.txt", "x.h5");
  fails (RUN (NULL, 0, "a.txt", "gone/x.h5"), 4, "cannot create gone/x.h5.tmp: No such file or directory", "gone/x.h5");
  fails (RUN (NULL, 0, "--tokenizer", "llama.model", "a.txt", "x.h5"), 2,
         "tokenize: cannot open the tokenizer llama.model: No such file or directory; it is bytes or a file", "x.h5");
  fails (RUN (NULL, 0, "--eod", "x", "a.txt", "x.h5"), 2, "tokenize: --eod goes with a tokenizer's file; of bytes it is 256", "x.h5");
  fails (RUN (NULL, 0, "--documents", "pages", "a.txt", "x.h5"), 2,
         "tokenize: --documents pages is not known: none, lines or blank", "x.h5");
  fails (RUN (NULL, 0, "--vocab", "a.txt", "x.h5"), 2, "tokenize: option --vocab is not known; see pretrain tokenize --help",
         "x.h5");
  fails (RUN (NULL, 0, "a.txt", "x.h5", "--documents"), 2, "tokenize: --documents needs a value", "x.h5");
  fails (RUN (NULL, 1 << 20, "large.txt", "x.h5"), 4, "cannot *", "x.h5");
  tap_ok (strstr (said, "x.h5.tmp") && strstr (said, "File too large"), "it names the file and the cause: %.*s",
          (int) strcspn (said, "\n"), said);
  fails (RUN ("large.txt", 1 << 20, "-", "x.h5"), 4,
         "cannot write a temporary copy of standard input beside x.h5: File too large", "x.h5");
  tap_ok (RUN (NULL, 0, "--help") == 0 && !strncmp (said, "usage: pretrain tokenize", 24), "--help");
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  snprintf (dir, sizeof dir, "%s/t_tokenize.XXXXXX", tap_tmp ());
  if (!mkdtemp (dir) || chdir (dir)) return 99;
  documents ();
  large ();
  mistakes ();
  char command[300];
  snprintf (command, sizeof command, "rm -rf '%s'", dir);
  if (system (command)) return 99;
  tap_done ();
  MPI_Finalize ();
  return 0;
}
