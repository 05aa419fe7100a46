/* conf_int: what the files conf*.c share, and nobody else sees but machine.c, which reads its files by the same hand.

   A source (a YAML file, the command line) is read into a list of settings: keys and values as text, with the line that they
   came from. Settings find their row of the one table, foreign spellings are translated on the way, and rows write text into
   struct conf. */
#ifndef CONF_INT_H
#define CONF_INT_H
#include "conf.h"

enum row_type {
  T_MODEL,   /* a name or a path: the model's numbers come from that file */
  T_STR,
  T_INT,     /* a whole number */
  T_COUNT,   /* the same, k, M and G (1e3, 1e6, 1e9) allowed */
  T_REAL,
  T_BOOL,    /* true false yes no on off */
  T_ENUM,    /* choices "A/alias/alias|B|C", the value is the index */
};

struct row {
  const char *name;       /* section.key */
  enum row_type type;
  size_t offset, size;    /* in struct conf */
  const char *def;        /* default, as text */
  const char *unit;       /* or "" */
  const char *limit;      /* "[0,1)", ">0", ">=0" or "": what a number may be */
  const char *choices;    /* T_ENUM */
  const char *aliases;    /* other spellings, separated by spaces; - and _ are the same everywhere */
  const char *help;
  bool list;              /* a YAML list is joined with commas */
};
extern const struct row conf_row[];
extern const int conf_rows;

/* The row called KEY (a name or an alias), or -1. */
int row_find (const char *key);
/* Same spelling, - and _ being equal. */
bool key_same (const char *a, const char *b, size_t n_b);
/* Write TEXT into C through R: 0, or -1 with what R expects (a phrase, "a whole number") in WANT. LIMITS: check R's limit too. */
int row_set (const struct row *r, struct conf *c, const char *text, bool limits, char want[static 256]);
/* R's value in C as text that row_set reads back exactly; at most STR bytes. */
void row_get (const struct row *r, const struct conf *c, char out[static STR]);
/* Is R's own default a value that R takes? If not, the user must give one. */
bool row_optional (const struct row *r);
/* What R takes, for --help: "true | false", "none | full", "number". */
void row_takes (const struct row *r, char out[static 256]);

struct setting {
  char *key, *value;
  int line;               /* 0: the command line */
  bool list, null;        /* null: written, but without a value */
  const char *from;       /* the foreign spelling that this was translated from (static, or owned by whoever made the list), or NULL */
};
struct settings {
  struct setting *at;
  int n;
  char source[256];       /* what sentences call it: a file's name, or "" for the command line */
  const char *path;       /* of the file, lent; NULL for the command line */
  bool layout;            /* it is laid out as accelerate's files are */
};
struct setting *settings_add (struct settings *s, const char *key, const char *value, int line);   /* copies */
void settings_free (struct settings *s);
/* "run.yaml line 7: mesh.tp" or "--mesh.tp" into OUT. */
const char *setting_where (const struct settings *s, const struct setting *t, char out[static 512]);

/* Append the scalars of YAML file PATH, keys below PREFIX ("" or "model."). */
int yaml_settings (struct settings *s, const char *path, const char *prefix, struct err *e);

/* Megatron's flags and accelerate's layout (conf_alias.c). */
struct foreign {
  const char *key;        /* one that ends in a dot stands for all below it */
  const char *target;     /* the row that it sets, or NULL */
  const char *map;        /* "THEIRS=ours|THEIRS=!why refused|THEIRS=~note|THEIRS=|*=": nothing after =: no effect; $ after =: the value itself; *: any value */
  bool flag;              /* needs no value on the command line */
  bool layout;            /* accelerate's top-level key: only where its layout is recognised */
};
extern const struct foreign foreign_table[];
extern const int foreign_rows;
const struct foreign *foreign_find (const char *key, bool layout);   /* layout: also rows of accelerate's layout; NULL: none */
/* Rewrite S so that no foreign key is left; what was understood is said. */
int foreign_translate (struct settings *s, struct err *e);

/* T, a setting of S that F describes: the option that it sets into TARGET, what of into OURS (empty: no effect; "~" and a remark). -1: refused, with the sentence. */
int foreign_meaning (const struct settings *s, const struct setting *t, const struct foreign *f, const char **target, char ours[static 256], struct err *e);
/* What MAP makes of VALUE into OUT; false if it has no such value. */
bool foreign_lookup (const char *map, const char *value, char *out, size_t size);

/* conf_load on lists of settings that were read already (in the spelling of the table or foreign), earlier ones first, then ARGV. FILES are changed. */
int conf_load_from (struct conf *c, struct settings *files, int n, int argc, char **argv, struct err *e);

/* The user's unknown key T: -1 with the sentence that names the nearest (conf_near.c). */
int key_unknown (const struct settings *s, const struct setting *t, struct err *e);
int  key_distance (const char *a, const char *b);   /* edits between two words */
bool key_is_section (const char *key);   /* some row's name starts with KEY and a dot */

/* Checks of values that need no mesh; GIVEN[row] says what the user gave. conf_settle: values that follow from others. */
int conf_settle (struct conf *c, const bool *given, struct err *e);
int conf_check (const struct conf *c, struct err *e);
#endif
