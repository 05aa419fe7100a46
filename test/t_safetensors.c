/* np: 1
   safetensors: what is right is read, and each way of being wrong ends in one sentence, at once. */
#include "tap.h"
#include "safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_NAME "t_safetensors.tmp"

/* A file of LEN as its first number (-1: the header's true length), the header and DATA bytes. */
static void put (int64_t len, const char *json, int64_t data)
{
  FILE *f = fopen (FILE_NAME, "wb");
  uint64_t n = len < 0 ? strlen (json) : (uint64_t) len;
  if (!f || fwrite (&n, 1, 8, f) != 8 || fwrite (json, 1, strlen (json), f) != strlen (json)) abort ();
  for (int64_t i = 0; i < data; i++) fputc ((int) i, f);
  if (fclose (f)) abort ();
}

#define T(name, type, shape, from, to) "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static const struct { const char *what; int64_t len; const char *json; int64_t data; const char *says; } bad[] = {
  { "a header of 2^63 bytes", INT64_MAX, "{}", 0, "says that its header has 9223372036854775807 bytes" },
  { "a header of 2^40 bytes", INT64_C (1) << 40, "{}", 0, "says that its header has" },
  { "a header longer than the file", 100, "{}", 8, "the file has 18" },
  { "a header of no bytes", 0, "", 8, "its header has 0 bytes" },
  { "no JSON", -1, "{\"a\":", 0, "no JSON" },
  { "JSON that is no object", -1, "[1,2,3]", 0, "does not begin with {" },
  { "bytes after the object", -1, "{} x", 0, "no JSON" },
  { "a name twice", -1, "{" T ("a", "F32", "[1]", 0, 4) "," T ("a", "F32", "[1]", 4, 8) "}", 8, "duplicate" },
  { "no dtype", -1, "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "has not dtype" },
  { "a dtype that is a number", -1, "{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "has not dtype" },
  { "a type that nobody knows", -1, "{" T ("a", "F31", "[1]", 0, 4) "}", 4, "F31" },
  { "a tensor that is a number", -1, "{\"a\":7}", 4, "has not dtype" },
  { "nine dimensions", -1, "{" T ("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions" },
  { "a negative extent", -1, "{" T ("a", "F32", "[-1]", 0, 4) "}", 4, "no list of sizes" },
  { "an extent that is text", -1, "{" T ("a", "F32", "[\"1\"]", 0, 4) "}", 4, "no list of sizes" },
  { "an extent that is no whole number", -1, "{" T ("a", "F32", "[1.5]", 0, 4) "}", 4, "no list of sizes" },
  { "2^64 elements", -1, "{" T ("a", "F32", "[4294967296,4294967296]", 0, 4) "}", 4, "more than 2^63 elements" },
  { "2^64 bytes", -1, "{" T ("a", "F64", "[4294967296,1073741824]", 0, 4) "}", 4, "more than 2^63 bytes" },
  { "an extent above 2^63", -1, "{" T ("a", "F32", "[99999999999999999999]", 0, 4) "}", 4, "no JSON" },
  { "offsets outside of the file", -1, "{" T ("a", "F32", "[2]", 0, 8) "}", 4, "do not lie in the 4 bytes" },
  { "offsets that run backwards", -1, "{" T ("a", "F32", "[1]", 4, 0) "}", 4, "do not lie in" },
  { "negative offsets", -1, "{" T ("a", "F32", "[1]", -4, 0) "}", 4, "do not lie in" },
  { "a shape that is not its bytes", -1, "{" T ("a", "F32", "[3]", 0, 8) "}", 8, "12 bytes by its shape and type, and 8" },
  { "an overlap", -1, "{" T ("a", "F32", "[2]", 0, 8) "," T ("b", "F32", "[2]", 4, 12) "}", 12, "a and b overlap" },
  { "the same bytes twice", -1, "{" T ("a", "F32", "[1]", 0, 4) "," T ("b", "F32", "[1]", 0, 4) "}", 4, "overlap" },
  { "a hole", -1, "{" T ("a", "F32", "[1]", 0, 4) "," T ("b", "F32", "[1]", 8, 12) "}", 12, "4 bytes before tensor b" },
  { "a hole at the start", -1, "{" T ("a", "F32", "[1]", 4, 8) "}", 8, "4 bytes before tensor a" },
  { "trailing bytes", -1, "{" T ("a", "F32", "[1]", 0, 4) "}", 9, "the last 5 bytes belong to no tensor" },
  { "broken UTF-8 in a name", -1, "{" T ("a\xff", "F32", "[1]", 0, 4) "}", 4, "no JSON" },
  { "a zero byte in a name", -1, "{" T ("a\\u0000b", "F32", "[1]", 0, 4) "}", 4, "no JSON" },
};

static void hostile (void)
{
  struct st s;
  for (int i = 0; i < LEN (bad); i++) {
    struct err e = { 0 };
    clock_t start = clock ();
    put (bad[i].len, bad[i].json, bad[i].data);
    int rc = st_open (&s, FILE_NAME, &e);
    bool good = rc && e.code != EXIT_WORLD && strstr (e.msg, bad[i].says) && strstr (e.msg, FILE_NAME) && clock () - start < CLOCKS_PER_SEC;
    if (!good) printf ("# %s\n", e.msg);
    tap_ok (good && !s.n && !s.files, "%s: refused", bad[i].what);
  }
  /* Deep nesting and very many names must not take long either. */
  struct err e = { 0 };
  char *deep = malloc (8 << 20);
  memset (deep, '[', 8 << 20);
  memcpy (deep, "{\"a\":", 5);
  deep[(8 << 20) - 1] = 0;
  put (-1, deep, 0);
  clock_t start = clock ();
  tap_ok (st_open (&s, FILE_NAME, &e) && clock () - start < CLOCKS_PER_SEC, "8 MiB of brackets: %s", e.msg + (strlen (e.msg) > 60 ? strlen (e.msg) - 60 : 0));
  free (deep);
}

static void good (void)
{
  struct st s;
  struct err e = { 0 };
  float x[4];
  put (-1, "{\"__metadata__\":{\"format\":\"pt\"}," T ("b", "F16", "[2]", 8, 12) "," T ("none", "I64", "[0,3]", 8, 8) "," T ("a", "BF16", "[2,2]", 0, 8) "}   ", 12);
  int rc = st_open (&s, FILE_NAME, &e);
  const struct st_tensor *a = rc ? NULL : st_find (&s, "a"), *b = rc ? NULL : st_find (&s, "b");
  tap_ok (!rc && s.n == 3 && a && a->ndim == 2 && a->shape[1] == 2 && a->type == W_BF16 && b && b->at == a->at + 8 && !st_find (&s, "c"), "a right one is read (%s)", e.msg);
  rc = a ? wire_get (s.fd[0], "x", a->at, a->type, 1, 2, x, &e) : -1;
  tap_ok (!rc && x[0] == ldexpf (1.f + 2 / 128.f, 2 * 3 - 127) && x[1] > 0, "bf16 (bytes 2 and 3 are %a)", x[0]);
  rc = b ? wire_get (s.fd[0], "x", b->at, b->type, 1, 2, x, &e) : 0;
  tap_ok (rc && strstr (e.msg, "ends at byte"), "reading on behind the end: %s", e.msg);
  st_close (&s);
}

/* Every fp16 there and back, and ties. */
static void halves (void)
{
  struct err e = { 0 };
  FILE *f = fopen (FILE_NAME, "w+b");
  int fd = fileno (f), wrong = 0;
  uint16_t *h = malloc (65536 * 2), *back = malloc (65536 * 2);
  float *x = malloc (65536 * 4);
  for (int i = 0; i < 65536; i++) h[i] = (uint16_t) i;
  if (pwrite (fd, h, 131072, 0) != 131072 || wire_get (fd, "x", 0, W_F16, 0, 65536, x, &e) || wire_put (fd, "x", 0, W_F16, 0, 65536, x, &e) || pread (fd, back, 131072, 0) != 131072) wrong = -1;
  for (int i = 0; i < 65536 && wrong >= 0; i++) {
    int nan = (i & 0x7c00) == 0x7c00 && (i & 1023);
    double v = (i & 0x7c00) ? ldexp (1024 + (i & 1023), (i >> 10 & 31) - 25) : ldexp (i & 1023, -24);
    if (nan ? !isnan (x[i]) || !(back[i] & 1023) : back[i] != i || ((i & 0x7c00) != 0x7c00 && fabs (x[i]) != v)) wrong++;
  }
  tap_ok (!wrong, "all 65536 of fp16 there and back");
  float t[6] = { 1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 0x1p-25f, 3 * 0x1p-25f, 65519.f, 0x1.ffffp-15f };
  uint16_t want[6] = { 0x3c00, 0x3c02, 0, 2, 0x7bff, 0x0400 };
  wrong = wire_put (fd, "x", 0, W_F16, 0, 6, t, &e) || pread (fd, back, 12, 0) != 12 || memcmp (back, want, 12);
  tap_ok (!wrong, "ties go to the even one: %x %x %x %x %x %x", back[0], back[1], back[2], back[3], back[4], back[5]);
  t[0] = 65520;
  tap_ok (wire_put (fd, "y", 0, W_F16, 0, 1, t, &e) && strstr (e.msg, "65520 does not fit fp16"), "what does not fit is named: %s", e.msg);
  fclose (f);
  free (h), free (back), free (x);
}

int main (void)
{
  hostile ();
  good ();
  halves ();
  unlink (FILE_NAME);
  tap_ok (!base_live (), "nothing is left in memory (%lld blocks)", (long long) base_live ());
  tap_done ();
  return 0;
}
