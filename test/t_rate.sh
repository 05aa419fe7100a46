#!/bin/sh
# The learning rate is the step's alone: a run that is stopped and resumed has the same rates as one that is not, and a changed
# optimizer.lr holds for all that follows.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=120
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
seq 1 600 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >log 2>&1 || { cat log; echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<X
model: {dim: 16, layers: 1, heads: 2, ffn: 16, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 0, log_every: 100}
eval: {batches: 0}
train: {seq_len: 16, micro_batch: 1, global_batch: 1, dtype: fp32}
optimizer: {lr: 1e-3}
schedule: {warmup: 10, min_lr: 1e-5, steps: 60}
X
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; fi; }
run () {
  dir=$1 steps=$2; shift 2
  "${MPIEXEC:-mpiexec}" -n 1 "$program" run.yaml --run.dir "$dir" --train.steps "$steps" "$@" >log 2>&1 </dev/null || cat log
}
rates () { sed -n 's/.*"step":\([0-9]*\),.*"lr":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
losses () { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }

run whole 60
for k in 5 10 57 60; do run parts $k; done
ok "$(rates whole | wc -l)" 60 "a run of 60 steps"
ok "$(rates whole | awk '$1 <= 10 { printf "%.12g ", $2 }')" \
   "0.0001 0.0002 0.0003 0.0004 0.0005 0.0006 0.0007 0.0008 0.0009 0.001 " "warm-up from the first step on"
ok "$(rates parts)" "$(rates whole)" "stopped at 5, 10 and 57: the same rates"
ok "$(losses parts)" "$(losses whole)" "and the same losses"
run changed 5
run changed 12 --optimizer.lr 2e-3
ok "$(rates changed | awk '$1 == 5 || $1 == 6 || $1 == 10 { printf "%.12g ", $2 }')" "0.0005 0.0012 0.002 " \
   "another optimizer.lr on resuming holds for each step from there"
echo "1..$n"
