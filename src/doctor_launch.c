/* pretrain doctor under a launcher: what each rank sees is gathered on rank 0, printed, and judged. */
#include "config.h"
#include "ckpt.h"
#include "doctor.h"
#include "host.h"
#include "job.h"
#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { CORES = 1024, SHM_RANK = 4400 << 10 };   /* bytes of shared memory that MPICH takes a rank */

/* What a rank sees. */
struct look {
  char host[32];
  int node, cores, threads;                        /* it may run on so many cores; OMP_NUM_THREADS, 0: not set */
  unsigned char mask[CORES / 8];
  int64_t memory, memory_free;                     /* of the host */
  int64_t shm_size, shm_free;
  double shm_rate, disk_rate;                      /* bytes/s; 0: not measured */
  int node_cores, packages, numa;
  int lock_errno;
};

struct launch {
  struct job *j;
  const char *dir, *device;
  bool has_mesh;
  struct look *all;                                /* [size], on rank 0 */
  int threading;
  char gpus[256], libraries[80], shm[512], fs[32], cards[256];
  struct err gpu_why;
  bool gpu_bad, gpu_up;
  double near_rate, near_time, far_rate, far_time; /* between two ranks of a node, and of two */
};

/* ---- looking ---- */

static void affinity (struct look *l)
{
  cpu_set_t s;
  CPU_ZERO (&s);
  sched_getaffinity (0, sizeof s, &s);
  l->cores = CPU_COUNT (&s);
  for (int i = 0; i < CORES && i < CPU_SETSIZE; i++)
    if (CPU_ISSET (i, &s)) l->mask[i / 8] |= (unsigned char) (1 << i % 8);
}

/* Packages, NUMA nodes, hardware threads, and on rank 0 the network cards. */
static void hardware (struct look *l, char *cards, size_t size)
{
  hwloc_topology_t t;
  if (hwloc_topology_init (&t)) return;
  hwloc_topology_set_flags (t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter (t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (!hwloc_topology_load (t)) {
    l->node_cores = hwloc_get_nbobjs_by_type (t, HWLOC_OBJ_PU);
    l->packages = hwloc_get_nbobjs_by_type (t, HWLOC_OBJ_PACKAGE);
    l->numa = hwloc_get_nbobjs_by_type (t, HWLOC_OBJ_NUMANODE);
    for (hwloc_obj_t o = hwloc_get_next_osdev (t, NULL); o; o = hwloc_get_next_osdev (t, o))
      if (o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS || o->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK)
        snprintf (cards + strlen (cards), size - strlen (cards), "%s%s", cards[0] ? ", " : "", o->name);
  }
  hwloc_topology_destroy (t);
}

/* Bytes a second of BYTES written to a new file of DIR; TIMES over, the best: the first touch of memory is slow and says nothing. 0: it cannot be written. */
static double write_rate (const char *dir, int64_t bytes, int times, bool sync)
{
  enum { PIECE = 1 << 20 };
  char path[STR + 64], *buf = xalloc (PIECE, "doctor");
  double best = 0;
  snprintf (path, sizeof path, "%s/.pretrain-doctor.%d", dir, (int) getpid ());
  int fd = open (path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  for (int k = 0; k < times && fd >= 0; k++) {
    double t = now ();
    bool good = lseek (fd, 0, SEEK_SET) == 0;
    for (int64_t at = 0; at < bytes && good; at += PIECE) good = write (fd, buf, PIECE) == PIECE;
    if (good && sync) good = !fsync (fd);
    if (good) best = MAX (best, (double) bytes / (now () - t));
  }
  if (fd >= 0) close (fd), unlink (path);
  xfree (buf);
  return best;
}

/* 0, or why a file of DIR cannot be locked. */
static int locking (const char *dir)
{
  char path[STR + 64];
  snprintf (path, sizeof path, "%s/.pretrain-doctor.lock.%d", dir, (int) getpid ());
  int fd = open (path, O_CREAT | O_RDWR | O_CLOEXEC, 0600), why = 0;
  if (fd < 0) return errno;
  if (flock (fd, LOCK_EX | LOCK_NB)) why = errno;
  close (fd);
  unlink (path);
  return why;
}

static const char *file_system (const char *dir)
{
  static const struct { unsigned long magic; const char *name; } known[] = { { 0x6969, "NFS" }, { 0x0BD00BD0, "Lustre" }, { 0x47504653, "GPFS" }, { 0x19830326, "BeeGFS" }, { 0x01021994, "tmpfs" },
    { 0xEF53, "ext4" }, { 0x58465342, "XFS" }, { 0x9123683E, "btrfs" }, { 0x794C7630, "overlayfs" }, { 0x65735546, "FUSE" }, { 0x2FC12FC1, "ZFS" }, { 0xFF534D42, "CIFS" } };
  struct statfs s;
  if (statfs (dir, &s)) return "not known";
  for (int i = 0; i < LEN (known); i++)
    if (known[i].magic == (unsigned long) s.f_type) return known[i].name;
  return "another";
}

static void look (struct launch *l, struct look *mine)
{
  struct mesh *m = &l->j->m;
  struct statvfs v;
  const char *t = getenv ("OMP_NUM_THREADS"), *posix = getenv ("UCX_POSIX_DIR");
  snprintf (mine->host, sizeof mine->host, "%.31s", base_host ());
  snprintf (l->shm, sizeof l->shm, "%s", posix && *posix ? posix : "/dev/shm");
  mine->node = m->node;
  mine->threads = t ? atoi (t) : 0;
  affinity (mine);
  mine->memory = file_number ("/proc/meminfo", "MemTotal:");
  mine->memory_free = file_number ("/proc/meminfo", "MemAvailable:");
  if (!statvfs (l->shm, &v)) mine->shm_size = (int64_t) v.f_blocks * (int64_t) v.f_frsize, mine->shm_free = (int64_t) v.f_bavail * (int64_t) v.f_frsize;
  if (m->local_rank == 0) hardware (mine, l->cards, sizeof l->cards), mine->shm_rate = write_rate (l->shm, MIN (8 << 20, mine->shm_free / 2), 4, false);
  if (m->rank == 0) {
    mine->disk_rate = write_rate (l->dir, 32 << 20, 2, true);
    mine->lock_errno = locking (l->dir);
    snprintf (l->fs, sizeof l->fs, "%s", file_system (l->dir));
  }
}

/* Rank 0 and rank PEER: bytes a second of large messages, seconds of a small one, the best of some. All others only pass by. */
static void link_to (struct launch *l, int peer, double *rate, double *time)
{
  enum { BIG = 4 << 20, TIMES = 12 };
  struct mesh *m = &l->j->m;
  if (peer < 0 || (m->rank && m->rank != peer)) return;
  char *buf = xalloc (BIG, "doctor");
  double best[2] = { 1e30, 1e30 };
  for (int k = 0; k < 2 * TIMES; k++) {
    int n = k % 2 ? BIG : 8, other = m->rank ? 0 : peer;
    MPI_Request q;
    double t = now ();
    for (int way = 0; way < 2; way++) {
      if ((m->rank == 0) == (way == 0)) MPI_Isend (buf, n, MPI_BYTE, other, 1, m->world, &q);
      else MPI_Irecv (buf, n, MPI_BYTE, other, 1, m->world, &q);
      wait_all (1, &q);
    }
    best[k % 2] = MIN (best[k % 2], (now () - t) / 2);
  }
  xfree (buf);
  *time = best[0];
  *rate = BIG / best[1];
}

static void links (struct launch *l)
{
  const struct mesh *m = &l->j->m;
  int near = -1, far = -1;
  for (int r = m->size - 1; r > 0; r--)
    if (m->node_of[r] == m->node_of[0]) near = r;
    else far = r;
  link_to (l, near, &l->near_rate, &l->near_time);
  link_to (l, far, &l->far_rate, &l->far_time);
}

/* Collective. */
static void gpus (struct launch *l)
{
  struct job *j = l->j;
  struct dev_conf dc = { .local_rank = j->m.local_rank, .local_size = j->m.local_size };
  int driver = !access ("/dev/nvidiactl", F_OK), any = driver, bad;
  MPI_Request q;
  if (!strcmp (l->device, "cpu")) return;
  MPI_Iallreduce (MPI_IN_PLACE, &any, 1, MPI_INT, MPI_MAX, j->m.world, &q);   /* a node may lack what the others have */
  wait_all (1, &q);
  if (strcmp (l->device, "cuda") && !any) return;
  if (any && !driver) bad = user_err (&l->gpu_why, "host %s has no NVIDIA driver (/dev/nvidiactl is missing), others have", base_host ());
  else bad = dev_open (&j->d, "cuda", &dc, &l->gpu_why);
  l->gpu_up = !bad;
  if (!bad) snprintf (l->libraries, sizeof l->libraries, "%s", j->d.libraries);
  l->gpu_bad = mesh_agree (&j->m, bad, &l->gpu_why) || mesh_devices (&j->m, j->d.id, false, l->gpus, sizeof l->gpus, &l->gpu_why);
  if (l->gpu_up) dev_close (&j->d);
}

/* ---- judging ---- */

/* Over the ranks of NODE: how many, cores that any of them may use, those that each uses when all have the same, threads. */
struct node { int ranks, cores, same, threads; const struct look *first; };

static struct node node_of (const struct launch *l, int node)
{
  struct node n = { .same = 1 };
  unsigned char any[CORES / 8] = { 0 };
  for (int r = 0; r < l->j->m.size; r++) {
    const struct look *x = &l->all[r];
    if (x->node != node) continue;
    if (!n.first) n.first = x;
    n.same &= !memcmp (x->mask, n.first->mask, sizeof x->mask);
    for (int i = 0; i < LEN (any); i++) any[i] |= x->mask[i];
    n.threads += MAX (x->threads, 1);
    n.ranks++;
  }
  for (int i = 0; i < CORES; i++) n.cores += any[i / 8] >> i % 8 & 1;
  return n;
}

static void judge_cores (const struct launch *l, struct findings *f)
{
  for (int k = 0; k < l->j->m.nodes; k++) {
    struct node n = node_of (l, k);
    if (n.cores < n.ranks && n.cores < n.first->node_cores) {
      struct finding *x = finding_add (f, FINDING_WRONG);
      snprintf (x->what, sizeof x->what, "the %d rank%s of node %d (%s) may only use %d of its %d cores%s: they take turns on %s", n.ranks, n.ranks == 1 ? "" : "s", k, n.first->host, n.cores, n.first->node_cores,
                n.ranks > 1 && n.same ? ", all the same" : "", n.cores == 1 ? "one core" : "these");
      snprintf (x->remedy, sizeof x->remedy, "bind each rank to cores of its own: mpiexec -bind-to core:N, srun --cpu-bind=cores with #SBATCH --cpus-per-task=N; or no binding at all: mpiexec -bind-to none");
      return;
    }
    if (n.ranks > n.cores) {
      struct finding *x = finding_add (f, FINDING_NOTE);
      snprintf (x->what, sizeof x->what, "%d ranks share %d cores of node %d (%s): right for a trial of a mesh, slow for training on CPU ranks", n.ranks, n.cores, k, n.first->host);
    }
    if (n.threads > n.cores && n.threads > n.ranks) {
      struct finding *x = finding_add (f, FINDING_WRONG);
      snprintf (x->what, sizeof x->what, "OMP_NUM_THREADS makes %d compute threads on %d cores of node %d (%s): products are several times slower", n.threads, n.cores, k, n.first->host);
      snprintf (x->remedy, sizeof x->remedy, "unset OMP_NUM_THREADS and leave run.threads alone: each rank then takes its share of the cores (%d)", MAX (n.cores / n.ranks, 1));
      return;
    }
  }
}

static void judge_shm (const struct launch *l, struct findings *f)
{
  char a[24], b[24];
  for (int k = 0; k < l->j->m.nodes; k++) {
    struct node n = node_of (l, k);
    int64_t need = (int64_t) SHM_RANK * MAX (n.ranks, 8);
    if (n.first->shm_size < need) {
      struct finding *x = finding_add (f, FINDING_WRONG);
      bytes_text (n.first->shm_size, a);
      bytes_text (need, b);
      snprintf (x->what, sizeof x->what, "%s of host %s has %s, MPI takes 4.4 MB a rank of it (%s for %d ranks): MPI_Init dies when it is full", l->shm, n.first->host, a, b, MAX (n.ranks, 8));
      snprintf (x->remedy, sizeof x->remedy, "in a container: docker run --shm-size=1g; else set UCX_POSIX_DIR to a folder with room (a tmpfs is best)");
      return;
    }
    if (n.first->shm_rate > 0 && n.first->shm_rate < 0.1e9) {
      struct finding *x = finding_add (f, FINDING_WRONG);
      snprintf (x->what, sizeof x->what, "%s of host %s takes %.0f MB/s: what ranks of a node say to each other goes through it", l->shm, n.first->host, n.first->shm_rate / 1e6);
      snprintf (x->remedy, sizeof x->remedy, "see that it is a tmpfs and not on a disk (df -T %s), and that the host does not swap", l->shm);
      return;
    }
  }
}

static void judge_disk (const struct launch *l, struct findings *f)
{
  const struct look *r = &l->all[0];
  struct finding *x;
  if (r->disk_rate <= 0) {
    x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "%s cannot be written, or has no room for 32 MiB", l->dir);
    snprintf (x->remedy, sizeof x->remedy, "name a folder for runs with --dir, and give run.dir there");
    return;
  }
  if (r->disk_rate < 50e6) {
    x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "%s (%s) takes %.0f MB/s with sync: a checkpoint of a model of 1e9 parameters, 12 GB, needs %.0f minutes", l->dir, l->fs, r->disk_rate / 1e6, 12e9 / r->disk_rate / 60);
    snprintf (x->remedy, sizeof x->remedy, "put run.dir on the cluster's parallel file system or a local disk; save less often (run.save_every); run.save_async true hides the rest");
  }
  if (r->lock_errno) {
    x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "%s (%s) has no file locks: %s. Two jobs with one run.dir would write over each other, and h5dump may refuse checkpoints", l->dir, l->fs, strerror (r->lock_errno));
    snprintf (x->remedy, sizeof x->remedy, "mount with locks (Lustre: -o flock; NFS: without nolock); until then see that one job at a time has a run.dir, and set HDF5_USE_FILE_LOCKING=FALSE for h5dump and h5py");
  }
}

/* The mesh that options ask for, on these nodes. Pure but for the options. */
static void judge_mesh (const struct launch *l, const struct err *why, struct findings *f)
{
  if (!l->has_mesh || !why->msg[0]) return;
  struct finding *x = finding_add (f, FINDING_WRONG);
  snprintf (x->what, sizeof x->what, "%.880s", why->msg);
  if (strstr (why->msg, "tp group")) snprintf (x->remedy, sizeof x->remedy, "mesh.tp at most the ranks of a node, mesh.order tp-pp-dp, and ranks placed node by node (mpiexec -ppn, srun --distribution=block)");
}

static void judge (const struct launch *l, const struct err *mesh_why, struct findings *f)
{
  struct finding *x;
  if (l->gpu_bad) {
    x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "%.880s", l->gpu_why.msg);
    if (strstr (l->gpu_why.msg, "would all use"))
      snprintf (x->remedy, sizeof x->remedy, "see that CUDA_VISIBLE_DEVICES is not the same single GPU on all ranks: srun --gpus-per-task=1 --gpu-bind=none, or do not set it");
  }
  judge_mesh (l, mesh_why, f);
  judge_cores (l, f);
  judge_shm (l, f);
  judge_disk (l, f);
  if (l->threading < MPI_THREAD_FUNNELED) {
    x = finding_add (f, FINDING_WRONG);
    snprintf (x->what, sizeof x->what, "this MPI gives a program with threads no promise (MPI_THREAD_SINGLE): checkpoints behind training and the watchdog have threads");
    snprintf (x->remedy, sizeof x->remedy, "an MPI built with threads (MPICH: --enable-threads=runtime)");
  }
  if (l->j->m.size == 1) {
    x = finding_add (f, FINDING_NOTE);
    snprintf (x->what, sizeof x->what, "this is one rank alone; start it as the run will be started");
    snprintf (x->remedy, sizeof x->remedy, "mpiexec -n N pretrain doctor, or srun --mpi=pmi2 pretrain doctor inside of a job");
  }
  if (l->far_rate > 0 && l->far_rate < 1e9) {
    x = finding_add (f, FINDING_NOTE);
    snprintf (x->what, sizeof x->what, "between nodes a message goes at %.2f GB/s (%.0f us for a small one): slow for gathers of weights", l->far_rate / 1e9, 1e6 * l->far_time);
    snprintf (x->remedy, sizeof x->remedy, "HYBRID_SHARD with mesh.dp_shard inside of a node, or mesh.pp over nodes; UCX_NET_DEVICES names the fast card where there is one");
  }
}

/* ---- telling ---- */

static const char *yes_no (int e) { return e ? "no" : "yes"; }

static void tell (const struct launch *l)
{
  static const char *const level[] = { "single", "funneled", "serialized", "multiple" };
  const struct mesh *m = &l->j->m;
  const struct look *r = &l->all[0];
  char a[24], b[24], version[MPI_MAX_LIBRARY_VERSION_STRING], hdf[32];
  int n, major = MPI_VERSION;
  MPI_Get_library_version (version, &n);
  version[strcspn (version, "\n")] = 0;
  for (char *s = version; *s; s++) if (*s == '\t') *s = ' ';
  printf ("ranks     %d on %d node%s\n", m->size, m->nodes, m->nodes == 1 ? "" : "s");
  for (int k = 0; k < m->nodes; k++) {
    struct node x = node_of (l, k);
    if (k == 8) {
      printf ("          ... and %d more nodes\n", m->nodes - k);
      break;
    }
    bytes_text (x.first->memory, a);
    bytes_text (x.first->memory_free, b);
    printf ("node %-4d %s: %d rank%s, %d of %d cores (%d package%s, %d NUMA), %s each, memory %s (%s free)\n", k, x.first->host, x.ranks, x.ranks == 1 ? "" : "s", x.cores, x.first->node_cores, x.first->packages,
            x.first->packages == 1 ? "" : "s", x.first->numa, x.same ? "all of them for" : "a part for", a, b);
  }
  printf ("MPI       %s, standard %d.%d, threads: %s\n", version, major, MPI_SUBVERSION, level[MIN (MAX (l->threading, 0), 3)]);
  ckpt_library (hdf);
  printf ("HDF5      %s\n", hdf);
  if (l->gpus[0]) printf ("GPUs      %s: one a rank, with NCCL between them\n", l->gpus);
  else printf ("GPUs      none in use%s%s\n", l->gpu_why.msg[0] ? ": " : "", l->gpu_why.msg);
  printf ("NCCL      %s\n", l->libraries[0] ? l->libraries : module_there ("cuda") ? "not opened: no GPU is in use" : "not there: this build is without CUDA");
  if (l->cards[0]) printf ("networks  %s\n", l->cards);
  if (l->near_rate > 0) printf ("link      inside a node: %.2f GB/s, %.1f us\n", l->near_rate / 1e9, 1e6 * l->near_time);
  if (l->far_rate > 0) printf ("link      between nodes: %.2f GB/s, %.1f us\n", l->far_rate / 1e9, 1e6 * l->far_time);
  bytes_text (r->shm_size, a);
  bytes_text (r->shm_free, b);
  printf ("shared    %s: %s, %s free, %.2f GB/s\n", l->shm, a, b, r->shm_rate / 1e9);
  printf ("disk      %s: %s, %.2f GB/s with sync, file locks: %s\n\n", l->dir, l->fs, r->disk_rate / 1e9, yes_no (r->lock_errno));
}

/* ---- the command ---- */

/* --device and --dir are ours; what else there is belongs to a run. Returns how many of ARGV remain. */
static int own_options (struct launch *l, int argc, char **argv)
{
  int n = 0;
  for (int i = 0; i < argc; i++)
    if (!strcmp (argv[i], "--device") && i + 1 < argc) l->device = argv[++i];
    else if (!strcmp (argv[i], "--dir") && i + 1 < argc) l->dir = argv[++i];
    else argv[n++] = argv[i];
  return n;
}

static int examine (struct launch *l, int argc, char **argv, struct findings *f, struct err *e)
{
  struct mesh *m = &l->j->m;
  struct look mine = { 0 };
  struct err mesh_why = { 0 };
  int bad = strcmp (l->device, "auto") && strcmp (l->device, "cpu") && strcmp (l->device, "cuda") ? user_err (e, "doctor: --device is auto, cpu or cuda, not `%.100s`", l->device) : 0;
  char *yaml = argc ? job_operand (&argc, &argv) : NULL;
  if (yaml && access (yaml, R_OK)) bad = user_err (e, "doctor: %.400s: %s", yaml, strerror (errno));
  if (mesh_agree (m, bad, e)) return -1;   /* the file may be there for some */
  l->has_mesh = yaml || argc;
  if (l->has_mesh) job_options (l->j, yaml, argc, argv, &mesh_why);
  look (l, &mine);
  MPI_Query_thread (&l->threading);
  if (!m->rank) l->all = xalloc ((size_t) m->size * sizeof *l->all, "doctor");
  MPI_Request q;
  MPI_Igather (&mine, sizeof mine, MPI_BYTE, l->all, sizeof mine, MPI_BYTE, 0, m->world, &q);
  wait_all (1, &q);
  gpus (l);
  links (l);
  if (m->rank) return 0;
  tell (l);
  if (l->has_mesh && !mesh_why.msg[0]) mesh_draw (&m->shape, m->node_of, stdout), printf ("\n");
  judge (l, &mesh_why, f);
  return 0;
}

int doctor_launch (int argc, char **argv)
{
  struct job *j = xalloc (sizeof *j, "job");
  struct launch *l = xalloc (sizeof *l, "doctor");
  struct findings *f = xalloc (sizeof *f, "doctor");
  struct err e = { 0 };
  *l = (struct launch) { .j = j, .dir = ".", .device = "auto" };
  int code = job_init (j, &argc, &argv);
  if (!code) {
    int n = own_options (l, argc - 1, argv + 1);
    base_phase ("doctor");
    int bad = examine (l, n, argv + 1, f, &e);
    if (!bad && !j->m.rank) {
      code = finding_print (f, "nothing is wrong with this launch as far as can be seen", stdout);
      fflush (stdout);
    }
    MPI_Request q;
    MPI_Ibcast (&code, 1, MPI_INT, 0, j->m.world, &q);
    wait_all (1, &q);
    code = job_end (j, bad ? EXIT_USER : code, bad ? &e : NULL);
  }
  xfree (l->all);
  xfree (l);
  xfree (f);
  xfree (j);
  return code;
}
