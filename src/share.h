/* share: where the files that come with the program lie (models, machines). Sought in this order, the first that exists wins:
     $TESSERA_SHARE            a folder laid out like share/ of the source
     EXE/../share              the source tree, built in place (EXE: the folder of the executable)
     EXE/../share/tessera      installed, wherever the whole was moved to
     the source's share/       built out of tree (compiled in)
     the installed one         $(pkgdatadir), compiled in
   Pure but for the file system; no MPI. */
#ifndef SHARE_H
#define SHARE_H
#include "base.h"

/* The path of FOLDER/NAME (such as models/tiny.yaml) into OUT; false if no place has it. */
bool share_find (const char *folder, const char *name, char *out, size_t size);

/* Call FN with the name, without EXT, of each file *EXT in FOLDER of every place (a name may come twice). */
void share_each (const char *folder, const char *ext, void (*fn) (void *ctx, const char *name), void *ctx);
#endif
