/* convert_int: what import and export share. */
#ifndef CONVERT_INT_H
#define CONVERT_INT_H
#include "job.h"
#include "places.h"
#include "safetensors.h"

struct conv {
  struct job j;
  struct units u;
  bool units_up;
  struct places p;
  struct st st;                 /* the safetensors of one side */
};

/* A word of ours ("--to") out of argv into *value, if it is there. 0, or -1: it has no value. */
int  conv_take (int *argc, char **argv, const char *word, const char **value, struct err *e);
/* TEXT, a whole configuration, with the user's options on top; the mesh becomes data parallel over all ranks. Then the tensors and the pieces of this rank. Collective. */
int  conv_open (struct conv *v, const char *text, int argc, char **argv, struct err *e);
int  conv_end (struct conv *v, int code, const struct err *e);   /* all is let go; returns the exit code */
/* The state of a save or a load of the pieces of this rank, through the places. */
struct ckpt_state conv_state (struct conv *v);
/* Copy file FROM/NAME to TO/NAME if it is there: 1, 0, or -1 with the sentence. */
int  conv_copy (const char *from, const char *to, const char *name, struct err *e);
/* The small files of a Hugging Face folder that an export gives back: NULL ends the list. */
extern const char *const conv_small[];
/* "1.25 GiB in 3.1 s (0.42 GB/s)" of all ranks; collective. */
void conv_say_rate (struct conv *v, const char *what, const char *where, double seconds);
#endif
