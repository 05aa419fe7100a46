#!/bin/sh
# A launch that is refused at any point of its start leaves the run that is in its folder as it was: options, records, checkpoints, and the run's last word beside its own; a
# launch that stands takes their place. A device that does not open has a watchdog with a folder for its word. Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd)
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat said good/exit*.json | cut -c -400 | sed 's/^/# /'; fi; }
mkdir bin; cp "$here/src/pretrain" bin/pretrain   # a copy: the module of a device is sought beside the program
program=$tmp/bin/pretrain
run () { ranks=$1 dir=$2; shift 2; "${MPIEXEC:-mpiexec}" -n "$ranks" "$program" run.yaml --run.dir "$dir" "$@" >out 2>said </dev/null; rc=$?; }
code () { sed -n 's/.*"code": \([0-9]*\),.*/\1/p' "$1"; }
state () { (cd good && cat config.yaml metrics.jsonl && ls . checkpoints | grep -v '^exit' && cat checkpoints/* model.yaml 2>/dev/null) | cksum; }

seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S2'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 2, keep: 0, log_every: 100, tensorboard: false}
eval: {batches: 0}
train: {seq_len: 16, micro_batch: 1, global_batch: 4, dtype: fp32, steps: 4}
schedule: {warmup: 2, steps: 40}
S2

# ---- a new run: its options are there to be looked at
run 2 new --run.device cuda
ok "$rc $(code new/exit.json) $(grep -c 'device: cuda' new/config.yaml) $(ls new | tr '\n' ' ')" "2 2 1 checkpoints config.yaml exit.json " "a new run that is refused leaves its options and why"
run 2 new --run.device cuda --train.steps 5
ok "$rc $(code new/exit.json) $(grep -c 'steps: 5' new/config.yaml) $(ls new | tr '\n' ' ')" "2 2 1 checkpoints config.yaml exit.json " "and again: those of the last"

# ---- an old one
run 2 good --train.steps 3
cp good/exit.json word; before=$(state)
cp "$here/test/fake_cuda.so" bin/cuda.so
while read -r want wants options; do
  case $wants in
    taken) FAKE_GPUS=0:a,0:b run 2 good $options;;
    none) FAKE_CUDA=none run 2 good $options;;
    *) run 2 good $options;;
  esac
  same=$([ "$(state)" = "$before" ] && echo same)
  ok "$rc $(code good/exit.json) $same $(cmp -s word good/exit.old.json && echo kept)" "$want $want same kept" "refused with $options: $(cut -c -150 said | head -n 1)"
done <<'S2'
2 none --run.device cuda
4 taken --run.device cuda
2 fit --model llama2-70b --model.vocab 32000
2 model --model.dim 32
2 resume --run.resume false
2 file --run.prometheus /no/such/file
S2
run 3 good --mesh.tp 3
ok "$rc $([ "$(state)" = "$before" ] && echo same) $(cmp -s word good/exit.old.json && echo kept)" "2 same kept" "a mesh that cannot be: $(cat said)"
"$program" doctor good >out 2>said; rc=$?
ok "$rc $(grep -c '^good: 3 steps, .*run.prometheus' out) $(grep -c 'its own last word: done$' out)" "2 1 1" "doctor tells both words"

# ---- a device that does not open
FAKE_CUDA=hang run 2 good --run.device cuda --run.watchdog 2
ok "$([ $rc != 0 ] && echo ended) $(code good/exit.json) $(grep -c 'no progress for .* during device' good/exit.json) $([ "$(state)" = "$before" ] && echo same) $(cmp -s word good/exit.old.json && echo kept)" \
   "ended 4 1 same kept" "a device that does not open: $(cut -c -150 said)"

# ---- one that stands
run 2 good --train.steps 4 --run.save_every 1
ok "$rc $(code good/exit.json) $(grep -c 'save_every: 1' good/config.yaml) $(ls good | tr '\n' ' ')$(grep -c . good/metrics.jsonl)" "0 0 1 checkpoints config.yaml exit.json metrics.jsonl metrics.prom 4" \
   "the next launch goes on; its options and its word are the run's"
echo "1..$n"
