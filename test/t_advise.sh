#!/bin/sh
# What a run says of itself when it is slow, by delays put into it: communication above 30 %, which axis and link, and what to change; the rank that all wait for; a GPU that stands
# still in each step (test/fake_nvml.c). Nothing is said of a run that is not. Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd)
prog=$here/src/pretrain
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat said out | sed 's/^/# /' | tail -n 12; fi; }
has () { if grep -q -- "$1" "$2"; then echo yes; else echo no; fi; }

seq 1 5000 >text.txt
"$prog" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >cpu.yaml <<'M'
name: this-cpu
device: cpu
gpu: {name: cores, memory: 4 GB, bandwidth: 10 GB/s, peak_bf16: 20 GFLOP/s, peak_fp32: 7 GFLOP/s}
attention: {forward: 10 GFLOP/s, backward: 10 GFLOP/s}
node: {gpus: 1, nvlink: 1 GB/s}
nic: {name: two tin cans, bandwidth: 1 Gb/s, latency: 2 ms}
comm: {launch: 1 ms}
M
cat >run.yaml <<'R'
model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64, vocab: 257}
data: {train: a.h5}
run: {dir: d, device: cpu, threads: 1, save: false, log_every: 4}
eval: {batches: 0}
mesh: {dp_shard: 1, tp_across_nodes: true}
train: {seq_len: 32, micro_batch: 1, global_batch: 4, dtype: fp32, steps: 8}
R
run () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$prog" run.yaml "$@" >out 2>said </dev/null; rc=$?; }

# Ranks that share cores are another sentence.
cores=$(OMP_NUM_THREADS='' nproc)
if [ "$cores" -ge 2 ]; then
  MPIR_CVAR_NUM_CLIQUES=2 run 2 --mesh.tp 2 --debug.comm_delay_ms 4 --train.steps 4 --run.machine cpu.yaml
  ok "$rc $(has '^pretrain: warning: communication takes [0-9]* % of a step, over 30 % (tp [0-9]* %.*): tp, 2 ranks on 2 nodes, waits for two tin cans; ' said)" "0 yes" "tp over a slow link: $(grep -o 'tp, 2 ranks.*' said)"
  ok "$(grep -c communication said) $(has 'the planner would take .*--mesh.tp 1, 0\.[0-9]* of the time a step$' said)" "1 yes" "and what the planner would change, once"
  options=$(sed -n 's/.*the planner would take \(.*\), 0\..*/\1/p' said)
  run 2 --train.steps 1 $options
  ok "$rc" 0 "what it says can be run: $options"
  run 2 --mesh.tp 2 --debug.comm_delay_ms 4 --train.steps 4
  ok "$rc $(has 'tp, 2 ranks of one node, waits for the memory of a node; .*(by rough figures: run.machine names better ones)$' said)" "0 yes" "without a machine file: $(grep -o 'tp, 2 ranks.*' said)"
  run 2 --mesh.dp_shard 2 --run.dir e --train.global_batch 2 --debug.slow_rank 1 --debug.slow_ms 350
  ok "$rc $(grep -c '^pretrain: warning: rank 1 on [^ ]* is slower than the others: its own work takes \(0\.[3-9]\|[1-9]\.\)[0-9]* s a step' said)" "0 1" "a slow rank: $(grep slower said)"
else
  n=$((n + 1)); echo "ok $n - communication on links # SKIP one core"
fi
run $((2 * cores)) --mesh.dp_shard 0 --run.dir f --train.global_batch 0 --debug.comm_delay_ms 50
ok "$rc $(grep -c warning said) $(has 'ranks share [0-9]* cores*, so most of it is for a turn on a core' out)" "0 0 yes" "more ranks than cores: $(grep 'turn on' out)"
run 1 --run.dir g --debug.slow_rank 0 --debug.slow_ms 300 --train.global_batch 1
ok "$rc $(grep -c . said)" "0 0" "one rank, however slow: nothing"
LD_LIBRARY_PATH=$here/test/nvml run 1 --run.dir h --debug.gpu 0000:01:00.0 --debug.slow_rank 0 --debug.slow_ms 600 --train.global_batch 1 --run.log_every 6 --train.steps 6
ok "$rc $(has 'the GPU of rank 0 on [^ ]* stands still [0-9]* % of the time, every [0-9.]* s (a step takes \(0\.[6-9]\|[1-9]\.\)[0-9]* s): of a step 0 % is waiting for communication, [0-9]* % for data' said)" "0 yes" \
  "a GPU that stands still in each step: $(grep stands said)"
echo "1..$n"
