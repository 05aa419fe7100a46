#include "ckpt_int.h"
#include <pthread.h>
#include <signal.h>

int ckpt_threads (const struct ckpt_state *s)
{
  int cores = wait_cores (s->mesh->local_size) / MAX (1, s->mesh->local_size);
  int n = s->threads ? s->threads : MIN (cores, 4);
  return MAX (1, MIN (n, TEAM_MAX));
}

struct hand { int (*work) (void *ctx, int who); void *ctx; int who, rc; pthread_t thread; };

static void *hand_run (void *p)
{
  struct hand *h = p;
  h->rc = h->work (h->ctx, h->who);
  return NULL;
}

int team_run (int n, int (*work) (void *ctx, int who), void *ctx)
{
  struct hand hand[TEAM_MAX];
  sigset_t all, old;
  int there = 1;
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  for (; there < MIN (n, TEAM_MAX); there++) {
    hand[there] = (struct hand) { work, ctx, there, 0, 0 };
    if (pthread_create (&hand[there].thread, NULL, hand_run, &hand[there])) break;
  }
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  int rc = work (ctx, 0);
  for (int i = 1; i < there; i++) {
    pthread_join (hand[i].thread, NULL);
    rc |= hand[i].rc;
  }
  return rc ? -1 : 0;
}
