/* host: what the program lends to a device that is opened as a shared object at run time (gpu/), which links none of our code and no MPI.

   The module exports one function, dev_module: it checks abi, size and build and returns its table, or NULL when it was built from other sources.
   The program opens it with RTLD_NOW | RTLD_LOCAL and never closes it. */
#ifndef HOST_H
#define HOST_H
#include "dev.h"

enum { HOST_ABI = 1 };

struct host {
  int abi;
  size_t size;                 /* of struct host */
  const char *build;           /* hash of dev.h, op.h and this file: both sides must agree */
  void (*say) (enum say level, const char *fmt, ...);
  void (*die_at) (const char *file, int line, int code, const char *fmt, ...);
  int  (*user_err) (struct err *e, const char *fmt, ...);
  void *(*xalloc) (size_t bytes, const char *tag);
  void (*xfree) (void *p);
  bool (*wait_idle) (int *state);
  double (*now) (void);
  /* Collective over the members of S: BYTES at BUF from its first member to the others (how a NCCL id travels). */
  void (*bcast) (const struct group_spec *s, void *buf, int bytes);
  /* The device-independent halves of dev.c that a device needs. */
  void (*dev_count) (struct dev *d, const struct op *o);
  double (*dev_flops) (const struct op *o);
  const char *(*op_name) (enum op_kind k);
  int64_t (*dev_coll_bytes) (const struct op *o);
  void (*dev_span_add) (struct dev *d, const struct dev_span *s);
  const char *(*phase_name) (enum step_phase p);
  void (*dev_stuck) (const struct dev *d, char *out, size_t size);
  const char *(*group_name) (enum group_kind k);
  void (*give_up) (void (*fn) (void));   /* base_give_up */
};

typedef const struct dev_ops *module_entry (const struct host *h);

/* Is there a file of that name to open? */
bool module_there (const char *name);
/* Open the module NAME (cuda): beside the executable, in ../gpu (the build tree), then in pkglibdir. NULL with the sentence (no such file, another build, a missing library). */
const struct dev_ops *module_open (const char *name, struct err *e);
#endif
