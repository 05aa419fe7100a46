/* machine: what a cluster can do, read from a YAML file (share/machines/NAME.yaml, or a path). Pure but for the file system.

   The planner's sim device prices every operation by these figures and by nothing else. A figure is a number, or a number and a unit ("80 GB", "312 TFLOP/s",
   "200 Gb/s", "4 us"; kB MB GB TB are powers of ten, KiB MiB GiB TiB of two, Gb are bits); a plain number is in bytes, FLOP/s, bytes/s or seconds.
   A key that is not in the table of machine.c, a figure of another kind, or a key that is missing and has no default is the user's mistake. Keys:

     name        how to call it
     device      cuda or cpu: the device whose limits (alignment, workspace) a plan stands for; default cuda
     source.*    where the figures are from: a mapping of texts (never interpreted; every file has it)

     gpu.name            of the accelerator
     gpu.memory          bytes that a program can plan with, used or not (what the driver tells, not what the label says)
     gpu.outside         bytes of them that arenas cannot have: contexts, code; each group's communicator comes on top (dev_limits.h); default: the device's
     gpu.bandwidth       memory bandwidth by the data sheet
     gpu.stream          the share of it that elementwise kernels reach; default 0.85
     gpu.launch          the least time between two kernels; default 3 us
     gpu.peak_bf16, gpu.peak_fp32, gpu.peak_fp8     dense FLOP/s by the data sheet; peak_fp8 default 0 (none)

     gemm.best           share of the peak that large products reach; default 0.75
     gemm.half_k         inner length at which half of that is reached, default 64: k / (k + half_k)
     gemm.half_tiles     waves of 128 x 256 tiles over all units (gpu.units) at which half of it is reached, default 0.1: w / (w + half_tiles)
     gpu.units           multiprocessors; default 132
     gemm.points         measured products, a list of "M N K RATE" (bf16). A product near one of them (in log m, n, k) takes its rate, one far away the formula's
     gemm.points_fp8     the same for fp8

     attention.forward, attention.backward          FLOP/s over the visible pairs of query and key, head 128, long sequences: 2 products forward, 4 backward
                         (published figures count 5, the scores made again: take 0.8 of them)
     attention.head64    factor for heads of 64; default 0.8
     attention.half_seq  keys at which half of it is reached; default 256: s / (s + half_seq)

     node.gpus           GPUs a node
     node.nvlink         bandwidth that collectives reach inside a node, a GPU and direction ("bus bandwidth" of nccl-tests); one GPU a node: any
     node.nvlink_pair    the same between two GPUs, where it is less; groups between two and node.gpus lie between (by the logarithm of their size); default: node.nvlink
     node.nvlink_half    bytes sent at which half of the bandwidth is reached (a collective's kernels fill the links only after a while); far below it nothing is added; default 0
     node.nvlink_latency of one hop; default 2 us
     node.pcie           host <-> device, a GPU and direction; default 25 GB/s
     node.memory         host memory of a node; default 1 TB
     node.host_bandwidth host memory's, all ranks together; default 200 GB/s

     nic.count           network cards a node; default: one a GPU
     nic.bandwidth       each card's line rate, a direction
     nic.share           of the line rate that collectives reach; default 0.9
     nic.latency         of one hop between nodes; default 5 us
     nic.name            how to call the link: "InfiniBand 200 Gb/s"; default: the bandwidth

     comm.launch         time that a collective takes before the first byte moves; default 8 us
     comm.slows          computation beside a collective takes so many times as long (a collective's kernels hold multiprocessors); default 1.05
     step.host           seconds a step that no device is busy (the loop, the data); default 0
     system              one factor on all computing time, for systems other than this program; default 1 */
#ifndef MACHINE_H
#define MACHINE_H
#include "base.h"
#include "dtype.h"

enum { MACHINE_POINTS = 40 };
struct gemm_point { double m, n, k, rate; };   /* rate: FLOP/s */

struct machine {
  char name[128], path[1100], device[16], gpu[128], nic[128];   /* gpu, nic: names */
  double memory, outside, bandwidth, stream, launch, units;
  double peak[DT_N];                                    /* FLOP/s by type of the operands; 0: cannot */
  double peak_fp8;
  struct { double best, half_k, half_tiles; struct gemm_point point[MACHINE_POINTS], point_fp8[MACHINE_POINTS]; int points, points_fp8; } gemm;
  struct { double forward, backward, head64, half_seq; } attn;
  int gpus;
  double nvlink, nvlink_pair, nvlink_half, nvlink_latency, pcie, host_memory, host_bandwidth;
  int nics;
  double nic_bandwidth, nic_share, nic_latency;
  double comm_launch, comm_slows, step_host, system;
};

/* NAME: a file of share/machines without .yaml (with the network that such machines usually have), or the same and -NETWORK, a file of share/networks whose keys
   nic.* take the place of the machine's (h100-sxm-25gbe); a100 and h100 are short for a100-80g and h100-sxm; or a path with a slash or an ending .yaml. 0, or -1 with the sentence (line, key, nearest right name; all known names
   where there is no such machine). */
int machine_load (struct machine *m, const char *name, struct err *e);

/* Seconds of one GPU. */
double machine_gemm (const struct machine *m, double rows, double cols, double k, enum dtype t, double bytes);   /* bytes: read and written */
double machine_attention (const struct machine *m, double flops, double keys, double head_dim, bool backward);   /* keys: a sequence's */
double machine_stream (const struct machine *m, double bytes);                                                  /* elementwise work */
double machine_peak (const struct machine *m, enum dtype t);

/* A collective of N ranks that lie MOST on a node (at most), SPAN nodes in all, while SHARERS groups like it leave each node through its cards at once (0: none does).
   BYTES: what a rank sends in a ring (coll_bytes). ROUNDS: 1 gather or scatter, 2 all-reduce. *tree: a tree was faster. Seconds without comm.launch. */
double machine_collective (const struct machine *m, int n, int most, int span, int sharers, double bytes, int rounds, bool *tree);
/* BYTES from one rank to another while SHARERS ranks of the node send through its cards (CROSS) at once. */
double machine_send (const struct machine *m, bool cross, int sharers, double bytes);
/* How to call the link: "NVLink", the network's name, or "memory" where GPUs are none. */
const char *machine_link (const struct machine *m, bool cross);
#endif
