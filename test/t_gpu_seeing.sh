#!/bin/sh
# What a run on GPUs shows: the parts of a step by events of the GPU, NVML's figures, MFU by the GPU's name, a trace whose collectives meet. Prints TAP; nothing without a GPU.
set -u
srcdir=$(cd "${srcdir:-.}" && pwd)
prog=$(cd "${builddir:-.}" && pwd)/src/pretrain
py=${PYTHON:-/usr/bin/python3}
[ -x "$py" ] || py=python3
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=120
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat said out | cut -c -400 | sed 's/^/# /' | tail -n 12; fi; }
points () { "$@" >points 2>said || echo "not ok - $(tail -n 1 said)" >>points; while IFS= read -r line; do n=$((n + 1)); w=${line%%ok*}ok; echo "$w $n${line#*ok}"; done <points; }

seq 1 60000 >text.txt
"$prog" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'R'
model: {dim: 1024, layers: 4, heads: 16, kv_heads: 8, ffn: 2816, vocab: 4096}
data: {train: a.h5}
run: {device: cuda, save: false, log_every: 10, deterministic: true}
eval: {batches: 0}
train: {seq_len: 1024, micro_batch: 4, dtype: bf16, steps: 20}
debug: {shared_gpu: true}
R
run () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$prog" run.yaml "$@" >out 2>said </dev/null; rc=$?; }
run 1 --run.dir probe --train.steps 1
if grep -q 'no GPU can be used\|no device cuda\|cannot be opened' said; then echo "1..0 # SKIP $(head -n 1 said)"; exit 0; fi

cat >read.py <<'P'
import json, sys
def ok(good, what): print('ok' if good else 'not ok', '-', what)
r, ranks = [json.loads(l) for l in open(sys.argv[1])], int(sys.argv[2])
parts = [k + '_s' for k in ('data', 'forward', 'backward', 'optimizer', 'exposed', 'agree', 'other')]
late = r[2:]
ok(all(abs(sum(x['parts'][k] for k in parts) - x['seconds']) < 0.02 * x['seconds'] for x in late), 'the parts of a step are its seconds: ' + ', '.join(f"{k} {1e3 * late[-1]['parts'][k]:.2f}" for k in parts)
   + f" ms of {1e3 * late[-1]['seconds']:.2f}")
ok(all(x['parts'][k] > 0 for x in late for k in ('forward_s', 'backward_s', 'optimizer_s')) and sum(x['parts']['backward_s'] - x['parts']['forward_s'] for x in late) > 0, 'the GPU works in each, backward longer than forward')
g = [x['gpus'] for x in r if 'gpus' in x]
ok(len(g) == 2 and all(x['n'] == ranks and x['memory_used_max'] > 1 << 28 and (x['power_w'] or 0) > 50 * ranks and 200 < (x['clock_mhz_min'] or 0) < 4000 and 10 < x['temperature_c_max'] < 110 for x in g), f'NVML: {g[-1] if g else "nothing"}')
ok(g and 0 <= g[-1]['utilization'] <= 1 and 0 <= g[-1]['idle'] <= 1, 'utilisation is a share')
m = [x['mfu'] for x in late]
ok(all(x is None for x in m) or all(0 < x < 1 for x in m), f'MFU {m[-1]}')
P
run 1 --run.dir one --profile 12:13
ok "$rc" 0 "a run on one GPU: $(grep '^MFU' out)"
points "$py" read.py one/metrics.jsonl 1
points "$py" "$srcdir/test/trace.py" one/profile_12-13.json one/metrics.jsonl 12 13 1 1 1 1 1
run 2 --run.dir two --mesh.dp_shard 2 --profile 12:13
ok "$rc" 0 "on two ranks"
points "$py" read.py two/metrics.jsonl 2
points "$py" "$srcdir/test/trace.py" two/profile_12-13.json two/metrics.jsonl 12 13 2 1 1 1 1
run 1 --run.dir again --train.global_batch 4
last () { sed -n 's/.*"step":20,"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
ok "$(last one)" "$(last again)" "profiled or not, the same loss"
echo "1..$n"
