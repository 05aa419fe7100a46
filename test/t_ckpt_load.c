/* How checkpoints are read and written: blocks of any size, by put and straight into place, by one thread and by several; every checksum compared by some rank; format 2.
   np: 1 2 4 */
#include "ckpt_rig.h"

static void erase (struct rig *r)
{
  for (int k = 0; k < CKPT_KINDS; k++)
    for (int u = 0; u < r->units.count && r->in; u++) memset (r->part[k][u], 0xff, (size_t) r->units.unit[u].shard * 4);
}

/* --- ways --- */

static const struct way { int64_t block; int threads; bool straight; } ways[] = {
  { 5, 1, false }, { 5, 3, true }, { 64, 2, true }, { 1000, 1, true }, { 333, 4, false }, { 0, 2, true }, { 1, 2, true },
};

static void take_way (struct rig *r, const struct way *w)
{
  r->s.block = w->block;
  r->s.threads = w->threads;
  r->s.lay = w->straight ? lay : NULL;
  r->s.see = w->straight ? see : NULL;
}

/* From mesh to mesh, each in the next way. */
static void test_ways (const char *what, const struct arch *a, int64_t align, int stride)
{
  int good = 1, whole = 1, links = 0;
  struct err e = { 0 };
  char path[CKPT_PATH];
  fresh ();
  for (int i = 0; i < 2 * LEN (shapes); i++) {
    const struct shape *h = &shapes[i * stride % LEN (shapes)];
    struct rig r;
    if (!fits (h, a)) continue;
    rig_open (&r, a, h, align);
    take_way (&r, &ways[links % LEN (ways)]);
    ckpt_path (links, path);
    if (r.in && !links) visit (&r, true, CKPT_KINDS);
    else if (r.in) good &= !ckpt_load (&r.s, path, false, &e) && !visit (&r, false, CKPT_KINDS);
    if (!good) printf ("# rank %d, link %d: %s\n", rank, links, e.msg);
    take_way (&r, &ways[(links + 3) % LEN (ways)]);
    good &= !save_step (&r, ++links, &e);
    MPI_Barrier (MPI_COMM_WORLD);
    ckpt_path (links, path);
    if (!rank) whole &= !ckpt_verify (path, &e);
    rig_close (&r);
  }
  tap_ok (good && whole, "%s: %d meshes, each loads what the one before wrote: %s", what, links, e.msg);
}

/* --- every sum is compared, whoever reads --- */

static void test_sums (void)
{
  struct err e = { 0 };
  char path[CKPT_PATH];
  struct rig r;
  long at[CKPT_KINDS * 4], n = 0, seen = 0, tried = 0, named = 0;
  fresh ();
  rig_open (&r, &gqa, &(struct shape) { 1, size, 1, 1, false, "layer" }, 16);
  visit (&r, true, CKPT_KINDS);
  r.s.block = 100;
  int bad = save_step (&r, 1, &e);
  int64_t count = arch_params (&gqa) / size - 200;
  rig_close (&r);
  ckpt_path (1, path);
  for (int k = 0; k < CKPT_KINDS; k++)
    for (int i = 0; i < size; i++) {
      char name[64];
      snprintf (name, sizeof name, "/%s/rank%05d", ckpt_group[k], i);
      at[n++] = data_at (path, name);
    }
  for (int i = 0; i < LEN (shapes); i++) {
    const struct shape *h = &shapes[i];
    if (!fits (h, &gqa) || h->dp_replicate * h->dp_shard * h->pp * h->tp != size) continue;
    rig_open (&r, &gqa, h, 16);
    for (int k = 0; k < 24; k++, tried++) {
      long byte = at[(k + i) % n] + (k * 2654435761u >> 5) % (count * 4);
      take_way (&r, &ways[k % LEN (ways)]);
      if (!rank) flip (path, byte);
      MPI_Barrier (MPI_COMM_WORLD);
      e = (struct err) { 0 };
      seen += ckpt_load (&r.s, path, false, &e) == -1 && e.code == EXIT_WORLD;
      named += strstr (e.msg, "is damaged: elements ") && strstr (e.msg, ckpt_group[(k + i) % n / size]);
      MPI_Barrier (MPI_COMM_WORLD);
      if (!rank) flip (path, byte);
      MPI_Barrier (MPI_COMM_WORLD);
    }
    bad |= ckpt_load (&r.s, path, false, &e) || visit (&r, false, CKPT_KINDS);
    rig_close (&r);
  }
  tap_ok (!bad && tried && seen == tried && named == tried, "of %ld damaged bytes loads on %d ranks find %ld and name %ld: %s", tried, size, seen, named, e.msg);
}

/* --- a copy with its sum --- */

/* Bytes around what is copied keep theirs; the sum is that of the whole, whatever the pieces. */
static void test_copy (void)
{
  enum { ROOM = 20000 };
  char *from = xalloc (ROOM, "test"), *to = xalloc (ROOM + 256, "test"), *want = xalloc (ROOM + 256, "test");
  struct sum *s = sum_new ();
  int good = 1;
  for (int i = 0; i < ROOM; i++) from[i] = (char) rand ();
  for (int t = 0; t < 2000; t++) {
    int n = rand () % (t % 2 ? ROOM - 100 : 600), at = rand () % 100, skip = rand () % 100;
    memset (to, t, ROOM + 256);
    memset (want, t, ROOM + 256);
    memcpy (want + at, from + skip, (size_t) n);
    sum_copy (s, to + at, from + skip, n);
    copy_end ();
    good &= sum_end (s) == sum_of (from + skip, n) && !memcmp (to, want, ROOM + 256);
  }
  tap_ok (good, "copies of any length from and to any place, and their sums");
  sum_free (s);
  xfree (from);
  xfree (to);
  xfree (want);
}

/* --- an index that says wrong --- */

static void test_collide (void)
{
  int good = 1, both = 0;
  for (int t = 0; t < 20000; t++) {   /* against marking elements one by one */
    enum { COLS = 6, ROWS = 7 };
    struct run u[2];
    int seen[ROWS * COLS] = { 0 }, twice = 0;
    for (int i = 0; i < 2; i++) {
      int width = 1 + rand () % COLS, wide = width * (1 + rand () % 4), row = rand () % ROWS, rows = 1 + rand () % (ROWS - row);
      u[i] = (struct run) { row * COLS + rand () % (COLS - width + 1), 0, width, rows, COLS, COLS };
      if (rows == 1) u[i].width = MIN (ROWS * COLS - u[i].a, wide);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t w = 0; w < u[i].width; w++) twice |= ++seen[u[i].a + r * COLS + w] > 1;
    }
    good &= runs_collide (&u[0], &u[1]) == (twice != 0);
    both += twice;
  }
  tap_ok (good && both > 2000 && both < 18000, "%d runs collide where they have an element in common", both);
}

/* A slice takes the place in its tensor of the one before it: its elements are missing, the other's are there twice, and all sums agree. CUT: a tensor that tp cuts by it. */
static void repeat_slice (const char *path, int cut)
{
  struct err e = { 0 };
  struct ckpt_head head;
  struct index x;
  h5_begin ();
  hid_t f = h5_open (path, true, 0, &e);
  must (f >= 0 && !h5_head (f, path, &head, &x, &e), "%s", e.msg);
  index_sort (&x);
  int64_t t = 0;
  while (x.tensor[t].tp_axis != cut || x.first[t + 1] - x.first[t] < 2) t++;
  struct row_slice *p = &x.slice[x.order[x.first[t]]], *q = &x.slice[x.order[x.first[t] + 1]];
  must (p->count == q->count, "slices of other sizes");
  q->row0 = p->row0, q->col0 = p->col0, q->cols = p->cols, q->start = p->start;
  must (H5Ldelete (f, "/index", H5P_DEFAULT) >= 0 && !h5_index_create (f, &x), "the index of %s", path);
  H5Fclose (f);
  h5_end ();
  index_free (&x);
  ckpt_head_free (&head);
}

static void test_twice (void)
{
  char path[CKPT_PATH];
  for (int cut = 0; cut < 2; cut++) {
    struct err e = { 0 };
    struct rig r;
    if (size != 4) return (void) tap_ok (1, "elements that are there twice # SKIP on 4 ranks");
    fresh ();
    rig_open (&r, &gqa, &(struct shape) { 1, 1, 1, 4, false, "layer" }, 16);
    visit (&r, true, CKPT_KINDS);
    int bad = save_step (&r, 1, &e);
    rig_close (&r);
    ckpt_path (1, path);
    if (!rank) repeat_slice (path, cut);
    MPI_Barrier (MPI_COMM_WORLD);
    rig_open (&r, &gqa, &(struct shape) { 1, 2, 1, 2, false, "layer" }, 16);
    r.s.lay = cut ? lay : NULL;
    bad |= ckpt_load (&r.s, path, false, &e) != -1 || e.code != EXIT_WORLD;
    tap_ok (!bad && strstr (e.msg, "twice"), "elements that are there twice, and others not: %s", e.msg);
    rig_close (&r);
  }
}

/* --- format 2, by the program that wrote it: 2 ranks, no sums of blocks --- */

static void test_format2 (const char *srcdir)
{
  struct err e = { 0 };
  char path[CKPT_PATH], half[CKPT_PATH], copy[CKPT_PATH];
  int good = 1, meshes = 0;
  snprintf (path, sizeof path, "%s/test/like/format2.h5", srcdir);
  snprintf (half, sizeof half, "%s/test/like/format2-bf16.h5", srcdir);
  snprintf (copy, sizeof copy, "%s/copy.h5", dir);
  fresh ();
  for (int i = 0; i < LEN (shapes); i++)
    for (int w = 0; w < 4; w++) {
      struct rig r;
      if (!fits (&shapes[i], &little)) continue;
      rig_open (&r, &little, &shapes[i], 2);
      take_way (&r, &ways[w]);
      if (r.in) good &= !ckpt_load (&r.s, path, false, &e) && r.s.step == 1 && !visit (&r, false, CKPT_KINDS);
      erase (&r);
      if (r.in) good &= !ckpt_load (&r.s, half, false, &e) && !visit (&r, false, 1);
      rig_close (&r);
      meshes++;
    }
  tap_ok (good, "format 2 on %d meshes and ways: %s", meshes, e.msg);
  good = rank || (!ckpt_verify (path, &e) && !ckpt_verify (half, &e));
  if (!rank) {
    copy_file (path, copy);
    flip (copy, data_at (copy, "/exp_avg/rank00001") + 9);
    e = (struct err) { 0 };
    good &= ckpt_verify (copy, &e) == -1 && strstr (e.msg, "damaged");
  }
  MPI_Barrier (MPI_COMM_WORLD);
  for (int i = 0; i < LEN (shapes); i++) {
    struct rig r;
    if (!fits (&shapes[i], &little)) continue;
    rig_open (&r, &little, &shapes[i], 2);
    take_way (&r, &ways[i % LEN (ways)]);
    e = (struct err) { 0 };
    if (r.in) good &= ckpt_load (&r.s, copy, false, &e) == -1 && strstr (e.msg, "exp_avg/rank00001");
    rig_close (&r);
  }
  tap_ok (good, "and its damage is found: %s", e.msg);
}

/* --- bf16 moments, straight into place --- */

static void test_half (void)
{
  struct err e = { 0 };
  char path[CKPT_PATH];
  struct rig r;
  fresh ();
  rig_open (&r, &gqa, &(struct shape) { 1, size, 1, 1, false, "layer" }, 16);
  visit (&r, true, CKPT_KINDS);
  take_way (&r, &ways[2]);
  r.s.moments = DT_BF16;
  int bad = save_step (&r, 1, &e), near = 1;
  ckpt_path (1, path);
  float *was = xalloc ((size_t) r.units.unit[1].shard * 4, "test");
  memcpy (was, r.part[CKPT_M][1], (size_t) r.units.unit[1].shard * 4);
  erase (&r);
  bad |= ckpt_load (&r.s, path, false, &e) || visit (&r, false, 1);
  struct piece *p;
  int n = units_pieces (&r.units, &p);
  for (int i = 0; i < n; i++)
    for (int64_t j = p[i].lo; j < p[i].hi && p[i].unit == 1; j++) near &= r.part[CKPT_M][1][j] == bf16_to_f32 (f32_to_bf16 (was[j]));
  tap_ok (!bad && near, "moments in bf16 come back rounded, weights to the bit: %s", e.msg);
  xfree (p);
  xfree (was);
  rig_close (&r);
}

/* What h5dump makes of bf16. */
static void test_dump (void)
{
  static const float x[] = { 1, -2.5f, 3.140625f, 3e38f };
  struct err e = { 0 };
  char path[CKPT_PATH], cmd[CKPT_PATH + 200], text[256] = "";
  bf16 half[LEN (x)];
  double y[LEN (x)] = { 0 };
  if (size > 1) return;
  fresh ();
  for (int i = 0; i < LEN (x); i++) half[i] = f32_to_bf16 (x[i]);
  snprintf (path, sizeof path, "%s/half.h5", dir);
  h5_begin ();
  hid_t f = h5_create (path, &e), type = h5_type (DT_BF16), d = h5_dataset (f, "x", type, LEN (x));
  must (d >= 0 && H5Dwrite (d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, half) >= 0, "%s", path);
  H5Dclose (d);
  H5Tclose (type);
  H5Fclose (f);
  h5_end ();
  snprintf (cmd, sizeof cmd, "h5dump -m %%.9g -y -d /x %s 2>/dev/null | sed -n '/DATA {/,/}/p' | tr -d '\\n' | sed 's/.*DATA {//; s/}.*//'", path);
  FILE *p = popen (cmd, "r");
  size_t n = p ? fread (text, 1, sizeof text - 1, p) : 0;
  text[n] = 0;
  if (p) pclose (p);
  int found = sscanf (text, " %lf, %lf, %lf, %lf", &y[0], &y[1], &y[2], &y[3]), good = 1;
  for (int i = 0; i < LEN (x); i++) good &= (float) y[i] == bf16_to_f32 (half[i]);
  if (system ("command -v h5dump >/dev/null")) tap_ok (1, "h5dump shows bf16 # SKIP not installed");
  else tap_ok (found == 4 && good && y[0] == 1 && y[1] == -2.5 && y[2] == 3.140625, "h5dump shows bf16: %s", text);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  const char *srcdir = getenv ("srcdir");
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  base_rank (rank, size, NULL);
  if (!rank) snprintf (dir, sizeof dir, "%s/t_ckpt_load.%d", tap_tmp (), getpid ());
  MPI_Bcast (dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
  test_copy ();
  test_collide ();
  test_ways ("grouped heads", &gqa, 16, 1);
  test_ways ("tied", &tied, 16, 3);
  test_ways ("less than one element a rank", &little, 64, 7);
  test_sums ();
  test_twice ();
  test_half ();
  test_dump ();
  test_format2 (srcdir ? srcdir : ".");
  fresh ();
  if (!rank) rmdir (dir);
  tap_ok (base_live () == 0, "host memory balances to zero");
  tap_done ();
  MPI_Finalize ();
  return 0;
}
