#include "config.h"
#include "append.h"
#include "nvml.h"
#include "tensorboard.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct tensorboard { struct append file; uint32_t crc[256]; };

/* ---- CRC32C (Castagnoli, reflected 0x82f63b78), masked as TensorFlow does ---- */

static void crc_table (uint32_t t[256])
{
  for (uint32_t i = 0; i < 256; i++) {
    t[i] = i;
    for (int k = 0; k < 8; k++) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x82f63b78u : 0);
  }
}

static uint32_t masked_crc (const uint32_t t[256], const uint8_t *p, size_t n)
{
  uint32_t c = ~0u;
  for (size_t i = 0; i < n; i++) c = t[(c ^ p[i]) & 255] ^ c >> 8;
  c = ~c;
  return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* ---- Protocol Buffers' wire format ---- */

enum { ROOM = 8192, VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
struct text { size_t n; uint8_t at[ROOM]; };

static void put (struct text *t, const void *p, size_t n)
{
  if (t->n + n > ROOM) return;   /* not reached: a step has some forty scalars of some fifty bytes */
  memcpy (t->at + t->n, p, n);
  t->n += n;
}

/* The machine is little-endian, as all that this program runs on. */
static void put_varint (struct text *t, uint64_t v)
{
  uint8_t b[10];
  size_t n = 0;
  for (; v > 127; v >>= 7) b[n++] = (uint8_t) (v | 128);
  b[n++] = (uint8_t) v;
  put (t, b, n);
}

static void put_key (struct text *t, int field, int wire) { put_varint (t, (uint64_t) (field << 3 | wire)); }

static void put_bytes (struct text *t, int field, const void *p, size_t n)
{
  put_key (t, field, BYTES);
  put_varint (t, n);
  put (t, p, n);
}

/* ---- events ---- */

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7, SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

/* One write a record. */
static void put_event (struct tensorboard *t, int64_t step, int field, const void *what, size_t n)
{
  struct text e = { 0 };
  struct timespec ts;
  clock_gettime (CLOCK_REALTIME, &ts);
  double wall = (double) ts.tv_sec + 1e-9 * (double) ts.tv_nsec;
  put_key (&e, EVENT_TIME, FIXED64);
  put (&e, &wall, sizeof wall);
  put_key (&e, EVENT_STEP, VARINT);
  put_varint (&e, (uint64_t) step);
  put_bytes (&e, field, what, n);
  uint8_t out[ROOM + 16];
  uint64_t length = e.n;
  uint32_t crc = masked_crc (t->crc, (uint8_t *) &length, 8);
  memcpy (out, &length, 8);
  memcpy (out + 8, &crc, 4);
  memcpy (out + 12, e.at, e.n);
  crc = masked_crc (t->crc, e.at, e.n);
  memcpy (out + 12 + e.n, &crc, 4);
  append_put (&t->file, out, e.n + 16);
}

static void scalar (struct text *sum, const char *tag, double x)
{
  struct text v = { 0 };
  float f = (float) x;
  put_bytes (&v, VALUE_TAG, tag, strlen (tag));
  put_key (&v, VALUE_SIMPLE, FIXED32);
  put (&v, &f, sizeof f);
  put_bytes (sum, SUMMARY_VALUE, v.at, v.n);
}

static void parts (struct text *s, const struct metrics_record *r)
{
  const struct metrics_parts *p = r->parts;
  const struct { const char *tag; double s; } row[] = { { "time/data", p->data }, { "time/forward", p->forward }, { "time/backward", p->backward }, { "time/optimizer", p->optimizer },
    { "time/exposed", p->exposed }, { "time/agree", p->agree }, { "time/checkpoint", p->save }, { "time/eval", p->eval } };
  for (int i = 0; i < LEN (row); i++) scalar (s, row[i].tag, row[i].s);
  for (int i = 0; i < METRICS_AXES; i++) {
    char tag[48];
    if (!p->axis[i].name) continue;
    snprintf (tag, sizeof tag, "exposed/%.32s", p->axis[i].name);
    scalar (s, tag, p->axis[i].seconds);
  }
  scalar (s, "speed/comm_share", p->exposed / r->seconds);
}

static void gpus (struct text *s, const struct metrics_gpus *g)
{
  double util = 0, memory = 0, power = 0, clock = INFINITY, temperature = 0;
  for (int i = 0; i < g->n; i++) {
    const struct gpu_state *x = g->gpu[i].g;
    util += x->utilization / g->n;
    memory = fmax (memory, (double) x->memory_used);
    power += x->power;
    clock = fmin (clock, x->clock);
    temperature = fmax (temperature, x->temperature);
  }
  scalar (s, "gpu/utilization", util);
  scalar (s, "gpu/memory_used_max", memory);
  if (!isnan (power)) scalar (s, "gpu/power_all", power);
  if (isfinite (clock)) scalar (s, "gpu/clock_min", clock);
  scalar (s, "gpu/temperature_max", temperature);
}

void tensorboard_step (struct tensorboard *t, const struct metrics_record *r)
{
  struct text s = { 0 };
  scalar (&s, "train/loss", r->loss);
  scalar (&s, "train/grad_norm", r->grad_norm);
  scalar (&s, "train/lr", r->lr);
  scalar (&s, "train/tokens", (double) r->tokens);
  if (r->has_eval) scalar (&s, "valid/loss", r->eval_loss);
  scalar (&s, "speed/tokens_per_s", (double) r->step_tokens / r->seconds);
  scalar (&s, "speed/step_s", r->seconds);
  if (r->mfu >= 0) scalar (&s, "speed/mfu", r->mfu);
  if (r->memory) scalar (&s, "memory/used", (double) r->memory);
  if (r->parts) parts (&s, r);
  if (r->ranks) scalar (&s, "ranks/excess", r->ranks->excess);
  if (r->gpus) gpus (&s, r->gpus);
  put_event (t, r->step, EVENT_SUMMARY, s.at, s.n);
}

/* ---- the file ---- */

void tensorboard_session (struct tensorboard *t, int64_t first)
{
  static const uint8_t start[] = { SESSION_STATUS << 3 | VARINT, SESSION_START };
  put_event (t, first, EVENT_SESSION, start, sizeof start);
}

struct tensorboard *tensorboard_open (const char *dir, int64_t first, struct err *e)
{
  struct tensorboard *t = xalloc (sizeof *t, "tensorboard");
  char *path = t->file.path;
  size_t room = sizeof t->file.path;
  crc_table (t->crc);
  t->file.losing = "values of some steps";
  snprintf (path, room, "%s/tensorboard", dir);
  if (mkdir (path, 0777) && errno != EEXIST) {
    world_err (e, "%s: %s", path, strerror (errno));
    return xfree (t), NULL;
  }
  snprintf (path, room, "%s/tensorboard/events.out.tfevents.%010" PRId64 ".%s.%d", dir, (int64_t) time (NULL), base_host (), (int) getpid ());
  t->file.fd = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (t->file.fd < 0) {
    world_err (e, "%s: %s", path, strerror (errno));
    return xfree (t), NULL;
  }
  put_event (t, 0, EVENT_VERSION, "brain.Event:2", 13);
  tensorboard_session (t, first);
  return t;
}

void tensorboard_close (struct tensorboard *t)
{
  if (!t) return;
  close (t->file.fd);
  xfree (t);
}
