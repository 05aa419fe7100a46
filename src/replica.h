/* replica: do ranks that hold the same state hold the same bits? Replicas of dp hold the same masters, moments and weights; ranks of tp the same norms, some of them the same
   KV heads; the two ends of a pipeline the same tied embedding. Each rank makes a checksum (OP_CHECKSUM) of each tensor's part, each group gathers one number of each member. Where
   these differ the parts are compared by themselves, and the majority of those that hold a part says which rank errs. */
#ifndef REPLICA_H
#define REPLICA_H
#include "mesh.h"
#include "shard.h"

enum replica_kind { REPLICA_MASTER, REPLICA_M, REPLICA_V, REPLICA_WEIGHT, REPLICA_KINDS };   /* debug.flip_kind has the same order */
enum { REPLICA_GROUPS = 4 };

struct replica_entry { enum replica_kind kind; struct piece piece; };

struct replicas {
  struct shard *sh;
  struct replica_entry *entry; int entries;
  struct { enum group_kind kind; int n, lo, hi; } group[REPLICA_GROUPS];   /* members; entries [lo, hi) are held by all of them. n 1: nobody else */
  int digests;                             /* of all groups */
  uint64_t *sums, *host;                   /* [entries], then [digests]: device, pinned */
  struct event *end;
};

/* What is held by several ranks where group_n[k] ranks form group k; nothing where run.replica_check_steps is 0. Pure. */
void replicas_make (struct replicas *r, struct shard *sh, const int group_n[GROUP_N]);
void replicas_layout (struct replicas *r, struct arenas *A);
void replicas_free (struct replicas *r);

/* After a step. Do the groups of this rank agree? The answer is the same for all members of a group, and not for all ranks. On sim: yes. Collective over the groups. */
bool replicas_agree (struct replicas *r);
/* Where some rank's group did not agree (AGREED: this one's did): -1 on all ranks with tensor, ranks and hosts in the sentence, code EXIT_WORLD. STEP: the one just done; GOOD: that of
   the last check without a difference, 0: none. Collective over the world. */
int  replicas_tell (struct replicas *r, const struct mesh *m, bool agreed, int64_t step, int64_t good, struct err *e);
/* For tests: flip the lowest bit of an element of KIND in a tensor whose name begins with NAME. false: this rank holds no such. Local. */
bool replicas_flip (struct replicas *r, enum replica_kind kind, const char *name);
#endif
