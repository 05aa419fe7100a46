/* Spikes by themselves: which batch a step trains on where some are left out, against a count; limits and scores against their definition; how many are put up with; text and
   back to the bit. np: 1 */
#include "tap.h"
#include "spike.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct conf C;

static void open_with (struct spike *s, const char *skip, enum spike_action a, int64_t window, int64_t max)
{
  struct err e = { 0 };
  conf_default (&C);
  snprintf (C.data.skip, sizeof C.data.skip, "%s", skip);
  C.spike.action = a;
  C.spike.window = window;
  C.spike.max = max;
  C.spike.zscore = 3;
  must (!spike_open (s, &C, &e), "%s", e.msg);
}

static bool left_out (const struct batch_range *r, int n, int64_t b)
{
  bool in = false;
  for (int i = 0; i < n; i++) in |= b >= r[i].first && b <= r[i].last;
  return in;
}

static void test_batches (void)
{
  static const char *const skip[] = { "", "1", "3-5", "1-4,9", "9, 1-4, 5-6, 6-7", "2,4,6,8,10", "100-1000000000000" };
  int bad = 0;
  for (int k = 0; k < LEN (skip); k++)
    for (int more = 0; more < 3; more++) {
      struct spike s;
      open_with (&s, skip[k], SPIKE_ROLLBACK, 4, 3);
      struct batch_range own[2] = { { 4, 12 }, { 20, 21 } };
      for (int i = 0; i < more; i++) spike_leave_out (&s, own[i].first, own[i].last);
      int64_t b = 0;
      for (int64_t step = 1; step <= 90; step++) {   /* walk: the next batch that is in no range */
        do b++;
        while (b <= 99 && (left_out (s.given, s.givens, b) || left_out (own, more, b)));
        if (b > 99) break;
        bad += spike_batch (&s, step) != b;
      }
      spike_close (&s);
    }
  tap_ok (!bad, "the n-th step trains on the n-th batch that is not left out");
  static const char *const wrong[] = { "x", "0", "5-3", "1-", "-4", "1,,2", "1;2", "3 4", "99999999999999" };
  int taken = 0;
  for (int i = 0; i < LEN (wrong); i++) {
    struct batch_range *r;
    struct err e = { 0 };
    int n;
    taken += !spike_ranges (wrong[i], &r, &n, &e) || !strstr (e.msg, wrong[i]);
  }
  tap_ok (!taken, "data.skip that is no list of ranges is refused with its text");
}

static void test_limits (void)
{
  struct spike s;
  double loss, norm, zl, zn;
  open_with (&s, "", SPIKE_SKIP, 4, 3);
  spike_add (&s, 9, 9);
  for (int i = 0; i < 3; i++) spike_add (&s, 2 + i, 1);
  spike_limits (&s, &loss, &norm);
  double u = (9 + 2 + 3 + 4) / 4., d = sqrt (((9 - u) * (9 - u) + (2 - u) * (2 - u) + (3 - u) * (3 - u) + (4 - u) * (4 - u)) / 4);
  bool ok = fabs (loss - (u + 3 * d)) < 1e-12;
  spike_add (&s, 5, 1);   /* 9 falls out: 2 3 4 5 */
  spike_limits (&s, &loss, &norm);
  ok = ok && fabs (loss - (3.5 + 3 * sqrt (1.25))) < 1e-12 && fabs (norm - 1.003) < 1e-12;
  spike_scores (&s, 3.5 + 2 * sqrt (1.25), 1.005, &zl, &zn);
  tap_ok (ok && fabs (zl - 2) < 1e-12 && fabs (zn - 5) < 1e-9, "mean and deviation of the last steps, of which the oldest falls out; a flat window has a thousandth of its mean");
  C.spike.watch = SPIKE_NORM;
  spike_limits (&s, &loss, &norm);
  ok = loss == 0 && norm > 0;
  C.spike.watch = SPIKE_LOSS;
  spike_limits (&s, &loss, &norm);
  tap_ok (ok && loss > 0 && norm == 0, "loss and norm are watched as spike.watch says");
  spike_close (&s);
  open_with (&s, "", SPIKE_SKIP, 4, 3);
  for (int i = 0; i < 3; i++) spike_add (&s, 1, 1);
  spike_limits (&s, &loss, &norm);
  ok = loss == 0 && norm == 0;
  spike_close (&s);
  open_with (&s, "", SPIKE_NONE, 4, 3);
  for (int i = 0; i < 9; i++) spike_add (&s, 1, 1);
  spike_limits (&s, &loss, &norm);
  tap_ok (ok && loss == 0 && norm == 0, "no limit before the window is full, none with spike.action none");
  spike_close (&s);
}

static void test_many (void)
{
  struct spike s;
  struct err e = { 0 };
  open_with (&s, "", SPIKE_SKIP, 10, 2);
  bool ok = !spike_hit (&s, 5, &e) && !spike_hit (&s, 9, &e) && !spike_hit (&s, 16, &e) && !spike_hit (&s, 20, &e);
  tap_ok (ok && spike_hit (&s, 25, &e) && e.code == EXIT_DIVERGED && strstr (e.msg, "3 spikes"), "one more than spike.max within a window of batches ends the run: %s", e.msg);
  spike_close (&s);
}

static void test_text (void)
{
  struct spike a, b;
  struct err e = { 0 };
  open_with (&a, "", SPIKE_ROLLBACK, 7, 3);
  for (int i = 0; i < 9; i++) spike_add (&a, 1 / (i + 3.), 1e-7 * exp (i));
  spike_hit (&a, 4, &e), spike_hit (&a, 6, &e);
  spike_leave_out (&a, 11, 14), spike_leave_out (&a, 2, 3);
  char *text = spike_text (&a);
  open_with (&b, "", SPIKE_ROLLBACK, 7, 3);
  bool ok = !spike_take (&b, text, false) && b.n == 7 && !memcmp (a.loss, b.loss, 56) && !memcmp (a.norm, b.norm, 56) && b.hits == 2 && b.hit[1] == 6 && b.owns == 2
    && !memcmp (a.own, b.own, 2 * sizeof *a.own);
  tap_ok (ok, "text of a checkpoint and back: to the bit");
  spike_leave_out (&b, 30, 31);
  ok = !spike_take (&b, "window 1 0x1p+0 0x1p+1 hits 0 skips 0", true) && b.n == 1 && b.hits == 2 && b.owns == 3;
  tap_ok (ok, "after a rollback the window is that of the checkpoint, spikes and ranges are those of now");
  static const char *const torn[] = { "", "window", "window 2 0x1p+0 0x1p+0", "window 1 0x1p+0 nan hits 0 skips 0", "window 0 hits 1 skips 0", "window 0 hits 0", "window 0 hits 0 skips 1 5", "window -3" };
  int taken = 0;
  for (int i = 0; i < LEN (torn); i++) taken += !spike_take (&b, torn[i], false);
  ok = !spike_take (&b, NULL, false) && !b.n;
  tap_ok (!taken && ok, "torn text is refused, none is empty");
  xfree (text);
  spike_close (&a);
  spike_close (&b);
}

int main (void)
{
  test_batches ();
  test_limits ();
  test_many ();
  test_text ();
  tap_ok (base_live () == 0, "no memory is left");
  tap_done ();
  return 0;
}
