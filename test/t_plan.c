/* The planner: the ledgers of known cases, the time-line against closed forms, the search. np: 1 */
#include "tap.h"
#include "opt.h"
#include "plan.h"
#include "sim.h"
#include "step.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static bool near (double x, double y, double by) { return fabs (x - y) <= by * fabs (y); }

static int read_options (struct conf *c, const char *text, struct err *e)
{
  char copy[1024], *argv[64];
  int n = 0;
  snprintf (copy, sizeof copy, "%s", text);
  for (char *t = strtok (copy, " "); t; t = strtok (NULL, " ")) argv[n++] = t;
  conf_default (c);
  return conf_load (c, NULL, n, argv, e);
}

static void options (struct conf *c, const char *text)
{
  struct err e = { 0 };
  if (read_options (c, text, &e)) die ("%s", e.msg);
}

static void machine (struct machine *m, const char *name)
{
  struct err e = { 0 };
  if (machine_load (m, name, &e)) die ("%s", e.msg);
}

/* The plan of TEXT; 0, or -1 with the sentence. */
static int make (struct plan *p, const char *text, const char *where, int gpus, struct err *e)
{
  struct conf c;
  struct machine m;
  memset (p, 0, sizeof *p);
  machine (&m, where);
  return read_options (&c, text, e) ? -1 : plan_make (p, &c, &m, gpus, NULL, e);
}

static void plan (struct plan *p, const char *text, const char *where, int gpus)
{
  struct err e = { 0 };
  if (make (p, text, where, gpus, &e)) die ("%s", e.msg);
}

static int64_t state_of (const struct plan_stage *s)
{
  return s->mem[SPACE_DEVICE][MEM_MASTER] + s->mem[SPACE_DEVICE][MEM_MOMENT];
}

static bool says (const struct plan *p, const char *word)
{
  for (int i = 0; i < p->notes; i++)
    if (strstr (p->note[i], word)) return true;
  return false;
}

#define SEVEN "--model llama2-7b --train.seq_len 4096 "
#define SEVENTY "--model llama2-70b --train.seq_len 4096 "

/* ---- the ledgers of known cases ---- */

static void check_state (void)
{
  static const struct { const char *model; double params, gb; } row[] = { { "llama2-7b", 7e9, 112 }, { "llama2-13b", 13e9, 208 }, { "llama2-70b", 70e9, 1120 } };
  for (int i = 0; i < LEN (row); i++) {
    struct plan p;
    char text[256];
    snprintf (text, sizeof text, "--model %s --train.seq_len 4096 --sharding.grad_dtype bf16 --sharding.reduce_dtype bf16", row[i].model);
    plan (&p, text, "a100-80g-ib200", 64);
    double each = (double) p.rule_state / (double) p.params;
    tap_ok (each == 16 && near (each * row[i].params / 1e9, row[i].gb, 1e-9), "%s: %.0f bytes a parameter, so %.0f GB for %.0fB", row[i].model, each, row[i].gb, row[i].params / 1e9);
    tap_ok (near (64 * (double) state_of (&p.stage[0]), 12 * (double) p.params, 1e-3), "... of which 64 ranks hold masters and moments, 12 bytes a parameter");
    plan_free (&p);
  }
}

static void check_seven (void)
{
  struct plan p, q;
  struct conf c;
  struct machine m;
  struct err e = { 0 };
  plan (&p, SEVEN "--sharding.grad_dtype bf16 --sharding.reduce_dtype bf16 --train.global_batch 32", "a100-80g-ib200", 8);
  tap_ok (p.fits && near (p.rule_rank * 7e9 / (double) p.params, 14e9, 1e-9), "7B on 8: 14 GB of state a GPU (%.2f of %.2fB parameters)", p.rule_rank / 1e9, (double) p.params / 1e9);
  plan_free (&p);
  plan (&p, SEVEN "--train.global_batch 32", "a100-80g-ib200", 8);
  tap_ok (near (p.rule_rank * 7e9 / (double) p.params, 15.75e9, 1e-9), "15.75 GB with fp32 gradients");
  plan_free (&p);

  options (&c, SEVEN "--train.global_batch 32");
  machine (&m, "a100-80g-ib200");
  if (plan_search (&p, &c, &m, 8, &e)) die ("%s", e.msg);
  double full = 0;
  for (int i = 0; i < p.choices; i++) {
    const struct conf *x = &p.choice[i].c;
    if (x->mesh.dp_shard == 8 && x->sharding.strategy == FULL_SHARD) full = MAX (full, p.choice[i].tokens_s);
  }
  tap_ok (full >= 0.97 * p.tokens_s, "7B on 8: dp 8 FULL_SHARD is within 3 %% of the best: %.0f of %.0f tokens/s, %s", full, p.tokens_s, p.choice[0].text);
  if (plan_search (&q, &c, &m, 8, &e)) die ("%s", e.msg);
  bool same = p.choices == q.choices;
  for (int i = 0; i < p.choices && same; i++) same = !strcmp (p.choice[i].text, q.choice[i].text) && p.choice[i].step == q.choice[i].step;
  tap_ok (same, "a search gives the same answer again");
  plan_free (&p);
  plan_free (&q);
}

static void check_rules (void)
{
  struct plan p;
  plan (&p, SEVEN "--train.global_batch 64 --sharding.strategy SHARD_OPT --sharding.reduce_dtype bf16 --sharding.grad_dtype bf16", "a100-80g-ib200", 64);
  tap_ok (near (p.rule_bytes * 7e9 / (double) p.params, 28e9, 0.02), "7B on 64: 2 M (N - 1) / N is 28 GB (%.1f of %.2fB parameters)", p.rule_bytes / 1e9, (double) p.params / 1e9);
  tap_ok (near ((double) p.exact_bytes, p.rule_bytes, 1e-3), "... and that is what SHARD_OPT sends in bf16");
  plan_free (&p);
  plan (&p, SEVEN "--train.global_batch 64 --sharding.prefetch 0", "a100-80g-ib200", 64);
  tap_ok (near ((double) p.exact_bytes, 2 * p.rule_bytes, 0.03), "FULL_SHARD with fp32 gradients sends twice that: %.1f GB", (double) p.exact_bytes / 1e9);
  plan_explain (&p);
  tap_ok (says (&p, "rule of thumb"), "... and the plan says so");
  plan_free (&p);
  plan (&p, SEVENTY "--train.global_batch 64 --recompute.mode full", "a100-80g-ib200", 64);
  tap_ok (near (p.rule_bytes * 70e9 / (double) p.params, 275e9, 0.01), "70B on 64: the rule is 275 GB (%.1f of %.2fB parameters)", p.rule_bytes / 1e9, (double) p.params / 1e9);
  plan_free (&p);
}

static void check_slow (void)
{
  struct plan p;
  plan (&p, SEVEN "--train.global_batch 64 --recompute.mode full", "a100-80g-25gbe", 64);
  plan_explain (&p);
  tap_ok (p.exposed * p.step > 9 && says (&p, "hopeless"), "7B on 64 over 25 GbE is hopeless: %.1f of %.1f s wait for the link", p.exposed * p.step, p.step);
  plan_free (&p);
}

static void check_seventy (void)
{
  struct plan p;
  plan (&p, SEVENTY "--train.global_batch 128 --mesh.dp_shard 4 --mesh.pp 2 --mesh.tp 8 --recompute.mode selective", "a100-80g-ib200", 64);
  int ok = p.fits;
  for (int i = 0; i < 2; i++) ok = ok && state_of (&p.stage[i]) >= 12 * p.stage[i].owned && near ((double) state_of (&p.stage[i]), 12.0 * (double) p.params / 64, 0.02);
  tap_ok (ok, "70B on (4, 2, 8) fits; a GPU has 1/64 of the state, not 1/32: %.1f GB of masters and moments", (double) state_of (&p.stage[0]) / 1e9);
  plan_explain (&p);
  tap_ok (says (&p, "pp cuts the state too"), "... and the plan says what leaving pp out would give");
  plan_free (&p);
}

/* ---- what is refused, what is a disaster ---- */

static void check_tp (void)
{
  struct plan p, q;
  struct err e = { 0 };
  int rc = make (&p, SEVENTY "--mesh.tp 6", "a100-80g-ib200", 48, &e);
  tap_ok (rc && strstr (e.msg, "heads 64"), "tp 6 is refused for the heads: %s", e.msg);
  plan_free (&p);
  e = (struct err) { 0 };
  rc = make (&p, SEVENTY "--mesh.tp 16", "a100-80g-ib200", 64, &e);
  tap_ok (rc && strstr (e.msg, "spans node 0 and node 1"), "tp 16 on nodes of 8 is refused unless asked for");
  plan_free (&p);
  plan (&p, SEVENTY "--train.global_batch 64 --mesh.tp 8 --mesh.pp 8 --recompute.mode selective", "a100-80g-25gbe", 64);
  plan (&q, SEVENTY "--train.global_batch 64 --mesh.tp 8 --mesh.pp 8 --mesh.order pp-tp-dp --mesh.tp_across_nodes true --recompute.mode selective", "a100-80g-25gbe", 64);
  plan_explain (&q);
  tap_ok (q.step > 10 * p.step && says (&q, "tp 8 lies over 8 nodes"), "tp over nodes by 25 GbE: %.0f s a step instead of %.1f", q.step, p.step);
  plan_free (&p);
  plan_free (&q);
  plan (&p, SEVENTY "--train.global_batch 64 --mesh.tp 8 --recompute.mode full", "a100-80g-ib200", 64);
  plan (&q, SEVENTY "--train.global_batch 64 --mesh.tp 8 --mesh.order dp-tp-pp --mesh.tp_across_nodes true --recompute.mode full", "a100-80g-ib200", 64);
  tap_ok (q.step > 1.2 * p.step, "... and by a 200 Gb/s card a GPU: %.1f s instead of %.1f", q.step, p.step);
  plan_free (&p);
  plan_free (&q);
}

static void check_help (void)
{
  struct plan p;
  plan (&p, SEVENTY "--train.global_batch 32 --mesh.tp 8", "a100-80g-ib200", 8);
  plan_help (&p);
  int ok = !p.fits && p.over > 0 && p.least_gpus == 16 && p.choices == 3;
  for (int i = 0; i < p.choices; i++) ok = ok && p.choice[i].fits && p.choice[i].gpus == 16;
  tap_ok (ok, "70B does not fit on 8 of 80 GB; 16 hold it, with three options");
  plan_free (&p);
  plan (&p, SEVEN "--train.global_batch 64 --train.micro_batch 8 --sharding.strategy NO_SHARD", "a100-80g-ib200", 8);
  plan_help (&p);
  ok = !p.fits && p.choices == 3;
  for (int i = 0; i < p.choices; i++) ok = ok && p.choice[i].fits && p.choice[i].gpus == 8;
  tap_ok (ok, "7B as DDP does not fit on 8; three options that do: %s", p.choices ? p.choice[0].text : "none");
  plan_free (&p);
}

/* ---- the time-line ---- */

/* Idle share from the begin to the end of the last backward. */
static double idle (const struct plan *p)
{
  double busy = 0;
  for (int i = 0; i < p->stages; i++)
    for (int k = 0; k < p->stage[i].spans; k++) {
      const struct plan_span *s = &p->stage[i].span[k];
      if (!s->lane && s->act <= ACT_B_WEIGHT) busy += s->end - s->begin;
    }
  return 1 - busy / (p->stages * p->begin_drain);
}

/* Equal stages but for the last norm and the loss: a vocabulary of nothing; links that cost nothing. */
static void check_bubble (void)
{
  struct machine m;
  machine (&m, "a100-80g-ib200");
  m.nvlink = m.nvlink_pair = m.nic_bandwidth = 1e18;
  m.nvlink_latency = m.nic_latency = m.comm_launch = 0;
  m.comm_slows = 1;
  m.launch = 0;
  static const char *const schedule[] = { "gpipe", "1f1b" };
  for (int k = 0; k < LEN (schedule); k++)
    for (int pp = 2; pp <= 8; pp *= 2)
      for (int a = pp; a <= 32; a *= 4) {
        char text[512];
        struct conf c;
        struct plan p;
        struct err e = { 0 };
        snprintf (text, sizeof text, "--model llama2-7b --model.vocab 64 --model.layers 16 --train.seq_len 4096 --mesh.pp %d --mesh.dp_shard 1 --train.global_batch %d --pipeline.schedule %s",
                  pp, a, schedule[k]);
        options (&c, text);
        if (plan_make (&p, &c, &m, pp, NULL, &e)) die ("%s", e.msg);
        double want = (pp - 1.0) / (a + pp - 1), is = idle (&p);
        tap_ok (near (is, want, 0.02), "%s, %d stages, %d micro-batches: idle %.4f, (pp - 1) / (A + pp - 1) = %.4f", schedule[k], pp, a, is, want);
        plan_free (&p);
      }
}

/* A step from few micro-batches is the step. */
static void check_reach (void)
{
  static const char *const text[] = {
    SEVEN "--train.global_batch 256 --recompute.mode full",
    SEVEN "--train.global_batch 256 --mesh.pp 4 --mesh.tp 2",
    SEVEN "--train.global_batch 256 --mesh.pp 4 --mesh.dp_shard 2 --pipeline.schedule interleaved --pipeline.chunks 2 --recompute.mode selective",
    SEVEN "--train.global_batch 256 --mesh.pp 8 --pipeline.schedule zbh1 --recompute.mode selective",
  };
  for (int i = 0; i < LEN (text); i++) {
    struct conf c;
    struct machine m;
    struct plan p, q;
    struct err e = { 0 };
    options (&c, text[i]);
    machine (&m, "a100-80g-ib200");
    if (plan_make (&p, &c, &m, 8, NULL, &e) || plan_make (&q, &c, &m, 8, &(struct plan_want) { .quick = true }, &e)) die ("%s", e.msg);
    tap_ok (p.shown == p.mbs && q.shown < q.mbs && near (q.step, p.step, 0.005), "extrapolated %.4f s, played %.4f s: %s", q.step, p.step, text[i]);
    plan_free (&p);
    plan_free (&q);
  }
}

/* By hand: computation of 2 s, a collective of 3 s behind it beside computation of 1 s, then a wait. */
static void check_wait (void)
{
  const struct sim_item item[] = {
    { .kind = SIM_OP, .seconds = 2 }, { .kind = SIM_RECORD, .arg = 0 }, { .kind = SIM_WAIT, .queue = 1, .arg = 0 },
    { .kind = SIM_COLL, .queue = 1, .op = OP_ALL_GATHER, .group = GROUP_TP, .seconds = 3 }, { .kind = SIM_RECORD, .queue = 1, .arg = 1 },
    { .kind = SIM_OP, .seconds = 1 }, { .kind = SIM_WAIT, .arg = 1 }, { .kind = SIM_OP, .seconds = 4 },
  };
  struct machine m = { .comm_slows = 1 };
  struct sim_stage s = { .item = item, .items = LEN (item), .events = 2 };
  struct err e = { 0 };
  int rc = sim_time (&s, 1, &m, false, &e);
  struct sim_cost c = s.cost[GROUP_TP][OP_ALL_GATHER - OP_COLL_FIRST];
  tap_ok (!rc && s.end == 9 && s.compute == 7 && s.exposed == 2 && s.bubble == 0 && c.busy == 3 && c.exposed == 2, "what a collective hides and what waits for it: end %g, waiting %g", s.end,
          s.exposed);
  xfree (s.span);

  /* Two queues on one link: the second has half of it while the first is there. On two links each has its own. */
  const struct sim_item both[] = { { .kind = SIM_COLL, .queue = 1, .op = OP_ALL_GATHER, .group = GROUP_SHARD, .seconds = 3 },
    { .kind = SIM_COLL, .queue = 2, .op = OP_ALL_GATHER, .group = GROUP_TP, .seconds = 2 } };
  struct sim_stage one = { .item = both, .items = 2 }, apart = { .item = both, .items = 2, .cross[GROUP_SHARD] = true };
  rc = sim_time (&one, 1, &m, false, &e) || sim_time (&apart, 1, &m, false, &e);
  tap_ok (!rc && one.end == 4 && apart.end == 3, "two collectives share a link: end %g, on two links %g", one.end, apart.end);

  /* Two stages: the second gets at 2 + 1 what the first has worked on for 2, and had waited from 0: 2 for the stage, 1 for the link. */
  const struct sim_item first[] = { { .kind = SIM_OP, .seconds = 2 }, { .kind = SIM_RECORD, .arg = 0 }, { .kind = SIM_WAIT, .queue = 1, .arg = 0 },
    { .kind = SIM_COLL, .queue = 1, .op = OP_SEND, .group = GROUP_F_OUT, .seconds = 1 } };
  const struct sim_item second[] = { { .kind = SIM_COLL, .queue = 1, .op = OP_RECV, .group = GROUP_F_IN, .seconds = 1 }, { .kind = SIM_RECORD, .queue = 1, .arg = 0 },
    { .kind = SIM_WAIT, .arg = 0 }, { .kind = SIM_OP, .seconds = 5 } };
  struct sim_stage two[2] = { { .item = first, .items = LEN (first), .events = 1 }, { .item = second, .items = LEN (second), .events = 1 } };
  rc = sim_time (two, 2, &m, false, &e);
  tap_ok (!rc && two[1].end == 8 && two[1].bubble == 2 && two[1].exposed == 1 && two[0].end == 3, "two stages meet: end %g, waiting for the stage %g, for the link %g", two[1].end, two[1].bubble,
          two[1].exposed);
  two[0].items--;   /* a send that never comes */
  for (int i = 0; i < 2; i++) xfree (two[i].span);
  struct sim_stage lost[2] = { { .item = first, .items = LEN (first) - 1, .events = 1 }, { .item = second, .items = LEN (second), .events = 1 } };
  rc = sim_time (lost, 2, &m, false, &e);
  tap_ok (rc && strstr (e.msg, "stage 1 waits for ever"), "a receive without its send is told: %s", e.msg);
  for (int i = 0; i < 2; i++) xfree (lost[i].span);
}

/* ---- the device ---- */

static void check_untouched (void)
{
  struct machine m;
  struct mesh mesh;
  struct dev d;
  struct err e = { 0 };
  int node = 0, status, faults = 0;
  machine (&m, "a100-80g-ib200");
  mesh_virtual (&mesh, &(struct mesh_shape) { .dim = { 1, 1, 1, 1 }, .order = { 0, 1, 2, 3 } }, 0, 8, &node);
  if (sim_open (&d, &m, &mesh, 0, &e)) die ("%s", e.msg);
  for (int s = 0; s < SPACE_N; s++) {
    volatile char *p = dev_reserve (&d, MEM_ACT, s, (int64_t) 1 << 40, &e);
    pid_t child = fork ();
    if (!child) {
      signal (SIGSEGV, SIG_DFL);
      *p = 1;
      _exit (0);
    }
    waitpid (child, &status, 0);
    faults += WIFSIGNALED (status) && WTERMSIG (status) == SIGSEGV;
  }
  tap_ok (faults == SPACE_N, "a terabyte of each space is counted, and touching it faults");
  dev_close (&d);
}

static void check_large (void)
{
  struct plan p;
  struct rusage u;
  plan (&p, "--model llama3.1-405b --train.seq_len 8192 --mesh.tp 8 --mesh.pp 16 --train.global_batch 2048", "h100-sxm-ib400", 16384);
  getrusage (RUSAGE_SELF, &u);
  tap_ok (p.stages == 16 && p.nodes == 2048 && u.ru_maxrss < 1 << 20, "405B on 16,384 GPUs is planned in %ld MB", u.ru_maxrss / 1024);
  plan_free (&p);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  check_state ();
  check_seven ();
  check_rules ();
  check_slow ();
  check_seventy ();
  check_tp ();
  check_help ();
  check_bubble ();
  check_reach ();
  check_wait ();
  check_untouched ();
  check_large ();
  tap_ok (base_live () == 0, "nothing is left behind: %lld blocks", (long long) base_live ());
  tap_done ();
  MPI_Finalize ();
  return 0;
}
