/* Machine files: all that come with the program load, compose with every network, say where each figure is from; mistakes are named. np: 1 */
#include "tap.h"
#include "conf_int.h"
#include "machine.h"
#include "share.h"
#include "sim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "t_machine.tmp.yaml"

static bool near (double a, double b) { return fabs (a - b) <= 1e-9 * fabs (b); }

/* Each section of a file has a word of its own under source. */
static bool sourced (const char *folder, const char *name)
{
  char file[256], path[1024];
  struct settings s = { 0 };
  struct err e = { 0 };
  bool good = true;
  snprintf (file, sizeof file, "%s.yaml", name);
  if (!share_find (folder, file, path, sizeof path) || yaml_settings (&s, path, "", &e)) return false;
  for (int i = 0; i < s.n; i++) {
    char key[128];
    size_t n = strcspn (s.at[i].key, ".");
    const char *section = !strncmp (s.at[i].key, "node", n) ? "nvlink" : s.at[i].key;
    if (!s.at[i].key[n] || !strncmp (s.at[i].key, "source", n) || !strncmp (s.at[i].key, "comm", n)) continue;
    if (section != s.at[i].key) n = strlen (section);
    snprintf (key, sizeof key, "source.%.*s", (int) n, section);
    bool has = false;
    for (int k = 0; k < s.n; k++) has |= !strcmp (s.at[k].key, key) && strlen (s.at[k].value) > 20;
    if (!has) fprintf (stderr, "# %s: no %s for %s\n", file, key, s.at[i].key);
    good &= has;
  }
  settings_free (&s);
  return good;
}

static const char *nets[16];
static int net_count;
static void one_net (void *ctx, const char *name)
{
  (void) ctx;
  for (int i = 0; i < net_count; i++) if (!strcmp (nets[i], name)) return;
  tap_ok (sourced ("networks", name), "network %s says where its figures are from", name);
  nets[net_count++] = xstrdup (name, "test");
}

static int seen;
static void one_machine (void *ctx, const char *name)
{
  struct machine m, n;
  struct err e = { 0 };
  (void) ctx;
  seen++;
  tap_ok (!machine_load (&m, name, &e) && m.gpus == 8 && !strcmp (m.device, "cuda") && m.nics == 8, "machine %s", name);
  tap_ok (sourced ("machines", name), "%s says where its figures are from", name);
  bool good = true;
  for (int i = 0; i < net_count; i++) {
    char both[256];
    snprintf (both, sizeof both, "%s-%s", name, nets[i]);
    good &= !machine_load (&n, both, &e) && !strcmp (n.name, both) && n.memory == m.memory && n.attn.forward == m.attn.forward && n.nic_latency > 0;
  }
  if (*e.msg) fprintf (stderr, "# %s\n", e.msg);
  tap_ok (good, "%s composes with each of %d networks", name, net_count);
  tap_ok (m.memory < 200e9 && m.memory > 79e9 && m.nvlink < 900e9 && m.peak[DT_BF16] > 2e14 && machine_gemm (&m, 8192, 8192, 8192, DT_BF16, 0) > 4e-4,
          "%s: figures of the right size", name);
}

/* Bus bandwidths measured between two H200 (bench/RESULTS): the file's curve lies on them; eight GPUs reach more, and no size makes more bytes quicker. */
static void check_pair (void)
{
  static const struct { double bytes, rate; } at[] = { { 0x1p29, 259e9 }, { 0x1p29, 263e9 }, { 0x1p25, 180e9 }, { 0x1p25, 178e9 } };   /* sent by each: half of 1 GiB and of 64 MiB */
  struct machine m;
  struct err e = { 0 };
  bool tree, ok = !machine_load (&m, "h200", &e), up = true;
  for (int i = 0; i < LEN (at); i++) {
    double is = at[i].bytes / (m.comm_launch + machine_collective (&m, 2, 2, 1, 0, at[i].bytes, 1, &tree));
    ok = ok && is > 0.97 * at[i].rate && is < 1.03 * at[i].rate;
    if (!ok) fprintf (stderr, "# %g bytes: %g, measured %g\n", at[i].bytes, is, at[i].rate);
  }
  tap_ok (ok, "two H200: a collective's bandwidth by size is what was measured");
  for (double b = 1; b < 1e10; b *= 1.5)
    for (int n = 2; n <= 8; n++)
      up = up && machine_collective (&m, n, n, 1, 0, b, 1, &tree) < machine_collective (&m, n, n, 1, 0, 1.5 * b, 1, &tree)
           && (b < 1e9 || n == 8 || machine_collective (&m, n + 1, n + 1, 1, 0, b, 1, &tree) < machine_collective (&m, n, n, 1, 0, b, 1, &tree));
  tap_ok (up, "more bytes take longer, more GPUs share the links better");
}

/* cuDNN on one H200, TFLOP/s as such figures count: 2 products forward, 5 backward. The planner's time, from its own count of products, is what was measured. */
static void check_attention (void)
{
  static const struct { int64_t batch, heads, seq, head_dim; double forward, backward; } at[] = {
    { 4, 32, 4096, 128, 595, 474 }, { 2, 32, 8192, 128, 628, 506 }, { 4, 32, 4096, 64, 433, 378 } };
  struct machine m;
  struct err e = { 0 };
  bool ok = !machine_load (&m, "h200", &e);
  for (int i = 0; i < LEN (at); i++) {
    struct op_attn f = { .batch = at[i].batch, .sq = at[i].seq, .sk = at[i].seq, .heads = at[i].heads, .kv_heads = at[i].heads, .head_dim = at[i].head_dim, .t = DT_BF16 };
    struct op there = { .kind = OP_ATTN, .attn = f }, back = { .kind = OP_ATTN_BWD, .attn_bwd = { .f = f } };
    double product = dev_flops (&there) / 2, forward = sim_price (&m, &there, false, false), backward = sim_price (&m, &back, false, false);
    ok = ok && fabs (forward * at[i].forward * 1e12 / (2 * product) - 1) < 0.07 && fabs (backward * at[i].backward * 1e12 / (5 * product) - 1) < 0.07;
    if (!ok) fprintf (stderr, "# seq %g: forward %g, backward %g TFLOP/s\n", (double) at[i].seq, 2e-12 * product / forward, 5e-12 * product / backward);
  }
  tap_ok (ok, "one H200: attention takes as long as was measured, forward and backward");
}

static void refused (const char *name, const char *text, const char *words)
{
  struct machine m;
  struct err e = { 0 };
  char copy[256];
  if (text) {
    FILE *f = fopen (FILE_NAME, "w");
    fputs (text, f);
    fclose (f);
  }
  int good = machine_load (&m, name, &e) == -1;
  snprintf (copy, sizeof copy, "%s", words);
  for (char *w = strtok (copy, "|"); w; w = strtok (NULL, "|")) good &= strstr (e.msg, w) != NULL;
  if (!good) fprintf (stderr, "# `%s` is not `%s`\n", e.msg, words);
  unlink (FILE_NAME);
  tap_ok (good, "refused: %s %.40s", name, words);
}

int main (int argc, char **argv)
{
  MPI_Init (&argc, &argv);
  struct machine m;
  struct err e = { 0 };
  share_each ("networks", ".yaml", one_net, NULL);
  share_each ("machines", ".yaml", one_machine, NULL);
  check_pair ();
  check_attention ();
  tap_ok (seen >= 5 && net_count >= 4, "%d machines, %d networks", seen, net_count);
  tap_ok (!machine_load (&m, "a100-80g-25gbe", &e) && m.nics == 1 && near (m.nic_bandwidth, 3.125e9) && strstr (m.nic, "25 Gb/s"), "25 Gb/s is 3.125 GB/s, one card a node");
  tap_ok (!machine_load (&m, "a100-80g", &e) && near (m.nic_bandwidth, 25e9) && near (m.bandwidth, 2039e9) && near (m.nic_latency, 5e-6)
          && near (m.memory, 79.15 * 0x1p30), "units of the a100's figures");
  tap_ok (!machine_load (&m, "h100-ib400", &e) && strstr (m.gpu, "H100-SXM5") && near (m.nic_bandwidth, 50e9), "h100 is short for h100-sxm");
  refused ("h100-ib4000", NULL, "h100-ib4000|h100-sxm|ib400|a path");
  refused (FILE_NAME, "name: x\ngpu: {memroy: 1 GB}\n", FILE_NAME " line 2|gpu.memroy|gpu.memory");
  refused (FILE_NAME, "name: x\ngpu: {memory: 1 GB/s}\n", "line 2|gpu.memory|bytes");
  refused (FILE_NAME, "name: x\ngpu: {memory: 1 GB}\n", "lacks gpu.");
  tap_done ();
  MPI_Finalize ();
}
