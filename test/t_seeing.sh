#!/bin/sh
# What a run shows: event files that TensorBoard reads, a text file for Prometheus, the state of GPUs by a fake NVML (test/fake_nvml.c), the line on a terminal. Prints TAP.
# TensorBoard itself judges where ${TENSORBOARD_PYTHON:-python3} has it.
set -u
srcdir=$(cd "${srcdir:-.}" && pwd)
here=$(cd "${builddir:-.}" && pwd)
prog=$here/src/pretrain
py=${PYTHON:-/usr/bin/python3} judge=${TENSORBOARD_PYTHON:-python3}
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said out | tail -n 12; fi; }
# A command that prints points without numbers; that it ends well is one more.
points () { "$@" >points 2>said || echo "not ok - $(tail -n 1 said)" >>points; sed "s/^/# /" said | grep -v '^# *$' | tail -n 3; while IFS= read -r line; do case $line in ok*|not*) n=$((n + 1)); w=${line%%ok*}ok; echo "$w $n${line#*ok}";; *) echo "# $line";; esac; done <points; }

seq 1 5000 >text.txt
"$prog" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'R'
model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64, vocab: 257}
data: {train: a.h5}
run: {dir: d, device: cpu, threads: 1, save_every: 4, log_every: 2}
eval: {batches: 1, every: 3}
train: {seq_len: 32, micro_batch: 1, global_batch: 8, dtype: fp32, steps: 6}
R
run () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$prog" run.yaml "$@" >out 2>said </dev/null; rc=$?; }

# ---- TensorBoard: 6 steps, then again from the checkpoint of step 4, to step 8 ----
run 2
ok "$rc" 0 "a run"
rm d/checkpoints/step_00000006.h5
run 2 --train.steps 8
ok "$rc $(grep -c '^resumed at step 4' out)" "0 1" "and on from step 4"
points "$py" "$srcdir/test/events.py" own d
if "$judge" -c 'import tensorboard' 2>/dev/null; then
  points "$judge" "$srcdir/test/events.py" tensorboard d
else
  n=$((n + 1)); echo "ok $n - TensorBoard reads the same # SKIP ${judge} has no tensorboard package"
fi
rm -rf d; run 2 --run.tensorboard false --run.prometheus '' --train.steps 2
ok "$rc $(ls d | tr '\n' ' ')" "0 checkpoints config.yaml exit.json metrics.jsonl " "both can be left out"

# ---- Prometheus ----
mkdir coll; rm -rf d
run 2 --run.prometheus "$tmp/coll/pretrain.prom" --run.dir 'd/a "b"'
ok "$rc $(ls coll)" "0 pretrain.prom" "the file is there, and no other"
points "$py" "$srcdir/test/prom.py" coll/pretrain.prom 'd/a "b"/metrics.jsonl'
"${MPIEXEC:-mpiexec}" -n 1 "$prog" run.yaml --run.dir w --run.prometheus "$tmp/coll/w.prom" --run.log_every 1 --train.global_batch 1 --train.steps 400 --eval.batches 0 --run.save false >out 2>said </dev/null &
points "$py" - coll/w.prom <<'P'
import sys, time
seen, torn, end = set(), 0, time.time() + 60
while time.time() < end and 400 not in seen:
    try: text = open(sys.argv[1]).read()
    except FileNotFoundError: continue
    whole = text.startswith('# HELP pretrain_step ') and text.endswith('\n') and 'part_seconds' in text
    torn += not whole
    if whole: seen.add(int(text.split('pretrain_step{run="w"} ')[1].split('\n')[0]))
print('ok' if not torn and len(seen) > 5 else 'not ok', f'- a reader sees whole files, of {len(seen)} steps')
P
wait
run 2 --run.prometheus "$tmp/nowhere/pretrain.prom" --run.dir e
ok "$rc $(grep -c . said) $(grep -c 'run.prometheus: cannot write .*nowhere/pretrain.prom' said)" "2 1 1" "a folder that is not there: $(cat said)"

# ---- NVML ----
LD_LIBRARY_PATH=$here/test/nvml run 2 --run.dir g --debug.gpu 0000:01:00.0 --train.steps 4 --debug.slow_rank 1 --debug.slow_ms 400 --eval.batches 0
ok "$rc" 0 "a run that watches a GPU"
points "$py" "$srcdir/test/prom.py" g/metrics.prom g/metrics.jsonl gpu
LD_LIBRARY_PATH=$here/test/nvml FAKE_NVML=old run 2 --run.dir g2 --debug.gpu 0000:01:00.0 --train.steps 2
ok "$rc $(grep -c '"power_w":null,"clock_mhz_min":null' g2/metrics.jsonl)" "0 1" "a card that does not tell: null"
LD_LIBRARY_PATH=$here/test/nvml FAKE_NVML=lost run 2 --run.dir g3 --debug.gpu 0000:01:00.0 --train.steps 2
ok "$rc $(grep -c '"gpus"' g3/metrics.jsonl)" "0 0" "a GPU that is lost: nothing is told, the run goes on"
LD_LIBRARY_PATH=$here/test/nvml run 2 --run.dir g4 --debug.gpu 0000:02:00.0 --train.steps 2
ok "$rc $(grep -c '^NVML: GPU 0000:02:00.0: Not Found; nothing is told' out)" "0 1" "no such GPU: $(grep NVML out)"
[ -e /dev/nvidiactl ] || { run 2 --run.dir g5 --debug.gpu 0000:01:00.0 --train.steps 2
ok "$rc $(grep -c '^NVML: libnvidia-ml.so.1: .*; nothing is told' out)" "0 1" "no library: $(grep NVML out)"; }

# ---- the terminal ----
points "$py" "$srcdir/test/terminal.py" "${MPIEXEC:-mpiexec}" "$prog"
run 2 --run.dir t --train.steps 4
ok "$(tr -d '[:print:]\n' <out | wc -c) $(grep -c '^step' out)" "0 4" "no terminal: whole lines of plain text"
run 2 --run.dir t2 --train.steps 4 --run.progress line
ok "$rc $(grep -c "$(printf '\r')step 4/4 .*\|$(printf '\r')step 1/4" out)" "0 1" "--run.progress line asks for it all the same"
echo "1..$n"
