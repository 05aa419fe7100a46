/* cpu_bed: a cpu device with two queues and a group, under maths and message counters of the test's own. Included once, by the test's only file. */
#ifndef CPU_BED_H
#define CPU_BED_H
#include "tap.h"
#include "cpu_queue.h"
#include "mesh.h"
#include <string.h>

static int rank, size;
static struct err e;

/* ---- maths in slices, of our own: what is under test here are queues ---- */

static double gemm_end;
static void do_copy (const struct op *o)
{
  const struct op_copy *c = &o->copy;
  for (int64_t r = 0; r < MAX (c->rows, 1); r++)
    memcpy (cpu_at ((char *) c->dst + r * c->dst_pitch), cpu_at ((const char *) c->src + r * c->src_pitch), (size_t) c->bytes);
}
static void do_zero (const struct op *o) { memset (cpu_at (o->zero.dst), 0, (size_t) o->zero.bytes); }
static void do_axpby (const struct op *o)
{
  float *y = cpu_at (o->axpby.y);
  const float *x = cpu_at (o->axpby.x);
  for (int64_t i = 0; i < o->axpby.n; i++) y[i] = o->axpby.alpha * x[i] + (o->axpby.beta != 0 ? o->axpby.beta * y[i] : 0);
}
/* m slices of n microseconds each, with a poll after each. */
static void do_gemm (const struct op *o)
{
  for (int64_t i = 0; i < o->gemm.m; i++) {
    for (double t = now () + 1e-6 * (double) o->gemm.n; now () < t; ) ;
    cpu_poll ();
  }
  gemm_end = now ();
}
static void do_nothing (const struct op *o) { (void) o; }
cpu_exec *const cpu_maths[OP_COLL_FIRST] = {
  do_copy, do_zero, do_axpby, do_nothing, do_gemm, [OP_GEMM_GROUPED ... OP_COLL_FIRST - 1] = do_nothing,
};

/* ---- what reaches MPI: the first of three sources; the others are group_stat and coll_bytes ---- */

static int64_t sent;
int MPI_Isend (const void *p, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r)
{
  int s;
  PMPI_Type_size (t, &s);
  sent += (int64_t) n * s;
  return PMPI_Isend (p, n, t, to, tag, c, r);
}
static int synchronous;
int MPI_Issend (const void *p, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r)
{
  int s;
  PMPI_Type_size (t, &s);
  sent += (int64_t) n * s;
  synchronous++;
  return PMPI_Issend (p, n, t, to, tag, c, r);
}

/* ---- a device with two queues and a group ---- */

struct bed { struct dev d; struct queue *q, *cq; struct group *g; struct event *ev[2]; void *stage; int64_t stage_bytes; char *buf[3]; int n, me; };
enum { ROOM = 4 << 20 };

static inline void bed_open (struct bed *b, const struct dev_conf *c, int n, int me, const int *member, int64_t stage)
{
  if (dev_open (&b->d, "cpu", c, &e)) die ("%s", e.msg);
  b->n = n;
  b->me = me;
  b->stage_bytes = stage;
  b->q = b->d.ops->queue_open (&b->d, QUEUE_COMPUTE, "compute", NULL, 0);
  b->cq = b->d.ops->queue_open (&b->d, QUEUE_COMM, "comm", NULL, 0);
  for (int i = 0; i < 2; i++) b->ev[i] = b->d.ops->event_open (&b->d);
  for (int i = 0; i < LEN (b->buf); i++) b->buf[i] = dev_reserve (&b->d, MEM_ACT, SPACE_DEVICE, ROOM, &e);
  b->stage = dev_reserve (&b->d, MEM_COMM, SPACE_DEVICE, stage, &e);
  b->g = b->d.ops->group_open (&b->d, &(struct group_spec) { .kind = GROUP_SHARD, .comm = MPI_COMM_WORLD, .n = n, .rank = me, .member = member, .tag = 7,
                               .stage = b->stage, .stage_bytes = stage });
}
static inline void bed_close (struct bed *b)
{
  b->d.ops->drain (&b->d);
  b->d.ops->group_close (&b->d, b->g);
  for (int i = 0; i < 2; i++) b->d.ops->event_close (&b->d, b->ev[i]);
  for (int i = 0; i < 3; i++) dev_release (&b->d, MEM_ACT, SPACE_DEVICE, b->buf[i], ROOM);
  dev_release (&b->d, MEM_COMM, SPACE_DEVICE, b->stage, b->stage_bytes);
  dev_close (&b->d);
}

/* Everything of main but the tests. */
static void bed_begin (int *argc, char ***argv)
{
  wait_before_mpi ();
  MPI_Init (argc, argv);
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  wait_init (size);
}
static void bed_end (void)
{
  tap_ok (base_live () == 0, "all host memory is given back");
  tap_done ();
  MPI_Finalize ();
}
#endif
