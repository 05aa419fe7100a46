/* plan_page: what plan_page.c and plan_page_mesh.c share. */
#ifndef PLAN_PAGE_H
#define PLAN_PAGE_H
#include "plan.h"

/* Text into XML: names come from files of users. Bytes that XML has no place for become spaces. */
void page_put (FILE *f, const char *s);
/* A cell of a table; a number stands at the right. */
void page_cell (FILE *f, bool number, const char *s);
/* The head of a table: "axis|#bytes", # before what stands at the right. */
void page_heads (FILE *f, const char *words);

enum { INK_TP, INK_PP, INK_DP, INK_REP, INK_WORLD, INKS };
extern const char *const page_ink[INKS];   /* colours of axes */
int page_ink_of (enum group_kind k);

enum { PAGE_AXES = 4 };
struct page_axis { enum axis axis; enum group_kind group; int ink; };
extern const struct page_axis page_axis[PAGE_AXES];
bool page_is_drawn (const struct plan *p, int i);   /* has axis I of the table more than one rank? */

/* The section with the mesh. */
void page_mesh (const struct plan *p, FILE *f);
#endif
