/* state: what a checkpoint keeps of a step, for those that save and load; and saves behind training. */
#ifndef STATE_H
#define STATE_H
#include "ckpt.h"
#include "job.h"

struct saver;

/* How far a run is: steps done, tokens seen; and what its checkpoint says of spikes (spike.h): xalloc'd, NULL: nothing. */
struct place_in_data { int64_t step, tokens; char *spike; };

/* The tensors of J's step as a checkpoint sees them; borrowed from J. */
struct ckpt_state state_of (struct job *j, int64_t step, int64_t tokens);
/* Where a run begins: the newest good checkpoint of DIR (STATE_OWN), else load.from (STATE_OTHER), into the step; through COPY's memory (NULL: none) where the host cannot
   reach the device's. 0 if there is none (then nothing is loaded), -1. Collective. */
enum { STATE_OWN = 1, STATE_OTHER };
int state_resume (struct job *j, struct saver *copy, struct place_in_data *at, const char *dir, struct err *e);
/* Back to checkpoint PATH in the midst of a run; no save is under way. 0 or -1. Collective. */
int state_back (struct job *j, struct saver *copy, struct place_in_data *at, const char *path, struct err *e);

/* A checkpoint on its way. Where run.save_async says so, the state is copied to host memory and written from there by a thread of each rank, while training goes on; the
   ranks bring it from phase to phase at steps that all of them agree on. */
struct saver {
  struct job *j;
  float *copy;               /* of all parts, pinned; NULL: save at once */
  int64_t bytes;             /* of it */
  struct queue *q;           /* of the copies */
  struct event *ready, *copied;
  struct ckpt_saving *v;     /* NULL: none under way */
  bool going, last;          /* its writer has begun; nothing follows it */
  int64_t step;
  double began, blocked;     /* when; seconds for which training stood still so far */
  double longest;            /* seconds of the longest save; 0: none yet */
};
/* Memory for the copy if saves behind training are wanted; where it does not fit, they are done at once, and that is said. Collective. */
void saver_open (struct saver *s, struct job *j);
void saver_close (struct saver *s);
/* Save: to the end, or (LAST false and a copy to be had) begin and return. Waits for a save under way first. 0 or -1. Collective. */
int  saver_save (struct saver *s, const struct place_in_data *at, bool last, struct err *e);
/* After a step: let a new save's writer begin, once its copy is there. Local. */
void saver_kick (struct saver *s);
/* Seconds that a save may take: the longest so far; before the first, at 100 MB/s a rank. Local. */
double saver_seconds (const struct saver *s);
/* Would the save under way make this rank wait? Local. When no rank's would: */
bool saver_busy (const struct saver *s);
/* bring it on. 0 or -1. Collective. */
int  saver_next (struct saver *s, struct err *e);
/* Bring it to its end, if there is one. 0 or -1. Collective. */
int  saver_finish (struct saver *s, struct err *e);
#endif
