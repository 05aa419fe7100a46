/* room: the sentence for a step that does not fit: by how much, and which options would make it fit, each measured by planning it. */
#ifndef ROOM_H
#define ROOM_H
#include "step.h"

/* Bytes of device memory of C's step on M and D; -1 where it is impossible. */
typedef int64_t room_needs (const struct conf *c, const struct mesh *m, struct dev *d);
/* 0 if NEED bytes fit or the device's memory is not known, is the host's or nobody's (sim); else -1 with the sentence. */
int room_check (int64_t need, const struct conf *c, const struct mesh *m, struct dev *d, room_needs *needs, struct err *e);
#endif
