/* Schedules: all of them checked, their orders, memory and bubbles against the papers' formulas, planted faults, and the check itself
   against a second, naive interpreter. np: 1 */
#include "tap.h"
#include "conf.h"
#include "sched.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct sched make (int kind, int pp, int chunks, int mbs, bool forward_only)
{
  struct sched s;
  struct err e = { 0 };
  if (sched_make (&s, kind, pp, chunks, mbs, forward_only, &e)) printf ("# %s\n", e.msg);
  return s;
}

static bool legal (int kind, int pp, int chunks, int mbs, bool forward_only)
{
  if (kind != SCHED_INTERLEAVED) return chunks == 1;
  return pp > 1 && chunks > 1 && (forward_only || mbs % pp == 0);
}

/* ---- every schedule ---- */

/* Activations of all chunks held at once; with one chunk what in_flight says. */
static int most_live (const struct sched *s, int stage)
{
  int live = 0, most = 0;
  for (const struct action *a = s->act[stage]; a < s->act[stage] + s->count[stage]; a++) {
    live += (a->kind == ACT_F) - (a->kind == ACT_B || a->kind == ACT_B_WEIGHT);
    most = MAX (most, live);
  }
  return most;
}

static bool flight_ok (const struct sched *s)
{
  bool ok = true;
  for (int i = 0; i < s->pp; i++) {
    int *f = &s->in_flight[i * s->chunks], sum = 0, held = MIN (s->pp, s->mbs);
    int warm = 2 * (s->pp - 1 - i) + (s->chunks - 1) * s->pp;
    bool receives = s->pp > 1 && (i || s->chunks > 1 || !s->forward_only);
    for (int c = 0; c < s->chunks; c++) sum += f[c];
    if (s->forward_only) ok &= sum == s->chunks;
    else if (s->chunks == 1 && sum != most_live (s, i)) ok = false;
    else if (s->kind == SCHED_GPIPE) ok &= sum == s->mbs;
    else if (s->kind == SCHED_1F1B) ok &= sum == MIN (s->pp - i, s->mbs);
    else if (s->kind == SCHED_ZBH1) ok &= sum <= held && (i || sum == held);
    else ok &= most_live (s, i) == MIN (s->mbs * s->chunks, warm + 1);
    ok &= s->recv_ahead[i] <= (s->kind == SCHED_INTERLEAVED ? 2 : 1) && receives == !!s->recv_ahead[i];
  }
  return ok;
}

/* One chunk is gathered once, before all, and let go once, before OPT. */
static bool weights_ok (const struct sched *s)
{
  bool ok = true;
  for (int i = 0; i < s->pp && s->chunks == 1; i++) {
    int n = s->count[i], turns = 0;
    for (int k = 0; k < n; k++) turns += s->act[i][k].kind == ACT_GATHER || s->act[i][k].kind == ACT_RELEASE;
    ok &= turns == 2 && s->act[i][0].kind == ACT_GATHER && s->act[i][n - (s->forward_only ? 1 : 2)].kind == ACT_RELEASE;
    ok &= s->forward_only || (s->act[i][n - 1].kind == ACT_OPT && s->act[i][n - 3].kind == ACT_REDUCE);
  }
  return ok;
}

struct tally { int made, wrongly, unchecked, flight, weights, slow; };

static void one_case (struct tally *t, int kind, int pp, int chunks, int mbs, bool forward_only)
{
  struct sched s;
  struct err e = { 0 };
  bool made = !sched_make (&s, kind, pp, chunks, mbs, forward_only, &e);
  t->wrongly += made != legal (kind, pp, chunks, mbs, forward_only) || made == !!e.msg[0];
  if (!made) return;
  t->made++;
  t->unchecked += sched_check (&s, true, &e) || sched_check (&s, false, &e);
  if (e.msg[0]) printf ("# kind %d pp %d chunks %d mbs %d: %s\n", kind, pp, chunks, mbs, e.msg);
  t->flight += !flight_ok (&s);
  t->weights += !weights_ok (&s);
  bool same = kind == SCHED_GPIPE || kind == SCHED_1F1B;
  t->slow += same && sched_times (&s, false, 1, 1, 1, NULL) != sched_times (&s, true, 1, 1, 1, NULL);
  sched_free (&s);
}

static void test_all (void)
{
  struct tally t = { 0 };
  for (int kind = 0; kind < 4; kind++)
    for (int pp = 1; pp <= 8; pp++)
      for (int chunks = 1; chunks <= 3; chunks++)
        for (int mbs = 1; mbs <= 16; mbs++)
          for (int eval = 0; eval < 2; eval++) one_case (&t, kind, pp, chunks, mbs, eval);
  tap_ok (!t.wrongly && t.made == 1044, "%d of 3072 schedules are made, the others refused with a sentence", t.made);
  tap_ok (!t.unchecked, "all of them end, with queued and with blocking sends");
  tap_ok (!t.flight, "micro-batches in flight: GPipe all, 1F1B pp - stage, ZB-H1 at most pp; one receive ahead, interleaved two");
  tap_ok (!t.weights, "one chunk is gathered once and let go once, reduced before, OPT last");
  tap_ok (!t.slow, "GPipe and 1F1B lose no time to blocking sends");
}

/* ---- bubbles ---- */

static double bubble (int kind, int pp, int chunks, int mbs, int tf, int tb, int tw)
{
  struct sched s = make (kind, pp, chunks, mbs, false);
  double b = sched_bubble (&s, tf, tb, tw);
  sched_free (&s);
  return b;
}

static bool near (double a, double b) { return fabs (a - b) < 1e-12; }

static void test_bubbles (void)
{
  bool plain = true, inter = true, zb = true, less = true;
  for (int pp = 1; pp <= 8; pp++)
    for (int m = 1; m <= 16; m++) {
      double law = (pp - 1) / (double) (m + pp - 1), z = bubble (SCHED_ZBH1, pp, 1, m, 1, 1, 1);
      plain &= near (bubble (SCHED_GPIPE, pp, 1, m, 1, 1, 1), law) && near (bubble (SCHED_1F1B, pp, 1, m, 1, 1, 1), law);
      plain &= near (bubble (SCHED_GPIPE, pp, 1, m, 3, 4, 5), law) && near (bubble (SCHED_1F1B, pp, 1, m, 3, 4, 5), law);
      for (int c = 2; c <= 3 && pp > 1 && m % pp == 0; c++)
        inter &= near (bubble (SCHED_INTERLEAVED, pp, c, m, 1, 1, 1), (pp - 1) / (double) (c * m + pp - 1));
      if (m >= pp) zb &= near (z, (pp - 1) / (double) (3 * m + pp - 1));
      less &= pp == 1 ? z == 0 : z < law;
    }
  tap_ok (plain, "bubble of GPipe and 1F1B: (pp - 1) / (mbs + pp - 1)");
  tap_ok (inter, "bubble of interleaved: (pp - 1) / (chunks mbs + pp - 1)");
  tap_ok (zb, "bubble of ZB-H1 from pp micro-batches on: (pp - 1) (tf + tb - tw), a third of 1F1B's");
  tap_ok (less, "and below 1F1B's with fewer");
  struct sched s = make (SCHED_1F1B, 4, 1, 6, true);
  tap_ok (near (sched_bubble (&s, 2, 1, 1), 3 / 9.), "bubble of an evaluation: (pp - 1) / (mbs + pp - 1)");
  sched_free (&s);
}

/* ---- orders and pictures ---- */

static const char *const code[ACT_N] = { "F", "B", "I", "W", ">", "<", "}", "{", "+", "-", "R", "O" };

/* `F0 F1 B0`: computations, with ALL also the rest; the chunk as a letter where there are several. */
static char *row (const struct sched *s, int stage, bool all)
{
  static char out[4096];
  int n = 0;
  for (int i = 0; i < s->count[stage]; i++) {
    const struct action *a = &s->act[stage][i];
    if (a->kind > ACT_B_WEIGHT && !all) continue;
    n += snprintf (out + n, sizeof out - n, "%s%s", n ? " " : "", code[a->kind]);
    if (a->mb >= 0) n += snprintf (out + n, sizeof out - n, "%d", a->mb);
    if (s->chunks > 1 && a->chunk >= 0) n += snprintf (out + n, sizeof out - n, "%c", 'a' + a->chunk);
  }
  return out;
}

static void row_is (int kind, int pp, int chunks, int mbs, bool forward_only, int stage, bool all, const char *want)
{
  struct sched s = make (kind, pp, chunks, mbs, forward_only);
  char *got = row (&s, stage, all);
  if (strcmp (got, want)) printf ("# got  %s\n# want %s\n", got, want);
  tap_ok (!strcmp (got, want), "kind %d, pp %d, chunks %d, %d micro-batches: row of stage %d", kind, pp, chunks, mbs, stage);
  sched_free (&s);
}

static void test_rows (void)
{
  row_is (SCHED_GPIPE, 3, 1, 4, false, 1, false, "F0 F1 F2 F3 B0 B1 B2 B3");
  row_is (SCHED_1F1B, 4, 1, 8, false, 0, false, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  row_is (SCHED_1F1B, 4, 1, 8, false, 2, false, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  row_is (SCHED_1F1B, 4, 1, 8, false, 3, false, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  row_is (SCHED_INTERLEAVED, 2, 2, 4, false, 0, false, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  row_is (SCHED_INTERLEAVED, 2, 2, 4, false, 1, false, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
  row_is (SCHED_ZBH1, 4, 1, 6, false, 0, false, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5");
  row_is (SCHED_ZBH1, 4, 1, 6, false, 3, false, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5");
  row_is (SCHED_1F1B, 3, 1, 3, false, 1, true, "+ <0 F0 <1 >0 F1 >1 {0 B0 <2 }0 F2 >2 {1 B1 }1 {2 B2 }2 R - O");
  row_is (SCHED_1F1B, 1, 1, 2, false, 0, true, "+ F0 B0 F1 B1 R - O");
  row_is (SCHED_1F1B, 2, 1, 2, true, 1, true, "+ <0 F0 <1 F1 -");
  row_is (SCHED_ZBH1, 2, 1, 2, false, 0, true, "+ F0 >0 F1 >1 {0 I0 {1 W0 I1 W1 R - O");
  row_is (SCHED_INTERLEAVED, 2, 2, 2, true, 0, true, "+a F0a >0a F1a >1a <0b -a +b F0b >0b <1b F1b >1b -b");
}

static void draw_is (int kind, int pp, int chunks, int mbs, int tf, int tb, int tw, const char *want)
{
  char *got = NULL;
  size_t size;
  struct sched s = make (kind, pp, chunks, mbs, false);
  FILE *f = open_memstream (&got, &size);
  sched_draw (&s, tf, tb, tw, f);
  fclose (f);
  if (strcmp (got, want)) printf ("# got\n%s# want\n%s", got, want);
  tap_ok (!strcmp (got, want), "the picture of kind %d", kind);
  free (got);
  sched_free (&s);
}

static void test_pictures (void)
{
  draw_is (SCHED_1F1B, 2, 1, 3, 1, 1, 1,
           "stage 0  F0 F1 .  .  B0 -- F2 B1 -- .  B2 --\n"
           "stage 1  .  F0 B0 -- F1 B1 -- F2 B2 -- .  .\n"
           "bubble 25.0 %\n");
  draw_is (SCHED_ZBH1, 3, 1, 3, 1, 1, 1,
           "stage 0  F0 F1 F2 .  .  I0 W0 I1 W1 I2 W2\n"
           "stage 1  .  F0 F1 .  I0 F2 I1 W0 I2 W1 W2\n"
           "stage 2  .  .  F0 I0 F1 I1 F2 I2 W0 W1 W2\n"
           "bubble 18.2 %\n");
  draw_is (SCHED_INTERLEAVED, 2, 2, 2, 20, 20, 0,
           "stage 0  F0a F1a F0b F1b .   B0b .   B1b B0a B1a\n"
           "stage 1  .   F0a F1a F0b B0b F1b B1b B0a B1a .\n"
           "bubble 20.0 %\n");
  struct sched s = make (SCHED_GPIPE, 4, 1, 64, false);
  char *got = NULL;
  size_t size, widest = 0;
  FILE *f = open_memstream (&got, &size);
  sched_draw (&s, 1, 1, 1, f);
  fclose (f);
  for (char *line = strtok (got, "\n"); line; line = strtok (NULL, "\n")) widest = MAX (widest, strlen (line));
  tap_ok (widest <= 132 && widest > 100, "a long picture goes on below");
  free (got);
  sched_free (&s);
}

/* ---- planted faults ---- */

static int find (const struct sched *s, int stage, int kind, int mb)
{
  for (int i = 0; i < s->count[stage]; i++)
    if (s->act[stage][i].kind == kind && (mb < 0 || s->act[stage][i].mb == mb)) return i;
  return -1;
}

static void cut (struct sched *s, int stage, int i)
{
  struct action *a = s->act[stage];
  memmove (a + i, a + i + 1, (size_t) (--s->count[stage] - i) * sizeof *a);
}

static void insert (struct sched *s, int stage, int i, struct action x)
{
  struct action *a = s->act[stage] = xrealloc (s->act[stage], (size_t) ++s->count[stage] * sizeof *a, "test");
  memmove (a + i + 1, a + i, (size_t) (s->count[stage] - 1 - i) * sizeof *a);
  a[i] = x;
}

static void swap (struct sched *s, int stage, int i, int j)
{
  struct action a = s->act[stage][i];
  s->act[stage][i] = s->act[stage][j];
  s->act[stage][j] = a;
}

/* Move the action at I to J. */
static void move (struct sched *s, int stage, int i, int j)
{
  struct action a = s->act[stage][i];
  cut (s, stage, i);
  insert (s, stage, j, a);
}

/* S, which is freed, must fail with SAYS in the sentence; ISSUE: the model in which it must (blocking always). */
static void refused (struct sched *s, bool issue, const char *says)
{
  struct err e = { 0 };
  int rc = sched_check (s, issue, &e);
  if (!rc || !strstr (e.msg, says)) printf ("# got \"%s\"\n", e.msg);
  tap_ok (rc == -1 && strstr (e.msg, says), "found: %s", says);
  sched_free (s);
}

static void test_stage_faults (void)
{
  struct sched s = make (SCHED_1F1B, 4, 1, 6, false);
  swap (&s, 1, find (&s, 1, ACT_F, 2), find (&s, 1, ACT_SEND_F, 2));
  refused (&s, true, "stage 1, action 8 (SEND_F of micro-batch 2 to stage 2) comes before what it needs on this stage");
  s = make (SCHED_1F1B, 4, 1, 6, false);
  cut (&s, 2, find (&s, 2, ACT_RECV_F, 1));
  refused (&s, true, "stage 2, action 4 (F of micro-batch 1) uses what is not received before");
  s = make (SCHED_1F1B, 4, 1, 6, false);
  swap (&s, 3, find (&s, 3, ACT_B, 0), find (&s, 3, ACT_F, 0));
  refused (&s, true, "stage 3, action 2 (B of micro-batch 0) comes before what it needs on this stage");
  s = make (SCHED_ZBH1, 4, 1, 6, false);
  cut (&s, 3, find (&s, 3, ACT_B_WEIGHT, 5));
  cut (&s, 3, find (&s, 3, ACT_REDUCE, -1));
  cut (&s, 3, find (&s, 3, ACT_OPT, -1));
  refused (&s, true, "stage 3, action 31: the end comes without B_WEIGHT of micro-batch 5");
  s = make (SCHED_ZBH1, 4, 1, 6, false);
  cut (&s, 0, find (&s, 0, ACT_B_WEIGHT, 5));
  refused (&s, true, "(REDUCE) comes before the chunk's last backward");
  s = make (SCHED_ZBH1, 4, 1, 6, false);
  swap (&s, 0, find (&s, 0, ACT_B_WEIGHT, 0), find (&s, 0, ACT_B_INPUT, 0));
  refused (&s, true, "(B_WEIGHT of micro-batch 0) comes before what it needs");
  s = make (SCHED_1F1B, 4, 1, 6, false);
  insert (&s, 3, find (&s, 3, ACT_B, 0) + 1, (struct action) { .kind = ACT_B_INPUT, .peer = -1 });
  refused (&s, true, "stage 3, action 4 (B_INPUT of micro-batch 0) repeats B");
  s = make (SCHED_INTERLEAVED, 2, 2, 4, false);
  cut (&s, 1, find (&s, 1, ACT_RELEASE, -1));
  refused (&s, true, "stage 1, action 19 (GATHER of chunk 0) finds the weights gathered");
  s = make (SCHED_INTERLEAVED, 2, 2, 4, false);
  cut (&s, 1, find (&s, 1, ACT_GATHER, -1));
  refused (&s, true, "stage 1, action 1 (F of micro-batch 0, chunk 0) uses weights that are not gathered");
  s = make (SCHED_GPIPE, 2, 1, 2, false);
  move (&s, 1, find (&s, 1, ACT_OPT, -1), s.count[1] - 2);
  refused (&s, true, "(OPT) is not the last action");
  s = make (SCHED_GPIPE, 2, 1, 2, true);
  s.act[1][2].kind = ACT_B;
  refused (&s, true, "stage 1, action 2 (B of micro-batch 0) has no place in an evaluation");
}

/* Faults that only show between stages. */
static void test_link_faults (void)
{
  struct sched s = make (SCHED_GPIPE, 3, 1, 4, false);
  s.act[1][find (&s, 1, ACT_SEND_F, 2)].peer = 0;
  refused (&s, true, "(SEND_F of micro-batch 2 to stage 0) has the wrong peer");
  s = make (SCHED_GPIPE, 3, 1, 4, false);
  for (int i = 0; i < s.count[1]; i++)
    if (s.act[1][i].mb == 1 || s.act[1][i].mb == 2) s.act[1][i].mb = 3 - s.act[1][i].mb;
  refused (&s, true, "stage 0, action 4 (SEND_F of micro-batch 1 to stage 1) meets "
                     "stage 1, action 3 (RECV_F of micro-batch 2 from stage 0)");
  struct err e = { 0 };
  s = make (SCHED_1F1B, 2, 1, 4, false);   /* SEND_F of stage 0 and SEND_B of stage 1 cross: ends if queued, not if blocking */
  swap (&s, 1, find (&s, 1, ACT_SEND_B, 0), find (&s, 1, ACT_RECV_F, 1));
  tap_ok (!sched_check (&s, true, &e), "crossing sends end where sends are queued");
  refused (&s, false, "deadlock with blocking sends: stage 0, action 4 (SEND_F of micro-batch 1 to stage 1) waits for "
                      "stage 1, action 4 (SEND_B of micro-batch 0 to stage 0) waits for stage 0");
  s = make (SCHED_1F1B, 2, 1, 4, false);   /* stage 0 wants its first gradient before it has sent what that is made of */
  move (&s, 0, find (&s, 0, ACT_SEND_F, 0), find (&s, 0, ACT_B, 0) + 1);
  refused (&s, true, "meets");
  s = make (SCHED_1F1B, 2, 1, 1, false);
  move (&s, 0, find (&s, 0, ACT_SEND_F, 0), find (&s, 0, ACT_B, 0));
  refused (&s, true, "deadlock: stage 0, action 3 (B of micro-batch 0) waits for "
                     "stage 1, action 2 (F of micro-batch 0) waits for stage 0");
}

static bool fails (const struct sched *s) { return sched_check (s, false, NULL) && sched_check (s, true, NULL); }

/* Each action of a few schedules cut, doubled, and changed in each field: the check must object every time. */
static void test_single_faults (void)
{
  static const int shape[][5] = {
    { SCHED_GPIPE, 3, 1, 3, 0 }, { SCHED_1F1B, 4, 1, 5, 0 }, { SCHED_INTERLEAVED, 2, 3, 4, 0 },
    { SCHED_ZBH1, 3, 1, 4, 0 }, { SCHED_1F1B, 1, 1, 3, 0 }, { SCHED_INTERLEAVED, 3, 2, 4, 1 },
  };
  int missed = 0, tried = 0;
  for (int n = 0; n < LEN (shape); n++) {
    struct sched s = make (shape[n][0], shape[n][1], shape[n][2], shape[n][3], shape[n][4]);
    for (int st = 0; st < s.pp; st++)
      for (int i = 0; i < s.count[st]; i++) {
        struct action a = s.act[st][i], *p;
        cut (&s, st, i);
        missed += !fails (&s);
        insert (&s, st, i, a);
        insert (&s, st, i, a);
        missed += !fails (&s);
        cut (&s, st, i);
        p = &s.act[st][i];
        for (int k = -1; k <= ACT_N; k++) p->kind = (int16_t) k, missed += k != a.kind && !fails (&s), tried++;
        p->kind = a.kind;
        for (int k = -2; k <= s.mbs; k++) p->mb = k, missed += k != a.mb && !fails (&s), tried++;
        p->mb = a.mb;
        for (int k = -2; k <= s.chunks; k++) p->chunk = (int16_t) k, missed += k != a.chunk && !fails (&s), tried++;
        p->chunk = a.chunk;
        for (int k = -2; k <= s.pp; k++) p->peer = (int16_t) k, missed += k != a.peer && !fails (&s), tried++;
        p->peer = a.peer;
      }
    missed += sched_check (&s, false, NULL) != 0;
    sched_free (&s);
  }
  tap_ok (!missed, "each of %d faults in a single action is found", tried);
}

/* ---- a second opinion ---- */

/* A naive interpreter: stages hold facts (activations X and gradients G of virtual stages) and are tried in random order. It knows
   nothing of the check. */
struct naive {
  const struct sched *s;
  bool queued;
  int pc[8];
  bool x[8][8][16], g[8][8][16];   /* [stage][virtual stage][micro-batch] */
  int fifo[8][2][2][32];           /* [sender][direction][sent, wanted][n]: v * 100 + mb of what travels */
  int n[8][2][2], moved[8][2];
  bool wrong;
};

static bool *fact (struct naive *w, int stage, bool back, int id)
{
  return back ? &w->g[stage][id / 100][id % 100] : &w->x[stage][id / 100][id % 100];
}

/* What a transfer carries: X of the virtual stage before the boundary or G of the one behind. */
static int carried (const struct sched *s, int stage, const struct action *a)
{
  int v = a->chunk * s->pp + stage;
  return 100 * (a->kind == ACT_RECV_F ? v - 1 : a->kind == ACT_RECV_B ? v + 1 : v) + a->mb;
}

static void deliver (struct naive *w, int from, int to, bool back)
{
  int *done = &w->moved[from][back], *n = w->n[from][back];
  for (; *done < MIN (n[0], n[1]); ++*done) {
    int sent = w->fifo[from][back][0][*done];
    if (sent != w->fifo[from][back][1][*done]) w->wrong = true;
    *fact (w, to, back, sent) = true;
  }
}

static bool transfer (struct naive *w, int st, const struct action *a)
{
  bool back = a->kind == ACT_SEND_B || a->kind == ACT_RECV_B, send = a->kind == ACT_SEND_F || a->kind == ACT_SEND_B;
  int from = send ? st : a->peer, to = send ? a->peer : st, id = carried (w->s, st, a), *n = &w->n[from][back][!send];
  if (send && !*fact (w, st, back, id)) return false;
  if (!w->queued) {
    if (!send) return false;   /* the sender does both */
    const struct action *b = &w->s->act[to][w->pc[to]];
    if (w->pc[to] == w->s->count[to] || b->kind != a->kind + 1 || b->peer != from) return false;
    if (carried (w->s, to, b) != id) w->wrong = true;
    *fact (w, to, back, id) = true;
    w->pc[to]++;
  } else {
    w->fifo[from][back][!send][(*n)++] = id;
    deliver (w, from, to, back);
  }
  w->pc[st]++;
  return true;
}

static bool advance (struct naive *w, int st)
{
  const struct sched *s = w->s;
  if (w->pc[st] == s->count[st]) return false;
  const struct action *a = &s->act[st][w->pc[st]];
  int v = a->chunk * s->pp + st;
  if (a->kind >= ACT_SEND_F && a->kind <= ACT_RECV_B) return transfer (w, st, a);
  if (a->kind == ACT_F) {
    if (v && !w->x[st][v - 1][a->mb]) return false;
    w->x[st][v][a->mb] = true;
  }
  if (a->kind == ACT_B) {
    if (!w->x[st][v][a->mb] || (v < s->pp * s->chunks - 1 && !w->g[st][v + 1][a->mb])) return false;
    w->g[st][v][a->mb] = true;
  }
  w->pc[st]++;
  return true;
}

static bool naive_ends (const struct sched *s, bool queued)
{
  static struct naive w;
  w = (struct naive) { .s = s, .queued = queued };
  for (int idle = 0; idle < 20 * s->pp && !w.wrong;) idle = advance (&w, rand () % s->pp) ? 0 : idle + 1;
  bool all = !w.wrong;
  for (int i = 0; i < s->pp; i++) all &= w.pc[i] == s->count[i];
  return all;
}

/* A few neighbours of the lists exchanged, or SENDs and RECVs moved further: do check and interpreter agree? */
static void shuffle (struct sched *s)
{
  for (int k = rand () % 4; k >= 0; k--) {
    int st = rand () % s->pp, i = rand () % (s->count[st] - 1), j = i + rand () % 16 - 8;
    const struct action *a = &s->act[st][i];
    if (k % 2) {
      if (a[0].kind < ACT_GATHER && a[1].kind < ACT_GATHER) swap (s, st, i, i + 1);
    } else if (a->kind >= ACT_SEND_F && a->kind <= ACT_RECV_B && j >= 0 && j < s->count[st] - 1) move (s, st, i, j);
  }
}

static void test_second_opinion (void)
{
  int differ = 0, good = 0, tried = 0, only_queued = 0;
  srand (1);
  for (int n = 0; n < 3000; n++) {
    int kind = n % 3, pp = 2 + rand () % 3, mbs = kind == SCHED_INTERLEAVED ? pp * (1 + rand () % 2) : 1 + rand () % 4;
    struct sched s = make (kind, pp, kind == SCHED_INTERLEAVED ? 2 : 1, mbs, false);
    shuffle (&s);
    bool blocking = !sched_check (&s, false, NULL), queued = !sched_check (&s, true, NULL);
    differ += blocking != naive_ends (&s, false);
    differ += queued != naive_ends (&s, true);
    good += blocking;
    only_queued += queued && !blocking;
    tried++;
    sched_free (&s);
  }
  tap_ok (!differ && good > 300 && good < 2700 && only_queued > 100,
          "a naive interpreter agrees on %d shuffled schedules (%d end, %d with queued sends only)", tried, good, only_queued);
}

/* ---- refusals ---- */

static void sentence (int kind, int pp, int chunks, int mbs, const char *says)
{
  struct sched s;
  struct err e = { 0 };
  int rc = sched_make (&s, kind, pp, chunks, mbs, false, &e);
  if (!strstr (e.msg, says)) printf ("# got \"%s\"\n", e.msg);
  tap_ok (rc == -1 && e.code == EXIT_USER && strstr (e.msg, says), "refused: %s", says);
  sched_free (&s);
}

static void test_refusals (void)
{
  sentence (7, 2, 1, 2, "no pipeline schedule number 7");
  sentence (SCHED_1F1B, 0, 1, 2, "mesh.pp must be from 1");
  sentence (SCHED_1F1B, 2, 0, 2, "pipeline.chunks must be from 1");
  sentence (SCHED_1F1B, 2, 1, 0, "micro-batches, not 0");
  sentence (SCHED_ZBH1, 2, 2, 2, "pipeline.chunks 2 needs pipeline.schedule interleaved; zbh1 has one chunk a stage");
  sentence (SCHED_INTERLEAVED, 1, 2, 2, "interleaved needs mesh.pp of 2 or more");
  sentence (SCHED_INTERLEAVED, 2, 1, 2, "interleaved needs pipeline.chunks of 2 or more");
  sentence (SCHED_INTERLEAVED, 4, 2, 6, "micro-batches a step (6) in a multiple of mesh.pp (4), such as 8");
}

static void test_large (void)
{
  struct sched s = make (SCHED_1F1B, 64, 1, 256, false);
  tap_ok (!sched_check (&s, false, NULL) && near (sched_bubble (&s, 1, 1, 1), 63 / 319.), "64 stages, 256 micro-batches");
  sched_free (&s);
}

int main (void)
{
  test_all ();
  test_bubbles ();
  test_rows ();
  test_pictures ();
  test_stage_faults ();
  test_link_faults ();
  test_single_faults ();
  test_second_opinion ();
  test_refusals ();
  test_large ();
  tap_ok (base_live () == 0, "nothing is left behind");
  tap_done ();
  return 0;
}
