/* metrics.jsonl, the progress line and exit.json. np: 1 2 */
#include "tap.h"
#include "metrics.h"
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Names of our own, so that no device is linked in. */
const char *group_name (enum group_kind k) { return k == GROUP_SHARD ? "shard" : "other"; }
const char *op_name (enum op_kind k) { return k == OP_ALL_GATHER ? "all_gather" : "other"; }
const char *purpose_name (enum purpose p) { return p == MEM_WEIGHT ? "weight" : "other"; }

static char dir[200], path[240];
static int rank, size;

static struct metrics_record record (int64_t step)
{
  return (struct metrics_record) { .step = step, .loss = 5.5 / step, .grad_norm = 0.1, .lr = 1e-3, .tokens = 512 * step,
                                   .step_tokens = 512, .seconds = 0.5, .mfu = 0.25, .memory = 3 << 29 };
}

/* Line N (from 0) of the file as JSON; NULL if there is none. */
static json_t *line (const char *file, int n)
{
  FILE *f = fopen (file, "r");
  char *text = NULL;
  size_t room = 0;
  json_t *o = NULL;
  for (int i = 0; f && getline (&text, &room, f) > 0; i++)
    if (i == n) o = json_loads (text, 0, NULL);
  if (f) fclose (f);
  free (text);
  return o;
}

static int lines (const char *file)
{
  FILE *f = fopen (file, "r");
  int c, n = 0;
  while (f && (c = getc (f)) != EOF) n += c == '\n';
  return f ? fclose (f), n : -1;
}

static double real_at (json_t *o, const char *key) { return json_number_value (json_object_get (o, key)); }
static int64_t int_at (json_t *o, const char *key) { return json_integer_value (json_object_get (o, key)); }

static void steps (struct metrics *m, int from, int to)
{
  for (int i = from; i <= to; i++) {
    struct metrics_record r = record (i);
    metrics_step (m, &r);
  }
}

static void say_to (const char *file, int on)
{
  static int saved = -1;
  fflush (stdout);
  if (on) {
    saved = dup (1);
    must (freopen (file, "w", stdout), "freopen");
  }
  else {
    dup2 (saved, 1);
    close (saved);
  }
}

static void records (void)
{
  struct err e = { 0 };
  struct metrics *m = metrics_open (dir, 0, 20, 0, &e);
  struct dev d = { .mem[SPACE_DEVICE].reserved[MEM_WEIGHT] = 1000, .mem[SPACE_HOST].reserved[MEM_WEIGHT] = 24 };
  struct group_head g = { .n = 2 }, one = { .n = 1 };
  struct metrics_record r = record (1);
  r.dev = &d;
  r.group[GROUP_SHARD] = &g;
  r.group[GROUP_TP] = &one;
  g.stat.kind[0] = (struct coll_stat) { 3, INT64_C (1) << 40, 2.0, 0.5 };
  one.stat.kind[0].calls = 9;
  r.loss = 0.1 + 0.2;
  metrics_step (m, &r);
  g.stat.kind[0] = (struct coll_stat) { 5, (INT64_C (1) << 40) + 100, 2.5, 0.75 };
  r = record (2);
  r.group[GROUP_SHARD] = &g;
  r.loss = NAN;
  r.mfu = -1;
  r.skipped = r.has_eval = true;
  r.eval_loss = 4.25;
  metrics_step (m, &r);
  metrics_close (m);
  json_t *a = line (path, 0), *b = line (path, 1), *mem = json_object_get (a, "memory");
  tap_ok (rank || (lines (path) == 2 && int_at (a, "step") == 1 && real_at (a, "loss") == 0.1 + 0.2
                   && real_at (a, "tokens_per_s") == 1024 && real_at (a, "mfu") == 0.25
                   && int_at (a, "tokens") == 512 && json_is_false (json_object_get (a, "skipped"))
                     && !json_object_get (a, "eval_loss")), "a record, its loss to the last bit");
  tap_ok (rank || (int_at (mem, purpose_name (MEM_WEIGHT)) == 1024 && int_at (mem, "resident_peak") > 1 << 20),
          "memory by purpose over all spaces, and the resident peak");
  json_t *ca = json_object_get (json_object_get (json_object_get (a, "comm"), group_name (GROUP_SHARD)), op_name (OP_ALL_GATHER));
  json_t *cb = json_object_get (json_object_get (json_object_get (b, "comm"), group_name (GROUP_SHARD)), op_name (OP_ALL_GATHER));
  tap_ok (rank || (int_at (ca, "bytes") == INT64_C (1) << 40 && int_at (cb, "bytes") == 100 && int_at (cb, "calls") == 2
                   && real_at (cb, "busy_s") == 0.5
                   && real_at (cb, "exposed_s") == 0.25), "each step has its own bytes and times");
  tap_ok (rank || json_object_size (json_object_get (a, "comm")) == 1, "a group of one rank has no line");
  tap_ok (rank || (json_is_null (json_object_get (b, "loss")) && json_is_null (json_object_get (b, "mfu"))
                   && json_is_true (json_object_get (b, "skipped"))
                   && real_at (b, "eval_loss") == 4.25), "what is not finite or not known is null");
  json_decref (a);
  json_decref (b);
}

static void resume (void)
{
  struct err e = { 0 };
  char old[sizeof path];
  snprintf (old, sizeof old, "%s/metrics.old.jsonl", dir);
  struct metrics *m = metrics_open (dir, 0, 20, 0, &e);
  steps (m, 1, 9);
  metrics_close (m);
  tap_ok (rank || (lines (path) == 9 && lines (old) == 2), "a new run keeps the old file aside");
  m = metrics_open (dir, 6, 20, 0, &e);
  int at = lines (path);
  steps (m, 7, 8);
  metrics_close (m);
  json_t *o = line (path, 7);
  tap_ok (rank || (at == 6 && lines (path) == 8 && int_at (o, "step") == 8), "a resumed run cuts later steps off and goes on");
  json_decref (o);
  if (!rank) {
    FILE *f = fopen (path, "a");
    fputs ("{\"step\": 5, \"loss\": 1", f);
    fclose (f);
  }
  m = metrics_open (dir, 100, 200, 0, &e);
  steps (m, 101, 101);
  metrics_close (m);
  o = line (path, 8);
  tap_ok (rank || (lines (path) == 9 && int_at (o, "step") == 101), "a torn last line is cut off");
  json_decref (o);
}

static void progress (void)
{
  struct err e = { 0 };
  char text[320], out[sizeof path];
  snprintf (out, sizeof out, "%s/out.%d", dir, rank);
  struct metrics *m = metrics_open (dir, 0, 1000, 5, &e);
  struct metrics_record r = record (1);
  say_to (out, 1);
  steps (m, 1, 12);
  r.step = 13;
  r.skipped = true;
  metrics_step (m, &r);
  say_to (out, 0);
  tap_ok (lines (out) == (rank ? 0 : 4), "lines for the first step, each fifth, and a skipped one; from rank 0 alone");
  r = record (14);
  r.has_eval = true;
  r.eval_loss = 2.5;
  metrics_step (m, &r);
  r.step = 28;
  steps (m, 15, 16);
  metrics_line (m, &r, text, sizeof text);
  const char *want = "step   28/1000  loss 0.3929  norm 0.100  1024 tokens/s  MFU 25.0 %  mem 1.50 GiB  left 8:06  valid 2.5000";
  tap_ok (rank || !strcmp (text, want), "%s", text);
  r.mfu = -1;
  r.has_eval = false;
  metrics_line (m, &r, text, sizeof text);
  tap_ok (!strstr (text, "MFU") && !strstr (text, "valid"), "what is not known is not said");
  metrics_close (m);
}

/* A limit on the size of files stands for the full disk. */
static void full_disk (void)
{
  struct err e = { 0 };
  struct rlimit was, now = { 0 };
  struct metrics *m = metrics_open (dir, 0, 20, 0, &e);
  steps (m, 1, 3);
  struct stat s = { 0 };
  stat (path, &s);
  getrlimit (RLIMIT_FSIZE, &was);
  now = was;
  now.rlim_cur = s.st_size + 20;
  signal (SIGXFSZ, SIG_IGN);
  int quiet = dup (2);
  if (!freopen ("/dev/null", "w", stderr)) now = was;
  setrlimit (RLIMIT_FSIZE, &now);
  steps (m, 4, 6);
  setrlimit (RLIMIT_FSIZE, &was);
  dup2 (quiet, 2);
  close (quiet);
  steps (m, 7, 7);
  metrics_close (m);
  json_t *o = line (path, 3);
  tap_ok (rank || (lines (path) == 4 && int_at (o, "step") == 7), "a full disk loses records, tears none and ends nothing");
  json_decref (o);
  m = metrics_open ("/nonexistent/run", 0, 20, 0, &e);
  tap_ok (rank ? m != NULL : !m && e.code == EXIT_WORLD && strstr (e.msg, "/nonexistent/run/metrics.jsonl: "),
          "a folder that is not there: %s", rank ? "" : e.msg);
  metrics_close (m);
}

static void ending (void)
{
  char file[sizeof path], long_reason[6000];
  snprintf (file, sizeof file, "%s/exit.json", dir);
  MPI_Barrier (MPI_COMM_WORLD);
  if (!rank) unlink (file);
  MPI_Barrier (MPI_COMM_WORLD);
  base_phase ("step 12");
  int rc = rank == size - 1 ? exit_write (dir, EXIT_WORLD, "disk \"a\\b\" is full:\n caf\xc3\xa9 \xff", 12) : 0;
  MPI_Barrier (MPI_COMM_WORLD);
  int late = exit_write (dir, EXIT_DONE, "done", 20);
  MPI_Barrier (MPI_COMM_WORLD);
  json_t *o = json_load_file (file, 0, NULL);
  tap_ok (rc == 0 && late == 1 && int_at (o, "code") == EXIT_WORLD && int_at (o, "step") == 12 && int_at (o, "rank") == size - 1
          && !strcmp (json_string_value (json_object_get (o, "reason")), "disk \"a\\b\" is full:\n caf\xc3\xa9 ?")
          && !strcmp (json_string_value (json_object_get (o, "host")), base_host ()), "the first to know has the word");
  json_decref (o);
  MPI_Barrier (MPI_COMM_WORLD);
  if (!rank) unlink (file);
  memset (long_reason, '\n', sizeof long_reason);
  long_reason[sizeof long_reason - 1] = 0;
  MPI_Barrier (MPI_COMM_WORLD);
  if (!rank) exit_write (dir, EXIT_USER, long_reason, -1);
  MPI_Barrier (MPI_COMM_WORLD);
  o = json_load_file (file, 0, NULL);
  tap_ok (int_at (o, "code") == EXIT_USER && int_at (o, "step") == -1, "a reason without end is cut");
  json_decref (o);
  char command[240];
  snprintf (command, sizeof command, "ls %s | grep -q tmp", dir);
  tap_ok (system (command) != 0 && exit_write ("/nonexistent/run", 1, "x", 0) == -1,
          "no temporary file is left, and a failure is told");
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  if (!rank) {
    snprintf (dir, sizeof dir, "%s/t_metrics.XXXXXX", tap_tmp ());
    must (mkdtemp (dir), "mkdtemp");
  }
  MPI_Bcast (dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
  snprintf (path, sizeof path, "%s/metrics.jsonl", dir);
  say_level (SAY_WARN);
  records ();
  resume ();
  say_level (SAY_INFO);
  progress ();
  say_level (SAY_WARN);
  full_disk ();
  ending ();
  tap_ok (base_live () == 0, "nothing is left behind");
  char command[240];
  snprintf (command, sizeof command, "rm -rf %s", dir);
  MPI_Barrier (MPI_COMM_WORLD);
  if (!rank && system (command)) return 1;
  tap_done ();
  MPI_Finalize ();
  return 0;
}
