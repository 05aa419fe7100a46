#include "config.h"
#include "wire.h"
#include "dtype.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const struct wire_row wire_row[W_N] = {
  [W_F32] = { "F32", 4, true },   [W_BF16] = { "BF16", 2, true },  [W_F16] = { "F16", 2, true },    [W_F64] = { "F64", 8, true },
  [W_I64] = { "I64", 8, false },  [W_I32] = { "I32", 4, false },   [W_I16] = { "I16", 2, false },   [W_I8] = { "I8", 1, false },
  [W_U64] = { "U64", 8, false },  [W_U32] = { "U32", 4, false },   [W_U16] = { "U16", 2, false },   [W_U8] = { "U8", 1, false },
  [W_BOOL] = { "BOOL", 1, false }, [W_F8_E4M3] = { "F8_E4M3", 1, false }, [W_F8_E5M2] = { "F8_E5M2", 1, false },
};

enum wire wire_find (const char *name)
{
  static const struct { const char *other; enum wire type; } also[] = {
    { "fp32", W_F32 }, { "float32", W_F32 }, { "bfloat16", W_BF16 }, { "fp16", W_F16 }, { "float16", W_F16 }, { "fp64", W_F64 }, { "float64", W_F64 },
  };
  for (int i = 0; i < LEN (also); i++) if (!strcasecmp (name, also[i].other)) return also[i].type;
  for (int i = 0; i < W_N; i++) if (!strcasecmp (name, wire_row[i].name)) return i;
  return W_N;
}

/* --- fp16 --- */

static float f16_to_f32 (uint16_t h)
{
  int e = h >> 10 & 31, m = h & 1023;
  float v = e == 31 ? (m ? NAN : INFINITY) : ldexpf ((float) (e ? m | 1024 : m), (e ? e : 1) - 25);
  return h >> 15 ? -v : v;
}

/* To the nearest, ties to even. */
static uint16_t f32_to_f16 (float f)
{
  uint32_t u;
  memcpy (&u, &f, 4);
  uint16_t sign = (uint16_t) (u >> 16 & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00;
  if (u >= 0x477ff000) return sign | 0x7c00;          /* 65520 and above */
  if (u < 0x38800000) {                               /* below 2^-14: counted in units of 2^-24 */
    float a;
    memcpy (&a, &u, 4);
    return sign | (uint16_t) lrintf (a * 0x1p24f);
  }
  u += 0xfff + (u >> 13 & 1);
  return sign | (uint16_t) ((u >> 13) - (112 << 10));
}

/* --- blocks --- */

enum { BLOCK = 65536 };

static void widen (enum wire type, const unsigned char *p, int64_t n, float *out)
{
  uint16_t h;
  double d;
  switch (type) {
  case W_F32: memcpy (out, p, (size_t) n * 4); break;
  case W_BF16: for (int64_t i = 0; i < n; i++) memcpy (&h, p + 2 * i, 2), out[i] = bf16_to_f32 (h); break;
  case W_F16: for (int64_t i = 0; i < n; i++) memcpy (&h, p + 2 * i, 2), out[i] = f16_to_f32 (h); break;
  case W_F64: for (int64_t i = 0; i < n; i++) memcpy (&d, p + 8 * i, 8), out[i] = (float) d; break;
  default: die ("%s cannot become fp32", wire_row[type].name);
  }
}

/* Returns the first element that does not fit, or -1. */
static int64_t narrow (enum wire type, const float *in, int64_t n, unsigned char *p)
{
  uint16_t h;
  int64_t lost = -1;
  switch (type) {
  case W_F32: memcpy (p, in, (size_t) n * 4); break;
  case W_BF16: for (int64_t i = 0; i < n; i++) h = f32_to_bf16 (in[i]), memcpy (p + 2 * i, &h, 2); break;
  case W_F16:
    for (int64_t i = 0; i < n; i++) {
      h = f32_to_f16 (in[i]);
      memcpy (p + 2 * i, &h, 2);
      if ((h & 0x7fff) == 0x7c00 && !isinf (in[i]) && lost < 0) lost = i;
    }
    break;
  case W_F64: for (int64_t i = 0; i < n; i++) { double d = in[i]; memcpy (p + 8 * i, &d, 8); } break;
  default: die ("%s cannot be written", wire_row[type].name);
  }
  return lost;
}

int wire_get (int fd, const char *name, int64_t at, enum wire type, int64_t first, int64_t n, float *out, struct err *e)
{
  unsigned char block[BLOCK];
  int64_t w = wire_row[type].bytes, most = BLOCK / w;
  for (int64_t i = 0, k; i < n; i += k) {
    k = MIN (most, n - i);
    int64_t from = at + (first + i) * w, bytes = k * w;
    for (int64_t done = 0; done < bytes;) {
      ssize_t r = pread (fd, block + done, (size_t) (bytes - done), from + done);
      if (r < 0 && errno == EINTR) continue;
      if (r < 0) return world_err (e, "cannot read %s at byte %lld: %s", name, (long long) (from + done), strerror (errno));
      if (!r) return world_err (e, "%s ends at byte %lld, in the midst of a tensor", name, (long long) (from + done));
      done += r;
    }
    widen (type, block, k, out + i);
  }
  return 0;
}

int wire_put (int fd, const char *name, int64_t at, enum wire type, int64_t first, int64_t n, const float *in, struct err *e)
{
  unsigned char block[BLOCK];
  int64_t w = wire_row[type].bytes, most = BLOCK / w;
  for (int64_t i = 0, k; i < n; i += k) {
    k = MIN (most, n - i);
    int64_t to = at + (first + i) * w, bytes = k * w, lost = narrow (type, in + i, k, block);
    if (lost >= 0) return user_err (e, "%s: %g does not fit fp16 (largest 65504); take --dtype bf16 or fp32", name, in[i + lost]);
    for (int64_t done = 0; done < bytes;) {
      ssize_t r = pwrite (fd, block + done, (size_t) (bytes - done), to + done);
      if (r < 0 && errno == EINTR) continue;
      if (r < 0) return world_err (e, "cannot write %s at byte %lld: %s", name, (long long) (to + done), strerror (errno));
      done += r;
    }
  }
  return 0;
}
