/* watch_board: what each rank of a node is doing, in memory that the node's ranks share; and who is to blame, from it. Inside of watch only. */
#ifndef WATCH_BOARD_H
#define WATCH_BOARD_H
#include "cgroup.h"
#include "dev.h"
#include "mesh.h"

enum place_end { HERE, LEFT, SPOKEN };   /* its watch was stopped in order; it ends and has said why */

struct place {
  int32_t rank, pid;
  volatile int32_t end;
  volatile bool dead;                    /* the kernel has said so (board_mourn) */
  bool waiting;                          /* for others, at the last look */
  double idle;                           /* seconds without progress at the last look */
  int64_t issued[GROUP_N];               /* collectives of its groups */
  struct coll_note in;                   /* the oldest that it is in; seq 0: none */
  char phase[BASE_PHASE], host[64];       /* phase: where base keeps it */
  char cgroup[CGROUP_PATH];              /* of its memory, "": none is known; */
  int64_t kills;                         /* processes of it that the kernel had ended when the run began */
};

struct board {
  volatile int32_t over, speaker;        /* the job ends; 1 + the local rank that speaks */
  struct place place[];                  /* [local_size] */
};

/* Shared by the ranks of M's node until all of them have ended; NULL where memory cannot be shared. Collective, once. */
struct board *board_open (const struct mesh *m);
/* The state of process PID as the kernel tells it (R, S, T ...); 0: it is gone. A debugger's stop is t. */
char board_state (int pid);
bool board_gone (const struct place *p);   /* one of my node has died, and neither left in order nor said why */

/* A rank's watch holds its life; where it ends without board_let_go, in whatever way, the kernel tells the one who mourns: before the process's memory is freed and
   before its files are closed, by which launchers notice. */
void board_hold (struct board *b, const struct mesh *m);
void board_let_go (struct board *b, const struct mesh *m);
/* Wait for the end of local rank K, for ever. True: it has died, and its place says so; false: it let go. */
bool board_mourn (struct board *b, const struct mesh *m, int k);

/* Remove what an older run's nodes left in DIR. */
void board_clear (const struct mesh *m, const char *dir);
/* Leave my node's places in DIR for the other nodes, wait for theirs at most SECONDS, and say in CAUSE why ME does not get on: who is gone, stopped, silent, or did not
   arrive where ME waits. DIR "" or SECONDS 0: only my node is asked. */
void board_blame (const struct board *b, const struct mesh *m, const struct place *me, const char *dir, double seconds, char *cause, size_t size);
#endif
