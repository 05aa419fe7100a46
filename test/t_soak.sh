#!/bin/sh
# A run that is disturbed again and again: ranks killed and frozen, signals, the file stop, full disks, files that fail, at random moments and on other meshes; each time the
# same command goes on. The losses of the end are those of a run that was not disturbed, to the bit where the mesh is the same, and no good checkpoint was lost. SOAK:
# seconds (make bigcheck: 300). SEED repeats one. Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
fault=$(cd "${builddir:-.}" && pwd)/test/fault.so
ranks=$(cd "${srcdir:-..}" && pwd)/test/ranks.sh
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program fault
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
. "$ranks"
sed -i 's/save_every: 4, keep: 0/save_every: 5, keep: 2/; s/steps: 8}/steps: 60}/' run.yaml
seconds=${SOAK:-25} seed=${SEED:-$(date +%s)} n=0 d=d options=
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat log d.said d/exit.json | tail -n 60 | cut -c -300 | sed 's/^/# /'; fi; }
# A number below $1, from a sequence that SEED repeats.
random () { seed=$(((seed * 1103515245 + 12345) % 2147483648)); r=$((seed / 65536 % $1)); }
newest () { ls d/checkpoints 2>/dev/null | sed -n 's/^step_0*\([0-9]*\)\.h5$/\1/p' | sort -n | tail -n 1; }

over () { case $(sed 's/.*) //; s/ .*//' /proc/$job/stat 2>/dev/null) in Z|'') ;; *) false ;; esac; }
# Has this launch done step $at? Older records are no sign.
reached () { [ d/metrics.jsonl -nt mark ] && [ "$(tail -n 1 d/metrics.jsonl | sed -n 's/{"step":\([0-9]*\),.*/\1/p' | grep . || echo 0)" -ge $at ]; }

echo "# SEED=$seed"
d=whole; launch; wait $job; whole=$(losses whole); d=d
bad=0 events=0 rounds=0 kept=0 start=$(date +%s)
: >log
while [ $(($(date +%s) - start)) -lt "$seconds" ]; do
  [ $kept -gt 0 ] || rm -rf d d.*
  FAULTS= what= victim=; until=
  random 9; event=$r; random 4; rank=$r; random 40; at=$((kept + 1 + r / 2))
  case $event in
    0|1) what=KILL victim=$rank ;;
    2) what=STOP victim=$rank ;;
    3) what=TERM victim=$rank ;;
    4) what=USR1 ;;
    5) what=file ;;
    6) random 60; FAULTS="FAULT=pwrite:28 FAULT_AFTER=$r FAULT_RANK=$rank" ;;
    7) random 4; FAULTS="FAULT=fsync:5 FAULT_AFTER=$r" ;;
    8) random 30; FAULTS="FAULT=pwrite:0 FAULT_KILL=1 FAULT_AFTER=$r FAULT_RANK=$rank" ;;
  esac
  random 2; [ $r = 0 ] || [ -n "$FAULTS" ] || FAULTS='FAULT=pwrite:0 FAULT_US=5000'
  rm -f d.pid.*; touch mark
  launch --run.watchdog 3 --debug.comm_delay_ms 1
  if [ -n "$what" ]; then
    until over || reached; do sleep 0.02; done
    random 100; sleep 0.0$((r / 10))
    case $what in
      file) touch d/stop ;;
      USR1) kill -USR1 $job 2>/dev/null ;;
      *) kill -$what "$(cat d.pid.$victim)" 2>/dev/null ;;
    esac
  fi
  wait $job; rc=$?
  events=$((events + 1))
  now=$(newest) now=${now:-0} code=$(code d)
  echo "$event $what rank $rank at $at, $FAULTS: status $rc, exit.json $code, checkpoint $now" >>log
  rm -f d/stop
  # What was saved stays; a status of ours is exit.json's; nothing but an event ends a run.
  if [ "$now" -lt $kept ]; then bad=$((bad + 1)); echo "# lost checkpoint $kept" >>log; fi
  case $rc$code in 00|33|03|*4) ;; *) bad=$((bad + 1)); echo "# odd end" >>log ;; esac
  kept=$now
  if [ "$rc$code" = 00 ]; then
    rounds=$((rounds + 1)) kept=0
    if [ "$(losses d)" != "$whole" ]; then bad=$((bad + 1)); echo "# other losses: $(losses d)" >>log; fi
    "$program" verify d/checkpoints/*.h5 >verified 2>&1 || { bad=$((bad + 1)); cat verified >>log; }
  fi
done
FAULTS=
launch; wait $job
ok "$? $(losses d)" "0 $whole" "after $events events, $rounds times to the end: the losses of a run that was not disturbed, to the bit"
ok $bad 0 "no checkpoint lost, no odd end ($(awk '{ print $2 }' log | sort | uniq -c | tr -s ' \n' ' '))"
options='--mesh.dp_shard 4 --mesh.tp 1 --train.global_batch 4 --train.steps 61'
launch; wait $job
ok "$? $(ls d/checkpoints | grep -c tmp)" "0 0" "and another mesh goes on from there"
echo "1..$n"
