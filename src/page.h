/* page: what pages of this program have in common: text and tables as XML, colours, the style. Pure. */
#ifndef PAGE_H
#define PAGE_H
#include <stdio.h>
#include "base.h"

/* Text into XML: names come from files of users. Bytes that XML has no place for become spaces. */
void page_put (FILE *f, const char *s);
/* A cell of a table; a number stands at the right. */
void page_cell (FILE *f, bool number, const char *s);
/* The head of a table: "axis|#bytes", # before what stands at the right. */
void page_heads (FILE *f, const char *words);
/* A figure in a box, with what it is. MOOD: "good", "bad" or "". */
void page_tile (FILE *f, const char *value, const char *what, const char *mood);
/* 20804 as 20,804. */
const char *page_grouped (double v, char out[static 64]);
/* Seconds, as plan_seconds but with the sign for micro. */
const char *page_seconds (double s, char out[static 24]);
/* The colour of words on FILL, "#rrggbb": dark or white, whichever is read more easily. */
const char *page_on (const char *fill);

enum { INK_TP, INK_PP, INK_DP, INK_REP, INK_WORLD, INKS };
extern const char *const page_ink[INKS];   /* colours of axes */
extern const char page_style[];            /* the style sheet */
#endif
