/* import: settings that people have for other systems, as ours, with a word about each line: what it sets here, that it has no meaning here, or why it
   cannot be had. A setting that is unknown or cannot be had is shown with all the others and then refused by name, never dropped. Local. */
#ifndef IMPORT_H
#define IMPORT_H
#include <stdio.h>
#include "conf_int.h"

enum note_kind { NOTE_SETS, NOTE_IDLE, NOTE_BAD };   /* idle: no meaning, or as it is here anyway */
struct import_note { enum note_kind kind; int line; char *theirs, *value, *ours; };   /* owned; line 0: left out, or not from a file */

struct import {
  struct settings set;           /* ours, with lines; owned */
  int notes; struct import_note *note;   /* owned */
  int gpus, nodes;               /* as the source has it; 0: it does not say */
  bool model_told;               /* in: another source names the model; out: this one does */
  int world;                     /* in: GPUs that will be planned for, 0: not known */
};

int import_accelerate (struct import *im, const char *path, struct err *e);
int import_megatron (struct import *im, const char *flags, struct err *e);   /* as typed in a shell: quotes and line ends with \ are understood */
int import_torchtitan (struct import *im, const char *path, struct err *e);
int import_hf (struct import *im, const char *path, struct err *e);          /* config.json, or its folder */
void import_print (const struct import *im, FILE *f);
void import_free (struct import *im);

/* conf_load for `pretrain plan`: takes --from-accelerate FILE, --from-megatron FLAGS, --from-torchtitan FILE and --from-hf FILE out of ARGV (each once at most;
   *argc shrinks), prints what they mean to OUT, and loads them into C in this order: YAML_PATH, hf, accelerate, torchtitan, megatron, the rest of ARGV.
   *gpus: in, as the user has it, or 0; out, as a source has it where the user has said nothing. 0, or -1 with the sentence. */
int import_load (struct conf *c, const char *yaml_path, int *argc, char **argv, int *gpus, FILE *out, struct err *e);

/* --- for import_*.c --- */

/* What THEIRS means here. MAP as in conf_int.h, "=$" taking the value over; WHY is said where the map gives nothing. A key that ends in a dot stands for all
   below it. target: our option. */
struct rule { const char *key, *target, *map, *why; };
/* A note; ours in the form of printf. */
void import_say (struct import *im, enum note_kind kind, const struct setting *t, const char *fmt, ...) __attribute__ ((format (printf, 4, 5)));
/* Set our option KEY for T's sake (t->line, t->key), with a note. */
void import_set (struct import *im, const struct setting *t, const char *key, const char *value);
/* Apply the first rule of RULES that T has; false if none. */
bool import_rule (struct import *im, const struct setting *t, const struct rule *rules, int n);
/* All NOTE_BADs as one sentence: -1, or 0 if there are none. */
int import_refuse (const struct import *im, struct err *e);
/* The value of KEY in S (- and _ alike), or NULL; *t: the setting. */
const char *import_value (const struct settings *s, const char *key, const struct setting **t);
#endif
