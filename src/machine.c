#include "config.h"
#include "machine.h"
#include "conf_int.h"
#include "share.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- figures and their units ---- */

enum kind { K_TEXT, K_NUMBER, K_BYTES, K_FLOPS, K_RATE, K_TIME, K_COUNT, K_POINTS };

static const struct { enum kind kind; const char *name; double by; } units[] = {
  { K_BYTES, "B", 1 }, { K_BYTES, "kB", 1e3 }, { K_BYTES, "MB", 1e6 }, { K_BYTES, "GB", 1e9 }, { K_BYTES, "TB", 1e12 },
  { K_BYTES, "KiB", 0x1p10 }, { K_BYTES, "MiB", 0x1p20 }, { K_BYTES, "GiB", 0x1p30 }, { K_BYTES, "TiB", 0x1p40 },
  { K_FLOPS, "FLOP/s", 1 }, { K_FLOPS, "GFLOP/s", 1e9 }, { K_FLOPS, "TFLOP/s", 1e12 }, { K_FLOPS, "PFLOP/s", 1e15 },
  { K_RATE, "B/s", 1 }, { K_RATE, "MB/s", 1e6 }, { K_RATE, "GB/s", 1e9 }, { K_RATE, "TB/s", 1e12 }, { K_RATE, "Mb/s", 1e6 / 8 }, { K_RATE, "Gb/s", 1e9 / 8 },
  { K_TIME, "s", 1 }, { K_TIME, "ms", 1e-3 }, { K_TIME, "us", 1e-6 }, { K_TIME, "ns", 1e-9 },
};

/* One value of kind K; *END: what follows it. */
static bool figure (enum kind k, const char *text, double *v, const char **end)
{
  char *e;
  errno = 0;
  *v = strtod (text, &e);
  if (e == text || errno || !isfinite (*v) || *v < 0) return false;
  e += strspn (e, " ");
  size_t n = strcspn (e, ", ");
  *end = e + n;
  if (!n) return true;
  for (int i = 0; i < LEN (units); i++)
    if (units[i].kind == k && strlen (units[i].name) == n && !strncmp (units[i].name, e, n)) {
      *v *= units[i].by;
      return true;
    }
  return false;
}

/* ---- keys ---- */

#define AT(m) offsetof (struct machine, m)
struct key { const char *name; enum kind kind; size_t at; const char *def; size_t at_count; };   /* def NULL: must be given */
static const struct key keys[] = {
  { "name", K_TEXT, AT (name), NULL, sizeof ((struct machine *) 0)->name },
  { "device", K_TEXT, AT (device), "cuda", sizeof ((struct machine *) 0)->device },
  { "gpu.name", K_TEXT, AT (gpu), NULL, sizeof ((struct machine *) 0)->gpu },
  { "gpu.memory", K_BYTES, AT (memory), NULL },
  { "gpu.outside", K_BYTES, AT (outside), "0" },
  { "gpu.bandwidth", K_RATE, AT (bandwidth), NULL },
  { "gpu.stream", K_NUMBER, AT (stream), "0.85" },
  { "gpu.launch", K_TIME, AT (launch), "3 us" },
  { "gpu.units", K_NUMBER, AT (units), "132" },
  { "gpu.peak_bf16", K_FLOPS, AT (peak[DT_BF16]), NULL },
  { "gpu.peak_fp32", K_FLOPS, AT (peak[DT_F32]), NULL },
  { "gpu.peak_fp8", K_FLOPS, AT (peak_fp8), "0" },
  { "gemm.best", K_NUMBER, AT (gemm.best), "0.75" },
  { "gemm.half_k", K_NUMBER, AT (gemm.half_k), "64" },
  { "gemm.half_tiles", K_NUMBER, AT (gemm.half_tiles), "0.1" },
  { "gemm.points", K_POINTS, AT (gemm.point), "", AT (gemm.points) },
  { "gemm.points_fp8", K_POINTS, AT (gemm.point_fp8), "", AT (gemm.points_fp8) },
  { "attention.forward", K_FLOPS, AT (attn.forward), NULL },
  { "attention.backward", K_FLOPS, AT (attn.backward), NULL },
  { "attention.head64", K_NUMBER, AT (attn.head64), "0.8" },
  { "attention.half_seq", K_NUMBER, AT (attn.half_seq), "256" },
  { "node.gpus", K_COUNT, AT (gpus), NULL },
  { "node.nvlink", K_RATE, AT (nvlink), NULL },
  { "node.nvlink_pair", K_RATE, AT (nvlink_pair), "0" },
  { "node.nvlink_half", K_BYTES, AT (nvlink_half), "0" },
  { "node.nvlink_latency", K_TIME, AT (nvlink_latency), "2 us" },
  { "node.pcie", K_RATE, AT (pcie), "25 GB/s" },
  { "node.memory", K_BYTES, AT (host_memory), "1 TB" },
  { "node.host_bandwidth", K_RATE, AT (host_bandwidth), "200 GB/s" },
  { "nic.name", K_TEXT, AT (nic), "", sizeof ((struct machine *) 0)->nic },
  { "nic.count", K_COUNT, AT (nics), "0" },
  { "nic.bandwidth", K_RATE, AT (nic_bandwidth), NULL },
  { "nic.share", K_NUMBER, AT (nic_share), "0.9" },
  { "nic.latency", K_TIME, AT (nic_latency), "5 us" },
  { "comm.launch", K_TIME, AT (comm_launch), "8 us" },
  { "comm.slows", K_NUMBER, AT (comm_slows), "1.05" },
  { "step.host", K_TIME, AT (step_host), "0" },
  { "system", K_NUMBER, AT (system), "1" },
};

static const char *const wanted[] = { [K_TEXT] = "text", [K_NUMBER] = "a number", [K_BYTES] = "bytes, such as 80 GiB", [K_FLOPS] = "a rate, such as 312 TFLOP/s",
  [K_RATE] = "a bandwidth, such as 400 Gb/s or 230 GB/s", [K_TIME] = "a time, such as 5 us", [K_COUNT] = "a whole number",
  [K_POINTS] = "a list of \"M N K RATE\", such as \"8192 8192 8192 780 TFLOP/s\"" };

/* "M N K RATE", commas between. */
static bool read_points (const char *text, struct gemm_point *p, int *n)
{
  for (*n = 0; *text; ++*n) {
    char *e = (char *) text;
    const char *end;
    double *const to[] = { &p[*n].m, &p[*n].n, &p[*n].k };
    if (*n == MACHINE_POINTS) return false;
    for (int i = 0; i < LEN (to); i++) {
      *to[i] = strtod (text, &e);
      if (e == text || !(*to[i] >= 1)) return false;
      text = e;
    }
    if (!figure (K_FLOPS, text, &p[*n].rate, &end) || !(p[*n].rate > 0)) return false;
    text = end + strspn (end, " ,");
  }
  return true;
}

static bool set (struct machine *m, const struct key *k, const char *text)
{
  char *at = (char *) m + k->at;
  double v;
  const char *end;
  if (k->kind == K_TEXT) return snprintf (at, k->at_count, "%s", text) < (int) k->at_count;
  if (k->kind == K_POINTS) return read_points (text, (struct gemm_point *) at, (int *) ((char *) m + k->at_count));
  if (!figure (k->kind, text, &v, &end) || *end) return false;
  if (k->kind == K_COUNT && (v != floor (v) || v > 1 << 20)) return false;
  if (k->kind == K_COUNT) *(int *) at = (int) v;
  else *(double *) at = v;
  return true;
}

static int key_find (const char *name)
{
  for (int i = 0; i < LEN (keys); i++)
    if (!strcmp (keys[i].name, name)) return i;
  return -1;
}

/* The settings of one file onto M; GIVEN[key]: what some file gave. */
static int apply (struct machine *m, const struct settings *s, bool *given, struct err *e)
{
  int seen[LEN (keys)] = { 0 };
  for (int i = 0; i < s->n; i++) {
    const struct setting *t = &s->at[i];
    int k = key_find (t->key), near = 0;
    if (!strncmp (t->key, "source", 6)) continue;
    if (k < 0) {
      for (int j = 1; j < LEN (keys); j++)
        if (key_distance (t->key, keys[j].name) < key_distance (t->key, keys[near].name)) near = j;
      return user_err (e, "%s line %d: %s is no key of a machine; the nearest is %s", s->source, t->line, t->key, keys[near].name);
    }
    if (seen[k]) return user_err (e, "%s line %d: %s is given a second time, first at line %d", s->source, t->line, t->key, seen[k]);
    if (t->null || !set (m, &keys[k], t->value))
      return user_err (e, "%s line %d: %s expects %s, not `%.100s`", s->source, t->line, t->key, wanted[keys[k].kind], t->null ? "" : t->value);
    seen[k] = t->line;
    given[k] = true;
  }
  return 0;
}

static int fill (struct machine *m, const bool *given, const char *source, struct err *e)
{
  for (int k = 0; k < LEN (keys); k++) {
    if (given[k]) continue;
    if (!keys[k].def) return user_err (e, "%s: the machine lacks %s (%s)", source, keys[k].name, wanted[keys[k].kind]);
    must (set (m, &keys[k], keys[k].def), "default of %s", keys[k].name);
  }
  return 0;
}

/* What a product or a division later on relies on. */
static int check (struct machine *m, const char *source, struct err *e)
{
  const struct { const char *name; double v; } positive[] = { { "gpu.memory", m->memory }, { "gpu.bandwidth", m->bandwidth }, { "gpu.stream", m->stream },
    { "gpu.units", m->units }, { "gpu.peak_bf16", m->peak[DT_BF16] }, { "gpu.peak_fp32", m->peak[DT_F32] }, { "gemm.best", m->gemm.best },
    { "attention.forward", m->attn.forward }, { "attention.backward", m->attn.backward }, { "attention.head64", m->attn.head64 }, { "node.gpus", m->gpus }, { "node.nvlink", m->nvlink },
    { "node.pcie", m->pcie }, { "node.host_bandwidth", m->host_bandwidth }, { "nic.bandwidth", m->nic_bandwidth }, { "nic.share", m->nic_share }, { "system", m->system } };
  for (int i = 0; i < LEN (positive); i++)
    if (!(positive[i].v > 0)) return user_err (e, "%s: %s must be above 0", source, positive[i].name);
  if (m->comm_slows < 1) return user_err (e, "%s: comm.slows must be 1 or more", source);
  if (m->outside >= m->memory) return user_err (e, "%s: gpu.outside leaves nothing of gpu.memory", source);
  if (strcmp (m->device, "cuda") && strcmp (m->device, "cpu")) return user_err (e, "%s: device must be cuda or cpu, not `%s`", source, m->device);
  if (!m->nics) m->nics = m->gpus;
  if (!(m->nvlink_pair > 0)) m->nvlink_pair = m->nvlink;
  if (!m->nic[0]) snprintf (m->nic, sizeof m->nic, "network %g Gb/s", m->nic_bandwidth * 8 / 1e9);
  return 0;
}

/* ---- files ---- */

struct names { char all[1200], nearest[128]; const char *want; int best; };

static void add_name (void *ctx, const char *name)
{
  struct names *s = ctx;
  size_t at = strlen (s->all);
  int d = key_distance (s->want, name);
  char padded[160], known[1204];
  snprintf (padded, sizeof padded, ", %.120s, ", name);
  snprintf (known, sizeof known, ", %.1190s, ", s->all);
  if (s->all[0] && strstr (known, padded)) return;   /* two places have it */
  if (at < 1000) snprintf (s->all + at, sizeof s->all - at, "%s%.120s", at ? ", " : "", name);
  if (s->best < 0 || d < s->best) s->best = d, snprintf (s->nearest, sizeof s->nearest, "%.120s", name);
}

static int unknown (const char *name, struct err *e)
{
  struct names s = { .want = name, .best = -1 }, net = { .want = name, .best = -1 };
  share_each ("machines", ".yaml", add_name, &s);
  share_each ("networks", ".yaml", add_name, &net);
  if (!s.all[0]) return user_err (e, "no machine `%.200s`, and none are installed: TESSERA_SHARE may name their folder", name);
  return user_err (e, "no machine `%.200s`; the nearest is %s; known are %s, alone or with -NETWORK of %s (such as h100-sxm-ib400), or a path to a "
                   ".yaml file", name, s.nearest, s.all, net.all[0] ? net.all : "none");
}

/* Short names of the machines that people mean by them. */
static const struct { const char *name, *file; } short_name[] = { { "a100", "a100-80g" }, { "h100", "h100-sxm" } };

static bool gpu_file (const char *name, size_t n, char *path, size_t size)
{
  char file[256];
  for (int i = 0; i < LEN (short_name); i++)
    if (strlen (short_name[i].name) == n && !strncmp (short_name[i].name, name, n)) name = short_name[i].file, n = strlen (name);
  snprintf (file, sizeof file, "%.*s.yaml", (int) MIN (n, 200), name);
  return share_find ("machines", file, path, size);
}

/* NAME is a machine, or GPU-NETWORK: the machine, then what the network's file says instead. *NET: its path, or empty. */
static bool find (const char *name, char *path, char *net, size_t size)
{
  net[0] = 0;
  if (gpu_file (name, strlen (name), path, size)) return true;
  for (const char *s = name + strlen (name); s > name; s--) {
    char file[256];
    if (*s != '-') continue;
    snprintf (file, sizeof file, "%.200s.yaml", s + 1);
    if (gpu_file (name, (size_t) (s - name), path, size) && share_find ("networks", file, net, size)) return true;
  }
  return false;
}

static int load_file (struct machine *m, const char *path, const char *below, bool *given, struct err *e)
{
  struct settings s = { 0 };
  int rc = yaml_settings (&s, path, "", e);
  for (int i = 0; i < s.n && !rc && below; i++)
    if (strncmp (s.at[i].key, below, strlen (below)) && strncmp (s.at[i].key, "source", 6))
      rc = user_err (e, "%s line %d: %s: a network has only keys that begin with %s", s.source, s.at[i].line, s.at[i].key, below);
  rc = rc || apply (m, &s, given, e);
  settings_free (&s);
  return rc ? -1 : 0;
}

int machine_load (struct machine *m, const char *name, struct err *e)
{
  char net[sizeof m->path] = "";
  bool given[LEN (keys)] = { 0 };
  memset (m, 0, sizeof *m);
  const char *dot = strrchr (name, '.');
  bool path = strchr (name, '/') || (dot && (!strcmp (dot, ".yaml") || !strcmp (dot, ".yml")));
  if (path) snprintf (m->path, sizeof m->path, "%.1000s", name);
  if (path ? access (m->path, R_OK) : !find (name, m->path, net, sizeof net)) return unknown (name, e);
  if (load_file (m, m->path, NULL, given, e) || (*net && load_file (m, net, "nic.", given, e))) return -1;
  if (*net) snprintf (m->name, sizeof m->name, "%s", name);
  return fill (m, given, m->path, e) || check (m, m->path, e) ? -1 : 0;
}

/* ---- one GPU ---- */

double machine_peak (const struct machine *m, enum dtype t)
{
  if (t == DT_F32 || t == DT_F64) return m->peak[DT_F32];
  if (t == DT_BF16) return m->peak[DT_BF16];
  return m->peak_fp8 > 0 ? m->peak_fp8 : m->peak[DT_BF16];
}

/* Rate by the formula: the inner length hides the start of a tile's pipeline, many tiles fill the units evenly. */
static double formula (const struct machine *m, double rows, double cols, double k, enum dtype t)
{
  double waves = rows * cols / (128.0 * 256.0 * m->units);
  if (waves < 1) waves = MIN (1, waves * MAX (1, k / 1024));   /* few tiles and a long inner length: it is split over units, up to one wave */
  return machine_peak (m, t) * m->gemm.best * k / (k + m->gemm.half_k) * waves / (waves + m->gemm.half_tiles);
}

/* Measured products correct the formula: by their own error where they lie, by none far away. A product and its transpose cost the same: m and n are compared sorted. */
static double corrected (const struct machine *m, double rows, double cols, double k, enum dtype t)
{
  bool fp8 = t != DT_F32 && t != DT_BF16 && t != DT_F64;
  const struct gemm_point *p = fp8 ? m->gemm.point_fp8 : m->gemm.point;
  int n = fp8 ? m->gemm.points_fp8 : t == DT_BF16 ? m->gemm.points : 0;
  double sum = 0, weight = 1, base = formula (m, rows, cols, k, t);   /* 1: the formula's own */
  for (int i = 0; i < n; i++) {
    double a = log (MIN (rows, cols) / MIN (p[i].m, p[i].n)), b = log (MAX (rows, cols) / MAX (p[i].m, p[i].n)), c = log (k / p[i].k);
    double d = (a * a + b * b + c * c) / 0.5, w = 1 / (d * d + 1e-6);
    sum += w * log (p[i].rate / formula (m, p[i].m, p[i].n, p[i].k, t));
    weight += w;
  }
  return MIN (base * exp (sum / weight), machine_peak (m, t));
}

double machine_gemm (const struct machine *m, double rows, double cols, double k, enum dtype t, double bytes)
{
  if (!(rows > 0 && cols > 0 && k > 0)) return 0;
  return MAX (2 * rows * cols * k / corrected (m, rows, cols, k, t), bytes / (m->bandwidth * m->stream)) + m->launch;
}

double machine_attention (const struct machine *m, double flops, double keys, double head_dim, bool backward)
{
  double rate = (backward ? m->attn.backward : m->attn.forward) * keys / (keys + m->attn.half_seq);
  if (head_dim < 128) rate *= m->attn.head64 + (1 - m->attn.head64) * MAX (0, (head_dim - 64) / 64);
  return flops / rate + m->launch;
}

double machine_stream (const struct machine *m, double bytes) { return bytes / (m->bandwidth * m->stream) + m->launch; }

/* ---- links ---- */

const char *machine_link (const struct machine *m, bool cross)
{
  return cross ? m->nic : strcmp (m->device, "cpu") ? "NVLink" : "memory";
}

/* What a group's ranks on one node have of the node's cards together, while SHARERS groups leave the node. */
static double through (const struct machine *m, int sharers, int most)
{
  double node = m->nics * m->nic_bandwidth * m->nic_share;
  return MIN (node / MAX (sharers, 1), most * m->nic_bandwidth * m->nic_share * MAX (1.0, (double) m->nics / m->gpus));
}

/* Seconds that BYTES take which each of N GPUs of a node sends to the others. */
static double inside (const struct machine *m, int n, double bytes)
{
  double of_two = m->nvlink_pair > 0 ? m->nvlink_pair : m->nvlink, way = n > 2 && m->gpus > 2 ? MIN (1, log2 (n / 2.0) / log2 (m->gpus / 2.0)) : 0;
  double rate = of_two + (m->nvlink - of_two) * way, filling = m->nvlink_half > 0 ? m->nvlink_half * bytes / (bytes + m->nvlink_half / 16) : 0;
  return (bytes + filling) / rate;
}

/* A ring passes all that a rank sends over each of its links, also over the one between nodes, which the ranks of a node drive together. Small messages cost the way around;
   an all-reduce may go up and down two trees instead, whose depth is a logarithm. */
double machine_collective (const struct machine *m, int n, int most, int span, int sharers, double bytes, int rounds, bool *tree)
{
  bool cross = span > 1;
  double slow = inside (m, most, bytes), outside = cross ? bytes / through (m, sharers, most) : 0;
  double move = MAX (most > 1 ? slow : 0, outside);
  double inner = most > 1 ? m->nvlink_latency : 0, hops = (n - span) * inner + span * (cross ? m->nic_latency : inner);
  double ring = rounds * hops * (n - 1) / n, deep = log2 (span), trees = 2 * (deep * m->nic_latency + (most - 1) * inner);
  *tree = rounds == 2 && trees < ring;
  return move + (*tree ? trees : ring);
}

double machine_send (const struct machine *m, bool cross, int sharers, double bytes)
{
  if (!cross) return bytes / m->nvlink + m->nvlink_latency;
  return bytes / through (m, sharers, 1) + m->nic_latency;
}
