/* hdf: the few things that every HDF5 file of ours needs. Local, not collective, unless the file was opened with MPI. */
#ifndef HDF_H
#define HDF_H
#include <hdf5.h>
#include "base.h"

/* HDF5 prints nothing by itself from here on: its words go into our sentences. */
void hdf_quiet (void);
/* Why the last HDF5 call of this thread failed, HDF5's own innermost words. Static storage, good until the next call. */
const char *hdf_why (void);

/* Access without locks, which network file systems often do not have; files are created with checksums over their structure. Borrowed. */
hid_t hdf_fapl (void);

/* Attributes of OBJ. Readers return 1 if read, 0 if there is none, -1 if it is of another kind (no sentence: the caller has the
   path). A text of fixed or variable length, cut to SIZE - 1 bytes. Writers return -1 on failure. */
int hdf_get_int (hid_t obj, const char *name, int64_t *value);
int hdf_get_text (hid_t obj, const char *name, char *text, size_t size);
int hdf_put_int (hid_t obj, const char *name, int64_t value);
int hdf_put_text (hid_t obj, const char *name, const char *text);

/* LOOK (ctx, e) in a process of its own, where a file that makes HDF5 overrun its memory or never come to an end (1 s of processor time) does no harm: what it left at
   OUT (in CTX) is copied to here. 0, or -1 with LOOK's sentence or one that names PATH. Where no process can be made, LOOK is called. Calls no MPI; not while a GPU is in use. */
int hdf_apart (const char *path, int (*look) (void *ctx, struct err *e), void *ctx, void *out, size_t bytes, struct err *e);
#endif
