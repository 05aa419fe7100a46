#!/bin/sh
# run.profile: a trace of some steps from all ranks on one time axis, although the nodes' clocks are far apart. Prints TAP.
set -u
srcdir=$(cd "${srcdir:-.}" && pwd)
prog=$(cd "${builddir:-.}" && pwd)/src/pretrain
py=${PYTHON:-/usr/bin/python3}
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; sed 's/^/# /' said out | tail -n 12; fi; }
# A command that prints points without numbers; that it ends well is one more.
points () { "$@" >points 2>said || echo "not ok - $(tail -n 1 said)" >>points; while IFS= read -r line; do n=$((n + 1)); w=${line%%ok*}ok; echo "$w $n${line#*ok}"; done <points; }

seq 1 5000 >text.txt
"$prog" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'R'
model: {dim: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 64, vocab: 257}
data: {train: a.h5}
run: {dir: d, device: cpu, threads: 1, save_every: 0, log_every: 2}
eval: {batches: 0}
train: {seq_len: 32, micro_batch: 1, global_batch: 8, dtype: fp32, steps: 6}
R
run () { ranks=$1; shift; "${MPIEXEC:-mpiexec}" -n "$ranks" "$prog" run.yaml "$@" >out 2>said </dev/null; rc=$?; }

# Two virtual nodes, whose clocks are 1000 s apart.
MPIR_CVAR_NUM_CLIQUES=2 run 4 --mesh.dp_shard 2 --mesh.pp 2 --profile 3:4 --debug.clock_skew 1000
ok "$rc $(grep -c '^d/profile_3-4.json: open it' out) $(ls d | grep -c tmp)" "0 1 0" "a run that profiles steps 3 and 4"
points "$py" "$srcdir/test/trace.py" d/profile_3-4.json d/metrics.jsonl 3 4 4 2 4 4 1
run 4 --run.dir e --mesh.tp 2 --mesh.dp_shard 2 --profile 5:9 --run.overlap false
ok "$rc $(ls e | grep profile)" "0 profile_5-6.json" "steps beyond the end: what there is"
points "$py" "$srcdir/test/trace.py" e/profile_5-6.json e/metrics.jsonl 5 6 4 1 4 4 1
losses () { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
run 4 --run.dir f --mesh.tp 2 --mesh.dp_shard 2 --run.overlap false
ok "$(losses e)" "$(losses f)" "profiled or not, the same losses"
for bad in 4:3 0:2 x 3:4:5 3:; do
  run 1 --run.dir g --run.profile "$bad"
  ok "$rc $(grep -c . said) $(grep -c 'run.profile expects FIRST:LAST' said)" "2 1 1" "--run.profile $bad is refused"
done
mkdir -p h/profile_2-2.json.tmp
run 2 --run.dir h --profile 2
ok "$rc $(grep -c 'profile_2-2.json cannot be written: .*training goes on' said) $(wc -l <h/metrics.jsonl)" "0 1 6" "a trace that cannot be written ends nothing"
echo "1..$n"
