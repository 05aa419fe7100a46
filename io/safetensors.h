/* safetensors: Hugging Face's files of tensors, read and written. Local: every rank may open them; nothing is read but headers until wire_get asks.

   A file is the length of the header (8 bytes), the header (JSON: name -> dtype, shape, data_offsets) and the tensors' bytes. A model is one such file or a folder with
   model.safetensors, or with model.safetensors.index.json whose weight_map says which file holds which tensor.

   Nothing in a header is believed: its length is compared with the file's, sizes are computed from shapes without overflow and compared with offsets, and the tensors
   must fill the file's data one after the other, without holes or overlaps. The first thing that is wrong is named. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "wire.h"

enum { ST_DIMS = 8, ST_HEADER = 32 << 20 };   /* dimensions; bytes of a header: a model of 100,000 tensors has 12 MB */

struct st_tensor {
  char *name;              /* owned */
  enum wire type;
  int ndim;
  int64_t shape[ST_DIMS];
  int64_t count;           /* elements */
  int64_t at;              /* byte in its file */
  int file;
};

struct st {
  int64_t n;
  struct st_tensor *tensor;   /* owned; by name */
  int files;
  char **path;                /* owned, [files] */
  int *fd;                    /* owned, [files]; -1: not open */
};

/* PATH: a folder or a file. 0, or -1 with the sentence; then *s is empty. */
int  st_open (struct st *s, const char *path, struct err *e);
void st_close (struct st *s);
const struct st_tensor *st_find (const struct st *s, const char *name);   /* NULL: none */

/* A header of N bytes of a file of FILE_BYTES: adds its tensors to S as those of FILE. PATH is for the sentence. Used by st_open; apart for the fuzzer. */
int  st_header (struct st *s, const char *path, int file, const char *json, int64_t n, int64_t file_bytes, struct err *e);
/* Sort by name; a name that is there twice is named. */
int  st_sort (struct st *s, struct err *e);

/* Writing. st_layout fills file and at of the N tensors of S in their order, a new file where one would grow above LIMIT bytes (a tensor that is larger has one of its
   own), and the files' paths: DIR/model.safetensors or DIR/model-00001-of-00003.safetensors. Pure. */
void st_layout (struct st *s, const char *dir, int64_t limit);
/* One rank: makes all files at full size under NAME.tmp, their headers written; the tensors' bytes are then anyone's to write. */
int  st_create (const struct st *s, struct err *e);
/* Any rank: the files under their .tmp names for writing, into S->fd. */
int  st_reopen (struct st *s, struct err *e);
/* One rank, after all have written and closed: synced, renamed; with several files the index is written. DIR as before. */
int  st_finish (const struct st *s, const char *dir, struct err *e);
void st_remove (const struct st *s);   /* the .tmp files, after a failure */
#endif
