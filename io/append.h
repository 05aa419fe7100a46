/* append: a file that grows by whole records, one write each. What a full disk tears is cut off again, told once, and ends nothing. Local. */
#ifndef APPEND_H
#define APPEND_H
#include "base.h"

struct append {
  int fd;                /* opened with O_APPEND */
  int64_t size;          /* up to the last whole record */
  bool warned;
  char path[1200];
  const char *losing;    /* what is lost, for the warning: "metrics of some steps" */
};
void append_put (struct append *a, const void *data, size_t n);
#endif
