/* plan_page: what plan_page.c and plan_page_mesh.c share. */
#ifndef PLAN_PAGE_H
#define PLAN_PAGE_H
#include "page.h"
#include "plan.h"

int page_ink_of (enum group_kind k);

enum { PAGE_AXES = 4 };
struct page_axis { enum axis axis; enum group_kind group; int ink; };
extern const struct page_axis page_axis[PAGE_AXES];
extern const char *const page_purpose[MEM_N];   /* colours of memory */
bool page_is_drawn (const struct plan *p, int i);   /* has axis I of the table more than one rank? */

/* What a group carries, beside its line in the picture; an empty text: nothing. */
struct page_label { char text[32]; };
/* The picture: nodes as rows, GPUs as columns, the groups of rank 0 as lines; for many nodes a map of them. Of P only shape, gpus, nodes, node_of, stages and m.gpus. LABEL: [PAGE_AXES], or NULL. */
void page_grid (const struct plan *p, const struct page_label *label, FILE *f);
/* The section with the mesh. */
void page_mesh (const struct plan *p, FILE *f);
#endif
