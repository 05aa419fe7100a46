#define _GNU_SOURCE
#include "config.h"
#include "watch_board.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Behind the places. */
struct life { pthread_mutex_t mutex; volatile bool held; };

static size_t lives_at (const struct mesh *m) { return (sizeof (struct board) + (size_t) m->local_size * sizeof (struct place) + 63) / 64 * 64; }
static size_t bytes_of (const struct mesh *m) { return lives_at (m) + (size_t) m->local_size * sizeof (struct life); }
static struct life *life_of (struct board *b, const struct mesh *m, int k) { return (struct life *) (void *) ((char *) b + lives_at (m)) + k; }

static char (*host)[64];   /* [nodes] */

static int all_have (const struct mesh *m, int have)
{
  MPI_Request q;
  MPI_Iallreduce (MPI_IN_PLACE, &have, 1, MPI_INT, MPI_MIN, m->node_comm, &q);
  wait_all (1, &q);
  return have;
}

/* The nodes' names: of one that says nothing nobody could ask it. They stay until the end. */
static void learn_hosts (const struct mesh *m)
{
  char mine[64] = "", (*all)[64] = xalloc ((size_t) m->size * sizeof *all, "watch");
  MPI_Request q;
  snprintf (mine, sizeof mine, "%s", base_host ());
  MPI_Iallgather (mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, m->world, &q);
  wait_all (1, &q);
  host = xalloc ((size_t) m->nodes * sizeof *host, "watch");
  for (int r = 0; r < m->size; r++) memcpy (host[m->node_of[r]], all[r], sizeof *host);
  xfree (all);
}

static void make_lives (struct board *b, const struct mesh *m)
{
  pthread_mutexattr_t a;
  pthread_mutexattr_init (&a);
  pthread_mutexattr_setpshared (&a, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust (&a, PTHREAD_MUTEX_ROBUST);
  for (int k = 0; k < m->local_size; k++) pthread_mutex_init (&life_of (b, m, k)->mutex, &a);
  pthread_mutexattr_destroy (&a);
}

/* Memory without a name: nothing stays behind, in whatever way the processes end. */
struct board *board_open (const struct mesh *m)
{
  int where[2] = { (int) getpid (), m->local_rank ? -1 : memfd_create ("pretrain-watch", MFD_CLOEXEC) }, fd = where[1];
  char path[64];
  MPI_Request q;
  learn_hosts (m);
  if (fd >= 0 && ftruncate (fd, (off_t) bytes_of (m))) close (fd), where[1] = fd = -1;
  MPI_Ibcast (where, 2, MPI_INT, 0, m->node_comm, &q);
  wait_all (1, &q);
  snprintf (path, sizeof path, "/proc/%d/fd/%d", where[0], where[1]);
  if (m->local_rank && where[1] >= 0) fd = open (path, O_RDWR | O_CLOEXEC);
  struct board *b = fd < 0 ? NULL : mmap (NULL, bytes_of (m), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (b == MAP_FAILED) b = NULL;
  if (b && !m->local_rank) make_lives (b, m);
  if (!all_have (m, b != NULL) && b) munmap (b, bytes_of (m)), b = NULL;
  if (fd >= 0) close (fd);
  return b;
}

void board_hold (struct board *b, const struct mesh *m)
{
  struct life *l = life_of (b, m, m->local_rank);
  l->held = !pthread_mutex_lock (&l->mutex);
}

void board_let_go (struct board *b, const struct mesh *m) { pthread_mutex_unlock (&life_of (b, m, m->local_rank)->mutex); }

bool board_mourn (struct board *b, const struct mesh *m, int k)
{
  struct life *l = life_of (b, m, k);
  while (!l->held) usleep (20000);
  int rc = pthread_mutex_lock (&l->mutex);
  if (rc == EOWNERDEAD) b->place[k].dead = true, pthread_mutex_consistent (&l->mutex);
  if (!rc || rc == EOWNERDEAD) pthread_mutex_unlock (&l->mutex);
  return rc == EOWNERDEAD;
}

static ssize_t read_all (const char *path, void *buf, size_t size)
{
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read (fd, buf, size);
  if (fd >= 0) close (fd);
  return n;
}

char board_state (int pid)
{
  char path[64], text[512];
  snprintf (path, sizeof path, "/proc/%d/stat", pid);
  ssize_t n = read_all (path, text, sizeof text - 1);
  text[MAX (n, 0)] = 0;
  const char *end = strrchr (text, ')');
  if (!end || strlen (end) < 3) return 0;
  return strchr ("ZXx", end[2]) ? 0 : end[2];
}

bool board_gone (const struct place *p) { return p->pid && p->end == HERE && (p->dead || !board_state (p->pid)); }

/* ---- other nodes ---- */

/* All places of the world by rank; pid 0: nothing was heard. Not from the heap: the main thread may hold its lock. */
static struct place *all_places (const struct mesh *m)
{
  struct place *p = mmap (NULL, (size_t) m->size * sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static void file_of (const char *dir, int node, char out[static 1200]) { snprintf (out, 1200, "%s/stuck.node%d", dir, node); }

void board_clear (const struct mesh *m, const char *dir)
{
  char path[1200];
  file_of (dir, m->node, path);
  if (!m->local_rank) unlink (path);
}

static void leave_mine (const struct board *b, const struct mesh *m, const char *dir)
{
  char path[1200], tmp[1216];
  size_t n = (size_t) m->local_size * sizeof b->place[0];
  file_of (dir, m->node, path);
  snprintf (tmp, sizeof tmp, "%s.%d.tmp", path, m->rank);
  int fd = open (tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return;
  bool bad = write (fd, b->place, n) != (ssize_t) n;
  if (close (fd) || bad || rename (tmp, path)) unlink (tmp);
}

/* One rank of another node after the other, until the file ends. Old files were removed when the run began. */
static bool take_node (struct place *all, const struct mesh *m, const char *dir, int node)
{
  char path[1200];
  struct place p;
  int got = 0;
  file_of (dir, node, path);
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  for (; read (fd, &p, sizeof p) == (ssize_t) sizeof p; got++)
    if (p.rank >= 0 && p.rank < m->size) all[p.rank] = p;
  close (fd);
  return got > 0;
}

static void gather (const struct board *b, const struct mesh *m, const char *dir, double seconds, struct place *all)
{
  for (int i = 0; i < m->local_size; i++) all[b->place[i].rank] = b->place[i];
  if (m->nodes == 1 || !dir[0] || seconds <= 0) return;
  leave_mine (b, m, dir);
  int missing = m->nodes - 1;
  for (double end = now () + seconds; missing && now () < end; usleep (100000)) {
    missing = 0;
    for (int node = 0; node < m->nodes; node++)
      if (node != m->node && !take_node (all, m, dir, node)) missing++;
  }
}

/* ---- blame ---- */

struct text { char *at; size_t left; };

static void add (struct text *t, const char *fmt, ...) __attribute__ ((format (printf, 2, 3)));
static void add (struct text *t, const char *fmt, ...)
{
  va_list ap;
  va_start (ap, fmt);
  int n = vsnprintf (t->at, t->left, fmt, ap);
  va_end (ap);
  if (n < 0 || (size_t) n >= t->left) n = (int) strlen (t->at);
  t->at += n;
  t->left -= (size_t) n;
}

enum { CULPRITS = 4, RANKS = 16 };   /* so many are told */

/* What is wrong with a rank itself, not with those that it waits for. Of other nodes' processes only what they said is known. */
enum fault { FINE, GONE, STOPPED, BUSY };
static enum fault fault_of (const struct place *p, bool local)
{
  char state = local ? board_state (p->pid) : 'S';
  if (p->end != HERE) return FINE;
  if (!state || (local && p->dead)) return GONE;
  if (state == 'T') return STOPPED;
  return !p->waiting && p->idle > 2 && !p->in.seq ? BUSY : FINE;
}

/* The kernel ends a process whose cgroup is at its limit, or whose host has no memory left, by SIGKILL, and counts it before it does. */
static void add_gone (struct text *t, const struct place *p)
{
  int64_t kills = cgroup_kills (p->cgroup), limit = cgroup_limit (p->cgroup);
  char bytes[24];
  bytes_text (limit, bytes);
  if (kills < 0) add (t, "is gone during %s (killed, or no memory was left)", p->phase);
  else if (kills <= p->kills) add (t, "is gone during %s (killed, but there was memory)", p->phase);
  else if (limit == INT64_MAX) add (t, "was ended by the kernel during %s: the host's memory is used up (pretrain doctor says what makes a run smaller)", p->phase);
  else add (t, "was ended by the kernel during %s for want of memory: %s is the limit of its cgroup %s (sbatch --mem gives more, pretrain doctor says what needs less)", p->phase, bytes, p->cgroup);
}

static bool add_culprit (struct text *t, const struct place *p, bool local, const char *head)
{
  static const char *const words[] = { [STOPPED] = "stands still (SIGSTOP)", [BUSY] = "waits for none of the others (a disk or device that hangs?)" };
  enum fault f = fault_of (p, local);
  if (f) add (t, "%srank %d, process %d on host %s, ", head, p->rank, p->pid, p->host);
  if (f == GONE) add_gone (t, p);
  else if (f) add (t, "%s during %s", words[f], p->phase);
  return f;
}

static int culprits (struct text *t, const struct place *all, const struct mesh *m)
{
  int n = 0;
  for (int r = 0; r < m->size && n < CULPRITS; r++)
    if (all[r].pid && add_culprit (t, &all[r], m->node_of[r] == m->node, n ? "; " : "")) n++;
  return n;
}

/* Nodes of which nothing is heard. */
static int silent (struct text *t, const struct place *all, const struct mesh *m, int told)
{
  int rank[RANKS], n, nodes = 0;
  char words[64];
  for (int node = 0; node < m->nodes && told + nodes < CULPRITS; node++) {
    n = 0;
    for (int r = 0; r < m->size && n < RANKS; r++)
      if (m->node_of[r] == node && !all[r].pid) rank[n++] = r;
    if (!n) continue;
    mesh_ranks_text (rank, n, words, sizeof words);
    add (t, "%snothing is heard of rank%s %s on host %s", told + nodes++ ? "; " : "", n > 1 ? "s" : "", words, host[node]);
  }
  return nodes;
}

/* What the other side of a link calls it. */
static enum group_kind other_side (enum group_kind k)
{
  switch (k) {
  case GROUP_F_IN: return GROUP_F_OUT;
  case GROUP_F_OUT: return GROUP_F_IN;
  case GROUP_B_IN: return GROUP_B_OUT;
  case GROUP_B_OUT: return GROUP_B_IN;
  default: return k;
  }
}

/* Did P come where ME waits: to its collective or, where it is in none, through all of its phase? */
static bool arrived (const struct place *p, const struct place *me, bool local)
{
  if (!p->pid) return false;
  if (me->in.seq) return p->issued[other_side (me->in.group)] >= me->in.seq;
  size_t n = strcspn (me->phase, ",");   /* "save, 10 MiB written" */
  return !fault_of (p, local) && n == strcspn (p->phase, ",") && !memcmp (p->phase, me->phase, n);
}

/* Who never arrived. HEARD: other nodes were asked. */
static void absent (struct text *t, const struct place *all, const struct mesh *m, const struct place *me, bool heard, int *member)
{
  int rank[RANKS], n = 0, at, many = m->size;
  char words[64];
  for (int r = 0; r < m->size; r++) member[r] = r;
  if (me->in.seq) many = mesh_group (&m->shape, me->rank, me->in.group, member, &at);
  for (int i = 0; i < many && n < RANKS; i++) {
    const struct place *p = &all[member[i]];
    if (p != &all[me->rank] && (p->pid || heard) && !arrived (p, me, m->node_of[member[i]] == m->node)) rank[n++] = member[i];
  }
  if (!n) return;
  mesh_ranks_text (rank, n, words, sizeof words);
  add (t, "; never arrived: rank%s %s", n > 1 ? "s" : "", words);
}

void board_blame (const struct board *b, const struct mesh *m, const struct place *me, const char *dir, double seconds, char *cause, size_t size)
{
  struct text t = { cause, size };
  struct place *all = all_places (m);
  int *member = mmap (NULL, (size_t) m->size * sizeof *member, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  cause[0] = 0;
  if (all && member != MAP_FAILED) {
    gather (b, m, dir, seconds, all);
    int n = culprits (&t, all, m);
    if (seconds > 0) n += silent (&t, all, m, n);
    if (!n) add (&t, "another rank or a link hangs");
    if (!fault_of (me, true)) absent (&t, all, m, me, seconds > 0, member);
  }
  if (member != MAP_FAILED) munmap (member, (size_t) m->size * sizeof *member);
  if (all) munmap (all, (size_t) m->size * sizeof *all);
}
