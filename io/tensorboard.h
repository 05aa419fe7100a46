/* tensorboard: event files for TensorBoard, RUN_DIR/tensorboard/events.out.tfevents.TIME.HOST.PID, one a launch. Rank 0's; local.

   A file is a sequence of records: length (8 bytes, little-endian), masked CRC32C of these, the record, masked CRC32C of it (TensorFlow's core/lib/io/record_writer.h). A record is an
   Event of TensorFlow's core/util/event.proto in Protocol Buffers' wire format. The first says the version of the file, the second that a session starts at a step: what older files
   of the folder say of it and later ones, TensorBoard then leaves out. */
#ifndef TENSORBOARD_H
#define TENSORBOARD_H
#include "metrics.h"

struct tensorboard;

/* For steps from FIRST on. NULL with the sentence. */
struct tensorboard *tensorboard_open (const char *dir, int64_t first, struct err *e);
/* Steps go on from FIRST, after a rollback: those from it on are drawn anew. */
void tensorboard_session (struct tensorboard *t, int64_t first);
/* The scalars of a step, one event; what is not known is left out. A failing disk is warned of once. */
void tensorboard_step (struct tensorboard *t, const struct metrics_record *r);
void tensorboard_close (struct tensorboard *t);   /* NULL is legal */
#endif
