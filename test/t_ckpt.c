/* Checkpoints: what one mesh wrote any other loads, byte for byte; what is damaged is found.
   np: 1 2 4 */
#define _GNU_SOURCE
#include "ckpt_rig.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- a file system that is slow to show names to other ranks, and has no locks --- */

static double hidden_until;

static int open_or_hide (const char *path, int flags, int mode)
{
  if (rank && now () < hidden_until && strstr (path, "/checkpoints/")) return errno = ENOENT, -1;
  return (int) syscall (SYS_openat, AT_FDCWD, path, flags, mode);
}
#define EXPORT __attribute__ ((visibility ("default")))
#define OPEN(name) \
  EXPORT int name (const char *path, int flags, ...) \
  { \
    va_list ap; \
    va_start (ap, flags); \
    int mode = flags & O_CREAT ? va_arg (ap, int) : 0; \
    va_end (ap); \
    return open_or_hide (path, flags, mode); \
  }
OPEN (open)
OPEN (open64)
EXPORT int flock (int fd, int op)
{
  if (hidden_until > 0) return errno = ENOLCK, -1;
  return (int) syscall (SYS_flock, fd, op);
}

/* --- any mesh from any other --- */

/* One process reads whole tensors, and some odd rectangle of each. */
static bool read_whole (const char *path, const struct arch *a)
{
  struct err e = { 0 };
  const struct ckpt_tensor *t;
  struct ckpt_file *f = ckpt_open (path, &e);
  int64_t n = f ? ckpt_tensors (f, &t) : 0, wrong = !f, seen = 0;
  float *x = xalloc (1 << 20, "test");
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < CKPT_KINDS; k++) {
      int64_t rows = t[i].rows, cols = t[i].cols, r0 = rows / 3, c0 = cols / 4, w = MAX (1, cols / 2), h = MAX (1, rows / 2);
      uint64_t name = name_hash (t[i].name);
      struct strip s[2] = { { 0, 0, cols, 0, rows * cols }, { r0, c0, w, w * h / 5, w * h - w * h / 5 } };
      seen += k == 0 ? rows * cols : 0;
      wrong += ckpt_find (f, t[i].name) != i;
      for (int j = 0; j < 2; j++) {
        wrong += ckpt_read (f, k, i, &s[j], x, &e) != 0;
        for (int64_t p = 0; p < s[j].count; p++) {
          int64_t at = s[j].start + p;
          uint32_t bits = element (name, k, (s[j].row0 + at / s[j].cols) * cols + s[j].col0 + at % s[j].cols);
          wrong += memcmp (&bits, x + p, 4) != 0;
        }
      }
    }
  wrong += seen != arch_params (a);
  if (wrong) printf ("# %s: %lld wrong, %s\n", path, (long long) wrong, e.msg);
  xfree (x);
  ckpt_close (f);
  return !wrong;
}

static void test_chain (const char *what, const struct arch *a, int64_t align, int stride)
{
  int n = LEN (shapes), good = 1, whole = 1, links = 0;
  struct err e = { 0 };
  char path[CKPT_PATH];
  fresh ();
  for (int i = 0; i < n; i++) {   /* load what the mesh before wrote, compare, write it again */
    const struct shape *h = &shapes[i * stride % n];
    struct rig r;
    if (!fits (h, a)) continue;
    rig_open (&r, a, h, align);
    ckpt_path (links, path);
    if (r.in && !links) visit (&r, true, CKPT_KINDS);
    else if (r.in) {
      good &= !ckpt_load (&r.s, path, false, &e) && r.s.step == links && r.s.tokens == (int64_t) links << 33 && r.s.updates == links - 0.5;
      good &= !visit (&r, false, CKPT_KINDS);
    }
    links++;
    good &= !save_step (&r, links, &e);
    MPI_Barrier (MPI_COMM_WORLD);
    ckpt_path (links, path);
    if (!rank) whole &= !ckpt_verify (path, &e) && read_whole (path, a);
    if (!good || !whole) printf ("# rank %d, mesh %d %d %d %d: %s\n", rank, h->dp_replicate, h->dp_shard, h->pp, h->tp, e.msg);
    rig_close (&r);
  }
  tap_ok (good, "%s: %d meshes, each loads what the one before wrote", what, links);
  tap_ok (whole, "%s: and every file is verified, its tensors read whole", what);
}

static void test_meet (void)
{
  int good = 1;
  for (int t = 0; t < 3000; t++) {   /* against marking elements one by one */
    enum { R = 7, C = 6 };
    uint8_t grid[2][R * C] = { { 0 } };
    int at[2][R * C];
    struct strip s[2];
    struct run run[RUNS_MAX];
    for (int k = 0; k < 2; k++) {
      int64_t rows = 1 + rand () % R, cols = 1 + rand () % C;
      s[k] = (struct strip) { rand () % (R - rows + 1), rand () % (C - cols + 1), cols, rand () % (rows * cols), 0 };
      s[k].count = 1 + rand () % (rows * cols - s[k].start);
      for (int64_t i = s[k].start; i < s[k].start + s[k].count; i++) {
        int64_t g = (s[k].row0 + i / cols) * C + s[k].col0 + i % cols;
        grid[k][g] = 1;
        at[k][g] = (int) (i - s[k].start);
      }
    }
    int n = strips_meet (&s[0], &s[1], run), both = 0, seen = 0;
    for (int g = 0; g < R * C; g++) both += grid[0][g] && grid[1][g];
    for (int i = 0; i < n; i++)
      for (int64_t r = 0; r < run[i].rows; r++)
        for (int64_t w = 0; w < run[i].width; w++, seen++) {
          int64_t a = run[i].a + r * run[i].a_stride + w, b = run[i].b + r * run[i].b_stride + w;
          bool hit = false;
          for (int g = 0; g < R * C; g++) hit |= grid[0][g] && grid[1][g] && at[0][g] == a && at[1][g] == b;
          good &= hit;
        }
    good &= seen == both;
  }
  tap_ok (good, "two pieces meet where their elements do");
}

/* --- damage --- */

static bool same_head (const char *path)
{
  struct ckpt_head h;
  struct err e = { 0 };
  bool same = !ckpt_head_read (path, &h, &e) && h.step == 1 && h.tokens == (int64_t) 1 << 33 && h.updates == 0.5;
  ckpt_head_free (&h);
  return same;
}

/* One byte after the other of a small file is flipped: found, or no byte that means anything. In a process of its own: HDF5 leaks what damaged files make it forget. */
static int flip_all (const char *path, const char *copy)
{
  struct err e = { 0 };
  long n = file_size (path), found = 0, tried = 0, missed = 0;
  for (long at = 0; at < n; at += at < 4096 ? 13 : 61, tried++) {
    flip (copy, at);
    e.msg[0] = 0;
    if (ckpt_verify (copy, &e)) found++;
    else if (!same_head (copy)) missed++, printf ("# a flip at byte %ld of %ld is not seen\n", at, n);
    flip (copy, at);
  }
  printf ("# flipped %ld bytes, %ld found, the others mean nothing\n", tried, found);
  fflush (stdout);
  return missed || found <= tried / 2;
}

static void test_flip (const char *path)
{
  struct err e = { 0 };
  char copy[CKPT_PATH];
  int status = -1;
  snprintf (copy, sizeof copy, "%s/copy.h5", dir);
  copy_file (path, copy);
  pid_t child = fork ();
  if (!child) {
    alarm (60);
    _exit (flip_all (path, copy));
  }
  waitpid (child, &status, 0);
  tap_ok (!status, "no flipped byte that means something is missed");
  int good = 1;
  long n = file_size (path), cut[] = { n - 1, n / 2, 2048, 100, 1, 0 };
  for (int i = 0; i < LEN (cut); i++) {
    copy_file (path, copy);
    must (!truncate (copy, cut[i]), "truncate");
    e.msg[0] = 0;
    good &= ckpt_verify (copy, &e) == -1 && strstr (e.msg, copy) != NULL;
  }
  tap_ok (good, "nor a file that was cut: %s", e.msg);
}

static void write_text (const char *path, const char *text)
{
  FILE *f = fopen (path, "w");
  must (f && fputs (text, f) >= 0 && !fclose (f), "%s", path);
}

static void test_newest (struct rig *r)
{
  struct err e = { 0 };
  char path[CKPT_PATH], p[CKPT_PATH];
  int64_t step = 0;
  fresh ();
  tap_ok (ckpt_newest (dir, MPI_COMM_WORLD, INT64_MAX, path, &step, &e) == 0, "no checkpoint is no error");
  int good = !save_step (r, 9, &e) && !save_step (r, 10, &e) && !save_step (r, 100000010, &e) && !save_step (r, 20, &e);
  tap_ok (good && ckpt_newest (dir, MPI_COMM_WORLD, INT64_MAX, path, &step, &e) == 1 && step == 100000010, "numbers are compared as numbers");
  if (!rank) {
    ckpt_path (100000010, p);
    set_attr (p, "complete", 0);
    snprintf (p, sizeof p, "%s/checkpoints/step_00000050.h5", dir);
    write_text (p, "no HDF5 file");
    snprintf (p, sizeof p, "%s/checkpoints/step_00000060.h5.tmp", dir);
    write_text (p, "");
    snprintf (p, sizeof p, "%s/checkpoints/step_x.h5", dir);
    write_text (p, "");
    char from[CKPT_PATH];
    ckpt_path (10, from);
    snprintf (p, sizeof p, "%s/checkpoints/step_00000030.h5", dir);
    copy_file (from, p);
  }
  MPI_Barrier (MPI_COMM_WORLD);
  tap_ok (ckpt_newest (dir, MPI_COMM_WORLD, INT64_MAX, path, &step, &e) == 1 && step == 20 && strstr (path, "step_00000020.h5"),
          "incomplete, foreign, temporary and renamed files are skipped");
  if (!rank) {   /* a byte of the data: only the checksum sees it */
    ckpt_path (20, p);
    flip (p, data_at (p, "/exp_avg/rank00000") + 5);
  }
  MPI_Barrier (MPI_COMM_WORLD);
  r->s.step = -1;
  tap_ok (ckpt_resume (&r->s, dir, true, &e) == 1 && r->s.step == 10 && !visit (r, false, CKPT_KINDS), "a damaged one is passed over for the one before");
  ckpt_path (20, p);
  if (!rank) unlink ((ckpt_path (10, p), p)), unlink ((ckpt_path (9, p), p));
  MPI_Barrier (MPI_COMM_WORLD);
  e = (struct err) { 0 };
  tap_ok (ckpt_resume (&r->s, dir, true, &e) == -1 && r->s.step == 10 && strstr (e.msg, "none of the 4"), "where all are damaged nothing begins anew: %s", e.msg);
  save_step (r, 10, &e);
  ckpt_path (20, p);
  e = (struct err) { 0 };
  tap_ok (ckpt_load (&r->s, p, false, &e) == -1 && e.code == EXIT_WORLD && strstr (e.msg, "damaged") && strstr (e.msg, "exp_avg/rank00000"), "it is named: %s", e.msg);
  e = (struct err) { 0 };
  tap_ok (!ckpt_load (&r->s, p, true, &e) && !visit (r, false, 1), "its weights alone are whole");
  visit (r, true, CKPT_KINDS);
  ckpt_path (10, p);
  if (!rank) set_attr (p, "version", 7);
  MPI_Barrier (MPI_COMM_WORLD);
  e = (struct err) { 0 };
  tap_ok (ckpt_load (&r->s, p, false, &e) == -1 && e.code == EXIT_USER && strstr (e.msg, "version 7"), "an unknown version is refused by name: %s", e.msg);
}

static void test_prune (struct rig *r)
{
  struct err e = { 0 };
  char p[CKPT_PATH];
  int good = 1;
  fresh ();
  for (int64_t i = 1; i <= 5; i++) good &= !save_step (r, i, &e);
  if (!rank) {
    snprintf (p, sizeof p, "%s/checkpoints/step_00000002.h5.tmp", dir);
    write_text (p, "");
    ckpt_path (5, p);
    must (!truncate (p, 100), "truncate");
    ckpt_prune (dir, 2);
    for (int64_t i = 1; i <= 5; i++) {
      ckpt_path (i, p);
      good &= (file_size (p) > 0) == (i >= 3);
    }
    snprintf (p, sizeof p, "%s/checkpoints/step_00000002.h5.tmp", dir);
    good &= file_size (p) < 0;
    ckpt_prune (dir, 0);
    ckpt_path (3, p);
    good &= file_size (p) > 0;
    ckpt_prune (dir, 1);
    good &= file_size (p) < 0;
    ckpt_path (4, p);
    good &= file_size (p) > 0;
  }
  tap_ok (good, "the newest good ones stay, what a killed save left goes");
}

static void test_model (struct rig *r)
{
  struct err e = { 0 };
  char p[CKPT_PATH];
  struct rig o;
  struct arch a = r->conf.arch;
  struct shape h = { 1, size, 1, 1, false, "layer" };
  fresh ();
  save_step (r, 1, &e);
  ckpt_path (1, p);
  a.layers++;
  a.vocab++;
  a.qk_norm = !a.qk_norm;
  rig_open (&o, &a, &h, 16);
  tap_ok (ckpt_load (&o.s, p, false, &e) == -1 && e.code == EXIT_USER && strstr (e.msg, "not in the checkpoint: model.layers.")
          && strstr (e.msg, "not in the model: model.layers.0.self_attn.q_norm.weight") && strstr (e.msg, "of another shape: model.embed_tokens.weight [37, 20], the model has [38, 20]"),
          "another model: %s", e.msg);
  e = (struct err) { 0 };
  tap_ok (ckpt_resume (&o.s, dir, true, &e) == -1 && e.code == EXIT_USER, "and no older one is tried for it");
  rig_close (&o);
  e = (struct err) { 0 };
  tap_ok (ckpt_load (&r->s, "/nowhere/x.h5", false, &e) == -1 && e.code == EXIT_USER && strstr (e.msg, "/nowhere/x.h5"), "no such file: %s", e.msg);
}

/* --- when the disk says no, to all or to one --- */

static int tmp_files (void)
{
  char cmd[sizeof dir + 64];
  snprintf (cmd, sizeof cmd, "ls %s/checkpoints/*.tmp >/dev/null 2>&1", dir);
  return !system (cmd);
}

static void test_disk (struct rig *r)
{
  struct err e = { 0 };
  char p[CKPT_PATH];
  int64_t step;
  struct rlimit old, no;
  fresh ();
  signal (SIGXFSZ, SIG_IGN);
  getrlimit (RLIMIT_FSIZE, &old);
  no = old;
  int first = save_step (r, 1, &e);
  for (int who = 0; who < 2; who++) {   /* all: the reservation fails; the last one only: its write does */
    no.rlim_cur = who ? 4096 : 8192;
    if (!who || (rank && rank == size - 1)) setrlimit (RLIMIT_FSIZE, &no);
    e = (struct err) { 0 };
    int rc = save_step (r, 2, &e);
    setrlimit (RLIMIT_FSIZE, &old);
    MPI_Barrier (MPI_COMM_WORLD);
    bool fails = !who || size > 1;
    tap_ok (!first && (fails ? rc == -1 && e.code == EXIT_WORLD && e.msg[0] : !rc) && (rank || !tmp_files ()), "no room for %s: %s", who ? "one rank" : "all", e.msg);
    tap_ok (ckpt_newest (dir, MPI_COMM_WORLD, INT64_MAX, p, &step, &e) == 1 && step == (fails ? 1 : 2) && !ckpt_load (&r->s, p, false, &e)
            && !visit (r, false, CKPT_KINDS), "the one before is as it was");
  }
}

static void test_denied (struct rig *r)
{
  struct err e = { 0 };
  char p[CKPT_PATH];
  fresh ();
  bool root = geteuid () == 0;
  int rc = save_step (r, 1, &e);
  ckpt_path (1, p);
  if (!rank) must (!chmod (p, 0600), "chmod");
  if (root && rank == size - 1) must (!seteuid (65534), "seteuid");
  MPI_Barrier (MPI_COMM_WORLD);
  e = (struct err) { 0 };
  rc |= root && ckpt_load (&r->s, p, false, &e) == 0;
  tap_ok (!rc && (!root || (e.code == EXIT_WORLD && strstr (e.msg, "ermission"))), "one rank may not read: all say so%s: %s", root ? "" : " # SKIP not root", e.msg);
  e = (struct err) { 0 };
  rc = root ? save_step (r, 2, &e) : -1;
  if (root && rank == size - 1) must (!seteuid (0), "seteuid");
  tap_ok (rc == -1 && (!root || (e.code == EXIT_WORLD && strstr (e.msg, "ermission"))), "one rank may not write: all say so%s: %s", root ? "" : " # SKIP not root", e.msg);
  tap_ok (rank || !tmp_files (), "and nothing is left");
}

static void test_late (struct rig *r)
{
  struct err e = { 0 };
  char p[CKPT_PATH];
  int64_t step = 0;
  fresh ();
  double t = now ();
  hidden_until = t + 0.3;
  int bad = save_step (r, 1, &e);
  double saved = now () - t;
  hidden_until = now () + 0.3;
  bad |= ckpt_newest (dir, MPI_COMM_WORLD, INT64_MAX, p, &step, &e) != 1 || step != 1 || ckpt_load (&r->s, p, false, &e) || visit (r, false, CKPT_KINDS);
  hidden_until = 0;
  tap_ok (!bad && (size == 1 || saved > 0.29), "names seen late, no locks: %s", e.msg);
}

/* --- how many bytes go to the disk --- */

static int64_t written (void)
{
  long long n = -1;
  char line[100];
  FILE *f = fopen ("/proc/self/io", "r");
  while (f && fgets (line, sizeof line, f)) sscanf (line, "wchar: %lld", &n);
  if (f) fclose (f);
  return n;
}

static void test_bytes (void)
{
  struct err e = { 0 };
  struct arch a = gqa;
  struct shape h = { 1, size, 1, 1, false, "layer" };
  struct rig r;
  a.dim = 128;
  a.vocab = 1000;
  a.ffn = 512;
  fresh ();
  rig_open (&r, &a, &h, 64);
  visit (&r, true, CKPT_KINDS);
  int64_t n = written (), all = 0;
  int rc = save_step (&r, 1, &e);
  n = written () - n;
  MPI_Allreduce (&n, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  double ratio = (double) all / (12.0 * (double) arch_params (&a));
  tap_ok (!rc && ratio >= 1.0 && ratio <= 1.02, "bytes written are %.4f of the payload", ratio);
  rig_close (&r);
}

/* --- for test/t_ckpt.sh --- */

static void *kill_later (void *us)
{
  usleep ((useconds_t) (intptr_t) us);
  kill (getpid (), SIGKILL);
  return NULL;
}

/* Every other save by threads, as behind training. */
static int save_either_way (struct rig *r, int64_t step, struct err *e)
{
  struct ckpt_saving *v;
  if (step % 2) return save_step (r, step, e);
  r->s.step = step;
  if (ckpt_begin (&r->s, dir, &v, e)) return -1;
  ckpt_go (v);
  return ckpt_finish (&v, e);
}

/* --save DIR N [RANK USEC]: load the newest checkpoint, compare, save N more; RANK (-1: each) is killed after USEC. */
static int save_some (int argc, char **argv)
{
  struct rig r;
  struct err e = { 0 };
  pthread_t t;
  char path[CKPT_PATH];
  int64_t step = 0, n = atoll (argv[3]);
  snprintf (dir, sizeof dir, "%s", argv[2]);
  rig_open (&r, &gqa, &(struct shape) { 1, size, 1, 1, false, "layer" }, 16);
  visit (&r, true, CKPT_KINDS);
  must (ckpt_newest (dir, MPI_COMM_WORLD, INT64_MAX, path, &step, &e) >= 0, "%s", e.msg);
  if (step) must (!ckpt_load (&r.s, path, false, &e) && !visit (&r, false, CKPT_KINDS), "%s: %s", path, e.msg);
  if (!rank) printf ("found %lld\n", (long long) step);
  if (argc > 5 && (rank == atoi (argv[4]) || atoi (argv[4]) < 0)) pthread_create (&t, NULL, kill_later, (void *) (intptr_t) atol (argv[5]));
  for (int64_t i = 0; i < n; i++) {
    must (!save_either_way (&r, ++step, &e), "%s", e.msg);
    if (rank) continue;
    printf ("saved %lld\n", (long long) step);
    fflush (stdout);
    ckpt_prune (dir, 2);
  }
  rig_close (&r);
  MPI_Finalize ();
  return 0;
}

int main (int argc, char **argv)
{
  if (argc > 2 && !strcmp (argv[1], "--verify")) return verify_main (argc - 1, argv + 1);
  MPI_Init (&argc, &argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  if (argc > 3 && !strcmp (argv[1], "--save")) return save_some (argc, argv);
  if (!rank) snprintf (dir, sizeof dir, "%s/t_ckpt%c%d", tap_tmp (), size == 2 ? ':' : '.', getpid ());   /* a colon means something to MPI-IO */
  MPI_Bcast (dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
  char path[CKPT_PATH];
  struct rig r;
  struct err e = { 0 };

  if (!rank) test_meet ();
  else tap_ok (1, "-");
  test_chain ("grouped heads", &gqa, 16, 1);
  test_chain ("grouped heads, other order", &gqa, 2, 7);
  test_chain ("tied", &tied, 16, 3);
  test_chain ("less than one element a rank", &little, 64, 1);
  test_bytes ();

  rig_open (&r, &gqa, &(struct shape) { 1, size, 1, 1, false, "layer" }, 16);
  visit (&r, true, CKPT_KINDS);
  test_newest (&r);
  test_prune (&r);
  test_model (&r);
  test_disk (&r);
  test_denied (&r);
  test_late (&r);
  rig_close (&r);

  if (size == 1) {
    fresh ();
    rig_open (&r, &little, &shapes[0], 2);
    visit (&r, true, CKPT_KINDS);
    save_step (&r, 1, &e);
    ckpt_path (1, path);
    test_flip (path);
    rig_close (&r);
  }
  fresh ();
  if (!rank) rmdir (dir);
  tap_ok (base_live () == 0, "host memory balances to zero");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
