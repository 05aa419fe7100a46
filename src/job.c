#include "config.h"
#include "beside.h"
#include "job.h"
#include <errno.h>
#include "host.h"
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void abort_all (int code)
{
  int up = 0, down = 0;
  MPI_Initialized (&up);
  MPI_Finalized (&down);
  if (up && !down) MPI_Abort (MPI_COMM_WORLD, code);
  _exit (code);
}

int job_init (struct job *j, int *argc, char ***argv)
{
  int rank, size, have;
  struct err e = { 0 };
  memset (j, 0, sizeof *j);
  signal (SIGXFSZ, SIG_IGN);   /* a limit on file sizes becomes an error with a sentence */
  wait_before_mpi ();
  MPI_Init_thread (argc, argv, MPI_THREAD_FUNNELED, &have);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, abort_all);
  base_phase ("start");
  if (mesh_launch_check (size, &e)) return job_end (j, EXIT_USER, &e);
  if (mesh_open (&j->m, MPI_COMM_WORLD, &e)) return job_end (j, EXIT_USER, &e);
  j->mesh_up = true;
  wait_init (j->m.local_size);
  return 0;
}

/* What identifies this executable: a hash of its bytes. */
static char *binary_text (void)
{
  uint64_t h = 0;
  FILE *f = fopen ("/proc/self/exe", "rb");
  char *buf = xalloc (1 << 20, "binary");
  for (size_t n; f && (n = fread (buf, 1, 1 << 20, f)) > 0;) h = hash_bytes (buf, n, h);
  if (f) fclose (f);
  xfree (buf);
  return xprintf ("pretrain: %016llx", (unsigned long long) h);
}

int job_options (struct job *j, const char *yaml, int argc, char **argv, struct err *e)
{
  struct mesh_shape shape;
  base_phase ("options");
  conf_default (&j->c);
  int bad = conf_load (&j->c, yaml, argc, argv, e) || step_resolve (&j->c, j->m.size, &shape, e);
  if (mesh_agree (&j->m, bad, e)) return -1;
  char *text = conf_text (&j->c), *binary = binary_text ();
  bad = mesh_same (&j->m, "binary", binary, e) || mesh_same (&j->m, "configuration", text, e);
  xfree (text);
  xfree (binary);
  return bad ? -1 : mesh_split (&j->m, &shape, j->c.mesh.tp_across_nodes, e);
}

/* The GPUs, if every rank has the driver, a build with the cuda device, and a GPU of its own; else 0, with the reason where there is one of these. Collective. */
static bool open_gpus (struct job *j, const struct dev_conf *dc)
{
  static const char nothing[] = "there is neither a GPU nor a cuda device in this build";
  struct err why = { 0 };
  bool driver = !access ("/dev/nvidiactl", F_OK), module = module_there ("cuda"), up = false;
  int bad = 0;
  /* Opening the module loads the CUDA libraries: not on hosts where it cannot work. */
  if (!driver) bad = user_err (&why, "%s", module ? "this host has no NVIDIA driver (/dev/nvidiactl is missing)" : nothing);
  else bad = dev_open (&j->d, "cuda", dc, &why), up = !bad;
  if (!mesh_agree (&j->m, bad, &why) && !mesh_devices (&j->m, j->d.id, dc->shared_gpu, j->gpus, sizeof j->gpus, &why)) return true;
  if (up) dev_close (&j->d);
  if (strcmp (why.msg, nothing)) say (SAY_INFO, "run.device auto takes the cpu device: %s", why.msg);
  return false;
}

/* Collective. */
static int open_device (struct job *j, const struct dev_conf *dc, struct err *e)
{
  const char *name = j->c.run.device;
  bool any = !strcmp (name, "auto");
  if (any && open_gpus (j, dc)) return j->dev_up = true, 0;
  int bad = dev_open (&j->d, any ? "cpu" : name, dc, e);
  j->dev_up = !bad;
  if (mesh_agree (&j->m, bad, e)) return -1;
  return mesh_devices (&j->m, j->d.id, dc->shared_gpu, j->gpus, sizeof j->gpus, e);
}

int job_start (struct job *j, struct err *e)
{
  const struct conf *c = &j->c;
  struct dev_conf dc = { .local_rank = j->m.local_rank, .local_size = j->m.local_size, .threads = (int) c->run.threads, .comm_delay_ms = c->debug.comm_delay_ms,
    .comm_chunk = c->debug.comm_chunk, .sync_send = c->debug.sync_send, .shared_gpu = c->debug.shared_gpu, .deterministic = conf_deterministic (c), .op_times = c->debug.op_times };
  base_phase ("device");
  if (c->debug.verbose) say_level (SAY_DEBUG);
  if (open_device (j, &dc, e)) return -1;
  if (!strcmp (j->d.ops->name, "cuda") && !j->d.conf.deterministic)
    say (SAY_INFO, "not deterministic: attention's backward sums in any order, which is faster (--run.deterministic true: the same bits each time)");
  base_phase ("memory");
  int64_t mine = j->d.ops->memory (&j->d);
  MPI_Request q;
  MPI_Iallreduce (&mine, &j->d.memory, 1, MPI_INT64_T, MPI_MIN, j->m.world, &q);
  wait_all (1, &q);
  int bad = step_plan (&j->s, c, &j->m, &j->d, e);
  j->planned = true;
  if (mesh_agree (&j->m, bad, e)) {
    if (!j->m.rank && j->s.A.a[SPACE_DEVICE][MEM_MASTER].used + j->s.A.a[SPACE_DEVICE][MEM_MASTER].size) beside_help (j, e);   /* the layout is made, so memory was the matter; rank 0 speaks */
    return -1;
  }
  base_phase ("groups");
  step_start (&j->s, &j->m);
  j->started = true;
  return 0;
}

int job_end (struct job *j, int code, const struct err *e)
{
  if (e && e->msg[0]) {
    say (SAY_ERROR, "%s", e->msg);
    code = e->code ? e->code : EXIT_USER;
  }
  base_phase ("end");
  if (j->planned) step_close (&j->s);
  if (j->dev_up) dev_close (&j->d);
  if (j->mesh_up) mesh_close (&j->m);
  base_phase (PHASE_FINALIZE);
  MPI_Finalize ();
  return code;
}

struct host_batch *job_batches (struct job *j, int mbs, struct err *e)
{
  int64_t n = j->s.b.g.n;
  int32_t *p = dev_reserve (&j->d, MEM_STAGE, SPACE_PINNED, mbs * n * 16, e);
  if (!p) return NULL;
  struct host_batch *b = xalloc ((size_t) mbs * sizeof *b, "batches");
  for (int i = 0; i < mbs; i++, p += 4 * n) b[i] = (struct host_batch) { p, p + n, p + 2 * n, p + 3 * n };
  return b;
}

int job_folder (const char *path, struct err *e)
{
  char p[STR + 32];
  if (!path[0]) return user_err (e, "run.dir is empty: name a folder for the run");
  snprintf (p, sizeof p, "%s", path);
  for (char *s = p + 1;; s++) {
    if (*s && *s != '/') continue;
    char c = *s;
    *s = 0;
    if (mkdir (p, 0777) && errno != EEXIST) return user_err (e, "cannot make the folder %s: %s", p, strerror (errno));
    *s = c;
    if (!c) return 0;
  }
}

char *job_operand (int *argc, char ***argv)
{
  if (*argc < 1 || !strncmp ((*argv)[0], "--", 2)) return NULL;
  (*argc)--;
  return *(*argv)++;
}
