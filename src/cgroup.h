/* cgroup: the memory cgroups of this process, version 1 or 2: what they leave free, and whether the kernel has ended a process of theirs. A batch system's limit on memory is one.
   Local; system calls only, no heap. */
#ifndef CGROUP_H
#define CGROUP_H
#include "base.h"

enum { CGROUP_PATH = 512 };

/* Bytes that may still be used under the limits of mine and of all above; INT64_MAX: there are none. ROOT: "" but in tests. */
int64_t cgroup_room (const char *root);
/* The folder of mine, or of the nearest above that counts processes ended for want of memory; "": there is none. */
void cgroup_own (const char *root, char dir[static CGROUP_PATH]);
/* Processes of DIR (version 2: and of those below) that the kernel has ended for want of memory; -1: not known. */
int64_t cgroup_kills (const char *dir);
/* The least limit of DIR and those above it, bytes; INT64_MAX: none. */
int64_t cgroup_limit (const char *dir);
#endif
