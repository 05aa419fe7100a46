#!/bin/sh
# A rank that is killed or stands still while 4 of them train through NCCL on one GPU: the job ends within the watchdog's time and 10 seconds, exit.json
# says why, and what is said names the collective. Prints TAP; nothing without a GPU.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=120 program
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0 watchdog=5
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; tail -n 8 said | cut -c -600 | sed 's/^/# /'; fi; }

seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<S
model: tiny
data: {train: a.h5}
run: {device: cuda, watchdog: $watchdog, save_every: 0, log_every: 1000}
eval: {batches: 0}
mesh: {dp_shard: 2, tp: 2}
train: {seq_len: 32, micro_batch: 1, global_batch: 4, dtype: bf16, steps: 1}
debug: {shared_gpu: true}
S
"$program" run.yaml --run.dir probe --mesh.tp 1 --mesh.dp_shard 1 >out 2>said </dev/null
if grep -q 'no GPU can be used\|no device cuda\|cannot be opened' said; then echo "1..0 # SKIP $(head -n 1 said)"; exit 0; fi

# Each rank leaves its process id in pid.NAME.RANK.
cat >launch.sh <<'S'
echo $$ >"pid.$1.$PMI_RANK"; shift; exec "$program" "$@"
S
alive () { for pid in $(cat pid."$1".*); do if kill -0 "$pid" 2>/dev/null; then return 0; fi; done; return 1; }
# NAME FLAGS SIGNAL RANK: start, let it do steps, send the signal, wait; sets rc, seconds (from the signal on), left (processes that still are).
try () {
  name=$1
  ( "${MPIEXEC:-mpiexec}" $2 -n 4 sh launch.sh "$name" run.yaml --run.dir "$name" --train.steps 1000000 >"$name.out" 2>"$name.said" </dev/null; echo $? >"$name.rc" ) &
  i=0; while [ $i -lt 600 ] && [ "$(cat "$name/metrics.jsonl" 2>/dev/null | wc -l)" -lt 3 ]; do sleep 0.1; i=$((i + 1)); done
  steps=$(cat "$name/metrics.jsonl" 2>/dev/null | wc -l)
  start=$(date +%s)
  kill -"$3" "$(cat "pid.$name.$4")"
  i=0; while [ ! -e "$name.rc" ] && [ $i -lt 400 ]; do sleep 0.1; i=$((i + 1)); done
  seconds=$(($(date +%s) - start)) rc=$(cat "$name.rc" 2>/dev/null || echo none) left=
  i=0; while [ $i -lt $(((watchdog + 10 - seconds) * 10)) ] && alive "$name"; do sleep 0.1; i=$((i + 1)); done
  for pid in $(cat pid."$name".*); do if kill -0 "$pid" 2>/dev/null; then left="$left $pid"; kill -KILL "$pid"; fi; done
  cp "$name.said" said
}
code () { sed -n 's/.*"code": \([0-9]*\),.*/\1/p' "$1/exit.json"; }
result () { echo "$([ "$steps" -ge 3 ] && echo ran) $([ "$rc" != 0 ] && [ "$rc" != none ] && echo ended) $([ "$seconds" -le $((watchdog + 10)) ] && echo soon) $(code "$name")$left"; }

try killed "" KILL 1
ok "$(result)" "ran ended soon 4" "kill -9 of a rank: over after $seconds s, exit status $rc, exit.json"
try alone -disable-auto-cleanup KILL 1
ok "$(result)" "ran ended soon 4" "the same where the launcher does not help: over after $seconds s, exit status $rc"
ok "$(grep -c 'rank [0-9] of .*step [0-9]*.*under way: [a-z]' said | sed 's/^[1-9]$/some/')" some "what is said names rank, host, step and collective: $(grep -m 1 'under way' said | cut -c -300)"
try frozen -disable-auto-cleanup STOP 2
ok "$(result)" "ran ended soon 4" "SIGSTOP of a rank: over after $seconds s, exit status $rc"
ok "$(grep -c 'rank 2, process [0-9]* on host [^ ,]*, stands still.*under way: [a-z]* [a-z]' said | sed 's/^[1-9]$/some/')" some \
   "the watchdog names it and the collective: $(grep -m 1 'under way' said | sed 's/.*under way/under way/' | cut -c -200)"
echo "1..$n"
