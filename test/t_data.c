/* np: 1
   Token files of every format, the order of samples, blends, batches, and each way in which a file can be wrong, to the word. */
#include "tap.h"
#include "data.h"
#include "tokens.h"
#include "rng.h"
#include <fcntl.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[256];

/* Names in the temporary folder; a few at a time. */
static const char *at (const char *name)
{
  static char path[8][512];
  static int turn;
  char *p = path[turn++ % 8];
  snprintf (p, 512, "%s/%s", dir, name);
  return p;
}

/* --- files --- */

static void write_raw (const char *name, const void *p, size_t n)
{
  FILE *f = fopen (at (name), "wb");
  if (!f || fwrite (p, 1, n, f) != n || fclose (f)) abort ();
}

/* N ids of WIDTH bytes. */
static void *pack (const int64_t *ids, int64_t n, int width)
{
  unsigned char *p = calloc ((size_t) n, (size_t) width);
  for (int64_t i = 0; i < n; i++) memcpy (p + i * width, &ids[i], (size_t) width);
  return p;
}

static void write_flat (const char *name, const int64_t *ids, int64_t n, int width)
{
  void *p = pack (ids, n, width);
  write_raw (name, p, (size_t) (n * width));
  free (p);
}

struct h5 {
  hid_t type;
  int64_t n;
  const int64_t *ids;
  const uint8_t *mask;
  int64_t mask_n, vocab, eod, format;
  const char *tokenizer;
  bool chunked, compact, flat2, variable;
};

static void put_int (hid_t f, const char *name, int64_t v, hid_t type)
{
  hid_t s = H5Screate (H5S_SCALAR), a = H5Acreate2 (f, name, type, s, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite (a, H5T_NATIVE_INT64, &v);
  H5Aclose (a), H5Sclose (s);
}

static void put_text (hid_t f, const char *text, bool variable)
{
  hid_t s = H5Screate (H5S_SCALAR), t = H5Tcopy (H5T_C_S1);
  H5Tset_size (t, variable ? H5T_VARIABLE : strlen (text));
  hid_t a = H5Acreate2 (f, "tokenizer", t, s, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite (a, t, variable ? (const void *) &text : text);
  H5Aclose (a), H5Sclose (s), H5Tclose (t);
}

static void write_h5 (const char *name, struct h5 h)
{
  hid_t f = H5Fcreate (at (name), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), p = H5Pcreate (H5P_DATASET_CREATE);
  hsize_t dim[2] = { (hsize_t) h.n, 1 }, chunk[2] = { 16, 1 }, mask_dim = (hsize_t) (h.mask_n ? h.mask_n : h.n);
  if (h.chunked) H5Pset_chunk (p, h.flat2 ? 2 : 1, chunk);
  if (h.compact) H5Pset_layout (p, H5D_COMPACT);
  hid_t s = H5Screate_simple (h.flat2 ? 2 : 1, dim, NULL), d = H5Dcreate2 (f, "tokens", h.type, s, H5P_DEFAULT, p, H5P_DEFAULT);
  if (h.n) H5Dwrite (d, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, h.ids);
  H5Dclose (d), H5Sclose (s), H5Pclose (p);
  if (h.mask) {
    s = H5Screate_simple (1, &mask_dim, NULL), d = H5Dcreate2 (f, "mask", H5T_STD_U8LE, s, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite (d, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, h.mask);
    H5Dclose (d), H5Sclose (s);
  }
  if (h.format) put_int (f, "format", h.format, H5T_STD_I32LE);
  if (h.vocab) put_int (f, "vocab", h.vocab, H5T_STD_I64BE);
  if (h.eod) put_int (f, "eod", h.eod, H5T_STD_I16LE);
  if (h.tokenizer) put_text (f, h.tokenizer, h.variable);
  H5Fclose (f);
}

/* Documents of the given lengths in STEM.bin and STEM.idx. */
static void write_megatron (const char *stem, int code, int width, const int32_t *length, int64_t documents, const int64_t *ids)
{
  char bin[64], idx[64];
  snprintf (bin, sizeof bin, "%s.bin", stem), snprintf (idx, sizeof idx, "%s.idx", stem);
  FILE *f = fopen (at (idx), "wb");
  int64_t one = 1, sum = 0, ends = documents + 1;
  unsigned char kind = (unsigned char) code;
  fwrite ("MMIDIDX\0\0", 1, 9, f), fwrite (&one, 8, 1, f), fwrite (&kind, 1, 1, f);
  fwrite (&documents, 8, 1, f), fwrite (&ends, 8, 1, f), fwrite (length, 4, (size_t) documents, f);
  for (int64_t i = 0; i < documents; sum += length[i++]) {
    int64_t byte = sum * width;
    fwrite (&byte, 8, 1, f);
  }
  for (int64_t i = 0; i <= documents; i++) fwrite (&i, 8, 1, f);
  fclose (f);
  write_flat (bin, ids, sum, width);
}

static void poke (const char *name, int64_t offset, const void *p, size_t n)
{
  int fd = open (at (name), O_WRONLY);
  if (pwrite (fd, p, n, offset) != (ssize_t) n || close (fd)) abort ();
}

static int64_t *ramp (int64_t n, int64_t modulus)
{
  int64_t *ids = malloc ((size_t) n * sizeof *ids);
  for (int64_t i = 0; i < n; i++) ids[i] = i % modulus;
  return ids;
}

/* --- round trips --- */

/* The file gives the N ids back, in windows of SEQ. */
static int gives_back (const char *spec, const char *format, const int64_t *ids, int64_t n, int64_t vocab, int64_t seq)
{
  struct data *d;
  struct err e = { 0 };
  if (data_open (&d, spec, format, vocab, seq, 0, 1, &e)) return printf ("# %s\n", e.msg), 0;
  int32_t *row = malloc ((size_t) (seq + 1) * sizeof *row);
  int64_t windows = data_info (d)->samples;
  int good = data_info (d)->tokens == n && windows == (n - 1) / seq && !data_scan (d, &e);
  for (int64_t j = 0; j < windows; j++) {
    int64_t w = (int64_t) rng_permute (9, 0, (uint64_t) j, (uint64_t) windows);
    good &= !data_sample (d, 9, j, row, NULL, &e);
    for (int64_t i = 0; i <= seq; i++) good &= row[i] == ids[w * seq + i];
  }
  if (e.msg[0]) printf ("# %s\n", e.msg);
  free (row);
  data_close (d);
  return good;
}

static void round_trips (void)
{
  enum { N = 1000 };
  int64_t *small = ramp (N, 251), *wide = ramp (N, 60000), *big = ramp (N, 100);
  int32_t lengths[] = { 300, 1, 0, 599, 100 };
  wide[10] = 65535, big[7] = 65535, big[500] = 65536, big[999] = 69999;
  write_h5 ("u8.h5", (struct h5) { H5T_STD_U8LE, N, small, .vocab = 251 });
  write_h5 ("u16.h5", (struct h5) { H5T_STD_U16LE, N, wide });
  write_h5 ("u32.h5", (struct h5) { H5T_STD_U32LE, N, big });
  tap_ok (gives_back (at ("u8.h5"), NULL, small, N, 300, 64) && gives_back (at ("u16.h5"), "auto", wide, N, 65536, 64)
          && gives_back (at ("u32.h5"), "hdf5", big, N, 70000, 37), "HDF5: uint8, uint16 and uint32, ids 65535, 65536 and 69999");
  write_flat ("a.u16", wide, N, 2);
  write_flat ("a.u32", big, N, 4);
  write_flat ("plain.bin", wide, N, 2);
  tap_ok (gives_back (at ("a.u16"), NULL, wide, N, 65536, 999) && gives_back (at ("a.u32"), NULL, big, N, 70000, 1)
          && gives_back (at ("plain.bin"), "u16", wide, N, 65536, 10), "flat: uint16 and uint32, by name and by format");
  write_megatron ("m8", 1, 1, lengths, 5, small);
  write_megatron ("m16", 8, 2, lengths, 5, wide);
  write_megatron ("m32", 4, 4, lengths, 5, big);
  write_megatron ("m64", 5, 8, lengths, 5, big);
  tap_ok (gives_back (at ("m8.idx"), NULL, small, N, 256, 64) && gives_back (at ("m16.bin"), NULL, wide, N, 65536, 64)
          && gives_back (at ("m32"), NULL, big, N, 70000, 64) && gives_back (at ("m64"), "megatron", big, N, 70000, 64),
          "Megatron: uint8, uint16, int32 and int64, named .idx, .bin or neither");
  rename (at ("u16.h5"), at ("u16,1:x"));
  tap_ok (gives_back (at ("u16,1:x"), NULL, wide, N, 65536, 64),
          "an HDF5 file is known by its first bytes; names may hold commas and colons");
  free (small), free (wide), free (big);
}

/* --- order --- */

/* The window that sample J is, in a file whose token i is i. */
static int64_t window (struct data *d, uint64_t seed, int64_t j, int64_t seq)
{
  int32_t row[512];
  struct err e = { 0 };
  if (data_sample (d, seed, j, row, NULL, &e)) return -1;
  for (int64_t i = 1; i <= seq; i++)
    if (row[i] != row[0] + i) return -1;
  return row[0] % seq ? -1 : row[0] / seq;
}

static int one_epoch (struct data *d, uint64_t seed, int64_t epoch, int64_t lo, int64_t n, int64_t seq)
{
  int good = 1, *seen = calloc ((size_t) n, sizeof *seen);
  for (int64_t i = 0; i < n; i++) {
    int64_t w = window (d, seed, epoch * n + i, seq) - lo;
    good &= w >= 0 && w < n && !seen[w]++;
  }
  free (seen);
  return good;
}

static void order (void)
{
  enum { N = 10007, SEQ = 100 };   /* 100 windows and 6 tokens more */
  struct data *d, *head, *tail;
  struct err e = { 0 };
  int64_t *ids = ramp (N, N);
  write_flat ("ramp.u16", ids, N, 2);
  free (ids);
  int ok = !data_open (&d, at ("ramp.u16"), NULL, N, SEQ, 0, 1, &e)
           && !data_open (&head, at ("ramp.u16"), NULL, N, SEQ, 0, 1 - 0.05, &e)
           && !data_open (&tail, at ("ramp.u16"), NULL, N, SEQ, 1 - 0.05, 1, &e);
  if (!tap_ok (ok, "opened: %s", e.msg)) return;
  tap_ok (one_epoch (d, 1, 0, 0, 100, SEQ) && one_epoch (d, 1, 7, 0, 100, SEQ) && one_epoch (d, 1, 1000000000000, 0, 100, SEQ),
          "each epoch goes through every window once, the 10^12th too");
  int same = 0, other = 0;
  for (int64_t j = 0; j < 100; j++) {
    same += window (d, 1, j, SEQ) == window (d, 1, j + 100, SEQ);
    other += window (d, 1, j, SEQ) == window (d, 2, j, SEQ);
  }
  tap_ok (same < 10 && other < 10, "the order changes with the epoch (%d in place) and the seed (%d)", same, other);
  tap_ok (data_info (head)->samples == 95 && data_info (tail)->samples == 5 && one_epoch (head, 1, 3, 0, 95, SEQ)
          && one_epoch (tail, 1, 3, 95, 5, SEQ),
          "train and valid share no window: %lld and %lld", (long long) data_info (head)->samples,
          (long long) data_info (tail)->samples);
  tap_ok (data_epochs (d, 250) == 2.5 && data_epochs (tail, 250) == 50, "epochs are counted");
  data_close (d), data_close (head), data_close (tail);
  ok = 1;
  for (int64_t w = 2; w < 60; w++) {
    ok &= !data_open (&head, at ("ramp.u16"), NULL, N, (N - 1) / w, 0, 1 - 0.05, &e);
    ok &= !data_open (&tail, at ("ramp.u16"), NULL, N, (N - 1) / w, 1 - 0.05, 1, &e);
    ok &= data_info (tail)->samples >= 1 && data_info (head)->samples + data_info (tail)->samples == (N - 1) / ((N - 1) / w);
    data_close (head), data_close (tail);
  }
  tap_ok (ok, "a tail of 5 %% has a window in short files too");
}

/* --- blends --- */

/* Which file each of SAMPLES samples comes from: file i holds ids [1000 i, 1000 i + 1000). Counts them, and checks the
   order within each file. */
static int blend_counts (const char *spec, int files, int64_t samples, int64_t *count, double *ahead, const double *share)
{
  enum { SEQ = 10 };
  struct data *d;
  struct err e = { 0 };
  int good = 1;
  int32_t row[SEQ + 1];
  memset (count, 0, files * sizeof *count);
  *ahead = 0;
  if (data_open (&d, spec, NULL, 100000, SEQ, 0, 1, &e)) return printf ("# %s\n", e.msg), 0;
  for (int64_t j = 0; j < samples; j++) {
    good &= !data_sample (d, 5, j, row, NULL, &e);
    int i = row[0] / 1000;
    uint64_t n = 99, k = (uint64_t) count[i]++, seed = 5 ^ (uint64_t) i * 0x9e3779b97f4a7c15u;
    good &= row[0] % 1000 == (int) (10 * rng_permute (seed, k / n, k % n, n)) && row[SEQ] == row[0] + SEQ;
    for (int f = 0; share && f < files; f++) *ahead = fmax (*ahead, fabs ((double) count[f] - share[f] * (double) (j + 1)));
  }
  data_close (d);
  return good;
}

static void blends (void)
{
  enum { N = 1000 };
  char spec[2048];
  int64_t ids[N], count[3], late[3];
  double ahead;
  for (int f = 0; f < 3; f++) {
    char name[16];
    for (int i = 0; i < N; i++) ids[i] = 1000 * f + i;
    snprintf (name, sizeof name, "part%d.u32", f);
    write_flat (name, ids, N, 4);
  }
  snprintf (spec, sizeof spec, "0.7:%s,0.3:%s", at ("part0.u32"), at ("part1.u32"));
  tap_ok (blend_counts (spec, 2, 65536, count, &ahead, (double[]) { 0.7, 0.3 }), "0.7 : 0.3: each file is read in its own order");
  tap_ok (count[0] == 45875 && count[1] == 19661 && ahead <= 1, "%lld : %lld of 65536, never off by more than %.3f",
          (long long) count[0], (long long) count[1], ahead);
  snprintf (spec, sizeof spec, "5:%s,3:%s,2e0:%s", at ("part0.u32"), at ("part1.u32"), at ("part2.u32"));
  int good = blend_counts (spec, 3, 100000, count, &ahead, (double[]) { 0.5, 0.3, 0.2 });
  tap_ok (good && ahead < 1.5 && count[0] == 50000 && labs (count[1] - 30000) <= 2,
          "5 : 3 : 2 is %lld : %lld : %lld of 100000, off by at most %.3f", (long long) count[0], (long long) count[1],
          (long long) count[2], ahead);
  snprintf (spec, sizeof spec, "1:%s,1e-9:%s", at ("part0.u32"), at ("part1.u32"));
  tap_ok (blend_counts (spec, 2, 131072, late, &ahead, NULL) && late[1] == 2, "a tiny weight has one turn in 65536");
  snprintf (spec, sizeof spec, "%s,%s,%s", at ("part0.u32"), at ("part1.u32"), at ("part2.u32"));
  tap_ok (blend_counts (spec, 3, 3 * 99, count, &ahead, NULL) && labs (count[0] - 99) <= 1 && labs (count[1] - 99) <= 1,
          "without weights: by size");
  struct data *d;
  struct err e = { 0 };
  snprintf (spec, sizeof spec, "5:%s,3:%s", at ("part0.u32"), at ("part1.u32"));
  data_open (&d, spec, NULL, 100000, 10, 0, 1, &e);
  char turns[17] = "";
  for (int64_t j = 0; j < 16; j++) {
    int32_t row[11];
    data_sample (d, 1, j, row, NULL, &e);
    turns[j] = (char) ('0' + row[0] / 1000);
  }
  tap_ok (!strcmp (turns, "0100101001001010"), "5 : 3 takes turns %s", turns);
  data_close (d);
  snprintf (spec, sizeof spec, "3:%s,1:%s", at ("part0.u32"), at ("part1.u32"));
  data_open (&d, spec, NULL, 100000, 10, 0, 1, &e);
  const struct data_info *info = data_info (d);
  tap_ok (info->samples == 198 && info->files == 2 && info->tokens == 2000 && data_epochs (d, 396) == 3,
          "a blend's sizes and epochs");
  data_close (d);
}

/* --- batches --- */

static void batches (void)
{
  enum { N = 241, SEQ = 24, MB = 2, EOD = 99 };   /* 10 windows */
  int64_t ids[N];
  uint8_t mask[N];
  struct data *d, *plain;
  struct err e = { 0 };
  for (int i = 0; i < N; i++) ids[i] = i % 7 == 3 || i == 50 ? EOD : i % 90, mask[i] = i % 5 != 0;
  write_h5 ("docs.h5", (struct h5) { H5T_STD_U8LE, N, ids, mask, .vocab = 100, .eod = EOD, .format = 1, .tokenizer = "bytes",
                                     .variable = true });
  write_h5 ("plain.h5", (struct h5) { H5T_STD_U8LE, N, ids, .vocab = 100, .tokenizer = "bytes" });
  int ok = !data_open (&d, at ("docs.h5"), NULL, 128, SEQ, 0, 1, &e);
  ok = ok && !data_open (&plain, at ("plain.h5"), NULL, 128, SEQ, 0, 1, &e);
  if (!tap_ok (ok, "opened: %s", e.msg)) return;
  const struct data_info *a = data_info (d), *b = data_info (plain);
  tap_ok (a->vocab == 100 && a->eod == EOD && a->documents && !strcmp (a->tokenizer, "bytes") && b->eod == -1 && !b->documents
          && !strcmp (b->tokenizer, "bytes"),
          "attributes are read, texts of fixed and variable length");
  int32_t in[MB * SEQ], out[MB * SEQ], doc[MB * SEQ], pos[MB * SEQ], p_doc[MB * SEQ], p_pos[MB * SEQ], p_out[MB * SEQ];
  int good = 1, masked = 1, bounds = 1, flat = 1;
  for (int64_t first = 0; first < 30; first += MB) {
    int64_t valid = data_batch (d, 3, first, MB, true, in, out, doc, pos, &e), count = 0;
    flat &= data_batch (plain, 3, first, MB, false, NULL, p_out, p_doc, p_pos, &e) == MB * SEQ;
    for (int q = 0; q < MB; q++) {
      int64_t w = (int64_t) rng_permute (3, (uint64_t) (first + q) / 10, (uint64_t) (first + q) % 10, 10) * SEQ;
      for (int i = 0, start = 0; i < SEQ; i++) {
        int k = q * SEQ + i;
        if (i && ids[w + i - 1] == EOD) start = i;
        good &= in[k] == ids[w + i];
        masked &= out[k] == (mask[w + i + 1] ? ids[w + i + 1] : -1);
        bounds &= doc[k] == start && pos[k] == i - start;
        flat &= p_out[k] == ids[w + i + 1] && p_doc[k] == 0 && p_pos[k] == i;
        count += mask[w + i + 1];
      }
    }
    masked &= valid == count;
  }
  tap_ok (good, "ids are the window");
  tap_ok (masked, "targets are the next tokens, -1 where masked, and those in the loss are counted");
  tap_ok (bounds, "documents start after the token that ends one, positions with them");
  tap_ok (flat, "without documents and mask each sequence is one, all in the loss");
  data_close (d), data_close (plain);

  /* The samples of a step are the same however it is cut: dp x micro-batch x accumulation. */
  int covered = 1;
  for (int dp = 1; dp <= 4; dp++) {
    int mb = 12 / dp / (dp == 3 ? 2 : 1), seen[12] = { 0 };
    for (int a_ = 0; a_ * dp * mb < 12; a_++)
      for (int r = 0; r < dp; r++)
        for (int q = 0; q < mb; q++) seen[data_first (3, 12, a_, dp, r, mb) + q - 24]++;
    for (int i = 0; i < 12; i++) covered &= seen[i] == 1;
  }
  tap_ok (covered, "a step's samples do not depend on dp or the micro-batch");
}

static void megatron_documents (void)
{
  enum { SEQ = 20 };
  int32_t lengths[] = { 7, 1, 0, 40, 20, 12, 1 }, row[SEQ], doc[SEQ], pos[SEQ];
  int64_t *ids = ramp (81, 1000);
  struct data *d;
  struct err e = { 0 };
  write_megatron ("docs", 4, 4, lengths, 7, ids);
  free (ids);
  if (!tap_ok (!data_open (&d, at ("docs"), NULL, 1000, SEQ, 0, 1, &e) && data_info (d)->documents, "opened: %s", e.msg)) return;
  int good = 1;
  for (int64_t j = 0; j < 4; j++) {
    good &= data_batch (d, 1, j, 1, true, row, NULL, doc, pos, &e) == SEQ;
    for (int i = 0; i < SEQ; i++) {
      int at_ = row[i], begin = 0, sum = 0;
      for (int k = 0; k < LEN (lengths); sum += lengths[k++])
        if (sum <= at_) begin = sum;
      int start = MAX (begin - row[0], 0);
      good &= doc[i] == start && pos[i] == i - start;
    }
  }
  tap_ok (good, "Megatron's index tells documents, empty ones too");
  data_close (d);
}

/* --- mistakes --- */

/* Opening SPEC (and scanning, if it opens) must fail with this sentence; %s in WANT is the folder. */
static void refuses (const char *spec, const char *format, int64_t vocab, int64_t seq, const char *want, const char *what)
{
  char text[4096] = "", *out = text;
  struct data *d;
  struct err e = { 0 };
  for (const char *s = want; *s; s++)
    if (*s == '@') out += sprintf (out, "%s/", dir);
    else *out++ = *s, *out = 0;
  int rc = data_open (&d, spec, format, vocab, seq, 0, 1, &e);
  int closed = !d;
  if (!rc) rc = data_scan (d, &e), data_close (d), closed = 1;
  bool same = want[strlen (want) - 1] == '*' ? !strncmp (e.msg, text, strlen (text) - 1) : !strcmp (e.msg, text);
  if (!tap_ok (rc == -1 && closed && same && e.code == EXIT_USER, "%s", what)) printf ("# is:   %s\n# want: %s\n", e.msg, text);
}

static void mistakes (void)
{
  enum { N = 2000 };
  int64_t *ids = ramp (N, 200), *wide = ramp (N, 200);
  uint8_t mask[N] = { 0 };
  wide[1024] = 70000;
  write_h5 ("wide.h5", (struct h5) { H5T_STD_U32LE, N, wide });
  write_h5 ("big.h5", (struct h5) { H5T_STD_U16LE, N, ids, .vocab = 70000 });
  write_h5 ("none.h5", (struct h5) { H5T_STD_U16LE, N, ids });
  write_h5 ("own.h5", (struct h5) { H5T_STD_U16LE, N, ids, .vocab = 190 });
  write_h5 ("eod.h5", (struct h5) { H5T_STD_U16LE, N, ids, .vocab = 200, .eod = 200 });
  write_h5 ("chunked.h5", (struct h5) { H5T_STD_U16LE, N, ids, .chunked = true });
  write_h5 ("compact.h5", (struct h5) { H5T_STD_U16LE, N, ids, .compact = true });
  write_h5 ("signed.h5", (struct h5) { H5T_STD_I32LE, N, ids });
  write_h5 ("endian.h5", (struct h5) { H5T_STD_U16BE, N, ids });
  write_h5 ("float.h5", (struct h5) { H5T_IEEE_F32LE, N, ids });
  write_h5 ("square.h5", (struct h5) { H5T_STD_U16LE, N, ids, .flat2 = true });
  write_h5 ("empty.h5", (struct h5) { H5T_STD_U16LE, 0, ids });
  write_h5 ("newer.h5", (struct h5) { H5T_STD_U16LE, N, ids, .format = 2 });
  write_h5 ("mask.h5", (struct h5) { H5T_STD_U16LE, N, ids, mask, N - 1 });
  write_h5 ("other.h5", (struct h5) { H5T_STD_U16LE, N, ids, .tokenizer = "other", .vocab = 200 });
  write_h5 ("bytes.h5", (struct h5) { H5T_STD_U16LE, N, ids, .tokenizer = "bytes", .vocab = 200 });
  write_raw ("zero.h5", "", 0);
  write_raw ("text.h5", "this is no HDF5 file", 20);
  write_raw ("odd.u16", ids, 4097);
  write_raw ("odd.u32", ids, 4098);
  write_raw ("lone.bin", ids, 4096);
  write_flat ("few.u16", ids, 100, 2);
  mkdir (at ("folder.h5"), 0777);

  hid_t f = H5Fopen (at ("wide.h5"), H5F_ACC_RDONLY, H5P_DEFAULT), s = H5Dopen2 (f, "tokens", H5P_DEFAULT);
  int64_t offset = (int64_t) H5Dget_offset (s);
  H5Dclose (s), H5Fclose (f);
  char want[512];
  snprintf (want, sizeof want, "@wide.h5: token 70000 at byte %lld (token 1024) is outside the vocabulary of 50304",
            (long long) offset + 4096);
  refuses (at ("wide.h5"), NULL, 50304, 64, want, "an id outside the vocabulary: file, byte, token, vocabulary");
  refuses (at ("own.h5"), NULL, 300, 64,
           "@own.h5: token 190 at byte 2428 (token 190) is outside the file's own vocabulary of 190",
           "an id outside the file's own vocabulary");
  refuses (at ("big.h5"), NULL, 50304, 64, "@big.h5: its vocabulary of 70000 ids is larger than the model's 50304",
           "a tokenizer larger than the model's vocabulary");
  refuses (at ("big.h5"), NULL, 70000, 64, "@big.h5: its type uint16 holds ids up to 65535, too narrow for a vocabulary of 70000",
           "uint16 that says 70000");
  refuses (at ("none.h5"), NULL, 70000, 64,
           "@none.h5: its type uint16 holds ids up to 65535, too narrow for a vocabulary of 70000",
           "uint16 without attribute for a model of 70000");
  refuses (at ("few.u16"), NULL, 65537, 64,
           "@few.u16: its type uint16 holds ids up to 65535, too narrow for a vocabulary of 65537",
           "flat uint16 for a model of 65537");
  refuses (at ("eod.h5"), NULL, 200, 64, "@eod.h5: attribute eod 200 is outside the vocabulary of 200",
           "eod outside the vocabulary");
  refuses (at ("chunked.h5"), NULL, 200, 64,
           "@chunked.h5: data set /tokens is chunked, but only contiguous data can be mapped; "
           "h5repack -f NONE -l CONTI @chunked.h5 NEW.h5 converts it", "chunked");
  refuses (at ("compact.h5"), NULL, 200, 64, "@compact.h5: data set /tokens is not contiguous, *", "compact");
  for (int i = 0; i < 3; i++) {
    static const char *const name[] = { "signed", "endian", "float" };
    char file[32], line[256];
    snprintf (file, sizeof file, "%s.h5", name[i]);
    snprintf (line, sizeof line, "@%s: data set /tokens must have type uint8, uint16 or uint32, little-endian", file);
    refuses (at (file), NULL, 200, 64, line, name[i]);
  }
  refuses (at ("square.h5"), NULL, 200, 64, "@square.h5: data set /tokens must have one dimension", "two dimensions");
  refuses (at ("empty.h5"), NULL, 200, 64, "@empty.h5: data set /tokens is empty", "an empty data set");
  refuses (at ("newer.h5"), NULL, 200, 64, "@newer.h5: token format 2 is not known; this pretrain reads format 1",
           "a newer format");
  refuses (at ("mask.h5"), NULL, 200, 64, "@mask.h5: /mask has 1999 values for 2000 tokens", "a short mask");
  refuses (at ("zero.h5"), NULL, 200, 64, "@zero.h5 is empty (0 bytes)", "an empty file");
  refuses (at ("text.h5"), NULL, 200, 64, "@text.h5 cannot be read as HDF5: *", "no HDF5");
  refuses (at ("folder.h5"), NULL, 200, 64, "@folder.h5 is not a regular file, so it cannot be mapped", "a folder");
  refuses (at ("gone.h5"), NULL, 200, 64, "cannot open @gone.h5: No such file or directory", "a missing file");
  refuses (at ("gone"), NULL, 200, 64, "cannot open @gone: No such file or directory", "a missing file without format");
  refuses (at ("none.h5"), "zip", 200, 64, "data.format zip is not known: auto, hdf5, megatron, u16 or u32", "an unknown format");
  refuses (at ("lone.bin"), NULL, 200, 64,
           "@lone.bin: its name does not tell the format; set data.format to hdf5, megatron (a .bin with its .idx), u16 or u32",
           "a .bin alone");
  refuses (at ("odd.u16"), NULL, 200, 64, "@odd.u16: 4097 bytes are not a whole number of uint16 tokens", "an odd length");
  refuses (at ("odd.u32"), NULL, 200, 64, "@odd.u32: 4098 bytes are not a whole number of uint32 tokens", "two bytes too many");
  refuses (at ("few.u16"), NULL, 200, 100, "@few.u16: its 100 tokens are fewer than one sample of 100 + 1",
           "fewer tokens than a sample");
  char blend[2048];
  snprintf (blend, sizeof blend, "1:%s,1:%s", at ("bytes.h5"), at ("other.h5"));
  refuses (blend, NULL, 200, 64, "@other.h5 was made with tokenizer other, but an earlier file of the blend with bytes",
           "two tokenizers");
  snprintf (blend, sizeof blend, "1:%s,%s", at ("bytes.h5"), at ("none.h5"));
  refuses (blend, NULL, 200, 64, "data: either all files of a blend have a weight or none (1 of 2 have)", "half the weights");
  snprintf (blend, sizeof blend, "0:%s,1:%s", at ("bytes.h5"), at ("none.h5"));
  refuses (blend, NULL, 200, 64, "data: the weight of @bytes.h5 must be a number above 0", "a weight of nothing");
  refuses ("", NULL, 200, 64, "data: no token file is named", "no name");

  truncate (at ("none.h5"), 3000);
  refuses (at ("none.h5"), NULL, 200, 64, "@none.h5 cannot be read as HDF5: truncated file: *", "HDF5 cut short");
  free (ids), free (wide);
}

static void megatron_mistakes (void)
{
  int32_t lengths[] = { 300, 200, 500 }, minus = -1;
  int64_t *ids = ramp (1000, 200), two = 2, far = 1999;
  unsigned char code = 7;
  for (int i = 0; i < 6; i++) write_megatron ((const char *[]) { "b0", "b1", "b2", "b3", "b4", "b5" }[i], 8, 2, lengths, 3, ids);
  poke ("b0.idx", 0, "X", 1);
  poke ("b1.idx", 9, &two, 8);
  poke ("b2.idx", 17, &code, 1);
  truncate (at ("b3.bin"), 1998);
  truncate (at ("b4.idx"), 100);
  poke ("b5.idx", 34 + 12 + 8, &far, 8);
  refuses (at ("b0"), NULL, 200, 64, "@b0.idx is not a Megatron index (no MMIDIDX at byte 0)", "no index");
  refuses (at ("b1"), NULL, 200, 64, "@b1.idx: index version 2 at byte 9 is not known; this pretrain reads version 1",
           "a newer index");
  refuses (at ("b2"), NULL, 200, 64, "@b2.idx: type code 7 at byte 17 is none of uint8 (1), int32 (4), int64 (5), uint16 (8)",
           "an index of floats");
  refuses (at ("b3.bin"), NULL, 200, 64, "@b3.bin has 1998 bytes, but @b3.idx says that its sequences lie at bytes 0 to 2000",
           "a .bin cut short");
  refuses (at ("b4.idx"), NULL, 200, 64, "@b4.idx: 100 bytes do not fit its 3 sequences and 4 documents", "an .idx cut short");
  refuses (at ("b5"), NULL, 200, 64,
           "@b5.bin: its index puts sequence 1 (200 tokens) at byte 1999, not at byte 600 where the one before ends",
           "sequences out of place");
  write_megatron ("b6", 4, 4, lengths, 3, ids);
  poke ("b6.bin", 400, &minus, 4);
  refuses (at ("b6"), NULL, 200, 64, "@b6.bin: token -1 at byte 400 (token 100) is outside the vocabulary of 200",
           "a negative id");
  refuses (at ("b6"), NULL, 200, 1000, "@b6.bin: its 1000 tokens are fewer than one sample of 1000 + 1",
           "Megatron: fewer tokens than a sample");
  free (ids);
}

/* An id at a window's edge is the last target of one and the first input of the next: both find the same. */
static void edge (void)
{
  enum { N = 129, SEQ = 32 };
  int64_t ids[N] = { 0 };
  struct data *d;
  int failed = 0;
  char first[1800] = "";
  int32_t out[SEQ];
  ids[64] = 50;
  write_flat ("edge.u16", ids, N, 2);
  struct err e = { 0 };
  data_open (&d, at ("edge.u16"), NULL, 50, SEQ, 0, 1, &e);
  int same = 1;
  for (int64_t j = 0; j < 4; j++) {
    struct err mine = { 0 };
    if (data_batch (d, 1, j, 1, false, j % 2 ? out : NULL, j % 2 ? NULL : out, NULL, NULL, &mine) >= 0) continue;
    if (failed++) same &= !strcmp (first, mine.msg);
    else strcpy (first, mine.msg);
  }
  tap_ok (failed == 2 && same && strstr (first, "edge.u16: token 50 at byte 128 (token 64) is outside the vocabulary of 50"),
          "a bad id at an edge is found by both windows, whether inputs or targets are asked for");
  data_close (d);
}

/* A file that loses its end while it is in use: a sentence and the world's exit code, not a bare signal. */
static void cut_short (void)
{
  enum { N = 30000, SEQ = 1000 };
  int64_t *ids = ramp (N, 200);
  char said[512] = "", want[512];
  int status, row[SEQ + 1], ends[2];
  struct data *d;
  struct err e = { 0 };
  write_flat ("cut.u16", ids, N, 2);
  free (ids);
  data_open (&d, at ("cut.u16"), NULL, 200, SEQ, 0, 1, &e);
  if (truncate (at ("cut.u16"), 4096) || pipe (ends)) abort ();
  fflush (stdout);
  pid_t pid = fork ();
  if (!pid) {
    dup2 (ends[1], 2);
    for (int64_t j = 0; j < 29; j++) data_sample (d, 1, j, row, NULL, &e);
    _exit (0);
  }
  close (ends[1]);
  for (ssize_t n, k = 0; (n = read (ends[0], said + k, sizeof said - 1 - k)) > 0; k += n);
  waitpid (pid, &status, 0);
  snprintf (want, sizeof want, "%s cannot be read at byte ", at ("cut.u16"));
  tap_ok (WIFEXITED (status) && WEXITSTATUS (status) == EXIT_WORLD && strstr (said, want), "a file cut short in use: %s", said);
  data_close (d);
}

static void texts (void)
{
  int64_t *ids = ramp (2000, 200);
  struct data *d;
  struct err e = { 0 };
  char *text[3];
  for (int i = 0; i < 3; i++) {
    if (i == 2) ids[1500]++;
    write_flat ("text.u16", ids, 2000, 2);
    data_open (&d, at ("text.u16"), NULL, 300, 64, 0, 1, &e);
    text[i] = data_text (d);
    data_close (d);
  }
  printf ("# %s", text[0]);
  tap_ok (!strcmp (text[0], text[1]) && strcmp (text[1], text[2]) && strchr (text[0], '\n') == text[0] + strlen (text[0]) - 1,
          "the text of a file tells one changed token");
  for (int i = 0; i < 3; i++) xfree (text[i]);
  free (ids);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  H5Eset_auto2 (H5E_DEFAULT, NULL, NULL);
  snprintf (dir, sizeof dir, "%s/t_data.XXXXXX", tap_tmp ());
  if (!mkdtemp (dir)) return 99;
  round_trips ();
  order ();
  blends ();
  batches ();
  megatron_documents ();
  mistakes ();
  megatron_mistakes ();
  edge ();
  cut_short ();
  texts ();
  tap_ok (base_live () == 0, "nothing is left allocated (%lld blocks)", (long long) base_live ());
  char command[300];
  snprintf (command, sizeof command, "rm -rf '%s'", dir);
  if (system (command)) return 99;
  tap_done ();
  MPI_Finalize ();
  return 0;
}
