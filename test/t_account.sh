#!/bin/sh
# Where the time of a step goes, as metrics.jsonl says: the parts are the whole, waits by axis are those of the groups, MFU is the closed form, the slowest rank is found, every key
# has its line in share/doc/metrics.txt, and a kill takes no record along. Prints TAP.
set -u
srcdir=$(cd "${srcdir:-.}" && pwd)
prog=$(cd "${builddir:-.}" && pwd)/src/pretrain
py=${PYTHON:-/usr/bin/python3}
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said out | tail -n 12; fi; }

seq 1 5000 >text.txt
"$prog" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >cpu.yaml <<'M'
name: this-cpu
device: cpu
gpu: {name: cores, memory: 4 GB, bandwidth: 10 GB/s, peak_bf16: 20 GFLOP/s, peak_fp32: 7 GFLOP/s}
attention: {forward: 10 GFLOP/s, backward: 10 GFLOP/s}
node: {gpus: 8, nvlink: 1 GB/s}
nic: {bandwidth: 10 Gb/s}
M
cat >run.yaml <<'R'
model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 4, log_every: 3, machine: cpu.yaml}
eval: {batches: 1, every: 3}
train: {seq_len: 32, micro_batch: 1, global_batch: 8, dtype: fp32, steps: 7}
R
run () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$prog" run.yaml "$@" >out 2>said </dev/null; rc=$?; }

run 4 --run.dir a --mesh.dp_shard 2 --mesh.tp 2
ok "$rc" 0 "a run"
run 4 --run.dir b --mesh.dp_shard 2 --mesh.pp 2 --run.machine ''
ok "$rc" 0 "a run with stages"
run 4 --run.dir slow --mesh.dp_shard 4 --debug.slow_rank 2 --debug.slow_ms 400 --eval.batches 0
ok "$rc" 0 "a run with a slow rank"
cat >read.py <<'P'
import json, re, sys
doc = open(sys.argv[1] + '/share/doc/metrics.txt').read()
n = int(sys.argv[2])
def ok(good, what):
    global n
    n += 1
    print(('ok' if good else 'not ok'), n, '-', what)
def near(x, y, tol): return abs(x - y) <= tol * max(abs(x), abs(y), 1e-30)
load = lambda d: [json.loads(l) for l in open(d + '/metrics.jsonl')]
a, b, slow = load('a'), load('b'), load('slow')
step_parts = [k + '_s' for k in ('data', 'forward', 'backward', 'optimizer', 'exposed', 'agree', 'other')]
for name, run in (('a', a), ('b', b)):
    ok(all(near(sum(r['parts'][k] for k in step_parts), r['seconds'], 1e-3) for r in run), f'{name}: the parts of a step are its seconds')
    ok(all(r['parts'][k] >= 0 for r in run for k in step_parts) and all(min(r['parts'][k] for k in ('forward_s', 'backward_s', 'optimizer_s')) > 0 for r in run),
       f'{name}: none is negative, computation is there')
    ok(all(near(sum(r['exposed'].values()), r['parts']['exposed_s'], 1e-9) and near(r['comm_share'], r['parts']['exposed_s'] / r['seconds'], 1e-9) for r in run),
       f'{name}: the axes add up, and so does the share')
axis = {'tp': ('tp', 'kv replicas'), 'dp_shard': ('shard',), 'world': ('world',), 'pp': ('forward in', 'forward out', 'backward in', 'backward out', 'tied embedding')}
def by_axis(r, x): return sum(k['exposed_s'] for g in axis[x] if g in r['comm'] for k in r['comm'][g].values())
# Before a record with a validation, and the one after it, communication is not the step's alone.
clean = [(r, x) for run in (a, b) for r in run for x in r['exposed'] if r['step'] in (2, 5)]
ok(clean and all(near(by_axis(r, x), r['exposed'][x], 1e-6) for r, x in clean), 'waits by axis are those of its groups')
ok(set(a[1]['exposed']) == {'tp', 'dp_shard', 'world'} and set(b[1]['exposed']) == {'pp', 'dp_shard', 'world'}, 'the axes of the mesh and no others')
dim, layers, heads, kv, ffn, vocab, T = 32, 2, 4, 2, 64, 257, 32
hd = dim // heads
N = layers * (dim * hd * (heads + 2 * kv) + heads * hd * dim + 3 * dim * ffn) + vocab * dim
flop = 6 * N + 6 * layers * heads * hd * T
ok(all(near(r['mfu'], r['tokens_per_s'] * flop / (4 * 7e9), 1e-9) for r in a), 'MFU is (6 N + 6 L d T) tokens/s by the peak of 4 ranks')
ok(all(near(r['tokens_per_s'] * r['seconds'], 8 * T, 1e-9) for r in a), 'tokens/s are tokens by seconds')
ok(all(r['mfu'] is None for r in b), 'without a peak there is none')
ok([r['step'] for r in a if 'ranks' in r] == [3, 6] and a[2]['ranks']['steps'] == 2 and a[5]['ranks']['steps'] == 3, 'ranks are compared each log_every steps, the first step left out')
ok(all(r['parts']['checkpoint_s'] > 0 for r in a if r['step'] == 5) and all(r['parts']['eval_s'] > 1e-4 for r in a if 'eval_loss' in r), 'time of checkpoints and validations')
s = [r['ranks'] for r in slow if 'ranks' in r]
ok(len(s) == 2 and all(x['slowest'] == 2 and x['excess'] > 1 and x['work_s'] > 0.4 and near(x['excess'], x['work_s'] / x['median_s'] - 1, 1e-9) for x in s),
   f"the slow rank is found: {s and s[-1]['slowest']}, excess {s and s[-1]['excess']:.1f}")
ok(all(r['parts']['agree_s'] + r['parts']['exposed_s'] > 0.2 for r in slow[1:]), '... and the others wait for it')
said = set(re.findall(r'[a-z_]+', doc))
def keys(o):
    for k, v in o.items():
        yield k
        if isinstance(v, dict) and k not in ('memory', 'comm'): yield from keys(v)
new = {k for run in (a, b, slow) for r in run for k in keys(r)} - said
ok(not new, f'share/doc/metrics.txt has every key{": not " + ", ".join(new) if new else ""}')
P
"$py" read.py "$srcdir" $n >points 2>&1 || echo "not ok - $(tail -n 1 points)" >>points
cat points
n=$(grep -c 'ok ' points); n=$((n + 3))

# Killed in the midst of a step: each step that was said to be done is there whole.
"${MPIEXEC:-mpiexec}" -n 2 "$prog" run.yaml --run.dir "$tmp/kill" --run.log_every 1 --train.steps 100000 --train.global_batch 2 --eval.batches 0 --run.save false >out 2>said </dev/null &
i=0; while [ $i -lt 800 ] && [ "$(grep -c '^step' out)" -lt 20 ]; do sleep 0.05; i=$((i + 1)); done
kill -9 $(ps -eo pid=,args= | awk -v p="$prog" -v d="$tmp/kill" '$2 == p && index ($0, d) { print $1 }') 2>/dev/null
wait
told=$(sed -n 's/^step *\([0-9]*\).*/\1/p' out | tail -n 1)
ok "$("$py" -c 'import json, sys; print(max(json.loads(l)["step"] for l in open("kill/metrics.jsonl")) >= int(sys.argv[1]) >= 20)' "$told")" True "killed at step $told or later: no record is lost or torn"
echo "1..$n"
