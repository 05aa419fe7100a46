#!/bin/sh
# SIGTERM and SIGUSR1 to one rank and to the launcher while 4 ranks start, load, step, evaluate, save or wait: they agree on the step, save once, leave with
# status 3 within a step and a save, and go on to the losses of a run that was not stopped. A second signal ends at once. Twice REPEATS times in each phase (make bigcheck: 50).
# Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
fault=$(cd "${builddir:-.}" && pwd)/test/fault.so
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program fault
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0 repeats=${REPEATS:-1}
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat out said | tail -n 12 | sed 's/^/# /'; fi; }
losses () { cat $(ls "$1"/metrics.old.jsonl 2>/dev/null) "$1/metrics.jsonl" | sed -n 's/.*"loss":\([^,]*\),.*/\1/p' | tr '\n' ' '; }
last () { tail -n 1 "$1/metrics.jsonl" | sed 's/{"step":\([0-9]*\),.*/\1/'; }
has () { ls "$1/checkpoints" | sed 's/step_0*\([0-9]\)/\1/; s/\.h5//' | tr '\n' ' '; }
# Wait at most 10 s until a command succeeds.
until_so () { tries=0; while [ $tries -lt 200 ] && ! eval "$1"; do sleep 0.05; tries=$((tries + 1)); done; }

seq 1 3000 >text.txt
"$program" tokenize --tokenizer bytes text.txt a.h5 >said 2>&1 || { echo "Bail out! no tokens"; exit 1; }
cat >run.yaml <<'S'
model: {dim: 16, layers: 2, heads: 4, kv_heads: 2, ffn: 32, vocab: 257}
data: {train: a.h5}
run: {device: cpu, threads: 1, save_every: 4, keep: 0, log_every: 100, watchdog: 30}
eval: {batches: 0}
mesh: {dp_shard: 2, tp: 2}
train: {seq_len: 16, micro_batch: 1, global_batch: 2, dtype: fp32, steps: 8}
schedule: {warmup: 2, steps: 40}
S
# Each rank leaves its process id in pid.RANK; the faults are the program's alone.
cat >rank.sh <<'S'
echo $$ >"pid.$PMI_RANK.new"; mv "pid.$PMI_RANK.new" "pid.$PMI_RANK"
exec env LD_PRELOAD="$fault" $FAULTS "$program" run.yaml "$@"
S
# Handlers are there from the first lines of main on.
hears () { [ -s "pid.$1" ] && mask=$(sed -n 's/^SigCgt:[^0-9a-f]*[0-9a-f]*\(....\)$/\1/p' "/proc/$(cat "pid.$1")/status" 2>/dev/null) && [ -n "$mask" ] && [ $((0x$mask & 0x200)) != 0 ]; }
steps_of () { [ "$(cat d/metrics.jsonl 2>/dev/null | wc -l)" -ge "$1" ]; }

# What slows the ranks in a phase (faults, options), when it is the phase, and the last step that the stopped run may have done.
phase () {
  FAULTS= options= base=; until=; most=
  case $1 in
    start) until='hears 0 && hears 1 && hears 2 && hears 3' most=1 ;;
    load)  FAULTS='FAULT=pread:0 FAULT_US=20000' base=yes until='hears 0 && hears 3 && sleep 0.4' most=2 ;;
    step)  options='--debug.comm_delay_ms 25' until='steps_of 2 && sleep 0.1' most=3 ;;
    evaluation) options='--eval.every 2 --eval.batches 100000 --debug.comm_delay_ms 5' until='steps_of 1 && sleep 0.4' most=2 ;;
    save)  FAULTS='FAULT=pwrite:0 FAULT_US=50000' options='--run.save_async false' until='ls d/checkpoints/*4.h5.tmp >/dev/null 2>&1' most=5 ;;
    'save behind') FAULTS='FAULT=pwrite:0 FAULT_US=50000' options='--debug.comm_delay_ms 10' until='ls d/checkpoints/*4.h5.tmp >/dev/null 2>&1' most=6 ;;
    'wait for a rank') FAULTS='FAULT=fsync:0 FAULT_US=400000 FAULT_RANK=0' options='--run.save_async false' until='ls d/checkpoints/*4.h5.tmp >/dev/null 2>&1 && sleep 0.1' most=5 ;;
  esac
}
launch () { "${MPIEXEC:-mpiexec}" -n 4 sh rank.sh --run.dir d "$@" >out 2>said </dev/null & job=$!; }

FAULTS=; export FAULTS
launch; wait $job; mv d whole
launch --train.steps 2; wait $job; mv d base
for what in start load step evaluation save 'save behind' 'wait for a rank'; do
  i=0
  while [ $i -lt $((2 * repeats)) ]; do
    phase "$what"
    rm -rf d pid.*; [ -z "$base" ] || cp -r base d
    launch $options
    until_so "$until"
    sig=TERM; [ $((i / 2 % 2)) = $((i % 2)) ] || sig=USR1
    rank=$(((i / 2 + 1) % 4)) to=$job who='the launcher'
    if [ $((i % 2)) = 0 ]; then to=$(cat pid.$rank) who="rank $rank"; fi
    kill -$sig "$to"
    wait $job; rc=$? at=$(has d | awk '{ print $NF }')
    FAULTS=
    first=$(grep -c '^stopped on request (a signal) after step '"$at"';' out) code=$(sed -n 's/.*"code": \([0-9]\).*on request (a signal).*/\1/p' d/exit.json)
    # Hydra loses the ranks' status once in a hundred times that it hands a signal on (any program's, seen with 10 lines of MPI); exit.json knows.
    if [ "$to" = "$job" ] && [ $rc = 0 ]; then rc=$code; fi
    tmps=$(ls d/checkpoints | grep -c tmp) soon=$([ "$at" -le $most ] && echo soon) words=$(wc -l <said)
    launch; wait $job
    ok "$rc $code $first $tmps $soon $words $? $(losses d)" "3 3 1 0 soon 0 0 $(losses whole)" "$sig to $who in $what: stopped after step $at"
    i=$((i + 1))
  done
done

# ---- a second signal
for who in rank launcher; do
  rm -rf d pid.*
  FAULTS='FAULT=pwrite:0 FAULT_US=300000'
  launch --run.save_async false
  until_so 'ls d/checkpoints/*4.h5.tmp >/dev/null 2>&1'
  to=$job; [ $who = launcher ] || to=$(cat pid.2)
  kill -TERM "$to"; sleep 2.3
  t=$(date +%s%N)
  kill -TERM "$to"; wait $job; rc=$?
  ms=$((($(date +%s%N) - t) / 1000000))
  ok "$([ $rc != 0 ] && [ $rc != 3 ] && echo ended) $([ $ms -lt 1500 ] && echo 'at once') $(ls d/checkpoints)" "ended at once step_00000004.h5.tmp" "a second SIGTERM to the $who: over after $ms ms, status $rc"
done
FAULTS=

# ---- other wishes
rm -rf d; mkdir d; touch d/stop
launch; wait $job; rc=$?
ok "$rc $([ -e d/stop ] && echo stays)" "3 " "the file stop, which is removed"
launch --run.max_minutes 0.0001; wait $job
ok "$? $(grep -c 'stopped on request (run.max_minutes) after step 1;' out)" "3 1" "run.max_minutes: not without a step"
SLURM_JOB_END_TIME=$(($(date +%s) + 12)); export SLURM_JOB_END_TIME
launch; wait $job
ok "$? $(grep -c "stopped on request (the batch job's time is nearly over) after step 2;" out) $(sed -n 's/.*reason": "\([^"]*\)".*/\1/p' d/exit.json)" \
   "3 1 stopped on request (the batch job's time is nearly over)" "the end of the batch job's time: a save before it"
SLURM_JOB_END_TIME=$(($(date +%s) + 1000))
launch; wait $job
ok "$? $(losses d)" "0 $(losses whole)" "with time enough it goes on to the end, with the losses of the run that was not stopped"
echo "1..$n"
