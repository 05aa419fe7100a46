/* wire: numbers in files of others. N elements of a type, one after the other and little-endian, to and from fp32. Local. */
#ifndef WIRE_H
#define WIRE_H
#include "base.h"

/* The types that safetensors name. Those without a conversion can be listed and skipped, not read. */
enum wire { W_F32, W_BF16, W_F16, W_F64, W_I64, W_I32, W_I16, W_I8, W_U64, W_U32, W_U16, W_U8, W_BOOL, W_F8_E4M3, W_F8_E5M2, W_N };
struct wire_row { const char *name; int bytes; bool real; };   /* name: "BF16"; real: can become fp32 and back */
extern const struct wire_row wire_row[W_N];
enum wire wire_find (const char *name);        /* W_N: none; case does not matter, float32 and fp32 are F32 too */

/* Elements [first, first + n) of the tensor that begins at byte AT of FD, into OUT and from IN. NAME is for the sentence. 0, or -1 (EXIT_WORLD: disk, end of file;
   EXIT_USER: a finite value that does not fit fp16). Through a block on the stack: memory does not grow with N. */
int wire_get (int fd, const char *name, int64_t at, enum wire type, int64_t first, int64_t n, float *out, struct err *e);
int wire_put (int fd, const char *name, int64_t at, enum wire type, int64_t first, int64_t n, const float *in, struct err *e);
#endif
