#include "ckpt_int.h"
#include <string.h>

static void bcast_from (MPI_Comm c, int root, void *p, int64_t bytes)
{
  MPI_Request r;
  for (int64_t at = 0; at < bytes; at += 1 << 28) {
    MPI_Ibcast ((char *) p + at, (int) MIN (bytes - at, 1 << 28), MPI_BYTE, root, c, &r);
    wait_all (1, &r);
  }
}

void ckpt_bcast (MPI_Comm c, void *p, int64_t bytes) { bcast_from (c, 0, p, bytes); }

int ckpt_agree (MPI_Comm c, int failed, struct err *e)
{
  struct err mine = { 0 };
  int rank;
  if (e) mine = *e;
  MPI_Comm_rank (c, &rank);
  int64_t h = failed ? (int64_t) hash_bytes (mine.msg, strlen (mine.msg), 0) | 1 : 0;
  int64_t in[3] = { failed ? rank : INT64_MAX, h, ~h }, v[3];   /* the least of ~h is the complement of the largest h. Signed: MPICH 4.0 compares unsigned values as if they were */
  MPI_Request r;
  MPI_Iallreduce (in, v, 3, MPI_INT64_T, MPI_MIN, c, &r);
  wait_all (1, &r);
  if (v[0] == INT64_MAX) return 0;
  if (rank == v[0] && v[1] != ~v[2]) {
    char text[sizeof mine.msg - 20];
    snprintf (text, sizeof text, "%s", mine.msg);
    snprintf (mine.msg, sizeof mine.msg, "rank %d: %s", rank, text);
  }
  bcast_from (c, (int) v[0], &mine, sizeof mine);
  if (e) *e = mine;
  return -1;
}
