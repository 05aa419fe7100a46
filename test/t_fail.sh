#!/bin/sh
# A rank of 4 that is killed, stands still, has no memory left, or whose disk fails or hangs, in each phase of a run, and where the launcher does not clean up: the job ends
# within the watchdog's time and 10 seconds with no process left, exit.json says 4, one message names rank, host, phase and who never arrived, and the next launch goes on
# to the losses of a run that was not disturbed. A job that was suspended goes on. Bad options 50 times. Prints TAP.
set -u
program=$(cd "${builddir:-.}" && pwd)/src/pretrain
fault=$(cd "${builddir:-.}" && pwd)/test/fault.so
ranks=$(cd "${srcdir:-..}" && pwd)/test/ranks.sh
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program fault
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
. "$ranks"
n=0 watchdog=4
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat "$d.said" "$d/exit.json" | cut -c -700 | sed 's/^/# /'; fi; }
clock () { date +%s%N | cut -c -11; }
alive () { for pid in $(cat "$d".pid.*); do if [ -e "/proc/$pid" ] && ! grep -q ') Z' "/proc/$pid/stat" 2>/dev/null; then return 0; fi; done; return 1; }

# try NAME PHASE SIGNAL [FLAGS]: in the background, as most of it is waiting; leaves rc, tenths of a second and processes left in NAME.end
try () {
  d=$1 FLAGS=${4:-}
  phase "$2"; [ -z "$base" ] || cp -r base "$d"
  launch --run.watchdog $watchdog
  until_so "$until"
  at=$(clock) rank=2
  kill "-$3" "$(cat "$d.pid.$rank")"; go
  wait $job; rc=$?
  while alive && [ $(($(clock) - at)) -lt $((10 * watchdog + 100)) ]; do sleep 0.1; done
  echo "$rc $(($(clock) - at)) $(alive && echo left)" >"$d.end"
  for pid in $(cat "$d".pid.*); do if [ "$(readlink "/proc/$pid/exe")" = "$program" ]; then kill -KILL "$pid"; fi; done
}
# judge NAME WORDS: what is in NAME.end and exit.json; WORDS must be in the one message, but - asks for none
judge () {
  d=$1; read -r rc tenths left <"$d.end"
  said=$(grep -c '^pretrain: ' "$d.said")
  if [ "$2" = - ]; then words=$said; [ "$said" -gt 1 ] || words=fine
  else words=$said$(grep '^pretrain: ' "$d.said" | grep -c -- "$2"); [ "$words" = 11 ] && grep -q -- "$2" "$d/exit.json" && words=fine; fi
  options= FAULTS= FLAGS= LIMIT=
  got="$([ "$rc" != 0 ] && [ "$rc" != 3 ] && echo ended) $([ "$tenths" -le $((10 * watchdog + 100)) ] && echo soon) $(code "$d") $words$left"
  mv "$d.said" first; mv "$d/exit.json" first.json
  launch; wait $job
  mv first "$d.said"; mv first.json "$d/exit.json"
  ok "$got $(losses "$d")" "ended soon 4 fine $(losses whole)" "$3: over after $((tenths / 10)).$((tenths % 10)) s, status $rc"
}

d=whole; options=; launch; wait $job
d=base; launch --train.steps 2; wait $job

# ---- stands still, and killed, in each phase
host=$(hostname -s)
phases='load step evaluation save save_behind'
# two phases at a time: most of it is waiting
for pair in 'load step' 'evaluation save' save_behind; do
  for p in $pair; do ( try stop_$p $p STOP ) & ( try alone_$p $p STOP -disable-auto-cleanup ) & done; wait
  for p in $pair; do ( try kill_$p $p KILL ) & ( try dead_$p $p KILL -disable-auto-cleanup ) & done; wait
done
for p in $phases; do
  named=$p absent='.*never arrived: rank.* 2'
  # among many collectives the one that speaks may wait for a rank that waits for rank 2, or in one that rank 2 had issued before it was stopped
  case $p in step) named='step [3-8]' absent=;; evaluation) absent=;; save_behind) named='s[at][ve][ep].*' absent=;; esac
  judge stop_$p "no progress for .* during .* on rank [013] of host $host.*: rank 2, process [0-9]* on host $host, stands still (SIGSTOP) during $named$absent" "SIGSTOP in $p"
  judge alone_$p "rank 2, process [0-9]* on host $host, stands still (SIGSTOP) during $named$absent" "SIGSTOP in $p, -disable-auto-cleanup"
  judge kill_$p - "SIGKILL in $p"
  judge dead_$p - "SIGKILL in $p, -disable-auto-cleanup"
done

# ---- alone on its node: each rank is one
MPIR_CVAR_NUM_CLIQUES=4; export MPIR_CVAR_NUM_CLIQUES
sed 's/mesh: .*/mesh: {dp_shard: 4}/; s/global_batch: 2/global_batch: 4/' run.yaml >nodes.yaml
cp run.yaml tp.yaml; cp nodes.yaml run.yaml
d=nodes options='--debug.comm_delay_ms 25' FLAGS=
launch --run.watchdog $watchdog; until_so 'steps_of 2'; at=$(clock)
kill -STOP "$(cat $d.pid.2)"; wait $job; rc=$? tenths=$(($(clock) - at))
ok "$([ $rc != 0 ] && echo ended) $([ $tenths -le $((10 * watchdog + 100)) ] && echo soon) $(code $d) $(grep -c '^pretrain: ' $d.said) $(grep -c "nothing is heard of rank 2 on host $host; never arrived: rank 2" $d.said)" \
   "ended soon 4 1 1" "SIGSTOP of a rank that is alone on its node: named after $((tenths / 10)) s, left to the launcher"
unset MPIR_CVAR_NUM_CLIQUES
cp tp.yaml run.yaml

# ---- before MPI is up
d=early options= FLAGS= LIMIT='kill -STOP $$'; at=$(clock)
launch --run.watchdog $watchdog; wait $job; rc=$? tenths=$(($(clock) - at)) LIMIT=
ok "$([ $rc != 0 ] && echo ended) $([ $tenths -le $((10 * watchdog + 100)) ] && echo soon) $(grep -c . $d.said) $(grep -c "^pretrain: no progress for .* during start on rank [013] of host $host: another rank" $d.said)" "ended soon 1 1" \
   "a rank that stands still before MPI is up: over after $((tenths / 10)) s, status $rc"

# ---- memory and disks
d=memory options= LIMIT='ulimit -d 60000'; launch --run.watchdog $watchdog; wait $job; rc=$?; LIMIT=
ok "$([ $rc != 0 ] && echo ended) $(code $d) $(grep -c '^pretrain: rank 2 of 4 on .*, during .*: out of host memory' $d.said) $(grep -c '^pretrain: ' $d.said)" "ended 4 1 1" "no memory left on rank 2, status $rc: $(grep -m 1 pretrain: $d.said)"
for f in pwrite:5 fsync:28 open:2; do
  d=disk_${f%:*} FAULTS="FAULT=$f FAULT_RANK=1"; [ $f = fsync:28 ] && FAULTS="FAULT=$f FAULT_RANK=0"
  case $f in open*) FAULTS="$FAULTS FAULT_AFTER=1 FAULT_COUNT=3";; esac   # seen late, as on NFS
  launch --run.watchdog $watchdog; wait $job; rc=$?
  case $f in open*) ok "$rc $(losses $d)" "0 $(losses whole)" "a file that is seen late on rank 1: waited for" ;;
  *) ok "$rc $(code $d) $(grep -c '^pretrain: .*step_00000004.h5.tmp' $d.said) $(grep -c . $d.said)" "4 4 1 1" "$f: $(cat $d.said)" ;; esac
done
d=hangs FAULTS="FAULT=pwrite:0 FAULT_RANK=1 FAULT_HOLD=$d.held"
launch --run.watchdog $watchdog; until_so held; at=$(clock); wait $job; rc=$? tenths=$(($(clock) - at))
ok "$([ $rc != 0 ] && echo ended) $([ $tenths -le $((10 * watchdog + 100)) ] && echo soon) $(code $d) $(grep -c '^pretrain: no progress.*during save.*rank 1, process [0-9]* on host [^ ]*, waits for none of the others .*during save' $d.said)" "ended soon 4 1" "a disk that does not answer rank 1: over after $((tenths / 10)) s, $(cut -c -400 $d.said)"
FAULTS=

# ---- a job that is suspended
d=suspended options='--run.save_async false' FAULTS="FAULT=pwrite:0 FAULT_RANK=1 FAULT_HOLD=$d.held"
launch --run.watchdog 4; until_so held; sleep 0.7   # for a look that sees no progress
kill -STOP $(cat $d.pid.*); sleep 5; kill -CONT $(cat $d.pid.*); go
wait $job
ok "$? $(losses $d)" "0 $(losses whole)" "all ranks stopped for longer than the watchdog's time, and continued"
FAULTS= options=

# ---- bad options, 50 times
good=0 i=0
while [ $i -lt 50 ]; do
  set -- --optimizer.lr fast --train.lerning_rate 1 --mesh.tp 3 --train.seq_len -1 --data.train none.h5 --model.heads 0 --run.save_every 1.5 --model nonsense --mesh.pp 0x --train.global_batch 3
  shift $((i % 10 * 2))
  "${MPIEXEC:-mpiexec}" -n 2 "$program" run.yaml --run.dir bad "$1" "$2" >d.out 2>bad.said </dev/null; rc=$?
  if [ $rc = 2 ] && [ "$(grep -c . bad.said)" = 1 ]; then good=$((good + 1)); else echo "# $1 $2: $rc"; sed 's/^/# /' bad.said; fi
  i=$((i + 1))
done
ok "$good" 50 "bad options 50 times: status 2 and one sentence"
echo "1..$n"
