/* dump: tensors as raw little-endian fp32 files, DIR/SUB/NAME.f32, row-major, for the referee. Several ranks write their own pieces of one file side by side. */
#ifndef DUMP_H
#define DUMP_H
#include "base.h"

/* Elements [start, start + count) of the local part [.., cols_loc], which stands at (row0, col0) of the global tensor [.., gcols]. Makes the folders. Ends the job when the disk fails. */
void dump_piece (const char *dir, const char *sub, const char *name, int64_t gcols, int64_t row0, int64_t col0, int64_t cols_loc, int64_t start, int64_t count, const float *x);
#endif
